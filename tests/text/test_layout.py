#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_layout.py: the whole tree keeps the limits of rules.py.

usage: test_layout.py BUILD    the build folder, whose programs answer --list
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common",
                                "tools"))
import rules
import source_hashes
import tree
from tap import Tap

SCRIPTS = (".py", ".sh", "ladder", ".ci/run")
BUILD_FILES = ("meson.build", "meson_options.txt", ".ini")

# Their --list has a row for the library.
LISTS_LIBRARY = (source_hashes.F, source_hashes.B, source_hashes.W)


# (file, rule): why a reader would accept it
EXEMPT = {
    ("tests/stages/so/misbehaving.c", "function_lengths"): "a list: one case per bad deed",
}
# A ratchet: how often dropped words stand in the tree. Lower it when the tree has fewer; it never
# rises.
WORDS = {
    "elsewhere": {"clean[ _-]" "tile": 3, "jo" "b": 12, "out" "come": 0, "spo" "il": 2,
                  "undiv" "ided": 24, "visit" "or": 0, "yard" "stick": 0},
    "tests": {"clean[ _-]" "tile": 0, "jo" "b": 220, "out" "come": 0, "spo" "il": 26,
              "undiv" "ided": 0, "visit" "or": 0, "yard" "stick": 0},
}
NAMED_FILE = re.compile(r"`(?:[\w.-]+/)*([\w.-]+\.(?:cuh?|[ch]|py|sh))`")
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
READING = re.compile(r"(0\d_\w+|common/attention)/(\w+/)*(cpu|cuda|methods)/")
MAX_PLAIN_ORACLE = 400
# What each rule of a file must complain about: one that cannot is worth nothing.
BAD = {"line_widths": "x" * 101, "spdx": "/* hello */\n", "leftovers": "/* TO" "DO: y */\n",
       "function_lengths": "int f(int a)\n{\n" + "    a++;\n" * 80 + "}\n",
       "interface_list": "int f(void);\n", "banned_flags": "-ffast" "-math"}


def check_rules(tap):
    for rule, text in BAD.items():
        more = (".build",) if rule == "banned_flags" else ()
        tap.ok(getattr(rules, rule)(text, *more), f"{rule} can complain")
    bodies = {"a": "struct Tile {\n    int a;\n};\n", "b": "struct Tile {\n    int b;\n};\n"}
    tap.ok(rules.struct_bodies(bodies), "struct_bodies can complain")


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
        found = getattr(rules, rule)(text)
        if (name, rule) in EXEMPT:
            tap.ok(found, f"{name} still needs its exemption from {rule}")
        else:
            bad += found
    bad += rules.banned_flags(text, path.suffix)
    if name.endswith(".py"):
        bad += rules.unicode_lines(text, not name.startswith("tests/"))
    tap.ok(not bad, name, "\n".join(bad))


def check_tree(tap):
    """What no file shows alone."""
    left = tree.sources(".orig", ".rej", ".bak", "~")
    tap.ok(not left, "no file that patch or an editor left behind", "\n".join(left))
    texts = {name: (tree.ROOT / name).read_text(encoding="utf-8")
             for name in tree.sources(*tree.C_LIKE, *SCRIPTS)}
    device = ("0", "common/attention/")
    bad = rules.struct_bodies({name: text for name, text in texts.items()
                               if name.endswith((".cu", ".cuh")) and name.startswith(device)})
    tap.ok(not bad, "no two structs of one name with different bodies", "\n".join(bad))
    counts = collections.Counter()
    for name, text in texts.items():
        for word, count in rules.word_counts(text).items():
            counts["tests" if name.startswith("tests/") else "elsewhere", word] += count
    for (where, word), count in sorted(counts.items()):
        tap.ok(count <= WORDS[where][word], f"'{word}', {where}: {count} times",
               f"{WORDS[where][word]} are accepted: the field has a better word")
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
        bad = rules.same_names(files, listed, rows)
        tap.ok(not bad, f"{folder}: files, --list and README name the same variants",
               "\n".join(bad))
    bad = rules.builds_on(readme, (stage / "meson.build").read_text(encoding="utf-8"), program)
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
    for folder, program in zip(sorted(p.name for p in tree.ROOT.glob("0[1-6]_*")), rules.STAGES):
        if (tree.ROOT / folder / "main.c").is_file():
            check_stage(tap, folder, program, build)
    commands = build / "build.ninja"
    bad = rules.banned_flags(commands.read_text(encoding="utf-8", errors="replace"), ".ninja")
    tap.ok(not bad, "no compiler command of this build has a banned flag", "\n".join(bad))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
