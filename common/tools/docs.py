#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""docs.py: puts code, diffs, tables, numbers and program output into the Markdown pages.

    docs.py [--check] [--build DIR | --no-run] [--commands] [--links] [PAGE.md...]

Text between a marker and its closing marker belongs to this tool. A page is written, or with
--check compared, and any difference is shown and ends with exit status 1. Paths are relative to
the repository root. The markers (the closing one repeats the kind, as in `/code`):

    code: PATH#name            a function (with the comment above it), struct or macro of a C file
    code: PATH#[tag]           the lines between comments holding [tag] and [/tag]
                               (option comment=no leaves the comment above a function out);
                               without a #, the whole file, for example what a program has printed;
                               from="TEXT" to="TEXT" keeps only the lines from the first one that
                               holds TEXT up to the next one that holds the second TEXT
    diff: A B                  what changed between two files or functions (A#f B#g); the comment at
                               the head of a file is not compared
    table: FILE.jsonl columns=a,b,c filter="variant=v0_loops N>=1024"
                               checked rows only; rows whose source has changed are marked;
                               commands=no leaves out the command lines below the table, sort=Nq
                               puts the rows in the order of that number
    number: FILE.jsonl column=share filter="..."        one cell, inside a sentence
                               these, and code: FILE, may say pending="COMMAND": where there is no
                               such row or file yet, the page names the command that records it,
                               and is filled when there is; with fresh=yes a row that is older
                               than its source counts as missing; a table with pending=hide is
                               empty until then, so that a lesson has no gap
    reading: STAGE...          files and lines to read, lines added, for each rung (reading.py)
    reading: held              how many rungs hold the budget of reading, a sentence
    ladder: FILE.jsonl         the first page's table (first_page.py) from the demo's rows
    lessons: 00 03.1 04        the lessons of these stages as a table (lessons.py)
    minutes: 00 03.1 04        how many minutes they take together, inside a sentence
    run: PROGRAM ARGUMENTS     output of a program of --build, or of a single FILE.c, compiled
                               there; exit=2 first allows that status, before=WORD leaves out what
                               follows from the first line on that begins so (last digits, which
                               depend on the machine); from= and to= first keep some lines, as above

Interface:
- expand(text, page, context): the page with all markers filled; DocsError says what is wrong.
- In a lesson or a lab note of a stage (a file whose name begins with a number) each term of
  docs/glossary.md becomes a link at its first use.
- Links and commands are checked by docs_check.py, which this program calls.
"""
import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import docs_check
import columns as shown
import first_page
import glossary
import lessons
import reading
import rows as recorded
import table as table_tool
import tool

OPENING = r"(?<!`)<!-- (code|diff|table|number|reading|ladder|lessons|minutes|run): (.*?) -->"
MARKER = re.compile(OPENING + r"(.*?)<!-- /\1 -->", re.S)
LANGUAGE = {".c": "c", ".h": "c", ".cu": "cuda", ".cuh": "cuda", ".py": "python", ".sh": "sh"}


class DocsError(Exception):
    """What is wrong with a marker, in one sentence."""


SENTENCES = (DocsError, recorded.RowError, lessons.LessonError)


class Pending(Exception):
    """A row that the marker says may be missing; the command that records it."""


class Context:
    def __init__(self, root, build=None, run=True):
        self.root, self.build, self.run = pathlib.Path(root), build, run


def read(context, path):
    try:
        return (context.root / path).read_text(encoding="utf-8")
    except OSError as error:
        raise DocsError(f"{path}: {error.strerror}") from error


def function_lines(text, name, path, comment=True):
    """A definition at the left margin. clang-format's Linux style, which a test enforces, puts the
    brace that ends a function, struct or enum at the left margin too."""
    lines = text.split("\n")
    for first, line in enumerate(lines):
        if re.match(rf"#\s*define\s+{name}\b", line):
            last = first
            while lines[last].endswith("\\"):
                last += 1
            return with_comment(lines, first, last, comment)
        type_here = re.match(rf"(typedef )?(struct|enum|union) {name}\b[^;]*{{", line)
        kernel_here = re.match(rf"    {name}\(", line) and "__global__" in lines[first - 1]
        if not (type_here or kernel_here or
                re.match(rf"[A-Za-z_].*\b{name}\(|{name}\(", line)):
            continue
        last = first
        while last < len(lines) and not lines[last].startswith("}"):
            if not type_here and lines[last].endswith(";") and not lines[last].startswith(" "):
                break  # a prototype
            if not type_here and lines[last] == "":
                break
            last += 1
            if last < len(lines) and lines[last] == "{":
                type_here = True
        if last < len(lines) and lines[last].startswith("}"):
            return with_comment(lines, first, last, comment)
    raise DocsError(f"{path}: no function, struct or macro named {name}")


def with_comment(lines, first, last, comment):
    """Takes in what belongs to a definition: its return type or template line, and its comment."""
    while first > 0 and re.match(r"(static|template|__global__|ATTN_|[A-Za-z_][\w \*]*$)",
                                 lines[first - 1]) and not lines[first - 1].endswith(";"):
        first -= 1
    if comment and first > 0 and lines[first - 1].rstrip().endswith("*/"):
        first -= 1
        while first > 0 and not lines[first].lstrip().startswith("/*"):
            first -= 1
    elif comment:
        while first > 0 and lines[first - 1].startswith("//"):
            first -= 1
    return "\n".join(lines[first:last + 1])


def tagged_lines(text, tag, path):
    name = re.escape(tag)
    inside = re.search(rf"^[^\n]*\[{name}\][^\n]*\n(.*?)^[^\n]*\[/{name}\]", text,
                       re.S | re.M)
    if not inside:
        raise DocsError(f"{path}: no lines between [{tag}] and [/{tag}]")
    return textwrap.dedent(inside.group(1)).rstrip("\n")


def excerpt(context, where, comment=True):
    path, _, name = where.partition("#")
    text = read(context, path)
    if not name:
        return text.rstrip("\n")
    if name.startswith("["):
        return tagged_lines(text, name.strip("[]"), path)
    return function_lines(text, name, path, comment)


def cut(body, options, where):
    """With from= and to= some lines of an excerpt: a lesson shows the loop, not what stands around
    it."""
    if not {"from", "to"} & set(options):
        return body
    first, last, lines = options.get("from", ""), options.get("to", ""), body.split("\n")
    start = next((n for n, line in enumerate(lines) if first in line), None)
    if start is None:
        raise DocsError(f"{where}: no line holds '{first}'")
    end = next((n for n, line in enumerate(lines) if n >= start and last in line), None)
    if end is None:
        raise DocsError(f"{where}: after '{first}' no line holds '{last}'")
    kept = lines[start:end + 1]
    margin = min((len(line) - len(line.lstrip()) for line in kept
                  if line.strip() and not line.startswith("#")), default=0)  # #pragma has none
    return "\n".join(line if line.startswith("#") else line[margin:] for line in kept)


def fence(language, body):
    return f"```{language}\n{body}\n```"


def link(context, page, where):
    path, _, name = where.partition("#")
    target = os.path.relpath(context.root / path, pathlib.Path(page).resolve().parent)
    return f"[`{path}`]({target})" + (f", `{name.strip('[]')}`" if name else "")


def expand_code(context, page, words, options):
    (where,) = words
    path = where.partition("#")[0]
    if "pending" in options and not (context.root / path).exists():
        raise Pending(options["pending"])
    body = cut(excerpt(context, where, options.get("comment") != "no"), options, where)
    language = LANGUAGE.get(pathlib.Path(path).suffix, "")
    return f"\n{fence(language, body)}\n\n*{link(context, page, where)}*\n"


def expand_diff(context, page, words, _options):
    before, after = words
    # The teaching text at the head of a file is not part of the step.
    sides = [re.sub(r"\A/\*.*?\*/\n", "", excerpt(context, where), flags=re.S).split("\n")
             for where in words]
    lines = list(difflib.unified_diff(*sides, lineterm="", n=2))[2:]
    if not lines:
        raise DocsError(f"diff: {before} and {after} do not differ")
    changed = sum(line[0] in "+-" for line in lines)
    body = "\n".join(re.sub(r"^@@.*@@.*", "@@", line) for line in lines)
    return (f"\n{fence('diff', body)}\n\n*{changed} changed lines: {link(context, page, before)} "
            f"to {link(context, page, after)}*\n")


def recorded_rows(context, words, options):
    (file,) = words
    if "pending" in options and not (context.root / file).exists():
        raise Pending(options["pending"])
    found = recorded.load([context.root / file])
    rows = recorded.select(recorded.add_speedups(recorded.usable(found)), options.get("filter", ""))
    if options.get("fresh") == "yes":
        rows = [row for row in rows if not recorded.is_stale(row, context.root)]
    if not rows and "pending" in options:
        raise Pending(options["pending"])
    if not rows:
        raise DocsError(f"{file}: no checked row for filter '{options.get('filter', '')}'")
    return rows


def expand_table(context, _page, words, options):
    rows = recorded_rows(context, words, options)
    if "sort" in options:
        rows = sorted(rows, key=lambda row: row[options["sort"]])
    return "\n" + table_tool.markdown(rows, options["columns"].split(","), context.root,
                                      options.get("commands") != "no")


def expand_number(context, _page, words, options):
    rows = recorded_rows(context, words, options)
    if len(rows) != 1:
        raise DocsError(f"number: {len(rows)} rows match, one is wanted: "
                        + " ".join(row["_where"] for row in rows[:4]))
    return shown.cell(rows[0], options.get("column", "")).strip()


def find_program(context, name):
    if name.endswith(".c"):
        made = pathlib.Path(context.build) / pathlib.Path(name).stem
        done = subprocess.run(["cc", "-O2", str(context.root / name), "-o", str(made), "-lm"],
                              capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise DocsError(f"run: {name}: {done.stderr}")
        return made
    found = [p for p in sorted(pathlib.Path(context.build).glob(f"*/{name}")) if p.is_file()]
    if not found:
        raise DocsError(f"run: no program {name} in {context.build}")
    return found[0]


def expand_run(context, _page, words, options):
    command = [str(find_program(context, words[0])), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=context.root, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    if done.returncode != int(options.get("exit", 0)):
        raise DocsError(f"run: {shlex.join(words)}: exit status {done.returncode}: {done.stderr}")
    output = done.stdout + (done.stderr if done.returncode else "")
    if "before" in options:
        output, found, _ = output.partition("\n" + options["before"])
        if not found:
            raise DocsError(f"run: {shlex.join(words)}: no line begins with {options['before']}")
    output = cut(output, options, words[0])
    typed = "$ " + shlex.join([pathlib.Path(words[0]).stem, *words[1:]])
    folded = textwrap.wrap(re.sub(r" (--?\S+) (?=[^-])", " \\1\xa0", typed), 82,
                           break_long_words=False, break_on_hyphens=False,
                           subsequent_indent="      ")  # a flag stays beside its value
    shown_as = " \\\n".join(folded).replace("\xa0", " ")
    return f"\n{fence('console', shown_as + chr(10) + output.rstrip())}\n"


def expand_reading(context, _page, words, _options):
    return "\n" + (reading.held(context.root) if words == ["held"] else
                   reading.markdown(context.root, words))


EXPANDERS = {
    "code": expand_code, "diff": expand_diff, "table": expand_table, "number": expand_number,
    "reading": expand_reading, "run": expand_run,
    "ladder": lambda context, _page, words, _options:
        "\n" + first_page.ladder_table(context.root, *words),
    "lessons": lambda context, page, words, _options:
        "\n" + lessons.index(context.root, words, page),
    "minutes": lambda context, _page, words, _options: str(lessons.minutes(context.root, words))}


def parse_arguments(kind, text):
    """Words and key=value options. For run only a leading exit= or before= is one: the rest is the
    program's."""
    words, options = [], {}
    for part in shlex.split(text):
        key, equals, value = part.partition("=")
        known = key in ("columns", "column", "filter", "comment", "exit", "before", "pending",
                        "fresh", "from", "to", "commands", "sort")
        if equals and known and (kind != "run" or not words):
            options[key] = value
        else:
            words.append(part)
    return words, options


def expand(text, page, context):
    def fill(match):
        kind, arguments = match.group(1), match.group(2)
        if kind == "run" and not context.run:
            return match.group(0)
        try:
            words, options = parse_arguments(kind, arguments)
            new = EXPANDERS[kind](context, page, words, options)
        except Pending as command:
            hidden = str(command) == "hide" and kind == "table"
            new = ("" if hidden else "(not yet recorded)" if kind == "number" else
                   f"\n*Not yet recorded; the command is* `{command}`.\n")
        except (*SENTENCES, OSError, subprocess.SubprocessError, *tool.MALFORMED) as error:
            line = text.count("\n", 0, match.start()) + 1
            why = str(error) if isinstance(error, SENTENCES) else \
                f"{kind}: found '{arguments}' ({type(error).__name__}: {error})"
            raise DocsError(f"{page}:{line}: {why}") from error
        return f"<!-- {kind}: {arguments} -->{new}<!-- /{kind} -->"

    if len(re.findall(OPENING, text)) != len(MARKER.findall(text)):
        raise DocsError(f"{page}: a marker is not closed, or closed inside another")
    return MARKER.sub(fill, text)


def pages_of(root):
    """The Markdown of the repository: the root, the stages, common/data, docs, tests."""
    found = [*root.glob("*.md")]
    for folder in ("0[0-9]_*", "common", "docs", "tests"):
        for top in root.glob(folder):
            found += top.rglob("*.md")
    return sorted(found)


def process(page, context, check):
    old = page.read_text(encoding="utf-8")
    new = expand(old, page, context)
    words = next((folder / "glossary.md" for folder in (page.parent, page.parent.parent)
                  if (folder / "glossary.md").exists()), None)
    if words and re.match(r"\d+_", page.name):
        new = glossary.link_first_uses(new, words.read_text(encoding="utf-8"),
                                       os.path.relpath(words, page.parent))
    if new == old:
        return True
    if not check:
        page.write_text(new, encoding="utf-8")
        print(f"{page}: written")
        return True
    sys.stdout.writelines(line + "\n" for line in difflib.unified_diff(
        old.split("\n"), new.split("\n"), f"{page} (committed)", f"{page} (now)", lineterm="", n=1))
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=recorded.ROOT)
    parser.add_argument("--build", help="build folder whose programs `run` markers start")
    parser.add_argument("--no-run", action="store_true", help="leave `run` markers alone")
    parser.add_argument("--links", action="store_true", help="check links and formulas only")
    parser.add_argument("--commands", action="store_true", help="only check shell commands")
    args = parser.parse_args()
    pages = [p.resolve() for p in args.pages] or pages_of(args.root.resolve())
    if args.links or args.commands:
        problems = docs_check.links(pages) + docs_check.formulas(pages) if args.links else []
        if args.commands:
            problems += docs_check.commands(pages, args.root.resolve(), args.build)
        print("\n".join(problems), end="\n" if problems else "")
        return 1 if problems else 0
    context = Context(args.root.resolve(), args.build, not args.no_run)
    ok = True
    for page in pages:
        try:
            if context.run and not args.build and re.search(r"(?<!`)<!-- run: ", page.read_text()):
                raise DocsError(f"{page}: has run markers: give --build DIR or --no-run")
            ok = process(page, context, args.check) and ok
        except DocsError as error:
            print(f"docs.py: {error}", file=sys.stderr)
            ok = False
    return 0 if ok else 1


if __name__ == "__main__":
    tool.end(main, *tool.MALFORMED)
