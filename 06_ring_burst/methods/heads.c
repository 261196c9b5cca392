/* SPDX-License-Identifier: MIT
 *
 * heads.c: all-to-all between shares of tokens and shares of heads.
 *
 * A message should be one run of memory. Some heads of all my tokens are not: between two tokens'
 * heads lie the others. So they are packed, peer by peer, and unpacked on the other side; where
 * tokens of one rank and one batch stand together already they are sent or received in place:
 *
 *     mine    token 0: h0 h1 h2 h3 | token 1: h0 h1 h2 h3 | ...     packed for rank 1: h1 h1 ...
 *     whole   rank 0's tokens: h1 h1 ... | rank 1's tokens: h1 h1 ... | ...     in place
 *
 * Only a batch of one is a single run, so there is a message for each batch.
 *
 * When several ranks have the same kv head, each comes back with a part of the gradient, rounded to
 * the dtype for the way. The parts are widened to float32, added in the order of the ranks, and
 * rounded once more. So dK and dV of 16 bits carry one rounding more than those of the other
 * methods, one of each part; the bound that judges them knows it (OracleRoundings in oracle.h).
 *
 * Interface: heads.h.
 */
#include "methods/heads.h"

/* G ranks and 8 heads: 8/G heads each, or, with more ranks than heads, one head that G/8 ranks
 * share. */
static RingHeads heads_of(const RingRank *r, const int64_t *tokens, int64_t heads)
{
    RingHeads h = {.tokens = tokens, .heads = heads, .mine = tokens[r->rank]};
    h.share = heads > r->world ? heads / r->world : 1;
    h.copies = (int)(h.share * r->world / heads);
    for (int rank = 0; rank < r->world; rank++)
        h.whole += tokens[rank];
    return h;
}

RingHeads ring_query_heads(const RingRank *r)
{
    return heads_of(r, r->q_tokens, r->H);
}

RingHeads ring_key_heads(const RingRank *r)
{
    return heads_of(r, r->k_tokens, r->Hkv);
}

/* --- where things lie --------------------------------------------------------------------------*/

static int64_t first_head(const RingRank *r, const RingHeads *h, int rank)
{
    return rank * h->heads / r->world;
}

/* Row of rank's first token among all. */
static int64_t first_token(const RingHeads *h, int rank)
{
    int64_t first = 0;
    for (int before = 0; before < rank; before++)
        first += h->tokens[before];
    return first;
}

/* Bytes of one token's heads: of one rank's share, and of all. */
static size_t share_row(const RingRank *r, const RingHeads *h)
{
    return (size_t)(h->share * r->d) * ring_size(r->dtype);
}

static size_t full_row(const RingRank *r, const RingHeads *h)
{
    return (size_t)(h->heads * r->d) * ring_size(r->dtype);
}

/* Where rank's tokens stand in whole [B][all tokens][share][d]. */
static char *whole_part(const RingRank *r, const RingHeads *h, const void *whole, int64_t b,
                        int rank)
{
    const int64_t row = b * h->whole + first_token(h, rank);
    return (char *)whole + (size_t)row * share_row(r, h);
}

/* Where rank's heads stand in mine [B][this rank's tokens][all heads][d]: in each token a run of
 * share * d elements. */
static char *mine_part(const RingRank *r, const RingHeads *h, const void *mine, int64_t b, int rank)
{
    const size_t head = (size_t)r->d * ring_size(r->dtype);
    return (char *)mine + (size_t)(b * h->mine) * full_row(r, h) +
           (size_t)first_head(r, h, rank) * head;
}

/* Elements of this rank's tokens for one other rank, all batches. */
static int64_t part_count(const RingRank *r, const RingHeads *h)
{
    return r->B * h->mine * h->share * r->d;
}

/* Parts of other ranks one behind the other; parts that are to be added have room for float32, and
 * the own part is among them. */
static size_t part_bytes(const RingRank *r, const RingHeads *h)
{
    const size_t size = h->copies > 1 ? sizeof(float) : ring_size(r->dtype);
    return (size_t)part_count(r, h) * size;
}

static char *packed_part(const RingRank *r, const RingHeads *h, void *packed, int rank)
{
    const int number = h->copies > 1 || rank < r->rank ? rank : rank - 1;
    return (char *)packed + (size_t)number * part_bytes(r, h);
}

int64_t ring_whole_count(const RingRank *r, const RingHeads *h)
{
    return r->B * h->whole * h->share * r->d;
}

size_t ring_packed_bytes(const RingRank *r, const RingHeads *h)
{
    return (size_t)(h->copies > 1 ? r->world : r->world - 1) * part_bytes(r, h);
}

/* --- tokens to heads ---------------------------------------------------------------------------*/

/* Both sides of G^2 messages: every rank sends a part to each other one and gets one from each, all
 * in one exchange, so that no order among them can hang. */
void ring_send_mine(RingRank *r, RingExchange *x, RingTensor tensor, const RingHeads *h,
                    const void *mine, void *packed, void *whole)
{
    const size_t row = share_row(r, h), pitch = full_row(r, h), bytes = (size_t)h->mine * row;
    for (int peer = 0; peer < r->world && !r->failed; peer++)
        for (int64_t b = 0; b < r->B; b++) {
            char *coming = whole_part(r, h, whole, b, peer), *leaving = coming;
            if (peer != r->rank)
                leaving = packed_part(r, h, packed, peer) + (size_t)b * bytes;
            ring_copy(r, leaving, row, mine_part(r, h, mine, b, peer), pitch, row, h->mine);
            ring_send(r, x, peer, tensor, leaving, bytes);
            ring_receive(r, x, peer, tensor, coming, (size_t)h->tokens[peer] * row);
        }
}

/* --- heads to tokens ---------------------------------------------------------------------------*/

/* The other way no packing is needed before the journey: another rank's tokens stand together in
 * whole. */
void ring_send_whole(RingRank *r, RingExchange *x, RingTensor tensor, const RingHeads *h,
                     const void *whole, void *packed)
{
    const size_t row = share_row(r, h), bytes = (size_t)h->mine * row;
    for (int peer = 0; peer < r->world && !r->failed; peer++)
        for (int64_t b = 0; b < r->B && peer != r->rank; b++) {
            ring_send(r, x, peer, tensor, whole_part(r, h, whole, b, peer),
                      (size_t)h->tokens[peer] * row);
            ring_receive(r, x, peer, tensor, packed_part(r, h, packed, peer) + (size_t)b * bytes,
                         bytes);
        }
}

/* Parts of ranks first .. first + copies - 1 belong to one head: their sum, rounded, stands where
 * the first part stood. */
static void add_copies(RingRank *r, const RingHeads *h, const void *whole, void *packed, int first)
{
    const size_t row = share_row(r, h), bytes = (size_t)h->mine * row;
    const int64_t count = part_count(r, h);
    float *sum = (float *)packed_part(r, h, packed, first);
    for (int rank = first; rank < first + h->copies && !r->failed; rank++) {
        char *part = packed_part(r, h, packed, rank);
        for (int64_t b = 0; b < r->B && rank == r->rank; b++)
            ring_copy(r, part + (size_t)b * bytes, row, whole_part(r, h, whole, b, rank), row, row,
                      h->mine);
        ring_widen(r, part, count, r->dtype);
        if (rank > first)
            ring_add(r, sum, (float *)part, count);
    }
    ring_narrow(r, sum, count, r->dtype);
}

void ring_place_whole(RingRank *r, const RingHeads *h, const void *whole, void *packed, void *mine)
{
    const size_t row = share_row(r, h), pitch = full_row(r, h), bytes = (size_t)h->mine * row;
    for (int rank = 0; rank < r->world && !r->failed; rank += h->copies) {
        if (h->copies > 1)
            add_copies(r, h, whole, packed, rank);
        for (int64_t b = 0; b < r->B; b++) {
            const char *part = rank == r->rank && h->copies == 1
                                   ? whole_part(r, h, whole, b, rank)
                                   : packed_part(r, h, packed, rank) + (size_t)b * bytes;
            ring_copy(r, mine_part(r, h, mine, b, rank), pitch, part, row, row, h->mine);
        }
    }
}

/* lse has one float where the tensors have d elements, and its heads stand outside of its tokens: a
 * part is a run of tokens for each head. */
void ring_send_rows(RingRank *r, RingExchange *x, const RingHeads *h, const float *whole,
                    float *packed, float *mine)
{
    for (int peer = 0; peer < r->world && !r->failed; peer++) {
        const int64_t tokens = h->tokens[peer], first = first_token(h, peer);
        const size_t out = (size_t)tokens * sizeof(float), in = (size_t)h->mine * sizeof(float);
        float *part = packed + r->B * h->share * first;
        ring_copy(r, part, out, whole + first, (size_t)h->whole * sizeof(float), out,
                  r->B * h->share);
        for (int64_t b = 0; b < r->B; b++) {
            float *from = part + b * h->share * tokens;
            float *to = mine + (b * h->heads + first_head(r, h, peer)) * h->mine;
            if (peer == r->rank)
                ring_copy(r, to, in, from, in, in, h->share);
            ring_send(r, x, peer, RING_LSE, from, (size_t)h->share * out);
            ring_receive(r, x, peer, RING_LSE, to, (size_t)h->share * in);
        }
    }
}
