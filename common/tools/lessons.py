# SPDX-License-Identifier: MIT
"""lessons.py: what a lesson page is, so that the map of the lessons and its limits cannot drift.

A lesson is docs/NN_name/K_title.md (or docs/00_start_here.md): short enough to finish in one
sitting, always with the same parts in the same order. The limits stand here and nowhere else.

Interface:
- pages(root): the lesson files in order. Lesson(path): number, stage, title, minutes, gpu, text.
- problems(lesson, root): what is wrong with a page, one sentence each; empty when all is well.
- index(root, stages): a Markdown table of the lessons of these stages, links relative to a page.
- minutes(root, numbers): the sum over lessons, each a number (03.1) or a whole stage (03).
- prose_words(text), code_lines(text), figures(text), table_rows(text): what is limited.
"""
import os
import pathlib
import re

MAX_WORDS, MAX_CODE, MAX_ROWS = 1200, 120, 8
MINUTES = range(10, 21)
GPU = ("no GPU", "a GPU helps", "needs a GPU")
TITLE = re.compile(rf"# (\d\d(?:\.\d+)?) (.+?) +\((\d+) minutes, ({'|'.join(GPU)})\)\n")
# Each begins a paragraph, in this order.
PARTS = ["**Question.**", "**Write down a guess.**", "**What breaks if**", "**Check yourself.**",
         "**In short.**", "**Next:**"]
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
# What the docs tool inserts and nobody reads as sentences; an inserted number is read.
INSERTED = re.compile(r"<!-- (code|diff|table|reading|ladder|run|lessons): .*?<!-- /\1 -->", re.S)
# How a page came to be is no lesson.
HISTORY = re.compile(r"(?i)\b(sessions?|(?:first|earlier|old) (?:draft|version)s?|rewritten)\b")


class LessonError(Exception):
    """A lesson that is asked for and is not there, in one sentence."""


class Lesson:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.text = self.path.read_text(encoding="utf-8")
        title = TITLE.match(self.text)
        self.number, self.title, minutes, self.gpu = title.groups() if title else ("", "", 0, "")
        self.minutes = int(minutes)
        one_page = re.match(r"(0\d)_", self.path.name)
        name = one_page or re.match(r"(\d\d)_", self.path.parent.name)
        self.stage = name.group(1)
        in_stage = re.match(r"\d+", self.path.name).group(0)
        self.wanted = self.stage if one_page else f"{self.stage}.{in_stage}"


def pages(root):
    docs = pathlib.Path(root) / "docs"
    found = [*docs.glob("00_*.md"), *docs.glob("0[0-9]_*/[0-9]*_*.md")]
    return sorted(found, key=lambda path: [
        int(n) for n in re.findall(r"(?<=/)\d+(?=_)", str(path.relative_to(docs.parent)))])


def prose_words(text):
    text = re.sub(r"<!-- number: .*?-->(.*?)<!-- /number -->", r"\1", text, flags=re.S)
    text = FENCED.sub(" ", INSERTED.sub(" ", text))
    text = re.sub(r"<!--.*?-->|</?\w[^>\n]*>", " ", text, flags=re.S)
    text = re.sub(r"!\[[^\]\n]*\]\([^)\n]*\)", " ", text)
    text = re.sub(r"\]\([^)\n]*\)", "]", text)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`", " x ", text, flags=re.S)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def code_lines(text):
    return sum(bool(line.strip()) for block in FENCED.findall(text)
               for line in block.split("\n")[1:-1])


def figures(text):
    return re.findall(r"!\[[^\]\n]*\]\(([^)\n]*)\)", FENCED.sub("", text))


def table_rows(text):
    """Rows below the heads, for each table."""
    found = re.findall(r"(?:^\|[^\n]*\n?)+", FENCED.sub("", text), re.M)
    return [max(0, table.count("\n") + (not table.endswith("\n")) - 2) for table in found]


def items(text):
    return re.findall(r"^(\d+)\. ", text, re.M)


def order_problems(text):
    places = [re.search(rf"^{re.escape(part)}", text, re.M) for part in PARTS]
    found = [f"no paragraph begins with {part}" for part, place in zip(PARTS, places) if not place]
    starts = [place.start() for place in places if place]
    return found + (["its parts are not in the order " + " ".join(PARTS)]
                    if starts != sorted(starts) else [])


def check_problems(text):
    """Three questions, and three answers that one has to unfold."""
    part = text.partition(PARTS[3])[2].partition(PARTS[4])[0]
    asked, fold, answers = part.partition("<details>")
    found = [] if items(asked) == ["1", "2", "3"] else ["'Check yourself' has not questions 1 to 3"]
    if not fold or items(answers) != ["1", "2", "3"] or "</details>" not in answers:
        found.append("the questions have not answers 1 to 3 in <details>")
    return found


def figure_problems(text):
    """Below a figure a sentence says what to see in it."""
    below = re.findall(r"^!\[[^\]\n]*\]\(([^)\n]*)\)\s*([^\n]*)", FENCED.sub("```", text), re.M)
    return [f"no sentence below {name} says what to see" for name, line in below
            if not re.match(r"[A-Z\[*].*[.:]", line)]


def next_problems(lesson, root):
    """The last paragraph leads on: to a page, or to a step of ./ladder learn that exists."""
    last = lesson.text.partition(PARTS[-1])[2]
    steps = re.findall(r"\./ladder learn (\d\d\.\d[a-z])", lesson.text)
    for named in re.findall(r"[Ss]teps? ((?:\d\d\.\d[a-z](?:, | and )?)+)", lesson.text):
        steps += re.findall(r"\d\d\.\d[a-z]", named)
    learn = pathlib.Path(root) / "docs/learn"
    found = [f"step {step}: there is no docs/learn/{step}_*" for step in sorted(set(steps))
             if not list(learn.glob(f"{step}_*"))]
    if not re.search(r"\]\([^)]+\.md|\./ladder learn", last):
        found.append("'Next' leads to no page and no step")
    return found


def problems(lesson, root):
    text = lesson.text
    if not lesson.number:
        return ["its first line is not '# NN.K Title (M minutes, no GPU)', or 'a GPU helps', or "
                "'needs a GPU'"]
    found = [] if lesson.number == lesson.wanted else [
        f"its title says {lesson.number}, its place {lesson.wanted}"]
    if lesson.minutes not in MINUTES:
        found.append(f"{lesson.minutes} minutes, {MINUTES[0]} to {MINUTES[-1]} are accepted")
    for what, have, limit in (("words of prose", prose_words(text), MAX_WORDS),
                              ("lines of code", code_lines(text), MAX_CODE),
                              ("rows in a table", max(table_rows(text), default=0), MAX_ROWS)):
        if have > limit:
            found.append(f"{have} {what}, {limit} are accepted")
    if len(figures(text)) != 1:
        found.append(f"{len(figures(text))} figures, each page has one")
    if "ot yet recorded" in text:
        found.append("a number is not yet recorded: a lesson has no gaps (pending=hide)")
    if lesson.stage != "00" and "Try it" not in text:
        found.append("nothing to run: no 'Try it'")
    found += [f"speaks of how it was made: '{word}'" for word in HISTORY.findall(text)]
    found += figure_problems(text)
    return found + order_problems(text) + check_problems(text) + next_problems(lesson, root)


def chosen(root, numbers):
    lessons = [Lesson(path) for path in pages(root)]
    found = []
    for number in numbers:
        mine = [lesson for lesson in lessons if number in (lesson.number, lesson.stage)]
        if not mine:
            raise LessonError(f"there is no lesson {number}")
        found += mine
    return found


def index(root, numbers, page):
    lines = ["| page | minutes | GPU |", "|---|--:|---|"]
    for lesson in chosen(root, numbers):
        target = os.path.relpath(lesson.path, pathlib.Path(page).resolve().parent)
        lines.append(f"| [{lesson.number} {lesson.title}]({target}) | {lesson.minutes} | "
                     f"{lesson.gpu} |")
    return "\n".join(lines) + "\n"


def minutes(root, numbers):
    return sum(lesson.minutes for lesson in chosen(root, numbers))
