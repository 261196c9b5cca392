#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Lessons can be finished: every page under docs/NN_name/ keeps the limits of lessons.py (words,
lines of code, one figure, minutes, the parts in order, three questions with folded answers, a way
on), and the limits themselves can complain. Links, terms and figures are followed by docs_check;
that excerpts, numbers and terms are up to date is docs_drift."""
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common/tools")]
import docs_check  # noqa: E402
import learn_steps  # noqa: E402
import lessons  # noqa: E402
from tap import Tap  # noqa: E402

GOOD = """# 03.1 Carry the values (12 minutes, no GPU)

**Question.** What?

**Write down a guess.** Two or three?

```c
x = 1;
```

| a | b |
|---|---|
| 1 | 2 |

![what moves](../figures/x.svg)

Look at the arrow.

Try it: there is a command.

**What breaks if** x is 2? All.

**Check yourself.**

1. Why?
2. How?
3. Who?

<details><summary>Answers</summary>

1. So.
2. Thus.
3. You.

</details>

**In short.** It carries the values.

**Next:** step 03.1a (`./ladder learn 03.1a`), then [page 03.2](2_more.md).
"""
WRONG = [
    ("no title", ("# 03.1 ", "# Chapter "), "its first line is not"),
    ("no minutes", ("(12 minutes, no GPU)", ""), "its first line is not"),
    ("an unknown need", ("no GPU", "some GPU"), "its first line is not"),
    ("another number", ("# 03.1", "# 03.2"), "its title says 03.2, its place 03.1"),
    ("too long a sitting", ("12 minutes", "25 minutes"), "25 minutes, 10 to 20 are accepted"),
    ("too many words", ("What?", "word " * 1201), "words of prose, 1200 are accepted"),
    ("too much code", ("x = 1;\n", "x = 1;\n" * 121), "121 lines of code, 120 are accepted"),
    ("a second figure", ("**What breaks", "![y](../figures/x.svg)\n\nSee.\n\n**What breaks"),
     "2 figures, each page has one"),
    ("no figure", ("![what moves](../figures/x.svg)\n", ""), "0 figures, each page has one"),
    ("a figure without a word", ("Look at the arrow.\n", "| a |\n|---|\n"),
     "no sentence below ../figures/x.svg says what to see"),
    ("a long table", ("| 1 | 2 |\n", "| 1 | 2 |\n" * 9), "9 rows in a table, 8 are accepted"),
    ("no guess", ("**Write down a guess.**", "Perhaps"), "no paragraph begins with **Write"),
    ("parts in disorder", ("**Question.** What?\n\n**Write down a guess.** Two or three?",
                           "**Write down a guess.** Two?\n\n**Question.** What?"),
     "its parts are not in the order"),
    ("two questions", ("3. Who?\n", ""), "has not questions 1 to 3"),
    ("two answers", ("3. You.\n", ""), "have not answers 1 to 3"),
    ("answers in sight", ("<details>", "<div>"), "have not answers 1 to 3"),
    ("a dead end", ("**Next:** step 03.1a (`./ladder learn 03.1a`), then [page 03.2](2_more.md).",
                    "**Next:** rest."), "leads to no page and no step"),
    ("a step that is not there", ("learn 03.1a", "learn 03.9c"), "there is no docs/learn/03.9c_*"),
    ("one of several steps", ("step 03.1a", "steps 03.1a and 03.8b"),
     "there is no docs/learn/03.8b_*"),
    ("a gap", ("| 1 | 2 |", "| 1 | (not yet recorded) |"), "a number is not yet recorded"),
    ("nothing to run", ("Try it:", "See:"), "no 'Try it'"),
    ("its own history", ("All.", "The first version did."), "speaks of how it was made"),
]


def write(root, text):
    page = root / "docs/03_flash_forward/1_values.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    (root / "docs/learn/03.1a_values").mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return lessons.Lesson(page)


def test_limits(tap, root):
    found = lessons.problems(write(root, GOOD), root)
    tap.ok(not found, "a good page has no problems", "\n".join(found))
    for name, (old, new), wanted in WRONG:
        assert old in GOOD
        found = lessons.problems(write(root, GOOD.replace(old, new)), root)
        tap.ok(any(wanted in line for line in found), f"found: {name}", "\n".join(found))
    write(root, GOOD)
    counted = ("A [tile](../glossary.md#tile) of $a + b$ and `c d`, "
               "<!-- number: f column=x -->41%<!-- /number -->.\n"
               "<!-- code: f.c#g -->\n```c\nint x;\n\nint y;\n```\n*f.c*\n<!-- /code -->\n")
    tap.ok(lessons.prose_words(counted) == 7, "words: a formula, code in a line, a number are one "
           "each, excerpts are none", lessons.prose_words(counted))
    tap.ok(lessons.code_lines(counted) == 2, "lines of code: those that are not blank")


def test_map(tap, root):
    page = root / "docs/README.md"
    text = lessons.index(root, ["03"], page)
    tap.ok("| [03.1 Carry the values](03_flash_forward/1_values.md) | 12 | no GPU |" in text,
           "the map has page, minutes and GPU", text)
    tap.ok(lessons.minutes(root, ["03", "03.1"]) == 24, "minutes of a stage and of a page")
    try:
        lessons.minutes(root, ["03.7"])
        tap.ok(False, "an unknown lesson is an error")
    except lessons.LessonError as error:
        tap.ok("there is no lesson 03.7" in str(error), "an unknown lesson is an error")


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        test_limits(tap, pathlib.Path(folder))
        test_map(tap, pathlib.Path(folder))
    steps = learn_steps.read_steps()
    tap.ok(len(steps) >= 36 and all(step.cases for step in steps),
           f"{len(steps)} steps of ./ladder learn can be read")
    pages = lessons.pages(ROOT)
    for path in pages:
        lesson = lessons.Lesson(path)
        found = lessons.problems(lesson, ROOT) + docs_check.links([path])
        tap.ok(not found, f"{path.relative_to(ROOT)}: {lessons.prose_words(lesson.text)} words, "
               f"{lessons.code_lines(lesson.text)} lines of code", "\n".join(found))
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        if path not in pages and "![" in path.read_text(encoding="utf-8"):
            found = lessons.figure_problems(path.read_text(encoding="utf-8"))
            tap.ok(not found, f"{path.relative_to(ROOT)}: a sentence below each figure",
                   "\n".join(found))
    for folder in sorted((ROOT / "docs").glob("0[1-6]_*/")):
        places = [int(path.name.split("_")[0]) for path in pages if path.parent == folder]
        complete = sorted(places) == list(range(1, len(places) + 1))
        tap.ok(complete and (folder / "README.md").exists(),
               f"{folder.name}: pages 1, 2, 3 ... and a README", str(places))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
