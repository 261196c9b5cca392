#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a reader must open to understand a rung: files, lines of code, and lines added.

usage: reading.py [STAGE...]    prints the table of these stages (03 or 03_flash_forward), or of all
       reading.py held          how many rungs hold the budget of reading

Files: the rung itself, the project's headers that it includes, and its own helpers: a *.c or *.cu
beside it that is no rung and defines a function that one of these files names. All of that again
for what was found, until nothing new turns up. Files outside of the stage count as headers only: a
rung calls another stage's library or common/ by its header.
Lines: of code, without comments and blank lines.
Lines added: what the rung's own file has and its predecessor's has not, plus what it is the first
to use of headers and helpers: definitions (functions, structs, macros) that it names, directly or
not, and its predecessor neither names nor holds itself (an idea moves from the rung that brings it
to a unit in the same words). The predecessor is the first lower rung, v<number>, that the
comment at the head of the file names.

Interface:
- rungs(root): every Rung of the tree.    - closure(root, path): the files, a sorted list.
- code_lines(text), chunks(text), names_given(chunk), words(chunk), definitions(text),
  added_lines(root, rung, predecessor): what the figures are made of.
- measure(root, rung): Reading(files, lines, added).    - markdown(root, stages): the table.
- budget(root, rung): what it may cost (files, lines, added or None). tests/text/test_reading.py
  holds it, and reading_limits.txt beside it lists the exceptions.    - held(root): how many.
"""
import collections
import difflib
import functools
import pathlib
import re
import sys

import tool
from source_hashes import COMMENT, METHODS, SAMPLE, included

Rung = collections.namedtuple("Rung", "stage device name path")
Reading = collections.namedtuple("Reading", "files lines added predecessor")
# (files, lines of code) by device; lines added in the stages whose ladders go by small steps
BUDGETS = {"cpu": (8, 650), "methods": (7, 620), "cuda": (7, 700), "mma": (6, 915),
           "hopper": (6, 1210)}
# Of the stages whose rungs take the plain problem: float32 and tensor cores apart.
PLAIN_STAGES = ("01", "02", "03")
FIRST_METHOD = ("ring_minimal", (4, 330))  # what a reader of stage 06 meets first
PLAIN_BUDGETS = {"cpu": (7, 540), "cuda": (5, 520), "mma": (5, 690), "hopper": (5, 900)}
MAX_ADDED = 120
STEPS_IN = ("03", "04")
HOPPER_WORDS = {"wgmma", "CUtensorMap", "setmaxnreg"}
NAME = re.compile(r"\b[A-Za-z_]\w*")
# What may stand before the braces of a definition without being part of it.
WRAPPER = re.compile(r'^(extern "C"|(inline )?namespace\b[\w:\s]*)\s*\{$')
NOT_A_NAME = {"__launch_bounds__", "__attribute__", "__align__", "defined", "sizeof", "decltype",
              "float", "double", "int", "char", "void", "uint32_t", "int64_t"}


def rungs(root):
    found = []
    for stage in sorted(root.glob("0[0-9]_*")):
        for device, pattern in (("cpu", "v*.c"), ("cuda", "v*.cu"), ("methods", "*.c")):
            found += [Rung(stage.name, device, path.stem, path)
                      for path in sorted(stage.glob(f"{device}/{pattern}"), key=number_of)
                      if device != "methods" or is_method(path)]
    return found


def is_method(path):
    """Beside the methods of stage 06 stand their helpers."""
    return path.stem.replace("_", "-") in METHODS


def number_of(path):
    number = re.match(r"v(\d+)_", path.name)
    return (int(number[1]) if number else 0, path.name)


def without_comments(text):
    text = SAMPLE.sub(lambda m: m[1], text)
    return COMMENT.sub(lambda m: m[0] if m[0][0] in "\"'" else "\n" * m[0].count("\n"), text)


def code_lines(text):
    """The lines that hold code, without the white space around them."""
    return [line.strip() for line in without_comments(text).split("\n") if line.strip()]


@functools.lru_cache(maxsize=None)
def parts_of(path):
    text = path.read_text(encoding="utf-8")
    return code_lines(text), definitions(text)


def definitions(text):
    """[(names that it gives, names that it uses, lines of code)] of chunks(text)."""
    return [(names_given(chunk), set(NAME.findall(" ".join(chunk))), len(chunk))
            for chunk in chunks(text)]


def chunks(text):
    """Everything at the outer level, as lists of lines: a function, struct or enum, macro,
    variable; namespaces and extern "C" are looked into."""
    found, chunk, depth = [], [], 0
    text = re.sub(r"(?m)^(\s*(?:inline )?namespace\b[^;{\n]*?)\s*\n\s*{", r"\1 {", text)
    for line in code_lines(text):
        if not chunk and (WRAPPER.match(line) or line == "}"):
            continue
        if not chunk and line.startswith("#") and not re.match(r"#\s*define", line):
            continue
        chunk.append(line)
        if chunk[0].startswith("#"):
            complete = not line.endswith("\\")
        else:
            depth += line.count("{") - line.count("}")
            complete = depth <= 0 and line.endswith((";", "}"))
        if complete:
            found.append(chunk)
            chunk, depth = [], 0
    return found


@functools.lru_cache(maxsize=None)
def words_in(path):
    """Each chunk of a file as one string, by which it can be compared with another file's."""
    return [words(chunk) for chunk in chunks(path.read_text(encoding="utf-8"))]


def words(chunk):
    return re.sub(r"\binline\s+", "", " ".join(chunk))


def without_templates(head):
    """The lists of template parameters taken out, with what stands in angle brackets inside."""
    while (start := re.search(r"\btemplate\s*<", head)):
        depth, end = 1, start.end()
        while depth and end < len(head):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[:start.start()] + " " + head[end:]
    return head


def names_given(chunk):
    text = " ".join(chunk)
    macro = re.match(r"#\s*define\s+(\w+)", text)
    if macro:
        return {macro[1]}
    head = without_templates(text.split("{")[0]).split("=")[0]
    for call in re.finditer(r"\b(\w+)\s*(?:<[^<>()]*>\s*)?\(", head):
        if call[1] not in NOT_A_NAME:
            return {call[1]}
    names = set(NAME.findall(re.split(r"(?<!:):(?!:)", head)[0])[-1:])
    if re.match(r"\s*(typedef|struct|class|enum|union)\b", head):
        names |= set(re.findall(r"(?:struct|class|enum|union)\s+(\w+)", head))
        names |= set(re.findall(r"\}\s*(\w+)\s*;$", text))
        if "enum" in head:
            names |= set(NAME.findall(text.partition("{")[2]))
    return names


@functools.lru_cache(maxsize=None)
def functions_defined(path):
    """Names of the functions with external linkage that a source file defines."""
    return {name for text in re.findall(r"(?m)^(?!static\b|typedef\b)(\w[^;{}#]*?\))\s*\n?\{",
                                        without_comments(path.read_text(encoding="utf-8")))
            for name in re.findall(r"(\w+)\(", text)[:1] if name != "__launch_bounds__"}


@functools.lru_cache(maxsize=None)
def words_of(path):
    return set(NAME.findall("\n".join(parts_of(path)[0])))


@functools.lru_cache(maxsize=None)
def closure(root, path):
    helpers = [p for p in [*path.parent.glob("*.c"), *path.parent.glob("*.cu")]
               if not re.match(r"v\d", p.name) and
               not (p.parent.name == "methods" and is_method(p))]
    seen, todo = set(), [path.resolve()]
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        todo += included(root, file)
        if file.parent == path.parent.resolve() and file.suffix in (".c", ".cu"):
            todo += [p.resolve() for p in helpers if functions_defined(p) & words_of(file)]
        elif file.parent == path.parent.resolve():
            # a header's inline functions call too, but its prototypes alone are no use of a helper
            used = set().union(*(used - names for names, used, lines in parts_of(file)[1]
                                 if lines > 1))
            todo += [p.resolve() for p in helpers if functions_defined(p) & used]
    return tuple(sorted(seen))


def head_of(text):
    """The comment at the head of a file."""
    comment = re.match(r"\s*(/\*.*?\*/)", text, re.S)
    return comment[1] if comment else ""


def predecessor_of(rung):
    """The first lower number in the head comment; None for a ladder's first rung."""
    own = number_of(rung.path)[0]
    for number in re.findall(r"\bv(\d+)(?:_|\b)", head_of(rung.path.read_text(encoding="utf-8"))):
        if int(number) < own:
            found = sorted(rung.path.parent.glob(f"v{number}_*{rung.path.suffix}"))
            if found:
                return found[0]
    return None


def definitions_used(root, path):
    """{(file, n)} of the definitions in other files that a rung names, directly or not."""
    others = [file for file in closure(root, path) if file != path.resolve()]
    given = collections.defaultdict(list)
    for file in others:
        for n, (names, _used, _lines) in enumerate(parts_of(file)[1]):
            for name in names:
                given[name].append((file, n))
    reached, todo = set(), list(words_of(path.resolve()))
    while todo:
        for key in given.pop(todo.pop(), ()):
            if key not in reached:
                reached.add(key)
                todo += parts_of(key[0])[1][key[1]][1]
    return reached


def own_names_hidden(lines, path):
    """A rung's own number and name in identifiers are no difference to its predecessor."""
    return [line.replace(path.stem, "RUNG") for line in lines]


def added_lines(root, path, before):
    mine, theirs = (own_names_hidden(parts_of(p.resolve())[0], p) for p in (path, before))
    matcher = difflib.SequenceMatcher(None, theirs, mine, autojunk=False)
    own = len(mine) - sum(block.size for block in matcher.get_matching_blocks())
    first_used = definitions_used(root, path) - definitions_used(root, before)
    # what the predecessor brought, in the same words in a unit, is not new; nor counts it twice
    # what the rung itself brings
    brought = set(words_in(before.resolve())) | set(words_in(path.resolve()))
    return own + sum(parts_of(file)[1][n][2] for file, n in first_used
                     if file != before.resolve() and words_in(file)[n] not in brought)


def measure(root, rung):
    files = closure(root, rung.path)
    before = predecessor_of(rung)
    return Reading(len(files), sum(len(parts_of(file)[0]) for file in files),
                   added_lines(root, rung.path, before) if before else None,
                   before.stem if before else "")


def budget(root, rung):
    device = rung.device
    if device == "cuda" and any(HOPPER_WORDS & words_of(file)
                                for file in closure(root, rung.path)):
        device = "hopper"
    if (device, rung.name) == ("methods", FIRST_METHOD[0]):
        return [*FIRST_METHOD[1], None]
    budgets = PLAIN_BUDGETS if rung.stage[:2] in PLAIN_STAGES else BUDGETS
    if device == "cuda" and "mma" in budgets and any(
            file.name == "mma.cuh" for file in closure(root, rung.path)):
        device = "mma"
    return [*budgets[device], MAX_ADDED if rung.stage[:2] in STEPS_IN else None]


def held(root):
    all_rungs = rungs(root)
    within = sum(all(None in (cost, most) or cost <= most
                     for cost, most in zip(measure(root, rung), budget(root, rung)))
                 for rung in all_rungs)
    return (f"Of {len(all_rungs)} rungs {within} hold their budget, "
            f"{len(all_rungs) - within} have an exception.\n")


def markdown(root, stages=()):
    rows = ["| stage | on | rung | files to read | lines of code | lines added | to |",
            "|---|---|---|--:|--:|--:|---|"]
    device_names = {"cpu": "CPU", "cuda": "GPU", "methods": "both"}
    for rung in rungs(root):
        if stages and not any(rung.stage.startswith(stage) for stage in stages):
            continue
        got = measure(root, rung)
        added, before = ("", "") if got.added is None else (got.added, f"`{got.predecessor}`")
        rows.append(f"| {rung.stage[:2]} | {device_names[rung.device]} | `{rung.name}` "
                    f"| {got.files} | {got.lines} | {added} | {before} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    ROOT, WORDS = pathlib.Path(__file__).resolve().parents[2], sys.argv[1:]
    tool.end(lambda: print(held(ROOT) if WORDS == ["held"] else markdown(ROOT, WORDS), end=""))
