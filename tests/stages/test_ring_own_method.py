#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_own_method.py: --variant-so with a method of one's own for stage 06, right and wrong.

    test_ring_own_method.py --cc CC --include DIR... PROGRAM

so/ring_method.c is the student's ring. Each wrong one must be refused, and by the check that fits:
numbers by the oracle, bytes by the model, messages that nobody takes by the transport, memory that
is still on its way by its owner's tag.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
from tap import Tap

SMALL = ["-N", "37", "-H", "2", "-d", "8", "--causal", "--ranks", "3", "--timeout", "2"]
# DEED, what it does, more flags, exit status, what stderr must have
DEEDS = [
    (0, "a right ring", [], 0, ""),
    (0, "a right ring, unkind schedule", ["--seed-schedule", "5", "--layout", "striped"], 0, ""),
    (0, "a right ring, backward too", ["--backward", "--kv-heads", "1"], 0, ""),
    (0, "and the program's own beside it", ["--variant", "ring"], 0, ""),
    (1, "nothing moves", [], 1, "rank 0 sent 0 bytes of K in the forward pass, the model says "),
    (2, "it moves, and nobody looks", [], 1, "O is wrong"),
    (3, "nobody receives", [], 1, "takes"),
    (4, "it is looked at before it is there", [], 1, "on its way|in flight"),
    (5, "another method's bytes", ["--backward"], 1, "bytes of "),
    (5, "and a message is late", ["--backward", "--inject", "delay@1:0"], 1, "bytes of "),
    (6, "it gives up without a word", [], 1, "did not say why"),
    (7, "a tensor that is none", [], 1, "no tensor number"),
    (8, "no backward pass", ["--backward"], 1, "the table has no backward pass"),
    (9, "a backward pass without gradients", ["--backward"], 1, "left no dQ, dK or dV"),
    (11, "an input written to", [], 1, "wrote into its own Q, which is an input"),
    (10, "like no method", [], 1, "no method of this number"),
    (0, "a rank that is gone", ["--inject", "exit@1:0"], 1, "rank 1 is gone"),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", required=True, type=str.split)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("program")
    args = parser.parse_args()
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        for deed in sorted({entry[0] for entry in DEEDS}):
            built = subprocess.run(
                args.cc + ["-std=gnu11", "-O1", "-fPIC", "-shared", f"-DDEED={deed}",
                           *(f"-I{path}" for path in args.include),
                           os.path.join(HERE, "so", "ring_method.c"), "-o",
                           os.path.join(folder, f"{deed}.so")], capture_output=True, text=True)
            tap.ok(built.returncode == 0, f"so/ring_method.c compiles, deed {deed}", built.stderr)
        for deed, name, flags, status, pattern in DEEDS:
            done = subprocess.run([args.program, "--variant-so", os.path.join(folder, f"{deed}.so"),
                                   *SMALL, *flags], capture_output=True, text=True, timeout=60)
            said = any(word in done.stderr for word in pattern.split("|"))
            # the ranks' sentence stands above; memory was not what was missing
            said = said and "--so-memory" not in done.stderr
            tap.ok(done.returncode == status and said, f"{name}: exit status {status}",
                   f"{done.returncode}\n{done.stdout}{done.stderr}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
