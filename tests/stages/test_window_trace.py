#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_window_trace.py: what stage 05's --trace draws is what happens.

    test_window_trace.py PROGRAM

For windows, lengths and orders: the turns are 1 to n, each once, in the order that was asked for;
the blocks that have one are those with a visible pair, those without a mark have nothing but
visible pairs; columns of lse fill in and end in the lse that the program computes, whatever the
order; a merge adds exponentials, its shares are the two parts' of the sum, and O ends in the
program's. The last line is the difference of the two variants that it names. A full mask leaves no
block without a mark. A random order is another one with another seed.
"""
import math
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import npyfile
from tap import Tap

CASES = ((64, 64, 8, 8, "--causal --window 16,0"), (33, 70, 8, 9, "--window 20,5"),
         (40, 17, 5, 4, "--causal --window 3,0"), (48, 48, 16, 8, "--window -1,-1"))
ORDERS = ("rows", "columns", "diagonal", "random")


def run(program, *words):
    return subprocess.run([program, "--device", "cpu", *map(str, words)], capture_output=True,
                          text=True, check=False, timeout=60)


def in_order(order, Tr, Tc):
    """All blocks, as --order visits them."""
    if order == "columns":
        return [(i, j) for j in range(Tc) for i in range(Tr)]
    if order == "diagonal":
        return [(i, (i + s) % Tc) for s in range(Tc) for i in range(Tr)]
    return [(i, j) for i in range(Tr) for j in range(Tc)]


def visited(rows):
    """Blocks that have a turn, sorted by it."""
    turns = {(i, j): int(turn) for i, row in enumerate(rows) for j, (turn, _) in enumerate(row)
             if turn != "."}
    return sorted(turns, key=turns.get)


def drawn(text):
    """Cells (turn, mark) of each row of blocks, its lse at the moments, the merges."""
    head, _, below = text.partition("\nQuery ")
    rows, moments = [], []
    for line in head.split("   i   j")[1].split("\n")[1:]:
        if line.strip():
            cells, state = line[8:].split("     ", 1)
            cells += " "  # which the last one ends with, if it has no mark
            rows.append([(cells[n:n + 3].strip(), cells[n + 3])
                         for n in range(0, len(cells) // 4 * 4, 4)])
            moments.append([float(word) for word in state.split()])
    merges = [[float(word) for word in line.split()] for line in below.split("\n")
              if line[:4].strip().isdigit()]
    return rows, moments, merges


def window_of(flags):
    left, right = map(int, flags.split("--window ")[1].split(","))
    return left, 0 if "--causal" in flags else right


def share_seen(i, j, case):
    """Visible pairs of a block, and all that it has."""
    Nq, Nk, bq, bkv, flags = case
    left, right = window_of(flags)
    pairs = [(q + Nk - Nq, k) for q in range(i * bq, min((i + 1) * bq, Nq))
             for k in range(j * bkv, min((j + 1) * bkv, Nk))]
    seen = sum((left < 0 or k >= q - left) and (right < 0 or k <= q + right) for q, k in pairs)
    return seen, len(pairs)


def faults_of(program, case, order, folder):
    saved = {}
    for variant in ("v1_online_block", "v0_offline_mask"):
        done = trace(program, case, order, "--variant", variant, "--save", folder)
        if done.returncode != 0:
            return [done.stderr]
        saved[variant] = [npyfile.read(pathlib.Path(folder) / name)[1]
                          for name in ("lse.npy", "o.npy")]
    rows, moments, merges = drawn(done.stdout)
    lse, o = saved["v0_offline_mask"]
    faults = faults_of_difference(done.stdout, saved)
    turns = sorted(int(turn) for row in rows for turn, _ in row if turn != ".")
    if turns != list(range(1, len(turns) + 1)):
        faults.append(f"turns {turns}")
    found = visited(rows)
    if order != "random" and found != [at for at in in_order(order, len(rows), len(rows[0]))
                                       if at in found]:
        faults.append(f"--order {order} visits {found}")
    for i, row in enumerate(rows):
        for j, (turn, mark) in enumerate(row):
            seen, pairs = share_seen(i, j, case)
            if (turn != ".") != (seen > 0) or (mark == " ") != (seen in (0, pairs)):
                faults.append(f"block {i},{j}: '{turn}{mark}' with {seen} of {pairs} visible")
    return faults + faults_of_lse(moments, merges, lse, case) + faults_of_merges(
        merges, o[-len(o) // case[0]:])


def trace(program, case, order, *words):
    Nq, Nk, bq, bkv, flags = case
    return run(program, "--trace", "--seq-q", Nq, "--seq-kv", Nk, "--block-q", bq, "--block-kv",
               bkv, "--order", order, *flags.split(), "--quiet", *words)


def faults_of_difference(text, saved):
    """The sentence at the end, of one head, from the two variants' files: some last bits, so within
    a factor, should two runs of a library's product differ in one."""
    found = re.search(r"online and offline: lse (\S+), O (\S+)\.\n", text)
    worst = [max(abs(a - b) if a != b else 0.0 for a, b in zip(*pair))
             for pair in zip(*saved.values())]
    right = found and all(one / 4 <= float(told) <= 4 * one
                          for told, one in zip(found.groups(), worst))
    return [] if right else [f"the difference is {worst}, told {found and found.groups()}"]


def faults_of_merges(merges, o):
    """o: the last query's, which the last merge ends in."""
    faults = []
    for turn, _, before, block, both, share, share_block, *_ in merges:
        if max(abs(math.exp(before - both) - share),
               abs(math.exp(block - both) - share_block)) > 3e-4:
            faults.append(f"turn {turn}: shares {share} and {share_block}")
    if merges and max(abs(a - b) for a, b in zip(merges[-1][7:], o)) > 1e-4:
        faults.append(f"the last merge ends in {merges[-1][7:]}, O is {o}")
    return faults


def faults_of_lse(moments, merges, lse, case):
    Nq, _, bq, _, _ = case
    faults = []
    for i, filled in enumerate(moments):
        right = lse[min((i + 1) * bq, Nq) - 1]
        if abs(filled[-1] - right) > 2e-4 and filled[-1] != right:
            faults.append(f"row {i} ends in {filled[-1]}, right is {right}")
        if any(a > b for a, b in zip(filled, filled[1:])):
            faults.append(f"row {i} falls: {filled}")
    for turn, _, before, block, both, *_ in merges:
        right = math.exp(before) + math.exp(block)
        if abs(math.exp(both) - right) > 1e-3 * right:
            faults.append(f"turn {turn}: {before} and {block} make {both}")
    return faults


def main():
    tap, program = Tap(), sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            faults = [f"{order}: {fault}" for order in ORDERS
                      for fault in faults_of(program, case, order, folder)]
            tap.ok(not faults, f"Nq={case[0]} Nk={case[1]} {case[4]}: four orders", faults[:3])
    rows, _, _ = drawn(trace(program, CASES[3], "rows", "--mask", "full").stdout)
    tap.ok(rows and all(mark == "'" for row in rows for _, mark in row),
           "a full mask: every block has a mark", rows)
    orders = [visited(drawn(trace(program, CASES[3], "random", "--seed", seed).stdout)[0])
              for seed in (1, 2, 1)]
    tap.ok(orders[0] == orders[2] != orders[1] and len(orders[0]) == 3 * 6 and
           sorted(orders[0]) == sorted(orders[1]) != orders[0], "--order random is the seed's",
           orders)
    done = run(program, "--trace", "--clip=-0.1,1.1", "--quiet")
    tap.ok(done.returncode == 0 and "No trace: clip" in done.stdout,
           "clipping has no steps to show, and the trace says so", done.stdout + done.stderr)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
