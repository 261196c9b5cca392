#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_rows.py: what stage 06 was asked for is what its ranks did, and what its rows tell.

    test_ring_rows.py PROGRAM

A flag that is read, written into the row and then forgotten on its way to the ranks changes no
result that is right. So here each is seen by what it changes: bytes that go between nodes, results
that are rounded, memory of threads, an order of events, a number of samples.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from tap import Tap

SMALL = ["-N", "24", "-H", "12", "-d", "4", "--device", "cpu"]


class Lab:
    def __init__(self, tap, program, folder):
        self.tap, self.program, self.folder = tap, os.path.abspath(program), folder
        self.runs = 0

    def run(self, flags):
        self.runs += 1
        report = os.path.join(self.folder, f"rows_{self.runs}.jsonl")
        done = subprocess.run([self.program, *SMALL, *flags.split(), "--json", report],
                              capture_output=True, text=True, timeout=60, check=False)
        with open(report, encoding="utf-8") as f:
            return done, [json.loads(line) for line in f]

    def row(self, flags):
        done, rows = self.run(flags)
        self.tap.ok(done.returncode == 0 and len(rows) == 1, f"{flags}: it runs", done.stderr)
        return rows[0]


def nodes(lab):
    """The double rings have two nodes where the ranks can be halved, and what they say is where
    messages go: with one node nothing is between nodes, with two something is."""
    for flags, doubled in (("--ranks 4", 2), ("--ranks 3", 1), ("--ranks 4 --nodes 4", 4)):
        rows = lab.run(f"--method all {flags}")[1]
        plain = doubled if "--nodes" in flags else 1
        wrong = [(r["method"], r["nodes"], r["outer_bytes"]) for r in rows
                 if r["nodes"] != (doubled if "double" in r["method"] else plain)
                 or (r["outer_bytes"] > 0) != (r["nodes"] > 1)]
        lab.tap.ok(len(rows) == 7 and not wrong, f"{flags}: the nodes of all methods", wrong)


def partials(lab):
    saved = []
    for name in ("f32", "bf16"):
        folder = os.path.join(lab.folder, name)
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
    said = [[lab.run(f"--method ring --inject exit@1:1 --seed-schedule {seed}")[0].stderr
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
        for check in (nodes, partials, threads, schedules, samples, budget):
            check(lab)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
