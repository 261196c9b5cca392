#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A block in model ticks: the same whatever order fibers run in, what can be told on paper, and
what docs/gpu_on_paper.md shows.

usage: test_trace.py
"""
import json
import pathlib
import sys
import tempfile

from programs import ROOT, SCHEDULES, program, run
from tap import Tap

CASE = ["-N", "256", "-H", "1", "-d", "64"]


def trace(name, dtype, schedule="late", *more):
    """What the screen says, and the file as text."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "trace.json"
        words = ["--device", "cuda", "--variant", name, "--dtype", dtype, *CASE, *more]
        done = run([program("03")], words, schedule, SIMT_TRACE="1", SIMT_JSON=str(file))
        text = file.read_text(encoding="utf-8") if file.is_file() else "{}"
    return done.stdout[done.stdout.find("trace: "):], text


def rows_of(page):
    """The spans of each thread of Chrome's format: (begin, end, name), and the threads' names."""
    rows, names = {}, {}
    for event in page["traceEvents"]:
        if event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"], event["name"], event["args"]["line"]))
    return rows, names


def main():
    tap = Tap()
    for name, dtype in (("v1_fa2", "f32"), ("v5_cp_async", "bf16"), ("v14_persistent", "bf16")):
        said = {trace(name, dtype, schedule) for schedule in SCHEDULES}
        tap.ok(len(said) == 1, f"{name}: one picture whatever the schedule",
               "\n".join(screen for screen, _ in said)[:3000])
        screen, text = said.pop()
        page = json.loads(text)
        rows, names = rows_of(page)
        warps = [key for key in rows if names[key].startswith("warp")]
        apart = all(a[1] <= b[0] for key in warps
                    for a, b in zip(sorted(rows[key]), sorted(rows[key])[1:]))
        tap.ok(warps and apart, f"{name}: a warp does one thing at a time")
        lines = [span[3] for key in warps for span in rows[key]]
        tap.ok(all(".cu" in line and ":0" not in line for line in lines),
               f"{name}: each span of a warp has a line", str(lines[:20]))
        tap.ok(max(map(len, screen.split("\n"))) <= 100, f"{name}: 100 columns", screen)
        tap.ok("early" not in screen, f"{name}: to the end", screen)
    # v1_fa2 reads a row of K by each lane: its pad leaves no bank conflict
    page = json.loads(trace("v1_fa2", "f32")[1])
    shared = [r for r in page["requests"] if r["space"] == "shared" and not r["write"]]
    rows_apart = [r for r in shared if len({a // 4 for a in r["addresses"]}) == 32]
    tap.ok(rows_apart and all(len({a // 4 % 32 for a in r["addresses"]}) == 32 and r["cost"] == 1
                              for r in rows_apart), "v1_fa2: 32 words in 32 banks, one wavefront")
    # a block computes Q K^T and P V for 128 rows, by products of 16 x 8 x 16 that take 6 ticks
    page = json.loads(trace("v5_cp_async", "bf16")[1])
    about = next(e["args"] for e in page["traceEvents"] if e["name"] == "process_name")
    ticks = 2 * (128 * 256 * 64) // (16 * 8 * 16) * 6
    tap.ok(about["tensor"] == ticks, f"v5_cp_async: its tensor cores are busy for {ticks} ticks",
           str(about))
    # a line that moved makes these stale
    for name, length in (("v5_cp_async", "128"), ("v9_wgmma", "512")):
        screen, text = trace(name, "bf16", "late", "-N", length)
        recorded = ROOT / f"docs/results/simt_trace_{name}.json"
        tap.ok(text == recorded.read_text(encoding="utf-8"), f"{recorded.name} is today's trace",
               f"record it: ./ladder simt 03 {name} trace -N {length} --json {recorded}")
        if length == "128":
            paper = (ROOT / "docs/gpu_on_paper.md").read_text(encoding="utf-8")
            shown = "\n".join(line.rstrip() for line in screen.split("\n  ticks:")[0].split("\n"))
            tap.ok(shown.startswith("trace: ") and shown in paper, f"the page's picture of {name}",
                   shown)
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
