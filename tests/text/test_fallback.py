#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_fallback.py: the stand-in for cmocka sees a failure (tests/unit/fallback/cmocka.h).

usage: test_fallback.py COMPILER...    one program: each assertion is a test of its own
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import Tap

FALLBACK = pathlib.Path(__file__).resolve().parents[1] / "unit" / "fallback"
PASS = ["assert_true(1)", "assert_int_equal(-1, -1)", "assert_false(0)", "assert_non_null(state)",
        "assert_null((void *)0)", "assert_in_range(3, 1, 3)", "assert_not_in_range(4, 1, 3)",
        "assert_not_in_range(0, 1, 3)",
        'assert_string_equal("a", "a")', 'assert_string_not_equal("a", "b")',
        'assert_memory_equal("ab", "ab", 2)', 'assert_memory_not_equal("ab", "ac", 2)',
        "assert_ptr_equal(state, state)", "assert_float_equal(1.0, 1.1, 0.2)",
        "assert_int_not_equal(1, 2)", 'print_message("hello\\n")']
FAIL = ["assert_true(0)", "assert_false(1)", "assert_int_equal(7, 8)", "assert_null(state)",
        "assert_non_null((void *)0)", "assert_in_range(4, 1, 3)", "assert_in_range(0, 1, 3)",
        "assert_not_in_range(3, 1, 3)", "assert_not_in_range(1, 1, 3)",
        'assert_string_equal("a", "b")', 'assert_string_not_equal("a", "a")',
        'assert_memory_equal("ab", "ac", 2)', 'assert_memory_not_equal("ab", "ab", 2)',
        "assert_ptr_equal(state, 0)", "assert_float_equal(1.0, 1.1, 0.05)",
        "assert_float_equal(NAN, 1.0, 9.0)", "assert_int_not_equal(2, 2)", 'fail_msg("no %d", 1)',
        "fail()"]


def run(compiler, folder, statements):
    """The tests' results by the lines of TAP, and the exit status."""
    source, program = f"{folder}/t.c", f"{folder}/t"
    tests = [f"static void t{n}(void **state) {{ (void)state; {statement}; }}\n"
             for n, statement in enumerate(statements)]
    listed = ", ".join(f"cmocka_unit_test(t{n})" for n in range(len(tests)))
    with open(source, "w", encoding="utf-8") as f:
        f.write("#include <cmocka.h>\n" + "".join(tests) + "int main(void)\n{\n"
                f"    const struct CMUnitTest tests[] = {{{listed}}};\n"
                "    return cmocka_run_group_tests(tests, NULL, NULL);\n}\n")
    subprocess.run([*compiler, "-w", f"-I{FALLBACK}", source, "-o", program, "-lm"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=20)
    return [line.startswith("ok") for line in done.stdout.split("\n")
            if line.startswith(("ok", "not ok"))], done.returncode


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        good, status = run(sys.argv[1:] or ["cc"], folder, PASS + FAIL)
    tap.ok(good[:len(PASS)] == [True] * len(PASS), "what is true passes", good)
    tap.ok(len(good) == len(PASS + FAIL) and status != 0, "failures are the exit status", status)
    for statement, passed in zip(FAIL, good[len(PASS):]):
        tap.ok(not passed, f"fails: {statement}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
