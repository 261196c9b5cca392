#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_source_hashes.py: which change of which file makes a recorded row stale."""
import os
import pathlib
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "common", "tools")]
import rows as recorded
import source_hashes
from tap import Tap

FILES = {
    "common/deep.h": "#define DEEP 1\n",
    "common/deep.c": '#include "deep.h"\n',
    "03_flash_forward/flash_forward.h": '#include "deep.h"\n',
    "common/attention/forward/cpu/simd.h": '#include "flash_forward.h"\n',
    "common/attention/forward/cpu/simd_kernels.c": '#include "simd.h"\nint helper;\n',
    "03_flash_forward/cpu/trace.c": '#include "flash_forward.h"\nint trace;\n',
    "03_flash_forward/cpu/v1_rows.c": '#include "flash_forward.h"\nint rows;\n',
    "common/attention/forward/cpu/simd_run.c": '#include <stdio.h>\n#include "simd.h"\n'
                                      'char *s = "/* no comment */";\n',
    "03_flash_forward/cuda/tile.cuh": "int tile;\n",
    "04_flash_backward/cuda/block.cuh": '#include "../cuda/tile.cuh"\n',
    "04_flash_backward/cuda/block.cu": '#include "block.cuh"\nint block;\n',
    "04_flash_backward/cuda/v0_atomics.cu": '#include "block.cuh"\n#include "generated.h"\n',
    "04_flash_backward/cuda/v1_other.cu": '#include "tile.cuh"\nint other;\n',
    "common/attention/window/cpu/library.c": '#include "sliding_window.h"\n',
    "05_sliding_window_online/sliding_window.h": '#include "flash_forward.h"\n',
}
SIMD, ROWS = ("03_flash_forward", "library cpu"), ("03_flash_forward", "v1_rows")
ATOMICS, OTHER = ("04_flash_backward", "v0_atomics"), ("04_flash_backward", "v1_other")
WINDOW = ("05_sliding_window_online", "library cpu")  # which calls SIMD
# (file, text to replace, by what, the variants that are another program then)
CHANGES = [
    ("common/attention/forward/cpu/simd_run.c", "no comment", "none", {SIMD, WINDOW}),
    ("common/attention/forward/cpu/simd.h", "#include", "int a;\n#include", {SIMD, WINDOW}),
    ("common/attention/forward/cpu/simd_kernels.c", "helper", "other_helper", {SIMD, WINDOW}),
    ("03_flash_forward/cpu/trace.c", "trace", "other", set()),
    ("03_flash_forward/cpu/v1_rows.c", "rows", "lines", {ROWS}),
    ("03_flash_forward/flash_forward.h", "#include", "int b;\n#include",
     {SIMD, ROWS, WINDOW}),
    ("common/deep.h", "1", "2", {SIMD, ROWS, WINDOW}),
    ("common/deep.c", "#include", "int c;\n#include", set()),
    ("common/deep.h", "DEEP 1", "DEEP /* one */  1 // 1", set()),
    ("03_flash_forward/cuda/tile.cuh", "tile", "tiles", {ATOMICS, OTHER}),
    # what is compiled where nothing can run
    ("03_flash_forward/cuda/tile.cuh", "int tile;\n",
     "#ifdef ATTN_GPU_SAMPLE /* few */\nint few;\n#else\nint tile;\n#endif\n", set()),
    ("03_flash_forward/cuda/tile.cuh", "int tile;\n",
     "#ifdef ATTN_GPU_SAMPLE\nint tile;\n#else\nint tiles;\n#endif\n", {ATOMICS, OTHER}),
    ("04_flash_backward/cuda/block.cu", "block;", "blocks;", {ATOMICS}),
    ("04_flash_backward/cuda/block.cuh", "#include", "int d;\n#include", {ATOMICS}),
]


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    source_hashes.code_of.cache_clear()  # two writes may fall into one tick of the clock


def make_tree(folder):
    root = pathlib.Path(folder)
    for name, text in FILES.items():
        write(root, name, text)
    return root


def hashes(root):
    """As in a checkout of stage 04 alone: without stage 01 there is no linked v1_blas."""
    saved, source_hashes.LINKED = source_hashes.LINKED, {}
    try:
        return source_hashes.sources_hashes(root)
    finally:
        source_hashes.LINKED = saved


def test_changes(tap, root):
    before = hashes(root)
    for number, (name, old, new, wanted) in enumerate(CHANGES):
        assert old in FILES[name]
        write(root, name, FILES[name].replace(old, new, 1))
        after = hashes(root)
        changed = {key for key in before
                   if before[key] != after[key] and key[1].startswith(("v", "library"))}
        tap.ok(changed == wanted, f"change {number}: {name}", f"{changed}, wanted {wanted}")
        write(root, name, FILES[name])
    tap.ok(hashes(root) == before, "and back again")


def test_rows(tap):
    """Today's tree: a row of today is not stale, another hash or a variant that is gone is."""
    for (folder, variant), sources in recorded.hashes_now(str(recorded.ROOT)).items():
        if variant in ("v1_blas", "library cpu"):
            row = {"stage": folder.split("_", 1)[1], "variant": variant.split()[0],
                   "device": "cpu", "sources_sha256": sources}
            tap.ok(not recorded.is_stale(row) and recorded.is_stale({**row, "sources_sha256": "0"})
                   and recorded.is_stale({**row, "variant": "v7_gone"}), f"{folder} {variant}")


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        test_changes(tap, make_tree(folder))
    test_rows(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
