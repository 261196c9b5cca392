#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_format.py: every C and CUDA file is what clang-format makes of it, and so is every file with
a bug that ./ladder learn hands out: a line that is indented in another way tells the place.

Versions of clang-format differ in their taste: the tree follows version 14 (Debian 12; on Ubuntu
the package clang-format-14). With another version only, the checks are skipped and say so.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tree
sys.path.append(str(tree.ROOT / "common" / "tools"))
import learn_steps
from tap import Tap

VERSION = "14"


def find():
    """(program, "") or (None, why not)."""
    found = "no clang-format"
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            text = subprocess.run([name, "--version"], capture_output=True, text=True,
                                  check=False).stdout
            number = re.search(r"version (\d+)", text)
            if number and number[1] == VERSION:
                return name, ""
            found = f"clang-format {number[1] if number else '?'}"
    return None, f"needs clang-format {VERSION}, found {found}"


COMPLAINT = re.compile(r"(/.*?):\d+:\d+: \w+: ")


def complaints(program, paths):
    """{path: what the formatter says of it}. One process for all of them: to start it takes longer
    than to read a file. What it says of no file in particular, it says of each."""
    run = subprocess.run([program, "--dry-run", "--Werror", "--style=file", *map(str, paths)],
                         capture_output=True, text=True, check=False)
    said, about = {str(path): "" for path in paths}, ""
    for line in run.stderr.splitlines(keepends=True):
        found = COMPLAINT.match(line)
        about = found[1] if found and found[1] in said else about
        for path in [about] if about else said:
            said[path] += line
    if run.returncode and not any(said.values()):
        return dict.fromkeys(said, f"exit status {run.returncode}")
    return said


def sees(program, folder):
    """Of two files, with the rules of the tree, the bad one and no other."""
    shutil.copy(tree.ROOT / ".clang-format", folder)
    good, bad = pathlib.Path(folder, "good.c"), pathlib.Path(folder, "bad.c")
    good.write_text("int f(void)\n{\n    return 1;\n}\n", encoding="utf-8")
    bad.write_text("int  f( ){return 1 ;}\n", encoding="utf-8")
    blamed = [[path for path, said in complaints(program, paths).items() if said]
              for paths in ([good, bad], [bad, good], [good], [good, pathlib.Path(folder, "no.c")])]
    return (blamed[:3] == [[str(bad)], [str(bad)], []] and str(pathlib.Path(folder, "no.c"))
            in blamed[3], blamed)


def main():
    tap = Tap()
    program, why = find()
    if not program:
        tap.skip("formatting", why)
        return tap.done()
    with tempfile.TemporaryDirectory() as folder:
        seen, blamed = sees(program, folder)
        tap.ok(seen, "a badly formatted file is seen", blamed)
        hunts = {pathlib.Path(folder, f"{step.name}-{step.answer_name}"): step
                 for step in learn_steps.read_steps() if step.kind == "bug"}
        for path, step in hunts.items():
            path.write_text(step.stub(), encoding="utf-8")
        for path, said in complaints(program, hunts).items():
            tap.ok(not said, f"the bug of {hunts[pathlib.Path(path)].name}", said[:600])
    names = tree.sources(*tree.C_LIKE)
    found = complaints(program, [tree.ROOT / name for name in names])
    for name in names:
        said = found[str(tree.ROOT / name)]
        tap.ok(not said, name, said[:600])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
