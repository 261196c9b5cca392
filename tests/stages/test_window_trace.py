#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_window_trace.py: what stage 05's --trace draws is what happens.

    test_window_trace.py PROGRAM

For windows, lengths and orders: the turns are 1 to n, each once; the blocks that have one are those
with a visible pair, those without a mark have nothing but visible pairs; columns of lse fill in and
end in the lse that the program computes, whatever the order; a merge adds exponentials.
"""
import math
import pathlib
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
    Nq, Nk, bq, bkv, flags = case
    done = run(program, "--trace", "--seq-q", Nq, "--seq-kv", Nk, "--block-q", bq, "--block-kv",
               bkv, "--order", order, *flags.split(), "--variant", "v0_offline_mask", "--quiet",
               "--save", folder)
    if done.returncode != 0:
        return [done.stderr]
    rows, moments, merges = drawn(done.stdout)
    lse = npyfile.read(pathlib.Path(folder) / "lse.npy")[1]
    faults = []
    turns = sorted(int(turn) for row in rows for turn, _ in row if turn != ".")
    if turns != list(range(1, len(turns) + 1)):
        faults.append(f"turns {turns}")
    for i, row in enumerate(rows):
        for j, (turn, mark) in enumerate(row):
            seen, pairs = share_seen(i, j, case)
            if (turn != ".") != (seen > 0) or (mark == " ") != (seen in (0, pairs)):
                faults.append(f"block {i},{j}: '{turn}{mark}' with {seen} of {pairs} visible")
    return faults + faults_of_lse(moments, merges, lse, case)


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
    done = run(program, "--trace", "--clip=-0.1,1.1", "--quiet")
    tap.ok(done.returncode == 0 and "No trace: clip" in done.stdout,
           "clipping has no steps to show, and the trace says so", done.stdout + done.stderr)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
