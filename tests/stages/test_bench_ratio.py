#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_bench_ratio.py: a stage's bench_ratio at tiny sizes: table, rows, refusals.

usage: test_bench_ratio.py PROGRAM

What is fast enough is not tested here; that a verdict agrees with its numbers is.
"""
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import Tap

NO_OPENBLAS = 77
MOST_SPREAD = 0.1
# What the issues ask for: (d, mask, floor, aim), by folder and N.
ASKED = {"03_flash_forward": {
             1024: [(64, "causal-lower-right", 0.80, 0.88), (64, "none", 0.88, 0.95),
                    (128, "causal-lower-right", 0.80, 0.88), (128, "none", 0.92, 0.98)]},
         "04_flash_backward": {
             1024: [(64, "causal-lower-right", None, None), (64, "none", 0.80, 0.90),
                    (128, "causal-lower-right", None, None), (128, "none", 0.85, 0.93)],
             2048: [(64, "causal-lower-right", 0.75, 0.85), (64, "none", 0.80, 0.90),
                    (128, "causal-lower-right", 0.75, 0.85), (128, "none", 0.85, 0.93)]},
         "05_sliding_window_online": {
             8192: [(64, "causal-lower-right", 0.70, 0.80),
                    (128, "causal-lower-right", None, None)]}}


def run(program, *flags):
    return subprocess.run([program, *flags], capture_output=True, text=True, check=False,
                          timeout=120)


def folder_of(program):
    return os.path.basename(os.path.dirname(os.path.abspath(program)))


def table(text):
    """The lines of cases, as word lists."""
    return [line.split() for line in text.splitlines()
            if line.startswith(("full ", "causal ", "window "))]


def row_faults(row):
    faults = [key for key in ("ratio", "scaling", "sgemm_of_fma", "ms", "d")
              if key not in row]
    if faults:
        return faults
    if not row["ratio"] or min(row["ratio"]) <= 0 or not row["sgemm_of_fma"] > 0:
        faults.append("no ratio")
    if len(row["scaling"]) != (len(row["ratio"]) if row["threads"] > 1 else 0):
        faults.append("scaling")
    # each ratio is written with six digits
    if row["ratio"] and not math.isclose(row["ratio_med"], statistics.median(row["ratio"]),
                                         rel_tol=1e-5):
        faults.append("ratio_med")
    if row["stage"] == "" or row["pass"] is not True:
        faults.append("pass")
    return faults


def check_tiny(tap, program, folder):
    path = os.path.join(folder, "tiny.jsonl")
    windowed = folder_of(program).startswith("05")
    out = run(program, "--seq", "64,70" if windowed else "70", "--sgemm", "96", "--rounds", "1",
              "--threads", "2", "--json", path)
    tap.ok(out.returncode == 0, "tiny sizes run and are right", out.stdout + out.stderr)
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    one = 4  # d = 64 and 128, full and causal; a window is always causal, and has two lengths
    tap.ok(len(rows) == 3 * one and len(table(out.stdout)) == 3 * one,
           f"{one} cases with one thread, {2 * one} with two", f"{len(rows)} rows\n{out.stdout}")
    tap.ok(out.stdout.count("# H=8 d=") == (2 if windowed else 0),
           "a window's rate is compared over N", out.stdout)
    faults = {n: row_faults(row) for n, row in enumerate(rows) if row_faults(row)}
    tap.ok(not faults, "every row agrees with itself", str(faults))
    tap.ok(out.stdout.count("too few rounds to compare") == len(rows),
           "one round compares nothing", out.stdout)
    tap.ok(all(row["floor"] is None and row["aim"] is None for row in rows),
           "nothing is asked of small cases")
    tap.ok({row["H"] for row in rows if row["threads"] == 2} == {1, 8}, "one head and eight")


def check_verdict(tap, program, folder, n, targets):
    path = os.path.join(folder, f"verdict{n}.jsonl")
    out = run(program, "--seq", str(n), "--sgemm", "512", "--rounds", "3", "--threads", "1",
              "--no-check", "--json", path)
    tap.ok(out.returncode == 0, "a bench exits with 0, fast or slow", out.stdout + out.stderr)
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    asked = [(row["d"], row["mask"], row["floor"], row["aim"]) for row in rows]
    tap.ok(sorted(asked) == targets, f"N={n}: floors and aims are the issue's", str(asked))
    lines = out.stdout.splitlines()[3:]
    faults = [] if len(lines) == len(rows) else [f"{len(rows)} rows, {len(lines)} lines"]
    for row, line in zip(rows, lines):
        middle = max(row["ratio"]) - min(row["ratio"])  # of three rounds that is all of them
        spread = middle / row["ratio_med"]
        wanted = ("%: compare nothing" if spread > MOST_SPREAD else
                  "" if row["floor"] is None else
                  "below floor" if row["ratio_med"] < row["floor"] else
                  "above floor" if row["ratio_med"] < row["aim"] else "reaches aim")
        if not line.endswith(wanted):
            faults.append(f"{wanted}: {line}")
    tap.ok(not faults, "the verdict is that of the numbers", "\n".join(faults))


def main():
    program = sys.argv[1]
    tap = Tap()
    if run(program, "--seq", "8", "--sgemm", "8", "--rounds", "1",
           "--threads", "1").returncode == NO_OPENBLAS:
        return tap.skip_all("built without OpenBLAS")
    with tempfile.TemporaryDirectory() as folder:
        check_tiny(tap, program, folder)
        for n, targets in ASKED[folder_of(program)].items():
            if not os.environ.get("ATTN_TEST_QUICK"):  # minutes under a sanitizer
                check_verdict(tap, program, folder, n, targets)
        for flags in (["--rounds", "0"], ["--seq", "64,"], ["--sgemm", "x"], ["--json"], ["--fast"],
                      ["--json", folder], ["--json", ""], [""]):
            out = run(program, *flags)
            tap.ok(out.returncode == 2 and out.stderr.count("\n") == 1 and not out.stdout and
                   out.stderr.startswith("bench_ratio: ") and
                   (flags[-1] != "" or "''" in out.stderr),
                   f"{' '.join(flags[:1])}: one sentence, exit status 2", out.stderr + out.stdout)
        for flag in ("--help", "-h"):
            tap.ok(run(program, flag).stdout.startswith("usage: bench_ratio"), flag)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
