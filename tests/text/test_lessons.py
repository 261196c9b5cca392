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

# What a page may not lack, nor have too much of: (old, new) makes a page that breaks a limit.
WRONG = [*((part, "") for part in lessons.PARTS), (" minutes, ", "0 minutes, "), ("![", "[", 1),
         ("<details>", ""), ("Try it", "See"), ("**In short.**", "**In short.** " + "word " * 1200),
         ("**In short.**", "```c\n" + "x;\n" * 121 + "```\n\n**In short.**"),
         ("**In short.**", "| a |\n|---|\n" + "| b |\n" * 9 + "\n**In short.**"),
         ("**In short.**", "**In short.** The first version did."),
         ("**In short.**", "**In short.** Not yet recorded."), ("# 01.1 ", "# 01.2 "),
         ("**Question.**", "**In short.** So.\n\n**Question.**"), ("\n3. You", "\nYou"),
         (".svg)\n\n", ".svg)\n\nx\n"), ("</details>", ""),
         ("**Next:**", "**Next:** step 09.9z, ")]


def check_limits(tap, page, folder):
    """The limits can complain: of a page that keeps them, changed."""
    good, bad = page.read_text(encoding="utf-8"), folder / page.relative_to(ROOT)
    bad.parent.mkdir(parents=True)
    for old, new, *count in WRONG:
        bad.write_text(good.replace(old, new, *count), encoding="utf-8")
        tap.ok(old in good and lessons.problems(lessons.Lesson(bad), ROOT),
               f"'{old}' replaced by '{new[:30]}' is noticed")


def main():
    tap = Tap()
    steps = learn_steps.read_steps()
    tap.ok(len(steps) >= 36 and all(step.cases for step in steps),
           f"{len(steps)} steps of ./ladder learn can be read")
    pages = lessons.pages(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        check_limits(tap, pages[1], pathlib.Path(folder))
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
