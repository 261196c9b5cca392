#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_suite.py: suites are read as they are written, keys draw the same choices every time, and
what is wrong in a suite is named with its file and line."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common",
                                "course"))
import suite as suites
from tap import Tap

TOOL = pathlib.Path(suites.__file__).resolve()
GOOD = """# a comment

contract=flash_simple time=2.5 memory=512 threads=2 key=optional all=causal,long
points=5 name="tiny : x" : -N 3 -d 2
  points=2.5 group=causal visibility=after_due_date name="causal, long" : -N 333 -d 64 --causal
group=long : -N 500 --dist 'large'
perf=0.4 of=sgemm name=fast points=0 visibility=hidden : -N 1024 --seed 7
"""
HEADER = "contract=flash_simple\n"
TEMPLATE = (HEADER + "name=a : -N {301..699..2} -d {32|64|128}\n"
            "name=b : -N {301..699..2} -d {32|64|128}\n"
            "name=c : -N {300..100000} --seed 3\n")

# text, whether there is a key, words that the sentence must hold
BAD = [
    ("", False, ("S: ", "no header")),
    ("# nothing\n", False, ("S: ", "no header")),
    ("time=5\n : -N 3\n", False, ("S:1: ", "contract=")),
    ("contract=flash\n : -N 3\n", False, ("S:1: ", "'flash'", "flash_simple")),
    ("\n\ncontract=flash_simple time=0\n : -N 3\n", False, ("S:3: ", "time", "'0'")),
    ("contract=flash_simple time=nan\n : -N 3\n", False, ("S:1: ", "time", "'nan'")),
    ("contract=flash_simple memory=1.5\n : -N 3\n", False, ("S:1: ", "memory", "'1.5'")),
    ("contract=flash_simple colour=red\n : -N 3\n", False, ("S:1: ", "'colour'")),
    ("contract=flash_simple time=1 time=2\n : -N 3\n", False, ("S:1: ", "twice")),
    ("contract=flash_simple all=rest\n : -N 3\n", False, ("S:1: ", "'rest'")),
    ("contract=flash_simple key=maybe\n : -N 3\n", False, ("S:1: ", "'maybe'", "required")),
    (HEADER, False, ("S:1: ", "no case")),
    (HEADER + "points=3 -N 5\n", False, ("S:2: ", "' : '")),
    (HEADER + "points=-1 : -N 5\n", False, ("S:2: ", "points", "'-1'")),
    (HEADER + "points=0 : -N 5\n", False, ("S:1: ", "0 points")),
    (HEADER + "visibility=secret : -N 5\n", False, ("S:2: ", "'secret'", "after_published")),
    (HEADER + "name=\"open : -N 5\n", False, ("S:2: ", "name")),
    (HEADER + "points : -N 5\n", False, ("S:2: ", "'points'")),
    (HEADER + ": -N 'five\n", False, ("S:2: ", "quote")),
    (HEADER + "name=a : -N 5\nname=a : -N 6\n", False, ("S:3: ", "'a'", "line 2")),
    (HEADER + "perf=0.4 : -N 5\n", False, ("S:2: ", "perf= and of=")),
    (HEADER + "perf=0.4 of=mkl : -N 5\n", False, ("S:2: ", "'mkl'", "sgemm")),
    (HEADER + "perf=0.4,0.4 of=sgemm : -N 5\n", False, ("S:2: ", "'0.4,0.4'", "rise")),
    (HEADER + "perf=0.4, of=sgemm : -N 5\n", False, ("S:2: ", "'0.4,'", "rise")),
    (HEADER + ": -N {5}\n", False, ("S:2: ", "'{5}'")),
    (HEADER + ": -N {9..5}\n", False, ("S:2: ", "'{9..5}'")),
    (HEADER + ": -N {5..9..0}\n", False, ("S:2: ", "'{5..9..0}'")),
    (HEADER + ": -N {1..999999999999999999999999}\n", False, ("S:2: ", "999999}'")),
    (HEADER + ": -N {5|}\n", False, ("S:2: ", "'{5|}'")),
    (HEADER + ": -N {5|6\n", False, ("S:2: ", "brace")),
    (HEADER + ": -N 5\0 --causal\n", False, ("S:2: ", "control character")),
    ("contract=flash_simple key=required\n : -N 3\n", False, ("S:1: ", "--key FILE")),
    ("contract=flash_simple key=none\n : -N 3\n", True, ("S:1: ", "same for everybody")),
]


def sentence(text, key):
    try:
        suites.parse(text, "S", key)
    except suites.SuiteError as why:
        return str(why)
    return "nothing"


def check_reading(tap):
    s = suites.parse(GOOD, "S")
    tap.ok((s.contract, s.time, s.memory, s.threads, s.all) ==
           ("flash_simple", 2.5, 512, 2, ("causal", "long")), "the header")
    tap.ok([c.name for c in s.cases] ==
           ["tiny : x", "causal, long", "-N 500 --dist large", "fast"], "names, given or not")
    tap.ok([c.points for c in s.cases] == [5, 2.5, 1, 0] and s.max_score == 8.5, "points")
    tap.ok(s.cases[1].flags == ["-N", "333", "-d", "64", "--causal"] and
           s.cases[1].visibility == "after_due_date" and s.cases[1].line == 5, "a case")
    tap.ok((s.cases[3].perf, s.cases[3].of) == ((0.4,), "sgemm"), "a performance case")
    again = suites.parse(s.text(), "S")
    tap.ok(again.text() == s.text() and [c.flags for c in again.cases] ==
           [c.flags for c in s.cases], "a suite that was printed reads the same")
    for text, key, words in BAD:
        found = sentence(text, b"k" if key else None)
        tap.ok(all(word in found for word in words) and "accepted" in found and "\n" not in found,
               f"refused: {text.strip()!r}", found)


def check_keys(tap):
    one, same = (suites.parse(TEMPLATE, "S", b"one").text() for _ in range(2))
    tap.ok(one == same, "the same key draws the same suite")
    drawn = [suites.parse(TEMPLATE, "S", b"key %d" % i) for i in range(60)]
    tap.ok(len({s.text() for s in drawn}) > 55, "other keys draw others")
    sizes = [int(c.flags[1]) for s in drawn for c in s.cases[:2]]
    tap.ok(all(301 <= n <= 699 and n % 2 for n in sizes) and len(set(sizes)) > 50,
           "ranges keep their ends and steps")
    tap.ok({c.flags[3] for s in drawn for c in s.cases[:2]} == {"32", "64", "128"},
           "every value of a choice comes up")
    tap.ok(any(s.cases[0].flags[1] != s.cases[1].flags[1] for s in drawn), "lines draw apart")
    tap.ok(all("--seed" in s.cases[0].flags for s in drawn) and
           len({tuple(s.cases[0].flags) for s in drawn}) == 60, "a key draws the inputs' seeds")
    tap.ok(all(s.cases[2].flags[-2:] == ["--seed", "3"] for s in drawn),
           "a seed that is given stays")
    named = [suites.draw("{a=1..9} {a=1..9} {b=1..9} {1..9}", b"key %d" % i).split()
             for i in range(60)]
    tap.ok(all(words[0] == words[1] for words in named) and
           any(words[0] != words[2] for words in named), "a name draws the same everywhere")
    tap.ok(suites.draw("{a=1..1000}", b"k") ==
           suites.draw("x {1..9} {a=1..1000}", b"k", "suite", "case")[4:], "whatever the line")
    plain = suites.parse(TEMPLATE, "S")
    tap.ok("--seed" not in plain.cases[0].flags and
           plain.text() == suites.parse(TEMPLATE, "S").text(),
           "without a key choices are drawn, too, and no seed")


def seeds_of(suite):
    return [case.flags[case.flags.index("--seed") + 1] for case in suite.cases]


def check_apart(tap):
    """What one report shows of a drawn suite must not help to guess another case."""
    case = "name=a : -N {1..1000000}\n"
    drawn = [suites.parse(HEADER + lines, name, b"key") for lines, name in (
        (case, "2_x/hidden.template"), (case, "2_x/twist.template"), (case, "3_y/hidden.template"),
        (case.replace("=a", "=b"), "2_x/hidden.template"))]
    tap.ok(len({seeds_of(one)[0] for one in drawn}) == 4,
           "the same line in another suite, or under another name, has another seed")
    tap.ok(len({one.cases[0].flags[1] for one in drawn}) == 4, "and other choices")
    moved = suites.parse("# a comment\n" + HEADER + "name=b : -N 1\npoints=3 " + case,
                         "/elsewhere/2_x/hidden.template", b"key")
    tap.ok(moved.cases[1].flags == drawn[0].cases[0].flags,
           "a case stays as it is where the course lies elsewhere and the lines around it change")
    course = TOOL.parents[2] / "docs" / "course"
    key = b"a key that draws every suite of the course"
    all_seeds = [seed for path in sorted(course.glob("*/*.template"))
                 for line, seed in zip(path.read_text(encoding="utf-8").split("\n")[2:],
                                       seeds_of(suites.read(path, key))) if "--seed" not in line]
    tap.ok(len(all_seeds) > 100 and len(set(all_seeds)) == len(all_seeds),
           "no seed of one key comes twice in the whole course", len(all_seeds))


def check_program(tap):
    with tempfile.TemporaryDirectory() as folder:
        path, key = pathlib.Path(folder) / "x.template", pathlib.Path(folder) / "key"
        path.write_text("\ufeff" + TEMPLATE, encoding="utf-8")  # as some editors begin a file
        drawn = []
        for content, status, word in ((b"spring semester 2027\n", 0, "contract="),
                                      (b"16 bytes are few", 0, "contract=flash_simple"),
                                      (b"15 bytes refuse\n", 2,
                                       "head -c 32 /dev/urandom | base64 > teacher.key"),
                                      (b"x", 2, "found 1 byte in"), (b" \n" * 20, 2, "--key"),
                                      (b"x" * (1 << 20 | 1), 2, "1 MiB"), (None, 2, "--key")):
            key.unlink(missing_ok=True)
            if content is not None:
                key.write_bytes(content)
            run = subprocess.run([sys.executable, str(TOOL), str(path), "--key", str(key)],
                                 capture_output=True, text=True, check=False)
            tap.ok(run.returncode == status and word in run.stdout + run.stderr and
                   run.stderr.count("\n") == (status != 0),
                   f"a key of {'no file' if content is None else f'{len(content)} bytes'}",
                   run.stdout + run.stderr)
            drawn += [run.stdout] if run.returncode == 0 else []
        raw = b"spring semester 2027\n"
        key.write_bytes(raw)
        tap.ok(suites.read(path, suites.key_bytes(key)).text() == drawn[0] !=
               suites.read(path, raw).text() and len(set(drawn)) == 2,
               "the suite is drawn by scrypt's result: no plain hash of the file leads to a seed")
        begun = time.process_time()
        suites.key_bytes(key)
        tap.ok(time.process_time() - begun > 0.01, "a try costs time")
        run = subprocess.run([sys.executable, str(TOOL), f"{folder}/none"], capture_output=True,
                             text=True, check=False)
        tap.ok(run.returncode == 2 and "none" in run.stderr and run.stderr.count("\n") == 1,
               "no such suite", run.stderr)
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                run = subprocess.run([sys.executable, str(TOOL), str(path)], stdout=full,
                                     stderr=subprocess.PIPE, text=True, check=False)
            tap.ok(run.returncode == 3 and "not taken" in run.stderr and
                   run.stderr.count("\n") == 1, "nobody takes the suite", run.stderr)


def main():
    tap = Tap()
    check_reading(tap)
    check_keys(tap)
    check_apart(tap)
    check_program(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
