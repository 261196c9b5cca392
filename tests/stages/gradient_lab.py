# SPDX-License-Identifier: MIT
"""gradient_lab.py: one variant of a program, tensors in, gradients out, for tests of their laws.

Limits are shares of the largest value of a gradient: some 200 roundings of float32, 16 of the
storage type. A mistake in a law is as large as the gradient itself.

Interface:
- Lab(args, variant, dtype, folder): run, ok, close; results are in tap.results.
- tensors, changed: inputs {name: (shape, flat values)}. rows_of: their rows by (b, n, h).
- B, NQ, NK, H, HKV, D: the usual sizes; GRADIENTS.
"""
import math

import saved_runs
from test_properties import Record

B, NQ, NK, H, HKV, D = 2, 75, 140, 4, 2, 16
GRADIENTS = ("dq", "dk", "dv")
# How far two right results may be apart, as a share of the largest value.
SHARES = {"f32": 200 * 2.0**-24, "f16": 16 * 2.0**-11, "bf16": 16 * 2.0**-8}


class Lab:
    """One variant with one dtype: tensors in, gradients out, results recorded."""

    def __init__(self, args, variant, dtype, folder, flag="--variant"):
        self.program = saved_runs.Program(args.program, args.device, folder)
        self.args, self.variant, self.dtype = args, variant, dtype
        self.label = variant if dtype == "f32" else f"{variant} {dtype}"
        self.tap, self.share = Record(), SHARES[dtype]
        self.flags = [flag, variant, "--dtype", dtype]
        self.flags += ["--backward"] if args.backward is True else []

    def run(self, tensors, *flags, wanted=GRADIENTS):
        """tensors: {name: (shape, values)}"""
        files = {name: self.program.write(name, shape, values)
                 for name, (shape, values) in tensors.items()}
        return self.program.run(files, self.flags + list(flags), wanted)

    def ok(self, good, what, detail=""):
        self.tap.ok(good, f"{self.label}: {what}", detail)

    def close(self, what, found, expected, size=None, factor=1):
        """size: what the largest error is a share of, the largest expected value if not given."""
        size = max(map(abs, expected)) if size is None else size
        worst = max(abs(a - b) if a == a else math.inf for a, b in zip(found, expected))
        limit = factor * self.share * size
        self.ok(len(found) == len(expected) and worst <= limit, what, f"{worst:g} above {limit:g}")


def tensors(nq=NQ, nk=NK, heads=H, kv_heads=HKV, d=D, batch=B, seed=1):
    """Multiples of 2^-5 in -2..2, which all dtypes hold exactly."""
    shapes = {"q": (batch, nq, heads, d), "k": (batch, nk, kv_heads, d),
              "v": (batch, nk, kv_heads, d), "do": (batch, nq, heads, d)}
    return {name: (shape, saved_runs.numbers(seed + n, math.prod(shape), 64, 2.0**-5))
            for n, (name, shape) in enumerate(shapes.items())}


def changed(data, **values):
    return dict(data, **{name: (data[name][0], v) for name, v in values.items()})


def rows_of(values, shape):
    """[b][n][h] rows as a dict."""
    batch, count, heads, d = shape
    return {(b, n, h): values[((b * count + n) * heads + h) * d:][:d]
            for b in range(batch) for n in range(count) for h in range(heads)}
