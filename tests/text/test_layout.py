#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_layout.py: the limits of the sources: functions from text to complaints, and the whole tree
keeps them.

usage: test_layout.py BUILD    the build folder, whose programs answer --list
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common",
                                "tools"))
import source_hashes
import tree
from tap import Tap

MAX_COLUMNS = 100
# About 60, 120 and 90 lines: a tenth more is still about.
MAX_FUNCTION, MAX_KERNEL, MAX_MAIN = 66, 132, 99

STAGES = {"naive": "01", "tiled_softmax": "02", "flash_forward": "03", "flash_backward": "04",
          "sliding_window": "05", "ring_burst": "06"}
# Put together so that this file does not hold what it looks for.
BANNED = ["-ffast" + "-math", "-O" + "fast", "-ffinite" + "-math-only", "--use_fast" + "_math",
          "-use_fast" + "_math", "-funsafe" + "-math-optimizations", "-fassociative" + "-math"]
BANNED_PRAGMA = "optimize[^\n]*(" + "fast" + "-math|O" + "fast|finite" + "-math)"
SCRIPTS = (".py", ".sh", "ladder", ".ci/run")
BUILD_FILES = ("meson.build", "meson_options.txt", ".ini")

# Their --list has a row for the library.
LISTS_LIBRARY = (source_hashes.F, source_hashes.B, source_hashes.W)
# (file, rule): why a reader would accept it
EXEMPT = {
    ("tests/stages/so/misbehaving.c", "function_lengths"): "a list: one case per bad deed",
}
# A ratchet: how often words stand in the sources, and in their tests, for which the field has a
# better one: result, low-precision reference, remote block, poison ... It never rises.
WORDS = {"clean[ _-]" "tile": (3, 0), "jo" "b": (6, 190), "out" "come": (0, 0),
         "spo" "il": (1, 25), "undiv" "ided": (0, 0), "visit" "or": (0, 0), "yard" "stick": (0, 0)}
NAMED_FILE = re.compile(r"`(?:[\w.-]+/)*([\w.-]+\.(?:cuh?|[ch]|py|sh))`")
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
READING = re.compile(r"(0\d_\w+|common/attention)/(\w+/)*(cpu|cuda|methods)/")
MAX_PLAIN_ORACLE = 400
# What each rule of a file must complain about: one that cannot is worth nothing.
BAD = {"line_widths": "x" * 101, "spdx": "/* hello */\n", "leftovers": "/* TO" "DO: y */\n",
       "interface_list": "int f(void);\n", "banned_flags": "-ffast" "-math"}


# --- rules: a sentence for each complaint ---------------------------------------------------------

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


def count_word(text, word):
    return len(re.findall(rf"(?i)(?<![a-z]){word}(?:s|ed|ing)?(?![a-z])", text))


# --- the tree -------------------------------------------------------------------------------------

def check_rules(tap):
    for rule, text in BAD.items():
        more = (".build",) if rule == "banned_flags" else ()
        tap.ok(globals()[rule](text, *more), f"{rule} can complain")
    for head, limit in (("int f(int a)", 66), ("__global__ void k(int a)", 132),
                        ("int main(void)", 99)):
        found = [function_lengths(f"{head}\n{{\n" + "    a++;\n" * (limit - n) + "}\n")
                 for n in (3, 2)]
        tap.ok(not found[0] and found[1], f"{head}: {limit} lines and no more", found)
    split = "x = y.split" "lines()\n"
    tap.ok(unicode_lines(split, True) and not unicode_lines(split, False) and
           unicode_lines("json: " + split, False), "unicode_lines can complain")
    for said, linked in (("builds on: nothing", "naive_dep"), ("builds on: 01, 03", "naive_dep"),
                         ("What?", "naive_dep")):
        tap.ok(builds_on(said, linked, "tiled_softmax"), f"builds_on can complain: {said}")
    bodies = {"a": "struct Tile {\n    int a;\n};\n", "b": "struct Tile {\n    int b;\n};\n"}
    tap.ok(struct_bodies(bodies), "struct_bodies can complain")


def check_file(tap, name):
    path = tree.ROOT / name
    text = path.read_text(encoding="utf-8")
    c_like = name.endswith(tree.C_LIKE)
    wanted = ["line_widths", "spdx", "leftovers"]
    wanted += ["function_lengths"] if c_like else []
    if (name.endswith((".h", ".cuh")) and name.startswith(("common/", "0")) or
            c_like and READING.match(name)):
        wanted.append("interface_list")
    bad = []
    for rule in wanted:
        found = globals()[rule](text)
        if (name, rule) in EXEMPT:
            tap.ok(found, f"{name} still needs its exemption from {rule}")
        else:
            bad += found
    bad += banned_flags(text, path.suffix)
    if name.endswith(".py"):
        bad += unicode_lines(text, not name.startswith("tests/"))
    tap.ok(not bad, name, "\n".join(bad))


def check_tree(tap):
    """What no file shows alone."""
    left = tree.sources(".orig", ".rej", ".bak", "~")
    tap.ok(not left, "no file that patch or an editor left behind", "\n".join(left))
    texts = {name: (tree.ROOT / name).read_text(encoding="utf-8")
             for name in tree.sources(*tree.C_LIKE, *SCRIPTS)}
    device = ("0", "common/attention/")
    bad = struct_bodies({name: text for name, text in texts.items()
                               if name.endswith((".cu", ".cuh")) and name.startswith(device)})
    tap.ok(not bad, "no two structs of one name with different bodies", "\n".join(bad))
    for word, accepted in WORDS.items():
        found = [0, 0]
        for name, text in texts.items():
            found[name.startswith("tests/")] += count_word(text, word)
        tap.ok(found[0] <= accepted[0] and found[1] <= accepted[1],
               f"'{word}': {found[0]} times, in tests {found[1]}",
               f"{accepted} are accepted: the field has a better word")
    plain = [texts[f"common/harness/oracle/{name}"] for name in ("oracle.c", "oracle_core.c")]
    tap.ok(sum(text.count("\n") for text in plain) <= MAX_PLAIN_ORACLE,
           f"the plain oracle has at most {MAX_PLAIN_ORACLE} lines, all of them read")


def listed_variants(program):
    """--list as {name: devices}, or None when the program does not answer."""
    try:
        run = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    if run.returncode:
        return None
    listed = {}
    for line in run.stdout.splitlines():
        if line.strip():
            listed.setdefault(line.split()[0], []).append(line.split()[1])
    return {name: " ".join(devices) for name, devices in listed.items()}


def check_named_files(tap):
    """Each file that a page names in back quotes is there, except a student's mine.c, answer.c."""
    there = {name.rsplit("/", 1)[-1] for name in tree.sources("")}
    for page in tree.sources(".md"):
        prose = FENCED.sub("", (tree.ROOT / page).read_text(encoding="utf-8"))
        gone = [name for name in NAMED_FILE.findall(prose) if name not in there and
                not re.match(r"(mine(_twist)?|answer)\.|(\w+\.)?[A-Z]", name)]
        tap.ok(not gone, f"{page}: the files that it names", " ".join(gone))


def check_stage(tap, folder, program, build):
    stage = tree.ROOT / folder
    readme = (stage / "README.md").read_text(encoding="utf-8")
    listed = listed_variants(build / folder / program)
    if tap.ok(listed, f"{folder}: --list answers", f"{build / folder / program}"):
        names = r"v\d+_\w+|library"
        if folder == source_hashes.R:  # each method is one file for all devices
            names = "|".join(source_hashes.METHODS)
            files = {name: listed.get(name, "") for name in source_hashes.METHODS
                     if (stage / f"methods/{name.replace('-', '_')}.c").is_file()}
        else:
            found = [(path.stem, device) for device in ("cpu", "cuda")
                     for path in sorted(stage.glob(f"{device}/v*.c*")) if path.suffix != ".cuh"]
            found += [("library", device) for device in ("cpu", "cuda")] * (folder in LISTS_LIBRARY)
            found += [(name, "cpu") for stage, name in source_hashes.LINKED if stage == folder]
            files = {name: " ".join(d for n, d in found if n == name) for name, _ in found}
        rows = set(re.findall(rf"^\|[^\n|]*`({names})`", readme, re.M))
        bad = same_names(files, listed, rows)
        tap.ok(not bad, f"{folder}: files, --list and README name the same variants",
               "\n".join(bad))
    bad = builds_on(readme, (stage / "meson.build").read_text(encoding="utf-8"), program)
    tap.ok(not bad, f"{folder}: builds on", "\n".join(bad))
    first = next((line for line in readme.splitlines() if line.strip()), "")
    tap.ok(first.strip(" #*").endswith("?"), f"{folder}: the README's first line is a question",
           first)


def main():
    tap = Tap()
    build = pathlib.Path(sys.argv[1])
    check_rules(tap)
    for name in tree.sources(*tree.C_LIKE, *SCRIPTS, *BUILD_FILES):
        check_file(tap, name)
    check_tree(tap)
    check_named_files(tap)
    for folder, program in zip(sorted(p.name for p in tree.ROOT.glob("0[1-6]_*")), STAGES):
        if (tree.ROOT / folder / "main.c").is_file():
            check_stage(tap, folder, program, build)
    commands = build / "build.ninja"
    bad = banned_flags(commands.read_text(encoding="utf-8", errors="replace"), ".ninja")
    tap.ok(not bad, "no compiler command of this build has a banned flag", "\n".join(bad))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
