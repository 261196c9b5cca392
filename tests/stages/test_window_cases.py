#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_window_cases.py: proof that stage 05's sweep covers what it claims to.

As test_cases.py: it reads the case lines. The files of lengths are read too: four sequences, one
without queries, and one without keys.
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
from test_cases import check_table, missing_pairs

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
    case["more keys"] = str(int(case["Nk"]) - int(case["Nq"]))
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


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        groups = window_cases.sweep(folder)
        parsed = {name: [parse(line) for group, lines in groups.items()
                         if group.split()[0] == name for line in lines]
                  for name in window_cases.TABLES}
        for name, (options, times) in window_cases.TABLES.items():
            table = test_cases.table_of(options, {**NAMES, "--qk-norm": "norm"})
            check_table(tap, name, parsed[name], table, times, missing)
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
