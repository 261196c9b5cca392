# SPDX-License-Identifier: MIT
"""rules.py: the limits of the sources as functions from text to complaints.

Interface (each returns a list of sentences, empty when all is well):
- line_widths, function_lengths, spdx, interface_list, leftovers: one source file.
- banned_flags: one source or build file.
- unicode_lines: a Python tool that takes text apart at more signs than newlines; a test's JSON.
- same_names: files, --list and README of a stage tell the same names.
- builds_on: the README's line against the stage's meson.build.
- struct_bodies: device structs of one name with different bodies, over all files.
- word_counts (no sentences: a count for each word): how often a text uses DROPPED_WORDS.
"""
import collections
import re

MAX_COLUMNS = 100
# About 60, 120 and 90 lines: a tenth more is still about.
MAX_FUNCTION, MAX_KERNEL, MAX_MAIN = 66, 132, 99

STAGES = {"naive": "01", "tiled_softmax": "02", "flash_forward": "03", "flash_backward": "04",
          "sliding_window": "05", "ring_burst": "06"}
# Put together so that this file does not hold what it looks for.
BANNED = ["-ffast" + "-math", "-O" + "fast", "-ffinite" + "-math-only", "--use_fast" + "_math",
          "-use_fast" + "_math", "-funsafe" + "-math-optimizations", "-fassociative" + "-math"]
# Each has a better word in the field: result, low-precision reference, remote block, poison ...
DROPPED_WORDS = ["visit" + "or", "out" + "come", "yard" + "stick", "clean[ _-]" + "tile",
                 "undiv" + "ided", "spo" + "il", "jo" + "b"]
BANNED_PRAGMA = "optimize[^\n]*(" + "fast" + "-math|O" + "fast|finite" + "-math)"


def line_widths(text):
    return [f"line {n} has {len(line)} columns, {MAX_COLUMNS} are accepted"
            for n, line in enumerate(text.splitlines(), 1) if len(line) > MAX_COLUMNS]


def functions(text):
    """(signature, first line, lines) of C functions: a body stands between braces in column 1."""
    lines = text.splitlines()
    found, start, opened = [], 0, None
    for n, line in enumerate(lines):
        if line == "{" and opened is None:
            opened = n
        elif line == "}" and opened is not None:
            found.append((" ".join(lines[start:opened]), start + 1, n - start + 1))
            opened, start = None, n + 1
        elif opened is None and (not line.strip() or line[0] in "}#" or line.endswith((";", "*/"))):
            start = n + 1
    return found


def function_lengths(text):
    bad = []
    for signature, first, length in functions(text):
        if signature.startswith("namespace"):
            continue
        if re.search(r"\bmain\(", signature):
            limit, kind = MAX_MAIN, "main"
        elif "__global__" in signature or "__device__" in signature:
            limit, kind = MAX_KERNEL, "kernel"
        else:
            limit, kind = MAX_FUNCTION, "function"
        if length > limit:
            bad.append(f"line {first}: a {kind} of {length} lines, {limit} are accepted: "
                       f"{signature}")
    return bad


def spdx(text):
    head = "\n".join(text.splitlines()[:3])
    good = "SPDX-License-Identifier: MIT" in head
    return [] if good else ["no SPDX line in the first three lines"]


def interface_list(text):
    head = "\n".join(text.splitlines()[:50])
    return [] if re.search(r"Interface\b", head) else ["no 'Interface:' list on the first screen"]


def leftovers(text):
    words = "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3])
    return [f"line {n} holds '{m[0]}'" for n, line in enumerate(text.splitlines(), 1)
            if (m := re.search(rf"\b({words})\b", line))]


def unicode_lines(text, is_tool):
    return [f"line {n} splits at U+2028, too; accepted are tool.lines_of and split"
            for n, line in enumerate(text.split("\n"), 1)
            if ".split" + "lines(" in line and (is_tool or "json" in line)]


def without_comments(text, suffix):
    """C comments or # comments taken out: words about a flag are no use of it."""
    if suffix in (".c", ".h", ".cu", ".cuh"):
        return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    return re.sub(r"(?m)(^|\s)#[^\n]*", " ", text)


def banned_flags(text, suffix):
    code = without_comments(text, suffix)
    pragma = re.search(BANNED_PRAGMA, code)
    bad = [f"uses {flag}" for flag in BANNED if re.search(re.escape(flag) + r"(?![\w-])", code)]
    return bad + ([f"uses {pragma[0]}"] if pragma else [])


def same_names(files, listed, rows):
    """Of a stage: {name: devices} by its files and by --list, and names in the README's table."""
    return [f"{name}: by its files {files.get(name)}, by --list {listed.get(name)}, "
            f"{'in' if name in rows else 'not in'} the README's table"
            for name in sorted({*files, *listed, *rows})
            if files.get(name) != listed.get(name) or name not in rows]


def builds_on(readme, meson, own):
    """own: the stage's program. The README says `builds on: 01_naive` or `builds on: nothing`."""
    line = re.search(r"builds on:\**\s*([^\n]*)", readme, re.I)
    if not line:
        return ["no 'builds on:' line in the README"]
    said = set(re.findall(r"\b(0[1-6])(?=_|\b)", line[1]))
    code = without_comments(meson, ".build")
    linked = {number for name, number in STAGES.items()
              if name != own and re.search(rf"\b{name}_(dep|lib|src)\b", code)}
    if said != linked:
        return [f"the README builds on {sorted(said) or 'nothing'}, "
                f"meson.build on {sorted(linked) or 'nothing'}"]
    return []


def structs(text):
    """{name with its namespaces: body} of the structs and classes that a file defines."""
    found, spaces, depth = {}, [], 0
    code = without_comments(text, ".cu")
    lines = re.sub(r"(?m)^(\s*namespace\b[^;{\n]*?)\s*\n\s*{", r"\1 {\n", code).splitlines()
    for n, line in enumerate(lines):
        space = re.match(r"\s*namespace\s*([\w:]*)\s*{", line)
        if space:
            spaces.append((space[1] or "(of this file)", depth))
        kind = re.match(r"(?:template\s*<.*>\s*)?(?:struct|class)\s+(\w+(?:<[^>]*>)?)[^;()]*{",
                        line)
        if kind and depth == len(spaces):
            last = next((m for m in range(n, len(lines)) if lines[m].startswith("}")
                         or lines[m].rstrip().endswith("};")), n)
            name = "::".join([name for name, _depth in spaces] + [kind[1]])
            found[name] = " ".join(" ".join(lines[n:last + 1]).split())
        depth += line.count("{") - line.count("}")
        while spaces and depth <= spaces[-1][1]:
            spaces.pop()
    return found


def struct_bodies(texts):
    """texts: {file: text}. Two translation units that define one name differently break the one-
    definition rule, and the linker takes either's functions without a word."""
    bodies = collections.defaultdict(dict)
    for file, text in texts.items():
        for name, body in structs(text).items():
            if "(of this file)" not in name:
                bodies[name].setdefault(body, file)
    return [f"struct {name} has different bodies in {', '.join(sorted(files.values()))}: "
            "put them in namespaces" for name, files in sorted(bodies.items()) if len(files) > 1]


def word_counts(text):
    return {word: len(re.findall(rf"(?i)(?<![a-z]){word}(?:s|ed|ing)?(?![a-z])", text))
            for word in DROPPED_WORDS}
