#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Closes a test run with one line: `N passed, N failed[, N skipped]`.

usage: testsum.py RECORD...

RECORD is a meson-logs/testlog.json, or `ladder test`'s own record of its steps.

A TAP program counts each of its checks, any other program counts once. What Meson lets pass does
not pass here: a TAP program that exits 0 without a single check is a failure, so is one that
stopped short of its plan or crashed, so is a record file that is missing or empty, and so is any
`not ok`, whatever directive follows. Failed tests and the reasons of skipped ones are listed
before the closing line.
Exit status: 0 when something passed and nothing failed, else 1.
"""
import json
import pathlib
import re
import sys

import tool

CHECK = re.compile(r"^(not )?ok\b[^#\n]*(?:#[ \t]*(SKIP)\b[ \t]*([^\n]*))?", re.I | re.M)
PLAN_OF_NOTHING = re.compile(r"^1\.\.0[ \t]*(?:#[ \t]*SKIP\S*[ \t]*([^\n]*))?", re.I | re.M)
GOOD = ("OK", "EXPECTEDFAIL")


class Sum:
    """Counts over all records; failures and skips remember why."""

    def __init__(self):
        self.passed = 0
        self.failures = []
        self.skips = []

    def add(self, test):
        """One record of one test program: a dict with name, result, returncode and stdout."""
        name, result, text = test["name"], test["result"], test.get("stdout") or ""
        checks = list(CHECK.finditer(text))
        failed = sum(1 for c in checks if c[1])
        skips = [c[3] or "no reason given" for c in checks if c[2] and not c[1]]
        self.failures += [f"{name}: {c[0].strip()}" for c in checks if c[1]]
        self.skips += [f"{name}: {why}" for why in skips]
        self.passed += len(checks) - failed - len(skips)
        if result == "SKIP":
            self.add_skip(name, text, test.get("returncode"), checks)
        elif result not in GOOD:
            if not failed:  # crashed, timed out, or stopped short of its plan
                self.failures.append(f"{name}: {result.lower()}, {self.how(test)}")
        elif not checks:
            self.passed += 1

    def add_skip(self, name, text, returncode, checks):
        """A whole program that says it was skipped has to say why, or exit with 77."""
        nothing = PLAN_OF_NOTHING.search(text)
        if nothing:
            self.skips.append(f"{name}: {nothing[1] or 'no reason given'}")
        elif checks:  # every check of it was skipped, and counted above
            pass
        elif returncode == 0:
            self.failures.append(f"{name}: exited 0 without a single check")
        else:
            last = tool.lines_of(text.strip())
            self.skips.append(f"{name}: {last[-1] if last else 'exit status 77'}")

    @staticmethod
    def how(test):
        code = test.get("returncode")
        return f"exit status {code}" if code is None or code >= 0 else f"signal {-code}"

    def read(self, path):
        """All records of one file. A file that is not there was a run that did not happen."""
        try:
            lines = [x for x in tool.lines_of(pathlib.Path(path).read_text(encoding="utf-8")) if x]
            for line in lines:
                self.add(json.loads(line))
        except (OSError, *tool.MALFORMED) as error:
            self.failures.append(f"{path}: no readable record of a run ({error})")
            return
        if not lines:
            self.failures.append(f"{path}: a run without a single test")

    def closing_line(self):
        line = f"{self.passed} passed, {len(self.failures)} failed"
        return line + (f", {len(self.skips)} skipped" if self.skips else "")


def main(arguments):
    total = Sum()
    for path in arguments:
        total.read(path)
    for why in dict.fromkeys(total.skips):
        print(f"skipped  {why}")
    for why in total.failures:
        print(f"FAILED   {why}")
    print(total.closing_line())
    return 1 if total.failures or not total.passed else 0


if __name__ == "__main__":
    tool.end(lambda: main(sys.argv[1:]))
