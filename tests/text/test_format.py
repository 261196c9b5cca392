#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_format.py: every C and CUDA file is what clang-format makes of it.

Versions of clang-format differ in their taste: the tree follows version 14 (Debian 12; on Ubuntu
the package clang-format-14). With another version only, the checks are skipped and say so.
"""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tree
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


def complaints(program, text, name):
    command = [program, "--dry-run", "--Werror", f"--assume-filename={tree.ROOT / name}"]
    run = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else ""


def main():
    tap = Tap()
    program, why = find()
    if not program:
        tap.skip("formatting", why)
        return tap.done()
    tap.ok(complaints(program, "int  f( ){return 1 ;}\n", "common/x.c"),
           "a badly formatted file is seen")
    for name in tree.sources(*tree.C_LIKE):
        found = complaints(program, (tree.ROOT / name).read_text(encoding="utf-8"), name)
        tap.ok(not found, name, found[:600])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
