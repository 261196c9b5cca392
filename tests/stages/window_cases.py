#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""window_cases.py: the option combinations that stage 05 is swept over.

cases.py has the idea: every pair of option values occurs together somewhere. Stage 05 has nine
options more, and two variants that take only some cases; so there are three tables of pairs:

    all      every option; clipping and dropout are in most lines, so v0, v2 and v4 (and v1 on the
             GPU) are what answers them
    online   forward, neither clipping nor dropout: what the online variants take, with small and
             large blocks in every order
    stream   what a stream of tokens takes as well: causal, a finite window, a key for each query

A last group is for a GPU kernel that the sizes of these tables do not fill (NARROW).

Several sequences need files of their lengths, which are written into a folder. That the tables hold
all pairs is proved by test_window_cases.py, from the lines and with tables of its own.

Interface:
- sweep(folder, quick): {group: [line, ...]}, each with a seed of its own.
- answers(variant, line): whether the variant has to compute the case, by the contract.
"""
import itertools
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import cases
import npyfile

SIZES = (1, 17, 64, 130, 200)
COMMON = {
    "-d": (8, 32, 59, 64, 128),
    "--softcap": ("", 20),
    "--temperature": ("", 0.5, 4),
    "--qk-norm": ("", "head", "part"),  # a group of all channels of a head, or of a part of them
    "heads": ("1/1", "2/2", "4/2", "8/2", "3/1"),
    # layout of tensors and strides in memory are one option: sbhd fixes both. thd is one batch.
    "layout": ("bshd", "sbhd", "bhsd", "odd", "tensors sbhd", "thd"),
    "-B": (1, 2),
    "--dtype": ("f32", "f16", "bf16"),
    "--dist": ("normal", "outlier", "large"),
    "--scale": ("", -0.3),
    "--threads": (1, 2),
}
BLOCKS = {"--block-q": ("", 1, 16, 300), "--block-kv": ("", 5, 128),
          "--order": ("rows", "columns", "diagonal", "random")}
ALL = {
    "--seq-q": SIZES,
    "--seq-kv": SIZES,
    **COMMON,
    "--mask": cases.MASKS,
    "--window": cases.WINDOWS,
    "--clip": ("", "-0.1,1.1", "0,1.4"),
    "--dropout": ("", 0.1, 0.6),
    "--pack": ("q_k_v", "q_kv", "qkv"),
    "--backward": (0, 1),
}
ONLINE = {"--seq-q": SIZES, "--seq-kv": SIZES, **COMMON, "--mask": cases.MASKS,
          "--window": cases.WINDOWS, **BLOCKS}
STREAM = {"--seq-q": SIZES, "more keys": (0, 3, 90), **COMMON,
          "--window": ("0,-1", "1,-1", "16,-1", "400,-1"), **BLOCKS}
# v2_mma_window's kernel for windows of at most 256 keys: blocks of 256 rows, of which a block of
# threads works on several in turn if there are more than multiprocessors; 5 steps or 6, with rows
# that see nothing, for both of its compiled head dimensions.
NARROW = (
    "-B 1 -H 140 --kv-heads 70 --seq-q 520 --seq-kv 520 -d 8 --mask causal-lower-right "
    "--window 256,-1 --strides bshd --dtype bf16",
    "-B 2 -H 70 --kv-heads 70 --seq-q 530 --seq-kv 547 -d 8 --mask causal-lower-right "
    "--window 256,-1 --strides bhsd --dtype f16",
    "-B 2 -H 75 --kv-heads 25 --seq-q 600 --seq-kv 300 -d 16 --mask none "
    "--window 100,156 --strides sbhd --dtype bf16",
    "-B 1 -H 4 --kv-heads 2 --seq-q 513 --seq-kv 900 -d 128 --mask causal-upper-left "
    "--window 200,-1 --strides bshd --dtype f16",
    "-B 1 -H 70 --kv-heads 35 --seq-q 515 --seq-kv 580 -d 72 --mask none "
    "--window 30,3 --temperature 2 --qk-norm 72 --strides bshd --dtype bf16",
    "-B 1 -H 140 --kv-heads 28 --seq-q 257 --seq-kv 390 -d 128 --mask causal-lower-right "
    "--window 250,-1 --strides bshd --dtype bf16",
)
TABLES = {"all": (ALL, 2), "online": (ONLINE, 2), "stream": (STREAM, 1)}  # and how often


def valid(case):
    """Q, K and V in one tensor have as many queries as keys; several sequences are one batch."""
    return ((case.get("--pack") != "qkv" or case["--seq-q"] == case["--seq-kv"]) and
            (case["layout"] != "thd" or case["-B"] == 1))


def lengths(total, parts):
    """Running sums of sequences with these shares of the tokens; the last one has the rest."""
    starts = list(itertools.accumulate((total * share // 12 for share in parts), initial=0))
    return starts + [total]


def lengths_files(folder, case):
    """Of four sequences: some without queries, others without keys; streams and packed tensors have
    as many keys as queries, at least."""
    nq, nk = case["--seq-q"], case["--seq-kv"]
    q = lengths(nq, (4, 0, 5))
    if "more keys" in case or case.get("--pack") == "qkv":
        k = q[:-1] + [nk]
    else:
        k = lengths(nk, (6, 3, 0))
    words = []
    for flag, starts in (("--cu-seqlens-q", q), ("--cu-seqlens-kv", k)):
        path = os.path.join(folder, "lengths_" + "_".join(map(str, starts)) + ".npy")
        npyfile.write(path, (len(starts),), starts, "i4")
        words += [flag, path]
    return words


def line_of(folder, case, seed):
    words, d = [], case["-d"]
    if "more keys" in case:
        case = dict(case, **{"--seq-kv": case["--seq-q"] + case["more keys"],
                             "--mask": "causal-lower-right"})
    for name, value in case.items():
        if name == "heads":
            words += ["-H", value.split("/")[0], "--kv-heads", value.split("/")[1]]
        elif name == "layout" and value in ("thd", "tensors sbhd"):
            words += ["--tensor-layout", value.split()[-1]]
            words += lengths_files(folder, case) if value == "thd" else []
        elif name == "layout":
            words += ["--strides", value]
        elif name == "--qk-norm":
            group = {"": None, "head": d, "part": d // 4 if d % 4 == 0 else 1}[value]
            words += ["--qk-norm", str(group)] if group else []
        elif name == "--backward":
            words += ["--backward"] if value else []
        elif name == "--clip" and value:
            words += ["--clip=" + value]
        elif name != "more keys" and value != "":
            words += [name, str(value)]
    return " ".join(words + ["--seed", str(seed)])


def sweep(folder, quick=False):
    """quick: what is left of one table below a cost, for sanitizers."""
    groups, seed = {}, itertools.count(1)
    for name, (options, times) in TABLES.items():
        for table in range(1 if quick else times):
            for case in cases.all_pairs(options, table, valid=valid):
                nk = case.get("--seq-kv", case["--seq-q"] + case.get("more keys", 0))
                if not quick or cases.cost(dict(case, **{"--seq-kv": nk})) <= 1e6:
                    group = f"{name} {case['--dtype']}"
                    groups.setdefault(group, []).append(line_of(folder, case, next(seed)))
    if not quick:
        groups["narrow"] = [f"{line} --threads 2 --seed {next(seed)}" for line in NARROW]
    return groups


def flags_of(line):
    words = line.replace("--clip=", "--clip ").split()
    return {word: words[n + 1] if n + 1 < len(words) else "" for n, word in enumerate(words)
            if word.startswith("-") and not word[1:2].isdigit() and not word[1:2] == "."}


def a_key_for_each_query(given):
    if "--cu-seqlens-q" not in given:
        return int(given["--seq-q"]) <= int(given["--seq-kv"])
    q, k = (npyfile.read(given[flag])[1] for flag in ("--cu-seqlens-q", "--cu-seqlens-kv"))
    return all(q[n + 1] == q[n] or q[n + 1] - q[n] <= k[n + 1] - k[n] for n in range(len(q) - 1))


def answers(variant, line):
    """What `sliding_window.h` and the README say about who takes what."""
    given = flags_of(line)
    left, right = given.get("--window", "-1,-1").split(",")
    causal = given["--mask"].startswith("causal")
    if variant in ("v0_offline_mask", "v2_window_tiles", "v4_window_backward", "v1_window_tiles"):
        return True
    if "--clip" in given or "--dropout" in given:
        return False
    if variant == "v3_streaming":
        return (left != "-1" and (causal or right == "0") and given["--mask"] != "full" and
                a_key_for_each_query(given))
    return True


def main(argv):
    for lines in sweep(argv[1]).values():
        print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv)
