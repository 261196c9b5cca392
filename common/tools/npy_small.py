# SPDX-License-Identifier: MIT
"""npy_small.py: reads a little-endian f2, f4 or f8 .npy file with the standard library alone.

Interface:
- read(path): (shape, flat list of floats), C order.
- attention_map(folder, head): P [N][N] of one head of the bundled Q and K, scale 1/sqrt(d).
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


def attention_map(folder, head):
    (_, N, H, d), Q = read(pathlib.Path(folder) / "encoder_q.npy")
    _, K = read(pathlib.Path(folder) / "encoder_k.npy")
    rows_q = [Q[(i * H + head) * d:(i * H + head + 1) * d] for i in range(N)]
    rows_k = [K[(j * H + head) * d:(j * H + head + 1) * d] for j in range(N)]
    P = []
    for q in rows_q:
        s = [sum(a * b for a, b in zip(q, k)) / math.sqrt(d) for k in rows_k]
        m = max(s)
        e = [math.exp(x - m) for x in s]
        total = sum(e)
        P.append([x / total for x in e])
    return P
