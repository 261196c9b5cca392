#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_same_words_cuda.py: an idea stands in the file of the rung that introduces it, and in the
same words in the unit that later rungs include.

usage: test_same_words_cuda.py

What a rung introduces stands in a namespace of its own, `namespace v6 { ... }`, so that it may
include the unit as well. Each definition in there, with its comment, must be in one of the units,
letter for letter.
"""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from tap import Tap

OWN = re.compile(r"^namespace (v\d+)\n{\n(.*?)^} // namespace \1$", re.M | re.S)


def definitions(text):
    """Texts that begin at the left margin, with the comment above, and end with a brace there."""
    return re.findall(r"^\S.*?^}(?:;|$)", text, re.M | re.S)


def main():
    tap, pairs = Tap(), 0
    units = [unit.read_text(encoding="utf-8")
             for unit in sorted((ROOT / "common/units").glob("*.cuh"))]
    for path in sorted(ROOT.glob("0[0-9]_*/cuda/v*.cu")):
        text = path.read_text(encoding="utf-8")
        for _name, own in OWN.findall(text):
            for definition in definitions(own):
                pairs += 1
                tap.ok(any(definition in unit for unit in units),
                       f"{path.parent.parent.name}/{path.name}: {len(definition)} letters are in "
                       f"a unit, too", f"in none of common/units:\n{definition}")
    tap.ok(pairs >= 7, f"{pairs} definitions are compared")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
