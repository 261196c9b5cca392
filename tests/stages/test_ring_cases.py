#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_cases.py: proof that stage 06's sweep covers what it claims to.

As test_cases.py: it reads the case lines and compares them with tables of its own. Since a line
runs all methods, a pair of an option and a method is covered when the method answers a line with
it; for Ulysses only where heads can be dealt out.
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import ring_cases
from tap import Tap
from test_cases import check_table, missing_pairs, missing_product
from test_window_cases import check_lengths

RANKS = ["1", "2", "3", "4", "5", "8", "16"]
LAYOUTS = ["contiguous", "zigzag", "striped"]
MASKS = ["none", "full", "causal-upper-left", "causal-lower-right"]
HEADS = ["1/1", "2/2", "8/2", "4/1", "8/8", "6/3", "16/4"]
TABLE = {
    "ranks": RANKS,
    "ranks layout": LAYOUTS,
    "Nq": ["1", "7", "31", "64", "100", "129"],
    "Nk": ["1", "7", "31", "64", "100", "129"],
    "heads": HEADS,
    "d": ["1", "8", "33", "64"],
    "B": ["1", "2"],
    "mask": MASKS,
    "window": [None, "0,0", "16,-1", "5,3", "-1,4", "40,20"],
    "softcap": [None, "20"],
    "scale": [None, "-0.3"],
    "dtype": ["f32", "f16", "bf16"],
    "dist": ["normal", "outlier", "large"],
    "strides": ["bshd", "sbhd", "bhsd", "odd"],
    "sequences": ["1", "4"],
    "node": [None, "1", "half", "all"],
    "backward": [False, True],
    "verify": [False, True],
    "threads": ["1", "2"],
}
TIMES = 4
# Sequences in a row are one batch; two ranks on each node are an even number.
NEVER = {frozenset((("sequences", "4"), ("B", "2")))} | {
    frozenset((("ranks", ranks), ("node", "half"))) for ranks in ("1", "3", "5")}
# With one rank all ways to have nodes are one, and they are written alike.
ALIKE = {("ranks", "1", "node", "all")}
# Ranks among which Ulysses deals out heads.
ULYSSES = {"1/1": ["1"], "2/2": ["1", "2"], "8/2": ["1", "2", "4", "8"], "4/1": ["1", "2", "4"],
           "8/8": ["1", "2", "4", "8"], "6/3": ["1", "3"], "16/4": ["1", "2", "4", "8", "16"]}
NAMES = {"--ranks": "ranks", "--layout": "ranks layout", "--seq-q": "Nq", "--seq-kv": "Nk",
         "-H": "H", "--kv-heads": "Hkv", "-d": "d", "-B": "B", "--mask": "mask",
         "--window": "window", "--softcap": "softcap", "--scale": "scale", "--dtype": "dtype",
         "--dist": "dist", "--strides": "strides", "--nodes": "nodes", "--threads": "threads",
         "--seed": "seed", "--cu-seqlens-q": "lengths_q", "--cu-seqlens-kv": "lengths_k",
         "--seed-schedule": "schedule", "--partials": "partials"}


def parse(line):
    """Flags of one line -> the options of TABLE. An unknown flag is an error, not ignored."""
    words, case = line.split(), {"backward": False, "verify": False}
    while words:
        flag = words.pop(0)
        if flag in ("--backward", "--verify-hops"):
            case[flag[2:].split("-")[0]] = True
        else:
            case[NAMES[flag]] = words.pop(0)
    case["heads"] = case["H"] + "/" + case["Hkv"]
    case["sequences"] = "4" if "lengths_q" in case else "1"
    case["layout"] = "thd" if "lengths_q" in case else "rows"  # as check_lengths wants it
    if "nodes" in case:
        nodes, ranks = int(case["nodes"]), int(case["ranks"])
        case["node"] = "1" if nodes == 1 else "all" if nodes == ranks else "half"
        if nodes == ranks // 2 and ranks == 2:
            case["node"] = "1"
        assert ranks % nodes == 0
    return case


def missing(parsed, table, times):
    # two ranks on one node, by either name
    doubled = parsed + [dict(case, node="half") for case in parsed
                        if case["ranks"] == "2" and case.get("node") == "1"]
    return {pair for pair in missing_pairs(doubled, table, times)
            if frozenset((pair[:2], pair[2:])) not in NEVER and pair not in ALIKE}


def check_product(tap, parsed):
    axes = {"ranks": ["1", "2", "3", "4", "8"], "ranks layout": LAYOUTS, "mask": MASKS,
            "window": [None, "16,-1", "5,3"], "heads": ["1/1", "4/2", "8/1"]}
    for case in parsed:
        case.setdefault("window", None)
    tap.ok(not missing_product(parsed, {}, **axes) and
           missing_product(parsed[1:], {}, **axes),
           f"layouts: ranks x layout x mask x window x heads, {len(parsed)} cases")
    for name, least in (("dtype", 150), ("Nq", 90), ("Nk", 100), ("sequences", 60), ("B", 200)):
        counts = {}
        for case in parsed:
            counts[case[name]] = counts.get(case[name], 0) + 1
        tap.ok(min(counts.values()) >= least and len(counts) > 1,
               f"layouts: {name} goes round: {counts}")
    cross = sum(case["Nq"] != case["Nk"] for case in parsed)
    idle = {name: sum(int(case[name]) < int(case["ranks"]) for case in parsed)
            for name in ("Nq", "Nk")}
    tap.ok(cross > 300 and min(idle.values()) >= 25,
           f"layouts: {cross} with other keys than queries; ranks without tokens in {idle}")


def check_ulysses(tap, cases):
    taken = {(c["heads"], c["ranks"]) for line, c in cases if ring_cases.answers("ulysses", line)}
    left = {(c["heads"], c["ranks"]) for line, c in cases
            if not ring_cases.answers("ulysses", line)}
    right = {(heads, ranks) for heads in HEADS for ranks in ULYSSES[heads]}
    known = {pair for pair in taken if pair[0] in ULYSSES}
    tap.ok(known == right and not left & right,
           f"ulysses takes {len(right)} of {len(HEADS) * len(RANKS)} kinds of heads and ranks",
           (known ^ right))
    tap.ok(all(ring_cases.answers(m, line) for line, _ in cases
               for m in ("ring-minimal", "ring", "burst", "allgather", "ring-double",
                         "burst-double")),
           "the other methods take everything")


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        groups = ring_cases.sweep(folder)
        again = ring_cases.sweep(folder)
        cases = {name: [parse(line) for line in lines] for name, lines in groups.items()}
        pairs = [case for name in cases if name.startswith("pairs") for case in cases[name]]
        check_table(tap, "pairs", pairs, TABLE, TIMES, missing)
        check_product(tap, [c for name in cases if name.startswith("layouts") for c in cases[name]])
        check_lengths(tap, pairs)
        check_ulysses(tap, [(line, parse(line)) for name, lines in groups.items()
                            if name.startswith("pairs") for line in lines])
        turns = cases["turns"]
        tap.ok(len(turns) == 200 and len({case["schedule"] for case in turns}) == 200 and
               {case["ranks layout"] for case in turns} == set(LAYOUTS),
               "200 adversarial schedules, each another one")
        rounded = cases["partials"]
        tap.ok(len(rounded) >= 15 and {case["partials"] for case in rounded} == {"bf16"} and
               {case["ranks layout"] for case in rounded} == set(LAYOUTS) and
               {case["mask"] for case in rounded} == set(MASKS),
               f"{len(rounded)} cases with bf16 partials, every layout and mask")
        lines = [line for group in groups.values() for line in group]
        quick = sum(map(len, ring_cases.sweep(folder, quick=True).values()))
    tap.ok(len({parse(line)["seed"] for line in lines}) == len(lines),
           "each case has a seed of its own")
    tap.ok(again == groups, "made again, the list is the same")
    answered = sum(ring_cases.answers(m, line) for line in lines
                   for m in ("ring-minimal", "ring", "burst", "allgather", "ulysses",
                             "ring-double", "burst-double"))
    tap.ok(answered > 5000 and 60 <= quick <= 300,
           f"{len(lines)} cases, {answered} with their methods, quick {quick}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
