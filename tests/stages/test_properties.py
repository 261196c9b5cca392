#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_properties.py: laws of attention, seen from outside through files and --save.

    test_properties.py PROGRAM [--backward[=always]] [--device cpu|cuda] [--without VARIANT]

The oracle judges every other test, so here it is left out (--no-check): each law compares two runs
of the same variant, or a run with a closed form. A mistake that oracle and variant share would
show here and nowhere else.

Tolerances come from the rounding analysis of the design page: an output may be off by
c u (A + sqrt(n) + 8) times the largest |V|, with A the largest sum of |q||k| times the scale and
c = 4; with 16-bit inputs c = 16, and O by another 2 u16. A variant that takes no f32 gets inputs
that 16 bits hold exactly, so they are the same numbers for all.
"""
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from test_sweep import BACKWARD, begin, side_by_side, variants_of

B, N, H, HKV, D = 2, 37, 4, 2, 16
SCALE = 1 / math.sqrt(D)


class Rand:
    """Uniform in -2..2, multiples of 2^-6, the same on every machine."""

    def __init__(self, seed):
        self.state = seed * 7919 + 12345

    def __call__(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 56) / 2.0**6 - 2.0


def tensor(seed, b, n, h, d):
    """Logical [b][n][h][d] values that bfloat16 holds exactly (8 bits)."""
    draw = Rand(seed)
    return [draw() for _ in range(b * n * h * d)]


def at(b, n, h, x, heads, rows=N):
    return ((b * rows + n) * heads + h) * D + x


class Runs:
    """Runs the program on tensors, one folder a run."""

    def __init__(self, args, variant, dtype, folder):
        self.program, self.device = args.program, args.device
        self.variant, self.dtype, self.folder, self.count = variant, dtype, folder, 0

    def limits(self, q, k):
        """Of O (for |V| up to 1) and of lse: twice the bound, since two runs are compared; |q| and
        |k| by their norms."""
        longest = [max(math.sqrt(sum(x * x for x in t[r:r + D])) for r in range(0, len(t), D))
                   for t in (q, k)]
        c = 4 if self.dtype == "f32" else 16
        float32 = 2 * c * 2.0**-24 * (SCALE * longest[0] * longest[1] + math.sqrt(N) + 8)
        return float32 + 4 * {"f32": 0, "f16": 2.0**-11, "bf16": 2.0**-8}[self.dtype], float32

    def __call__(self, inputs, *flags, batch=B, rows=N, heads=H, kv_heads=HKV):
        self.count += 1
        folder = os.path.join(self.folder, str(self.count))
        os.mkdir(folder)
        command = [self.program, "--variant", self.variant, "--no-check", "--quiet",
                   "--device", self.device, "--dtype", self.dtype, "--save", folder] + list(flags)
        for name, values in inputs.items():
            path = os.path.join(folder, f"in_{name}.npy")
            h = kv_heads if name in "kv" else heads
            npyfile.write(path, (batch, rows, h, D), values)
            command += [f"--{name}", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr}")
        return {name: npyfile.read(os.path.join(folder, name + ".npy"))[1]
                for name in ("o", "lse", "dq", "dk", "dv")
                if os.path.exists(os.path.join(folder, name + ".npy"))}


def distance(a, b):
    """Largest difference; infinity when sizes differ or only one of two values is finite."""
    if len(a) != len(b) or not a:
        return math.inf
    worst = 0.0
    for x, y in zip(a, b):
        if x != y and not (math.isnan(x) or math.isnan(y)):
            worst = max(worst, abs(x - y))
        elif x != y:
            return math.inf
    return worst


def close(tap, name, a, b, limit):
    found = distance(a, b)
    tap.ok(found <= limit, name, f"largest difference {found:g}, limit {limit:g}")


def permuted(t, order, heads):
    return [t[at(b, order[n], h, x, heads)] for b in range(B) for n in range(N)
            for h in range(heads) for x in range(D)]


def closed_forms(tap, run, label, data):
    q, k, v = data["q"], data["k"], data["v"]
    limit, limit_lse = run.limits(q, k)
    constant = [1.5] * len(v)
    o = run(dict(data, v=constant), "--causal")["o"]
    close(tap, f"{label}: constant V gives that constant", o, [1.5] * len(o), 1.5 * limit)

    zero = run(dict(data, q=[0.0] * len(q)))
    mean = [sum(v[at(b, j, h // (H // HKV), x, HKV)] for j in range(N)) / N
            for b in range(B) for _ in range(N) for h in range(H) for x in range(D)]
    close(tap, f"{label}: Q = 0 gives the mean of V", zero["o"], mean, 2 * limit)
    close(tap, f"{label}: Q = 0 gives lse = log(N)", zero["lse"],
          [math.log(N)] * (B * H * N), limit_lse)

    own = [v[at(b, n, h // (H // HKV), x, HKV)]
           for b in range(B) for n in range(N) for h in range(H) for x in range(D)]
    close(tap, f"{label}: causal window 0,0 gives V itself",
          run(data, "--causal", "--window", "0,0")["o"], own, 2 * limit)


def invariances(tap, run, label, data):
    q, k, v = data["q"], data["k"], data["v"]
    limit, limit_lse = run.limits(q, k)
    plain = run(data)
    order = sorted(range(N), key=lambda n: (n * 17 + 5) % N)
    shuffled = run(dict(data, k=permuted(k, order, HKV), v=permuted(v, order, HKV)))
    close(tap, f"{label}: permuting K and V together changes no O", plain["o"], shuffled["o"],
          2 * limit)
    close(tap, f"{label}: nor lse", plain["lse"], shuffled["lse"],
          limit_lse + 4e-6)
    tap.ok(distance(plain["o"], run(dict(data, v=permuted(v, order, HKV)))["o"]) > 0.01 + 4 * limit,
           f"{label}: permuting V alone does change O")

    u = [0.25 * (x % 3 - 1) for x in range(D)]
    moved = run(dict(data, k=[value + u[n % D] for n, value in enumerate(k)]))
    shift = [SCALE * sum(q[at(b, n, h, x, H)] * u[x] for x in range(D))
             for b in range(B) for h in range(H) for n in range(N)]
    expected = [a + s for a, s in zip(plain["lse"], shift)]
    close(tap, f"{label}: adding u to each key moves lse by scale q.u", moved["lse"], expected,
          2 * limit_lse + 4e-6)
    close(tap, f"{label}: and leaves O alone", moved["o"], plain["o"], 4 * limit)

    wide = run(data, "--window", f"{N},{N}")
    close(tap, f"{label}: a window wider than N is no window", wide["o"], plain["o"], 2 * limit)
    endless = run(data, "--window", "-1,0")
    causal = run(data, "--causal")
    close(tap, f"{label}: a window of -1,0 is causal", endless["o"], causal["o"], 2 * limit)
    tap.ok(distance(causal["o"], plain["o"]) > 0.01 + 4 * limit,
           f"{label}: causal is not full attention")


def independence(tap, run, label, data, backward):
    """Heads and batches do not know of each other, and GQA is MHA with repeated K and V."""
    flags = ["--causal"] + (["--backward"] if backward is True else [])
    both = run(data, *flags)
    limit, limit_lse = run.limits(data["q"], data["k"])
    factor = {"o": 2 * limit, "lse": 2 * limit_lse}  # else a gradient: sums over N
    half = {name: len(t) // B for name, t in data.items()}
    second = run({name: t[half[name]:] for name, t in data.items()}, *flags, batch=1)
    for name in both:
        cut = len(both[name]) // B
        close(tap, f"{label}: batch 1 alone gives the same {name}", second[name],
              both[name][cut:], factor.get(name, 2 * limit * N))

    def repeat(t):
        return [t[at(b, n, h // (H // HKV), x, HKV)]
                for b in range(B) for n in range(N) for h in range(H) for x in range(D)]

    mha = run(dict(data, k=repeat(data["k"]), v=repeat(data["v"])), *flags, kv_heads=H)
    for name in ("o", "lse") + (("dq",) if backward else ()):
        close(tap, f"{label}: GQA gives the {name} of repeated MHA", both[name], mha[name],
              factor.get(name, 2 * limit * N))
    for name in ("dk", "dv") if backward else ():
        summed = [sum(mha[name][at(b, n, g * (H // HKV) + e, x, H)] for e in range(H // HKV))
                  for b in range(B) for n in range(N) for g in range(HKV) for x in range(D)]
        close(tap, f"{label}: {name} of GQA is the sum over its query heads", both[name], summed,
              4 * limit * N)


def determinism(tap, run, label, data, backward):
    flags = ["--mask", "causal-upper-left"] + (["--backward"] if backward is True else [])
    limit = run.limits(data["q"], data["k"])[0]
    first = run(data, *flags, "--threads", "2")
    again = run(data, *flags, "--threads", "2")
    tap.ok(all(distance(first[name], again[name]) == 0 for name in first),
           f"{label}: the same run twice gives the same bits")
    single = run(data, *flags, "--threads", "1")
    worst = max(distance(first[name], single[name]) / (1 if name in ("o", "lse") else N)
                for name in first)
    tap.ok(worst <= 2 * limit, f"{label}: one thread or two, the same within rounding",
           f"{worst:g} > {2 * limit:g}")
    for layout in ("sbhd", "bhsd", "odd"):
        other = run(data, *flags, "--threads", "2", "--strides", layout)
        tap.ok(all(distance(first[name], other[name]) == 0 for name in first),
               f"{label}: strides {layout} give the same bits as bshd")


def nonfinite_reach(tap, run, label, data):
    """A NaN in key 20 of kv head 1, batch 0 reaches each row that sees it and no other head."""
    k = list(data["k"])
    k[at(0, 20, 1, 3, HKV)] = math.nan
    found = run(dict(data, k=k), "--causal")
    reads = [h for h in range(H) if h // (H // HKV) == 1]
    seen = [found["o"][at(0, n, h, x, H)] for n in range(20, N) for h in reads for x in range(D)]
    tap.ok(all(map(math.isnan, seen)), f"{label}: a NaN in a key reaches each row that sees it")
    others = [found["o"][at(b, n, h, x, H)] for b in range(B) for n in range(N)
              for h in range(H) if b == 1 or h not in reads for x in range(D)]
    tap.ok(all(map(math.isfinite, others)), f"{label}: and no other head or batch")
    v = list(data["v"])
    v[at(0, 20, 1, 3, HKV)] = math.nan
    found = run(dict(data, v=v), "--causal")
    hit = [found["o"][at(0, n, h, 3, H)] for n in range(20, N) for h in reads]
    tap.ok(all(map(math.isnan, hit)), f"{label}: a NaN in a value, too")
    shared = {at(0, n, h, 3, H) for n in range(N) for h in reads}
    others = [x for e, x in enumerate(found["o"]) if e not in shared] + found["lse"]
    tap.ok(all(map(math.isfinite, others)),
           f"{label}: but no other channel, head or batch, and no lse")
    if label.split()[0] in ("v0_loops", "v0_thread_per_score"):
        hidden = [found["o"][at(0, n, h, 3, H)] for n in range(20) for h in reads]
        tap.ok(all(map(math.isfinite, hidden)), f"{label}: and no row that does not see it")


class Record:
    """Stands in for Tap where variants run side by side."""

    def __init__(self):
        self.results = []

    def ok(self, *result):
        self.results.append(result)


def check_variant(args, variant, dtype, data):
    record = Record()
    with tempfile.TemporaryDirectory() as folder:
        run = Runs(args, variant, dtype, folder)
        backward = args.backward
        if variant not in variants_of(args.program, args.device, backward=True):
            backward = False
        gradients = dict(data, do=tensor(4, B, N, H, D)) if backward else data
        label = variant if dtype == "f32" else f"{variant} {dtype}"
        try:
            closed_forms(record, run, label, data)
            invariances(record, run, label, data)
            nonfinite_reach(record, run, label, data)
            independence(record, run, label, gradients, backward)
            determinism(record, run, label, gradients, backward)
        except RuntimeError as why:
            record.ok(False, f"{label}: runs", str(why))
    return record.results


def main():
    args, tap = begin(backward=BACKWARD, without={
        "help": "a variant that takes no run without a window"})
    data = {"q": tensor(1, B, N, H, D), "k": tensor(2, B, N, HKV, D),
            "v": tensor(3, B, N, HKV, D)}
    variants = variants_of(args.program, args.device)
    variants.pop(args.without, None)
    tap.ok(variants, f"variants: {' '.join(variants)}")
    side_by_side(tap, 6, [(check_variant, args, variant, dtype, data)
                          for variant, dtypes in variants.items()
                          for dtype in (["f32"] if "f32" in dtypes else dtypes)])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
