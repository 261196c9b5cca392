# SPDX-License-Identifier: MIT
"""adapters.py: where your code in NumPy, PyTorch, Triton or JAX meets the tests. Copy the folder,
then fill in the functions; they may import your own files.

The tests make nested lists of numbers, turn them into your arrays with to_array, call your
functions, and turn results back with to_list. So they need no package themselves.

Interface:
- to_array(rows), to_list(array): for NumPy np.array(rows, dtype=np.float32) and array.tolist().
- flash_forward(q, k, v, scale, causal): task 1.
- OnlineAttention: task 2, one block of queries and one of keys at a time.
- flash_backward(q, k, v, o, lse, do, scale, causal): task 3.
"""


def to_array(rows):
    """Nested lists of floats -> your float32 array. It must be one that can be changed in place."""
    raise NotImplementedError("to_array")


def to_list(array):
    """Your array -> nested lists of floats."""
    raise NotImplementedError("to_list")


def flash_forward(q, k, v, scale, causal):
    """Attention of one head: q [Nq][d], k and v [Nk][d] -> (o [Nq][d], lse [Nq]).

    Causal: query i sees key j if j <= i + Nk - Nq. A row that sees no key has o = 0, lse = -inf.
    """
    raise NotImplementedError("flash_forward")


class OnlineAttention:
    """Attention in blocks, in any order of the blocks.

    Query i has the position i + seqlen_kv - seqlen_q, key j the position j. With a window w, query
    p sees key k if p - w <= k <= p + w; causal: also k <= p. window None: no limit.
    """

    def __init__(self, seqlen_q, seqlen_kv, block_size_q, block_size_kv, scale, causal, window):
        raise NotImplementedError("OnlineAttention")

    def forward(self, q, k, v, global_o, global_lse, block_idx_q, block_idx_kv):
        """One step; returns nothing and updates global_o and global_lse in place.

        q [b][block_size_q][hq][d]: block block_idx_q of the queries; k, v
        [b][block_size_kv][hkv][d] likewise; head h reads key head h // (hq // hkv). Rows past the
        end of a sequence are zeros and no tokens. global_o [b][seqlen_q][hq][d] and global_lse
        [b][hq][seqlen_q] hold the result for the keys so far: 0 and -inf at first.
        """
        raise NotImplementedError("OnlineAttention.forward")


def flash_backward(q, k, v, o, lse, do, scale, causal):
    """Gradients of one head -> (dq, dk, dv); o and lse are those of flash_forward."""
    raise NotImplementedError("flash_backward")
