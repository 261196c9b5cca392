#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_told_faults.py: what a user sees of stage 06 when a rank or a message fails.

    test_ring_told_faults.py PROGRAM

That every fault at every rank and step is noticed is the business of tests/unit/test_ring_faults.c.
Here is the program's side: one sentence with rank, step and operation, the exit status (3, or 1 for
an answer that is wrong and that nobody noticed before the checker), a row that says so, the next
case that runs all the same, and an end at once where nobody can go on.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from tap import Tap

SMALL = ["-N", "40", "-H", "2", "-d", "8", "--backward", "--device", "cpu", "--timeout", "20"]
BENCH = ["--bench", "--warmup", "1", "--iters", "2"]
METHODS = ("ring", "ring-minimal", "burst", "allgather", "ring-double", "burst-double")
# fault, more flags, exit status, what the sentence must have
TOLD = [
    ("drop@1:1", [], 3, r"deadlock.*rank \d is waiting for K from rank 1 \(forward step \d\)"),
    ("drop@1:1", ["--verify-hops"], 3, r"rank \d, (forward|backward) step \d"),
    ("corrupt@2:1", ["--verify-hops"], 3, r"rank \d, (forward|backward) step \d.*checksum"),
    # 18 bytes: the last two are no whole word of the checksum, and it is the last that is damaged
    ("corrupt@2:1", "--verify-hops -N 13 -H 1 -d 3 --dtype f16".split(), 3, r"checksum"),
    ("corrupt@2:1", [], 1, r"is wrong"),
    ("duplicate@1:0", ["--verify-hops"], 3, r"rank \d, (forward|backward) step \d"),
    ("exit@3:2", [], 3, r"rank 3.*step"),
    ("exit@0:0", [], 3, r"rank 0.*step"),
    ("drop@1:99", [], 3, r"drop@1:99 did not happen"),
    ("delay@1:1", [], 0, r"^$"),
    ("delay@1:1", ["--verify-hops"], 0, r"^$"),
    # a benchmark has the fault in every round, the last one as well, which is judged
    ("drop@1:1", BENCH, 3, r"deadlock.*rank \d is waiting for K from rank 1 \(forward step \d\)"),
    ("duplicate@1:1", BENCH, 3, r"rank \d is waiting until rank \d takes K"),
    ("corrupt@2:1", BENCH, 1, r"is wrong"),
    ("corrupt@2:1", ["--verify-hops", *BENCH], 3, r"rank \d, forward step 1.*checksum"),
    ("delay@1:1", BENCH, 0, r"^$"),
    ("exit@3:2", BENCH, 3, r"rank 3.*step"),
]


def run(program, *flags):
    start = time.monotonic()
    done = subprocess.run([program, *SMALL, *flags], capture_output=True, text=True, timeout=60)
    return done, time.monotonic() - start


def check_fault(tap, program, folder, method, fault, flags, status, pattern):
    report = os.path.join(folder, "rows.jsonl")
    if os.path.exists(report):
        os.remove(report)
    done, seconds = run(program, "--method", method, "--inject", fault, *flags, "--json", report)
    with open(report, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    row = rows[0] if len(rows) == 1 else {}
    wrong = []
    if done.returncode != status:
        wrong.append(f"exit status {done.returncode}, not {status}")
    if not re.search(pattern, done.stderr, re.S):
        wrong.append(f"stderr has not {pattern}")
    if status == 3 and len(done.stderr.splitlines()) != 1:
        wrong.append("more than one sentence")
    if row.get("pass") is not (status == 0) or row.get("inject") != fault:
        wrong.append(f"the row says pass {row.get('pass')}, inject {row.get('inject')}")
    if status == 3 and not re.search(pattern, row.get("failure", "")):
        wrong.append(f"the row's failure is {row.get('failure')}")
    if BENCH[0] in flags and status == 0 and (len(row["ms"]) != 2 or min(row["ms"]) < 150):
        wrong.append(f"the fault costs 200 ms in each round, and the samples are {row['ms']}")
    if BENCH[0] in flags and status == 0 and seconds < 0.8:
        wrong.append(f"a round to choose their number, one to warm up, two: {seconds:.1f} s")
    if seconds > 10:
        wrong.append(f"it took {seconds:.1f} s")
    tap.ok(not wrong, f"{method} --inject {fault} {' '.join(flags)}: exit {status}",
           "; ".join(wrong) + "\n" + done.stderr[:600])


def check_cases(tap, program, folder):
    """One case fails, the others run; the worst status stays."""
    cases, report = (os.path.join(folder, name) for name in ("cases", "all.jsonl"))
    with open(cases, "w", encoding="utf-8") as f:
        f.write("-N 20\n-N 21 --inject exit@1:0\n-N 22\n")
    done, _ = run(program, "--method", "ring", "--cases", cases, "--json", report, "--quiet")
    with open(report, encoding="utf-8") as f:
        passed = {row["Nq"]: row["pass"] for row in map(json.loads, f)}
    tap.ok(done.returncode == 3 and passed == {20: True, 21: False, 22: True} and
           re.search(r":2: ring: .*rank 1 is gone", done.stderr),
           "--cases goes on after a rank has failed, and names the line",
           f"{done.returncode} {passed} {done.stderr}")


def check_tables(tap, program):
    done, _ = run(program, "--method", "ring", "--inject", "exit@1:0")
    tap.ok(re.search(r"^ring +cpu +fail ", done.stdout, re.M) and "WRONG" not in done.stdout,
           "a failed run is a row of the table, and nobody says that it was checked", done.stdout)
    done, _ = run(program, "--method", "ring", "--inject", "corrupt@1:0")
    tap.ok(re.search(r"^ring +cpu +WRONG ", done.stdout, re.M),
           "a wrong one was checked", done.stdout)
    done, seconds = run(program, "--method", "ring", "--inject", "drop@1:1", "--timeout", "50")
    tap.ok(done.returncode == 3 and seconds < 10,
           f"a deadlock is told at once, not after --timeout 50: {seconds:.1f} s", done.stderr)
    done, _ = run(program, "--inject", "exit@1:0", "--quiet")
    tap.ok(done.returncode == 3 and not done.stdout, "--quiet: the sentence alone", done.stdout)


def check_absent(tap, program):
    """What this machine may not have is one sentence, and exit status 77."""
    done, _ = run(program, "--transport", "nccl", "--device", "auto", "--method", "ring")
    tap.ok(done.returncode != 77 or (not done.stdout and re.fullmatch(
        r"ring_burst: --transport nccl: found [^\n]*, accepted is [^\n]*\n", done.stderr)),
        f"--transport nccl: exit status {done.returncode}", done.stdout + done.stderr)


def main():
    tap = Tap()
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for fault, flags, status, pattern in TOLD:
            check_fault(tap, program, folder, "ring", fault, flags, status, pattern)
        for method in METHODS[1:]:
            for fault, flags, status, pattern in (TOLD[2], TOLD[6]):
                fault = fault.replace(":1", ":0")  # the first step: there all of them send
                check_fault(tap, program, folder, method, fault, flags, status, pattern)
        check_cases(tap, program, folder)
        check_tables(tap, program)
        check_absent(tap, program)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
