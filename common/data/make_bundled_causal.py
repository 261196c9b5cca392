#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_bundled_causal.py: made common/data/causal_{q,k,v,do}.npy; not needed to build or to test.

It trains a small causal transformer on this repository's own sources and words, byte by byte, and
stores Q, K, V and dO of one attention layer at one training step, as the inputs of all programs
under --bundled=causal. A real dO is what random numbers are not: its rows differ by orders of
magnitude, because a byte that the model foresees asks for no change.

Usage (training needs PyTorch and a GPU; a minute on an H200):
    python3 make_bundled_causal.py --pack CORPUS.txt           the text, out of git
    python3 make_bundled_causal.py CORPUS.txt [--out DIR]      train, choose a layer, store, check

Interface:
- pack: every .md .c .h .cu .cuh .py of revision REVISION, in the order of their names, as ASCII.
- Model, train: what is trained, from fixed seeds and with deterministic kernels only.
- capture: one training step in float64 with each layer's Q, K, V rounded to float16, as stored.
- choose_layer: peaked rows times spread between heads times decades between the rows of dO.
- Three checks, or it stops: the loss fell to less than half; the loss of the captured step is that
  of the float32 model; attention backward of our own, from the stored files alone, gives the dQ,
  dK, dV and O that autograd has at that step.
"""
import argparse
import hashlib
import math
import os
import pathlib
import subprocess
import sys
import time

DATA = pathlib.Path(__file__).resolve().parent
REVISION = "8a488fd49361504201d7ae5642447d8d23503061"
CORPUS_SHA256 = "5424a4b34ac9d9f29f53c29e177afdffde2b62e2cc9e9260a654ae940df26b7e"
SUFFIXES = (".md", ".c", ".h", ".cu", ".cuh", ".py")

LAYERS, HEADS, KV_HEADS, HEAD_DIM, LENGTH, BATCH = 4, 4, 2, 64, 512, 32
WIDTH, VOCABULARY = HEADS * HEAD_DIM, 128
STEPS, WARMUP, RATE = 1200, 100, 1e-3  # with more steps the held-out loss rises again
TOLERANCE = 1e-6  # of the largest gradient; dO is rounded to float32, and nothing else is


def pack(path):
    root = DATA.parent.parent

    def git(*words):
        return subprocess.run(["git", "-C", root, *words], capture_output=True, check=True).stdout

    names = git("ls-tree", "-r", "--name-only", REVISION).decode().split("\n")
    names = sorted(n for n in names if n.endswith(SUFFIXES))
    text = "".join(git("show", f"{REVISION}:{n}").decode() for n in names)
    path.write_bytes(text.encode("ascii", "replace"))
    print(f"{len(names)} files, {path.stat().st_size} bytes, sha256 "
          f"{hashlib.sha256(path.read_bytes()).hexdigest()}")


def load_corpus(path):
    """Token ids of training part and held-out part, the last twentieth."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != CORPUS_SHA256:
        sys.exit(f"{path}: not the text this script was written for; --pack makes it")
    tokens = torch.tensor(list(raw), device="cuda")
    cut = len(raw) * 19 // 20
    return tokens[:cut], tokens[cut:]


def rotate(x, angle):
    """Rotary positions: channel c and c + d/2 of a row are turned by position * frequency(c)."""
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


def probabilities(q, k):
    """P [B][H][N][N] of Q [B][N][H][d], K [B][N][Hkv][d]: query head h reads h / (H/Hkv)."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    s = torch.einsum("bihx,bjhx->bhij", q, k) / math.sqrt(q.shape[-1])
    hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return s.masked_fill(hidden, -math.inf).softmax(-1)


def attend(q, k, v):
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    return torch.einsum("bhij,bjhx->bihx", probabilities(q, k), v)


def make_model():
    """Built here, so that --pack works without PyTorch."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_a, self.norm_m = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.q = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
            self.k = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
            self.v = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
            self.o = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.keep, self.kept = False, None

        def forward(self, x, angle):
            h = self.norm_a(x)
            q, k, v = (f(h).unflatten(-1, (-1, HEAD_DIM)) for f in (self.q, self.k, self.v))
            q, k = rotate(q, angle), rotate(k, angle)
            if self.keep:  # the values as stored; the gradient does not see the rounding
                q, k, v = (t + (t.half().to(t.dtype) - t).detach() for t in (q, k, v))
            o = attend(q, k, v)
            if self.keep:
                self.kept = (q, k, v, o)
                for t in self.kept:
                    t.retain_grad()
            x = x + self.o(o.flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm_m(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    deep = name.endswith((".o.weight", ".down.weight"))
                    nn.init.normal_(p, std=0.02 / (math.sqrt(2 * LAYERS) if deep else 1))

        def forward(self, tokens):
            """Loss: the mean over all next bytes of the batch, in nats."""
            place = torch.arange(tokens.shape[1] - 1, device="cuda", dtype=torch.float64)
            speed = 10000.0 ** (-torch.arange(HEAD_DIM // 2, device="cuda") * 2.0 / HEAD_DIM)
            x = self.embed(tokens[:, :-1])
            for block in self.blocks:
                x = block(x, place[:, None] * speed)
            logits = self.head(self.norm(x))
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return Model().cuda()


def batch_of(tokens, generator):
    start = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=generator).cuda()
    return tokens[start[:, None] + torch.arange(LENGTH + 1, device="cuda")]


def held_out_loss(model, tokens):
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        return sum(model(batch_of(tokens, generator)).item() for _ in range(8)) / 8


def train(model, tokens, held_out, steps):
    """Returns the batch of the step after the last one."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95),
                                  weight_decay=0.1)
    first, start = None, time.time()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {steps} steps of {BATCH} x "
          f"{LENGTH} bytes; held-out loss before: {held_out_loss(model, held_out):.4f}")
    for step in range(steps):
        rate = min(1.0, (step + 1) / WARMUP) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = RATE * rate
        loss = model(batch_of(tokens, generator))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step}: training loss {loss.item():.4f}, held-out "
                  f"{held_out_loss(model, held_out):.4f}, {time.time() - start:.0f} s")
        first = first or loss.item()
    batch = batch_of(tokens, generator)
    with torch.no_grad():
        last = model(batch).item()
    print(f"training loss before {first:.4f}, at step {steps} {last:.4f} nats a byte; held-out "
          f"loss after: {held_out_loss(model, held_out):.4f}")
    if not last < 0.5 * first:
        sys.exit("the loss did not fall to less than half: this is no trained model")
    return batch, last


def capture(model, batch, expected):
    """Each layer's (q, k, v, o) with gradients, of the whole batch."""
    torch.set_float32_matmul_precision("highest")
    model.double()
    for block in model.blocks:
        block.keep = True
    loss = model(batch)
    loss.backward()
    print(f"captured step: loss {loss.item():.6f} in float64 with Q, K, V rounded to float16; "
          f"{expected:.6f} as trained")
    if not abs(loss.item() - expected) <= 1e-2 * expected:
        sys.exit("the captured step is not the step of training")
    return [block.kept for block in model.blocks]


def half_losses(dO):
    """What float16 makes of dO: share of elements that become zero, and that become subnormal."""
    tiny = (dO.abs() < 2.0 ** -14) & (dO.half() != 0)
    return (dO.half() == 0).double().mean().item(), tiny.double().mean().item()


def choose_layer(kept):
    """The layer that is telling in three ways at once, judged on sequence 0 of the batch."""
    figures = []
    for layer, (q, k, v, o) in enumerate(kept):
        with torch.no_grad():
            p = probabilities(q[:1], k[:1])[0]
        bits = -(p * p.clamp_min(1e-300).log2()).sum(-1).mean(-1)
        peaked = (p.amax(-1) > 0.5).double().mean().item()
        dO = o.grad[0].float()
        norms = dO.double().norm(dim=-1).flatten().sort().values
        low, mid, high = (norms[int(f * (len(norms) - 1))].item() for f in (0.01, 0.5, 0.99))
        zero, subnormal = half_losses(dO)
        figures.append(peaked * bits.std().item() * math.log10(high / low))
        print(f"layer {layer}: bits per row {' '.join(f'{b:.1f}' for b in bits)}; rows with a "
              f"P > 0.5: {peaked:.0%}; |dO row| {norms[0]:.1e} .. {low:.1e} (1%) .. {mid:.1e} "
              f"(median) .. {high:.1e} (99%) .. {norms[-1]:.1e}; in float16 {zero:.0%} of dO is "
              f"zero, {subnormal:.0%} subnormal; figure {figures[-1]:.2f}")
    return figures.index(max(figures))


def backward_of(Q, K, V, dO):
    """O, dQ, dK, dV [N][heads][d] in float64 NumPy, by the formulas of stage 04."""
    group, scale = Q.shape[1] // K.shape[1], 1 / math.sqrt(Q.shape[2])
    Kh, Vh = np.repeat(K, group, 1), np.repeat(V, group, 1)
    S = scale * np.einsum("ihx,jhx->hij", Q, Kh)
    S[:, np.triu(np.ones(S.shape[1:], bool), 1)] = -np.inf
    P = np.exp(S - S.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    O = np.einsum("hij,jhx->ihx", P, Vh)
    dP = np.einsum("ihx,jhx->hij", dO, Vh)
    dS = P * (dP - (dO * O).sum(-1).T[:, :, None])
    dQ = scale * np.einsum("hij,jhx->ihx", dS, Kh)
    dK, dV = scale * np.einsum("hij,ihx->jhx", dS, Q), np.einsum("hij,ihx->jhx", P, dO)

    def sum_group(x):
        return x.reshape(len(x), -1, group, x.shape[2]).sum(2)

    return O, dQ, sum_group(dK), sum_group(dV)


def check_files(folder, kept):
    """Our own backward of the stored files against autograd's numbers of the step."""
    Q, K, V, dO = (np.load(folder / f"causal_{n}.npy")[0].astype(np.float64)
                   for n in ("q", "k", "v", "do"))
    q, k, v, o = kept
    autograd = [t[0].detach().cpu().numpy() for t in (o, q.grad, k.grad, v.grad)]

    def difference(x, ours):
        return np.abs(ours - x).max() / np.abs(x).max()

    found = [difference(x, ours) for x, ours in zip(autograd, backward_of(Q, K, V, dO))]
    print("stored files against autograd, largest difference over largest value: "
          + ", ".join(f"{n} {e:.1e}" for n, e in zip(("O", "dQ", "dK", "dV"), found))
          + f"; tolerance {TOLERANCE:.0e}")
    if not max(found) <= TOLERANCE:
        sys.exit("the stored arrays do not reproduce the step")
    for power in (0, 8, 16):
        half = (dO * 2.0 ** power).astype(np.float16).astype(np.float64) / 2.0 ** power
        dQ = backward_of(Q, K, V, half)[1]
        wrong, right = (np.linalg.norm(x[1:], axis=-1) for x in (dQ - autograd[1], autograd[1]))
        print(f"were dO stored in float16 times 2^{power}: {(half == 0).mean():.2%} of it zero, "
              f"rows of dQ off by {np.median(wrong / right):.1e} of their norm (median), "
              f"{(wrong / right).max():.1e} (worst)")


def main():
    global np, torch
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--pack", action="store_true", help="write the corpus instead")
    parser.add_argument("--out", default=DATA, type=pathlib.Path)
    parser.add_argument("--steps", default=STEPS, type=int)
    args = parser.parse_args()
    if args.pack:
        return pack(args.corpus)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # asked for by deterministic cuBLAS
    import numpy as np
    import torch
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    tokens, held_out = load_corpus(args.corpus)
    model = make_model()
    batch, expected = train(model, tokens, held_out, args.steps)
    kept = capture(model, batch, expected)
    layer = choose_layer(kept)
    print(f"layer {layer} chosen, sequence 0 of {BATCH}; its gradient is that of the mean over "
          f"{BATCH * LENGTH} bytes, before any clipping")
    q, k, v, o = kept[layer]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, t, dtype in (("q", q, "<f2"), ("k", k, "<f2"), ("v", v, "<f2"),
                           ("do", o.grad, "<f4")):
        np.save(args.out / f"causal_{name}.npy", t[:1].detach().cpu().numpy().astype(dtype))
    (args.out / "causal_text.txt").write_bytes(bytes(batch[0].tolist()))
    check_files(args.out, kept[layer])
    for path in sorted(args.out.glob("causal_*")):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
    return None


if __name__ == "__main__":
    sys.exit(main())
