# SPDX-License-Identifier: MIT
"""grade_formats.py: what ./ladder grade found, for people and for the systems that courses use.

A result is the JSON object of one submission as grade.py makes it: submission, score, max_score,
sandbox, compiler, tests; a test has name, group, visibility, score, max_score, status, message,
hint, trace, inputs, flags, errors, output, ms.

Interface:
- FORMATS: format -> (name of its one file, or None: a file for each submission).
- write(form, results, suite, out): the texts as {file name: text}; without `out` there is one.
- table, json_lines, gradescope, otter, junit, csv_rows: one format each, text from results.
"""
import csv
import io
import json
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))  # for all here
import tool

FORMATS = {"table": "table.txt", "json": "results.jsonl", "gradescope": None, "otter": None,
           "junit": "results.xml", "csv": "results.csv"}
# XML 1.0 has no way to say these
NOT_XML = re.compile("[^\t\n\r\x20-\uD7FF\uE000-\uFFFD]")


def xml_text(text):
    return NOT_XML.sub("?", text)


def cell(text):
    """A cell that a spreadsheet does not take for a formula."""
    return f"'{text}" if text and text.startswith(tuple("=+-@\t\r")) else text


def points(value):
    return f"{value:g}"


def error_line(error):
    text = f"{error['array']}: {error['where']}"
    if "expected" in error:
        text += f"; expected {error['expected']}, found {error['found']}"
    return text


def details(test):
    """What a student reads about a test that is not right."""
    lines = tool.lines_of(test["message"].strip())
    lines += [error_line(error) for error in test["errors"]]
    lines += [f"hint: {test['hint']}"] if test["hint"] else []
    lines += [f"trace: {test['trace']}"] if test.get("trace") else []
    if test["visibility"] == "visible" and test["message"] and test.get("flags"):
        lines += [f"flags: {test['flags']}", *tool.lines_of(test.get("inputs", ""))]
    if test["message"] and test.get("replay"):
        lines.append(f"alone: {test['replay']}")
    if test["output"]:
        lines += ["your program printed:",
                  *(f"  | {line}" for line in tool.lines_of(test["output"]))]
    return lines


def table(results, _suite):
    lines = []
    for result in results:
        head = f"{result['submission']}: {points(result['score'])} of {points(result['max_score'])}"
        lines.append(head + ("" if result["sandbox"] == "strict" else "  (without a sandbox)"))
        lines += [f"    compiler: {line}" for line in tool.lines_of(result["compiler"])]
        before = []
        for test in result["tests"]:
            lines.append(f"  {test['status']:8} {points(test['score']):>5} of "
                         f"{points(test['max_score']):<5} {test['name']}")
            # what was said of the case before it need not be said again
            said = details(test)
            lines += [f"           {line}" for line in said if line not in before]
            before = said
    return "\n".join(lines) + "\n"


def json_lines(results, _suite):
    return "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)


def gradescope(result, _suite):
    """https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
    tests = []
    for number, test in enumerate(result["tests"], 1):
        tests.append({"name": test["name"], "number": str(number), "score": test["score"],
                      "max_score": test["max_score"],
                      "status": "passed" if test["status"] == "right" and
                                test["score"] == test["max_score"] else "failed",
                      "output": "\n".join([test["status"], *details(test)]),
                      "output_format": "text", "visibility": test["visibility"],
                      "tags": [test["group"]] if test["group"] else []})
    text = f"{points(result['score'])} of {points(result['max_score'])} points"
    if result["sandbox"] != "strict":
        text += "; the submission ran without a sandbox"
    if result["compiler"]:
        text += f"\nthe compiler said:\n{result['compiler']}"
    whole = {"score": result["score"], "output": text, "output_format": "text",
             "visibility": "visible", "stdout_visibility": "hidden", "tests": tests,
             "extra_data": {"submission": result["submission"], "sandbox": result["sandbox"],
                            "max_score": result["max_score"]}}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def otter(result, suite):
    """Otter-Grader's results of one test file, as ottr writes them. A test there is right or not:
    one with a share of its points becomes two."""
    cases = []

    def add(name, value, passed, text):
        hidden = test["visibility"] != "visible"
        cases.append({"passed": passed, "error": None if passed else text,
                      "test_case": {"name": name, "points": value, "hidden": hidden,
                                    "success_message": text if passed and text else None,
                                    "failure_message": None if passed else text}})

    for test in result["tests"]:
        text = "\n".join([test["status"], *details(test)])
        lost = test["max_score"] - test["score"]
        if test["score"] > 0 or lost <= 0:
            add(test["name"], test["score"], True, "" if lost <= 0 else text)
        if lost > 0:
            add(test["name"] + (" (the rest)" if test["score"] > 0 else ""), lost, False, text)
    whole = {"test_file_results": [{"filename": os.path.basename(suite.path),
                                    "test_case_results": cases}]}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def junit(results, _suite):
    root = xml.Element("testsuites")
    for result in results:
        tests = result["tests"]
        wrong = [test for test in tests if test["status"] in ("wrong", "refused")]
        skipped = [test for test in tests if test["status"] == "skipped"]
        suite = xml.SubElement(root, "testsuite", name=xml_text(result["submission"]),
                               tests=str(len(tests)), failures=str(len(wrong)),
                               skipped=str(len(skipped)),
                               errors=str(sum(test["status"] in ("crashed", "time", "memory")
                                              for test in tests)),
                               time=f"{sum(test['ms'] for test in tests) / 1e3:.3f}")
        for test in tests:
            case = xml.SubElement(suite, "testcase", name=xml_text(test["name"]),
                                  classname=xml_text(test["group"] or "cases"),
                                  time=f"{test['ms'] / 1e3:.3f}")
            if test["status"] == "right":
                continue
            kind = {"wrong": "failure", "refused": "failure", "skipped": "skipped"}
            what = xml.SubElement(case, kind.get(test["status"], "error"),
                                  message=xml_text(test["message"]))
            if what.tag != "skipped":
                what.set("type", test["status"])
            what.text = xml_text("\n".join(details(test)))
    xml.indent(root)
    text = xml.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def most_lost(result):
    """(status, reason) of a submission: "right", or the status of wrong tests that cost the most
    points, with the words of its first. What this machine could not do comes before all else."""
    lost = {}
    for test in result["tests"]:
        if test["status"] != "right":
            cost, reason = lost.get(test["status"], (0, test["message"]))
            lost[test["status"]] = cost + test["max_score"], reason
    status = "skipped" if "skipped" in lost else max(lost, key=lost.get, default="right")
    return status, " ".join(lost.get(status, (0, ""))[1].split())


def csv_rows(results, suite):
    to = io.StringIO()
    rows = csv.writer(to, lineterminator="\n")
    compared = any("similarity" in result for result in results)
    alike = ["similarity_public", "similarity_public_file", "similarity_class",
             "similarity_class_with", "similarity_why"] if compared else []
    rows.writerow(["submission", "score", "max_score", "status", "reason", *alike,
                   *(cell(case.name) for case in suite.cases)])
    for result in results:
        found = result.get("similarity") or {}
        values = [cell(value) if isinstance(value, str) else value
                  for kind in ("repository", "class") if found for value in found[kind].values()]
        values = [*(values or [""] * 4), cell(result.get("similarity_why", ""))] if alike else []
        status, reason = most_lost(result)
        rows.writerow([cell(result["submission"]), points(result["score"]),
                       points(result["max_score"]), status, cell(reason),
                       *values,
                       *(points(test["score"]) for test in result["tests"])])
    return to.getvalue()


ONE_TEXT = {"table": table, "json": json_lines, "junit": junit, "csv": csv_rows}
ONE_EACH = {"gradescope": gradescope, "otter": otter}


def file_name(result, number):
    """A name of its own for each submission, and one that is a file name anywhere. Where all files
    have the same name the folder tells whose it is."""
    path = pathlib.PurePath(result["submission"])
    own = path.parent.name if path.stem in ("mine", "mine_twist") else ""
    base = re.sub(r"[^\w.-]", "_", own or path.name)
    return f"{number:03}_{base}.json"


def write(form, results, suite):
    if form in ONE_TEXT:
        return {FORMATS[form]: ONE_TEXT[form](results, suite)}
    return {file_name(result, number): ONE_EACH[form](result, suite)
            for number, result in enumerate(results, 1)}
