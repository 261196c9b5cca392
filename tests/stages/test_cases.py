#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_cases.py: proof that the sweep covers what it claims to.

It reads the case lines, as a stage program would, and counts the pairs of values in them.
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

TIMES = 5  # cases that each pair has to be in
# The flags of a line, and what their options are called here and in the tests of other sweeps.
NAMES = {"--seq-q": "Nq", "--seq-kv": "Nk", "-d": "d", "--mask": "mask", "--window": "window",
         "--softcap": "softcap", "-H": "H", "--kv-heads": "Hkv", "-B": "B", "--dtype": "dtype",
         "--strides": "strides", "--dist": "dist", "--scale": "scale", "--seed": "seed",
         "--threads": "threads", "--backward": "backward"}


def table_of(options, names=NAMES):
    """{option: its values as `parse` gives them}; None: the flag is absent."""
    return {names.get(name, name): [bool(v) if name == "--backward" else None if v == "" else str(v)
                                    for v in values]
            for name, values in options.items()}


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
    }
    return {pair for pair in wanted if count[pair] < times}


def check_table(tap, label, parsed, table, times, missing_of=missing_pairs):
    """Every pair of values of the table is in so many cases, and no case has another value."""
    missing = missing_of(parsed, table, times)
    tap.ok(not missing, f"{label}: each pair of values is in {times} of {len(parsed)} cases",
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
    table = table_of(cases.options_of(backward))
    groups = cases.sweep(backward)
    lines = [line for group in groups.values() for line in group]
    parsed = [parse(line) for line in lines]
    pairs = [parse(line) for name in groups if name.startswith("pairs") for line in groups[name]]
    check_table(tap, label, pairs, table, TIMES)
    missing = missing_product(parsed, {"d": "32", "heads": "2/2"},
                              **{axis: table[axis] for axis in ("Nq", "Nk", "mask")})
    tap.ok(not missing, f"{label}: full grid of Nq, Nk and mask at d = 32", sorted(missing)[:5])
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
    product = math.prod(map(len, cases.OPTIONS.values()))
    step = 20000
    shards = [list(cases.exhaustive(True, f"{k}/{step}")) for k in (7, 8)]
    tap.ok(len(shards[0]) == len(range(7, product + 1, step)) and
           len({line.split(" --seed")[0] for line in shards[0] + shards[1]}) ==
           len(shards[0] + shards[1]) and
           not missing_pairs(map(parse, shards[0]), table_of(cases.OPTIONS)),
           f"exhaustive list: {product} combinations; shards are distinct and have all pairs too")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
