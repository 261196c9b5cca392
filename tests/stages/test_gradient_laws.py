#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_gradient_laws.py: what must hold of every gradient of attention, seen through files.

    test_gradient_laws.py PROGRAM [--backward[=always]] [--device cpu|cuda]
                          [--stored NAIVE] [--forward FLASH_FORWARD] [--wrong BUILD PATCH,...]

No oracle: each law compares two runs of a variant, or a run with a closed form. Two of them look
inside: observed_gradients.py.

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
from gradient_lab import B, D, GRADIENTS, H, HKV, NK, NQ, Lab, changed, rows_of, tensors
from observed_gradients import observed_ds, recomputed_p
from test_sweep import BACKWARD, WRONG, begin, side_by_side, variants_of
from workshop import Failure


# Ways through a backward pass of their own.
OPTIONS = {"sliding_window": [["--qk-norm", "8"], ["--clip", "-0.03,1.05", "--dropout", "0.2"]]}
# Nobody else may refuse --deterministic.
ANY_ORDER = ("v0_atomics", "v2_mma", "v3_transposed_scores", "v4_cp_async", "v5_dq_fragments",
             "v6_full_tiles", "v7_one_barrier", "v8_32_keys", "v9_warp_pairs",
             "v10_wgmma", "v11_warp_specialised", "v12_turns", "v13_fused_delta")


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
    """Promises about bits: flash_backward.h, and --deterministic where the program has it."""
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


def check_laws(lab):
    data = tensors()
    try:
        for law in (exact_zeros, linear, uniform, equal_keys, permuted, bits):
            law(lab, data)
        recomputed_p(lab)
        observed_ds(lab)
    except (RuntimeError, subprocess.TimeoutExpired) as why:
        lab.ok(False, "runs", str(why))
    return lab.tap.results


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
