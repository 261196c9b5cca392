#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_arrows.py: includes point down, and a stage's folder holds what a stage is.

usage: test_arrows.py NAIVE    the program of stage 01, whose symbols are read

A rung includes the plain problem and units; units include units; the library includes units and the
harness; the course includes the harness; a method of stage 06 includes rank.h and its neighbours;
the harness includes none of library, course and stages. What all of them stand on is the ground:
attn.h with its parts, tensors and allocation. The two lists of exceptions shrink: whoever mends one
takes it out, and nobody adds one.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "common",
                                "tools"))
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
    ("ground", r"common/(attention/)?[\w.]+$"),
    ("library", r"common/attention/"))]
DOWN = {"rung": {"problem", "unit"}, "method": {"method", "rank.h"}, "unit": {"unit"},
        "problem": {"problem", "unit"}, "ground": {"ground", "unit"},
        "library": {"library", "unit", "harness", "ground"},
        "harness": {"harness", "problem", "unit", "ground"},
        "course": {"course", "harness", "unit", "ground"},
        "stage": {"rung", "method", "rank.h", "stage", "problem", "unit", "harness", "ground",
                  "library"}}
# {folder: files whose includes point up today}
UPWARD = {
    "02_tiled_softmax/cuda":
        "v0_block_per_row.cu v1_warp_online.cu v2_one_read.cu v3_split_row.cu",
    "04_flash_backward/cpu":
        "v0_fa1_backward.c v1_fa2_backward.c v2_packing.c v3_register_tiles.c v4_exp2.c "
        "v5_own_heads.c",
    "05_sliding_window_online/cpu":
        "v0_offline_mask.c v1_online_block.c v2_window_tiles.c v3_streaming.c "
        "v4_window_backward.c",
    "05_sliding_window_online/cuda":
        "v0_online_block.cu v1_window_tiles.cu v2_mma_window.cu v3_decode_window.cu",
    "06_ring_burst/methods":
        "simulate.c simulate.h table.c",
    "common/attention/backward/cpu":
        "backward_pack.h",
    "common/attention/backward/cuda":
        "block.cuh sums.cu",
    "common/attention/forward/cpu":
        "simd_pack.h simd_run.c",
    "common/attention/forward/cuda":
        "block.cuh dispatch.cuh",
    "common/attention/op":
        "device.c operator.c",
    "common/attention/window/cpu":
        "normalise.c offline.c online.c order.c plain.c sequences.h stream.c weights.h",
    "common/attention/window/cuda":
        "dropout.cuh window_cuda.h",
    "common/course":
        "contract_sliding.c",
    "common":
        "start.c"}

STAGE = {"README.md", "main.c", "trace.c", "meson.build", "cpu", "cuda"}
RING = {"README.md", "main.c", "meson.build", "methods", "runtime", "transports", "planner", "show"}
LEFT = set("""
01_naive/naive.h 02_tiled_softmax/tiled_softmax.h 03_flash_forward/bench_ratio.c
03_flash_forward/count_traffic.c 03_flash_forward/flash_forward.h
04_flash_backward/backward_steps.h 04_flash_backward/bench_ratio.c
04_flash_backward/flash_backward.h 05_sliding_window_online/bench_ratio.c
05_sliding_window_online/sliding_window.h 05_sliding_window_online/window_steps.h
""".split())


def layer_of(name):
    return next((layer for layer, files in LAYERS if files.match(name)), None)


def upward(name, target):
    """Does this include point where it must not?"""
    return layer_of(target) not in DOWN.get(layer_of(name), {layer_of(target)})


def excepted(name):
    folder, _, file = name.rpartition("/")
    return file in UPWARD.get(folder, "").split()


def check_arrows(tap):
    root, found = tree.ROOT.resolve(), []
    given = root / "docs" / "course" / "include"  # what students include, found first by the course
    for name in tree.sources(*tree.C_LIKE):
        for path in source_hashes.included(root, root / name):
            target = path.relative_to(root).as_posix()
            if upward(name, target) and not (given / path.name).is_file():
                found.append((name, target))
    new = [f"{name} -> {target}" for name, target in found if not excepted(name)]
    tap.ok(not new, "includes point down", "\n".join(new))
    mended = {f"{folder}/{file}" for folder, files in UPWARD.items() for file in files.split()} - \
        {name for name, _ in found}
    print("# take out of UPWARD:", *sorted(mended))


def check_folders(tap):
    found = set()
    for name in tree.sources(""):
        parts = name.split("/")
        if re.match(r"0\d_", name):
            found |= {f"{parts[0]}/{parts[1]}"} - \
                {f"{parts[0]}/{part}" for part in (RING if name[1] == "6" else STAGE)}
    tap.ok(found <= LEFT, "a stage's folder holds what a stage is", " ".join(sorted(found - LEFT)))
    print("# take out of LEFT:", *sorted(LEFT - found))


def check_itself(tap):
    """Planted includes are seen."""
    for name, target, bad in (
            ("03_flash_forward/cpu/v0_a.c", "common/attention/attn.h", True),
            ("03_flash_forward/cpu/v0_a.c", "common/attention/forward/flash_library.h", True),
            ("03_flash_forward/cuda/v0_a.cu", "common/units/mma.cuh", False),
            ("common/units/mma.cuh", "common/problem.cuh", True),
            ("common/attention/forward/cpu/a.c", "03_flash_forward/flash_forward.h", True),
            ("common/attention/forward/cpu/a.c", "common/harness/io/philox.h", False),
            ("common/harness/cli/cli.c", "common/course/isolate.h", True),
            ("01_naive/main.c", "common/course/isolate.h", True),
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
