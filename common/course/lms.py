# SPDX-License-Identifier: MIT
"""lms.py: a class as Canvas and Moodle hand it over, and grades as they take them back.

Folders are students. So are the files of a flat archive, by their names:

    doejane_4711_99_mine.c                              Canvas; doejane_LATE_4711_99_mine-2.c
    Jane Doe_4711_assignsubmission_file_mine.c          Moodle; or a folder of that name

A student whose file has another name is in the lists all the same, and reads what was found.

Interface:
- Student: name (as it was given), folder (with mine.c), number and system ("canvas", "moodle" or
  ""), late: Canvas says so.
- students(names, place): ([Student], names that are left out). Flat files are copied into place.
- late_days(student, due): whole days, by its files' times; what Canvas says without `due`.
- points_of(path): {name: points} of a teacher's CSV: a talk, answers in words. strangers(points,
  students): its names that are no student's.
- files(results, students, title, due, talk): {file name: text}: points.csv for the teacher,
  canvas.csv and moodle.csv to import there, feedback/NAME.txt for each student.
"""
import csv
import datetime
import io
import math
import pathlib
import re
import shutil
import typing

import grade_formats

FLAT = re.compile(r"(?P<name2>.+_(?P<number2>\d+)_assignsubmission_file)_(?P<file2>[^.].*)$"
                  r"|(?P<who>[^_]+)_(?P<late>LATE_)?(?P<number>\d+)_\d+_(?P<file>[^.].*)$")
AGAIN = re.compile(r"^(mine|mine_twist)-\d+(\.cu?)$")  # Canvas numbers what is handed in again
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")
FOLDER = re.compile(r"(?P<who>.+)_(?P<number>\d+)_assignsubmission_file_?$")


class Student(typing.NamedTuple):
    name: str
    folder: str
    number: str = ""
    system: str = ""
    late: bool = False


def students(names, place):
    found, left_out = {}, []
    for name in names:
        path = pathlib.Path(name)
        flat, moodle = FLAT.match(path.name), FOLDER.match(path.name)
        if path.is_dir():
            found[name] = Student(name, name, moodle["number"] if moodle else "",
                                  "moodle" if moodle else "")
        elif flat and path.is_file() and not path.is_symlink():
            canvas = flat["who"] is not None  # each file has a number behind the student's
            who = f"{flat['who']}_{flat['number']}" if canvas else flat["name2"]
            folder = place / who
            folder.mkdir(exist_ok=True)
            shutil.copy2(path, folder / AGAIN.sub(r"\1\2", flat["file"] or flat["file2"]))
            found[who] = Student(who, str(folder), flat["number"] or flat["number2"],
                                 "canvas" if canvas else "moodle",
                                 bool(flat["late"]) or who in found and found[who].late)
        else:
            left_out.append(name)
    return list(found.values()), left_out


def late_days(student, due):
    if due is None:
        return "late" if student.late else ""
    times = [path.stat().st_mtime for path in pathlib.Path(student.folder).glob("mine*.c*")]
    over = max(times, default=0.0) - due.timestamp()
    return str(max(0, math.ceil(over / 86400)))


def when(text):
    return datetime.datetime.fromisoformat(text).astimezone()


def points_of(path):
    """ValueError, OSError: what it has instead. Its first row may be a header, without a digit."""
    points = {}
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        for n, row in enumerate(rows):
            value = row[1].strip() if row[1:] else ""
            if not any(row) or n == 0 and row[1:] and not re.search(r"\d", value):
                continue
            if not NUMBER.fullmatch(value):
                raise ValueError(f"'{value}' in line {rows.line_num}")
            if row[0] in points:
                raise ValueError(f"'{row[0]}' again in line {rows.line_num}")
            points[row[0]] = float(value)
    return points


def names_of(student):
    return student.name, pathlib.PurePath(student.name.rstrip("/")).name


def strangers(points, class_):
    known = {name for student in class_ for name in names_of(student)}
    return [name for name in points if name not in known]


def feedback(result):
    """A sentence for the list: the points, and by what most were lost."""
    status, reason = grade_formats.most_lost(result)
    text = f"{result['score']:g} of {result['max_score']:g}"
    return text if status == "right" else f"{text}; {status}: {reason}"[:400]


def file_of(name):
    base = pathlib.PurePath(name.rstrip("/")).name
    return re.sub(r"[^\w.,() -]", "_", base).lstrip(".-") or "_"


def csv_text(rows):
    to = io.StringIO()
    csv.writer(to, lineterminator="\n").writerows(
        [[grade_formats.cell(value) for value in row] for row in rows])
    return to.getvalue()


def files(results, class_, title, due=None, talk=None):
    whole = [["name", "points", "words", "late_days", "machine", "talk"]]
    canvas = [["Student", "ID", "Section", title]]
    moodle = [["Identifier", "Full name", "Grade", "Feedback comments"]]
    texts = {}
    for student, result in zip(class_, results):
        own = names_of(student)[1]
        extra = (talk or {}).get(student.name, (talk or {}).get(own))
        points, words = f"{result['score'] + (extra or 0):g}", feedback(result)
        whole.append([own, points, words, late_days(student, due), f"{result['score']:g}",
                      "" if extra is None else f"{extra:g}"])
        if student.system == "canvas":
            canvas.append([own.split("_")[0], student.number, "", points])
        if student.system == "moodle":
            moodle.append([f"Participant {student.number}", own.split("_")[0], points, words])
        name = file_of(student.name)
        while f"feedback/{name}.txt" in texts:
            name += "_"
        texts[f"feedback/{name}.txt"] = grade_formats.table([{**result, "submission": own}], None)
    lists = {"points.csv": whole, "canvas.csv": canvas, "moodle.csv": moodle}
    return {**{name: csv_text(rows) for name, rows in lists.items() if rows[1:]}, **texts}
