/* SPDX-License-Identifier: MIT
 *
 * naive_loops.c: judges a changed 01_naive/cpu/v0_loops.c, one head in float32. The functions of
 * the stage that it calls stand here in their plainest form.
 *
 * Interface: -N queries, --keys, -d channels, --causal, --mask: a full mask in which every fifth
 * row is empty, --large: scores in the hundreds.
 */
#include "attention.h"
#include "naive.h"

AttnStatus naive_v0_loops(const AttnArgs *args);

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;
static Output *O, *lse;

void *workspace_alloc(size_t bytes)
{
    return calloc(bytes, 1);
}

void workspace_free(void *memory)
{
    free(memory);
}

void naive_load_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                     float *rows)
{
    const float *data = t->data;
    (void)b, (void)h;
    memcpy(rows, data + first * t->shape[3], sizeof(float) * (size_t)(count * t->shape[3]));
}

void naive_store_rows(const Tensor *t, int64_t b, int64_t h, int64_t first, int64_t count,
                      const float *rows)
{
    float *data = t->data;
    (void)b, (void)h;
    memcpy(data + first * t->shape[3], rows, sizeof(float) * (size_t)(count * t->shape[3]));
}

void naive_clear_empty(const float *lse_rows, int64_t count, int64_t d, float *dO)
{
    (void)lse_rows, (void)count, (void)d, (void)dO; /* of backward, which is not judged here */
}

void prepare(void)
{
    const long Nq = number("-N", 1), Nk = number("--keys", Nq), d = number("-d", 1);
    float *Q = input("Q", Nq * d), *K = input("K", Nk * d), *V = input("V", Nk * d);
    unsigned char *mask = has_flag("--mask") ? calloc((size_t)(Nq * Nk), 1) : NULL;
    long e;
    O = output("O", Nq, d, "query", "channel");
    lse = output("lse", Nq, 1, "query", "");
    fill_normal(Q, Nq * d, 1);
    fill_normal(K, Nk * d, 2);
    fill_normal(V, Nk * d, 3);
    for (e = 0; e < Nq * d && has_flag("--large"); e++)
        Q[e] *= 100.0f;
    O->tolerance = has_flag("--large") ? 3e-3 : 1e-4;
    for (e = 0; mask && e < Nq * Nk; e++)
        mask[e] = e / Nk % 5 == 4 || e * 7 % 3 == 1;
    head = (Head){Q, K, V, Nq, Nk, d, has_flag("--causal"), mask};
}

static Tensor tensor_of(float *data, long n)
{
    const long d = head.d;
    return (Tensor){data, ATTN_F32, {1, n, 1, d}, {n * d, d, d, 1}};
}

void call(void)
{
    const AttnSegment q = {0, head.Nq, 0, head.Nk - head.Nq, 1}, k = {0, head.Nk, 0, 0, 1};
    AttnArgs args = {.shape = {1, 1, 1, head.Nq, head.Nk, head.d}, .threads = 1};
    args.scale = 1.0f / sqrtf((float)head.d);
    args.rule = (AttnRule){-1, head.causal ? 0 : -1};
    args.positions_q = (AttnPositions){&q, 1};
    args.positions_k = (AttnPositions){&k, 1};
    args.mask = head.mask;
    args.Q = tensor_of((float *)head.Q, head.Nq);
    args.K = tensor_of((float *)head.K, head.Nk);
    args.V = tensor_of((float *)head.V, head.Nk);
    args.O = tensor_of(O->found, head.Nq);
    args.lse = lse->found;
    naive_v0_loops(&args);
}

void expect(int mistake)
{
    reference(&head, mistake, O->expected, lse->expected);
}
