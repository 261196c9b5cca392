#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_shown.py: stage 06 does what it was asked for, and its rows, screens and files tell it.

    test_ring_shown.py PROGRAM

--method auto names a method and a layout and says why in a table; --trace fits a projector.
(--trace-json: test_ring_trace.py.)

A flag that is read, written into the row and then forgotten on its way to the ranks changes no
result that is right. So each of those is seen by what it changes: bytes that go between nodes,
results that are rounded, memory of threads, an order of events, a number of samples.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from tap import Tap

METHODS = ("ring-minimal", "ring", "burst", "allgather", "ulysses", "ring-double", "burst-double")


class Lab:
    def __init__(self, tap, program, folder):
        self.tap, self.program, self.folder = tap, os.path.abspath(program), folder

    def run(self, *flags):
        return subprocess.run([self.program, "--device", "cpu", *flags], capture_output=True,
                              text=True, timeout=60)

    def rows(self, flags):
        """The run, and the rows that it tells."""
        report = self.path("report.jsonl")
        if os.path.exists(report):
            os.remove(report)
        done = self.run(*flags.split(), "--json", report)
        with open(report, encoding="utf-8") as f:
            return done, [json.loads(line) for line in f]

    def small(self, flags):
        return self.rows(f"-N 24 -H 12 -d 4 {flags}")

    def row(self, flags):
        done, rows = self.small(flags)
        self.tap.ok(done.returncode == 0 and len(rows) == 1, f"{flags}: it runs", done.stderr)
        return rows[0]

    def path(self, name):
        return os.path.join(self.folder, name)


def choices(lab):
    """The choice is shown, and it is what runs."""
    cases = {"--causal --backward --kv-heads 1": (None, "zigzag"),
             "-N 300 --window 20,0": (None, "contiguous"),
             "-N 300 --window 290,0": (None, "zigzag"),  # not what a window has by default
             "--causal --layout striped": (None, "striped"),
             "--ranks 1": (None, "contiguous"),
             "-H 6 --ranks 4 --backward": (("ring", "burst", "allgather"), "contiguous")}
    for flags, (methods, layout) in cases.items():
        done, rows = lab.rows(f"-N 96 -d 8 {flags} --method auto")
        head = re.match(r"((?:# [^\n]*\n)+?)# ring_burst: ", done.stdout)
        words = " ".join(head[1].replace("# ", " ").split()) if head else ""
        row = rows[0]
        lab.tap.ok(done.returncode == 0 and len(rows) == 1 and row["pass"] is True and
                   row["method"] in (methods or METHODS) and row["layout"] == layout and
                   words.startswith(f"{row['method']}, {layout}") and len(words) > 50 and
                   max(map(len, done.stdout.splitlines()[:3])) <= 120,
                   f"--method auto {flags}: {row['method']}, {row['layout']}, and why",
                   done.stdout + done.stderr)
    done = lab.run("-N", "40", "--method", "auto", "--quiet")
    lab.tap.ok((done.returncode, done.stdout) == (0, ""), "--quiet: no reasons", done.stdout)
    lines = lab.path("cases")
    with open(lines, "w", encoding="utf-8") as f:
        f.write("-N 40 --causal\n-N 41 --window 5,0\n")
    done = lab.run("--method", "auto", "--cases", lines)
    lab.tap.ok(done.returncode == 0 and done.stdout.count(" ok ") == 2,
               "--method auto with --cases: a choice a line", done.stdout + done.stderr)


def screens(lab):
    for method in METHODS:
        for more in ([], ["--backward", "--window", "9,3"]):
            done = lab.run("--trace", "--method", method, *more)
            picture = done.stdout.split("# ring_burst: ")[0].splitlines()
            lab.tap.ok(done.returncode == 0 and 5 <= len(picture) <= 24 and
                       max(map(len, picture)) <= 80 and picture[0].startswith(method + ", ") and
                       all(f"rank {rank}" in done.stdout for rank in range(4)),
                       f"--trace {method} {' '.join(more)}: {len(picture)} lines of 80 columns",
                       done.stdout + done.stderr)


def memory(lab):
    """A row's memory: the largest rank's tensors and kernel workspace; under a full mask with the
    part of it that two blocks need, a byte for each pair. Of four the first rank has most."""
    for ranks, pairs in ((1, 61 * 61), (4, 16 * 16)):
        rows = []
        for mask in ("none", "full"):
            rows += lab.rows(f"-N 61 --method ring --threads 1 --ranks {ranks} --layout striped "
                             f"--mask {mask}")[1]
        peaks = rows[0]["rank_peak_bytes"]
        lab.tap.ok(len(rows) == 2 and
                   rows[1]["workspace_bytes"] - rows[0]["workspace_bytes"] == pairs and
                   (ranks == 1 or peaks[-1] < peaks[0]) and
                   all(row["peak_bytes"] == max(row["rank_peak_bytes"]) + row["workspace_bytes"]
                       for row in rows),
                   f"memory of {ranks} ranks with and without a full mask",
                   [(row["workspace_bytes"], row["peak_bytes"]) for row in rows])


def nodes(lab):
    """The double rings have two nodes where the ranks can be halved, and what they say is where
    messages go: with one node nothing is between nodes, with two something is."""
    for flags, doubled in (("--ranks 4", 2), ("--ranks 3", 1), ("--ranks 4 --nodes 4", 4)):
        rows = lab.small(f"--method all {flags}")[1]
        plain = doubled if "--nodes" in flags else 1
        wrong = [(r["method"], r["nodes"], r["outer_bytes"]) for r in rows
                 if r["nodes"] != (doubled if "double" in r["method"] else plain)
                 or (r["outer_bytes"] > 0) != (r["nodes"] > 1)]
        lab.tap.ok(len(rows) == 7 and not wrong, f"{flags}: the nodes of all methods", wrong)


def partials(lab):
    saved = []
    for name in ("f32", "bf16"):
        folder = lab.path(name)
        lab.row(f"--method ring --partials {name} --save {folder}")
        with open(os.path.join(folder, "o.npy"), "rb") as f:
            saved.append(f.read())
    lab.tap.ok(saved[0] != saved[1], "--partials bf16 rounds what is between two steps")


def threads(lab):
    """Each thread of a rank has a workspace of its own."""
    one, two = (lab.row(f"--method ring --ranks 1 -N 256 --threads {n}")["workspace_bytes"]
                for n in (1, 2))
    lab.tap.ok(two > one, "--threads 2: a rank alone has both", f"{one} and {two} bytes")


def schedules(lab):
    """Who hears first that a rank is gone is decided by the schedule: the same by the same seed."""
    said = [[lab.small(f"--method ring --inject exit@1:1 --seed-schedule {seed}")[0].stderr
             for _ in range(2)] for seed in (1, 4, 5)]
    lab.tap.ok(all(a == b for a, b in said), "--seed-schedule: the same order again", said)
    lab.tap.ok(len({a for a, _ in said}) > 1, "--seed-schedule: another seed, another order",
               said[0][0])


def samples(lab):
    """A time for each round, of each pass that there is, and none of a local baseline on a CPU. How
    much of the messages' time is hidden is told by events, which a benchmark keeps."""
    for flags, count in (("", 1), ("--bench --warmup 1 --iters 3", 3)):
        for backward in (0, 1):
            row = lab.row(f"--method burst {flags}{' --backward' * backward}")
            found = [len(row[key]) for key in
                     ("ms", "ms_backward", "alone_ms", "alone_ms_backward")]
            lab.tap.ok(found == [count, count * backward, 0, 0] and
                       all(ms > 0 for ms in row["ms"] + row["ms_backward"]) and
                       [row["hidden"] is not None, row["hidden_backward"] is not None] ==
                       [count > 1, count * backward > 1],
                       f"burst {flags}, backward {backward}: samples", found)


def budget(lab):
    """A round that a late message makes longer than 200 ms: after eight to warm up no other fits
    into the two seconds of a row, and the first one, alone, is what there is."""
    row = lab.row("--method ring --inject delay@1:1 --bench --warmup 8 --iters 5")
    lab.tap.ok(len(row["ms"]) == 1, "rounds that nobody has time for are not made", row["ms"])


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(tap, sys.argv[1], folder)
        for check in (choices, screens, memory, nodes, partials, threads, schedules,
                      samples, budget):
            check(lab)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
