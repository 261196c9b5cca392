#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quiz.py: bugs to mend in class, out of the wrong solutions of tests/wrong.

    python3 common/course/quiz.py STAGE --key FILE --out DIR [--count N]

STAGE is 01 to 05. The key chooses N patches of that stage's rungs on the CPU (3), so that each
class gets others, and no two of one function: each would show what the other asks for. DIR is new
or empty and gets for each a sheet quizK.md: the function with the mistake, and the flags of a case
that shows it. answers.md, for the teacher, has the mistakes and the lines.

Interface:
- patches(stage): those of the stage that students of C can read. chosen(paths, key, count).
- function_with(before, after): the text of the changed functions. sheet(path): (sheet, answer).
"""
import argparse
import difflib
import hashlib
import os
import pathlib
import re
import sys

import suite as suites

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRONG = ROOT / "tests" / "wrong"
sys.path.insert(0, str(WRONG))
import workshop

STAGES = ("01", "02", "03", "04", "05")


class QuizError(Exception):
    """One sentence: the flag, what was found, what is accepted."""


def readable(fields):
    """A rung that students have seen, not the library."""
    text = fields.get("header", fields["file"])
    return fields["file"].endswith(".c") and "/cpu/" in text and fields["case"] and \
        "common/attention/" not in text and "program" not in fields


def patches(stage):
    return [path for path in sorted(WRONG.glob("*.patch")) if stage in STAGES
            for fields in [workshop.read_patch(path)[0]]
            if readable(fields) and fields["file"].startswith(stage + "_")]


def chosen(paths, key, count):
    def place(path):
        return hashlib.sha256(key + b"\0" + path.name.encode()).digest()
    left, shown = {}, set()
    for path in sorted(paths, key=place):
        functions = changed_functions(path)
        if not functions & shown:
            left[path] = shown.update(functions)
    return list(left)[:count]


def changed_functions(path):
    """The names of the functions that a sheet of this patch shows."""
    fields, hunks = workshop.read_patch(path)
    before = workshop.changed_text(fields)
    text = function_with(before, workshop.apply_hunks(before, hunks))
    return set(re.findall(r"^[A-Za-z][\w *]*?(\w+)\(", text, re.M))


def function_with(before, after):
    """The functions of `after` in which it differs from `before`: a body stands between braces in
    the first column, and a blank line stands before its head."""
    lines = after.split("\n")
    changed = [b for tag, _, _, b, _ in difflib.SequenceMatcher(
        None, before.split("\n"), lines, autojunk=False).get_opcodes() if tag != "equal"]
    parts = []
    for at in changed:
        at = min(at, len(lines) - 1)
        first = max((n for n in range(at) if not lines[n].strip() and
                     re.match(r"[A-Za-z/]", lines[n + 1])), default=-1) + 1
        last = next((n for n in range(at, len(lines)) if lines[n][:1] == "}"), len(lines) - 1)
        parts.append("\n".join(lines[first:last + 1]))
    return "\n\n".join(dict.fromkeys(parts))


def sheet(path):
    fields, hunks = workshop.read_patch(path)
    before = workshop.changed_text(fields)
    after = workshop.apply_hunks(before, hunks)
    shown = function_with(before, after)
    text = (f"This code stands in `{fields.get('header', fields['file'])}`. It has one mistake. "
            "The stage's program finds a wrong result with these flags:\n\n"
            f"    {fields['case'][0]}\n\n"
            "Where is the mistake, why does this case show it, and what must stand there?\n\n"
            f"```c\n{shown}\n```\n")
    lines = [line for line in difflib.unified_diff(after.split("\n"), before.split("\n"),
                                                   lineterm="", n=0)][3:]
    return text, f"{fields['what']}\n\n```diff\n" + "\n".join(lines) + "\n```\n"


def make(options):
    found = patches(options.stage)
    if not found:
        raise QuizError(f"found the stage '{options.stage}', accepted are {', '.join(STAGES)}")
    if not 1 <= options.count <= len(found):
        raise QuizError(f"--count: found {options.count}, accepted is 1 to {len(found)}")
    key = suites.key_bytes(options.key)
    if options.out.exists() and not (options.out.is_dir() and not any(options.out.iterdir())):
        raise QuizError(f"--out {options.out}: found something there, accepted is a new or empty "
                        "folder")
    taken = chosen(found, key, options.count)
    if len(taken) < options.count:
        raise QuizError(f"--count: found {options.count}, accepted is 1 to {len(taken)}: a sheet "
                        "for each function")
    sheets = [sheet(path) for path in taken]
    options.out.mkdir(parents=True, exist_ok=True)
    for number, (text, _) in enumerate(sheets, 1):
        (options.out / f"quiz{number}.md").write_text(f"# Mend this bug, {number}\n\n{text}",
                                                      encoding="utf-8")
    answers = "\n".join(f"## {number}\n\n{answer}" for number, (_, answer) in enumerate(sheets, 1))
    (options.out / "answers.md").write_text(
        f"# Answers\n\nIn a diff `-` is wrong and `+` is right.\n\n{answers}", encoding="utf-8")
    print(f"wrote {len(sheets)} sheets, {options.out / 'quiz1.md'} and so on, and the teacher's "
          f"{options.out / 'answers.md'}")


def main():
    parser = argparse.ArgumentParser(prog="quiz.py", allow_abbrev=False,
                                     description="bugs to mend in class, chosen by a key")
    parser.add_argument("stage", metavar="STAGE", help="01 to 05")
    parser.add_argument("--key", required=True, metavar="FILE")
    parser.add_argument("--out", required=True, metavar="DIR", type=pathlib.Path)
    parser.add_argument("--count", metavar="N", type=int, default=3,
                        help="sheets (3); a stage has 4 to 7")
    options = parser.parse_args()
    try:
        if os.environ.get("LADDER_FROM"):  # where the user of ./ladder stands
            os.chdir(os.environ["LADDER_FROM"])
        make(options)
    except (QuizError, suites.SuiteError) as why:
        print(f"quiz.py: {why}", file=sys.stderr)
        return 2
    except OSError as why:
        print(f"quiz.py: {why.filename}: {why.strerror}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
