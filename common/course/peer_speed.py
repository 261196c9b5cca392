# SPDX-License-Identifier: MIT
"""peer_speed.py: how fast is a submission that the judge cannot time, a CUDA kernel for example?

A peer is a program that runs a submission and something of known speed on the same inputs,
turn by turn, and prints `speed X`, the submission's rate over that of the other:

    PROGRAM SUBMISSION.so FLAGS...      the flags of the case. Exit status 0 measured, 1 the
                                        submission is wrong, 77 the hardware is not here

bench.cu of assignment 6 is one (`of=cublas`). It runs the submission in its own process, without a
sandbox, so this is for a container that is thrown away. Nothing else runs meanwhile: all
submissions once, then all again, so that a noisy minute does not fall on one of them.

Interface:
- measure(program, case, libraries, seconds) -> {library: (rate, status, sentence)}: rate is the
  median of ROUNDS; without one, status is wrong, crashed, time or skipped, and sentence says why.
"""
import re
import statistics
import subprocess

ROUNDS = 5
SPEED = re.compile(r"^\s*speed\s+([0-9]+(?:\.[0-9]+)?)\b", re.M)


def once(program, library, flags, seconds):
    """(rate, status, sentence) of one run."""
    try:
        run = subprocess.run([str(program), str(library), *flags], capture_output=True, text=True,
                             errors="replace", timeout=seconds, stdin=subprocess.DEVNULL,
                             check=False)
    except subprocess.TimeoutExpired:
        return None, "time", f"its speed was not measured within {seconds:g} s"
    except OSError as why:
        return None, "skipped", f"{program} cannot be run ({why.strerror})"
    said = (run.stderr.strip() or "it said nothing").split("\n")[-1]
    found = SPEED.findall(run.stdout)
    if run.returncode == 0 and found:
        return float(found[-1]), "right", ""
    if run.returncode < 0:
        return None, "crashed", f"it crashed with signal {-run.returncode} while it was timed"
    if run.returncode == 1:
        return None, "wrong", f"it was wrong while it was timed: {said}"
    return None, "skipped", f"{program.name} cannot measure here: {said}"


def measure(program, case, libraries, seconds):
    rates = {library: [] for library in libraries}
    failed = {}
    for _ in range(ROUNDS):
        for library in libraries:
            if library in failed:
                continue
            rate, status, sentence = once(program, library, case.flags, seconds)
            if status == "right":
                rates[library].append(rate)
            else:
                failed[library] = None, status, sentence
    return {library: failed.get(library) or (statistics.median(rates[library]), "right", "")
            for library in libraries}
