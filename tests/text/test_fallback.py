#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_fallback.py: the stand-in for cmocka sees a failure (tests/unit/fallback/cmocka.h).

usage: test_fallback.py COMPILER...    compiles programs with one assertion each and runs them
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import Tap

FALLBACK = pathlib.Path(__file__).resolve().parents[1] / "unit" / "fallback"
PROGRAM = """
#include <cmocka.h>
static void first(void **state) { (void)state; assert_true(1); }
static void second(void **state) { (void)state; %s; }
static void third(void **state) { (void)state; assert_int_equal(-1, -1); }
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(first), cmocka_unit_test(second),
                                       cmocka_unit_test(third)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
"""
PASS = ["assert_int_equal(7, 7)", "assert_false(0)", "assert_non_null(state)",
        "assert_null((void *)0)", "assert_in_range(3, 1, 3)", "assert_not_in_range(4, 1, 3)",
        'assert_string_equal("a", "a")',
        'assert_memory_equal("ab", "ab", 2)', "assert_float_equal(1.0, 1.1, 0.2)",
        "assert_int_not_equal(1, 2)", "print_message(\"hello\\n\")"]
FAIL = ["assert_true(0)", "assert_false(1)", "assert_int_equal(7, 8)", "assert_null(state)",
        "assert_non_null((void *)0)", "assert_in_range(4, 1, 3)", "assert_not_in_range(3, 1, 3)",
        'assert_string_equal("a", "b")', 'assert_memory_equal("ab", "ac", 2)',
        "assert_float_equal(1.0, 1.1, 0.05)", "assert_float_equal(NAN, 1.0, 9.0)",
        "assert_int_not_equal(2, 2)", 'fail_msg("no %d", 1)', "fail()"]


def result(compiler, folder, statement):
    """(did the middle test pass, how many results, did the exit status say the same)"""
    source, program = folder / "t.c", folder / "t"
    source.write_text(PROGRAM % statement, encoding="utf-8")
    command = [*compiler, "-w", f"-I{FALLBACK}", str(source), "-o", str(program), "-lm"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        return made.stderr
    run = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=20)
    lines = [x for x in run.stdout.splitlines() if x.startswith(("ok", "not ok"))]
    return lines[1:2] == ["ok 2 - second"], len(lines), run.returncode == 0


def main():
    tap = Tap()
    compiler = sys.argv[1:] or ["cc"]
    with tempfile.TemporaryDirectory() as folder:
        for statement in PASS:
            found = result(compiler, pathlib.Path(folder), statement)
            tap.ok(found == (True, 3, True), f"passes: {statement}", found)
        for statement in FAIL:
            found = result(compiler, pathlib.Path(folder), statement)
            tap.ok(found == (False, 3, False), f"fails: {statement}", found)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
