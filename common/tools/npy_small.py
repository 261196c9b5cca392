# SPDX-License-Identifier: MIT
"""npy_small.py: reads a little-endian f2, f4 or f8 .npy file with the standard library alone.

Interface:
- read(path): (shape, flat list of floats), C order.
"""
import ast
import math
import pathlib
import struct


def read(path):
    raw = pathlib.Path(path).read_bytes()
    if raw[:6] != b"\x93NUMPY":
        raise ValueError(f"{path}: not an .npy file")
    start, length = (10, "<H") if raw[6] == 1 else (12, "<I")
    (size,) = struct.unpack_from(length, raw, 8)
    header = ast.literal_eval(raw[start:start + size].decode("latin1"))
    code = {"<f2": "e", "<f4": "f", "<f8": "d"}.get(header["descr"])
    if not code or header["fortran_order"]:
        raise ValueError(f"{path}: found {header['descr']}, accepted are <f2 <f4 <f8 in C order")
    count = math.prod(header["shape"])
    return header["shape"], list(struct.unpack_from(f"<{count}{code}", raw, start + size))
