#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""quiz.py: bugs to mend in class, out of the wrong solutions of tests/wrong.

    ./ladder quiz STAGE --key FILE --out DIR [--count N]
    ./ladder quiz --talk SUBMISSION     three questions about a student's own file, with answers

STAGE is 01 to 05. The key chooses N patches of that stage's rungs on the CPU (3), so that each
class gets others, and no two of one function: each would show what the other asks for. DIR is new
or empty and gets for each a sheet quizK.md: the function with the mistake, what it calls, and the
flags of a case that shows it; all of them as quiz.pdf where chromium is. answers.md, for the
teacher, has the mistakes, the lines, and what about the case shows them.

Interface:
- patches(stage): those of the stage that students of C can read. chosen(paths, key, count).
- questions(text): [(line, question, what to listen for)] of a submission.
- function_with(before, after): the text of the changed functions. sheet(path): (sheet, answer).
"""
import argparse
import difflib
import hashlib
import html
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import suite as suites

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRONG = ROOT / "tests" / "wrong"
sys.path.insert(0, str(WRONG))
import workshop

STAGES = ("01", "02", "03", "04", "05")


# what a line looks like, what to ask about it, what to listen for. {0}: the line's number
TALK = (
    (r"__syncthreads|omp barrier|\bbarrier\(",
     "Line {0} is a barrier. Take it away: who reads or writes too early, and which case shows it "
     "first?",
     "One thread goes on to the next tile while another still reads this one; a case with one "
     "tile shows nothing, results differ from run to run."),
    (r"\breceive\)?\(|->receive\(",
     "Line {0} receives. Exchange it with the send: what happens with 2 ranks, and what with a "
     "send that waits for its receiver?",
     "All ranks wait for what nobody has sent: a deadlock, with any number of ranks. In MPI a "
     "large send may wait, so that send and receive have to be posted together."),
    (r"\b(?:B[RrCc]|TILE\w*|BLOCK\w*)\s*=?\s*\d+",
     "Line {0} sets the size of a tile. Make it twice as large: what doubles, what halves, what "
     "no longer fits?",
     "The tiles' memory doubles (against 32 KiB of cache or 48 of shared memory), the rounds of "
     "the loop halve, rows of the last tile that do not exist become more."),
    (r"exp2?f?\([^;]*-[^;]*\bm",
     "Line {0}: a row has seen the scores 1 and 3, now comes 5. Which number stands here, and "
     "what is wrong in the end without it?",
     "For what was summed exp(3 - 5) = 0.1353, without which the old terms count 7.4 times too "
     "much: a row whose maximum comes first does not show it. For the new score exp(5 - 5) = 1; "
     "without it each key would have the same weight."),
    (r"exp2?f?\([^;]*-\s*(?:\w+->)?lse", "Line {0}: what do these weights of a row add up to? "
     "And with m in place of lse?",
     "1, because lse = m + ln l; with m they add up to l."),
    (r"-\s*delta", "Line {0}: what do the elements of a row of dS add up to, and why?",
     "0: the weights of a row always add up to 1, so their changes add up to 0. Without delta they "
     "do not."),
    (r"-\s*(?:INFINITY|HUGE_VALF?)",
     "Line {0}: why minus infinity and not 0? Which row makes (-inf) - (-inf), and which line "
     "stands in its way?",
     "0 is larger than the maximum of a row of negative scores: exp vanishes or l is 0. A row "
     "that has seen no visible key yet has m = m_new = -inf; name the test before alpha."),
    (r"[<>+-]=?\s*[\w>-]+->(?:left|right)\b|->(?:left|right)\s*[<>+-]",
     "Line {0} decides who sees whom. left is 3, right is 0, a query stands at position 10: which "
     "keys does it see? And if the line compared places in memory?",
     "Those at positions 7 to 10, both ends included. Places are positions on one rank, or in the "
     "first block of a contiguous layout, alone; every other block is wrong."),
    (r"causal[^,;]*(?:&&|\|\||\?)|(?:&&|\|\|)[^,;]*causal",
     "Line {0} decides who sees whom. Three queries, five keys, the mask at the lower right: "
     "which keys does query 0 see? Which line breaks for Nq != Nk?",
     "Keys 0, 1 and 2: j <= i + Nk - Nq. A line that compares i and j themselves puts the mask "
     "into the upper left corner; with Nq = Nk nobody sees it."),
    (r"<\s*B[RrCc]\s*\?|\bmin\w*\(|N\s*-\s*\w+\s*<",
     "Line {0}: N is 301. Which tiles come here with a size of their own, and what would the "
     "missing rows do?",
     "The last one, with 301 modulo the tile's size. Keys beyond N with a score of 0 have the "
     "weight exp(0 - m), which is not 0."),
    (r"\b(?:m|c)alloc\(",
     "Line {0}: how many bytes for N = 1000 and d = 64? And for N = 2000?",
     "Tiles do not grow with N, rows and results grow like N, a matrix of scores would grow by "
     "four."),
    (r"/\s*(?:l|sum)\b|/=\s*(?:l|sum)\b",
     "Line {0} divides. Why here, and not after every tile? What is the divisor of a row that "
     "sees no key?",
     "A sum that is divided already has to be multiplied back before it is rescaled. l is 0: O "
     "must become 0 and not NaN."),
    (r"for \(",
     "Line {0}: let this loop begin one later. Which elements of which result are wrong?",
     "The first row, key or channel is left out; every case shows it, the smallest by hand."),
)


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


def why(fields):
    """The patch's own sentences, and in which results it is seen."""
    passes = "".join(f" These flags do not show it: {flags}." for flags in fields["passes"])
    return f"Why the case shows it: {fields['shows']}{passes} Wrong: " \
        f"{', '.join(sorted(fields['caught-by']))}."


def helpers(shown, text):
    """Functions of the same file that are called, so that the sheet tells all."""
    own = set(re.findall(r"^[A-Za-z][\w *]*?(\w+)\(", shown, re.M))
    parts = re.findall(r"^(?:[A-Za-z][\w *]*?\b(\w+)\([^;{]*\)\n\{\n.*?^\}\n)", text, re.M | re.S)
    found = []
    for name in dict.fromkeys(re.findall(r"\b(\w+)\(", shown)):
        if name in parts and name not in own:
            body = re.search(rf"^[A-Za-z][\w *]*?\b{name}\([^;{{]*\)\n\{{\n.*?^\}}$", text,
                             re.M | re.S)
            found += [body[0]] if body and body[0].count("\n") < 30 else []
    return "\n\n".join(found)


def sheet(path):
    fields, hunks = workshop.read_patch(path)
    before = workshop.changed_text(fields)
    after = workshop.apply_hunks(before, hunks)
    shown = function_with(before, after)
    text = ("Name: ______________________________  Points: ______ of 30\n\n"
            f"This code stands in `{fields.get('header', fields['file'])}`. It has one mistake. "
            "The stage's program finds a wrong result with these flags:\n\n"
            f"    {fields['case'][0]}\n\n"
            "Where is the mistake (10), why does this case show it (10), and what must stand there "
            f"(10)?\n\n```c\n{shown}\n```\n")
    called = helpers(shown, before)
    text += f"\nWhat it calls, without a mistake:\n\n```c\n{called}\n```\n" if called else ""
    lines = [line for line in difflib.unified_diff(after.split("\n"), before.split("\n"),
                                                   lineterm="", n=0)][3:]
    return text, f"{fields['what']}. {why(fields)}\n\n```diff\n" + "\n".join(lines) + "\n```\n"


def print_pdf(out, texts):
    """A page each, by the browser that the site's tests use; nothing without one."""
    if not shutil.which("chromium"):
        return
    page = "".join(f'<pre style="page-break-after: always; white-space: pre-wrap; font: 9pt '
                   f'monospace">{html.escape(text)}</pre>' for text in texts)
    with tempfile.TemporaryDirectory() as place:
        source = pathlib.Path(place) / "quiz.html"
        source.write_text(f'<meta charset="utf-8">{page}', encoding="utf-8")
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu",
                        f"--user-data-dir={place}", "--no-pdf-header-footer",
                        f"--print-to-pdf={out.resolve() / 'quiz.pdf'}", source.as_uri()],
                       capture_output=True, timeout=60, check=False)


def questions(text):
    """Three, about lines of different kinds; which ones, and which line, follows from the text."""
    lines = [re.sub(r"//.*|/\*.*?(?:\*/|$)", "", line) for line in text.split("\n")]
    inside = [n for n, line in enumerate(lines) if line.strip() and line.strip()[0] != "*"]
    dice = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    found = []
    for pattern, question, listen in TALK:
        places = [n + 1 for n in inside if re.search(pattern, lines[n])]
        if places:
            line = places[dice % len(places)]
            found.append((line, question.format(line), listen))
    special = found[:max(3, len(found) - 1)]  # the last kind is for want of a better one
    start = dice % len(special) if len(special) > 3 else 0
    return sorted((special[start:] + special[:start])[:3])


def talk(path):
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as why:
        raise QuizError(f"--talk {path}: found that it cannot be read ({why.strerror}), accepted "
                        "is a source file") from None
    found = questions(text)
    if not found:
        raise QuizError(f"--talk {path}: found no line to ask about, accepted is a source in C")
    shown = text.split("\n")
    for number, (line, question, listen) in enumerate(found, 1):
        print(f"{number}. {question}\n\n    {line}: {shown[line - 1].strip()[:90]}\n\n"
              f"   Listen for: {listen}\n")


def make(options):
    if not (options.stage and options.key and options.out):
        raise QuizError("found too few words, accepted is STAGE --key FILE --out DIR, or --talk "
                        "SUBMISSION")
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
    print_pdf(options.out, [f"Mend this bug, {number}\n\n{text}"
                            for number, (text, _) in enumerate(sheets, 1)])
    print(f"wrote {len(sheets)} sheets, {options.out / 'quiz1.md'} and so on, and the teacher's "
          f"{options.out / 'answers.md'}")


def main():
    parser = argparse.ArgumentParser(prog="ladder quiz", allow_abbrev=False,
                                     description="bugs to mend in class, chosen by a key")
    parser.add_argument("stage", metavar="STAGE", nargs="?", help="01 to 05")
    parser.add_argument("--key", metavar="FILE")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path)
    parser.add_argument("--talk", metavar="SUBMISSION", type=pathlib.Path,
                        help="print three questions about this file, with answers")
    parser.add_argument("--count", metavar="N", type=int, default=3,
                        help="sheets (3); a stage has 4 to 7")
    options = parser.parse_args()
    try:
        if os.environ.get("LADDER_FROM"):  # where the user of ./ladder stands
            os.chdir(os.environ["LADDER_FROM"])
        talk(options.talk) if options.talk else make(options)
    except (QuizError, suites.SuiteError) as why:
        print(f"ladder quiz: {why}", file=sys.stderr)
        return 2
    except OSError as why:
        print(f"ladder quiz: {why.filename}: {why.strerror}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
