# SPDX-License-Identifier: MIT
"""npyfile.py: .npy files from plain Python lists, for tests that must not need NumPy.

Interface:
- write(path, shape, values, kind): kind of CODES; values flat, in C order.
- read(path): (shape, flat list of floats).
"""
import array
import ast
import math
import struct
import sys

CODES = {"f4": "f", "f8": "d", "u1": "B", "i4": "i", "i8": "q"}


def write(path, shape, values, kind="f4"):
    data = array.array(CODES[kind], values)
    assert len(data) == math.prod(shape), (path, shape, len(data))
    if sys.byteorder == "big":
        data.byteswap()
    descr = "|u1" if kind == "u1" else "<" + kind
    text = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)})
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("latin1"))
        f.write(data.tobytes())


def read(path):
    with open(path, "rb") as f:
        content = f.read()
    assert content[:6] == b"\x93NUMPY", path
    size, at = (struct.unpack("<H", content[8:10])[0], 10) if content[6] == 1 else (
        struct.unpack("<I", content[8:12])[0], 12)
    header = ast.literal_eval(content[at:at + size].decode("latin1"))
    assert not header["fortran_order"], path
    data = array.array(CODES[header["descr"].lstrip("<|")])
    data.frombytes(content[at + size:])
    if sys.byteorder == "big":
        data.byteswap()
    assert len(data) == math.prod(header["shape"]), path
    return header["shape"], data.tolist()
