#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""autograder.py: grades one student's folder by all suites of an assignment.

    autograder.py --suites DIR [--results FILE] [--so-sandbox strict|off]
                  [--visible DIR --metadata FILE] [--suite HEADER --case FLAGS] FOLDER

DIR holds *.suite files. Each is graded on FOLDER/mine.c, but twist.suite on FOLDER/mine_twist.c (in
CUDA .cu). A file that is not there has no points. Without --results the points are printed for the
student; with it FILE becomes Gradescope's results.json.

--metadata is Gradescope's submission_metadata.json: until the due date that it names, with what the
student was granted, the suites of --visible are graded, afterwards those of --suites. So the points
that a student sees hold nothing of the hidden cases, and a regrade makes the grade. --suite and
--case run one case alone, as a report names it.

Students call it by `make grade`, Gradescope by run_autograder; ./ladder handout writes both. A
class without Gradescope is graded by ./ladder grade N, which is grade_class.py.

Exit: 0 graded, whatever the score; 2 bad usage; 3 it could not be done (results.json says so, too).

Interface:
- suites_of(folder) -> paths, the order of the report. submission_for(suite, folder).
- due(metadata). grade_all(options, place) -> [(suite, result)] as grade.py makes them.
- merged(graded): one result.
"""
import argparse
import datetime
import itertools
import json
import pathlib
import re
import sys
import tempfile

import grade
import grade_formats
import suite as suites
import tool

MINE, TWIST = "mine", "mine_twist"
MOST_LOOKED_AT = 1000  # files in a student's folder
ARCHIVES = (".7z", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip")  # which nobody unpacks here


def suites_of(folder):
    """Simple and public ones first, then what only the teacher has, the change at the end."""
    found = pathlib.Path(folder).glob("*.suite")
    return sorted(found, key=lambda p: (p.stem.startswith("twist"), p.stem.startswith("hidden"),
                                        p.stem != "simple", p.stem != "public", p.name))


def submission_for(suite, folder):
    kind = ".cu" if "contract=flash_cuda" in suite.read_text(encoding="utf-8") else ".c"
    return pathlib.Path(folder) / ((TWIST if suite.stem.startswith("twist") else MINE) + kind)


def nearly(name):
    """What a student may have meant by it: Mine.C, src/mine.c, mine (1).c, or an archive; "" if
    there is none."""
    found = sorted(itertools.islice(pathlib.Path(name).parent.rglob("*"), MOST_LOOKED_AT))
    found = [path for path in found
             if re.fullmatch(rf"{name.stem}(\W.*)?", path.name.lower())] or \
            [path for path in found if path.suffix.lower() in ARCHIVES]
    return str(found[0].relative_to(name.parent)) if found else ""


def absent(suite, name):
    """The result of a submission that is not there."""
    meant = grade.printable(nearly(name))
    result = grade.score(suite, grade.printable(name), None, grade.Compiled(None, "", ""),
                         "strict")
    for test in result["tests"]:
        test["message"] = f"there is no {name.name}" + (meant and f"; there is {meant}")
    return result


def grade_one(path, name, options, kept):
    if grade.missing(name):
        suite = suites.read(path)
        return suite, absent(suite, name)
    orders = grade.parse([str(path), str(name), "--so-sandbox", options.so_sandbox,
                          *(["--build", str(options.build)] if options.build else [])])
    orders.kept = kept
    suite, results = grade.grade(orders)
    grade.check_some_graded(results)
    return suite, results[0]


def due(metadata):
    """When hidden cases begin to count: the last date that this student has; None: now."""
    try:
        found = json.loads(pathlib.Path(metadata).read_text(encoding="utf-8"))
        own = [user.get("assignment") or {} for user in found.get("users") or []]
        dates = [one[name] for one in [found.get("assignment") or {}, *own]
                 for name in ("due_date", "late_due_date") if one.get(name)]
        return max(datetime.datetime.fromisoformat(date).astimezone() for date in dates)
    except (OSError, *tool.MALFORMED):
        return None


def chosen_suites(options, place):
    """The folder whose suites are graded."""
    if options.suite:
        path = pathlib.Path(place) / ("twist.suite" if "--twist" in options.case else "case.suite")
        path.write_text(f"{options.suite} key=none\n : {options.case}\n", encoding="utf-8")
        return place
    date = due(options.metadata) if options.metadata and options.visible else None
    early = date and datetime.datetime.now().astimezone() < date
    return options.visible if early else options.suites


def grade_all(options, place):
    options.suites = chosen_suites(options, place)
    paths = suites_of(options.suites)
    if not paths:
        raise grade.UsageError(f"--suites {options.suites}: found no *.suite file, accepted is a "
                               "folder with some")
    kept = grade.Kept(place)
    return [grade_one(path, submission_for(path, options.folder), options, kept)
            for path in paths]


def merged(graded):
    """All suites as one result. A test's name begins with its suite's."""
    tests = [{**test, "name": f"{pathlib.Path(suite.path).stem}: {test['name']}"}
             for suite, result in graded for test in result["tests"]]
    said = dict.fromkeys(result["compiler"] for _, result in graded if result["compiler"])
    name = MINE + (".cu" if graded[0][0].contract == "flash_cuda" else ".c")
    return {"submission": name, "score": round(sum(test["score"] for test in tests), 2),
            "max_score": sum(result["max_score"] for _, result in graded),
            "sandbox": graded[0][1]["sandbox"], "compiler": "\n".join(said), "tests": tests}


def failed(why):
    """Gradescope's file when there is no grade: the student sees that it is not their fault."""
    return json.dumps({"score": 0, "output": f"This could not be graded: {why}. Please tell your "
                       "instructor.", "output_format": "text", "visibility": "visible"}) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="autograder.py", allow_abbrev=False,
                                     description="grade one student's folder by all suites")
    parser.add_argument("--suites", required=True, metavar="DIR")
    parser.add_argument("--results", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--visible", metavar="DIR")
    parser.add_argument("--metadata", metavar="FILE")
    parser.add_argument("--suite", metavar="HEADER")
    parser.add_argument("--case", metavar="FLAGS", default="")
    parser.add_argument("--so-sandbox", choices=("strict", "off"), default="strict")
    parser.add_argument("--build", metavar="DIR", type=pathlib.Path)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    options = parser.parse_args()
    status, text = 0, None
    try:
        with tempfile.TemporaryDirectory() as place:
            graded = grade_all(options, place)
        result = merged(graded)
        text = grade_formats.gradescope(result, graded[0][0]) if options.results else \
            grade_formats.table([result], graded[0][0])
    except (grade.UsageError, grade.CannotGrade, suites.SuiteError) as why:
        print(f"autograder: {why}", file=sys.stderr)
        status = 3 if isinstance(why, grade.CannotGrade) else 2
        text = failed(why) if options.results else ""
    if options.results:
        options.results.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return status


if __name__ == "__main__":
    tool.end(main)
