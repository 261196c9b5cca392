# SPDX-License-Identifier: MIT
"""adapters.py: a solution of docs/course/python in plain Python, for the test of its tests. Arrays
are nested lists here.

Interface: that of docs/course/python/adapters.py.
"""
import copy
import math
import operator


def to_array(rows):
    return copy.deepcopy(rows)


def to_list(array):
    return array


def dot(a, b):
    return sum(map(operator.mul, a, b))


def row_over(query, keys, values, scale):
    """One query over a list of keys -> (o, lse)."""
    s = [scale * dot(query, key) for key in keys]
    if not s:
        return None, -math.inf
    largest = max(s)
    weights = [math.exp(x - largest) for x in s]
    total = sum(weights)
    return [dot(weights, column) / total for column in zip(*values)], largest + math.log(total)


def flash_forward(q, k, v, scale, causal):
    o, lses = [], []
    for i, query in enumerate(q):
        last = len(k) if not causal else max(0, min(len(k), i + len(k) - len(q) + 1))
        row, lse = row_over(query, k[:last], v[:last], scale)
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
    for i, (query, upstream) in enumerate(zip(q, do)):
        delta = dot(upstream, o[i])
        last = len(k) if not causal else max(0, min(len(k), i + len(k) - len(q) + 1))
        for j, (key, value) in enumerate(zip(k[:last], v)):
            weight = math.exp(scale * dot(query, key) - lse[i])
            slope = scale * weight * (dot(upstream, value) - delta)
            for x in range(len(query)):
                dq[i][x] += slope * key[x]
                dk[j][x] += slope * query[x]
                dv[j][x] += weight * upstream[x]
    return dq, dk, dv
