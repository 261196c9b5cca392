#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_regions.py: the number of parallel regions does not grow with the number of heads.

    test_regions.py --cc CC PROGRAM...

Threads that meet after each head wait for each other as often as there are heads: on a busy machine
seconds for work of milliseconds. Times are not asserted, regions are counted (so/count_regions.c).
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
from tap import Tap

FEW, MANY = 5, 25  # batches; odd, so that heads do not divide among the threads
MORE = 4  # regions that follow the size of the whole, as large tensors are filled by all threads
# Heads of a few rows and of two tiles, groups of query heads, one group of many.
SHAPES = ["-B {} -H 2 -N 3 -d 8", "-B {} -H 3 -N 40 -d 8 --causal",
          "-B {} -H 6 --kv-heads 1 -N 70 -d 16", "-B 1 -H {} --kv-heads 1 -N 20 -d 8"]
LARGE = "-B {} -H 1 -N 300 -d 64"
SHARED = (3, 15)  # batches of LARGE: below 8 heads a thread all threads share each head
BACKWARD = ("naive", "sliding_window", "ring_burst")
EMPTY = {"sliding_window": "--causal --window 16,0", "ring_burst": "--ranks 2 --threads 4"}


def count(program, preload, flags):
    """Regions of a run, or a sentence."""
    done = subprocess.run([program, "--device", "cpu", "--threads", "2", *flags.split()],
                          capture_output=True, text=True, timeout=100,
                          env=dict(os.environ, LD_PRELOAD=preload))
    told = re.findall(r"^regions: (\d+)$", done.stderr, re.M)
    return int(told[-1]) if done.returncode == 0 and told else done.stderr[-300:] or "no count"


def check(tap, program, preload, shape, rest):
    sizes = SHARED if shape == LARGE else (FEW, MANY)
    few, many = (count(program, preload, f"{shape.format(n)} {rest}") for n in sizes)
    tap.ok(isinstance(few, int) and isinstance(many, int) and 0 < many < few + MORE,
           f"{os.path.basename(program)} {shape} {rest}", f"{sizes[0]}: {few}, {sizes[1]}: {many}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", required=True, type=str.split)
    parser.add_argument("programs", nargs="+", type=os.path.abspath)
    args = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        preload = os.path.join(folder, "count_regions.so")
        built = subprocess.run(args.cc + ["-O1", "-fPIC", "-shared", "-o", preload,
                                          os.path.join(HERE, "so", "count_regions.c"), "-ldl"],
                               capture_output=True, text=True)
        tap.ok(built.returncode == 0, "count_regions.c compiles", built.stderr)
        for program in args.programs:
            name = os.path.basename(program)
            for shape in SHAPES + [LARGE]:
                for backward in ("", "--backward") if name in BACKWARD else ("",):
                    rest = f"{EMPTY.get(name, '')} {backward}".strip()
                    if name == "ring_burst":
                        rest += " --method ring"  # ulysses takes no odd number of heads
                    check(tap, program, preload, shape, rest + " --no-check")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
