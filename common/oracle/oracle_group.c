/* SPDX-License-Identifier: MIT
 *
 * oracle_group.c: the float64 copy of one key/value head and its query heads: any dtype and stride
 * becomes plain matrices. With QK normalisation they hold the normalised values, rounded to the
 * dtype as the definition says, and beside them what may be off in each.
 *
 * Interface: oracle_core.h (oracle_group_load, oracle_group_free).
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle_core.h"

void oracle_group_free(OracleGroup *g)
{
    free(g->Q);
    free(g->state);
    free(g->memory);
    memset(g, 0, sizeof *g);
}

/* The pair M, Mt of t's head h of batch b. w: normalise, with the uncertainties in U, Ut. */
static void load_head(const OraclePlan *p, OracleMatrix *M, OracleMatrix *Mt, OracleMatrix *U,
                      OracleMatrix *Ut, const Tensor *t, int64_t b, int64_t h, const float *w,
                      float **at)
{
    const int64_t N = t->shape[1], d = t->shape[3];
    *at = oracle_matrix_place(Mt, oracle_matrix_place(M, *at, N, d), d, N);
    oracle_matrix_load(M, Mt, t, b, h);
    if (!w)
        return;
    *at = oracle_matrix_place(Ut, oracle_matrix_place(U, *at, N, d), d, N);
    for (int64_t n = 0; n < N; n++) {
        oracle_normalise_row(p, w + h * d, M->at + n * d, U->at + n * d);
        for (int64_t x = 0; x < d; x++) {
            Mt->at[x * N + n] = M->at[n * d + x];
            Ut->at[x * N + n] = U->at[n * d + x];
        }
    }
}

int oracle_group_load(OracleGroup *g, const OraclePlan *p, int64_t b, int64_t kv_head, int backward)
{
    const AttnArgs *a = p->args;
    const AttnShape *s = &a->shape;
    const int64_t heads = s->H / s->Hkv;
    const float *wq = p->norm_group ? p->options->wq : NULL;
    const float *wk = p->norm_group ? p->options->wk : NULL;
    const int64_t norm = p->norm_group ? 1 : 0;
    const size_t of_q = (size_t)(2 * s->Nq * s->d), of_k = (size_t)(2 * s->Nk * s->d);
    const size_t count =
        (size_t)(2 + norm) * of_k + (size_t)heads * of_q * (size_t)(1 + norm + (backward != 0));
    float *at;
    memset(g, 0, sizeof *g);
    g->b = b;
    g->kv_head = kv_head;
    g->heads = heads;
    g->Q = calloc((size_t)heads * 6, sizeof *g->Q);
    g->state = calloc((size_t)(heads * s->Nq), sizeof *g->state);
    at = g->memory = calloc(count, sizeof *g->memory);
    if (!g->Q || !g->state || !g->memory) {
        oracle_group_free(g);
        return -1;
    }
    g->Qt = g->Q + heads;
    g->dO = g->Q + 2 * heads;
    g->dOt = g->Q + 3 * heads;
    g->Qu = g->Q + 4 * heads;
    g->Qut = g->Q + 5 * heads;
    load_head(p, &g->K, &g->Kt, &g->Ku, &g->Kut, &a->K, b, kv_head, wk, &at);
    load_head(p, &g->V, &g->Vt, NULL, NULL, &a->V, b, kv_head, NULL, &at);
    for (int64_t h = 0; h < heads; h++) {
        const int64_t head = kv_head * heads + h;
        load_head(p, &g->Q[h], &g->Qt[h], &g->Qu[h], &g->Qut[h], &a->Q, b, head, wq, &at);
        if (backward)
            load_head(p, &g->dO[h], &g->dOt[h], NULL, NULL, &a->dO, b, head, NULL, &at);
    }
    return 0;
}
