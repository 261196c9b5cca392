#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_large_scores.py: weights of a row sum to 1 however large its scores are.

    test_large_scores.py PROGRAM [--backward[=always]] [--device cpu|cuda]

Half an ulp of a float32 is 0.008 at 2e5, 2 at 6e7 and 64 at 2e9: whoever makes P = exp(s - lse) of
a rounded lse has weights that sum to 1.01, 7 or infinity. Two inputs with d = 1 whose answer no
score can change, in every variant:

- one key: query i sees key i alone. O is V, times 1/(1 - p) where it is kept, whatever the score.
- ties: all keys are the same, so that O is what it is with Q = 0. On a GPU up to 5e8: kernels
  take 2^(s c - m c), with c = log2(e), in one fused multiply-add, and m c is rounded. All weights
  of a row carry that one factor, and O does not see it until 2^128 overflows: from 2e9 on.

The backward pass has only lse, and what it gives at such scores is no number of use. But P is at
most 1: with dO = 1 an element of dV is a sum of probabilities, and nothing is infinite or NaN.
"""
import math
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import saved_runs
from test_sweep import BACKWARD, begin, variants_of

SIZES = [2e5, 1e6, 6.1e7, 5e8, 2e9]
PER_SIZE, LEFT = 16, 20
R = [size * (1 + n / 500) for size in SIZES for n in range(PER_SIZE)]
N = len(R)
TOLERANCE = {"f32": 2e-6, "f16": 2e-3, "bf16": 1.6e-2}
# Stage 05: what changes weights, for its library.
OPTIONS = [["--dropout", "0.1"], ["--clip=-0.03,1.05"], ["--clip=-0.03,1.05", "--dropout", "0.1"]]


def worst(found, wanted):
    """The largest distance; inf for NaN, and for lists of two lengths."""
    if len(found) != len(wanted) or any(math.isnan(x) for x in found):
        return math.inf
    return max(abs(x - y) for x, y in zip(found, wanted))


class Lab:
    def __init__(self, args, tap, folder):
        self.args, self.tap = args, tap
        self.program = saved_runs.Program(args.program, args.device, folder)
        self.backward = args.backward and {**variants_of(args.program, args.device, True),
                                           **variants_of(args.program, args.device, True, "plain")}

    def run(self, q, k, flags, variant, dtype):
        """O and dV of one head with V = 1 and dO = 1."""
        of, command = {"q": q, "k": k, "v": [1.0] * N}, ["--variant", variant, "--dtype", dtype]
        if self.backward and variant in self.backward:
            of["do"] = [1.0] * N
            command += ["--backward"] if self.args.backward is True else []
        files = {name: self.program.write(name, (1, N, 1, 1), x) for name, x in of.items()}
        return self.program.run(files, [*command, "--causal", *flags])

    def gradients(self, found, most, label):
        for name in ("dq", "dk", "dv"):
            self.tap.ok(all(map(math.isfinite, found[name])), f"{label}: {name} is finite",
                        found[name])
        self.tap.ok(all(0 <= x <= most for x in found["dv"]), f"{label}: P is at most 1",
                    found["dv"])

    def one_key(self, flags, variant, dtype):
        label, kept = " ".join([variant, dtype, "one key", *flags]), 1.0
        flags = ["--window", "0,0", *flags]
        found = self.run([math.sqrt(r) for r in R], [1.2345 * math.sqrt(r) for r in R], flags,
                         variant, dtype)
        wanted = [1.0] * N
        if "--dropout" in flags:
            kept = 1 / 0.9
            wanted = [kept if x != 0 else 0.0 for x in found["o"]]
            self.tap.ok(sum(x == 0 for x in found["o"]) < N / 4, f"{label}: most pairs are kept")
        far = worst(found["o"], wanted)
        self.tap.ok(far <= TOLERANCE[dtype], f"{label}: O is V", f"{far} off: {found['o']}")
        if "dv" in found:
            self.gradients(found, kept * (1 + TOLERANCE[dtype]), label)

    def ties(self, flags, variant, dtype):
        label = " ".join([variant, dtype, "ties", *flags])
        flags = ["--window", f"{LEFT},0", *flags]
        scored = self.run(R, [1.0] * N, flags, variant, dtype)
        wanted = self.run([0.0] * N, [1.0] * N, flags, variant, dtype)
        rows = N if self.args.device == "cpu" else N - PER_SIZE
        far = worst(scored["o"][:rows], wanted["o"][:rows])
        self.tap.ok(far <= TOLERANCE[dtype], f"{label}: as with Q = 0", f"{far} off: {scored['o']}")
        if "dv" in scored:
            self.gradients(scored, (LEFT + 1) / 0.9 * (1 + TOLERANCE[dtype]), label)


def main():
    args, tap = begin(backward=BACKWARD)
    window = os.path.basename(args.program) == "sliding_window"
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args, tap, folder)
        # Plain rungs on a GPU take d = 64 and 128 alone, but for those of stage 05.
        for cases in (("any", "full"), ("plain",))[:2 if args.device == "cpu" or window else 1]:
            for variant, dtypes in variants_of(args.program, args.device, cases=cases).items():
                some = [["--block-kv", "5", "--block-q", "7"]] if window else []
                some += OPTIONS if window and variant == "library" else []
                # f16 has no number above 65504, and ties take their size from Q
                for dtype in dtypes if args.device == "cpu" else ["f32"] if "f32" in dtypes else []:
                    for flags in [[]] + some:
                        lab.one_key(flags, variant, dtype)
                        if dtype != "f16":
                            lab.ties(flags, variant, dtype)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
