#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_tables.py: a submission that knows the outputs of the public cases has no points for them.

    test_tables.py BUILD

The table is what a right solution saw on the public suite: the sums of its inputs. The thief is
right where the sum stands in the table, which is what a file of outputs would give. And: a solution
with the matrix that the assignment is about; cases.lock, the command that replays a case, and what
Gradescope grades before the due date.
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("tests", "common/tools", "common/course")]
import autograder
import grade
import grade_class
import handout
import suite as suites
from tap import Tap

KEY = b"sixteen bytes or more of a key"
NAME = "flash_simple_variant"
ARGUMENTS = """const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal"""
WRAPPER = f"""
int {NAME}({ARGUMENTS})
{{
    unsigned sum = 0;
    for (int i = 0; i < N * d; i++)
        sum = sum * 31 + ((const unsigned *)Q)[i];
    SEEN
    return {NAME}_own(Q, K, V, O, lse, N, d, causal);
}}
"""
RIGHT = (HERE.parent / "solutions" / "2_flash_forward.c").read_text(encoding="utf-8")


def with_wrapper(seen):
    own = RIGHT.replace(f"int {NAME}(", f"static int {NAME}_own(")
    return f"#include <stdio.h>\n{own}{WRAPPER.replace('SEEN', seen)}"


def graded(build, place, text, suite):
    (place / "mine.c").write_text(text, encoding="utf-8")
    _, results = grade.grade(grade.parse([str(suite), str(place / "mine.c"), "--build",
                                          str(build), "--so-sandbox", "off"]))
    return results[0]


def check_table(tap, build, place):
    folder, key = handout.assignment(2), suites.key_bytes(place / "key")
    final = place / "simple.suite"
    final.write_text(handout.final_suites(folder, key)["simple.suite"], encoding="utf-8")
    public = folder / "simple.suite"
    saw = graded(build, place, with_wrapper('printf("%u\\n", sum);'), public)
    table = sorted({line for test in saw["tests"] for line in test["output"].split()
                    if line.isdigit()})
    thief = with_wrapper("switch (sum) {" + "".join(f"case {n}u: " for n in table) +
                         "break; default: return 0; }")
    before = graded(build, place, thief, public)["score"]
    lost = graded(build, place, thief, final)
    tap.ok(before == saw["score"] == saw["max_score"] and lost["score"] == 0,
           "a table of the public outputs has all public points before the end, none in the "
           "final run", f"{before} {lost['score']} of {saw['score']}, {len(table)} sums")
    (place / "mine.c").write_text(RIGHT, encoding="utf-8")
    return lost["tests"][0]["replay"]


def check_matrix(tap, build, place):
    """All of S in memory: right numbers, and not the subject."""
    own = RIGHT.replace(f"int {NAME}(", f"static int {NAME}_own(")
    text = f"""{own}
int {NAME}({ARGUMENTS})
{{
    float *S = malloc((size_t)N * (size_t)N * sizeof *S);
    for (int64_t n = 0; n < (int64_t)N * N; n++)
        S[n] = Q[n % N] * K[n % N];
    O[0] = S[N / 2]; /* or the compiler would leave it out */
    free(S);
    return {NAME}_own(Q, K, V, O, lse, N, d, causal);
}}
"""
    found = graded(build, place, text, handout.assignment(2) / "simple.suite")
    states = [test["status"] for test in found["tests"]]
    tap.ok(states.count("right") == len(states) - 1 and
           0.3 < found["score"] / found["max_score"] <= 0.4 and
           any("40 %" in test["message"] for test in found["tests"]),
           "a matrix of N x N: right numbers have at most 40 %", f"{found['score']} {states}")


def check_absent(tap, place):
    suite = suites.parse("contract=flash_simple\n : -N 3\n", "S")
    for name in ("Mine.C", "src/mine.c", "mine.c.txt", "mine (1).c", "all.zip"):
        file = place / name.split(".")[0].replace("/", "_") / name
        file.parent.mkdir(parents=True)
        file.write_text("", encoding="utf-8")
        wanted = place / file.relative_to(place).parts[0] / "mine.c"
        said = "" if wanted.exists() else autograder.absent(suite, wanted)["tests"][0]["message"]
        tap.ok(said == f"there is no mine.c; there is {name}", f"a file is called {name}", said)


def check_seeds(tap):
    for number in "123456":
        folder = handout.assignment(number)
        texts = handout.final_suites(folder, KEY)
        words = [shlex.join(case.flags) for name, text in texts.items()
                 for case in suites.parse(text, name).cases]
        given = {name: text if isinstance(text, str) else text.read_text(encoding="utf-8")
                 for name, text in handout.student_files(folder, KEY, False).items()
                 if name.endswith(".suite")}
        known = {shlex.join(case.flags) for name, text in given.items()
                 for case in suites.parse(text, name).cases}
        seeds = [re.findall(r"--seed (\d+)", flags) for flags in words]
        tap.ok("twist.suite" in given and all(len(seed) == 1 for seed in seeds) and
               not known & set(words),
               f"assignment {number}: each case of the final run has one seed, which no student "
               "knows", str(words[:3]))


def check_lock(tap, place):
    folder, key = handout.assignment(2), suites.key_bytes(place / "key")
    lock = place / "out" / "cases.lock"
    first = grade_class.locked(folder, key, lock)
    found = json.loads(lock.read_text(encoding="utf-8"))
    tap.ok(found["suites"] == first and found["revision"] and KEY.decode() not in str(found),
           "cases.lock has the cases and the revision, and not the key")
    found["suites"] = {"hidden.suite": first["hidden.suite"]}
    lock.write_text(json.dumps(found), encoding="utf-8")
    tap.ok(grade_class.locked(folder, key, lock) == found["suites"], "grading again reads it")
    for text, other in ((json.dumps({**found, "key": "another"}), "another key"),
                        ("[]", "found no cases")):
        lock.write_text(text, encoding="utf-8")
        try:
            said = str(grade_class.locked(folder, key, lock))
        except grade.UsageError as why:
            said = str(why)
        tap.ok(other in said, f"refused: {other}", said)


def check_due(tap, place):
    """Gradescope's own example of a student with more time."""
    metadata = place / "metadata.json"
    (place / "visible").mkdir()
    for date, more, wanted in (("2000-01-01T00:00:00.000000-08:00", None, "all"),
                               ("2999-01-01T00:00:00.000000-08:00", None, "visible"),
                               ("2000-01-01T00:00:00.000000-08:00", "2999-01-01T00:00:00+00:00",
                                "visible"), (None, None, "all")):
        metadata.write_text(json.dumps({
            "assignment": {"due_date": date, "late_due_date": None},
            "users": [{"assignment": {"due_date": more}}]}), encoding="utf-8")
        options = argparse.Namespace(suite=None, metadata=metadata, visible="visible",
                                     suites="all")
        tap.ok(autograder.chosen_suites(options, place) == wanted,
               f"due {date}, for this student {more}: {wanted}")


def check_replay(tap, build, place, command):
    words = dict(word.split("=", 1) for word in shlex.split(command)[2:])
    run = subprocess.run([sys.executable, autograder.__file__, "--suites", place, "--suite",
                          words["SUITE"], "--case", words["CASE"], "--build", build,
                          "--so-sandbox", "off", place], capture_output=True, text=True,
                         check=False)
    tap.ok(run.returncode == 0 and "1 of 1" in run.stdout and words["CASE"] in run.stdout,
           "the command of a lost case runs it alone", run.stdout + run.stderr)


def main():
    tap, build = Tap(), pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "key").write_bytes(KEY)
        check_seeds(tap)
        check_absent(tap, place)
        check_matrix(tap, build, place)
        check_lock(tap, place)
        check_due(tap, place)
        check_replay(tap, build, place, check_table(tap, build, place))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
