#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a reader must open to understand a rung: files, lines of code, and lines added.

usage: reading.py [STAGE...]    prints the table of these stages (03 or 03_flash_forward), or of all
       reading.py held          how many rungs hold the budget of reading

Files: the rung itself, the project's headers that it includes, and its own helpers: a *.c or *.cu
beside it that is no rung and defines a function that one of these files names. All of that again
for what was found, until nothing new turns up. Files outside of the stage count as headers only: a
rung calls another stage's library or common/ by its header.
Lines: of code, without comments and blank lines. To the lines of these files come those of the
functions that the rung or its headers call and that a source file of common/units or common/harness
defines, or, for a method of stage 06, what surrounds it (runtime/passes.c).
Lines added: what the rung's own file has and its predecessor's has not, plus what it is the first
to use of headers and helpers: definitions (functions, structs, macros) that it names, directly or
not, and its predecessor neither names nor holds itself (an idea moves from the rung that brings it
to a unit in the same words; one of an earlier stage is not new either). The predecessor is the
first lower rung, v<number>, that the comment at the head of the file names.

Interface:
- rungs(root): every Rung of the tree.    - closure(root, path): the files, a sorted list.
- code_lines(text), chunks(text), names_given(chunk), words(chunk), definitions(text),
  added_lines(root, rung, predecessor): what the figures are made of.
- measure(root, rung): Reading(files, lines, added, own: percent of the ideas in its own file).
- budget(root, rung): what it may cost (files, lines, added or None). MIN_OWN, has_steps.
  tests/text/test_reading.py holds both, and reading_limits.txt beside it lists the exceptions.
- held(root): how many.    - markdown(root, stages): the table.
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
Reading = collections.namedtuple("Reading", "files lines added own predecessor")
# (files, lines of code) by kind, see kind_of: what the rungs had when they came to the plain
# problem, and up to 5 % more, but never more than was asked for where less was needed.
BUDGETS = {"cpu first": (7, 485), "cpu": (7, 540), "cpu backward": (7, 640), "cuda": (5, 600),
           "mma": (5, 690), "mma backward": (6, 940), "hopper": (5, 900),
           "hopper backward": (6, 1190), "methods": (6, 620), "burst_double": (6, 660),
           "ring_minimal": (3, 375)}
# Of the lines added, and how many percent of them stand in the rung's own file at least; not of the
# first rung of a family of instructions.
MAX_ADDED, MIN_OWN = 120, 80
STEPS_IN = ("03", "04")
FIRST_OF_FAMILY = {("03", "v2_packing"), ("03", "v2_register_tiles"), ("03", "v3_mma"),
                   ("03", "v9_wgmma"), ("03", "v15_fp8"), ("04", "v2_packing"), ("04", "v2_mma"),
                   ("04", "v3_transposed_scores"), ("04", "v10_wgmma"),
                   ("04", "v14_cluster_pair")}
# What the machine and the problem offer is no idea of a rung.
MACHINE = {"problem.h", "problem.cuh", "mma.cuh", "hopper.cuh", "vector.h", "threads.h"}
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
    brought = set(words_in(before.resolve())) | set(words_in(path.resolve())).union(
        *(words_in(rung.path) for rung in rungs(root) if rung.stage < path.parent.parent.name))
    first_used = [(file.name, parts_of(file)[1][n][2]) for file, n in first_used
                  if file != before.resolve() and words_in(file)[n] not in brought]
    ideas = own + sum(lines for name, lines in first_used if name not in MACHINE)
    return own + sum(lines for _name, lines in first_used), 100 * own // max(ideas, 1)


@functools.lru_cache(maxsize=None)
def sources_of(folder):
    return [path.resolve() for path in sorted(folder.rglob("*")) if path.suffix in (".c", ".cu")]


def called(root, rung):
    """Lines of the functions that it calls by a prototype and that another source file defines."""
    known = {file for file, _n in definitions_used(root, rung.path)}
    wanted = set()
    for file, n in definitions_used(root, rung.path):
        if words_in(file)[n].endswith(");"):
            wanted |= parts_of(file)[1][n][0]
    sources = sources_of(root / "common" / "units") + sources_of(root / "common" / "harness")
    if rung.device == "methods":
        sources += [path for path in sources_of(root / rung.stage / "runtime")
                    if path.name == "passes.c"]
    return sum(lines for file in sources if file not in known
               for names, _used, lines in parts_of(file)[1]
               if lines > 1 and names & wanted & functions_defined(file))


def measure(root, rung):
    files = closure(root, rung.path)
    before = predecessor_of(rung)
    return Reading(len(files), sum(len(parts_of(file)[0]) for file in files) + called(root, rung),
                   *(added_lines(root, rung.path, before) if before else (None, None)),
                   before.stem if before else "")


def kind_of(root, rung):
    """Whose budget it has: a key of BUDGETS."""
    files = closure(root, rung.path)
    if rung.device == "methods":
        return rung.name if rung.name in BUDGETS else "methods"
    if rung.device == "cpu":
        if re.match("v[01]_", rung.name):
            return "cpu first"
        kind = "cpu"
    elif any(HOPPER_WORDS & words_of(file) for file in files):
        kind = "hopper"
    elif any("mma_16816" in parts_of(file)[1][n][0]
             for file, n in definitions_used(root, rung.path)):
        kind = "mma"
    else:
        return "cuda"  # float32, which may take asynchronous copies from mma.cuh
    return kind + " backward" * rung.stage.startswith("04")


def has_steps(rung):
    """Is it asked for small steps?"""
    return rung.stage[:2] in STEPS_IN and (rung.stage[:2], rung.name) not in FIRST_OF_FAMILY


def budget(root, rung):
    return [*BUDGETS[kind_of(root, rung)], MAX_ADDED if has_steps(rung) else None]


def held(root):
    """The test allows no exception that is not needed."""
    lines = tool.lines_of((root / "tests/text/reading_limits.txt").read_text(encoding="utf-8"))
    count, exceptions = len(rungs(root)), sum(line[:1].isdigit() for line in lines)
    return (f"Of {count} rungs {count - exceptions} hold their budget, "
            f"{exceptions} have an exception.\n")


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
