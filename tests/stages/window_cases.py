#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""window_cases.py: the option combinations that stage 05 is swept over.

cases.py has the idea: every pair of option values occurs together somewhere. Stage 05 has nine
options more, which the library alone takes, and rungs that take the plain problem; so there are
four tables of pairs:

    all      every option, for the library
    full     forward and backward, a mask from memory and a cap: what v0_offline_mask takes as well
    online   the plain problem, forward: what the online rungs take, with small and large blocks in
             every order
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
PLAIN = {
    "-d": (8, 32, 59, 64, 128),
    "heads": ("1/1", "2/2", "4/2", "8/2", "3/1"),
    # layout of tensors and strides in memory are one option: sbhd fixes both
    "layout": ("bshd", "sbhd", "bhsd", "odd", "tensors sbhd"),
    "-B": (1, 2),
    "--dtype": ("f32", "f16", "bf16"),
    "--dist": ("normal", "outlier", "large"),
    "--threads": (1, 2),
}
BLOCKS = {"--block-q": ("", 1, 16, 300), "--block-kv": ("", 5, 128),
          "--order": ("rows", "columns", "diagonal", "random")}
FULL = {
    "--seq-q": SIZES,
    "--seq-kv": SIZES,
    **PLAIN,
    "--softcap": ("", 20),
    "--scale": ("", -0.3),
    "--mask": cases.MASKS,
    "--window": cases.WINDOWS,
    "--backward": (0, 1),
}
ALL = {
    **FULL,
    "--temperature": ("", 0.5, 4),
    "--qk-norm": ("", "head", "part"),  # a group of all channels of a head, or of a part of them
    "layout": (*PLAIN["layout"], "thd"),  # thd is one batch
    "--clip": ("", "-0.1,1.1", "0,1.4"),
    "--dropout": ("", 0.1, 0.6),
    "--pack": ("q_k_v", "q_kv", "qkv"),
}
ONLINE = {"--seq-q": SIZES, "--seq-kv": SIZES, **PLAIN,
          "--mask": ("none", "causal-upper-left", "causal-lower-right"),
          "--window": cases.WINDOWS, **BLOCKS}
STREAM = {"--seq-q": SIZES, "more keys": (0, 3, 90), **PLAIN,
          "--window": ("0,-1", "1,-1", "16,-1", "400,-1"), **BLOCKS}
# The library's kernel for windows of at most 256 keys: blocks of 256 rows, of which a block of
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
OPTIONS = ("--temperature", "--qk-norm", "--clip", "--dropout")  # of the library alone
# The options of each table, and how many lists of all their pairs are made.
TABLES = {"all": (ALL, 2), "full": (FULL, 1), "online": (ONLINE, 2), "stream": (STREAM, 3)}


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


def answers(variant, line):
    """What problem.h and the README say about who takes what."""
    given = flags_of(line)
    left, right = map(int, given.get("--window", "-1,-1").split(","))
    mask = given.get("--mask", "none")
    if variant == "library":
        return True
    if any(flag in given for flag in OPTIONS) or given.get("--tensor-layout") == "thd":
        return False
    if variant == "v0_offline_mask":
        return True
    if mask == "full" or "--softcap" in given or float(given.get("--scale", 1)) <= 0:
        return False
    if variant == "v3_streaming":
        shift = 0 if mask == "causal-upper-left" else int(given["--seq-kv"]) - int(given["--seq-q"])
        last = shift + (0 if mask.startswith("causal") else right)  # a query's last key
        bounded = left != -1 and (mask.startswith("causal") or right != -1)
        return bounded and 0 <= last <= int(given["--seq-kv"]) - int(given["--seq-q"])
    return True


def main(argv):
    for lines in sweep(argv[1]).values():
        print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv)
