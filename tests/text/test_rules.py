#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_rules.py: each rule of rules.py complains about bad text and is silent about good text."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import rules
from tap import Tap


def function(lines, signature="static int f(int a)"):
    return f"#include <x.h>\n\n/* what */\n{signature}\n{{\n" + "    a++;\n" * (lines - 3) + "}\n"


KERNEL = "__global__ void\nk(int a)"
FAST = "-ffast" + "-math"
FILES = {"cpu": ["v0_loops", "v1_blas"], "cuda": ["v0_thread"]}
ALL = ["cuda", "blas", "cublas"]
LISTED = {"v0_loops": "cpu", "v1_blas": "cpu", "v0_thread": "cuda"}
README = ("What?\n\n**builds on:** nothing\n\n| variant | verdict |\n|---|---|\n"
          "| `v0_loops` | slow |\n"
          "| `v1_blas` | good |\n| `v0_thread` | slow |\n")

TILE = "template <int D> struct Tile {\n    int a;\n};\n"
OTHER_TILE = "template <int D_> struct Tile {\n    static const int D = D_;\n};\n"
IN_SPACE = "namespace forward\n{\n%s}\n"
DROPPED = "two jo" "bs, clean_ti" "le and YARD" "STICK"

# name, complaints, how many are wanted
CHECKS = [
    ("100 columns", rules.line_widths("x" * 100), 0),
    ("101 columns", rules.line_widths("ok\n" + "x" * 101), 1),
    ("a function of 60 lines", rules.function_lengths(function(60)), 0),
    ("a function of 80 lines", rules.function_lengths(function(80)), 1),
    ("two functions of 60 lines", rules.function_lengths(function(60) * 2), 0),
    ("a long function after a short one", rules.function_lengths(function(9) + function(80)), 1),
    ("a kernel of 120 lines", rules.function_lengths(function(120, KERNEL)), 0),
    ("a kernel of 150 lines", rules.function_lengths(function(150, KERNEL)), 1),
    ("a main of 90 lines", rules.function_lengths(function(90, "int main(void)")), 0),
    ("a main of 110 lines", rules.function_lengths(function(110, "int main(void)")), 1),
    ("a table is no function",
     rules.function_lengths("static T t[] =\n{\n" + "  1,\n" * 90 + "};\n"), 0),
    ("SPDX in line 2", rules.spdx("#!/bin/sh\n# SPDX-License-Identifier: MIT\n"), 0),
    ("no SPDX", rules.spdx("/* hello */\n"), 1),
    ("an Interface list", rules.interface_list("/*\n * Interface:\n * - f */"), 0),
    ("no Interface list", rules.interface_list("int f(void);\n" * 60 + "/* Interface: */"), 1),
    ("nothing left behind", rules.leftovers("int todo_list;\n"), 0),
    ("left behind", rules.leftovers("x;\n/* TO" "DO: y */\n"), 1),
    ("a tool that splits at U+2028", rules.unicode_lines("x = y.split" "lines()\n", True), 1),
    ("a test that does so with a file", rules.unicode_lines("x = y.split" "lines()\n", False), 0),
    ("a test that does so with JSON", rules.unicode_lines(
        "[json.loads(line) for line in y.split" "lines()]\n", False), 1),
    ("lines that end at a newline", rules.unicode_lines('x = y.split("\\n")\n', True), 0),
    ("a banned flag in a build file", rules.banned_flags(f"c_args: ['{FAST}']\n", ".build"), 1),
    ("a banned flag named in a comment", rules.banned_flags(f"# no {FAST} here\n", ".build"), 0),
    ("a banned flag in a C comment",
     rules.banned_flags(f"/* never\n {FAST} */\nint x;\n", ".c"), 0),
    ("a banned pragma",
     rules.banned_flags('#pragma GCC optimize("O3", "fast' '-math")\n', ".c"), 1),
    ("an allowed pragma", rules.banned_flags('#pragma GCC optimize("O3")\n', ".c"), 0),
    ("nvcc's flag", rules.banned_flags("args += '--use_fast" "_math'\n", ".build"), 2),
    ("all names agree", rules.variant_names(FILES, LISTED, README, ALL), 0),
    ("without CUDA its rows stay", rules.variant_names(
        FILES, {"v0_loops": "cpu", "v1_blas": "cpu"}, README, ["blas"]), 0),
    ("without BLAS its row stays", rules.variant_names(
        FILES, {"v0_loops": "cpu"}, README, []), 0),
    ("with BLAS it must be listed", rules.variant_names(
        FILES, {"v0_loops": "cpu"}, README, ["blas"]), 1),
    ("a file that is not listed", rules.variant_names(
        {**FILES, "cpu": ["v0_loops", "v1_blas", "v2_new"]}, LISTED, README, ALL), 2),
    ("a listed name without a file", rules.variant_names(
        FILES, {**LISTED, "v9_ghost": "cpu"}, README, ALL), 1),
    ("a name on the wrong device", rules.variant_names(
        FILES, {**LISTED, "v0_thread": "cpu"}, README, ALL), 1),
    ("a README without a row", rules.variant_names(
        FILES, LISTED, README.replace("| `v1_blas` | good |\n", ""), ALL), 1),
    ("a README with a row too many", rules.variant_names(
        FILES, LISTED, README + "| `v7_ghost` | fast |\n", ALL), 1),
    ("a linked variant", rules.variant_names(
        FILES, {**LISTED, "v9_linked": "cpu"}, README + "| `v9_linked` | 01's |\n", ALL,
        ["v9_linked"]), 0),
    ("a linked variant without a row", rules.variant_names(
        FILES, {**LISTED, "v9_linked": "cpu"}, README, ALL, ["v9_linked"]), 1),
    ("methods agree", rules.method_names(["ring", "ring-double"], {"ring": "cpu",
        "ring-double": "cpu"}, "| `ring` | x |\n| `ring-double` | y |\n"), 0),
    ("a method that is not listed", rules.method_names(["ring", "burst"], {"ring": "cpu"},
        "| `ring` | x |\n| `burst` | y |\n"), 1),
    ("a method without a file", rules.method_names(["ring"], {"ring": "cpu", "burst": "cpu"},
        "| `ring` | x |\n"), 1),
    ("a method without a row", rules.method_names(["ring"], {"ring": "cpu"}, "`ring`"), 1),
    ("builds on nothing", rules.builds_on(README, "deps = [common_dep, naive_dep]", "naive"), 0),
    ("builds on 01", rules.builds_on("builds on: 01", "deps = [naive_dep]", "tiled_softmax"), 0),
    ("builds on 01_naive", rules.builds_on("builds on: 01_naive", "naive_dep", "tiled_softmax"), 0),
    ("links more than it says", rules.builds_on(README, "deps = [naive_dep]", "tiled_softmax"), 1),
    ("says more than it links",
     rules.builds_on("builds on: 01, 03", "naive_dep", "tiled_softmax"), 1),
    ("does not say", rules.builds_on("What?", "naive_dep", "tiled_softmax"), 1),
    ("one struct in two files", rules.struct_bodies({"a": TILE, "b": "// again\n" + TILE}), 0),
    ("two structs of one name", rules.struct_bodies({"a": TILE, "b": OTHER_TILE}), 1),
    ("two structs of one name in a namespace",
     rules.struct_bodies({"a": IN_SPACE % TILE, "b": IN_SPACE % OTHER_TILE}), 1),
    ("two structs of one name in two namespaces",
     rules.struct_bodies({"a": TILE, "b": IN_SPACE % OTHER_TILE}), 0),
    ("a struct after a function", rules.struct_bodies({"a": TILE, "b": "int f()\n{\n}\n" +
                                                       OTHER_TILE}), 1),
    ("words that are dropped", [word for word, count in rules.word_counts(DROPPED).items()
                                for _ in range(count)], 3),
    ("words that look like them",
     [word for word, count in rules.word_counts("jobless yard_sticks cleantiles").items() if count],
     0),
]


def main():
    tap = Tap()
    for name, complaints, wanted in CHECKS:
        tap.ok(len(complaints) == wanted, name, f"wanted {wanted}, found {complaints}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
