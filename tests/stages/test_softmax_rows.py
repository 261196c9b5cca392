#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_softmax_rows.py: `tiled_softmax --rows R --cols C`, the softmax alone.

usage: test_softmax_rows.py PROGRAM [cpu|cuda]

- All widths that sit on an edge of some variant (block, vector, register class), all distributions:
  exit 0, one JSON row for each variant, judged and right, nothing non-finite.
- The counted accesses of each variant are the numbers of the lesson.
- The unsafe exp breaks where it must and the safe forms do not.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import Tap  # noqa: E402

# (variant, widest row read once or 0, reads of a wider row)
CPU = [("v0_three_pass", 0, 3), ("v1_online", 0, 2), ("v2_tiled_merge", 0, 2),
       ("v3_simd_threads", 4096, 2)]
CUDA = [("v0_block_per_row", 0, 3), ("v1_warp_online", 0, 2), ("v2_one_read", 32768, 2),
        ("v3_split_row", 0, 2)]
CPU_WIDTHS = [1, 2, 63, 64, 65, 1000, 4096, 4097, 20001]
CUDA_WIDTHS = [1, 3, 127, 128, 129, 256, 257, 512, 1000, 1024, 1025, 2048, 2052, 4096, 4097, 8192,
               8196, 16384, 16388, 32764, 32767, 32768, 32769, 65536, 100003]


def run(program, *flags):
    return subprocess.run([program, *flags], capture_output=True, text=True, timeout=300)


def run_rows(program, flags, lines):
    """Exit status, stderr and JSON rows of the lines as --cases."""
    with tempfile.TemporaryDirectory() as folder:
        cases = os.path.join(folder, "cases.txt")
        out = os.path.join(folder, "rows.jsonl")
        with open(cases, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        done = run(program, *flags, "--cases", cases, "--json", out)
        rows = []
        if os.path.exists(out):
            with open(out, encoding="utf-8") as file:
                rows = [json.loads(line) for line in file]
        return done, rows


def check_widths(tap, program, device, variants, widths):
    lines = []
    for index, cols in enumerate(widths):
        dist = ("normal", "outlier", "large")[index % 3]
        lines.append(f"--rows {1 + index % 5 * 4} --cols {cols} --dist {dist}")
    done, rows = run_rows(program, ["--device", device, "--threads", "2"], lines)
    tap.ok(done.returncode == 0, f"{device}: {len(lines)} matrices exit 0", done.stderr[-2000:])
    rows = [row for row in rows if "experiment" not in row]
    for name, one_read, reads in variants:
        mine = [row for row in rows if row["variant"] == name]
        tap.ok(len(mine) == len(widths), f"{name}: a row for each matrix",
               f"{len(mine)} rows, {len(widths)} matrices")
        tap.ok(mine and all(row["pass"] is True and row["nonfinite"] == 0 and
                            0 <= row["bound_ratio"] <= 1 for row in mine),
               f"{name}: every element within its bound")
        wrong = [(row["cols"], row["accesses"]) for row in mine
                 if row["accesses"] != (1 if row["cols"] <= one_read else reads) + 1]
        tap.ok(mine and not wrong, f"{name}: counted accesses are the model's", wrong)


def check_unsafe(tap, program):
    done, rows = run_rows(program, ["--device", "cpu"], ["--rows 4 --cols 64"])
    demo = [row for row in rows if row.get("experiment") == "score_range"]
    unsafe = [row for row in demo if row["variant"] == "unsafe_no_max"]
    safe = [row for row in demo if row["variant"] != "unsafe_no_max"]
    tap.ok(done.returncode == 0 and len(unsafe) >= 8, "unsafe exp: a row for each magnitude",
           done.stderr)
    small = [row for row in unsafe if row["score_max"] < 20]
    large = [row for row in unsafe if row["score_max"] > 1000]
    tap.ok(small and all(row["nonfinite"] == 0 for row in small),
           "unsafe exp survives scores below 20")
    tap.ok(large and all(row["nonfinite"] == row["rows"] for row in large),
           "unsafe exp breaks on scores above 1000")
    tap.ok(safe and all(row["pass"] is True and row["nonfinite"] == 0 for row in safe),
           "the safe forms are right on all of them")


def main():
    program, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu"
    tap = Tap()
    if device == "cuda":
        probe = run(program, "--device", "cuda", "--rows", "1", "--cols", "1")
        if probe.returncode == 77:
            print("1..0 # SKIP no GPU")
            return 0
        check_widths(tap, program, "cuda", CUDA, CUDA_WIDTHS)
    else:
        check_widths(tap, program, "cpu", CPU, CPU_WIDTHS)
        check_unsafe(tap, program)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
