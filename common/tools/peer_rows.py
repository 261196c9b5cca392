#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""peer_rows.py: put a peer's speed beside our own, where both were measured in the same run.

    peer_rows.py ROWS.jsonl PEERS.txt...

PEERS.txt is what peers_gpu.py printed (PyTorch's FlashAttention-2 and cuDNN in bf16, of which the
faster one counts, 16k tokens in all,
hidden size 2048, lower-right is upper-left there because Nq = Nk; and its materialised float32
attention, H=16 d=64), a second one what peers_more.py did (the same causal with a window, on
visible pairs):

    2.11.0+cu130 13.0 91900 NVIDIA H200
    d=64 S=1024 causal=0 | FA2 fwd    276 bwd    199 | cuDNN fwd    429 bwd    328
    fp32 materialised torch S=1024 19.7 TFLOP/s
    window d=64 S=16384 w=256 FA2 fwd 75 bwd 60 TFLOP/s on visible pairs

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

LINE = re.compile(r"d=(\d+) S=(\d+) causal=([01]) \| FA2 fwd +(\d+) bwd +(\d+)"
                  r"(?: \| cuDNN fwd +(\d+) bwd +(\d+))?")
WINDOW_LINE = re.compile(r"window d=(\d+) S=(\d+) w=(\d+) FA2 fwd (\d+) bwd (\d+)")
F32_LINE = re.compile(r"fp32 materialised torch S=(\d+) ([0-9.]+) TFLOP/s")
RANKS_LINE = re.compile(r"^G=(\d+) ring sendrecv", re.M)  # of the lines behind it
RING_LINE = re.compile(r"n/GPU=(\d+) (ring|zigzag|stripe) causal +fwd +(\d+) +fwd\+bwd +(\d+) ")
LAYOUTS = {"ring": "contiguous", "zigzag": "zigzag", "stripe": "striped"}
TOKENS, HIDDEN = 16384, 2048
RING_SIZES = {"B": 1, "H": 32, "Hkv": 8, "d": 128, "dtype": "bf16", "mask": "causal-lower-right",
              "backward": True, "method": "ring", "transport": "nccl"}


def read_peers(text):
    """GPU name and {(dtype, B, H, N, d, mask, window, backward): (peer, GFLOP/s)}; of rings
    {(GPUs, tokens, layout): (peer, GFLOP/s forward, of both passes)}."""
    first = re.match(r"(\S+) \S+ \S+ (.+)\n", text)
    if not first:
        raise ValueError("no line with PyTorch's version and the GPU's name")
    torch = f"PyTorch {first[1].split('+')[0]}"
    peers = {}
    for d, n, causal, *rates in LINE.findall(text):
        d, n = int(d), int(n)
        mask = "causal-lower-right" if causal == "1" else "none"
        for backward in (0, 1):
            of_both = {"FlashAttention-2": rates[backward], "cuDNN": rates[2 + backward]}
            name, rate = max(((name, float(rate)) for name, rate in of_both.items() if rate),
                             key=lambda peer: peer[1])
            name += f" of {torch}" + (", backward" if backward else "")
            peers["bf16", TOKENS // n, HIDDEN // d, n, d, mask, -1, bool(backward)] = (
                name, 1e3 * rate)
    for d, n, left, *rates in WINDOW_LINE.findall(text):
        d, n = int(d), int(n)
        for backward, rate in enumerate(rates):
            peers["bf16", TOKENS // n, HIDDEN // d, n, d, "causal-lower-right", int(left),
                  bool(backward)] = (f"FlashAttention-2 of {torch}", 1e3 * float(rate))
    for n, rate in F32_LINE.findall(text):
        peers["f32", 1, 16, int(n), 64, "none", -1, False] = (f"materialised, {torch}",
                                                          1e3 * float(rate))
    runs = RANKS_LINE.split(text)[1:]  # GPUs, what was measured on them, and again
    for G, run in zip(map(int, runs[::2]), runs[1::2]):
        for n, kind, *rates in RING_LINE.findall(run):
            peers[G, G * int(n), LAYOUTS[kind]] = (
                f"ring-flash-attention on {torch}", *(1e3 * G * float(rate) for rate in rates))
    if not peers:
        raise ValueError("no line with a peer's speed")
    return first[2], peers


def case_of(row, backward):
    square = row.get("Nq") == row.get("Nk") and row.get("H") == row.get("Hkv")
    plain = not row.get("dropout") and not row.get("qk_norm") and row.get("clip") in (None, [0, 1])
    left, right = row.get("window") or (-1, -1)
    window = left if "causal" in str(row.get("mask")) or right == -1 else None
    return (row.get("dtype"), row.get("B"), row.get("H"), row.get("Nq") if square else None,
            row.get("d"), row.get("mask") if plain else None, window, backward)


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
            row["peer"], row["peer_gflops"] = peers[first]
    if stage == "sliding_window" and backward and case_of(row, True) in peers:
        row["peer_backward_gflops"] = peers[case_of(row, True)][1]


def main():
    if len(sys.argv) < 3:
        print("peer_rows.py: expected ROWS.jsonl PEERS.txt...", file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[1])
    try:
        gpu, peers = read_peers("".join(pathlib.Path(name).read_text(encoding="utf-8")
                                        for name in sys.argv[2:]))
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        print(f"peer_rows.py: {error}", file=sys.stderr)
        return 2
    for row in rows:
        if row.get("gpu") == gpu and row.get("device") == "cuda":
            annotate(row, peers)
    written = path.with_suffix(".tmp")
    written.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows),
                       encoding="utf-8")
    os.replace(written, path)
    return 0


sys.exit(main())
