#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""lost_gradients.py: exercise 13 of chapter 04. What is left of a real gradient in 16 bits?

    lost_gradients.py FLASH_BACKWARD

Runs the backward pass over the bundled training step in float32, bf16 and f16, and in f16 with dO
multiplied by 2^16 first (loss scaling) and the gradients divided by it afterwards.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parent.parent.parent / "common/data"


def read(path):
    """(header bytes, numbers) of a float32 .npy file of format 1."""
    raw = pathlib.Path(path).read_bytes()
    start = 10 + struct.unpack_from("<H", raw, 8)[0]
    return raw[:start], struct.unpack(f"<{(len(raw) - start) // 4}f", raw[start:])


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        header, dO = read(DATA / "causal_do.npy")
        (folder / "large.npy").write_bytes(
            header + struct.pack(f"<{len(dO)}f", *(65536 * x for x in dO)))
        exact = None
        for label, dtype, do_file, factor in (("f32", "f32", DATA / "causal_do.npy", 1),
                                              ("bf16", "bf16", DATA / "causal_do.npy", 1),
                                              ("f16", "f16", DATA / "causal_do.npy", 1),
                                              ("f16, scaled", "f16", folder / "large.npy", 65536)):
            subprocess.run([sys.argv[1], "--bundled=causal", "--do", do_file, "--dtype", dtype,
                            "--device", "cpu", "--variant", "v2_simd", "--quiet", "--save", folder],
                           check=True)
            for which in ("dq", "dk", "dv"):
                found = [x / factor for x in read(folder / f"{which}.npy")[1]]
                exact = exact or {}
                right = exact.setdefault(which, found)
                error = sum((a - b) ** 2 for a, b in zip(found, right)) ** 0.5
                size = sum(b * b for b in right) ** 0.5
                print(f"{label:12} {which}  zeros {found.count(0.0) / len(found):6.1%}  "
                      f"error {error / size:.1e} of the whole")


if __name__ == "__main__":
    main()
