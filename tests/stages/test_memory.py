#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_memory.py: memory that runs short at any allocation of a program: exit 3 and one sentence.

    test_memory.py --cc CC PROGRAM

so/fail_alloc.c lets allocation number n fail, alone or with all later ones. n grows until a run
comes through without asking so often; of long runs (stage 06) the later ones are a sample.
"""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
from tap import Tap

SMALL = ["-N", "6", "-H", "1", "-d", "4"]
ALL = 1500
# Flags, and the last allocation of interest: --bundled reads files first.
WAYS = [(SMALL + ["--trace", "--json", "rows"], ALL), (SMALL + ["--save", "saved"], ALL),
        (["--bundled", "--no-check"], 8)]
MORE = {"tiled_softmax": [(["--rows", "8", "--cols", "16"], 12)],
        "ring_burst": [(SMALL + ["--method", "auto"], ALL)]}
EACH, LEAP = 40, 37  # every allocation so far, then every 37th


def end_of_own_code(program):
    """Where the CUDA runtime begins, which is linked in behind our code; "": it is not there."""
    named = [line.split() for line in subprocess.run(
        ["nm", "-n", program], capture_output=True, text=True).stdout.splitlines()]
    code = [words for words in named if len(words) == 3 and words[1] in "tT"]
    names = [words[2] for words in code]
    own = names.index("workspace_alloc")  # beyond main and other start-up code
    first = next((n for n in range(own, len(names)) if "cudart" in names[n]), None)
    return code[first][0] if first is not None else ""


def run(args, flags, number, and_later, folder, all_the_same=False):
    """The finished run; None: it came through before that allocation."""
    said, say = os.pipe()
    here = tempfile.mkdtemp(dir=folder)
    done = subprocess.run(
        [args.program, "--device", "cpu", "--threads", "1", *flags], capture_output=True,
        text=True, timeout=100, cwd=here, pass_fds=[say], errors="backslashreplace",
        env=dict(os.environ, LD_PRELOAD=args.preload, FAIL_AT=str(number), FAIL_FD=str(say),
                 FAIL_ON=str(int(and_later)), **args.limits))
    os.close(say)
    with os.fdopen(said, "rb") as f:
        return done if f.read() == b"f" or all_the_same else None


def judge(name, done):
    """What is wrong with it, or nothing."""
    told = [line for line in done.stderr.splitlines() if line.startswith(f"{name}: ")]
    if done.returncode not in (0, 3):
        return f"exit status {done.returncode}: {done.stderr[-300:]}"
    if done.returncode == 3 and not told:
        return f"not a word: {done.stderr[-300:]}"
    if "wrote" in done.stderr:
        return done.stderr[-300:]
    return ""


def stopped_others(name, done, others):
    """The variants that have no row, though only another one had no memory; None: all memory."""
    short = re.search(rf"^{name}: (\S+): .*(out of memory|no \d+ bytes)", done.stderr, re.M)
    if not short or short[1] not in others:
        return None
    rows = [line.split()[0] for line in done.stdout.splitlines() if line[:1].strip("# ")]
    return [v for v in others if v != short[1] and v not in rows]


def check_others(tap, args, folder, pool):
    """A variant without memory says how much it wanted; the others run; exit 3."""
    name = os.path.basename(args.program)
    flags = SMALL + ["--no-check", "--dtype", "f16"] # rungs have copies, too
    rows = run(args, flags, 10 ** 9, False, folder, all_the_same=True).stdout.splitlines()
    others = [line.split()[0] for line in rows if line[:1].strip("# ")][1:]
    runs = [r for r in pool.map(lambda n: run(args, flags, n, False, folder), range(1, 250)) if r]
    told = [(r, stopped_others(name, r, others)) for r in runs]
    told = [(r, missing) for r, missing in told if missing is not None]
    tap.ok(len(others) > 1 and told and not any(missing for _, missing in told) and
           all(r.returncode == 3 for r, _ in told),
           f"{name}: the other variants run", [(r.returncode, missing) for r, missing in told][:5])
    wanted = r"out of memory.*, it asked for \d+(\.\d)? (bytes|MiB)$|no \d+ bytes"
    silent = [r.stderr for r, _ in told if not re.search(wanted, r.stderr, re.M)]
    # the tables of a rank, some hundred bytes, are not counted
    most = len(told) - 1 if name == "ring_burst" else 0
    tap.ok(told and len(silent) <= most, f"{name}: how much it wanted", silent[:3])


def check_pads(tap, program):
    """Workspace follows the number of queries: one row is not padded to a block of 192."""
    for variant in ("v2_packing", "v3_register_tiles", "v4_exp2", "v5_own_heads", "library"):
        peak = []
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows")
            for n in (1, 192):  # 201 heads: an odd number for 2 threads
                subprocess.run([program, "--device", "cpu", "-B", "67", "-H", "3",
                                "--seq-q", str(n), "--seq-kv", "1", "-d", "64", "--threads", "2",
                                "--variant", variant, "--no-check", "--json", path],
                               capture_output=True, check=True)
            with open(path) as f:
                peak = [json.loads(line)["peak_bytes"] for line in f]
        tap.ok(len(peak) == 2 and peak[0] * 2 < peak[1], f"{variant}: pads follow N", peak)


def check(tap, args, flags, last, and_later, folder, pool):
    name = os.path.basename(args.program)
    numbers = [*range(1, min(EACH, last)), *range(EACH, last, LEAP)]
    wrong, failed = [], 0
    for at in range(0, len(numbers), 4):
        four = numbers[at:at + 4]
        runs = list(pool.map(lambda n: run(args, flags, n, and_later, folder), four))
        for number, done in zip(four, runs):
            failed += done is not None
            if done is not None and judge(name, done):
                wrong.append(f"allocation {number}: {judge(name, done)}")
        if None in runs:
            break
    tap.ok(failed >= 5 and not wrong, f"{name} {' '.join(flags)}: "
           f"{'all from one allocation on fail' if and_later else 'one allocation fails'}",
           "\n".join([f"{failed} allocations failed"] + wrong[:9]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", required=True, type=str.split)
    parser.add_argument("program", type=os.path.abspath)
    args = parser.parse_args()
    end = end_of_own_code(args.program)
    args.limits = {"FAIL_END": end} if end else {}
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        args.preload = os.path.join(folder, "fail_alloc.so")
        built = subprocess.run(args.cc + ["-O1", "-fPIC", "-shared", "-o", args.preload,
                                          os.path.join(HERE, "so", "fail_alloc.c"), "-ldl"],
                               capture_output=True, text=True)
        if tap.ok(built.returncode == 0, "fail_alloc.c compiles", built.stderr):
            for flags, last in WAYS + MORE.get(os.path.basename(args.program), []):
                for and_later in (False, True) if "--trace" in flags else (False,):
                    check(tap, args, flags, last, and_later, folder, pool)
            check_others(tap, args, folder, pool)
            if os.path.basename(args.program) == "flash_backward":
                check_pads(tap, args.program)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
