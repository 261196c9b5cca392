#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_window_properties.py: laws of windows and of the offline module, seen through files.

    test_window_properties.py PROGRAM [--plain STAGE03] [--device cpu|cuda]

As test_properties.py: no oracle (--no-check), each law compares two runs of a variant or a run with
a closed form. `--plain` is stage 03's program, which knows attention without any of the options.

A law says "the same bits" where both runs do the same arithmetic. Otherwise twice the rounding
bound of float32 (test_properties.py has it) is allowed, and in 16 bits two roundings of O.
"""
import math
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
import saved_runs
from saved_runs import Program, numbers
from test_properties import distance
from test_sweep import begin, side_by_side, variants_of

N, H, HKV, D, W = 90, 4, 2, 16, 12
SIZES = {"q": H, "k": HKV, "v": HKV}
LIMITS = {"f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}  # |V| up to 2, |scores| below 4


class Lab(saved_runs.Lab):
    """Values are multiples of 1/64 up to 1: exact in every dtype."""

    def __init__(self, args, variant, dtype, folder):
        super().__init__(args, variant, dtype, folder)
        self.data = {name: numbers(n, N * heads * D, 64, 1 / 64)
                     for n, (name, heads) in enumerate(SIZES.items())}
        self.limit = LIMITS[dtype]

    def run(self, flags, data=None, lead=(1, N), program=None, extra=None):
        """A file for each tensor, [lead][heads][D], and the extra ones. program: another one, and
        its variant."""
        files = {name: self.program.write(name, (*lead, SIZES[name], D), values)
                 for name, values in (data or self.data).items()}
        runner, variant = program or (self.program, self.variant)
        return runner.run({**files, **(extra or {})},
                          ["--variant", variant, "--dtype", self.dtype, *flags.split()])

    def close(self, what, found, wanted, limit=None):
        worst = max(distance(found[name], wanted[name]) for name in wanted)
        self.ok(worst <= (self.limit if limit is None else limit), what,
                f"largest difference {worst:g}")


def rows(o, first, count, heads=H):
    return o[first * heads * D:(first + count) * heads * D]


def of_heads(lse, first, count, n=N):
    """Rows first .. of lse [H][n]"""
    return [x for h in range(H) for x in lse[h * n + first:h * n + first + count]]


def windows(lab):
    causal = f"--causal --window {W},-1"
    plain = lab.run(causal)
    own = lab.run("--causal --window 0,-1")
    v = lab.data["v"]
    itself = [v[(n * HKV + h // (H // HKV)) * D + x] for n in range(N) for h in range(H)
              for x in range(D)]
    lab.close("window 0: O is V itself", own, {"o": itself})
    lab.close("constant V gives that constant",
              lab.run(causal, dict(lab.data, v=[1.5] * len(v))), {"o": [1.5] * (N * H * D)})
    # a key that changes is seen by its own query and the W after it, and by no other
    j = 40
    k = list(lab.data["k"])
    k[j * HKV * D:(j + 1) * HKV * D] = [x / 2 + 0.25 for x in rows(k, j, 1, HKV)]
    changed = lab.run(causal, dict(lab.data, k=k))
    same = [i for i in range(N)
            if rows(changed["o"], i, 1) == rows(plain["o"], i, 1) and
            of_heads(changed["lse"], i, 1) == of_heads(plain["lse"], i, 1)]
    lab.ok(same == [i for i in range(N) if not j <= i <= j + W],
           f"a change of key {j} reaches rows {j} to {j + W}, to the bit", same)
    # the receptive field starts at the same distance whatever comes later: a prefix knows enough
    prefix = 50
    cut = {name: values[:prefix * SIZES[name] * D] for name, values in lab.data.items()}
    shorter = lab.run(causal, cut, (1, prefix))
    lab.close(f"the first {prefix} tokens alone give the same rows", shorter,
              {"o": rows(plain["o"], 0, prefix), "lse": of_heads(plain["lse"], 0, prefix)},
              0 if lab.variant == "v3_streaming" else None)
    wide = lab.run(f"--causal --window {N},-1")
    if lab.args.plain:
        stage_03(lab, wide)
    lab.ok(distance(wide["o"], plain["o"]) > 10 * lab.limit, "a window is not all")


def stage_03(lab, wide):
    folder = os.path.join(lab.program.folder, "plain")
    os.makedirs(folder)
    other = Program(lab.args.plain, lab.args.device, folder)
    plain = lab.run("--causal", program=(other, "all"))
    lab.close("a window wider than N is stage 03", wide, plain)
    if lab.variant == "v3_streaming":  # it needs a finite one
        return
    infinite = lab.run("--causal --window -1,-1")
    lab.close("an infinite window is stage 03", infinite, plain)
    if lab.variant == "library":
        lab.close("an infinite window is stage 03's library to the bit", infinite,
                  lab.run("--causal", program=(other, "library")), 0)


def sequences(lab):
    """THD: each sequence as if it were alone."""
    starts = [0, 33, 34, 34, N]
    path = os.path.join(lab.program.folder, "lengths.npy")
    npyfile.write(path, (len(starts),), starts, "i4")
    flags = f"--causal --window {W},-1 --qk-norm 8"
    together = lab.run(f"{flags} --tensor-layout thd", lead=(N,),
                       extra={"cu-seqlens-q": path, "cu-seqlens-kv": path})
    worst = 0.0
    for first, end in zip(starts, starts[1:]):
        part = {name: values[first * SIZES[name] * D:end * SIZES[name] * D]
                for name, values in lab.data.items()}
        if first == end:
            continue
        alone = lab.run(flags, part, (1, end - first))
        worst = max(worst, distance(alone["o"], rows(together["o"], first, end - first)),
                    distance(alone["lse"], of_heads(together["lse"], first, end - first)))
    lab.ok(worst <= lab.limit, "THD gives what separate runs give", worst)


def options(lab):
    flags = f"--causal --window {W},-1"
    lab.close("temperature 4 is a quarter of the scale", lab.run(f"{flags} --temperature 4"),
              lab.run(f"{flags} --scale {0.25 / math.sqrt(D)}"), lab.limit / 10)
    lab.close("a cap wins over the temperature", lab.run(f"{flags} --softcap 2 --temperature 4"),
              lab.run(f"{flags} --softcap 2"), 0)
    ones = {"wq": lab.program.write("wq", (H * D,), [1.0] * (H * D)),
            "wk": lab.program.write("wk", (HKV * D,), [1.0] * (HKV * D))}
    group = 8
    unit = dict(lab.data)
    for name in "qk":
        values = []
        for at in range(0, len(unit[name]), group):
            part = unit[name][at:at + group]
            mean = sum(x * x for x in part) / group
            values += [x / math.sqrt(mean + 1e-5) for x in part]
        unit[name] = values
    lab.close("QK norm is the definition, group by group",
              lab.run(f"{flags} --qk-norm {group}", extra=ones), lab.run(flags, unit))
    larger = dict(lab.data, q=[x * 64 for x in lab.data["q"]])
    normed = lab.run(f"{flags} --qk-norm {D}", extra=ones)
    lab.close("QK norm forgets a factor of Q",
              lab.run(f"{flags} --qk-norm {D}", larger, extra=ones), normed, 10 * lab.limit)
    sbhd = lab.run(f"{flags} --qk-norm {D} --tensor-layout sbhd", lead=(N, 1), extra=ones)
    lab.ok(sbhd == normed, "one sequence as SBHD: the same bits")


def weights(lab):
    """Clipping and dropout."""
    flags = f"--causal --window {W},-1"
    v = lab.data["v"]

    def summed(weight):
        return [weight * sum(v[(j * HKV + h // (H // HKV)) * D + x]
                             for j in range(max(0, i - W), i + 1))
                for i in range(N) for h in range(H) for x in range(D)]

    lab.close("clip 0,1e6: every weight is 1", lab.run(f"{flags} --clip 0,1000000"),
              {"o": summed(1.0)}, 16 * lab.limit)
    lab.close("clip -1e6,1: every weight but 1 is 0",
              {"o": rows(lab.run(f"{flags} --clip=-1000000,1")["o"], 1, N - 1)},
              {"o": [0.0] * ((N - 1) * H * D)}, 0)
    p, constant = 0.4, dict(lab.data, v=[1.0] * len(v))
    plain, dropped = lab.run(flags, constant), lab.run(f"{flags} --dropout {p}", constant)
    lab.ok(dropped["lse"] == plain["lse"], "dropout leaves lse alone, to the bit")
    again = [lab.run(f"{flags} --dropout {p} --threads {t} --strides {s}", constant)
             for t, s in ((1, "bshd"), (2, "odd"))]
    lab.ok(all(distance(run["o"], dropped["o"]) <= lab.limit for run in again),
           "dropout does not depend on threads or strides")
    other = lab.run(f"{flags} --dropout {p} --seed 1", constant)
    lab.ok(distance(other["o"], dropped["o"]) > 0.1, "another seed drops other pairs")
    # V = 1: O is the sum of the kept weights over 1 - p, so its mean is 1. A row has 13 weights, of
    # about 1/13; over 312 rows the mean has a standard deviation of sqrt(p / (1-p) / 13 / 312) =
    # 0.013, a little more where weights differ.
    first = [dropped["o"][(n * H + h) * D] for n in range(W, N) for h in range(H)]
    mean = sum(first) / len(first)
    lab.ok(abs(mean - 1) < 0.08 and len(set(first)) > 100, "kept weights grow by 1/(1-p): mean 1",
           mean)


def check_variant(args, variant, dtype):
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args, variant, dtype, folder)
        try:
            windows(lab)
            if variant == "library":  # rungs take the plain problem
                sequences(lab)
                options(lab)
                weights(lab)
        except RuntimeError as why:
            lab.ok(False, "runs", str(why))
    return lab.results


def main():
    args, tap = begin(plain={})
    side_by_side(tap, 6, [(check_variant, args, variant, dtypes[0]) for variant, dtypes in
                          variants_of(args.program, args.device,
                                      cases=("any", "full", "plain")).items()])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
