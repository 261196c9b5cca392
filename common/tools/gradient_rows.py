#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gradient_rows.py: what each dtype makes of a real gradient, as rows for stage 04.

    gradient_rows.py PROGRAM [--device cpu|cuda]        rows on stdout

PROGRAM (flash_backward) computes the gradients of --bundled=causal with every variant of the device
that takes its d, in every dtype that the variant takes; in float16 once as they are and once with
the loss, and so dO, multiplied by 2^16, the usual cure for gradients that float16 cannot hold. A
row is the program's own, judged by its oracle, with four things added: the loss scale, how much of
dO the dtype makes zero or subnormal, and how far the rows of dQ, dK, dV are from those in float32.

Interface:
- underflow(values): shares of the values that float16 makes zero, and subnormal.
- compare(found, right, d, scale): median of the rows' relative errors, share of rows off by more
  than a tenth.
- rows(program, device): the rows, docs/json_schema.md, "A real gradient".
"""
import argparse
import array
import json
import math
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import npy_small
import rungs
import tool

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
STAGE = DATA.parent.parent / "04_flash_backward"
GRADIENTS = ("dQ", "dK", "dV")
LOST = 0.1
# dtype and loss scale; the first is what the others are compared with
RUNS = (("f32", 1), ("bf16", 1), ("f16", 1), ("f16", 2 ** 16))


def underflow(values):
    halves = [struct.unpack("<e", struct.pack("<e", v))[0] for v in values]
    zero = sum(h == 0 != v for h, v in zip(halves, values))
    subnormal = sum(0 < abs(h) < 2 ** -14 for h in halves)
    return zero / len(values), subnormal / len(values)


def compare(found, right, d, scale):
    """Rows of d channels; the found ones carry the loss scale. A row that is zero is not counted:
    the first query sees one key only, so its dQ is."""
    errors = []
    for at in range(0, len(right), d):
        row, wrong = right[at:at + d], found[at:at + d]
        size = math.hypot(*row)
        if size > 0:
            errors.append(math.hypot(*(w / scale - r for w, r in zip(wrong, row))) / size)
    return statistics.median(errors), sum(e > LOST for e in errors) / len(errors)


def write_scaled(path, scale):
    """dO times the loss scale, with the header of the file it comes from."""
    raw = (DATA / "causal_do.npy").read_bytes()
    start = 10 + int.from_bytes(raw[8:10], "little")
    values = array.array("f", raw[start:])
    path.write_bytes(raw[:start] + array.array("f", [v * scale for v in values]).tobytes())


def variants_of(program, device):
    """[(name, dtypes)] of --list, without rungs for d = 256 alone."""
    out = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    listed = [line.split() for line in tool.lines_of(out)]
    wide = [name for _, name, path in rungs.listed(STAGE / "main.c")
            if rungs.head_dims(rungs.registration(path)) == ["256"]]
    return [(row[0], row[2].split(",")) for row in listed
            if row[1] == device and row[0] not in wide]


def run(program, folder, words):
    """The row and the three gradients of one run; a wrong answer ends everything."""
    done = subprocess.run([program, *words, "--quiet", "--json", "row.jsonl", "--save", "saved"],
                          cwd=folder, capture_output=True, text=True, check=False,
                          env={**os.environ, "ATTN_DATA_DIR": str(DATA)})
    if done.returncode != 0:
        sys.exit(f"{program} {' '.join(words)}: exit status {done.returncode}: {done.stderr}")
    path = pathlib.Path(folder, "row.jsonl")
    row = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return row, [npy_small.read(pathlib.Path(folder, "saved", f"{name.lower()}.npy"))[1]
                 for name in GRADIENTS]


def rows(program, device):
    program = str(pathlib.Path(program).resolve())
    listed = variants_of(program, device)
    (_, _, _, d), dO = npy_small.read(DATA / "causal_do.npy")
    right = None
    for dtype, scale in RUNS:
        lost = underflow([v * scale for v in dO]) if dtype == "f16" else (0.0, 0.0)
        for variant in [name for name, dtypes in listed if dtype in dtypes]:
            with tempfile.TemporaryDirectory() as folder:
                words = ["--bundled=causal", "--device", device, "--variant", variant, "--dtype",
                         dtype]
                if scale != 1:
                    write_scaled(pathlib.Path(folder, f"dO_x{scale}.npy"), scale)
                    words += ["--do", f"dO_x{scale}.npy"]
                row, found = run(program, folder, words)
            right = right or found
            row.update(loss_scale=scale, dO_zero=lost[0], dO_subnormal=lost[1])
            for name, a, b in zip(GRADIENTS, found, right):
                median, share = compare(a, b, d, scale)
                row.update({f"{name}_error_median": median, f"{name}_rows_lost": share})
            yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    for row in rows(args.program, args.device):
        print(json.dumps(row, separators=(",", ":")), flush=True)
    return 0


if __name__ == "__main__":
    tool.end(main, subprocess.CalledProcessError, *tool.MALFORMED)
