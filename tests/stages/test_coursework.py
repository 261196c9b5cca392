#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_coursework.py: the settings in which the coursework that stage 05 comes from is graded.

    test_coursework.py PROGRAM [--device cpu|cuda]

Its six settings of the offline module, in their own lengths, heads, windows and packing. In float32
the worst error has to stay below its tolerance (atol 2e-3; its rtol 5e-3 comes on top there, not
here) and, which is far stricter, below our bound; in 16 bits, whose roundings its tolerance was
relaxed for, below our bound. The steps of the online module are in tests/unit/test_window_steps.c.

Three settings have one batch more than the original: they are then large enough for the oracle to
look at a sample of rows, which the test can afford; on the CPU not every variant runs them.
With ATTN_TEST_QUICK only the two settings of several sequences are left.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from test_sweep import begin, variants_of

ATOL = 2e-3
LENGTHS = {"q": (100, 1, 200, 11, 50, 150), "kv": (100, 24, 400, 400, 25, 75)}
THD = "--tensor-layout thd --cu-seqlens-q {q} --cu-seqlens-kv {kv} -d 64"
# What it asks for, and on the CPU by whom.
LARGE = (
    ("-B 2 -N 1024 -H 8 -d 128", "all"),
    ("-B 5 --seq-q 2048 --seq-kv 1024 -H 16 --kv-heads 4 -d 64 --causal --window 64,-1",
     "v1_online_block"),
    ("-B 5 --seq-q 1024 --seq-kv 2048 -H 8 --kv-heads 1 -d 128 --tensor-layout sbhd --pack q_kv "
     "--softcap 10", "library"),
    ("-B 5 -N 3072 -H 4 -d 64 --pack qkv --window 128,128 --softcap 20 --clip=-0.1,1.1",
     "library"),
)
SEQUENCES = (
    (THD + " -H 8 --kv-heads 4 --causal --window 32,-1", "library"),
    (THD + " -H 16 --kv-heads 1 --window 4,4", "library"),
)
NO_STREAM = {"v3_streaming"}  # it needs a window and a key for each query: no setting has both


def write_lengths(folder, name):
    path = os.path.join(folder, name + ".npy")
    starts = [sum(LENGTHS[name][:n]) for n in range(len(LENGTHS[name]) + 1)]
    npyfile.write(path, (len(starts),), starts, "i4")
    return path


def who(args, setting, variant, dtype):
    """The variants that have to answer."""
    if variant != "all":
        return {variant}
    listed = variants_of(args.program, args.device, cases=("any", "full", "plain"))
    takes = {v for v, dtypes in listed.items() if dtype in dtypes}
    if "--clip" in setting or "--softcap" in setting:  # on the GPU
        takes &= {"library"}
    return takes - NO_STREAM


def check(tap, args, folder, setting, variant, dtype):
    variant = variant if args.device == "cpu" or variant == "library" else "all"
    report = os.path.join(folder, "report.jsonl")
    words = setting.format(q=os.path.join(folder, "q.npy"), kv=os.path.join(folder, "kv.npy"))
    done = subprocess.run([args.program, "--device", args.device, "--variant", variant, "--quiet",
                           "--json", report, "--seed", "142", "--dtype", dtype, *words.split()],
                          capture_output=True, text=True, timeout=280)
    rows = []
    if os.path.exists(report):
        with open(report, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        os.remove(report)
    worst = max((row["o_error"] for row in rows), default=-1)
    name = setting.replace(THD, "six sequences,").replace("--", "")
    tap.ok(done.returncode == 0 and {row["variant"] for row in rows} ==
           who(args, setting, variant, dtype) and all(row["pass"] is True for row in rows) and
           0 <= worst and (dtype != "f32" or worst <= ATOL),
           f"{dtype} {name}: {len(rows)} variants, worst error {worst:.1e}, "
           f"{max((row['bound_ratio'] for row in rows), default=-1):.2f} of our bound",
           f"{[row['variant'] for row in rows]}\n{done.stderr[-1000:]}")


def main():
    args, tap = begin()
    quick = bool(os.environ.get("ATTN_TEST_QUICK"))
    with tempfile.TemporaryDirectory() as folder:
        write_lengths(folder, "q")
        write_lengths(folder, "kv")
        for setting, variant in () if quick else LARGE:
            check(tap, args, folder, setting, variant, "f32")
        for setting, variant in SEQUENCES:
            for dtype in ("f32", "f16", "bf16"):
                check(tap, args, folder, setting, variant, dtype)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
