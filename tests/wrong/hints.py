# SPDX-License-Identifier: MIT
"""hints.py: does a hint name the mistake that a patch makes?

Each patch of stages 01 to 05 that a run of cases can show declares the codes that are right for it
(`hint:`). Its outputs over a suite of cases go to attn_hints, which must answer with one of them.
Where it cannot, the patch says why (`no-hint:`), and then no mistake at all may be named: a wrong
name costs a student more than none.

The results are rows of docs/course/hints.md. The rows of the page are compared, so the page is what
this test saw.

Interface:
- Hints(build, stage): collect(command, fields, path) runs the cases; judge(tap) asks attn_hints
  once for each suite of cases and compares answers and page.
- SUITES: the files of cases. PAGE, page_row, declared, needs_hint.
- update_page(hints): writes the rows of its patches.
- coverage(prefixes): how many patches are named.
"""
import json
import os
import re

from workshop import HERE, ROOT, Failure, read_patch, run

COURSE = os.path.join(ROOT, "tests/course")
PAGE = os.path.join(ROOT, "docs/course/hints.md")
SUITES = {"forward": "hints_forward.cases", "backward": "hints_backward.cases",
          "options": "hints_options.cases", "options_backward": "hints_options_backward.cases"}
# Tiles small enough that a suite's lengths have several of them.
STAGE_FLAGS = {"flash_forward": ["--sram", "1024"],
               "sliding_window": ["--block-q", "16", "--block-kv", "16"]}
ENDS = {"inputs", "storage", "crash"}  # the end of the run says these itself


def suite_of(fields, stage):
    """The name of the suite, and whether its lines lack --backward."""
    backward = stage == "flash_backward" or bool(fields["caught-by"] & {"dQ", "dK", "dV"})
    if stage == "sliding_window":
        return "options_backward" if backward else "options"
    return "backward" if backward else "forward"


def suite_lines(name):
    with open(os.path.join(COURSE, SUITES[name]), encoding="utf-8") as f:
        return [line.strip() for line in f]


def declared(fields):
    """Codes that are right; () when the patch says that no name is known."""
    return () if "no-hint" in fields else tuple(fields["hint"].split())


def needs_hint(fields):
    return "program" not in fields and not fields["caught-by"] <= ENDS


class Hints:
    def __init__(self, build, stage, folder):
        self.tool = os.path.join(build, "common/course/attn_hints")
        self.stage, self.folder = stage, os.path.join(folder, "found")
        self.runs = []  # [(path, fields, suite, folder)]

    def collect(self, command, fields, path):
        """Runs the suite; a line that the variant skips ends it, a crash too."""
        if not needs_hint(fields):
            return
        suite = suite_of(fields, self.stage)
        out = os.path.join(self.folder, os.path.basename(path)[:-len(".patch")])
        flags = STAGE_FLAGS.get(self.stage, [])
        if suite == "backward" and self.stage != "flash_backward":
            flags = flags + ["--backward"]
        done = run(command + flags + ["--cases", os.path.join(COURSE, SUITES[suite]), "--no-check",
                                      "--quiet", "--threads", "2", "--save", out],
                   env=dict(os.environ, ATTN_ISA="portable"))
        if not os.path.isdir(out):
            raise Failure(f"no line of {SUITES[suite]} gave a result\n{done.stderr[-500:]}")
        self.runs.append((path, fields, suite, out))

    def answers(self):
        """{patch: answer of attn_hints}"""
        found = {}
        for suite in {suite for _, _, suite, _ in self.runs}:
            mine = [(path, out) for path, _, of, out in self.runs if of == suite]
            flags = ["--backward"] if suite == "backward" else []
            words = [word for _, out in mine for word in ("--found", out)]
            done = run([self.tool, "--cases", os.path.join(COURSE, SUITES[suite])] + flags + words)
            lines = done.stdout.splitlines()
            if done.returncode != 0 or len(lines) != len(mine):
                raise Failure(f"attn_hints: exit status {done.returncode}\n{done.stderr[-500:]}")
            found.update((path, json.loads(line)) for (path, _), line in zip(mine, lines))
        return found

    def judge(self, tap):
        try:
            answers = self.answers()
            with open(PAGE, encoding="utf-8") as f:
                page = f.read()
        except (Failure, OSError, json.JSONDecodeError) as why:
            tap.ok(False, "hints", str(why))
            return
        for path, fields, suite, _ in self.runs:
            answer, right = answers[path], declared(fields)
            tap.ok(answer["code"] in right if right else answer["code"] == "",
                   f"{os.path.basename(path)}: hint {answer['code'] or 'none'}",
                   f"right are {' '.join(right) or 'no name'}\n{json.dumps(answer)[:1500]}")
            row = page_row(path, fields, suite, answer)
            tap.ok(row in page, f"{os.path.basename(path)}: the row of the page", row)


def page_row(path, fields, suite, answer):
    """| patch | what | a mark for each case | hint |"""
    passed = {case["line"]: case["pass"] for case in answer["cases"]}
    marks = "".join("?" if number not in passed else "." if passed[number] else "x"
                    for number, line in enumerate(suite_lines(suite), 1) if line)
    if "varies" in fields.get("no-hint", ""):
        marks = "varies"
    symptoms = [error["code"] for case in answer["cases"] for error in case["errors"]]
    hint = f"`{answer['code']}`" if answer["code"] else "none"
    if not answer["code"] and symptoms and marks != "varies":
        hint += f" (`{symptoms[0]}`)"
    return (f"| {os.path.basename(path)[:-len('.patch')]} | {fields['what']} | {suite} | `{marks}` "
            f"| {hint} |")


def update_page(hints):
    """Writes the rows of these patches; those of others stay."""
    answers = hints.answers()
    rows = {os.path.basename(path)[:-len(".patch")]: page_row(path, fields, suite, answers[path])
            for path, fields, suite, _ in hints.runs}
    with open(PAGE, encoding="utf-8") as f:
        text = f.read()
    known = {row.split(" ")[1]: row for row in re.findall(r"^\| \d{3}_.*$", text, re.MULTILINE)}
    known.update(rows)
    here = {name[:-len(".patch")] for name in os.listdir(HERE) if name.endswith(".patch")}
    table = "\n".join(known[name] for name in sorted(known) if name in here)
    head, tail = re.fullmatch(r"(.*?\|---\|---\|---\|---\|---\|\n)(?:\| \d{3}_.*?\n)*(.*)", text,
                              re.DOTALL).groups()
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(head + table + "\n" + tail)


def coverage(prefixes):
    """(patches with a declared name that is reached, all that a run can show)."""
    named = total = 0
    for name in sorted(os.listdir(HERE)):
        if not name.endswith(".patch") or "cuda" in name or name[0] not in prefixes:
            continue
        fields, _ = read_patch(os.path.join(HERE, name))
        if needs_hint(fields):
            total += 1
            named += bool(declared(fields))
    return named, total
