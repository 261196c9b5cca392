#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_tap.py: does tests/tap.py fail when it should? Written without it: its own word would prove
nothing. Each program below runs in a process of its own; its output and its status are compared.
"""
import os
import subprocess
import sys

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
START = "import sys; sys.path.insert(0, sys.argv[1]); from tap import Tap; t = Tap(); "

# name, program, exit status, all of stdout
PROGRAMS = [
    ("a right check passes", "t.ok(True, 'a', 'hidden'); sys.exit(t.done())", 0,
     "ok 1 - a\n1..1\n"),
    ("a wrong check fails the program",
     "t.ok(True, 'a'); t.ok(False, 'b', 'why\\nso'); t.ok(1, 'c'); sys.exit(t.done())", 1,
     "ok 1 - a\nnot ok 2 - b\n# why\n# so\nok 3 - c\n1..3\n"),
    ("ok returns its condition as a bool",
     "r = [t.ok([], 'a'), t.ok([0], 'b')]; assert r == [False, True], r; sys.exit(t.done())", 1,
     "not ok 1 - a\nok 2 - b\n1..2\n"),
    ("a name cannot hold a directive", "t.ok(False, 'a # SKIP'); sys.exit(t.done())", 1,
     "not ok 1 - a no. SKIP\n1..1\n"),
    ("a program that checks nothing fails", "sys.exit(t.done())", 1,
     "not ok 1 - at least one check ran\n1..1\n"),
    ("a skip is no failure", "t.skip('a', 'no GPU'); sys.exit(t.done())", 0,
     "ok 1 - a # SKIP no GPU\n1..1\n"),
    ("skip_all", "sys.exit(t.skip_all('no GPU'))", 0, "1..0 # SKIP no GPU\n"),
    ("skip_all cannot hide results", "t.ok(False, 'a'); sys.exit(t.skip_all('no GPU'))", 1,
     "not ok 1 - a\n"),
]


def main():
    failed = 0
    for number, (name, program, status, text) in enumerate(PROGRAMS, 1):
        done = subprocess.run([sys.executable, "-c", START + program, TESTS], capture_output=True,
                              text=True, timeout=60)
        good = done.returncode == status and done.stdout == text
        failed += not good
        print(f"{'ok' if good else 'not ok'} {number} - {name}")
        if not good:
            print(f"# status {done.returncode}, stdout {done.stdout!r}, stderr {done.stderr!r}")
    print(f"1..{len(PROGRAMS)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
