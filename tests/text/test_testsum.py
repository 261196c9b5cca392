#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_testsum.py: the program that counts the others is counted out with made-up records."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import Tap

TOOL = pathlib.Path(__file__).resolve().parents[2] / "common" / "tools" / "testsum.py"


def record(result, stdout="", returncode=0, name="unit / x"):
    return {"name": name, "result": result, "stdout": stdout, "returncode": returncode}


# what is counted: records, closing line, exit status, a word that must stand in the explanation
RUNS = [
    ("three checks", [record("OK", "ok 1 - a\nok 2 - b\nok 3 - c\n1..3\n")],
     "3 passed, 0 failed", 0, ""),
    ("a program without TAP", [record("OK", "fine\n")], "1 passed, 0 failed", 0, ""),
    ("a failing check", [record("FAIL", "ok 1 - a\nnot ok 2 - b\n1..2\n", 1)],
     "1 passed, 1 failed", 1, "not ok 2 - b"),
    ("a failing check that exits 0", [record("OK", "not ok 1 - b\n1..1\n")],
     "0 passed, 1 failed", 1, "not ok 1"),
    ("a failing program without TAP", [record("FAIL", "", 3)],
     "0 passed, 1 failed", 1, "exit status 3"),
    ("a crash half way", [record("ERROR", "ok 1 - a\n", -11)],
     "1 passed, 1 failed", 1, "signal 11"),
    ("short of its plan", [record("ERROR", "1..3\nok 1 - a\nok 2 - b\n")],
     "2 passed, 1 failed", 1, ""),
    ("a time-out", [record("TIMEOUT", "", -15)], "0 passed, 1 failed", 1, "timeout"),
    ("an unexpected pass", [record("UNEXPECTEDPASS", "")], "0 passed, 1 failed", 1, ""),
    ("an interrupt", [record("INTERRUPT", "")], "0 passed, 1 failed", 1, ""),
    ("a result of a later Meson", [record("PUZZLED", "ok 1 - a\n")],
     "1 passed, 1 failed", 1, "puzzled"),
    ("empty TAP program", [record("SKIP", ""), record("OK", "ok 1 - a\n1..1\n")],
     "1 passed, 1 failed", 1, "without a single check"),
    ("TAP program with comments only", [record("SKIP", "# hello\n")],
     "0 passed, 1 failed", 1, "without a single check"),
    ("whole program skipped", [record("SKIP", "1..0 # SKIP no GPU\n"), record("OK", "ok 1 - a\n")],
     "1 passed, 0 failed, 1 skipped", 0, "no GPU"),
    ("exit status 77", [record("SKIP", "no CUDA device\n", 77), record("OK", "")],
     "1 passed, 0 failed, 1 skipped", 0, "no CUDA device"),
    ("one check skipped", [record("OK", "ok 1 - a\nok 2 - b # SKIP no nvcc\n1..2\n")],
     "1 passed, 0 failed, 1 skipped", 0, "no nvcc"),
    ("all checks skipped", [record("SKIP", "ok 1 - a # SKIP no nvcc\n1..1\n")],
     "0 passed, 0 failed, 1 skipped", 1, "no nvcc"),
    ("a failure dressed as a skip", [record("OK", "not ok 1 - a # SKIP sorry\nok 2\n")],
     "1 passed, 1 failed", 1, ""),
    ("a failure announced as work to come", [record("OK", "not ok 1 - a # TO" "DO later\nok 2\n")],
     "1 passed, 1 failed", 1, ""),
    ("words that only look like checks",
     [record("OK", "okay\nnot okay\n# ok 1 - no\n   ok 1 - no\n")],
     "1 passed, 0 failed", 0, ""),
    ("no tests", [], "0 passed, 1 failed", 1, "without a single test"),
]


def run(paths):
    done = subprocess.run([sys.executable, str(TOOL), *map(str, paths)], capture_output=True,
                          text=True, check=False)
    lines = done.stdout.splitlines() or [""]
    return lines[-1], done.returncode, done.stdout + done.stderr


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "testlog.json"
        for name, records, line, status, word in RUNS:
            path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
            found, returned, text = run([path])
            tap.ok(found == line and returned == status and word in text, name,
                   f"wanted {line!r}, {status}, {word!r}; found exit status {returned} and\n{text}")
        path.write_text(json.dumps(record("OK", "ok 1 - a\n")) + "\n", encoding="utf-8")
        found, returned, text = run([path, path])
        tap.ok((found, returned) == ("2 passed, 0 failed", 0), "two files add up", text)
        found, returned, text = run([path, folder + "/absent.json"])
        tap.ok((found, returned) == ("1 passed, 1 failed", 1), "a missing file is a failure", text)
        for broken in ("{broken\n", "{}\n"):
            path.write_text(broken, encoding="utf-8")
            found, returned, text = run([path])
            tap.ok((found, returned) == ("0 passed, 1 failed", 1), "a broken file is a failure",
                   text)
        found, returned, text = run([])
        tap.ok((found, returned) == ("0 passed, 0 failed", 1), "nothing ran: not green", text)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
