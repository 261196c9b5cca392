#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_handout.py: what students and Gradescope get is complete, the same for the same key, and
holds no solution; similarity.py finds copies, renamed or not; quiz.py shows bugs whole; and the
tests for Python students pass right code and no wrong code.

usage: test_handout.py [BUILD]     BUILD: a build folder with the judge's programs; without it their
places are empty files
"""
import contextlib
import csv
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest.mock as mock
import zipfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE / "..", ROOT / "common" / "course", ROOT / "docs" / "course" / "python",
               HERE / "solutions"):
    sys.path.insert(0, str(folder))
import adapters
import grade
import grade_formats
import handout
import lecture
import quiz
import similarity
import suite as suites
import test_attention
import test_grade
from tap import Tap

LENGTH = 12
NUMBERS = range(1, 7)
KEYS = [b"a key of the tests, %d" % n for n in range(8)]
# What is no solution: these texts may share anything with one.
GIVEN = ("common/attention/attn.h", "common/attention/attn_pairs.h", "common/tensor.h",
         "common/harness/io/fill.h", "docs/course/include/*.h", "docs/course/python/adapters.py",
         "docs/course/6_cuda_forward/*.cu")
SOLVED = (*similarity.SOLUTIONS, "tests/course/solutions/adapters.py")
PART_OF_A_SOLUTION = """
        float m_new = fmaxf(m_i, s[c]);
        /* another comment */
        if (m_new == -INFINITY) continue;
"""


def text_runs(text):
    return similarity.runs(similarity.exact_tokens(text), LENGTH)


def solution_runs():
    """Runs of tokens that stand in solutions and in nothing that all may have. A prototype may
    become the head of a function, behind the end of another."""
    def of(patterns, change=lambda text: text):
        return {run for pattern in patterns for path in ROOT.glob(pattern)
                if path.suffix in (*similarity.SOURCES, ".py") and path.name != "changes.py"
                for run in text_runs(change(similarity.read(path)))}
    return of(SOLVED) - of(GIVEN) - of(GIVEN, lambda text: text.replace(";", "{")) - \
        of(GIVEN, lambda text: re.sub("[;{]", "; return 0; }", text))


def texts(files):
    for name, what in files.items():
        if not isinstance(what, pathlib.Path) or what.suffix:
            yield name, handout.content(what).decode("utf-8")


def check_no_solution(tap):
    secret = solution_runs()
    tap.ok(text_runs(PART_OF_A_SOLUTION) & secret, "a few lines of a solution are noticed")
    for number in NUMBERS:
        folder = handout.assignment(number)
        found = {}
        for key in [None, *KEYS]:
            files = handout.student_files(folder, key, True)
            files.update(handout.gradescope_files(folder, key) if key else {})
            for name, text in texts(files):
                found.update({name: run for run in text_runs(text) & secret})
        tap.ok(not found, f"{folder.name}: no run of {LENGTH} tokens of a solution",
               "\n".join(f"{name}: {' '.join(run)}" for name, run in found.items()))
    judge = {f"common/{name}": ROOT / "common" / name for name in handout.TOOLS}
    found = [name for name, text in texts(judge) if text_runs(text) & secret]
    tap.ok(not found, "the judge's tools hold none either", " ".join(found))


def check_contents(tap):
    for number in NUMBERS:
        folder = handout.assignment(number)
        kinds = handout.kinds(folder)
        tap.ok(len(kinds) >= 3, f"{folder.name}: at least three changes", " ".join(kinds))
        tap.ok({handout.chosen(folder, b"%d" % n) for n in range(60)} == set(kinds),
               f"{folder.name}: keys choose all of them")
        for kind in kinds:
            key = next(k for k in (b"%d" % n for n in range(60))
                       if handout.chosen(folder, k) == kind)
            files = handout.student_files(folder, key, False)
            numbers = set(re.findall(r"\d+", " ".join(
                flag for case in suites.parse(files["twist.suite"], "twist").cases
                for word, flag in zip(case.flags, case.flags[1:]) if word == "--twist")))
            section = files["handout.md"].split("## This year's change", 1)[-1]
            told = set(re.findall(r"\d+", section))
            # assignment 1 tells no number: the width comes with the call
            tap.ok("{" not in section and (number == 1 or {n.lstrip("0") or "0" for n in numbers} <=
                                           {n.lstrip("0") or "0" for n in told}),
                   f"{folder.name}: the text on {kind} tells the numbers of its suite",
                   f"{sorted(numbers)} {sorted(told)}")
        plain = handout.student_files(folder, None, False)
        tap.ok(not any("tanh" in text for _, text in texts(plain)),
               f"{folder.name}: no formula of a cap")
        tap.ok("twist.suite" not in plain and "Dockerfile" not in plain,
               f"{folder.name}: neither change nor Dockerfile unless asked for")
        words = len(re.findall(r"\w+", (folder / "handout.md").read_text(encoding="utf-8")))
        tap.ok(words < 1700 and all((folder / name).is_file() for name in
                                    ("rubric.md", "instructor.md", "public.suite")),
               f"{folder.name}: text, rubric, notes and suite", f"{words} words")
        points = sum(suites.read(path).max_score for path in folder.glob("*.suite"))
        drawn = [suites.parse(text, name) for name, text in
                 handout.drawn_suites(folder, KEYS[0]).items()]
        points += sum(s.max_score for s in drawn)
        tap.ok(points == 50, f"{folder.name}: the machine's points",
               f"{points}")
        hidden = [s for s in drawn if all(c.visibility != "visible" for c in s.cases)]
        tap.ok(hidden, f"{folder.name}: there are cases that nobody sees before the end")


def check_compiles(tap):
    for number in NUMBERS:
        with tempfile.TemporaryDirectory() as scratch:
            handout.write_folder(handout.student_files(handout.assignment(number), KEYS[0], False),
                                 pathlib.Path(scratch) / "given")
            given = pathlib.Path(scratch) / "given"
            stub = given / "stub.c"
            if not stub.is_file():
                tap.ok((given / "stub.cu").is_file() and (given / "bench.cu").is_file() and
                       (given / "speed.gpu").is_file() and
                       "nvcc" in (given / "Makefile").read_text(encoding="utf-8"),
                       f"assignment {number}: a stub for nvcc, and what times it")
                continue
            mine = given / "mine.c"
            mine.write_text(stub.read_text(encoding="utf-8") + "".join(
                f'#include "{path.name}"\n' for path in sorted((given / "include").glob("*.h"))),
                encoding="utf-8")
            run = subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-Wall",
                                  "-Wextra", "-Werror", "-Iinclude", "-c", "mine.c", "-o",
                                  "mine.o"], cwd=given, capture_output=True, text=True, check=False)
            tap.ok(run.returncode == 0, f"assignment {number}: the stub compiles with every header "
                   "of the folder and no other", run.stderr)


def call(arguments):
    """(exit status, stderr) of ./ladder handout."""
    errors = io.StringIO()
    saved, sys.argv = sys.argv, ["handout", *map(str, arguments)]
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = handout.main()
    finally:
        sys.argv = saved
    return status, errors.getvalue()


def fake_build(scratch):
    place = scratch / "build" / "common" / "course"
    place.mkdir(parents=True)
    for name in (*handout.PROGRAMS, "../attn_config.h"):
        (place / name).write_bytes(b"")
    return scratch / "build"


def check_program(tap, build):
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        build = build or fake_build(scratch)
        key = scratch / "teacher.key"
        key.write_text("a key that nobody knows\n", encoding="utf-8")
        with_zip = ["--key", key, "--docker", "--build", build, "--gradescope"]
        for name in ("one", "two"):
            status, errors = call([2, "--out", scratch / name, *with_zip, scratch / f"{name}.zip"])
            tap.ok(status == 0, f"handout 2 with everything, {name}", errors)
        tap.ok((scratch / "one.zip").read_bytes() == (scratch / "two.zip").read_bytes(),
               "the same key gives the same zip")
        names = {str(p.relative_to(scratch / "one")) for p in (scratch / "one").rglob("*")}
        wanted = {"handout.md", "stub.c", "Makefile", "Dockerfile", "public.suite", "simple.suite",
                  "twist.suite", "LICENSE", "REVISION", "include/flash_simple.h",
                  "include/attn.h", "include/attn_pairs.h",
                  "include/tensor.h", "judge/build/demo/common/course/attn_judge",
                  "judge/common/course/grade.py"}
        tap.ok(wanted <= names, "the students' folder", " ".join(sorted(wanted - names)))
        tap.ok(not any("template" in name or "hidden" in name or "rubric" in name or
                       "instructor" in name or "solution" in name for name in names),
               "nothing of the teacher's is in it")
        with zipfile.ZipFile(scratch / "one.zip") as archive:
            inside = {entry.filename: entry for entry in archive.infolist()}
            tap.ok({"setup.sh", "run_autograder", "suites/public.suite", "suites/hidden.suite",
                    "suites/twist.suite"} <= set(inside), "Gradescope's zip", " ".join(inside))
            tap.ok(all(inside[name].external_attr >> 16 & 0o111
                       for name in ("setup.sh", "run_autograder")), "its scripts can be executed")
            everything = b"".join(archive.read(name) for name in inside)
            tap.ok(b"nobody knows" not in everything, "the key is not in it")
            tap.ok(os.fsencode(ROOT) not in everything and os.fsencode(build) not in everything,
                   "nor is a path of the teacher's machine")
        for path in scratch.glob("one/**/attn_*"):
            # a name of ours: the CUDA runtime has names such as cuMemAlloc_v2_ptds
            ours = re.search(rb"(naive|softmax|attention|flash_\w+|window|ring)_v\d+_[a-z]\w+",
                             path.read_bytes())
            tap.ok(not ours, f"{path.name} links no variant", str(ours))
            named = shutil.which("strip") and subprocess.run(
                ["nm", path], capture_output=True, text=True, check=False).stdout
            tap.ok(not named, f"{path.name} has no table of its functions' names", named)
        bad = [([], "N, --out"), ([2], "--out"), ([2, "--out", ""], "--out"),
               ([9, "--out", scratch / "x"], "'9'"), ([2, "--out", scratch / "one"], "--out"),
               ([2, "--out", scratch / "x", "--gradescope", scratch / "y.zip"], "--key"),
               ([2, "--out", scratch / "x", "--key", scratch / "none"], "--key"),
               ([2, "--out", scratch / "x", "--build", scratch / "none"], "--build"),
               ([2, "--out", scratch / "x", "--key", key, "--change", "no"], "--change"),
               ([2, "--out", scratch / "x", "--change", "clip"], "--key")]
        for arguments, word in bad:
            status, errors = call([*arguments, *([] if "--build" in arguments else
                                                 ["--build", build])])
            tap.ok(status == 2 and word in errors and "accepted" in errors and
                   errors.count("\n") == 1 and not (scratch / "x").exists(),
                   f"refused: {' '.join(map(str, arguments))[:60]}", errors)


def check_use(tap, build):
    """A student's first minutes, and Gradescope's run of a solution of all but the change."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "key").write_bytes(KEYS[0])
        status, errors = call([2, "--out", scratch / "given", "--key", scratch / "key", "--build",
                               build, "--gradescope", scratch / "given.zip"])
        tap.ok(status == 0, "a handout to use", errors)
        given = scratch / "given"
        (given / "mine.c").write_bytes((given / "stub.c").read_bytes())
        same = [subprocess.run(["make", "-n", target], cwd=given, capture_output=True, text=True,
                               check=False).stdout for target in ("grade", "test")]
        tap.ok(same[0] == same[1] != "", "make test is make grade", same)
        run = subprocess.run(["make", "-s", "grade"], cwd=given, capture_output=True, text=True,
                             check=False)
        if run.returncode != 0 and "sandbox" in run.stderr:
            tap.skip("make grade and Gradescope's run", "this machine has no sandbox")
            return
        tap.ok(run.returncode == 0 and "mine.c: 0 of 20" in run.stdout,
               "make grade: the stub has no points", run.stdout[:400] + run.stderr)
        tap.ok(run.stdout.count("there is no mine_twist.c") == 1,
               "a file that is not there is named, once", run.stdout)
        tap.ok("flags: -N 3 -d 2\n" in run.stdout and re.search("Q = .*; .*; ", run.stdout),
               "a case to do by hand: flags, Q, K and V", run.stdout[:900])
        inputs = re.search("Q = (.*)\n", run.stdout)
        check_by_hand(tap, given, inputs[1] if inputs else "")
        with zipfile.ZipFile(scratch / "given.zip") as archive:
            archive.extractall(scratch / "source")
        for program in handout.PROGRAMS:
            (scratch / "source/judge/build/demo/common/course" / program).chmod(0o755)
        submission = scratch / "submission"
        submission.mkdir()
        (submission / "mine.c").write_bytes(
            (HERE / "solutions" / "2_flash_forward.c").read_bytes())
        text = (scratch / "source" / "run_autograder").read_text(encoding="utf-8")
        run = subprocess.run(["sh", "-c", text.replace("/autograder/", f"{scratch}/")],
                             capture_output=True, text=True, check=False)
        found = json.loads((scratch / "results/results.json").read_text(encoding="utf-8"))
        tap.ok(run.returncode == 0 and found["score"] == 35 and
               sum(test["max_score"] for test in found["tests"]) == 50,
               "Gradescope: a solution without the change has 35 of 50 points",
               f"{run.stderr}{found['score']}")
        tap.ok(all(test["visibility"] in suites.VISIBILITIES and test["status"] in
                   ("passed", "failed") and 0 <= test["score"] <= test["max_score"]
                   for test in found["tests"]) and
               len({test["name"] for test in found["tests"]}) == len(found["tests"]),
               "its results keep Gradescope's format")


def check_target(tap):
    """Makefile and Dockerfile are for the machine that the judge was built for."""
    def program(machine, library):
        return b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little") + \
            b"\0GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.%d\0" % library
    for machine, library, platform, base in ((0x3E, 34, "linux/amd64", "debian:12-slim"),
                                             (0xB7, 38, "linux/arm64", "debian:13-slim")):
        files = handout.student_files(handout.assignment(1), None, True,
                                      handout.Target(program(machine, library)))
        tap.ok(files["Makefile"].count(f"--platform {platform} ") == 2 and "@" not in
               files["Dockerfile"] and f"FROM --platform={platform} {base}\n" in
               files["Dockerfile"] and "SANDBOX=$(SANDBOX)" in files["Makefile"],
               f"make docker: a judge for {platform} and glibc 2.{library}", files["Dockerfile"])


def make_asan(given, case, *words):
    return subprocess.run(["make", "-s", "asan", f"CASE={case}", *words], cwd=given,
                          capture_output=True, text=True, check=False)


def check_by_hand(tap, given, inputs):
    """make asan without a case has the inputs of the report's."""
    shutil.copy(HERE / "solutions" / "2_flash_forward.c", given / "mine.c")
    run = make_asan(given, "")
    rows = re.findall(r"Q\[\d\] = (.*)", run.stdout)
    tap.ok(run.returncode == 0 and "; ".join(rows) == inputs, "make asan: the case of the report",
           f"{inputs}\n{run.stdout}{run.stderr}"[:1500])


# assignment: a case; mistakes (text of its solution, what stands there instead, what is said)
DEBUGGED = {
    1: ("--rows 7 --cols 33", [("lse[r] =", "lse[r + 1] =", "AddressSanitizer"),
                               ("m[k] = larger", "m[k + 1] = larger", "AddressSanitizer")]),
    2: ("-N 33 -d 8 --causal", [("lse[i + r] =", "lse[i + r + 1] =", "AddressSanitizer")]),
    3: ("-N 33 -d 8 --causal", [("delta[i] =", "delta[i + 1] =", "AddressSanitizer"),
                                ("V + k, dO", "V + k + d, dO", "AddressSanitizer")]),
    4: ("-N 33 -d 8 --window 9,3 --block-q 16 --block-kv 16",
        [("c < s->rows_k", "c <= s->Bc", "AddressSanitizer")]),
    5: ("--ranks 3 -H 2 --kv-heads 1 -N 34 -d 8 --causal",
        [("j < keys", "j < keys + 9", "AddressSanitizer"),
         ("if (step + 1 < p->world)\n            p->receive", "p->receive", "nobody can go on")])}


def check_debug(tap):
    """make asan and make debug, in the handout of each C assignment."""
    for number, (case, mistakes) in DEBUGGED.items():
        with tempfile.TemporaryDirectory() as folder:
            given = pathlib.Path(folder) / "given"
            assignment = handout.assignment(number)
            handout.write_folder(handout.student_files(assignment, None, False), given)
            right = (HERE / "solutions" / f"{assignment.name}.c").read_text(encoding="utf-8")
            for text, instead, word in [("", "", ""), *mistakes]:
                (given / "mine.c").write_text(right.replace(text, instead) if text else right,
                                              encoding="utf-8")
                run = make_asan(given, case)
                tap.ok(text in right and (run.returncode != 0 and word in run.stderr if text else
                                          run.returncode == 0),
                       f"assignment {number}: make asan: {instead or 'the solution'}",
                       (run.stdout + run.stderr)[:1500])
            size, twist = [subprocess.run(["./called", *words.split()], cwd=given, check=False,
                                          capture_output=True, text=True)
                           for words in ("-d 0", f"{case} --twist softcap=3")]
            tap.ok(size.returncode != 0 and "found -d 0" in size.stderr,
                   f"assignment {number}: a size that no case has is named", size.stderr)
            (given / "mine_twist.c").write_text(right, encoding="utf-8")
            (given / "mine.c").write_text("int broken\n", encoding="utf-8")
            other = make_asan(given, f"{case} --twist softcap=3", "CODE=mine_twist.c")
            tap.ok(twist.returncode != 0 and "CODE=mine_twist.c" in twist.stderr and
                   other.returncode == 0,
                   f"assignment {number}: a case of the change calls mine_twist.c",
                   twist.stderr + other.stderr)
            start = "float *delta, int N, int d)\n{\n"
            if start in right:
                (given / "mine.c").write_text(right.replace(start, f"{start}    return 0;\n"),
                                              encoding="utf-8")
                run = make_asan(given, case)
                bad = {line.split("[")[0] for line in run.stdout.splitlines() if "nan" in line}
                tap.ok(bad == {"your delta"}, "a delta that is not written spoils nothing else",
                       run.stdout + run.stderr)
            run = subprocess.run(["make", "-n", "debug", "CASE=-N 5"], cwd=given, check=False,
                                 capture_output=True, text=True)
            tap.ok("gdb -q --args ./called -N 5" in run.stdout and "make debug" in
                   (given / "handout.md").read_text(encoding="utf-8"),
                   f"assignment {number}: make debug", run.stdout)


def check_class(tap, build):
    """./ladder grade 1 FOLDER...: all suites and the change, one row a student."""
    tool = ROOT / "common" / "course" / "grade_class.py"
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "key").write_bytes(KEYS[0])
        for name, solution in (("ann", "1_softmax_and_merge.c"), ("bob", None), ("eve", None)):
            (scratch / name).mkdir()
            if solution:
                shutil.copy(HERE / "solutions" / solution, scratch / name / "mine.c")
        shutil.copy(ROOT / "docs/course/1_softmax_and_merge/stub.c", scratch / "bob" / "mine.c")
        (scratch / "notes.txt").write_text("no student", encoding="utf-8")

        def graded(*words, tool=tool):
            return subprocess.run([sys.executable, tool, "--build", build, "--so-sandbox", "off",
                                   *words], cwd=scratch, capture_output=True, text=True,
                                  check=False)

        (scratch / "bob" / "REVISION").write_text("an old one\n", encoding="utf-8")
        run = graded("1", "ann", "bob", "eve", "notes.txt", "--key", "key", "--format", "csv")
        tap.ok("handout of another revision, an old one, this is" in run.stderr and
               run.stderr.rstrip().endswith(": bob"),
               "a class: a handout of another revision is named", run.stderr)
        (scratch / "bob" / "REVISION").unlink()
        rows = list(csv.reader(io.StringIO(run.stdout)))
        tap.ok(run.returncode == 0 and [row[:3] for row in rows[1:]] ==
               [["ann", "35", "50"], ["bob", "0", "50"], ["eve", "0", "50"]],
               "a class: a row a student, of all suites", run.stdout[:500] + run.stderr)
        tap.ok([row[3] for row in rows[1:]] == ["refused", "wrong", "refused"] and
               rows[1][4] == "there is no mine_twist.c" and "values are off" in rows[2][4] and
               rows[3][4] == rows[3][rows[0].index("similarity_why")] == "there is no mine.c",
               "a class: why a row has few points, or no comparison",
               str([row[:5] for row in rows]))
        tap.ok("notes.txt is no folder" in run.stderr, "a class: what is no folder is named",
               run.stderr)
        # the only change that was handed in cannot be compiled here: the other suites count
        course = test_grade.fake_build(build, scratch / "build", "attn_jail")
        test_grade.executable(course / "attn_jail", f"""#!/bin/sh
for file; do :; done; echo "${{file##*/}}" >> {scratch}/compiled
case "$*" in *mine_twist.c) echo "attn_jail: the disk is full" >&2; exit 3;; esac
exec {build}/common/course/attn_jail "$@"
""")
        shutil.copy(scratch / "ann/mine.c", scratch / "ann/mine_twist.c")
        run = graded("1", "ann", "bob", "--key", "key", "--format", "csv", "--build",
                     str(scratch / "build"))
        found = list(csv.reader(io.StringIO(run.stdout)))
        tap.ok(run.returncode == 3 and [row[:4] for row in found[1:]] ==
               [["ann", "35", "50", "skipped"], ["bob", "0", "50", "wrong"]] and
               "the disk is full" in found[1][4] and run.stderr.count("\n") == 1,
               "a class: a suite that could not be graded leaves the others",
               run.stdout[:500] + run.stderr)
        names = (scratch / "compiled").read_text(encoding="utf-8").split()
        tap.ok(names.count("mine.c") == 2, "a class: a file is compiled once for all suites",
               str(names))
        (scratch / "ann/mine_twist.c").unlink()
        tap.ok(rows and rows[0][3:7] == ["status", "reason", "similarity_public",
                                         "similarity_public_file"] and
               {name.split(":")[0] for name in rows[0][10:]} ==
               {"public", "merge", "hidden_rows", "hidden_merge", "twist"},
               "a class: the columns say what they hold", str(rows[:1]))
        for words, said in ((["1", "ann"], "--key"), (["9", "ann"], "assignment '9'"),
                            (["1", "notes.txt", "--key", "key"], "folder"),
                            (["1", ".", "--key", "key"], "./*")):
            run = graded(*words)
            tap.ok(run.returncode == 2 and said in run.stderr.splitlines()[-1] and not run.stdout,
                   f"a class: refused: {' '.join(words)}", run.stderr)
        chosen = handout.chosen(handout.assignment(1), suites.key_bytes(scratch / "key"))
        for kind in handout.kinds(handout.assignment(1)):
            template = ROOT / "docs/course/1_softmax_and_merge" / f"twist_{kind}.template"
            run = graded(template, "ann/mine.c", "--key", "key",
                         tool=ROOT / "common" / "course" / "grade.py")
            tap.ok((run.returncode, "another change" in run.stderr) ==
                   ((0, False) if kind == chosen else (2, True)),
                   f"a change that the key did not choose is refused: {kind}", run.stderr)


def check_screens(tap, build):
    """The traces that README.md recommends for a lecture fit the screen that it names."""
    rows = re.findall(r"^\| 0\d \|[^|]*\| `((?:[^`|]|\\\|)*)` \| (\d+) x (\d+) \|$",
                      (ROOT / "docs" / "course" / "README.md").read_text(encoding="utf-8"), re.M)
    tap.ok(len(rows) == 6, "a trace of each stage is recommended", str(rows))
    for command, width, height in rows:
        run = subprocess.run(["sh", "-c", command.replace("build/demo", str(build)).replace(
            "\\|", "|")], capture_output=True, text=True, check=False)
        lines = run.stdout.splitlines()
        # one line for the prompt
        tap.ok(run.returncode == 0 and 5 < len(lines) < int(height) and
               max(map(len, lines)) <= int(width), f"fits {width} x {height}: {command}",
               f"{len(lines)} lines of {max(map(len, lines), default=0)}\n{run.stderr}")


def check_lecture(tap):
    """No row of an old run beside a newer one of the same variant, and units in the heads."""
    for number in lecture.STEPS:
        for text in lecture.recorded_rows(ROOT, number):
            rows = [re.split(r"\s{2,}", line) for line in text.split("\n\n")[1].splitlines()]
            keys = [tuple(row[:2] if "link" in rows[0] else row[:1]) for row in rows[2:]]
            tap.ok(len(set(keys)) == len(keys) > 0 and "both passes" not in rows[0],
                   f"lecture {number}: a row for each variant, units in the heads", text)


def check_quiz(tap):
    for path in sorted((HERE / "solutions").glob("*.c*")):
        text = path.read_text(encoding="utf-8")
        found = quiz.questions(text)
        tap.ok(len(found) == 3 and len({question for _, question, _ in found}) == 3 and
               all(f"Line {line}" in question and text.split("\n")[line - 1].strip()
                   for line, question, _ in found), f"three questions about {path.name}",
               str(found))
    called = "  if (x)\n    f(K, causal, 0);\n  if (causal && j > i)\n    return exp(s - m);\n"
    tap.ok([line for line, question, _ in quiz.questions(called) if "sees whom" in question] == [3],
           "who sees whom is asked of a condition, not of a call", str(quiz.questions(called)))
    for stage in quiz.STAGES:
        paths = quiz.patches(stage)
        bad = []
        for path in paths:
            text, answer = quiz.sheet(path)
            wrong = [line[1:] for line in answer.splitlines() if line[:1] == "-"]
            if any(line.strip() and line not in text for line in wrong) or \
                    not 3 < text.count("\n") < 150 or "```diff\n\n" in answer or \
                    not re.search(r"Why the case shows it: [^.]+\.", answer):
                bad.append(path.name)
        tap.ok(paths and not bad, f"quiz {stage}: {len(paths)} bugs, each shown whole",
               " ".join(bad))
        shown = [quiz.changed_functions(path) for path in quiz.chosen(paths, KEYS[0], 99)]
        tap.ok(len(shown) >= 4 and all(shown) and
               sum(map(len, shown)) == len(set().union(*shown)),
               f"quiz {stage}: no function stands on two sheets", str(shown))
        tap.ok(not any("library" in quiz.sheet(path)[0].split("`")[1] for path in paths),
               f"quiz {stage}: code that students have seen")
    sets = {tuple(p.name for p in quiz.chosen(quiz.patches("03"), key, 3)) for key in KEYS}
    tap.ok(len(sets) > 4, "quiz: other keys choose others")
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "key").write_bytes(KEYS[0])

        def run(*words):
            tool = [sys.executable, ROOT / "common" / "course" / "quiz.py"]
            return subprocess.run([*tool, *words, "--key", scratch / "key", "--out",
                                   scratch / "quiz"], capture_output=True, text=True, check=False)
        for words in (["07"], ["03", "--count", "999"]):
            tap.ok(run(*words).returncode == 2 and not (scratch / "quiz").exists(),
                   f"quiz: refused: {' '.join(words)}")
        made = run("03")
        sheets = {path.name for path in (scratch / "quiz").iterdir()}
        tap.ok(made.returncode == 0 and sheets - {"quiz.pdf"} ==
               {"quiz1.md", "quiz2.md", "quiz3.md", "answers.md"} and
               "answers.md" in made.stdout, "quiz: three sheets and the answers, and it says so",
               made.stdout + made.stderr)
        made = subprocess.run([ROOT / "ladder", "quiz", "01", "--key", "key", "--out", "more"],
                              cwd=scratch, capture_output=True, text=True, check=False)
        tap.ok(made.returncode == 0 and (scratch / "more" / "quiz3.md").is_file(),
               "./ladder quiz: paths are meant from where the user stands", made.stderr)


def check_similarity(tap):
    source = similarity.read(HERE / "solutions" / "2_flash_forward.c")
    renamed = re.sub(r"\b(tile|alpha|keys|rows)\b", r"my_\1", re.sub(r"/\*.*?\*/", "", source,
                                                                    flags=re.S))
    other = similarity.read(HERE / "solutions" / "4_sliding_window_online.c")
    stub = similarity.read(ROOT / "docs" / "course" / "2_flash_forward" / "stub.c")
    found = similarity.fields({"a.c": [renamed], "b.c": [source + "\nint more;\n"], "c.c": [other],
                               "d.c": [stub], "e.c": [""]}, ROOT, [stub])
    tap.ok(found["a.c"]["repository"]["share"] > 0.95 and
           found["a.c"]["repository"]["file"].endswith("2_flash_forward.c"),
           "a renamed copy of a public solution", json.dumps(found["a.c"]))
    tap.ok(found["a.c"]["class"]["share"] > 0.95 and found["a.c"]["class"]["with"] == "b.c",
           "two alike in a class")
    tap.ok(found["c.c"]["class"]["share"] < 0.3, "two that are not", json.dumps(found["c.c"]))
    tap.ok("0 fingerprints" in found["d.c"] and "cannot be read" in found["e.c"],
           "what everybody was given counts for nobody; what was not read has no number",
           str(found))
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for name, text in (("a.c", renamed), ("b.c", other)):
            (pathlib.Path(folder) / name).write_text(text, encoding="utf-8")
            results.append({"submission": f"{folder}/{name}", "score": 0, "max_score": 1,
                            "tests": []})
        alone = results[:1]
        paths = {result["submission"]: (result["submission"], "") for result in results}
        grade.add_similarity(alone, {name: paths[name] for name in list(paths)[:1]})
        tap.ok("similarity" not in alone[0], "one submission has no class to be compared with")
        grade.add_similarity(results, paths)
        rows = list(csv.reader(io.StringIO(grade_formats.csv_rows(
            results, suites.parse("contract=flash_simple\n : -N 3\n", "S")))))
        tap.ok(float(rows[1][5]) > 0.95 and rows[1][6].endswith("2_flash_forward.c") and
               float(rows[1][7]) < 0.3, "grade's csv has both shares", str(rows))
        check_hostile(tap, results, paths)


def check_hostile(tap, results, paths):
    """Texts that are meant to take hours, and a comparison that fails: the points stand."""
    for text in ('"' + '\\"' * 32768, '"\\' * 32768, "'\\" * 32768, "/* " * 21845,
                 "/*/" * 21845, "#  " * 21845, "1e+" * 21845):
        begun = time.process_time()
        words = similarity.tokens(text)
        took = time.process_time() - begun
        tap.ok(took < 2, f"64 KiB of {text[:4]!r} take no longer than other text",
               f"{took:.1f} s, {len(words)} tokens")
    tap.ok(similarity.tokens('a "b\nc') == ["name", "string", "name"] and
           similarity.exact_tokens('"\\"" \'\\\\\' d') == ['"\\""', "'\\\\'", "d"],
           "a string ends at its quote or with its line")
    tap.ok(len(similarity.tokens("; " * (similarity.MOST_TOKENS + 9))) == similarity.MOST_TOKENS,
           "no more tokens than MOST_TOKENS")
    whole = pathlib.Path(list(paths)[0])
    whole.with_name("long.c").write_bytes(b";" * (similarity.MOST_BYTES + 9))
    tap.ok(len(similarity.read(whole.with_name("long.c"))) == similarity.MOST_BYTES,
           "no more bytes of a file than MOST_BYTES")
    for name, instead in (("that is late", lambda *_: time.sleep(60)),
                          ("that fails", lambda *_: 1 // 0),
                          ("that is killed", lambda *_: os.abort())):
        with mock.patch.object(similarity, "fields", instead), \
                mock.patch.object(grade, "SIMILARITY_SECONDS", 2):
            grade.add_similarity(results, paths)
        tap.ok([result.pop("similarity") for result in results] == [None, None],
               f"a comparison {name} is null")
    for result in results:
        result["similarity"] = None
        result["similarity_why"] = "late"
    rows = list(csv.reader(io.StringIO(grade_formats.csv_rows(
        results, suites.parse("contract=flash_simple\n : -N 3\n", "S")))))
    tap.ok(rows[1][5:10] == ["", "", "", "", "late"],
           "which csv shows as empty cells with the reason", str(rows))


def check_python(tap):
    wrong = [name for name, error in test_attention.run() if error]
    tap.ok(not wrong and len(test_attention.run()) >= 10, "the Python tests pass a right solution",
           " ".join(wrong))
    names = [name for name, _ in test_attention.run("backward")]
    tap.ok(len(names) >= 3 and all(name.startswith("test_backward_") for name in names),
           "a word chooses the tests of one task", " ".join(names))
    page = (ROOT / "docs/course/python/README.md").read_text(encoding="utf-8")
    tap.ok("give no points by themselves" in page and "$(cat teacher.key)" not in page,
           "their page says what they are worth, and hands nobody the teacher's key")
    forward, step = adapters.flash_forward, adapters.OnlineAttention.forward

    def tail_dropped(self, *arguments):
        self.sizes = (self.sizes[0], self.sizes[1] // self.blocks[1] * self.blocks[1])
        step(self, *arguments)

    changes = {"no scale": ("flash_forward", lambda q, k, v, s, c: forward(q, k, v, 1.0, c)),
               "no mask": ("flash_forward", lambda q, k, v, s, c: forward(q, k, v, s, False)),
               "the tail of the keys dropped": ("OnlineAttention.forward", tail_dropped)}
    for name, (where, change) in changes.items():
        owner = adapters.OnlineAttention if "." in where else adapters
        saved = getattr(owner, where.split(".")[-1])
        setattr(owner, where.split(".")[-1], change)
        tap.ok(any(error for _, error in test_attention.run()), f"and fails a wrong one: {name}")
        setattr(owner, where.split(".")[-1], saved)


def main():
    tap = Tap()
    build = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    check_no_solution(tap)
    check_contents(tap)
    check_compiles(tap)
    check_program(tap, build)
    check_target(tap)
    check_debug(tap)
    if build:
        check_use(tap, build)
        check_class(tap, build)
        check_screens(tap, build)
    check_lecture(tap)
    check_similarity(tap)
    check_quiz(tap)
    check_python(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
