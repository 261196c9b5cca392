#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ring_cases.py: the option combinations that stage 06 is swept over.

cases.py has the idea: every pair of option values occurs together somewhere. A line names no
method, so each line runs all six of them against one run of the oracle, but Ulysses where it cannot
deal the heads out. The lists:

    pairs    every pair of values of the options below, in TABLES different surroundings
    layouts  the full product of layouts, masks and windows, ranks and heads, whose interactions
             (who sees whom, how far keys travel, whose sums are added) are more than pairs promise;
             lengths, dtypes and several sequences go round in it
    partials the same with bf16 partials, whose bound is wider
    turns    the same under adversarial schedules: every line with a seed of its own

Lengths are ragged: below the ranks some ranks hold nothing, below twice the ranks a zigzag shard
has half of its chunks. Queries and keys have lengths of their own (cross attention). Four sequences
in a row have some without queries and some without keys.

That the lists hold what they claim is proved by test_ring_cases.py, from the lines and with tables
of its own.

Interface:
- sweep(folder, quick): {group: [line, ...]}, each with a seed of its own.
- answers(method, line): whether the method has to compute the case, by the contract.
"""
import itertools
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import cases
import window_cases

RANKS = (1, 2, 3, 4, 5, 8, 16)
LAYOUTS = ("contiguous", "zigzag", "striped")
HEADS = ("1/1", "2/2", "8/2", "4/1", "8/8", "6/3", "16/4")
SIZES = (1, 7, 31, 64, 100, 129)
WINDOWS = ("", "0,0", "16,-1", "5,3", "-1,4", "40,20")
OPTIONS = {
    "--ranks": RANKS,
    "--layout": LAYOUTS,
    "--seq-q": SIZES,
    "--seq-kv": SIZES,
    "heads": HEADS,
    "-d": (1, 8, 33, 64),
    "-B": (1, 2),
    "--mask": cases.MASKS,
    "--window": WINDOWS,
    "--softcap": ("", 20),
    "--scale": ("", -0.3),
    "--dtype": ("f32", "f16", "bf16"),
    "--dist": ("normal", "outlier", "large"),
    "--strides": ("bshd", "sbhd", "bhsd", "odd"),
    "sequences": (1, 4),
    "nodes": ("", "1", "half", "all"),  # half: of the ranks, so two on a node
    "--backward": (0, 1),
    "--verify-hops": (0, 1),
    "--threads": (1, 2),
}
TABLES = 4
SCHEDULES = 200
# The full product: masks and windows in one axis, as what a rank may see.
SEEN = tuple((m, w) for m in cases.MASKS for w in ("", "16,-1", "5,3"))
PRODUCT = {"--ranks": (1, 2, 3, 4, 8), "--layout": LAYOUTS, "seen": SEEN,
           "heads": ("1/1", "4/2", "8/1")}


def valid(case):
    """Several sequences are one batch; two ranks on a node need an even number."""
    return ((case["sequences"] == 1 or case["-B"] == 1) and
            (case["nodes"] != "half" or case["--ranks"] % 2 == 0))


def line_of(folder, case, seed):
    words = []
    for name, value in case.items():
        if name == "heads":
            words += ["-H", value.split("/")[0], "--kv-heads", value.split("/")[1]]
        elif name == "nodes" and value:
            ranks = case["--ranks"]
            words += ["--nodes", str({"1": 1, "half": ranks // 2, "all": ranks}[value])]
        elif name in ("--backward", "--verify-hops"):
            words += [name] if value else []
        elif name == "sequences":
            words += window_cases.lengths_files(folder, case) if value > 1 else []
        elif name != "nodes" and value != "":
            words += [name, str(value)]
    return " ".join(words + ["--seed", str(seed)])


def product_cases():
    """The other options go round, each with a period of its own, so they do not go together."""
    usual = {name: OPTIONS[name][0] for name in OPTIONS}
    for n, values in enumerate(itertools.product(*PRODUCT.values())):
        case = dict(usual, **dict(zip(PRODUCT, values)))
        case["--mask"], case["--window"] = case.pop("seen")
        case.update({"--seq-q": (31, 64, 7, 50, 3)[n % 5], "--seq-kv": (31, 7, 64, 29)[n // 2 % 4],
                     "-d": 8, "--dtype": OPTIONS["--dtype"][n // 5 % 3],
                     "-B": 1 + n // 7 % 2, "--backward": 1, "--threads": 1 + n % 2})
        case["sequences"] = 4 if n % 3 == 0 and case["-B"] == 1 else 1
        yield case


def small_cases(table):
    """A schedule is about who waits for whom, not about sizes."""
    options = {name: OPTIONS[name] for name in ("--mask", "--layout", "sequences")}
    options.update({"--ranks": (2, 3, 4, 5), "--seq-q": (9, 23), "--seq-kv": (9, 23),
                    "heads": ("2/2", "4/1", "4/4"), "-d": (8,), "-B": (1,),
                    "--window": ("", "5,3", "9,-1"), "--dtype": ("f32", "bf16"), "nodes": ("",),
                    "--backward": (1,)})
    return cases.all_pairs(options, table, valid=valid)


def sweep(folder, quick=False):
    """quick: what is left of one table below a cost, for sanitizers."""
    groups, seed = {}, itertools.count(1)

    def add(group, case, more=""):
        if not quick or cases.cost(case) <= 3e5:
            groups.setdefault(group, []).append(line_of(folder, case, next(seed)) + more)

    for table in range(1 if quick else TABLES):
        for case in cases.all_pairs(OPTIONS, table, valid=valid):
            add("pairs " + case["--dtype"], case)
    for n, case in enumerate(product_cases()):
        if not quick or n % 9 == 0:
            add("layouts " + case["--layout"], case)
    for case in small_cases(1):
        add("partials", case, " --partials bf16")
    scheduled = small_cases(0)
    for n in range(30 if quick else SCHEDULES):
        case = scheduled[n % len(scheduled)]
        add("turns", case, f" --seed-schedule {1000 + n}")
    return groups


def answers(method, line):
    """What plan.h says about who takes what: heads have to be dealt out for Ulysses."""
    words = line.split()
    given = dict(zip(words, words[1:]))
    ranks, H, Hkv = (int(given[flag]) for flag in ("--ranks", "-H", "--kv-heads"))
    return method != "ulysses" or (H % ranks == 0 and (Hkv % ranks == 0 or ranks % Hkv == 0))


def main(argv):
    for lines in sweep(argv[1]).values():
        print("\n".join(lines))


if __name__ == "__main__":
    main(sys.argv)
