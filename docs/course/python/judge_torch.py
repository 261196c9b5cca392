# SPDX-License-Identifier: MIT
"""judge_torch.py: attention by PyTorch, as files that the programs of this repository judge.

usage: judge_torch.py sdpa|flex DIR [-N N] [-H H] [-d D] [--dtype bf16] [--causal] [--drop-key]
       torchrun --nproc-per-node=G judge_torch.py ring DIR ...     (a GPU a rank, ring-flash-attn)

Writes q.npy, k.npy, v.npy [1][N][H][d], o.npy and lse.npy [1][H][N] to DIR, as float32, and prints
the command that judges them. --drop-key leaves out the last key, so that one sees what a mistake
looks like. Needs torch and numpy.

Interface: sdpa, flex, ring: q, k, v [1][H][N][d], causal -> o of the same shape, lse [1][H][N].
"""
import argparse
import os
import pathlib

import numpy as np
import torch


def lse_of(q, k, causal):
    """SDPA keeps its lse to itself; this is the same number, in float32, with N x N scores."""
    scores = q.float() @ k.float().transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.logsumexp(scores, -1)


def sdpa(q, k, v, causal):
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return o, lse_of(q, k, causal)


def flex(q, k, v, causal):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    mask = None
    if causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2],
                                 device=str(q.device))
    return flex_attention(q, k, v, block_mask=mask, return_lse=True)


def ring(q, k, v, causal):
    """Contiguous shards of N / G tokens. Rank 0 gets the whole result, the others None."""
    import torch.distributed as dist
    from ring_flash_attn import ring_flash_attn_func
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = [x.transpose(1, 2).chunk(ranks, 1)[rank].contiguous() for x in (q, k, v)]  # [1][n][H][d]
    o, lse, _ = ring_flash_attn_func(*mine, causal=causal, return_attn_probs=True)
    whole = []
    for part, axis in ((o, 1), (lse, 2)):
        parts = [torch.empty_like(part) for _ in range(ranks)]
        dist.all_gather(parts, part.contiguous())
        whole.append(torch.cat(parts, axis))
    return (whole[0].transpose(1, 2), whole[1]) if rank == 0 else (None, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("library", choices=("sdpa", "flex", "ring"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-N", type=int, default=512)
    parser.add_argument("-H", type=int, default=4)
    parser.add_argument("-d", type=int, default=64)
    parser.add_argument("--dtype", choices=("f32", "bf16", "f16"), default="f32")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--drop-key", action="store_true")
    args = parser.parse_args()
    device = "cpu"
    if args.library == "ring":
        ranks = int(os.environ.get("WORLD_SIZE", 0))
        if ranks < 1:
            parser.error("ring: start it with torchrun, a process a GPU")
        if args.drop_key or args.N % ranks:
            parser.error(f"ring: {ranks} ranks have as many keys each; found -N {args.N}"
                         f"{' --drop-key' if args.drop_key else ''}")
        torch.distributed.init_process_group("nccl")
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[args.dtype]
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, args.H, args.N, args.d).to(dtype).to(device) for _ in range(3))
    keys = args.N - args.drop_key
    o, lse = globals()[args.library](q, k[:, :, :keys], v[:, :, :keys], args.causal)
    if o is None:
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, x in (("q", q), ("k", k), ("v", v), ("o", o)):
        np.save(args.folder / f"{name}.npy", x.transpose(1, 2).float().cpu().contiguous().numpy())
    np.save(args.folder / "lse.npy", lse.float().cpu().contiguous().numpy())
    at = args.folder
    print(f"build/demo/01_naive/naive --q {at}/q.npy --k {at}/k.npy --v {at}/v.npy --dtype "
          f"{args.dtype}{' --causal' if args.causal else ''} --judge {at}")


if __name__ == "__main__":
    main()
