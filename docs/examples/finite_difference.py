#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""finite_difference.py: exercise 2 of docs/lab/04_exercises.md. Is dQ the slope of the loss?

    finite_difference.py FLASH_FORWARD FLASH_BACKWARD

The loss is sum(dO * O), whose gradient with respect to O is dO. One number of Q, of query 3, is
moved up and down by eps, stage 03 computes O twice, and (loss_up - loss_down) / (2 eps) is set
against dQ of stage 04, for several eps.
"""
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
QUERY, CHANNEL = 3, 0


def read(path):
    """(header bytes, numbers) of a float32 .npy file of format 1."""
    raw = pathlib.Path(path).read_bytes()
    start = 10 + struct.unpack_from("<H", raw, 8)[0]
    return raw[:start], list(struct.unpack(f"<{(len(raw) - start) // 4}f", raw[start:]))


def run(program, folder, Q, *more):
    subprocess.run([program, "--q", Q, "--k", HERE / "hand_k.npy", "--v", HERE / "hand_v.npy",
                    "--device", "cpu", "--variant", "library", "--quiet", "--save", folder, *more],
                   check=True)


def main():
    forward, backward = sys.argv[1:]
    header, Q = read(HERE / "hand_q.npy")
    _, dO = read(HERE / "hand_do.npy")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def loss(change):
            moved = list(Q)
            moved[QUERY * 2 + CHANNEL] += change
            (folder / "q.npy").write_bytes(header + struct.pack(f"<{len(Q)}f", *moved))
            run(forward, folder, folder / "q.npy")
            return sum(a * b for a, b in zip(dO, read(folder / "o.npy")[1]))

        run(backward, folder, HERE / "hand_q.npy", "--do", HERE / "hand_do.npy")
        slope = read(folder / "dq.npy")[1][QUERY * 2 + CHANNEL]
        print(f"dQ[{QUERY}][{CHANNEL}] = {slope:.6f}")
        for eps in (1.0, 0.1, 0.01, 0.001, 0.0001, 0.00001):
            difference = (loss(eps) - loss(-eps)) / (2 * eps)
            print(f"eps {eps:<8g} {difference:.6f}  off by {abs(difference - slope):.1e}")


if __name__ == "__main__":
    main()
