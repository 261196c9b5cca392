#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_same_words.py: an idea stands in the rung that brings it and, in the same words, in the unit
that later rungs include.

A unit names that rung at its head: "vN_name of stage NN is the rung that brings it, in the same
words". Whatever function or struct the unit defines must stand in the rung, line for line;
comments, `inline` and macros do not count. In CUDA what a rung introduces stands in a namespace of
its own, `namespace v6 { ... }`, so that it may include the unit as well: each definition in there,
with its comment, must be in one of the units, letter for letter.
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, str(ROOT / "common" / "tools"))
import reading
from tap import Tap

NAMED = re.compile(r"(v\d+_\w+) of stage (\d\d) is the rung that brings "
                   r"(?:it|them), in the same words")
OWN = re.compile(r"^namespace (v\d+)\n{\n(.*?)^} // namespace \1$", re.M | re.S)


def words_of(text):
    """{names: lines} of functions and structs."""
    found = {}
    for chunk in reading.chunks(text):
        if not chunk[0].startswith("#"):
            found[frozenset(reading.names_given(chunk))] = reading.words(chunk)
    return found


def different(unit, rung):
    """Names of what the unit defines and the rung has not, or in other words."""
    theirs = words_of(rung)
    return sorted(" ".join(sorted(names)) for names, text in words_of(unit).items()
                  if theirs.get(names) != text)


def test_rule(tap):
    unit = "static inline int twice(int a)\n{\n    return 2 * a; /* so */\n}\n"
    tap.ok(different(unit, unit.replace(" inline", "").replace("so", "thus")) == [],
           "inline and comments do not count")
    tap.ok(different(unit, unit.replace("2 * a", "a + a")) == ["twice"], "other words are found")
    tap.ok(different(unit, "") == ["twice"], "so is what the rung lacks")


# What two files have, of which neither includes the other.
TWICE = (("add_products", "common/units/strips.h", "common/units/gradient_strips.h"),
         ("recompute_tile", "04_flash_backward/cpu/v0_fa1_backward.c",
          "04_flash_backward/cpu/v1_fa2_backward.c"),
         ("tile_of_turn", "03_flash_forward/cuda/v14_persistent.cu",
          "03_flash_forward/cuda/v15_fp8.cu"))


def check_twice(tap):
    for name, *files in TWICE:
        found = {reading.words(chunk) for file in files
                 for chunk in reading.chunks((ROOT / file).read_text(encoding="utf-8"))
                 if name in reading.names_given(chunk)}
        tap.ok(len(found) == 1, f"{name} stands twice in the same words", "\n".join(found))


def check_namespaces(tap):
    pairs = 0
    units = [unit.read_text(encoding="utf-8") for unit in (ROOT / "common/units").glob("*.cuh")]
    for path in sorted(ROOT.glob("0[0-9]_*/cuda/v*.cu")):
        for _name, own in OWN.findall(path.read_text(encoding="utf-8")):
            # from the left margin, with the comment above, to a brace there
            for definition in re.findall(r"^\S.*?^}(?:;|$)", own, re.M | re.S):
                pairs += 1
                tap.ok(any(definition in unit for unit in units),
                       f"{path.parent.parent.name}/{path.name}: {len(definition)} letters are in "
                       f"a unit, too", f"in none of common/units:\n{definition}")
    tap.ok(pairs >= 7, f"{pairs} definitions are compared")


def main():
    tap, pairs = Tap(), 0
    test_rule(tap)
    check_twice(tap)
    check_namespaces(tap)
    for unit in sorted((ROOT / "common" / "units").glob("*.*h")):
        text = unit.read_text(encoding="utf-8")
        head = " ".join(re.sub(r"\n \* ?", " ", reading.head_of(text)).split())
        for name, stage in NAMED.findall(head):
            rungs = [*ROOT.glob(f"{stage}_*/c*/{name}.c"), *ROOT.glob(f"{stage}_*/c*/{name}.cu")]
            found = different(text, rungs[0].read_text(encoding="utf-8")) if rungs else ["no rung"]
            tap.ok(not found, f"{unit.name} has the words of stage {stage}'s {name}", str(found))
            pairs += 1
    tap.ok(pairs > 0, f"{pairs} units have words of a rung")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
