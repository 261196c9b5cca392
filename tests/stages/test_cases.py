#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_cases.py: proof that the sweep covers what it claims to.

It reads the case lines, as a stage program would, and compares them with tables of its own, not
with those of cases.py: a value or a pair that the generator forgot shows here.
"""
import collections
import itertools
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases
from tap import Tap

SIZES = ["1", "2", "17", "64", "127", "129", "300"]
MASKS = ["none", "full", "causal-upper-left", "causal-lower-right"]
# Option -> values as they stand on a line; None: the flag is absent.
TABLE = {
    "Nq": SIZES,
    "Nk": SIZES,
    "d": ["1", "8", "32", "59", "64", "128"],
    "mask": MASKS,
    "window": [None, "0,0", "16,-1", "5,3", "-1,4", "400,400"],
    "softcap": [None, "20"],
    "heads": ["1/1", "2/2", "4/2", "8/2", "3/1"],
    "B": ["1", "2"],
    "strides": ["bshd", "sbhd", "bhsd", "odd"],
    "dtype": ["f32", "f16", "bf16"],
    "dist": ["normal", "outlier", "large"],
    "scale": [None, "-0.3"],
    "threads": ["1", "2"],
    "backward": [False, True],
}
WIDTHS = ["17", "33", "80", "96", "100", "250", "256"]
# Pairs (option, value, option, value) that no program accepts: none.
EXCLUDED = set()
TIMES = 5  # cases that each pair has to be in
# The flags of a line, and what their options are called here and in the tests of other sweeps.
NAMES = {"--seq-q": "Nq", "--seq-kv": "Nk", "-d": "d", "--mask": "mask", "--window": "window",
         "--softcap": "softcap", "-H": "H", "--kv-heads": "Hkv", "-B": "B", "--dtype": "dtype",
         "--strides": "strides", "--dist": "dist", "--scale": "scale", "--seed": "seed",
         "--threads": "threads", "--backward": "backward"}


def parse(line, names=NAMES):
    """Flags of one line -> values of options. An unknown flag is an error, not ignored."""
    words, case = line.split(), {"backward": False}
    while words:
        flag = words.pop(0)
        if flag == "--backward":
            case["backward"] = True
        elif flag.startswith("--bundled"):
            case["bundled"] = flag
        else:
            case[names[flag]] = words.pop(0)
    if "H" in case:
        case["heads"] = case["H"] + "/" + case["Hkv"]
    return case


def missing_pairs(parsed, table, times=1):
    """Pairs of values that occur in fewer than `times` cases."""
    count = collections.Counter(
        (a, case.get(a), b, case.get(b))
        for case in parsed for a, b in itertools.combinations(table, 2))
    wanted = {
        (a, x, b, y)
        for a, b in itertools.combinations(table, 2)
        for x in table[a]
        for y in table[b]
    } - EXCLUDED
    return {pair for pair in wanted if count[pair] < times}


def check_table(tap, label, parsed, table, times, missing_of=missing_pairs):
    """Every pair of values of the table is in so many cases, which half of the cases do not show,
    and no case has another value."""
    missing = missing_of(parsed, table, times)
    tap.ok(not missing and missing_of(parsed[::2], table, times),
           f"{label}: each pair of values is in {times} of {len(parsed)} cases",
           f"{len(missing)} missing, such as {sorted(missing, key=repr)[:3]}")
    values = {key: {case.get(key) for case in parsed} for key in table}
    tap.ok(all(values[key] == set(table[key]) for key in table),
           f"{label}: no value outside the tables", values)


def missing_product(parsed, fixed, **axes):
    wanted = set(itertools.product(*axes.values()))
    for case in parsed:
        if all(case.get(k) == v for k, v in fixed.items()):
            wanted.discard(tuple(case.get(a) for a in axes))
    return wanted


def check_stage(tap, backward):
    label = {False: "forward only", True: "with backward", "always": "backward always"}[backward]
    table = {k: v for k, v in TABLE.items() if backward is True or k != "backward"}
    groups = cases.sweep(backward)
    lines = [line for group in groups.values() for line in group]
    parsed = [parse(line) for line in lines]
    pairs = [parse(line) for name in groups if name.startswith("pairs") for line in groups[name]]
    check_table(tap, label, pairs, table, TIMES)
    missing = missing_product(parsed, {"d": "32", "heads": "2/2"}, Nq=SIZES, Nk=SIZES, mask=MASKS)
    tap.ok(not missing, f"{label}: full grid of Nq, Nk and mask at d = 32", sorted(missing)[:5])
    small = [dict(c, relation=(int(c["Nq"]) > int(c["Nk"])) - (int(c["Nq"]) < int(c["Nk"])))
             for c in parsed if "Nq" in c]
    missing = missing_product(small, {"d": "8"}, mask=MASKS, window=TABLE["window"],
                              relation=(-1, 0, 1))
    tap.ok(not missing, f"{label}: masks x windows x (Nq <, =, > Nk)", missing)
    missing = missing_product(parsed, {"Nq": "130"}, d=WIDTHS, dtype=TABLE["dtype"]) | \
        missing_product(parsed, {"Nq": "130"}, d=WIDTHS, strides=["bshd", "odd"])
    tap.ok(not missing, f"{label}: other head dimensions, each dtype, aligned and not", missing)
    bundled = {(c["bundled"], c.get("dtype", "f32"), c["backward"]) for c in parsed
               if "bundled" in c}
    both = {False, True} if backward is True else {False}
    missing = {("--bundled" + which, dtype, b) for b in both for which, dtype in (
        ("", "f32"), ("=encoder", "f32"), *(("=causal", dtype) for dtype in TABLE["dtype"]))}
    missing -= bundled
    tap.ok(not missing, f"{label}: the bundled inputs are there, causal in each dtype", missing)
    seeds = [c["seed"] for c in parsed]
    tap.ok(len(set(seeds)) == len(seeds), f"{label}: each case has a seed of its own")
    plain = {name: len(group) for name, group in groups.items() if name.startswith("plain")}
    tap.ok(200 < len(lines) - sum(plain.values()) <= 600,
           f"{label}: {len(lines) - sum(plain.values())} cases, at most 600, and {plain}")
    tap.ok(plain["plain f32"] >= 150 and plain["plain f16"] + plain["plain bf16"] >= 150 and
           all(cases.is_plain(line, "cuda") for name in plain for line in groups[name]) and
           not any(cases.is_plain(line, "cuda") for line in groups["grid full"]),
           f"{label}: each rung has 150 plain cases at least", plain)


def main():
    tap = Tap()
    check_stage(tap, False)
    check_stage(tap, True)
    check_stage(tap, "always")
    quick = cases.sweep(True, quick=True)
    total = sum(map(len, quick.values()))
    tap.ok(40 <= total <= 150 and len(quick) == 11, f"quick list: {total} cases of 11 groups")
    product = math.prod(map(len, TABLE.values()))
    step = 20000
    shards = [list(cases.exhaustive(True, f"{k}/{step}")) for k in (7, 8)]
    tap.ok(len(shards[0]) == len(range(7, product + 1, step)) and
           len({line.split(" --seed")[0] for line in shards[0] + shards[1]}) ==
           len(shards[0] + shards[1]) and
           not missing_pairs(map(parse, shards[0]), TABLE),
           f"exhaustive list: {product} combinations; shards are distinct and have all pairs too")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
