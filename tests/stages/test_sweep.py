#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_sweep.py: every variant of a stage on every case of cases.py, judged by the stage program.

    test_sweep.py PROGRAM [--backward[=always]] [--device cpu|cuda] [--only GROUP]
                  [--variant NAME] [--flags="--deterministic ..."]

--flags goes in front of every case. A variant alone gets the cases of its dtypes.

The program decides with its oracle; this test makes sure that the decision was really taken: a row
of the report for each case and each variant, none skipped without a known reason, `pass` true,
worst error below its bound. A failing case is printed so that it can be pasted behind the
program's name.
"""
import argparse
import concurrent.futures
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import cases
import npyfile
from tap import Tap

RUNGS = {}  # {variant: device} of those that take the plain problem only


def answers(variant, line):
    """Which variants have to answer a case in a dtype that they take: all, rungs the plain ones.
    Another stage's sweep puts its own rule here; a variant that is missing against the rule fails,
    and one too many."""
    if variant not in RUNGS:
        return True
    return cases.is_plain(line, RUNGS[variant])


BATCH = 60  # cases a process: small enough to share two cores evenly


def variants_of(program, device, backward=False, cases=("any", "full")):
    """Names of --list that run on the device, each with the dtypes that it says it takes; backward:
    only those with a backward pass. cases: what they take, as --list says it; a rung that is "full"
    takes all that the lines of cases.py ask for."""
    out = subprocess.run([program, "--list"], capture_output=True, text=True, timeout=60)
    rows = [line.split() for line in out.stdout.splitlines()]
    return {row[0]: row[2].split(",") for row in rows
            if len(row) > 4 and row[1] == device and row[4] in cases and
            (not backward or "backward" in row[3])}


def has_device(program, device):
    """The programs exit with 77 when the hardware that was asked for is not here."""
    tiny = [program, "--device", device, "-N", "1", "-H", "1", "-d", "1", "--quiet"]
    return subprocess.run(tiny, capture_output=True, timeout=120).returncode != 77


# --backward, or --backward=always for a program that has no other pass
BACKWARD = {"nargs": "?", "const": True, "default": False, "choices": ("always",)}
WRONG = {"nargs": 2, "metavar": ("BUILD", "PATCHES")}


def limit(seconds):
    return {"type": float, "default": seconds, "help": "limit of one process"}


def begin(**flags):
    """Arguments of a test of one program on one device, and its Tap; the end where that device is
    not here. flags: what is asked for beside, by its default or as add_argument takes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    for name, flag in flags.items():
        flag = flag if isinstance(flag, dict) else {"default": flag, "type": type(flag)}
        parser.add_argument("--" + name, **flag)
    args, tap = parser.parse_args(), Tap()
    if not has_device(args.program, args.device):
        sys.exit(tap.skip_all(f"no {args.device} device here"))
    return args, tap


def side_by_side(tap, threads, calls):
    """calls: (function, arguments...); each gives a list of what Tap.ok takes."""
    with concurrent.futures.ThreadPoolExecutor(min(threads, os.cpu_count() or 1)) as pool:
        for future in [pool.submit(*call) for call in calls]:
            for result in future.result():
                tap.ok(*result)


def run_batch(args, lines):
    """Exit status, report rows by seed, and what the program said on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        case_file, report = os.path.join(folder, "cases"), os.path.join(folder, "report.jsonl")
        with open(case_file, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        command = [args.program, "--device", args.device, "--variant", args.variant, "--quiet",
                   *args.flags.split(), "--cases", case_file, "--json", report]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds,
                                  errors="backslashreplace")
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            status, said = "time-out", ""
        rows = {}
        if os.path.exists(report):
            with open(report, encoding="utf-8") as f:
                for line in f:
                    row = json.loads(line)
                    rows.setdefault(row["seed"], []).append(row)
        return status, rows, said


def seed_of(line):
    words = line.split()
    return int(words[words.index("--seed") + 1])


def fault_of_row(row):
    """What is wrong with a report row; "" when nothing is."""
    ratio = row.get("bound_ratio")
    if row.get("pass") is not True:
        return f"pass is {row.get('pass')}, bound_ratio {ratio}, nonfinite {row.get('nonfinite')}"
    if not isinstance(ratio, (int, float)) or not 0 <= ratio < 1:
        return f"bound_ratio {ratio}"
    if row.get("nonfinite") != 0:
        return f"{row.get('nonfinite')} values non-finite against the oracle"
    if row.get("failure") != "":  # workspace that was not freed is told here
        return f"failure: {row.get('failure')}"
    if not isinstance(row.get("peak_bytes"), int) or row["peak_bytes"] < 0:
        return f"peak_bytes {row.get('peak_bytes')}"
    return ""


def faults_of_case(line, rows, variants, always=False):
    found = sorted(row["variant"] for row in rows)
    dtype = dtype_of(line)
    expected = sorted(v for v in variants if dtype in variants[v] and answers(v, line))
    faults = [] if found == expected else [f"rows of {found}, expected {expected}"]
    for row in rows:
        words = line.split()
        given = dict(zip(words, words[1:]))
        for flag, key in (("--seq-q", "Nq"), ("--seq-kv", "Nk"), ("-d", "d"), ("-H", "H"),
                          ("--kv-heads", "Hkv"), ("-B", "B"), ("--dtype", "dtype"),
                          ("--mask", "mask"), ("--strides", "strides"), ("--dist", "dist"),
                          ("--softcap", "softcap"), ("--threads", "threads")):
            if flag in given and str(row.get(key)) != given[flag]:
                faults.append(f"{row['variant']}: the report says {key} = {row.get(key)}")
        if bool(row.get("backward")) != (always or "--backward" in words):
            faults.append(f"{row['variant']}: the report says backward = {row.get('backward')}")
        fault = fault_of_row(row)
        if fault:
            faults.append(f"{row['variant']}: {fault}")
    return faults


def dtype_of(line):
    words = line.split()
    return words[words.index("--dtype") + 1] if "--dtype" in words else "f32"


def start_group(args, variants, lines, pool):
    """Those of the lines that are answered, and their batches with what comes of each. All groups
    start before the first is judged, so that a machine of many cores has work for all."""
    taken = {dtype for dtypes in variants.values() for dtype in dtypes}
    lines = [line for line in lines if dtype_of(line) in taken]
    if args.variant != "all":
        lines = [line for line in lines if answers(args.variant, line)]
    batches = [lines[k:k + BATCH] for k in range(0, len(lines), BATCH)]
    return lines, zip(batches, pool.map(lambda b: run_batch(args, b), batches))


def judge_groups(tap, args, variants, groups, pool):
    """groups: {name: lines}"""
    started = [(name, *start_group(args, variants, lines, pool)) for name, lines in groups.items()]
    for name, lines, results in started:
        if lines:
            judge_group(tap, args, variants, name, lines, results)


def judge_group(tap, args, variants, name, lines, results):
    bad, worst = [], 0.0
    for batch, (status, rows, said) in results:
        before = len(bad)
        for line in batch:
            mine = rows.get(seed_of(line), [])
            faults = faults_of_case(line, mine, variants, args.backward == "always")
            if faults:
                bad.append(f"{args.program} {line}\n" + "\n".join("    " + f for f in faults))
            worst = max([worst] + [r["bound_ratio"] for r in mine
                                   if isinstance(r.get("bound_ratio"), (int, float))])
        if status != 0:
            bad.append(f"exit status {status}\n{said[-1500:]}")
        elif len(bad) > before:
            bad.append("exit status 0 although a case is faulty")
    tap.ok(not bad, f"{name}: {len(lines)} cases x {len(variants)} variants, "
           f"worst error {worst:.2f} of its bound", "\n".join(bad[:8]))


def gauss_like(count, salt):
    """Plain numbers in about -2..2 with spread: a multiplicative hash, no library."""
    return [((k * 2654435761 + salt * 40503) % 65536) / 16384.0 - 2.0 for k in range(count)]


def nonfinite_cases(folder):
    """Files with one NaN, +Inf or -Inf value. It must reach each row that sees it, and the checker
    compares with the oracle by bit pattern: where that says finite, finite it has to be. And files
    in which the first keys make every score -Inf: causal rows that see no other are empty rows."""
    heads, n, d = 2, 40, 8
    shape = (1, n, heads, d)
    at = (20 * heads + 1) * d + 3  # token 20, head 1, channel 3
    plain = {t: gauss_like(n * heads * d, salt) for salt, t in enumerate(("q", "k", "v"))}
    kinds = {}
    for label, value in (("nan", math.nan), ("inf", math.inf), ("minus_inf", -math.inf)):
        for tensor in ("q", "k", "v"):
            changed = plain[tensor][:at] + [value] + plain[tensor][at + 1:]
            kinds[f"{label}_{tensor}"] = dict(plain, **{tensor: changed})
    kinds["minus_inf_scores"] = dict(
        plain, q=[abs(x) + 0.1 if k % d == 3 else x for k, x in enumerate(plain["q"])],
        k=[-math.inf if k < 5 * heads * d and k % d == 3 else x
           for k, x in enumerate(plain["k"])])
    seed = 9000
    for label, tensors in kinds.items():
        paths = {t: os.path.join(folder, f"{label}_{t}.npy") for t in tensors}
        for t, values in tensors.items():
            npyfile.write(paths[t], shape, values)
        for mask in ("none", "causal-lower-right"):
            seed += 1
            files = " ".join(f"--{t} {path}" for t, path in paths.items())
            yield f"{files} --mask {mask} --seed {seed}"


def judge_nonfinite(tap, args, variants, pool):
    """Here `nonfinite` counts disagreements about finiteness, and there must be none."""
    with tempfile.TemporaryDirectory() as folder:
        lines = list(nonfinite_cases(folder))
        judge_groups(tap, args, variants, {"NaN or Inf in Q, K or V": lines}, pool)


def judge_too_wide(tap, args, variants):
    """A GPU takes heads of 256 channels: one more is bad usage, not a wrong answer."""
    answers = {}
    for name in ["all"] + list(variants):
        dtype = variants.get(name, ["f32"])[0]
        done = subprocess.run([args.program, "--device", "cuda", "--variant", name, "-N", "9",
                               "-H", "1", "-d", "257", "--dtype", dtype], capture_output=True,
                              text=True, timeout=120)
        answers[name] = (done.returncode, done.stdout, done.stderr.count("257"))
    tap.ok(all(answer == (2, "", 1) for answer in answers.values()),
           "--device cuda -d 257 is refused", answers)


def test_the_judge(tap):
    """The functions above must object to every kind of bad row before they judge real ones."""
    good = {"variant": "v", "pass": True, "bound_ratio": 0.5, "nonfinite": 0, "failure": "",
            "peak_bytes": 0, "d": 8, "backward": False}
    for change in ({"pass": None}, {"pass": False}, {"pass": 1}, {"bound_ratio": None},
                   {"bound_ratio": 1.0}, {"bound_ratio": math.nan}, {"bound_ratio": -1},
                   {"nonfinite": 1}, {"nonfinite": None}, {"failure": "leak"},
                   {"peak_bytes": None}, {"d": 9}, {"backward": True}):
        if not faults_of_case("-d 8 --seed 1", [dict(good, **change)], {"v": ["f32"]}):
            tap.ok(False, f"a row with {change} is refused")
            return
    tap.ok(not faults_of_case("-d 8 --seed 1", [good], {"v": ["f32"]}) and
           faults_of_case("-d 8 --seed 1", [], {"v": ["f32"]}) and
           faults_of_case("-d 8 --seed 1", [good, good], {"v": ["f32"]}) and
           faults_of_case("-d 8 --seed 1 --dtype f16", [good], {"v": ["f32"]}) and
           faults_of_case("-d 8 --seed 1", [good], {"v": ["f32"]}, always=True),
           "bad, missing, doubled and unexpected rows are refused, a good one is not")


def main():
    args, tap = begin(backward=BACKWARD, only="", variant="all", flags="", seconds=limit(240))
    test_the_judge(tap)
    rungs = variants_of(args.program, args.device, cases=("plain",))
    RUNGS.update((name, args.device) for name in rungs)
    variants = {**rungs, **variants_of(args.program, args.device)}
    if args.variant != "all":
        variants = {args.variant: variants[args.variant]}
    tap.ok(variants, f"--list names variants for {args.device}: {' '.join(variants)}")
    shard = os.environ.get("ATTN_TEST_EXHAUSTIVE")
    with concurrent.futures.ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        if shard:
            source = cases.exhaustive(args.backward, shard)
            while True:
                lines = [line for _, line in zip(range(20 * BATCH), source)]
                if not lines:
                    break
                judge_groups(tap, args, variants, {f"exhaustive up to {lines[-1]}": lines}, pool)
        else:
            groups = cases.sweep(args.backward, bool(os.environ.get("ATTN_TEST_QUICK")))
            judge_groups(tap, args, variants,
                         {name: lines for name, lines in groups.items() if args.only in name and
                          (RUNGS or not name.startswith("plain"))}, pool)
        if args.only in "nonfinite":
            judge_nonfinite(tap, args, variants, pool)
    if args.device == "cuda":
        judge_too_wide(tap, args, variants)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
