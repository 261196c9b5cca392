#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_trace.py: attn_trace: the first wrong state is named, and nothing else changes.

usage: test_trace.py BUILD

submissions/traced.c shows its states. Copies of it have one mistake each, or call attn_trace as
nobody should. Where this machine has no sandbox the tests run with --so-sandbox off.
"""
import pathlib
import re
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import test_grade
from tap import Tap
from test_grade import library

TRACED = HERE / "submissions" / "traced.c"
STEP = test_grade.RIGHT
NAME = r"after (batch \d+, head \d+, )?query tile (\d+), key tile (\d+): "
SIMPLE = ["-N 100 -d 16 --causal", "-N 77 -d 8"]
FORWARD = ["-B 2 -H 4 --kv-heads 2 -N 70 -d 16 --causal --dtype bf16",
           "-H 2 -N 61 -d 8 --window 20,3"]
CALL = "        attn_trace(i, j, m, l, O);\n"
# what is exchanged in traced.c, and the first state that is wrong (of the first case)
MISTAKES = [
    ("l is not rescaled", "*l = alpha * *l +", "*l = *l +", r"l of row \d+ is \S+, expected \S+"),
    ("O is not rescaled", "O[x] = alpha * O[x]", "O[x] = O[x]",
     r"O of row \d+, channel \d+ is \S+, expected \S+"),
    ("the last key of a tile is forgotten", "c < j * BC + BC &&", "c < j * BC + BC - 1 &&",
     r"[ml] of row \d+ is \S+, expected \S+"),
    ("m is never written back", "*m = m_new;", "", r"m of row 0 is -inf, expected \S+"),
    ("a tile is skipped", "for (int c = j * BC;", "for (int c = j * BC; j != 3 &&",
     r"[ml] of row (2[4-9]|3[01]) is"),
    ("O is NaN", "const int rows =", "const int rows = i == 2 ? (memset(O, 255, 64), 0) :",
     r"m of row 32 is \S+, expected"),
    ("lse has no m", "m[r] + logf", "logf", None),
    ("not divided", "&& l[r] > 0.0f; x++)", "&& 0; x++)", None),
]
# what stands in the place of CALL, in a wrong submission; what the report says of it
HOSTILE = [
    ("indexes that are none", "attn_trace(-1, 1 << 30, m, l, O);",
     "attn_trace(-1, 1073741824, ...), accepted are query tiles below 7"),
    ("key tiles that are none", "attn_trace(i, j + 100, m, l, O);", "key tiles below 13"),
    ("a head that is none", "attn_trace_begin(0, 7, BR, BC); attn_trace(i, j, m, l, O);",
     "query heads below 1"),
    ("tiles of no size", "attn_trace_begin(0, 0, 0, -3); attn_trace(i, j, m, l, O);",
     "tiles of 0 queries and -3 keys"),
    ("tiles that change", "attn_trace_begin(0, 0, BR, BC + j); attn_trace(i, j, m, l, O);",
     "after tiles of 16 x 8"),
    ("NaN", "float n[BR] = {NAN}; attn_trace(i, j, n, l, O);", "m of row 0 is nan, expected"),
    ("10^7 calls", "for (long n = 0; i + j == 0 && n < 10000000; n++) attn_trace(i, j, m, l, O);",
     "7084 states are right, and more are not looked at"),
    ("10^7 calls without a tile", "for (long n = 0; i + j == 0 && n < 10000000; n++) "
     "attn_trace(9, 0, m, l, O);", "query tiles below 7"),
    ("10^11 calls", "for (long n = 0; i + j == 0 && n < 100000000000; n++) "
     "attn_trace(i, j, m, l, O);", None),  # its own time
    ("no arrays", "attn_trace(i, j, 0, 0, 0);", "with its states recorded it crashed with SIGSEGV"),
]


def check_mistakes(tap, build, sandbox, folder):
    files, source = [], TRACED.read_text(encoding="utf-8")
    for number, (_, text, instead, _) in enumerate([("right", "", "", "")] + MISTAKES):
        files.append(folder / f"traced{number}.c")
        tap.ok(number == 0 or text in source, f"'{text}' is there")
        files[-1].write_text(source.replace(text, instead) if text else source, encoding="utf-8")
    files = [library(path) for path in files]
    for contract, cases in (("flash_simple", SIMPLE), ("flash_forward", FORWARD)):
        suite = test_grade.write_suite(folder / "suite", contract, cases)
        results, err = test_grade.graded(build, sandbox, suite, *files)
        if not tap.ok(len(results) == len(files), f"{contract}: graded", err):
            continue
        tap.ok(results[0]["score"] == len(cases) and
               all(test["trace"] == "" for test in results[0]["tests"]),
               f"{contract}: the right one gets all points, and no trace", results[0])
        for (name, _, _, words), result in zip(MISTAKES, results[1:]):
            wrong = [test for test in result["tests"] if test["status"] == "wrong"]
            said = [test["trace"] for test in wrong]
            tap.ok(wrong and all(re.match(NAME + "[mlO] of row" if words else
                                          r"all \d+ states are right: ", text) for text in said),
                   f"{contract}: {name}: a state in each wrong case", said)
            if words and said and contract == "flash_simple":
                tap.ok(re.match(NAME + words, said[0]), f"{name}: {words}", said)


def check_tile(tap, build, sandbox, folder):
    """The place and both numbers, of a mistake that can be counted."""
    path = folder / "ones.c"
    source = TRACED.read_text(encoding="utf-8")
    path.write_text(source.replace("*l = alpha * *l + expf(s - m_new);",
                                   "*l = alpha * *l + expf(s - m_new) + (COUNT == 1234);")
                    .replace("enum { BR", "static int count;\n#define COUNT ++count\nenum { BR"),
                    encoding="utf-8")
    suite = test_grade.write_suite(folder / "suite", "flash_simple", ["-N 100 -d 16"])
    results, err = test_grade.graded(build, sandbox, suite, library(path))
    said = results[0]["tests"][0]["trace"] if results else err
    # 16 rows x 8 keys a step, 13 steps of which the last has 4 keys: 1600 a tile of queries
    found = re.fullmatch(r"after query tile 0, key tile 9: l of row (\d+) is (\S+), expected (\S+)",
                         said)
    tap.ok(found and found[1] == "10" and
           abs(float(found[2]) - float(found[3]) - 1) < 1e-4, "the tile, the row, both numbers",
           said)
    status, out, err = test_grade.grade(build, sandbox, suite, path.with_suffix(".so"))
    tap.ok(status == 0 and f"           trace: {said}\n" in out, "the table shows it", out + err)
    hidden = folder / "hidden.suite"
    hidden.write_text("contract=flash_simple\nvisibility=hidden : -N 100 -d 16\n",
                      encoding="utf-8")
    results, err = test_grade.graded(build, sandbox, hidden, path.with_suffix(".so"))
    tap.ok(results and results[0]["tests"][0]["trace"] == "", "a hidden case shows no state", err)


def check_hostile(tap, build, sandbox, folder):
    wrong = TRACED.read_text(encoding="utf-8").replace("l[r] > 0.0f; x++", "0; x++")
    tap.ok(CALL in wrong, "the call is there")
    suite = folder / "suite"
    suite.write_text("contract=flash_simple time=1\n: -N 100 -d 16\n", encoding="utf-8")
    names, files = [], []
    for number, (name, call, _) in enumerate(HOSTILE):
        for kind, source in (("wrong", wrong), ("right", TRACED.read_text(encoding="utf-8"))):
            names.append((name, kind, number))
            files.append(folder / f"hostile{number}_{kind}.c")
            files[-1].write_text(source.replace(CALL, f"        {call}\n"), encoding="utf-8")
    files = [library(path) for path in files]
    begun = time.monotonic()
    results, err = test_grade.graded(build, sandbox, suite, *files)
    took = time.monotonic() - begun
    if not tap.ok(len(results) == len(files), "hostile callers are graded", err):
        return
    for (name, kind, number), result in zip(names, results):
        test = result["tests"][0]
        words = HOSTILE[number][2]
        said = words in test["trace"] if words and kind == "wrong" else test["trace"] == ""
        tap.ok(test["status"] == (kind if words else "time") and said, f"{name}, {kind}", test)
    tap.ok(took < 60, f"hostile callers took {took:.0f} s")


def check_step(tap, build, sandbox, folder):
    """The block step's own state is compared after every step: it needs no call."""
    source = STEP.read_text(encoding="utf-8")
    text = "*lse = both;"
    tap.ok(text in source, "the step's mistake can be made")
    path = folder / "step.c"
    path.write_text(source.replace(text, "*lse = s;"), encoding="utf-8")
    suite = test_grade.write_suite(folder / "suite", "sliding_window_step",
                                   ["-N 40 -d 8 --block-q 16 --block-kv 16 --order columns"])
    results, err = test_grade.graded(build, sandbox, suite, library(path))
    test = results[0]["tests"][0] if results else {"trace": err, "message": ""}
    found = re.fullmatch(NAME + r"global_lse of row (\d+) is \S+, expected \S+", test["trace"])
    place = re.search(r"block (\d+) of queries, block (\d+) of keys", test["message"])
    tap.ok(found and place and found.group(2, 3) == place.group(1, 2) and
           int(found[4]) // 16 == int(found[2]), "a block step: the first wrong row", test)
    tap.ok("O and lse below: after the last step" in test["message"],
           "... and what the report's arrays are of", test)


def main():
    tap = Tap()
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        probe = test_grade.write_suite(folder / "probe.suite", "flash_simple", ["-N 3 -d 2"])
        sandbox = "strict" if test_grade.grade(build, "strict", probe, STEP)[0] == 0 else "off"
        for check in (check_mistakes, check_tile, check_hostile, check_step):
            check(tap, build, sandbox, folder)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
