#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_boxes.py: the boxes of the to-do list that stage 06 began with, each ticked by a test.

    test_ring_boxes.py PROGRAM

The list (a README of 2024) asks for: functions that split a sequence evenly among ranks; ranks 1
and 4 with equal output; a causal mask derived from rank and chunk sizes; intermediates out of flash
attention, and a backward pass by recomputation and ring passes; striped attention; messages in one
batch; cross attention. Its own test has 31 tokens, which no number of ranks but 31 divides, and a
model of 8 channels: two heads of 4.

Results are compared as --save writes them: methods, layouts and ranks against one rank. (One rank
against the kernels of stages 03 and 04, and other orders of messages, to the bit:
tests/unit/test_ring_methods.c. Messages that are under way while a rank computes:
test_ring_trace.py.)
"""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from tap import Tap

METHODS = ("ring-minimal", "ring", "burst", "allgather", "ring-double", "burst-double")
LAYOUTS = ("contiguous", "zigzag", "striped")
MODEL = "-H 2 -d 4 -B 2 --seed 31"  # 8 channels
LIMIT = 2e-6  # of float32, beside values of order 1


def runs(program, folder, lines):
    """What --save wrote for each line, {name: flat values}, all in one process."""
    cases, saved = os.path.join(folder, "cases"), os.path.join(folder, "saved")
    with open(cases, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    command = [program, "--quiet", "--device", "cpu", "--cases", cases, "--save", saved]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: exit status {done.returncode}: {done.stderr[-800:]}")
    found = [{name: npyfile.read(os.path.join(saved, str(n + 1), name))[1]
              for name in os.listdir(os.path.join(saved, str(n + 1)))} for n in range(len(lines))]
    shutil.rmtree(saved)
    return found


def distance(a, b):
    """Largest difference over all tensors; what one side does not have is infinitely far away."""
    if set(a) != set(b) or any(len(a[t]) != len(b[t]) or not a[t] for t in a):
        return float("inf")
    return max(0.0 if x == y else abs(x - y) if abs(x - y) >= 0 else float("inf")
               for t in a for x, y in zip(a[t], b[t]))


def choices(ranks, layouts=LAYOUTS, methods=METHODS):
    return [f"--ranks {G} --layout {layout} --method {method}" for G in ranks
            for layout in layouts for method in methods]


MASKS = choices((3, 4), methods=("ring", "burst", "allgather"))
BOXES = [
    # a causal window of one key hands every token its own value: each must be somewhere, once
    ("split evenly, none is lost", "-N 31 --causal --window 0,0",
     choices((2, 3, 4, 8, 16, 31, 40), methods=("ring",))),
    ("ranks 1 and 4", "-N 31 --backward", choices((4,)) + choices((2,), methods=("ulysses",))),
    ("derived causal mask", "-N 31 --causal --backward", MASKS),
    ("causal from the upper left",
     "--seq-q 31 --seq-kv 20 --backward --mask causal-upper-left", MASKS),
    ("backward by ring passes", "-N 31 --causal --backward --kv-heads 1",
     choices((2, 3, 4, 5, 8), layouts=("zigzag",))),
    ("striped attention", "-N 31 --causal --backward", choices((2, 4, 31), layouts=("striped",))),
    ("cross attention", "--seq-q 31 --seq-kv 57 --backward", MASKS),
    ("cross attention, fewer keys than ranks", "--seq-q 31 --seq-kv 3 --backward", MASKS),
    ("a window, keys to both sides", "-N 31 --window 6,4 --backward", MASKS),
]


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        for box, flags, ways in BOXES:
            one, *others = runs(os.path.abspath(sys.argv[1]), folder, [
                f"{flags} {MODEL} {way}" for way in ["--ranks 1 --method ring"] + ways])
            far = [distance(one, other) for other in others]
            tap.ok(max(far) <= LIMIT, f"{box}: {len(ways)} ways, one answer",
                   f"{ways[far.index(max(far))]}: {max(far):g}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
