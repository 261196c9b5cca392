# SPDX-License-Identifier: MIT
"""adapters.py: a solution of docs/course/python in plain Python, for the test of its tests. Arrays
are nested lists here.

Interface: that of docs/course/python/adapters.py.
"""
import copy
import math


def to_array(rows):
    return copy.deepcopy(rows)


def to_list(array):
    return array


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def row_over(query, keys, values, scale):
    """One query over a list of keys -> (o, lse)."""
    s = [scale * dot(query, key) for key in keys]
    if not s:
        return None, -math.inf
    lse = max(s) + math.log(sum(math.exp(x - max(s)) for x in s))
    p = [math.exp(x - lse) for x in s]
    return [dot(p, column) for column in zip(*values)], lse


def flash_forward(q, k, v, scale, causal):
    o, lses = [], []
    for i, query in enumerate(q):
        seen = len(k) if not causal else max(0, min(len(k), i + len(k) - len(q) + 1))
        row, lse = row_over(query, k[:seen], v[:seen], scale)
        o.append(row or [0.0] * len(v[0]))
        lses.append(lse)
    return o, lses


class OnlineAttention:
    def __init__(self, seqlen_q, seqlen_kv, block_size_q, block_size_kv, scale, causal, window):
        self.sizes = seqlen_q, seqlen_kv
        self.blocks = block_size_q, block_size_kv
        self.rule = scale, causal, math.inf if window is None else window

    def forward(self, q, k, v, global_o, global_lse, block_idx_q, block_idx_kv):
        (count_q, count_k), (size_q, size_k) = self.sizes, self.blocks
        scale, causal, window = self.rule
        for b, batch in enumerate(q):
            share = len(batch[0]) // len(k[b][0])
            for r, heads in enumerate(batch):
                i = block_idx_q * size_q + r
                position = i + count_k - count_q
                seen = [c for c in range(size_k)
                        if (j := block_idx_kv * size_k + c) < count_k and
                        abs(position - j) <= window and not (causal and j > position)]
                if i >= count_q or not seen:
                    continue
                for h, query in enumerate(heads):
                    o, lse = row_over(query, [k[b][c][h // share] for c in seen],
                                      [v[b][c][h // share] for c in seen], scale)
                    old_o, old = global_o[b][i][h], global_lse[b][h][i]
                    new = max(lse, old) + math.log1p(math.exp(-abs(lse - old)))
                    global_lse[b][h][i] = new
                    global_o[b][i][h] = [math.exp(old - new) * x + math.exp(lse - new) * y
                                         for x, y in zip(old_o, o)]


def flash_backward(q, k, v, o, lse, do, scale, causal):
    dq, dk, dv = ([[0.0] * len(row) for row in rows] for rows in (q, k, v))
    for i, query in enumerate(q):
        delta = dot(do[i], o[i])
        for j, key in enumerate(k):
            if causal and j > i + len(k) - len(q):
                continue
            p = math.exp(scale * dot(query, key) - lse[i])
            ds = scale * p * (dot(do[i], v[j]) - delta)
            for x in range(len(query)):
                dq[i][x] += ds * key[x]
                dk[j][x] += ds * query[x]
                dv[j][x] += p * do[i][x]
    return dq, dk, dv
