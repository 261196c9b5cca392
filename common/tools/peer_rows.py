#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""peer_rows.py: put a peer's speed beside our own, where both were measured in the same run.

    peer_rows.py ROWS.jsonl PEERS.txt...

PEERS.txt are what the scripts of a peers/ folder printed in one run: PyTorch's FlashAttention-2 and
cuDNN, FlashAttention-3's and -4's wheels, in bf16; 16k tokens in all and hidden size 2048 unless
the line says more; lower-right is upper-left there because Nq = Nk. PyTorch's materialised float32
attention has H = 16, d = 64. Where several peers ran the same case, the fastest counts:

    2.11.0+cu130 13.0 91900 NVIDIA H200
    d=64 S=1024 causal=0 | FA2 fwd    276 bwd    199 | cuDNN fwd    429 bwd    328
    d=64 S=1024 causal=0 | FA3 fwd    470
    fp32 materialised torch S=1024 19.7 TFLOP/s
    window d=64 S=16384 w=256 FA2 fwd 75 bwd 60 TFLOP/s on visible pairs
    window d=64 w=256 FA4 fwd 117 bwd 136
    gqa 32/8 N=8192 d=128 causal FA4 fwd 719 bwd 560
    decode FA3 B=8 H=32/8 Nq=1 Nk=4097 d=128: 0.0500 ms, 2700 GB/s, 0.66 of copy

or, for stage 06, peers_ring.py under torchrun (rates of each GPU; ring-flash-attention, whose
layouts are named there as here):

    G=2 ring sendrecv 256 MiB: 255 GB/s each way per GPU
    n/GPU=8192 zigzag causal                fwd    271  fwd+bwd    274 TFLOP/s/GPU

and the same again with another G. Each row of ROWS.jsonl on that GPU and of such a case gets `peer`
(a name) and `peer_gflops`, rows of stage 04 the peer's backward pass, rows of stage 05 with both
passes the forward's and `peer_backward_gflops`, causal rows of stage 06's ring the forward's and
`peer_both_gflops`, of all GPUs together; all other rows stay as they are. The file is replaced when
all of it is written. Exit 2: unusable input.
"""
import json
import os
import pathlib
import re
import sys

import rows as recorded
import tool

LINE = re.compile(r"^d=(\d+) S=(\d+) causal=([01]) \|(.*)", re.M)
RATES = re.compile(r"(FA2|FA3|FA4|cuDNN) fwd +(\d+)(?: bwd +(\d+))?")
WINDOW_LINE = re.compile(r"^window d=(\d+) (?:S=16384 )?w=(\d+) (.*)", re.M)
GQA_LINE = re.compile(r"^gqa (\d+)/(\d+) N=(\d+) d=(\d+) causal (.*)", re.M)
DECODE_LINE = re.compile(r"^decode (\w+) B=(\d+) H=(\d+)/(\d+) Nq=(\d+) Nk=(\d+) d=(\d+): "
                         r"([0-9.]+) ms", re.M)
F32_LINE = re.compile(r"fp32 materialised torch S=(\d+) ([0-9.]+) TFLOP/s")
RANKS_LINE = re.compile(r"^G=(\d+) ring sendrecv", re.M)  # of the lines behind it
RING_LINE = re.compile(r"n/GPU=(\d+) (ring|zigzag|stripe) causal +fwd +(\d+) +fwd\+bwd +(\d+) ")
LAYOUTS = {"ring": "contiguous", "zigzag": "zigzag", "stripe": "striped"}
TOKENS, HIDDEN = 16384, 2048
CAUSAL = "causal-lower-right"
RING_SIZES = {"B": 1, "H": 32, "Hkv": 8, "d": 128, "dtype": "bf16", "mask": CAUSAL,
              "backward": True, "method": "ring", "transport": "nccl"}


def read_peers(text):
    """GPU name and {(dtype, B, H, Hkv, Nq, Nk, d, mask, window, backward): (GFLOP/s, peer)}; of few
    queries (milliseconds, peer) under ("ms", ...); of rings {(GPUs, tokens, layout): (peer, GFLOP/s
    forward, of both passes)}."""
    first = re.match(r"(\S+) \S+ \S+ (.+)\n", text)
    if not first:
        raise recorded.RowError("no line with PyTorch's version and the GPU's name")
    torch = f"PyTorch {first[1].split('+')[0]}"
    names = {"FA2": f"FlashAttention-2 of {torch}", "FA3": "FlashAttention-3",
             "FA4": "FlashAttention-4", "cuDNN": f"cuDNN of {torch}"}
    peers = {}

    def note(sizes, found):
        for name, *rates in RATES.findall(found):
            for backward, rate in enumerate(rates):
                key = ("bf16", *sizes, bool(backward))
                entry = (1e3 * float(rate or 0), names[name] + (", backward" if backward else ""))
                if rate and entry > peers.get(key, (0, "")):
                    peers[key] = entry

    for d, n, causal, found in LINE.findall(text):
        d, n = int(d), int(n)
        H = HIDDEN // d
        note((TOKENS // n, H, H, n, n, d, CAUSAL if causal == "1" else "none", -1), found)
    for d, left, found in WINDOW_LINE.findall(text):
        H = HIDDEN // int(d)
        note((1, H, H, TOKENS, TOKENS, int(d), CAUSAL, int(left)), found)
    for H, Hkv, n, d, found in GQA_LINE.findall(text):
        note((2, int(H), int(Hkv), int(n), int(n), int(d), CAUSAL, -1), found)
    for name, *sizes, ms in DECODE_LINE.findall(text):
        peers["ms", "bf16", *map(int, sizes), CAUSAL, -1, False] = (float(ms), names[name])
    for n, rate in F32_LINE.findall(text):
        peers["f32", 1, 16, 16, int(n), int(n), 64, "none", -1, False] = (
            1e3 * float(rate), f"materialised, {torch}")
    runs = RANKS_LINE.split(text)[1:]  # GPUs, what was measured on them, and again
    for G, run in zip(map(int, runs[::2]), runs[1::2]):
        for n, kind, *rates in RING_LINE.findall(run):
            peers[G, G * int(n), LAYOUTS[kind]] = (
                f"ring-flash-attention on {torch}", *(1e3 * G * float(rate) for rate in rates))
    if not peers:
        raise recorded.RowError("no line with a peer's speed")
    return first[2], peers


def case_of(row, backward):
    plain = not row.get("dropout") and not row.get("qk_norm") and row.get("clip") in (None, [0, 1])
    left, right = row.get("window") or (-1, -1)
    window = left if "causal" in str(row.get("mask")) or right == -1 else None
    return (row.get("dtype"), row.get("B"), row.get("H"), row.get("Hkv"), row.get("Nq"),
            row.get("Nk"), row.get("d"), row.get("mask") if plain else None, window, backward)


def annotate(row, peers):
    """Stages 01 to 03 with --backward time both passes in one, which no peer did."""
    backward, stage = bool(row.get("backward")), row.get("stage")
    if stage == "ring_burst":
        ring = (row.get("ranks"), row.get("Nq"), row.get("layout"))
        plain = row.get("Nk") == row.get("Nq") and row.get("window") == [-1, 0]
        if ring in peers and plain and all(row.get(k) == v for k, v in RING_SIZES.items()):
            row["peer"], row["peer_gflops"], row["peer_both_gflops"] = peers[ring]
        return
    first = case_of(row, stage == "flash_backward")
    if stage == "sliding_window" or backward == (stage == "flash_backward"):
        if first in peers:
            row["peer_gflops"], row["peer"] = peers[first]
        elif ("ms", *first) in peers and row.get("flops"):  # its operations in the peer's time
            ms, row["peer"] = peers["ms", *first]
            row["peer_gflops"] = round(row["flops"] / ms / 1e6, 1)
    if stage == "sliding_window" and backward and case_of(row, True) in peers:
        row["peer_backward_gflops"] = peers[case_of(row, True)][0]


def main():
    if len(sys.argv) < 3:
        print("peer_rows.py: expected ROWS.jsonl PEERS.txt...", file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[1])
    gpu, peers = read_peers("".join(pathlib.Path(name).read_text(encoding="utf-8")
                                    for name in sys.argv[2:]))
    rows = recorded.load([path])
    for row in rows:
        del row["_where"]
        if row.get("gpu") == gpu and row.get("device") == "cuda":
            annotate(row, peers)
    written = path.with_suffix(".tmp")
    written.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows),
                       encoding="utf-8")
    os.replace(written, path)
    return 0


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
