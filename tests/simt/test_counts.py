#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The counters against arithmetic on paper (useful bytes against the byte model, bank conflicts),
and against a card: wavefronts of known patterns.

usage: test_counts.py SIMT_PATTERNS
"""
import re
import sys

from programs import program, run
from tap import Tap


# What an H100 takes for a read by 32 lanes: bytes a lane, the word of lane l, wavefronts. 16 bytes
# go a quarter of a warp at a time, 8 bytes half; twice as many where each lane l has the address of
# lane l ^ 1, or each that of l ^ 2.
LANES = range(32)
PATTERNS = [
    (16, [l for l in LANES], 4), (16, [l // 2 for l in LANES], 2), (16, [l // 4 for l in LANES], 2),
    (16, [l // 8 for l in LANES], 2), (16, [0 for l in LANES], 2), (16, [l % 2 for l in LANES], 2),
    (16, [l % 4 for l in LANES], 4), (16, [l % 8 for l in LANES], 4),
    (16, [l % 16 for l in LANES], 4), (16, [8 * l for l in LANES], 32),
    (16, [l % 8 * 8 + l // 8 for l in LANES], 32),
    (8, [l for l in LANES], 2), (8, [l // 2 for l in LANES], 1), (8, [l % 2 for l in LANES], 1),
    (8, [l % 4 for l in LANES], 2),
]


def count(name, dtype, n, heads, d, *more):
    words = ["--device", "cuda", "--variant", name, "--dtype", dtype, "-N", str(n), "-H",
             str(heads), "-d", str(d), *more]
    done = run([program("03")], words, SIMT_COUNT="1")
    # one launch of the warm-up and one that is timed are the same: per launch
    launches = sum(int(x) for x in re.findall(r": (\d+) launch", done.stdout))
    numbers = {}
    for way in ("read", "written"):
        found = re.findall(rf"global memory {way}: (\d+) useful bytes, (\d+) sectors", done.stdout)
        numbers[way] = sum(int(b) for b, _ in found) / max(launches, 1)
        numbers[way + " sectors"] = sum(int(s) for _, s in found) / max(launches, 1)
    waves = re.search(r"shared memory: (\d+) wavefronts, (\d+) without", done.stdout)
    numbers["waves"], numbers["ideal"] = int(waves[1]) / launches, int(waves[2]) / launches
    return numbers, done.stdout + done.stderr


def model(n, heads, d, size, rows):
    """Q and O once, K and V once for each tile of rows, lse: in bytes."""
    tensor = n * heads * d * size
    return tensor + 2 * tensor * -(-n // rows) + tensor + 4 * n * heads


def main():
    tap = Tap()
    for name, dtype, size, rows in (("v1_fa2", "f32", 4, 32), ("v2_register_tiles", "f32", 4, 64),
                                    ("v5_cp_async", "bf16", 2, 128)):
        for n, heads in ((128, 2), (256, 1)):
            got, text = count(name, dtype, n, heads, 64)
            want = model(n, heads, 64, size, rows)
            have = got["read"] + got["written"]
            tap.ok(have == want, f"{name} N = {n}: useful bytes are the model's {want}",
                   f"{have}\n{text}")
    # stores of O fill their sectors, or half of each; what is twice as much at d = 128 is O
    for name, dtype, size, fill in (("v2_register_tiles", "f32", 4, 1), *(
            (name, "bf16", 2, 2) for name in ("v3_mma", "v4_ldmatrix", "v5_cp_async", "v6_exp2",
                                              "v7_full_tiles", "v8_schedule"))):
        small, large = (count(name, dtype, 128, 1, d)[0]["written sectors"] for d in (64, 128))
        tap.ok(large - small == fill * 128 * 64 * size / 32,
               f"{name} stores {'whole' if fill == 1 else 'halves of'} sectors of O",
               f"{small} and {large} sectors at d = 64 and 128")
    got, text = count("v1_fa2", "f32", 128, 1, 64)
    tap.ok(got["waves"] == got["ideal"], "v1_fa2 has no bank conflict", text)
    got, text = count("v4_ldmatrix", "bf16", 128, 1, 64)
    tap.ok(got["waves"] == got["ideal"], "v4_ldmatrix: the swizzle leaves no bank conflict", text)
    for size, words, want in PATTERNS:
        done = run([sys.argv[1]], [str(size), *map(str, words)], SIMT_COUNT="1")
        tap.ok(done.stdout.strip() == str(want),
               f"{size} bytes, words {words[:9]} ...: {want} wavefronts", done.stdout + done.stderr)
    # 16-byte reads of which lanes share addresses: an H200 counts 139,264 for 64 pairs of tiles
    got, text = count("v2_register_tiles", "f32", 64, 1, 64)
    tap.ok(got["waves"] == 139264 / 64, "v2_register_tiles has the wavefronts of a card", text)
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
