#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""fill_answers.py: the table of known answers in test_fill.c, from Python's own integers.

Written from the description in common/harness/io/fill.h and not from its code; run by hand, once.
"""
MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def word(stream, t):
    return mix((stream + STEP * (t + 1)) & MASK)


def normal(stream, t):
    lanes = [(word(stream, t + w) >> (16 * lane)) & 0xFFFF for w in range(3) for lane in range(4)]
    return sum(lanes) - 12 * 65535 // 2


def value(seed, tensor, index, dist):
    stream = mix((mix((seed + STEP * tensor) & MASK) + STEP * index) & MASK)
    units = normal(stream, 0)
    if dist == "OUTLIER" and word(stream, 3) % 2**32 < 4294967:
        units += 10 * normal(stream, 4)
    return units * (8 if dist == "LARGE" else 1)


def main():
    outlier = next(i for i in range(10**6)
                   if value(5, 2, i, "OUTLIER") != value(5, 2, i, "NORMAL"))
    for seed, index, tensor, dist in [
            (0, 0, 1, "NORMAL"), (1, 0, 1, "NORMAL"), (1, 1, 1, "NORMAL"), (1, 0, 2, "NORMAL"),
            (42, 2**40 + 7, 3, "NORMAL"), (MASK, MASK, 4, "NORMAL"), (1, 5, 1, "LARGE"),
            (1, 5, 1, "OUTLIER"), (5, outlier, 2, "NORMAL"), (5, outlier, 2, "OUTLIER")]:
        units = value(seed, tensor, index, dist)
        print(f"        {{UINT64_C({seed}), UINT64_C({index}), {tensor}, FILL_{dist}, "
              f"{units} * 0x1p-16f}},")


if __name__ == "__main__":
    main()
