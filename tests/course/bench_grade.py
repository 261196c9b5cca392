#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench_grade.py: how long does a class of 80 submissions take on a suite of 20 cases?

usage: bench_grade.py BUILD [SUBMISSIONS]

No test: it measures. The submissions are right.c and copies of it with the mistakes of
test_grade.py, and one that hangs in half of the cases. Prints the times with and without that one,
and how many results are not what they must be. The aim is 3 minutes on 2 processors.
"""
import os
import pathlib
import sys
import tempfile
import time

import test_grade

SIZES = ((3, 2), (1, 8), (77, 19), (301, 64), (333, 64), (333, 32), (257, 128), (401, 32),
         (129, 64), (500, 16))
CASES = [f"-N {n} -d {d}{causal}" for n, d in SIZES for causal in ("", " --causal")]
HANGS = ("for (int i = 0; i < N; i++) {\n        float m = -INFINITY, l = 0.0f;\n        "
         "float *O_i",
         "for (; causal;)\n        ;\n    for (int i = 0; i < N; i++) {\n        "
         "float m = -INFINITY, l = 0.0f;\n        float *O_i")


def make_submissions(folder, count):
    source = test_grade.RIGHT.read_text(encoding="utf-8")
    mistakes = [None, *test_grade.CONTRACTS["flash_simple"][1]]
    files = []
    for number in range(count):
        mistake = mistakes[number % len(mistakes)]
        text = source.replace(mistake[1], mistake[2]) if mistake else source
        files.append(folder / f"{number:03}.c")
        files[-1].write_text(f"/* {number} */\n{text}", encoding="utf-8")
    return files


def measure(build, suite, files):
    begun = time.monotonic()
    results, err = test_grade.graded(build, "strict", suite, *files)
    took = time.monotonic() - begun
    kinds = len(test_grade.CONTRACTS["flash_simple"][1]) + 1
    odd = sum((result["score"] == result["max_score"]) != (number % kinds == 0)
              for number, result in enumerate(results))
    return took, odd, err


def main():
    build = pathlib.Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 80
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        suite = test_grade.write_suite(folder / "bench.suite", "flash_simple", CASES)
        files = make_submissions(folder, count)
        took, odd, err = measure(build, suite, files)
        print(f"{count} submissions, {len(CASES)} cases, {len(os.sched_getaffinity(0))} "
              f"processors: {took:.0f} s; {odd} results are not as they must be {err}")
        text = files[1].read_text(encoding="utf-8")
        assert HANGS[0] in text
        files[1].write_text(text.replace(*HANGS), encoding="utf-8")
        took, odd, err = measure(build, suite, files)
        print(f"with one of them hanging in {len(CASES) // 2} cases: {took:.0f} s; {odd} results "
              f"are not as they must be {err}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
