#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_reading.py: what a rung costs to read stays within the budgets.

common/tools/reading.py measures and has the budgets; in reading_limits.txt stands every exception
from them with its reason. That it measures as it did, docs/reading.md shows: docs_drift.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, os.path.join(HERE, "..", "..", "common", "tools"))
import reading
import tree
from tap import Tap

LIMITS = os.path.join(HERE, "reading_limits.txt")
MOST_EXCEPTIONS = 5


def read_limits():
    """{(stage, device, rung): ((files, lines, added, own), reason)}; "-": no limit of its own."""
    limits = {}
    with open(LIMITS, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                stage, device, name, *figures, reason = line.split(maxsplit=7)
                limits[stage, device, name] = ([int(f) if f != "-" else None for f in figures],
                                               reason.strip())
    return limits


def check_rung(tap, root, rung, limits):
    got, budget = reading.measure(root, rung), reading.budget(root, rung)
    name = f"{rung.stage[:2]} {rung.device} {rung.name}"
    own, reason = limits.pop((rung.stage[:2], rung.device, rung.name), ([None] * 4, ""))
    bad = []
    least = own.pop()
    wanted = reading.MIN_OWN if least is None else least
    if reading.has_steps(rung) and got.own is not None and got.own < wanted:
        bad.append(f"{got.own} % of what it adds stand in its own file, {wanted} are asked for")
    if least is not None and got.own >= reading.MIN_OWN:
        bad.append(f"{got.own} % need no exception: write - in {os.path.basename(LIMITS)}")
    for what, is_now, allowed, exception in zip(("files", "lines of code", "lines added"), got,
                                                budget, own):
        limit = allowed if exception is None else exception
        if is_now is not None and limit is not None and is_now > limit:
            bad.append(f"{is_now} {what}, {limit} are accepted")
        if exception is not None and (is_now is None or allowed is None or is_now <= allowed):
            bad.append(f"{is_now} {what} need no exception: write - in {os.path.basename(LIMITS)}")
    if (rung.stage[:2] in reading.STEPS_IN and not rung.name.startswith("v0_") and
            not got.predecessor):
        bad.append("the comment at its head names no lower rung (v<number>) as its predecessor")
    files = [str(file.relative_to(root)) for file in reading.closure(root, rung.path)]
    tap.ok(not bad, f"{name}: {got.files} files, {got.lines} lines, {got.added} added",
           "\n".join([*bad, f"it reads {' '.join(files)}"]))
    return reason


def main():
    tap = Tap()
    root, limits = tree.ROOT, read_limits()
    tap.ok(all(any(figures) and reason for figures, reason in limits.values()),
           "every exception has a figure and a reason")
    tap.ok(len(limits) <= MOST_EXCEPTIONS, f"{len(limits)} exceptions, {MOST_EXCEPTIONS} at most")
    for rung in reading.rungs(root):
        check_rung(tap, root, rung, limits)
    tap.ok(not limits, "every exception is a rung's", f"remove from {LIMITS}: {list(limits)}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
