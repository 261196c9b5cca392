#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_window_cases.py: proof that stage 05's sweep covers what it claims to.

As test_cases.py: it reads the case lines and compares them with tables of its own. The files of
lengths are read too: four sequences, one without queries, and one without keys.
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
import test_cases
import window_cases
from tap import Tap
from test_cases import MASKS, TABLE, check_table, missing_pairs

SIZES = ["1", "17", "64", "130", "200"]
PLAIN = {"d": ["8", "32", "59", "64", "128"], "layout": ["bshd", "sbhd", "bhsd", "odd",
         "tensors sbhd"], **{key: TABLE[key] for key in ("heads", "B", "dtype", "dist", "threads")}}
BLOCKS = {"block_q": [None, "1", "16", "300"], "block_kv": [None, "5", "128"],
          "order": ["rows", "columns", "diagonal", "random"]}
FULL = {"Nq": SIZES, "Nk": SIZES, **PLAIN, **{key: TABLE[key] for key in (
        "mask", "window", "backward", "softcap", "scale")}}
# Each with how many cases a pair has to be in.
TABLES = {
    "all": ({**FULL, "clip": [None, "-0.1,1.1", "0,1.4"], "dropout": [None, "0.1", "0.6"],
             "pack": ["q_k_v", "q_kv", "qkv"], "temperature": [None, "0.5", "4"],
             "norm": [None, "head", "part"], "layout": [*PLAIN["layout"], "thd"]}, 2),
    "full": (FULL, 1),
    "online": ({"Nq": SIZES, "Nk": SIZES, "mask": ["none", *MASKS[2:]],
                "window": TABLE["window"], **PLAIN, **BLOCKS}, 2),
    "stream": ({"Nq": SIZES, "more": ["0", "3", "90"],
                "window": ["0,-1", "1,-1", "16,-1", "400,-1"], **PLAIN, **BLOCKS}, 3),
}
# Several sequences are one batch: the only two values that exclude each other.
NEVER = {frozenset((("layout", "thd"), ("B", "2")))}
NAMES = {**test_cases.NAMES, "--temperature": "temperature", "--clip": "clip",
         "--dropout": "dropout", "--qk-norm": "group", "--pack": "pack", "--block-q": "block_q",
         "--block-kv": "block_kv", "--order": "order", "--tensor-layout": "tensors",
         "--cu-seqlens-q": "lengths_q", "--cu-seqlens-kv": "lengths_k"}


def parse(line):
    """As test_cases.parse, with the options of stage 05."""
    case = test_cases.parse(line.replace("--clip=", "--clip "), NAMES)
    tensors = case.get("tensors")
    case["layout"] = {None: case.get("strides"), "sbhd": "tensors sbhd"}.get(tensors, tensors)
    if "group" in case:
        case["norm"] = "head" if case["group"] == case["d"] else "part"
    case["more"] = str(int(case["Nk"]) - int(case["Nq"]))
    return case


def missing(parsed, table, times):
    return {pair for pair in missing_pairs(parsed, table, times)
            if frozenset((pair[:2], pair[2:])) not in NEVER}


def check_lengths(tap, parsed):
    several, empty_q, empty_k, wrong = 0, 0, 0, []
    for case in parsed:
        if case["layout"] != "thd":
            continue
        q, k = (npyfile.read(case[key])[1] for key in ("lengths_q", "lengths_k"))
        several += 1
        empty_q += any(a == b for a, b in zip(q, q[1:]))
        empty_k += any(a == b and c < d for a, b, c, d in zip(k, k[1:], q, q[1:]))
        if not (len(q) == len(k) == 5 and q[0] == k[0] == 0 and q == sorted(q) and
                k == sorted(k) and str(q[-1]) == case["Nq"] and str(k[-1]) == case["Nk"]):
            wrong.append(case)
    tap.ok(several >= 10 and empty_q >= 10 and empty_k >= 5 and not wrong,
           f"{several} cases of four sequences, {empty_q} with one without queries, {empty_k} "
           "with queries that have no keys", wrong[:2])


def check_narrow(tap, parsed):
    """What the library's kernel for narrow windows has to meet. An H200 has 132 multiprocessors:
    with more row blocks than 264 every block of threads has two at least."""
    def left(case):
        return int(case["window"].split(",")[0])

    def right(case):
        return 0 if case["mask"].startswith("causal") else int(case["window"].split(",")[1])

    def row_blocks(case):
        return int(case["B"]) * int(case["H"]) * -(-int(case["Nq"]) // 256)

    tap.ok(all(left(case) >= 0 and left(case) + right(case) <= 256 and int(case["d"]) <= 128 and
               int(case["d"]) % 8 == 0 and case["dtype"] != "f32" and "softcap" not in case and
               case["mask"] != "full" and "tensors" not in case and case["strides"] != "odd"
               for case in parsed), "narrow: cases that the kernel takes", parsed)
    wide = [case for case in parsed if int(case["d"]) > 64]
    several = [case for case in parsed if row_blocks(case) > 264]
    meets = {
        "several row blocks in turn, d <= 64": set(map(id, several)) - set(map(id, wide)),
        "several row blocks in turn, d > 64": set(map(id, several)) & set(map(id, wide)),
        "f16": [case for case in parsed if case["dtype"] == "f16"],
        "groups of heads": [case for case in parsed if case["H"] != case["Hkv"]],
        "the widest, by tiles": [c for c in parsed if left(c) == 256 and int(c["more"]) % 64 == 0],
        "the widest, between": [c for c in parsed if left(c) == 256 and int(c["more"]) % 64],
        "rows that see nothing": [c for c in parsed if -int(c["more"]) > right(c)],
        "both sides": [c for c in parsed if left(c) and right(c)],
        "a norm, a temperature": [c for c in parsed if "group" in c and "temperature" in c],
    }
    tap.ok(all(meets.values()), f"narrow: {len(parsed)} cases meet {', '.join(meets)}",
           [what for what, cases in meets.items() if not cases])


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        groups = window_cases.sweep(folder)
        parsed = {name: [parse(line) for group, lines in groups.items()
                         if group.split()[0] == name for line in lines]
                  for name in TABLES}
        for name, (table, times) in TABLES.items():
            check_table(tap, name, parsed[name], table, times, missing)
        check_narrow(tap, [parse(line) for line in groups["narrow"]])
        check_lengths(tap, [case for cases in parsed.values() for case in cases])
        lines = [line for group in groups.values() for line in group]
        quick = sum(map(len, window_cases.sweep(folder, quick=True).values()))
    seeds = {parse(line)["seed"] for line in lines}
    tap.ok(len(seeds) == len(lines), "each case has a seed of its own")
    tap.ok(150 < len(lines) <= 370 and 30 <= quick <= 120,
           f"{len(lines)} cases, quick {quick}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
