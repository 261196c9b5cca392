#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_layout.py: the whole tree keeps the limits of rules.py.

usage: test_layout.py BUILD [PART...]    BUILD: the build folder, whose programs answer --list;
PART: cuda, blas, cublas, as far as this build has them
"""
import os
import pathlib
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

# (file, rule): why a reader would accept it
EXEMPT = {
    ("tests/stages/so/misbehaving.c", "function_lengths"): "a list: one case per bad deed",
    ("tests/unit/test_cli.c", "file_length"): "tables of command lines and their answers",
    ("tests/unit/test_run.c", "file_length"): "one bad variant for each thing the runner watches",
}


def check_file(tap, name):
    path = tree.ROOT / name
    text = path.read_text(encoding="utf-8")
    c_like = name.endswith(tree.C_LIKE)
    wanted = ["line_widths", "file_length", "spdx", "leftovers"]
    wanted += ["function_lengths"] if c_like else []
    if name.endswith(".h") and name.startswith(("common/", "0")):
        wanted.append("interface_list")
    bad = []
    for rule in wanted:
        found = getattr(rules, rule)(text)
        if (name, rule) in EXEMPT:
            tap.ok(found, f"{name} still needs its exemption from {rule}")
        else:
            bad += found
    bad += rules.banned_flags(text, path.suffix)
    tap.ok(not bad, name, "\n".join(bad))


def listed_variants(program):
    """--list as {name: device}, or None when the program does not answer."""
    try:
        run = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    if run.returncode:
        return None
    return {line.split()[0]: line.split()[1] for line in run.stdout.splitlines() if line.strip()}


def check_stage(tap, folder, program, build, parts):
    stage = tree.ROOT / folder
    readme_path = stage / "README.md"
    readme = readme_path.read_text(encoding="utf-8") if readme_path.is_file() else ""
    files = {"cpu": sorted(p.stem for p in stage.glob("cpu/v*.c")),
             "cuda": sorted(p.stem for p in stage.glob("cuda/v*.cu"))}
    listed = listed_variants(build / folder / program)
    if tap.ok(listed, f"{folder}: --list answers", f"{build / folder / program}"):
        if folder == source_hashes.R:
            methods = [name for name in source_hashes.METHODS
                       if (stage / (name.replace("-", "_") + ".c")).is_file()]
            bad = rules.method_names(methods, listed, readme)
        else:
            linked = [name for stage, name in source_hashes.LINKED if stage == folder]
            bad = rules.variant_names(files, listed, readme, parts, linked)
        tap.ok(not bad, f"{folder}: files, --list and README name the same variants",
               "\n".join(bad))
    bad = rules.builds_on(readme, (stage / "meson.build").read_text(encoding="utf-8"), program)
    tap.ok(not bad, f"{folder}: builds on", "\n".join(bad))
    first = next((line for line in readme.splitlines() if line.strip()), "")
    tap.ok(first.strip(" #*").endswith("?"), f"{folder}: the README's first line is a question",
           first)


def main():
    tap = Tap()
    build, parts = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for name in tree.sources(*tree.C_LIKE, *SCRIPTS, *BUILD_FILES):
        check_file(tap, name)
    for folder, program in zip(sorted(p.name for p in tree.ROOT.glob("0[1-6]_*")), rules.STAGES):
        if (tree.ROOT / folder / "main.c").is_file():
            check_stage(tap, folder, program, build, parts)
    commands = build / "build.ninja"
    bad = rules.banned_flags(commands.read_text(encoding="utf-8", errors="replace"), ".ninja")
    tap.ok(not bad, "no compiler command of this build has a banned flag", "\n".join(bad))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
