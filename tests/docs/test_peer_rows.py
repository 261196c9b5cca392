#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""peer_rows.py: a peer's speed goes to the row of the same case and GPU and to no other."""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common" / "tools")]
from tap import Tap  # noqa: E402
import columns  # noqa: E402

PEERS = """2.11.0+cu130 13.0 91900 NVIDIA H200
ceiling copy 4266 GB/s
d=64 S=1024 causal=0 | FA2 fwd    276 bwd    199 | cuDNN fwd    429 bwd    328
d=64 S=1024 causal=1 | FA2 fwd    216 bwd    143 | cuDNN failed
fp32 materialised torch S=4096 22.0 TFLOP/s
window d=64 S=16384 w=256 FA2 fwd 75 bwd 60 TFLOP/s on visible pairs
"""
MORE_PEERS = PEERS + """d=64 S=1024 causal=0 | FA3 fwd    450
d=64 S=1024 causal=1 | FA4 fwd    201 bwd 210
d=64 S=1024 causal=1 | FA4 fwd    230 bwd failed no
window d=64 w=256 FA4 fwd 70 bwd 66
gqa 32/8 N=8192 d=128 causal FA4 fwd 719 bwd 560
decode FA3 B=8 H=32/8 Nq=1 Nk=4097 d=128: 0.0500 ms, 2700 GB/s, 0.66 of copy
"""
RING_PEERS = """2.11.0+cu130 13.0 91900 NVIDIA H200
G=2 ring sendrecv 256 MiB: 255 GB/s each way per GPU
n/GPU=8192 local FA2 full                fwd    350  fwd+bwd    315 TFLOP/s/GPU
n/GPU=8192 ring causal                   fwd    163  fwd+bwd    157 TFLOP/s/GPU
n/GPU=8192 zigzag causal                 fwd    271  fwd+bwd    274 TFLOP/s/GPU
n/GPU=8192 stripe causal failed: no
n/GPU=8192 torch context_parallel allgather causal (MHA, cuDNN) fwd 354 fwd+bwd 357 TFLOP/s/GPU
"""


def row(**more):
    return {"stage": "flash_forward", "variant": "library", "device": "cuda",
            "gpu": "NVIDIA H200", "dtype": "bf16", "B": 16, "H": 32, "Hkv": 32, "Nq": 1024,
            "Nk": 1024, "d": 64, "mask": "none", "ms_med": 1.0, "flops": 138e9, **more}


def annotate(folder, rows, peers):
    path, text = pathlib.Path(folder) / "rows.jsonl", pathlib.Path(folder) / "peers.txt"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    text.write_text(peers, encoding="utf-8")
    done = subprocess.run([sys.executable, ROOT / "common/tools/peer_rows.py", path, text],
                          capture_output=True, text=True, check=False)
    return done, [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        done, rows = annotate(folder, [
            row(), row(mask="causal-lower-right"), row(dtype="f32", B=1, H=16, Hkv=16, Nq=4096,
                                                       Nk=4096),
            row(gpu="NVIDIA A100"), row(d=128), row(Hkv=8), row(Nk=2048), row(device="cpu"),
            row(mask="full"), row(backward=True)], PEERS)
        tap.ok(done.returncode == 0, "annotated", done.stderr)
        tap.ok([r.get("peer_gflops") for r in rows[:3]] == [429e3, 216e3, 22e3] and
               rows[0]["peer"].startswith("cuDNN") and rows[1]["peer"].startswith("Flash"),
               "the three cases have their peers, the faster one where there are two")
        tap.ok(not any("peer" in r for r in rows[3:]), "no other row has one")
        tap.ok(columns.cell(rows[0], "of_peer") == "0.322" and
               columns.cell(rows[4], "of_peer") == "-", "a column divides the two")
        alone = {"stage": "flash_backward", "backward": True, "ms_backward_med": 2.0}
        done, rows = annotate(folder, [
            row(**alone), row(mask="causal-lower-right", **alone), row(d=128, **alone),
            row(dtype="f32", B=1, H=16, Hkv=16, Nq=4096, Nk=4096, **alone)], PEERS)
        tap.ok([r.get("peer_gflops") for r in rows] == [328e3, 143e3, None, None] and
               rows[0]["peer"].endswith("backward"), "stage 04 beside the peer's backward", rows)
        tap.ok(columns.cell(rows[0], "of_peer") == "0.210", "138 GFLOP in 2 ms beside 328 TFLOP/s",
               columns.cell(rows[0], "of_peer"))
        window = {"stage": "sliding_window", "B": 1, "Nq": 16384, "Nk": 16384, "window": [256, 0],
                  "mask": "causal-lower-right", "backward": True, "ms_backward_med": 2.0,
                  "flops": 7e11, "clip": [0, 1]}
        done, rows = annotate(folder, [
            row(**window), row(**{**window, "backward": False}),
            row(**{**window, "window": [255, 0]}), row(**{**window, "window": [-1, 0]}),
            row(**{**window, "clip": [-1, 2]}), row(**{**window, "stage": "flash_forward"})], PEERS)
        tap.ok([r.get("peer_gflops") for r in rows] == [75e3, 75e3, None, None, None, None] and
               [r.get("peer_backward_gflops") for r in rows[:2]] == [60e3, None],
               "stage 05: both passes of the same window", rows)
        tap.ok([columns.cell(rows[0], c) for c in ("forward_tflops", "of_peer", "backward_tflops",
                                                   "of_peer_backward")]
               == ["200", "2.67", "250", "4.17"], "two sevenths of the operations and five",
               rows[0])
        done, rows = annotate(folder, [
            row(), row(mask="causal-lower-right"), row(mask="causal-lower-right", **alone),
            row(**window), row(mask="causal-lower-right", B=2, Hkv=8, Nq=8192, Nk=8192, d=128),
            row(mask="causal-lower-right", B=8, Hkv=8, Nq=1, Nk=4097, d=128, flops=5e8),
            row(mask="causal-lower-right", B=8, Hkv=8, Nq=1, Nk=4096, d=128)], MORE_PEERS)
        tap.ok([r.get("peer_gflops") for r in rows] == [450e3, 230e3, 210e3, 75e3, 719e3, 1e4, None]
               and rows[3]["peer_backward_gflops"] == 66e3 and rows[4]["peer"] == "FlashAttention-4"
               and rows[0]["peer"] == rows[5]["peer"] == "FlashAttention-3",
               "the fastest of several peers; shared kv heads; few queries by their time", rows)
        ring = {"stage": "ring_burst", "method": "ring", "layout": "zigzag", "ranks": 2, "B": 1,
                "Hkv": 8, "Nq": 16384, "Nk": 16384, "d": 128, "mask": "causal-lower-right",
                "window": [-1, 0], "backward": True, "transport": "nccl", "link": "copy",
                "ms_med": 4.0, "ms_backward_med": 10.0, "flops": 7.7e12}
        done, rows = annotate(folder, [
            row(**ring), row(**{**ring, "layout": "contiguous"}), row(**{**ring, "ranks": 4}),
            row(**{**ring, "layout": "striped"}), row(**{**ring, "method": "allgather"}),
            row(**{**ring, "window": [99, 0]}), row(**{**ring, "Nk": 8192}),
            row(**{**ring, "transport": "mpi"}), row(**{**ring, "Hkv": 32})], RING_PEERS)
        tap.ok([r.get("peer_gflops") for r in rows] == [542e3, 326e3] + [None] * 7 and
               [r.get("peer_both_gflops") for r in rows[:2]] == [548e3, 314e3],
               "stage 06: the ring of the same layout, of both GPUs", rows)
        tap.ok([columns.cell(rows[0], c) for c in
                ("rank_tokens", "rank_forward_tflops", "rank_peer_tflops", "of_peer",
                 "rank_tflops", "rank_peer_both_tflops", "of_peer_both")]
               == ["8192", "275", "271", "1.01", "275", "274", "1.00"], "... and of each",
               rows[0])
        more = ("G=4 ring sendrecv 256 MiB: 247 GB/s each way per GPU\n"
                "n/GPU=8192 zigzag causal   fwd  270  fwd+bwd  281 TFLOP/s/GPU\n")
        done, rows = annotate(folder, [
            row(**{**ring, "ranks": G, "Nq": 8192 * G, "Nk": 8192 * G}) for G in (2, 4, 8)],
            RING_PEERS + "G=8 ring sendrecv 256 MiB: 240 GB/s each way per GPU\n" + more)
        tap.ok([r.get("peer_gflops") for r in rows] == [542e3, 1080e3, None],
               "each number of GPUs has the lines behind its own", rows)
        for peers in ("", "2.11 x NVIDIA\n", "2.11 13 9 NVIDIA H200\nnothing here\n"):
            before = [row()]
            done, after = annotate(folder, before, peers)
            tap.ok(done.returncode == 2 and after == before and done.stderr.count("\n") == 1,
                   f"refused: {peers!r}", done.stderr)
        for before in ([[]], [{}], [row(B="16")], [row(window=[1])]):
            done, after = annotate(folder, before, PEERS)
            tap.ok(done.returncode == 2 and after == before and done.stderr.count("\n") == 1,
                   f"refused: {before}", done.stderr)
    return tap.done()


sys.exit(main())
