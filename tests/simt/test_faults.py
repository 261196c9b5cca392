#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Planted faults: for each kind of finding a kernel that has it, and right ones beside them.

usage: test_faults.py SIMT_FAULTS

faults.cu says behind each name what must be reported and at which of its lines (/* line A */). A
right kernel must give no finding. Every report must be the same on a second run, name no line 0,
and name its rule.
"""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tap import Tap  # noqa: E402

SOURCE = (HERE / "faults.cu").read_text(encoding="utf-8")
EXPECTED = re.findall(r"FAULT\(([a-z_0-9]+), [^/]*/\* (.*?):? ?((?:[AB] ?)*)\*/", SOURCE)
EXPECTED += re.findall(r'"(\w+)"\) == 0\)\n[^/]*/\* (.*?): ()\*/', SOURCE)


def marked(name, letter):
    """The number of the line that is marked so in the kernel of that name."""
    start = SOURCE.index(f"void {name}(")
    mark = re.search(rf"/\* (?:line )?{letter} \*/", SOURCE[start:])
    return SOURCE.count("\n", 0, start + mark.start()) + 1


def run(program, name):
    environment = {**os.environ, "SIMT_CHECK": "1", "SIMT_SECONDS": "1"}
    return subprocess.run([program, name], env=environment, stdout=subprocess.PIPE, check=False,
                          stderr=subprocess.PIPE, text=True, timeout=100)


def main():
    tap, program = Tap(), sys.argv[1]
    for name, title, letters in EXPECTED:
        done = run(program, name)
        text = done.stderr
        if title == "none":
            tap.ok(done.returncode == 0 and "0 findings, 0 warnings" in text,
                   f"{name}: no finding", text)
            continue
        lines = [f"faults.cu:{marked(name, letter)}" for letter in letters.split()]
        blocks = re.split(r"(?m)^simt: ", text)
        hits = [b for b in blocks if b.startswith(title)]
        warning = title.startswith("warning")
        tap.ok(hits and done.returncode == (0 if warning else 1)
               and any(all(line in b for line in lines) for b in hits), f"{name}: {title}", text)
        tap.ok(re.search(r"faults\.cu:\d+|accepted|at most", text) and ":0:" not in text
               and "without a line" not in text, f"{name}: lines, and none of them 0", text)
        if title != "no progress":
            tap.ok(run(program, name).stderr == text, f"{name}: the same report again", text)
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
