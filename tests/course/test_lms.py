#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_lms.py: names of Canvas and Moodle, and what goes back there."""
import csv
import io
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "common" / "course")]
import autograder
import grade
import lms
from tap import Tap

FILES = ["doejane_4711_99_mine.c", "doejane_LATE_4711_101_mine_twist-2.c",
         "roe_LATE_4712_100_mine-1.c", "\u738b\u82b3_78_assignsubmission_file_mine.cu",
         "x_1_2_Mine.C", "mine.c"]
FOLDERS = ["Li Na_77_assignsubmission_file_", "-rf", "\u7c73"]


def rows(text):
    return list(csv.reader(io.StringIO(text)))


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        os.chdir(place)
        for name in FILES:
            (place / name).write_text(name, encoding="utf-8")
        for name in FOLDERS:
            (place / name).mkdir()
            (place / name / "mine.c").write_text(name, encoding="utf-8")
            os.utime(place / name / "mine.c", (0, 90000))
        (place / "made").mkdir()
        class_, left = lms.students([*FILES, *FOLDERS], place / "made")
        tap.ok([(s.name, s.number, s.system, s.late) for s in class_] == [
            ("doejane_4711", "4711", "canvas", True), ("roe_4712", "4712", "canvas", True),
            ("\u738b\u82b3_78_assignsubmission_file", "78", "moodle", False),
            ("x_1", "1", "canvas", False), (FOLDERS[0], "77", "moodle", False),
            ("-rf", "", "", False), ("\u7c73", "", "", False)],
               "students by the names of files and folders", str(class_))
        tap.ok(left == ["mine.c"], "and what is no student's", str(left))
        group = "Group_3_79_assignsubmission_file_mine.c"  # with the look of a file of Canvas
        (place / group).write_text(group, encoding="utf-8")
        (place / "group").mkdir()
        (found,), _ = lms.students([group], place / "group")
        tap.ok((found.number, found.system) == ("79", "moodle") and
               pathlib.Path(found.folder, "mine.c").is_file(), "a name of Moodle with a number",
               str(found))
        tap.ok({path.name: path.read_text(encoding="utf-8") for path in
                pathlib.Path(class_[0].folder).iterdir()} ==
               {"mine.c": FILES[0], "mine_twist.c": FILES[1]} and
               pathlib.Path(class_[2].folder, "mine.cu").is_file() and
               autograder.nearly(pathlib.Path(class_[3].folder, "mine.c")) == "Mine.C",
               "files become mine.c again; one with another name is found")
        (place / "talk.csv").write_text("name,points\ndoejane_4711,25\n-rf,+1.5\n\nbob,.5\n",
                                        encoding="utf-8")
        points = lms.points_of(place / "talk.csv")
        tap.ok(points == {"doejane_4711": 25, "-rf": 1.5, "bob": 0.5}, "points of a talk",
               str(points))
        tap.ok(lms.strangers(points, class_) == ["bob"], "and a name that no student has")
        for line, said in (('eve,"12,5"', "'12,5' in line 2"), ("eve", "'' in line 2"),
                           ("eve,nan", "'nan' in line 2"), ("ann,2", "'ann' again in line 2")):
            (place / "odd.csv").write_text(f"ann,1\n{line}\n", encoding="utf-8")
            try:
                found = str(lms.points_of(place / "odd.csv"))
            except ValueError as why:
                found = str(why)
            tap.ok(found == said, f"a row of a talk is refused: {line}", found)
        (place / "odd.csv").write_text('eve,"12,5"\n', encoding="utf-8")
        try:
            found = str(lms.points_of(place / "odd.csv"))
        except ValueError as why:
            found = str(why)
        tap.ok(found == "'12,5' in line 1", "a first row with a digit is no header", found)
        results = [{"submission": f"/home/teacher/{s.name}", "score": 10.0 + n, "max_score": 50,
                    "sandbox": "strict", "compiler": "", "tests": [{
                        "name": "a case", "status": "wrong", "message": "=O is wrong",
                        "score": 0.0, "max_score": 1.0, "errors": [], "hint": "", "output": "",
                        "visibility": "visible"}]} for n, s in enumerate(class_)]
        made = lms.files(results, class_, "2_flash", lms.when("1970-01-01T00:00+00:00"),
                         lms.points_of(place / "talk.csv"))
        tap.ok(rows(made["canvas.csv"]) == [["Student", "ID", "Section", "2_flash"],
                                            ["doejane", "4711", "", "35"],
                                            ["roe", "4712", "", "11"], ["x", "1", "", "13"]],
               "Canvas: its columns, with the talk's points", made["canvas.csv"])
        tap.ok(rows(made["moodle.csv"])[2] == ["Participant 77", "Li Na", "14",
                                               "14 of 50; wrong: =O is wrong"],
               "Moodle: its columns, with words", made["moodle.csv"])
        whole = rows(made["points.csv"])
        tap.ok(whole[6] == ["'-rf", "16.5", "15 of 50; wrong: =O is wrong", "2", "15", "1.5"],
               "points.csv: late days, the machine's points and the talk's", str(whole))
        names = sorted(name for name in made if name.startswith("feedback/"))
        tap.ok(len(names) == 7 and "feedback/\u7c73.txt" in names and "feedback/rf.txt" in names and
               "a case" in made["feedback/rf.txt"] and "/home" not in str(made),
               "a text for each student, names kept, without the teacher's folders", str(names))
        parsed = grade.parse(["2", "-rf", "\u7c73", "--key", "k"])
        tap.ok(parsed.submissions == ["./-rf", "\u7c73"], "a folder with the name of a flag",
               str(parsed.submissions))
        os.chdir("/")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
