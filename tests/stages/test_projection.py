#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_projection.py: gradients of whole programs against differences of their own losses.

    test_projection.py PROGRAM [--device cpu|cuda] [--wrong BUILD PATCH,PATCH...]

The oracle computes every element in float64, and a sample where that takes too long. Here sizes are
large and no gradient is known: the program's forward pass runs at theta + eps v and theta - eps v,
in float32, and for L(theta) = <dO, O(theta)>

    (L(theta + eps v) - L(theta - eps v)) / (2 eps)  =  <gradient of theta, v>  + O(eps^2)

One number says something about all elements at once. Two steps, eps and eps / 2, are combined so
that the error is O(eps^4); products are added in float64. Inputs are multiples of 2^-5 in -1..1
and steps are powers of 2, so what the program reads is exactly theta + eps v, and 16 bits hold the
inputs exactly too: the same differences judge every dtype.

Directions: a random one for each of Q, K, V, where every element counts alike, and one along the
signs of all three gradients, where they all add up: errors of the order of 1e-4 of a gradient, a
wrong scale, say, are seen in it. How far off a right result may be (as a share of |gradient| in the
first case, of the sum of its magnitudes in the second) stands in LIMITS.

A check must be able to fail: gradients made wrong on purpose have to be refused, and so do the
wrong solutions that --wrong compiles.
"""
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import saved_runs
from saved_runs import loss
from test_sweep import WRONG, begin, variants_of
from workshop import Failure

# Steps: all of Q moves a score further than a part of it does at random.
EPS, EPS_ALONG = 2.0**-4, 2.0**-6
# dtype: (random direction, along the gradient)
LIMITS = {"f32": (2e-4, 2e-5), "f16": (4e-3, 2e-4), "bf16": (3e-2, 1e-3)}
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv"}

# name, Nq, Nk, H, Hkv, d, flags, variants that hold an N x N matrix and sit it out
CASES = [
    ("causal, grouped heads", 2048, 2048, 2, 1, 32, ["--causal", "--scale", "0.7"], ()),
    ("window, softcap, negative scale", 12000, 16000, 1, 1, 24,
     ["--window", "300,100", "--softcap", "6", "--scale", "-0.5"], ("v1_blas", "v1_cublas")),
]
QUICK = [(name, q // 8, k // 8, *rest) for name, q, k, *rest in CASES]


class Differences:
    """Inputs of one case, the directions, and the differences along them."""

    def __init__(self, program, case, first):
        self.name, Nq, Nk, H, Hkv, d, flags, _ = case
        self.shapes = {"q": (1, Nq, H, d), "k": (1, Nk, Hkv, d), "v": (1, Nk, Hkv, d),
                       "do": (1, Nq, H, d)}
        self.program, self.flags = program, flags
        self.theta = {name: saved_runs.numbers(seed, math.prod(shape), 32, 2.0**-5)
                      for seed, (name, shape) in enumerate(self.shapes.items())}
        self.files = {name: program.write(name, shape, self.theta[name])
                      for name, shape in self.shapes.items()}
        self.first = first
        base = self.gradients(["--variant", first])
        self.random = {t: saved_runs.numbers(10 + n, len(self.theta[t]), 1, 1.0)
                       for n, t in enumerate(GRADIENTS)}
        self.along = {t: [math.copysign(1.0, x) for x in base[g]] for t, g in GRADIENTS.items()}
        self.slopes = {t: self.slope({t: self.random[t]}, EPS) for t in GRADIENTS}
        self.slope_along = self.slope(self.along, EPS_ALONG)

    def gradients(self, flags):
        return self.program.run(self.files, self.flags + flags, GRADIENTS.values())

    def slope(self, direction, step):
        """Of the loss, by four runs."""
        def loss_at(eps):
            files = dict(self.files)
            for t, v in direction.items():
                moved = [x + eps * y for x, y in zip(self.theta[t], v)]
                files[t] = self.program.write("moved_" + t, self.shapes[t], moved)
            O = self.program.run(files, self.flags + ["--variant", self.first], ["o"])["o"]
            return loss(self.theta["do"], O)

        wide, narrow = ((loss_at(eps) - loss_at(-eps)) / (2 * eps)
                        for eps in (step, step / 2))
        return (4 * narrow - wide) / 3

    def errors(self, found):
        """{what: error as a share of the gradient's size}: one for each gradient, and of all."""
        shares = {g: abs(loss(found[g], self.random[t]) - self.slopes[t]) /
                  math.sqrt(loss(found[g], found[g])) if any(found[g]) else math.inf
                  for t, g in GRADIENTS.items()}
        size = sum(sum(map(abs, found[g])) for g in GRADIENTS.values())
        sum_along = sum(loss(found[g], self.along[t]) for t, g in GRADIENTS.items())
        shares["along"] = abs(sum_along - self.slope_along) / size if size else math.inf
        return shares


def refused(errors, dtype):
    """Names of the errors above their limits; NaN is above every limit."""
    one, along = LIMITS[dtype]
    return [g for g, e in errors.items() if not e <= (along if g == "along" else one)]


def check_the_check(tap, differences, right):
    """Gradients that are wrong on purpose."""
    heads, d = differences.shapes["q"][2:]
    rows = len(right["dq"]) // (heads * d)
    tail = 64 * heads * d
    wrong = {
        "dq 1 % too large": dict(right, dq=[1.01 * x for x in right["dq"]]),
        "dk without scale": dict(right, dk=[2 * x for x in right["dk"]]),
        "the last tile of dq missing": dict(right, dq=right["dq"][:-tail] + [0.0] * tail),
        "dv one row late": dict(right, dv=[0.0] * d + right["dv"][:-d]),
        "dk is dv": dict(right, dk=right["dv"]),
        "zeros": {g: [0.0] * len(values) for g, values in right.items()},
        "a NaN in dv": dict(right, dv=[math.nan] + right["dv"][1:]),
    }
    for name, gradients in wrong.items():
        errors = differences.errors(gradients)
        tap.ok(refused(errors, "f32"), f"{differences.name}: refused: {name}", errors)
    tap.ok(rows == differences.shapes["q"][1], f"{differences.name}: all rows were saved")


def check_variants(tap, differences, variants, passive):
    for variant, dtypes in variants.items():
        if variant in passive:
            continue
        for dtype in dtypes:
            found = differences.gradients(["--variant", variant, "--dtype", dtype])
            errors = differences.errors(found)
            shares = ", ".join(f"{g} {e:.1e}" for g, e in errors.items())
            tap.ok(not refused(errors, dtype),
                   f"{differences.name}: {variant} {dtype}: off by {shares}", LIMITS[dtype])
            if variant == differences.first and dtype == "f32":
                check_the_check(tap, differences, found)


def check_wrong(tap, args, differences, folder):
    """What `caught-by` of a patch blames is refused, and no other gradient is."""
    build, patches = args.wrong
    for patch in patches.split(","):
        so, expected = saved_runs.wrong_so(build, args.program, patch, folder)
        errors = differences.errors(differences.gradients(["--variant-so", so, "--so-time", "200"]))
        blamed = set(refused(errors, "f32")) - {"along"}
        tap.ok(blamed == expected, f"{differences.name}: refused: {patch}: "
               f"{' '.join(sorted(expected))}", errors)


def main():
    args, tap = begin(wrong=WRONG)
    variants = variants_of(args.program, args.device)
    first = next(name for name, dtypes in variants.items() if "f32" in dtypes)
    for case in QUICK if os.environ.get("ATTN_TEST_QUICK") else CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                program = saved_runs.Program(args.program, args.device, folder)
                differences = Differences(program, case, first)
                check_variants(tap, differences, variants, case[-1])
                if args.wrong and not case[-1]:
                    check_wrong(tap, args, differences, folder)
            except (RuntimeError, subprocess.TimeoutExpired, Failure) as why:
                tap.ok(False, f"{case[0]}: runs", str(why))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
