#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_shown.py: what stage 06 shows beside its table: choices, a screen, a file of events.

    test_ring_shown.py PROGRAM

--method auto names a method and a layout and says why in a table; --trace fits a projector;
--trace-json is what Perfetto reads, with measured events and the model's.
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
        report = lab.path("auto.jsonl")
        if os.path.exists(report):
            os.remove(report)
        done = lab.run("-N", "96", "-d", "8", *flags.split(), "--method", "auto", "--json", report)
        head = re.match(r"((?:# [^\n]*\n)+?)# ring_burst: ", done.stdout)
        words = " ".join(head[1].replace("# ", " ").split()) if head else ""
        with open(report, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
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


def events(lab):
    path = lab.path("trace.json")
    for method in METHODS:
        with open(path, "w", encoding="utf-8") as f:
            f.write("something older")
        done = lab.run("-N", "64", "--backward", "--method", method, "--trace-json", path)
        with open(path, encoding="utf-8") as f:
            found = json.load(f)["traceEvents"]
        names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
        whole = all(e["dur"] >= 0 and {"step", "peer"} <= set(e["args"]) for e in found
                    if e["ph"] == "X")
        passes = {e["cat"] for e in found if e["ph"] == "X"}
        lab.tap.ok(done.returncode == 0 and len(names) == len(set(names)) == 8 and whole and
                   sum("measured" in name for name in names) == 4 and
                   passes == {"forward", "backward"},
                   f"--trace-json {method}: four ranks measured, four predicted", names)
    path = lab.path("refused.json")
    done = lab.run(*"-N 9 -H 4 --ranks 3 --method ulysses --trace-json".split(), path)
    lab.tap.ok(done.returncode == 2 and not os.path.exists(path),
               "--trace-json of a run that is refused leaves no file", done.stderr)


def memory(lab):
    """A row's memory: the largest rank's tensors and kernel workspace; under a full mask with the
    part of it that two blocks need, a byte for each pair. Of four the first rank has most."""
    for ranks, pairs in ((1, 61 * 61), (4, 16 * 16)):
        rows = []
        for mask in ("none", "full"):
            report = lab.path(f"memory_{ranks}_{mask}.jsonl")
            lab.run("-N", "61", "--method", "ring", "--threads", "1", "--ranks", str(ranks),
                    "--layout", "striped", "--mask", mask, "--json", report)
            with open(report, encoding="utf-8") as f:
                rows += [json.loads(line) for line in f]
        peaks = rows[0]["rank_peak_bytes"]
        lab.tap.ok(len(rows) == 2 and
                   rows[1]["workspace_bytes"] - rows[0]["workspace_bytes"] == pairs and
                   (ranks == 1 or peaks[-1] < peaks[0]) and
                   all(row["peak_bytes"] == max(row["rank_peak_bytes"]) + row["workspace_bytes"]
                       for row in rows),
                   f"memory of {ranks} ranks with and without a full mask",
                   [(row["workspace_bytes"], row["peak_bytes"]) for row in rows])


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(tap, sys.argv[1], folder)
        choices(lab)
        screens(lab)
        events(lab)
        memory(lab)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
