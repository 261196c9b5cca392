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
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import saved_runs
from test_sweep import BACKWARD, begin, side_by_side, variants_of

B, N, H, HKV, D = 2, 37, 4, 2, 16
SCALE = 1 / math.sqrt(D)


def tensor(seed, heads):
    """[B][N][heads][D] multiples of 2^-6 in -2..2, which bfloat16 holds exactly."""
    return saved_runs.numbers(seed, B * N * heads * D, 128, 2.0**-6)


def at(b, n, h, x, heads):
    return ((b * N + n) * heads + h) * D + x


def repeated(t):
    """K or V with a head of its own for each query head."""
    return [t[at(b, n, h // (H // HKV), x, HKV)]
            for b in range(B) for n in range(N) for h in range(H) for x in range(D)]


class Lab(saved_runs.Lab):
    """One variant with one dtype, on tensors [B][N][heads][D]."""

    def limits(self, q, k):
        """Of O (for |V| up to 1) and of lse: twice the bound, since two runs are compared; |q| and
        |k| by their norms."""
        longest = [max(math.sqrt(sum(x * x for x in t[r:r + D])) for r in range(0, len(t), D))
                   for t in (q, k)]
        c = 4 if self.dtype == "f32" else 16
        float32 = 2 * c * 2.0**-24 * (SCALE * longest[0] * longest[1] + math.sqrt(N) + 8)
        return float32 + 4 * {"f32": 0, "f16": 2.0**-11, "bf16": 2.0**-8}[self.dtype], float32

    def run(self, inputs, *flags, batch=B, kv_heads=HKV):
        return super().run({name: ((batch, N, kv_heads if name in "kv" else H, D), values)
                            for name, values in inputs.items()}, *flags)

    def close(self, what, found, expected, limit):
        worst = distance(found, expected)
        self.ok(worst <= limit, what, f"largest difference {worst:g}, limit {limit:g}")


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


def permuted(t, order, heads):
    return [t[at(b, order[n], h, x, heads)] for b in range(B) for n in range(N)
            for h in range(heads) for x in range(D)]


def closed_forms(lab, data):
    q, k, v = data["q"], data["k"], data["v"]
    limit, limit_lse = lab.limits(q, k)
    constant = [1.5] * len(v)
    o = lab.run(dict(data, v=constant), "--causal")["o"]
    lab.close("constant V gives that constant", o, [1.5] * len(o), 1.5 * limit)

    zero = lab.run(dict(data, q=[0.0] * len(q)))
    mean = [sum(v[at(b, j, h // (H // HKV), x, HKV)] for j in range(N)) / N
            for b in range(B) for _ in range(N) for h in range(H) for x in range(D)]
    lab.close("Q = 0 gives the mean of V", zero["o"], mean, 2 * limit)
    lab.close("Q = 0 gives lse = log(N)", zero["lse"], [math.log(N)] * (B * H * N), limit_lse)

    own = lab.run(data, "--causal", "--window", "0,0")["o"]
    lab.close("causal window 0,0 gives V itself", own, repeated(v), 2 * limit)


def invariances(lab, data):
    q, k, v = data["q"], data["k"], data["v"]
    limit, limit_lse = lab.limits(q, k)
    plain = lab.run(data)
    order = sorted(range(N), key=lambda n: (n * 17 + 5) % N)
    shuffled = lab.run(dict(data, k=permuted(k, order, HKV), v=permuted(v, order, HKV)))
    lab.close("permuting K and V together changes no O", plain["o"], shuffled["o"], 2 * limit)
    lab.close("nor lse", plain["lse"], shuffled["lse"], limit_lse + 4e-6)
    other = lab.run(dict(data, v=permuted(v, order, HKV)))
    lab.ok(distance(plain["o"], other["o"]) > 0.01 + 4 * limit, "permuting V alone does change O")

    u = [0.25 * (x % 3 - 1) for x in range(D)]
    moved = lab.run(dict(data, k=[value + u[n % D] for n, value in enumerate(k)]))
    shift = [SCALE * sum(q[at(b, n, h, x, H)] * u[x] for x in range(D))
             for b in range(B) for h in range(H) for n in range(N)]
    expected = [a + s for a, s in zip(plain["lse"], shift)]
    lab.close("adding u to each key moves lse by scale q.u", moved["lse"], expected,
              2 * limit_lse + 4e-6)
    lab.close("and leaves O alone", moved["o"], plain["o"], 4 * limit)

    wide = lab.run(data, "--window", f"{N},{N}")
    lab.close("a window wider than N is no window", wide["o"], plain["o"], 2 * limit)
    endless = lab.run(data, "--window", "-1,0")
    causal = lab.run(data, "--causal")
    lab.close("a window of -1,0 is causal", endless["o"], causal["o"], 2 * limit)
    lab.ok(distance(causal["o"], plain["o"]) > 0.01 + 4 * limit, "causal is not full attention")


def independence(lab, data, backward):
    """Heads and batches do not know of each other, and GQA is MHA with repeated K and V."""
    flags = ["--causal"] + (["--backward"] if backward is True else [])
    both = lab.run(data, *flags)
    limit, limit_lse = lab.limits(data["q"], data["k"])
    factor = {"o": 2 * limit, "lse": 2 * limit_lse}  # else a gradient: sums over N
    half = {name: len(t) // B for name, t in data.items()}
    second = lab.run({name: t[half[name]:] for name, t in data.items()}, *flags, batch=1)
    for name in both:
        cut = len(both[name]) // B
        lab.close(f"batch 1 alone gives the same {name}", second[name], both[name][cut:],
                  factor.get(name, 2 * limit * N))

    mha = lab.run(dict(data, k=repeated(data["k"]), v=repeated(data["v"])), *flags, kv_heads=H)
    for name in ("o", "lse") + (("dq",) if backward else ()):
        lab.close(f"GQA gives the {name} of repeated MHA", both[name], mha[name],
                  factor.get(name, 2 * limit * N))
    for name in ("dk", "dv") if backward else ():
        summed = [sum(mha[name][at(b, n, g * (H // HKV) + e, x, H)] for e in range(H // HKV))
                  for b in range(B) for n in range(N) for g in range(HKV) for x in range(D)]
        lab.close(f"{name} of GQA is the sum over its query heads", both[name], summed,
                  4 * limit * N)


def determinism(lab, data, backward):
    flags = ["--mask", "causal-upper-left"] + (["--backward"] if backward is True else [])
    limit = lab.limits(data["q"], data["k"])[0]
    first = lab.run(data, *flags, "--threads", "2")
    again = lab.run(data, *flags, "--threads", "2")
    lab.ok(all(distance(first[name], again[name]) == 0 for name in first),
           "the same run twice gives the same bits")
    single = lab.run(data, *flags, "--threads", "1")
    worst = max(distance(first[name], single[name]) / (1 if name in ("o", "lse") else N)
                for name in first)
    lab.ok(worst <= 2 * limit, "one thread or two, the same within rounding",
           f"{worst:g} > {2 * limit:g}")
    for layout in ("sbhd", "bhsd", "odd"):
        other = lab.run(data, *flags, "--threads", "2", "--strides", layout)
        lab.ok(all(distance(first[name], other[name]) == 0 for name in first),
               f"strides {layout} give the same bits as bshd")


def nonfinite_reach(lab, data):
    """A NaN in key 20 of kv head 1, batch 0 reaches each row that sees it and no other head."""
    k = list(data["k"])
    k[at(0, 20, 1, 3, HKV)] = math.nan
    found = lab.run(dict(data, k=k), "--causal")
    reads = [h for h in range(H) if h // (H // HKV) == 1]
    seen = [found["o"][at(0, n, h, x, H)] for n in range(20, N) for h in reads for x in range(D)]
    lab.ok(all(map(math.isnan, seen)), "a NaN in a key reaches each row that sees it")
    others = [found["o"][at(b, n, h, x, H)] for b in range(B) for n in range(N)
              for h in range(H) if b == 1 or h not in reads for x in range(D)]
    lab.ok(all(map(math.isfinite, others)), "and no other head or batch")
    v = list(data["v"])
    v[at(0, 20, 1, 3, HKV)] = math.nan
    found = lab.run(dict(data, v=v), "--causal")
    hit = [found["o"][at(0, n, h, 3, H)] for n in range(20, N) for h in reads]
    lab.ok(all(map(math.isnan, hit)), "a NaN in a value, too")
    shared = {at(0, n, h, 3, H) for n in range(N) for h in reads}
    others = [x for e, x in enumerate(found["o"]) if e not in shared] + found["lse"]
    lab.ok(all(map(math.isfinite, others)), "but no other channel, head or batch, and no lse")
    if lab.variant in ("v0_loops", "v0_thread_per_score"):
        hidden = [found["o"][at(0, n, h, 3, H)] for n in range(20) for h in reads]
        lab.ok(all(map(math.isfinite, hidden)), "and no row that does not see it")


def check_variant(args, variant, dtype, data):
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args, variant, dtype, folder)
        backward = args.backward
        if variant not in variants_of(args.program, args.device, backward=True):
            backward = False
        gradients = dict(data, do=tensor(4, H)) if backward else data
        try:
            closed_forms(lab, data)
            invariances(lab, data)
            nonfinite_reach(lab, data)
            independence(lab, gradients, backward)
            determinism(lab, gradients, backward)
        except RuntimeError as why:
            lab.ok(False, "runs", str(why))
    return lab.results


def main():
    args, tap = begin(backward=BACKWARD, without={
        "help": "a variant that takes no run without a window"})
    data = {"q": tensor(1, H), "k": tensor(2, HKV), "v": tensor(3, HKV)}
    variants = variants_of(args.program, args.device)
    variants.pop(args.without, None)
    tap.ok(variants, f"variants: {' '.join(variants)}")
    side_by_side(tap, 6, [(check_variant, args, variant, dtype, data)
                          for variant, dtypes in variants.items()
                          for dtype in (["f32"] if "f32" in dtypes else dtypes)])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
