/* SPDX-License-Identifier: MIT
 *
 * two_views.cuh: one problem, seen by its queries or by its keys.
 *
 * S = Q K^T and its transpose are the same numbers; a kernel that owns rows of the one or of the
 * other differs in nothing but who is who. So a View says: these rows are your own, those are the
 * others, through whose tiles you walk. "Queries" and "keys" in its `a` mean own and others: that
 * is all that stage 03's row_mask.cuh has to know to tell which tiles to visit and which pairs to
 * hide. The position rule turns with the roles: what lies at most `right` ahead of a query sees
 * that query at most `right` behind.
 *
 *     query i sees key j:     position_q - left  <= position_k <= position_q + right
 *     key j is seen by i:     position_k - right <= position_q <= position_k + left
 *
 * Interface:
 * - View, view_of_queries, view_of_keys; tensor_of_sums: float32 sums as gradients.
 * - f32_row: where a row starts.
 * - longest_first: what a block works on. Walk, advance: its way through the tiles of the others.
 * - make_words: which others a row sees, where neither runs nor clean tiles say so.
 */
#ifndef FLASH_BACKWARD_TWO_VIEWS_CUH
#define FLASH_BACKWARD_TWO_VIEWS_CUH

#include "attention/forward/cuda/row_mask.cuh"
#include "attn_pairs.h"

/* The problem as the owners see it. */
struct View {
    AttnArgs a; /* shape, rule and positions: queries = own, keys = others */
    Tensor own_S, own_dP, other_S, other_dP; /* factors of S and of dP: Q and dO, K and V */
    Tensor gradient_S, gradient_dP;          /* of own_S and, where keys own, of own_dP */
    const float *delta;                      /* [B][H][Nq] as lse */
    bool add;                                /* to what is in the gradients already */
};

/* The problem as queries see it. */
static View view_of_queries(const AttnArgs *a, const float *delta_dev)
{
    View view;
    view.a = *a;
    view.own_S = a->Q;
    view.own_dP = a->dO;
    view.other_S = a->K;
    view.other_dP = a->V;
    view.gradient_S = a->dQ;
    view.gradient_dP = a->dQ; /* none */
    view.delta = delta_dev;
    view.add = false;
    return view;
}

/* The same with the roles exchanged. */
static View view_of_keys(const AttnArgs *a, const float *delta_dev)
{
    View view = view_of_queries(a, delta_dev);
    view.a.shape.Nq = a->shape.Nk;
    view.a.shape.Nk = a->shape.Nq;
    view.a.positions_q = a->positions_k;
    view.a.positions_k = a->positions_q;
    view.a.rule.left = a->rule.right;
    view.a.rule.right = a->rule.left;
    view.own_S = a->K;
    view.own_dP = a->V;
    view.other_S = a->Q;
    view.other_dP = a->dO;
    view.gradient_S = a->dK;
    view.gradient_dP = a->dV;
    return view;
}

/* Sums [B][N][heads][d] as a tensor of the shape of `like`. */
static Tensor tensor_of_sums(float *sums_dev, const Tensor *like)
{
    Tensor t = *like;
    t.data = sums_dev;
    t.dtype = ATTN_F32;
    t.stride[3] = 1;
    t.stride[2] = t.shape[3];
    t.stride[1] = t.shape[2] * t.stride[2];
    t.stride[0] = t.shape[1] * t.stride[1];
    return t;
}

static __device__ __forceinline__ const float *f32_row(const Tensor &t, int b, int64_t n, int h)
{
    return (const float *)t.data + tensor_offset(&t, b, n, h);
}

/* The longest walks of all heads start first. Under a causal mask the last queries see most keys,
 * the first keys are seen by most queries. */
template <class C> static __device__ __forceinline__ BlockWork longest_first(const View &view)
{
    const int heads = (int)view.own_S.shape[2], all = (int)view.a.shape.B * heads;
    const int tiles = ((int)view.a.shape.Nq + C::OWN - 1) / C::OWN, nth = (int)(blockIdx.x / all);
    BlockWork work;
    work.b = (int)(blockIdx.x % all) / heads;
    work.h = (int)(blockIdx.x % all) % heads;
    work.h_kv = 0; /* of no use here */
    work.i0 = (C::KEYS ? nth : tiles - 1 - nth) * C::OWN;
    return work;
}

/* The tile that is worked on: of which head of the others, which columns. */
struct Walk {
    int head, head_end, j; /* j < 0: the end */
    bool clean;
};

/* The others that this own row may see, for a masked tile without runs (row_mask.cuh). */
template <class C>
static __device__ __forceinline__ void make_words(RowMask<C::OWN, C::OTHER> &mask, const View &view,
                                                  int j)
{
    const AttnArgs &a = view.a;
    const int64_t N_own = a.shape.Nq, N_other = a.shape.Nk;
#pragma unroll 1
    for (int r = threadIdx.x; r < C::OWN; r += C::THREADS) {
        const int64_t own = min((int64_t)mask.work.i0 + r, N_own - 1);
        const AttnPosition position = attn_position(a.positions_q, own);
        for (int word = 0; word < C::OTHER / 32; word++) {
            uint32_t bits = 0;
#pragma unroll 1
            for (int c = 0; c < 32; c++) {
                const int64_t other = (int64_t)j * C::OTHER + word * 32 + c;
                if (other >= N_other)
                    break;
                const int64_t pair = C::KEYS ? other * N_own + own : own * N_other + other;
                const bool seen =
                    !(a.mask && a.mask[pair]) &&
                    attn_visible(a.rule, position, attn_position(a.positions_k, other));
                bits |= (uint32_t)seen << c;
            }
            mask.words[0][r][word] = bits;
        }
    }
}

/* The next tile of this head, or the last one of the next head: its queries see the same tiles. */
template <class C>
static __device__ __forceinline__ void advance(Walk &walk, const View &view,
                                               const RowMask<C::OWN, C::OTHER> &mask)
{
    walk.j = next_key_tile<C::OTHER>(view.a, mask.tiles, mask.q, walk.j, &walk.clean);
    if (walk.j < 0 && ++walk.head < walk.head_end)
        walk.j = next_key_tile<C::OTHER>(view.a, mask.tiles, mask.q, mask.tiles.end, &walk.clean);
}

#endif
