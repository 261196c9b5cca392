#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_window_sweep.py: every variant of stage 05 on every case of window_cases.py.

    test_window_sweep.py PROGRAM [--device cpu|cuda] [--only GROUP]

As test_sweep.py, whose judge it is; and every variant that the contract does not free from a case
must have answered it: there are no skips that nobody expected. A row must repeat the options of
stage 05 that its line asked for.
"""
import concurrent.futures
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import test_sweep
import window_cases

# flag -> (field of a row, how it is written there, what it is when the flag is not given)
FIELDS = {
    "--temperature": ("temperature", float, 1.0), "--dropout": ("dropout", float, 0.0),
    "--qk-norm": ("qk_norm", int, 0), "--tensor-layout": ("tensor_layout", str, "bshd"),
    "--pack": ("pack", str, "q_k_v"), "--block-q": ("block_q", int, 64),
    "--block-kv": ("block_kv", int, 64), "--order": ("order", str, "rows"),
    "--scale": ("scale", float, None),
}
# With each of them, one NaN or infinity in Q, K or V.
NONFINITE = (
    "--window 5,-1 --softcap 3 --dtype f32",
    "--window 7,3 --dropout 0.3 --backward --dtype f32",
    "--window 7,3 --clip=-0.1,1.1 --qk-norm 4 --backward --dtype f32",
    "--window 5,0 --temperature 2 --block-q 7 --block-kv 5 --order random --dtype f32",
    "--window -1,-1 --softcap 3 --backward --dtype bf16",
    "--window 5,-1 --dropout 0.3 --clip=-0.1,1.4 --dtype bf16",
    "--window 5,0 --block-q 16 --block-kv 9 --order random --dtype bf16",
    "--window 5,0 --backward --dtype bf16",
    "--window 7,3 --temperature 2 --backward --dtype f16",
    "--window 9,-1 --scale -0.3 --qk-norm 4 --backward --dtype f16",
)


def nonfinite_lines(folder, quick):
    """quick: each of the files with one of the options only."""
    for n, line in enumerate(test_sweep.nonfinite_cases(folder)):
        files = line[:line.index(" --seed")]
        for k, options in enumerate(NONFINITE):
            if not quick or (n + k) % len(NONFINITE) == 0:
                seed = 9000 + n * len(NONFINITE) + k
                yield f"--seq-q 40 --seq-kv 40 {files} {options} --seed {seed}"


def as_f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def fault_of_options(line, row):
    """A row tells the options as numbers in float32."""
    given = window_cases.flags_of(line)
    for flag, (field, kind, otherwise) in FIELDS.items():
        wanted = kind(given[flag]) if flag in given else otherwise
        wanted = as_f32(wanted) if kind is float and wanted is not None else wanted
        if wanted is not None and row.get(field) != wanted:
            return f"the report says {field} = {row.get(field)}"
    clip = [as_f32(float(x)) for x in given.get("--clip", "0,1").split(",")]
    if [as_f32(x) for x in row.get("clip", [])] != clip:
        return f"the report says clip = {row.get('clip')}"
    sequences = 4 if given.get("--tensor-layout") == "thd" else 1
    if row.get("sequences") != sequences:
        return f"the report says sequences = {row.get('sequences')}"
    return ""


def main():
    args, tap = test_sweep.begin(only="", seconds=test_sweep.limit(240))
    args.backward, args.variant, args.flags = True, "all", ""
    test_sweep.test_the_judge(tap)
    everybody = ("any", "full", "plain")
    variants = test_sweep.variants_of(args.program, args.device, cases=everybody)
    both_ways = test_sweep.variants_of(args.program, args.device, True, everybody)
    tap.ok(variants, f"--list names variants for {args.device}: {' '.join(variants)}")
    counts = dict.fromkeys(variants, 0)

    def answers(variant, line):
        takes = (window_cases.answers(variant, line) and
                 (variant in both_ways or " --backward" not in line))
        counts[variant] += takes
        return takes

    faults = test_sweep.fault_of_row
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        quick = bool(os.environ.get("ATTN_TEST_QUICK"))
        groups = window_cases.sweep(folder, quick)
        if args.device == "cpu":
            groups.pop("narrow", None)  # large cases for one GPU kernel
        groups["nonfinite"] = list(nonfinite_lines(folder, quick))
        lines = {test_sweep.seed_of(line): line for group in groups.values() for line in group}
        test_sweep.answers = answers
        test_sweep.fault_of_row = lambda row: (
            faults(row) or fault_of_options(lines[row["seed"]], row))
        test_sweep.judge_groups(tap, args, variants, {name: group for name, group in groups.items()
                                                     if args.only in name}, pool)
    tap.ok(args.only or quick or all(count >= 150 for count in counts.values()),
           "each variant had to answer cases: " +
           ", ".join(f"{name} {count}" for name, count in counts.items()))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
