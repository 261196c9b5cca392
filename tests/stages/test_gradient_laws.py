#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_gradient_laws.py: what must hold of every gradient of attention, seen through files.

    test_gradient_laws.py PROGRAM [--backward[=always]] [--device cpu|cuda]
                          [--stored NAIVE] [--forward FLASH_FORWARD] [--wrong BUILD PATCH,...]

No oracle: each law compares two runs of a variant, or a run with a closed form. Two of them look
inside, with inputs that let P and dS be seen in the gradients:

With dO = 1 (a unit matrix, Nq = d) dV is P^T, the P that the backward pass made from lse; with
V = 1 the forward pass of stage 01 gives the P that it stored; and exp(S - lse) with the lse of
stage 03 is P by the definition: all three must agree, and their rows sum to 1.

With Q = 1 dK is scale * dS^T, with K = 1 dQ is scale * dS, and rows of dS sum to 0: the scores of a
row may all move together, softmax does not notice. A softcap notices: there they must not be 0.

Limits are shares of the largest value of a gradient: some 200 roundings of float32, 16 of the
storage type. A mistake in a law is as large as the gradient itself.

A law must be able to fail: --wrong compiles wrong solutions, and each has to break one.
"""
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import saved_runs
from test_sweep import BACKWARD, WRONG, begin, side_by_side, variants_of
from workshop import Failure

B, NQ, NK, H, HKV, D = 2, 75, 140, 4, 2, 16
GRADIENTS = ("dq", "dk", "dv")
# How far two right results may be apart, as a share of the largest value.
SHARES = {"f32": 200 * 2.0**-24, "f16": 16 * 2.0**-11, "bf16": 16 * 2.0**-8}
# Ways through a backward pass of their own.
OPTIONS = {"sliding_window": [["--qk-norm", "8"], ["--clip", "-0.03,1.05", "--dropout", "0.2"]]}
# Nobody else may refuse --deterministic.
ANY_ORDER = ("v0_atomics", "v2_mma", "v3_transposed_scores", "v4_cp_async", "v5_dq_fragments",
             "v6_full_tiles", "v7_one_barrier", "v8_32_keys", "v9_warp_pairs",
             "v10_wgmma", "v11_warp_specialised", "v12_turns", "v13_fused_delta", "v15_persistent")


class Lab(saved_runs.Lab):
    """Tensors in, gradients out."""

    def __init__(self, args, *variant):
        super().__init__(args, *variant)
        self.share = SHARES[self.dtype]
        self.flags += ["--backward"] if args.backward is True else []

    def run(self, tensors, *flags, wanted=GRADIENTS):
        return super().run(tensors, *flags, wanted=wanted)

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


def exact_zeros(lab, data):
    zero = changed(data, do=[0.0] * len(data["do"][1]))
    for flags in ([], ["--mask", "causal-lower-right", "--softcap", "3"]):
        found = lab.run(zero, *flags)
        lab.ok(not any(any(found[g]) for g in GRADIENTS),
               f"dO = 0 gives exact zeros {' '.join(flags)}")
    # upper-left: queries 0 .. NQ-1 see keys up to their own index, the last keys are nobody's
    found = lab.run(data, "--mask", "causal-upper-left")
    for g in ("dk", "dv"):
        rows = rows_of(found[g], data["k"][0])
        lab.ok(all(any(row) == (n < NQ) for (_, n, _), row in rows.items()),
               f"{g} is exactly zero where nobody looks, and only there")
    turned = tensors(nq=NK, nk=NQ)
    found = lab.run(turned, "--mask", "causal-lower-right")
    rows = rows_of(found["dq"], turned["q"][0])
    # the first query that sees a key sees only that: dS = 0 there, up to rounding
    lab.ok(all(any(row) == (n > NK - NQ) for (_, n, _), row in rows.items() if n != NK - NQ),
           "dq is exactly zero in rows without keys, and only there")
    for padding in (1000.0, math.nan, math.inf): # whatever stands in padding
        other = list(turned["do"][1])
        for n in range(B * H * D * (NK - NQ)):
            b, rest = divmod(n, H * D * (NK - NQ))
            other[b * NK * H * D + rest] = padding
        for flags in OPTIONS.get(os.path.basename(lab.program.path), []) + [[]]:
            if flags and lab.variant != "library":
                continue
            flags = ["--mask", "causal-lower-right"] + flags
            plain = lab.run(turned, *flags)
            again = lab.run(changed(turned, do=other), *flags)
            lab.close(f"dO = {padding:g} of a row without keys: {' '.join(flags)}",
                      again["dq"] + again["dk"] + again["dv"],
                      plain["dq"] + plain["dk"] + plain["dv"])


def linear(lab, data):
    count = len(data["do"][1])
    one, two = (saved_runs.numbers(seed, count, 16, 2.0**-4) for seed in (50, 51))
    flags = ["--causal", "--softcap", "4"]
    runs = [lab.run(changed(data, do=values), *flags)
            for values in (one, two, [a + b for a, b in zip(one, two)], [4 * a for a in one])]
    for g in GRADIENTS:
        size = max(max(map(abs, run[g])) for run in runs[:3])
        lab.close(f"{g} of dO1 + dO2 is the sum of both", runs[2][g],
                  [a + b for a, b in zip(runs[0][g], runs[1][g])], size, 3)
        lab.close(f"{g} of 4 dO is 4 times that of dO", runs[3][g], [4 * a for a in runs[0][g]])


def uniform(lab, data):
    """Q = 0: all visible keys weigh the same. Grouped heads add up."""
    found = lab.run(changed(data, q=[0.0] * len(data["q"][1])), "--causal")
    dO, shape = rows_of(data["do"][1], data["do"][0]), data["k"][0]
    # lower-right: query i sees keys 0 .. i + NK - NQ; sums from the last query back
    expected = dict.fromkeys(rows_of(data["k"][1], shape))
    for b in range(B):
        for kv in range(HKV):
            total, i = [0.0] * D, NQ
            for j in reversed(range(NK)):
                while i > 0 and j <= i - 1 + NK - NQ:
                    i -= 1
                    for h in range(kv * H // HKV, (kv + 1) * H // HKV):
                        total = [t + x / (i + 1 + NK - NQ) for t, x in zip(total, dO[b, i, h])]
                expected[b, j, kv] = total
    flat = [x for row in expected.values() for x in row]
    lab.close("dV of a uniform P is the mean that the queries give", found["dv"], flat)
    lab.ok(not any(found["dk"]) and any(found["dq"]), "and dK = scale dS^T 0 is exactly zero")


def equal_keys(lab, data):
    one = rows_of(data["k"][1], data["k"][0])
    same = changed(data, k=[x for (b, _, h) in one for x in one[b, 0, h]])
    found, plain = lab.run(same), lab.run(data)
    size = max(map(abs, plain["dq"]))
    lab.close("equal keys: dQ is zero, since rows of dS sum to zero", found["dq"],
              [0.0] * len(found["dq"]), size)
    u = [0.25 * (x % 3 - 1) for x in range(D)]
    moved = lab.run(changed(data, k=[x + u[n % D] for n, x in enumerate(data["k"][1])]))
    for g in GRADIENTS:
        lab.close(f"adding u to each key leaves {g} alone", moved[g], plain[g], factor=2)


def permuted(lab, data):
    plain = lab.run(data)
    q, k = data["q"][0], data["k"][0]
    order_k = sorted(range(NK), key=lambda n: (n * 17 + 5) % NK)
    order_q = sorted(range(NQ), key=lambda n: (n * 19 + 3) % NQ)

    def shuffle(values, shape, order):
        rows = rows_of(values, shape)
        return [x for b, n, h in rows for x in rows[b, order[n], h]]

    found = lab.run(changed(data, **{t: shuffle(data[t][1], k, order_k) for t in "kv"}))
    lab.close("permuting keys with their values changes no dQ", found["dq"], plain["dq"])
    for g in ("dk", "dv"):
        lab.close(f"and permutes {g}", found[g], shuffle(plain[g], k, order_k))
    found = lab.run(changed(data, q=shuffle(data["q"][1], q, order_q),
                            do=shuffle(data["do"][1], q, order_q)))
    lab.close("permuting queries permutes dQ", found["dq"], shuffle(plain["dq"], q, order_q))
    for g in ("dk", "dv"):
        lab.close(f"and leaves {g} alone", found[g], plain[g])
    lab.ok(max(abs(a - b) for a, b in zip(found["dq"], plain["dq"])) > 0.1 * max(plain["dq"]),
           "a permuted dQ is another dQ")


def bits(lab, data):
    """Promises about bits: backward_library.h, and --deterministic where the program has it."""
    def all_bits(*flags):
        return lab.run(data, "--causal", *flags)

    if lab.args.device == "cpu" and lab.variant == "library":
        one = all_bits("--threads", "1")
        lab.ok(all(all_bits("--threads", str(n)) == one for n in (2, 3, 7)),
               "the same bits with 1, 2, 3 and 7 threads")
    page = subprocess.run([lab.args.program, "--help"], capture_output=True, text=True, timeout=60)
    if "--deterministic" in page.stdout:
        promised, runs = lab.variant not in ANY_ORDER, []
        try:
            runs = [all_bits("--deterministic") for _ in range(3)]
        except RuntimeError as why:  # asked for by name, a variant that has no such way is refused
            lab.ok("exit status 2" in str(why) and not promised, "--deterministic is refused", why)
        lab.ok(len(runs) == 3 * promised and all(run == runs[0] for run in runs),
               f"--deterministic: {len(runs)} runs, the same bits")


# --- P and dS, seen in the gradients -------------------------------------------------------------

def unit(shape):
    """A unit matrix for each head."""
    return shape, [float(n == x) for _ in range(shape[0]) for n in range(shape[1])
                   for _ in range(shape[2]) for x in range(shape[3])]


def scores(data, scale, cap=0.0):
    """S [b][h][i][j] by the definition, -inf where the causal mask (lower-right) hides."""
    (_, nq, heads, _), (_, nk, kv_heads, _) = data["q"][0], data["k"][0]
    Q, K = (rows_of(data[t][1], data[t][0]) for t in "qk")
    S = {}
    for b, i, h in Q:
        for j in range(nk):
            s = scale * saved_runs.loss(Q[b, i, h], K[b, j, h * kv_heads // heads])
            s = cap * math.tanh(s / cap) if cap else s
            S[b, h, i, j] = s if j <= i + nk - nq else -math.inf
    return S


def recomputed_p(lab):
    """dV with dO = 1: P as the backward pass made it. Nq = d, one kv head for each query head."""
    nq, nk, scale = 96, 96, 0.25
    data = tensors(nq, nk, 2, 2, 96, 1, seed=20)
    data["do"] = unit(data["do"][0])
    flags = ["--causal", "--scale", str(scale)]
    found = rows_of(lab.run(data, *flags, wanted=["dv"])["dv"], data["k"][0])
    P = {(b, h, i, j): found[b, j, h][i] for b, j, h in found for i in range(nq)}
    inputs = {t: data[t] for t in "qkv"}
    stored, lse = {}, {}
    if lab.args.stored:  # P V = P: v0_loops keeps P and multiplies, exactly with a unit matrix
        naive = saved_runs.Program(lab.args.stored, "cpu", lab.program.folder)
        files = {t: naive.write(t, *unit(data[t][0]) if t == "v" else inputs[t]) for t in inputs}
        O = rows_of(naive.run(files, flags + ["--variant", "v0_loops"], ["o"])["o"], data["q"][0])
        stored = {(b, h, i, j): O[b, i, h][j] for b, i, h in O for j in range(nk)}
    if lab.args.forward:
        flash = saved_runs.Program(lab.args.forward, "cpu", lab.program.folder)
        files = {t: flash.write(t, *inputs[t]) for t in inputs}
        values = flash.run(files, flags + ["--variant", "library"], ["lse"])["lse"]
        lse = {(h, i): values[h * nq + i] for h in range(2) for i in range(nq)}
    S = scores(data, scale)
    if stored:
        lab.close("P made from lse is the P that stage 01 stored", [P[key] for key in S],
                  [stored[key] for key in S], factor=3)  # an error of S is relative in P
    if lse:
        lab.close("and exp(S - lse) with the lse of stage 03", [P[key] for key in S],
                  [math.exp(s - lse[h, i]) for (_, h, i, _), s in S.items()], factor=3)
    sums = [sum(P[0, h, i, j] for j in range(nk)) for h in range(2) for i in range(nq)]
    lab.close("rows of P sum to 1", sums, [1.0] * len(sums), factor=3)
    lab.ok(not any(P[key] for key in S if S[key] == -math.inf), "P is 0 where hidden")


def observed_ds(lab):
    """dK with Q = 1 is scale * dS^T, dQ with K = 1 is scale * dS."""
    for unit_of, g, nq, nk, cap, scale in (("q", "dk", 96, 110, 0.0, 2.0),
                                           ("k", "dq", 85, 96, 0.0, 2.0),
                                           ("q", "dk", 96, 110, 1.5, -2.0),
                                           ("k", "dq", 85, 96, 1.5, -2.0)):
        data = tensors(nq, nk, 1, 1, 96, 1, seed=30)
        data[unit_of] = unit(data[unit_of][0])
        flags = ["--causal", "--scale", str(scale)] + (["--softcap", str(cap)] if cap else [])
        rows = rows_of(lab.run(data, *flags, wanted=[g])[g], data[g[1]][0])
        found = {(i, j): (rows[0, j, 0][i] if g == "dk" else rows[0, i, 0][j]) / scale
                 for j in range(nk) for i in range(nq)}
        expected = ds_by_definition(data, scores(data, scale, cap), cap)
        what = f"dS is P (dP - delta){' times the slope of the cap' if cap else ''}, by {g}"
        lab.close(what, [found[key] for key in expected], list(expected.values()))
        size = max(map(abs, expected.values()))
        sums = [sum(found[i, j] for j in range(nk)) for i in range(nq)]
        if cap:
            lab.ok(max(map(abs, sums)) > 0.01 * size, f"rows do not sum to 0 with a cap, by {g}")
        else:
            lab.close(f"rows of dS sum to 0, by {g}", sums, [0.0] * nq, size, 4)


def ds_by_definition(data, S, cap):
    (_, nq, _, _), (_, nk, _, _) = data["q"][0], data["k"][0]
    V, dO = (rows_of(data[t][1], data[t][0]) for t in ("v", "do"))
    expected = {}
    for i in range(nq):
        weights = [math.exp(S[0, 0, i, j]) for j in range(nk)]
        dP = [saved_runs.loss(dO[0, i, 0], V[0, j, 0]) for j in range(nk)]
        delta = saved_runs.loss(weights, dP) / sum(weights)
        for j in range(nk):
            slope = 1 - (S[0, 0, i, j] / cap)**2 if cap and weights[j] else 1.0
            expected[i, j] = weights[j] / sum(weights) * (dP[j] - delta) * slope
    return expected


def check_laws(lab):
    data = tensors()
    try:
        for law in (exact_zeros, linear, uniform, equal_keys, permuted, bits):
            law(lab, data)
        recomputed_p(lab)
        observed_ds(lab)
    except (RuntimeError, subprocess.TimeoutExpired) as why:
        lab.ok(False, "runs", str(why))
    return lab.results


def check_variant(args, variant, dtype):
    with tempfile.TemporaryDirectory() as folder:
        return check_laws(Lab(args, variant, dtype, folder))


def check_wrong(args, build, patch):
    """One result: which law the wrong solution breaks."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            so, _ = saved_runs.wrong_so(build, args.program, patch, folder)
        except Failure as why:
            return [(False, patch, str(why))]
        results = check_laws(Lab(args, so, "f32", folder, "--variant-so"))
    broken = [name.split(": ", 1)[1] for good, name, *_ in results if not good]
    return [(broken and "runs" not in broken, f"{patch} breaks a law: {'; '.join(broken[:2])}",
             broken)]


def main():
    args, tap = begin(backward=BACKWARD, stored={"help": "stage 01's program"},
                      forward={"help": "stage 03's program"},
                      wrong=WRONG, without={"help": "a variant that does not take all of it"})
    calls = [(check_variant, args, variant, dtype)
             for variant, dtypes in variants_of(args.program, args.device, backward=True).items()
             if variant != args.without for dtype in (["f32"] if "f32" in dtypes else dtypes)]
    if args.wrong:
        calls += [(check_wrong, args, args.wrong[0], patch) for patch in args.wrong[1].split(",")]
    side_by_side(tap, 8, calls)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
