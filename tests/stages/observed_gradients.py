# SPDX-License-Identifier: MIT
"""observed_gradients.py: inputs that let P and dS be seen in the gradients.

With dO = 1 (a unit matrix, Nq = d) dV is P^T, the P that the backward pass made from lse; with
V = 1 the forward pass of stage 01 gives the P that it stored; and exp(S - lse) with the lse of
stage 03 is P by the definition: all three must agree, and their rows sum to 1.

With Q = 1 dK is scale * dS^T, with K = 1 dQ is scale * dS, and rows of dS sum to 0: the scores of a
row may all move together, softmax does not notice. A softcap notices: there they must not be 0.

Interface: recomputed_p(lab), observed_ds(lab): laws for test_gradient_laws.py.
"""
import math

import saved_runs
from gradient_lab import rows_of, tensors


def unit(shape):
    """A unit matrix for each head."""
    return shape, [float(n == x) for _ in range(shape[0]) for n in range(shape[1])
                   for _ in range(shape[2]) for x in range(shape[3])]


def scores(data, scale, cap=0.0):
    """S [b][h][i][j] by the definition, -inf where the causal mask (lower-right) hides."""
    (_, nq, heads, _), (_, nk, kv_heads, _) = data["q"][0], data["k"][0]
    Q, K = (rows_of(data[t][1], data[t][0]) for t in "qk")
    S = {}
    for b, i, h in Q:
        for j in range(nk):
            s = scale * saved_runs.loss(Q[b, i, h], K[b, j, h * kv_heads // heads])
            s = cap * math.tanh(s / cap) if cap else s
            S[b, h, i, j] = s if j <= i + nk - nq else -math.inf
    return S


def recomputed_p(lab):
    """dV with dO = 1: P as the backward pass made it. Nq = d, one kv head for each query head."""
    nq, nk, scale = 96, 96, 0.25
    data = tensors(nq, nk, 2, 2, 96, 1, seed=20)
    data["do"] = unit(data["do"][0])
    flags = ["--causal", "--scale", str(scale)]
    found = rows_of(lab.run(data, *flags, wanted=["dv"])["dv"], data["k"][0])
    P = {(b, h, i, j): found[b, j, h][i] for b, j, h in found for i in range(nq)}
    inputs = {t: data[t] for t in "qkv"}
    stored, lse = {}, {}
    if lab.args.stored:  # P V = P: v0_loops keeps P and multiplies, exactly with a unit matrix
        naive = saved_runs.Program(lab.args.stored, "cpu", lab.program.folder)
        files = {t: naive.write(t, *unit(data[t][0]) if t == "v" else inputs[t]) for t in inputs}
        O = rows_of(naive.run(files, flags + ["--variant", "v0_loops"], ["o"])["o"], data["q"][0])
        stored = {(b, h, i, j): O[b, i, h][j] for b, i, h in O for j in range(nk)}
    if lab.args.forward:
        flash = saved_runs.Program(lab.args.forward, "cpu", lab.program.folder)
        files = {t: flash.write(t, *inputs[t]) for t in inputs}
        values = flash.run(files, flags + ["--variant", "library"], ["lse"])["lse"]
        lse = {(h, i): values[h * nq + i] for h in range(2) for i in range(nq)}
    S = scores(data, scale)
    if stored:
        lab.close("P made from lse is the P that stage 01 stored", [P[key] for key in S],
                  [stored[key] for key in S], factor=3)  # an error of S is relative in P
    if lse:
        lab.close("and exp(S - lse) with the lse of stage 03", [P[key] for key in S],
                  [math.exp(s - lse[h, i]) for (_, h, i, _), s in S.items()], factor=3)
    sums = [sum(P[0, h, i, j] for j in range(nk)) for h in range(2) for i in range(nq)]
    lab.close("rows of P sum to 1", sums, [1.0] * len(sums), factor=3)
    lab.ok(not any(P[key] for key in S if S[key] == -math.inf), "P is 0 where hidden")


def observed_ds(lab):
    """dK with Q = 1 is scale * dS^T, dQ with K = 1 is scale * dS."""
    for unit_of, g, nq, nk, cap, scale in (("q", "dk", 96, 110, 0.0, 2.0),
                                           ("k", "dq", 85, 96, 0.0, 2.0),
                                           ("q", "dk", 96, 110, 1.5, -2.0),
                                           ("k", "dq", 85, 96, 1.5, -2.0)):
        data = tensors(nq, nk, 1, 1, 96, 1, seed=30)
        data[unit_of] = unit(data[unit_of][0])
        flags = ["--causal", "--scale", str(scale)] + (["--softcap", str(cap)] if cap else [])
        rows = rows_of(lab.run(data, *flags, wanted=[g])[g], data[g[1]][0])
        found = {(i, j): (rows[0, j, 0][i] if g == "dk" else rows[0, i, 0][j]) / scale
                 for j in range(nk) for i in range(nq)}
        expected = ds_by_definition(data, scores(data, scale, cap), cap)
        what = f"dS is P (dP - delta){' times the slope of the cap' if cap else ''}, by {g}"
        lab.close(what, [found[key] for key in expected], list(expected.values()))
        size = max(map(abs, expected.values()))
        sums = [sum(found[i, j] for j in range(nk)) for i in range(nq)]
        if cap:
            lab.ok(max(map(abs, sums)) > 0.01 * size, f"rows do not sum to 0 with a cap, by {g}")
        else:
            lab.close(f"rows of dS sum to 0, by {g}", sums, [0.0] * nq, size, 4)


def ds_by_definition(data, S, cap):
    (_, nq, _, _), (_, nk, _, _) = data["q"][0], data["k"][0]
    V, dO = (rows_of(data[t][1], data[t][0]) for t in ("v", "do"))
    expected = {}
    for i in range(nq):
        weights = [math.exp(S[0, 0, i, j]) for j in range(nk)]
        dP = [saved_runs.loss(dO[0, i, 0], V[0, j, 0]) for j in range(nk)]
        delta = saved_runs.loss(weights, dP) / sum(weights)
        for j in range(nk):
            slope = 1 - (S[0, 0, i, j] / cap)**2 if cap and weights[j] else 1.0
            expected[i, j] = weights[j] / sum(weights) * (dP[j] - delta) * slope
    return expected
