#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_arrows.py: includes point down, and a stage's folder holds what a stage is.

usage: test_arrows.py NAIVE    the program of stage 01, whose symbols are read

A rung includes the plain problem and units; units include units; the library includes units and the
harness; the course includes the harness; a method of stage 06 includes rank.h and its neighbours;
the harness includes none of units, library, course and stages; wasm, the steps in the pages, stands
above the stages. What all of them stand on is the ground: attn.h with its parts, tensors and
allocation. There is no exception.
"""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common",
                                "tools"))
import reading
import source_hashes
import tree
from tap import Tap

# (layer, its files); the first that fits counts
LAYERS = [(layer, re.compile(files)) for layer, files in (
    ("rung", r"0[1-5]_\w+/(cpu|cuda)/v\d"),
    ("method", r"06_ring_burst/methods/"),
    ("rank.h", r"06_ring_burst/runtime/rank\.h"),
    ("stage", r"0\d_"),
    ("problem", r"common/problem"),
    ("unit", r"common/units/"),
    ("harness", r"common/harness/"),
    ("course", r"common/course/|docs/course/include/"),
    ("wasm", r"common/wasm/"),
    ("ground", r"common/(attention/)?[\w.]+$"),
    ("library", r"common/attention/"))]
DOWN = {"rung": {"problem", "unit"}, "method": {"method", "rank.h"}, "unit": {"unit"},
        "problem": {"problem", "unit"}, "ground": {"ground", "unit"},
        "library": {"library", "unit", "harness", "ground"},
        "harness": {"harness", "problem", "ground"},
        "course": {"course", "harness", "unit", "ground"},
        "wasm": {"wasm", "rung", "rank.h", "stage", "problem", "unit", "harness", "library"},
        "stage": {"rung", "method", "rank.h", "stage", "problem", "unit", "harness", "ground",
                  "library"}}
STAGE = {"README.md", "main.c", "trace.c", "meson.build", "cpu", "cuda"}
RING = {"README.md", "main.c", "meson.build", "methods", "runtime", "transports", "planner", "show"}
MAX_MAIN = 60  # lines of code: a stage's question and its list of rungs


def layer_of(name):
    return next((layer for layer, files in LAYERS if files.match(name)), None)


def upward(name, target):
    """Does this include point where it must not?"""
    return layer_of(target) not in DOWN.get(layer_of(name), {layer_of(target)})


def check_arrows(tap):
    root, found = tree.ROOT.resolve(), []
    given = root / "docs" / "course" / "include"  # what students include, found first by the course
    for name in tree.sources(*tree.C_LIKE):
        for path in source_hashes.included(root, root / name):
            target = path.relative_to(root).as_posix()
            if upward(name, target) and not (given / path.name).is_file():
                found.append((name, target))
    tap.ok(not found, "includes point down", "\n".join(f"{name} -> {to}" for name, to in found))


def check_folders(tap):
    """A stage's folder holds what a stage is, and its main.c is short."""
    for stage in sorted(tree.ROOT.glob("0[1-6]_*")):
        there = {name.split("/")[1] for name in tree.sources("")
                 if name.startswith(stage.name + "/")}
        wanted = RING if stage.name == "06_ring_burst" else STAGE
        tap.ok(there == wanted, f"{stage.name} holds what a stage is",
               f"more: {sorted(there - wanted)}, less: {sorted(wanted - there)}")
        lines = len(reading.code_lines((stage / "main.c").read_text(encoding="utf-8")))
        tap.ok(lines <= MAX_MAIN, f"{stage.name}/main.c: {lines} lines of code",
               f"{MAX_MAIN} are accepted")


def check_itself(tap):
    """Planted includes are seen."""
    for name, target, bad in (
            ("03_flash_forward/cpu/v0_a.c", "common/attention/attn.h", True),
            ("03_flash_forward/cpu/v0_a.c", "common/attention/forward/flash_library.h", True),
            ("03_flash_forward/cuda/v0_a.cu", "common/units/mma.cuh", False),
            ("common/units/mma.cuh", "common/problem.cuh", True),
            ("common/attention/forward/cpu/a.c", "03_flash_forward/cpu/v0_a.c", True),
            ("common/attention/forward/cpu/a.c", "common/harness/io/philox.h", False),
            ("common/harness/cli/cli.c", "common/course/isolate.h", True),
            ("01_naive/main.c", "common/course/isolate.h", True),
            ("common/wasm/steps.c", "common/course/isolate.h", True),
            ("common/harness/cli/cli.c", "common/wasm/watch.h", True),
            ("common/harness/cli/cli.c", "common/units/scores.h", True),
            ("common/harness/cli/cli.c", "common/attention/rows.h", False),
            ("common/harness/cli/cli.c", "common/attention/op/op_internal.h", True),
            ("06_ring_burst/methods/ring.c", "06_ring_burst/runtime/rank.h", False),
            ("06_ring_burst/methods/ring.c", "common/attention/attn.h", True)):
        tap.ok(upward(name, target) == bad, f"{name} -> {target}: {'up' if bad else 'down'}")


def check_symbols(tap, program):
    """The lesson's first program contains nothing of the judge, the hints and the sandbox."""
    if not shutil.which("nm"):
        return tap.skip("symbols", "no nm")
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    bad = re.findall(r"\b(?:isolate|hint|runner|sandbox|submission|attn_block)_\w+", names)
    return tap.ok(len(names) > 1000 and not bad,
                  f"{os.path.basename(program)} has no symbol of the course", " ".join(bad))


def main():
    tap = Tap()
    check_itself(tap)
    check_symbols(tap, sys.argv[1])
    check_arrows(tap)
    check_folders(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
