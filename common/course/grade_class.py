#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""grade_class.py: ./ladder grade N: a class by all suites of assignment N, one result a student.

    ./ladder grade N FOLDER... --key FILE [the other flags of grade.py]

A FOLDER is one student's: mine.c and, for this year's change, mine_twist.c. The files of Canvas and
Moodle (lms.py) do as well. With --out DIR there are points.csv, what the two import, and a text for
each student in DIR/feedback. --talk FILE (name, points) is added to the points, --due DATE counts
days by the files' times, --change NAME is the change of the handout. Each is graded by the
public suites, by the hidden ones as the key draws them, and by the suite of the change that the key
decides on. All seeds come from the key, those of the public suites too: a table of outputs that was
made from the handout fits no case. With --out DIR the cases are written to DIR/cases.lock with
their seeds and the revision; grading again reads them, and each lost case says which command runs
it. What is not there has no points. A name that is no folder is left out, and said to be.
The field `similarity` is that of mine.c.

Exit: as grade.py.

Interface:
- locked(folder, key, lock): the suites' texts. grade_class(options) -> (suite, results).
"""
import csv
import hashlib
import json
import pathlib
import sys
import tempfile

import autograder
import grade
import handout
import lms
import suite as suites
import tool


def locked(folder, key, lock, change=None):
    """{name: text} of all suites: those of the file, or as the key draws them, written to it."""
    mine = {"assignment": folder.name, "revision": handout.revision(),
            "key": hashlib.sha256(b"lock\0" + key).hexdigest()}
    if lock and lock.is_file():
        try:
            found = json.loads(lock.read_text(encoding="utf-8"))
            texts = {str(name): str(text) for name, text in found["suites"].items()}
            theirs = {name: found[name] for name in mine}
        except (OSError, *tool.MALFORMED):
            raise grade.UsageError(f"--lock {lock}: found no cases in it, accepted is what a "
                                   "grading run wrote") from None
        for name in ("assignment", "key"):
            if theirs[name] != mine[name]:
                raise grade.UsageError(f"--lock {lock}: found another {name}, accepted is the "
                                       "cases.lock of this one")
        if theirs["revision"] != mine["revision"]:
            print(f"grade: note: {lock} was written by revision {theirs['revision']}, this is "
                  f"{mine['revision']}", file=sys.stderr)
        return texts
    texts = handout.final_suites(folder, key, change)
    if lock:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text(json.dumps({**mine, "suites": texts}, indent=1) + "\n", encoding="utf-8")
    return texts


def write_suites(folder, key, place, lock=None, change=None):
    """All suites as files."""
    for name, text in locked(folder, key, lock, change).items():
        (place / pathlib.Path(name).name).write_text(text, encoding="utf-8")
    return autograder.suites_of(place)


def whole_suite(folder, parts):
    """All suites as one, with the names of autograder.merged: what a format's header shows."""
    whole = suites.Suite(path=folder.name)
    for part in parts:
        whole.cases += [suites.Case(line=0, flags=[], points=case.points,
                                    name=f"{pathlib.Path(part.path).stem}: {case.name}")
                        for case in part.cases]
    return whole


def grade_suite(path, students, options):
    """(suite, {student: result}): one run for all who have the file."""
    files = {student: autograder.submission_for(path, student) for student in students}
    there = [student for student in students if not grade.missing(files[student])]
    suite, results = suites.read(path), {}
    if there:
        options.suite, options.submissions = str(path), [str(files[one]) for one in there]
        suite, found = grade.grade(options)
        results = dict(zip(there, found))
    return suite, {student: results.get(student) or autograder.absent(suite, files[student])
                   for student in students}


def say_revisions(class_):
    """Who hands in the whole folder shows which handout it was."""
    mine, others = handout.revision(), {}
    for student in class_:
        path = pathlib.Path(student.folder) / "REVISION"
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1000:
            text = path.read_text(encoding="utf-8", errors="replace").strip()[:60]
            others.setdefault(text, []).append(student.name)
    for text, names in others.items():
        if text != mine:
            more = f" and {len(names) - 1} more" if names[1:] else ""
            print(f"grade: note: handout of another revision, {grade.printable(text)}, this is "
                  f"{mine}: {grade.printable(names[0])}{more}", file=sys.stderr)


def grade_class(options):
    """(suite, results) as grade.grade; options.suite is the number of the assignment."""
    try:
        folder = handout.assignment(options.suite)
        handout.chosen(folder, b"", options.change)
    except handout.HandoutError as why:
        raise grade.UsageError(why) from None
    if not options.key:
        raise grade.UsageError("found no --key FILE, accepted is the key of the handout, which "
                               "draws the hidden cases")
    class_, left_out = lms.students(grade.without_archive(options.submissions), options.place)
    students = [student.folder for student in class_]
    for name in left_out:
        print(f"grade: {grade.printable(name)} is no folder and is left out", file=sys.stderr)
    if not students:
        raise grade.UsageError("found no folder, accepted is one for each student")
    say_revisions(class_)
    try:
        talk = lms.points_of(options.talk) if options.talk else None
    except (OSError, ValueError, csv.Error) as why:
        raise grade.UsageError(f"--talk {options.talk}: found {why}, accepted is a CSV file with a "
                               "name and a number in each row") from None
    for name in lms.strangers(talk or {}, class_):
        print(f"grade: note: --talk {options.talk}: {grade.printable(name)} is nobody here",
              file=sys.stderr)
    one = pathlib.Path(students[0])
    mine = autograder.MINE + (".cu" if next(folder.glob("stub.cu"), None) else ".c")
    if len(students) == 1 and not (one / mine).exists() and next(one.glob(f"*/{mine}"), None):
        shown = grade.printable(students[0]).rstrip("/")
        raise grade.UsageError(f"{shown}: found folders with {mine} in it, accepted is "
                               f"a folder for each student: {shown}/*")
    with tempfile.TemporaryDirectory(prefix="class") as place:
        paths = write_suites(folder, suites.key_bytes(options.key), pathlib.Path(place),
                             options.lock or (options.out and options.out / "cases.lock"),
                             options.change)
        options.key = None
        options.kept = grade.Kept(place)
        graded = [grade_suite(path, students, options) for path in paths]
    results = []
    for student, name in zip(students, (student.name for student in class_)):
        one = autograder.merged([(suite, found[student]) for suite, found in graded])
        one["submission"] = grade.printable(name)
        alike = [found[student] for _, found in graded if "similarity" in found[student]]
        if not alike and any("similarity" in other for _, found in graded
                             for other in found.values()):
            alike = [{"similarity": None, "similarity_why": f"there is no {mine}"}]
        for word in ("similarity", "similarity_why"):
            one.update({word: alike[0][word]} if alike and word in alike[0] else {})
        results.append(one)
    options.files = lms.files(results, class_, folder.name, options.due, talk)
    return whole_suite(folder, [suite for suite, _ in graded]), results


def main(arguments):
    with tempfile.TemporaryDirectory(prefix="class") as place:  # flat files become folders
        def how(options):
            options.place = pathlib.Path(place)
            return grade_class(options)
        return grade.run(arguments, how)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever LANG says
    tool.end(lambda: main(sys.argv[1:]))
