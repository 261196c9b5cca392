#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""site_sources.py WASM SOURCE...: what the step pages need beside the program, as a script on
stdout, since browsers fetch nothing from files: the program itself, the lines of its rungs, the
tokens of docs/examples/hand_*.npy, and the recorded traces of CUDA rungs."""
import base64
import json
import pathlib
import sys

import npy_small

ROOT = pathlib.Path(__file__).resolve().parents[2]


def hand(name):
    shape, values = npy_small.read(ROOT / f"docs/examples/hand_{name}.npy")
    d = shape[-1]
    return [list(values[k:k + d]) for k in range(0, len(values), d)]


wasm, *sources = sys.argv[1:]
traces = {p.stem.removeprefix("simt_trace_"): json.loads(p.read_text())
          for p in sorted((ROOT / "docs/results").glob("simt_trace_*.json"))}
sources += [f"03_flash_forward/cuda/{rung}.cu" for rung in traces]
for name, value in (
        ("wasm_base64", base64.b64encode(pathlib.Path(wasm).read_bytes()).decode()),
        ("sources", {s: (ROOT / s).read_text().split("\n") for s in sources}),
        ("traces", traces),
        ("hand", {n: hand(n) for n in ("q", "k", "v", "do", "k_turned", "v_turned")})):
    print(f"globalThis.steps_{name} = {json.dumps(value, separators=(',', ':'))};")
