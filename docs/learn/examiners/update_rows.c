/* SPDX-License-Identifier: MIT
 *
 * update_rows.c: judges the update of (m, l, O) by one tile, over all tiles of a small problem. The
 * examiner makes the scores, adds the products with V and divides at the end.
 *
 * Interface: -N rows, --keys, --tile keys of a tile, -d channels, --growing scores, --masked: no
 * key of the first tile is visible.
 */
#include <math.h>

#include "learn.h"

void update_rows(float *S, float *m, float *l, float *O, int rows, int cols, int d);

const Mistake mistakes[] = {
    {"o_not_rescaled", "The sum of values, O, was not rescaled when the maximum grew."},
    {"stale_l", "l was not rescaled when the maximum grew."},
    {"nothing_rescaled",
     "Neither l nor O is rescaled: alpha has to be taken before m becomes m_new."},
    {"stale_m", "m stays what it was: the next tile takes its alpha from it."},
    {"divided_each_tile",
     "O is divided by l in each tile. Here it stays a sum; the caller divides once, after the "
     "last tile."},
    {"divided_each_tile",
     "The weights are divided by l in each tile. They stay exp(S - m); the caller divides O once, "
     "after the last tile."},
    {"scores_left", "S still holds the scores: exp(S - m_new) has to be stored in its place."},
    {"l_of_one_tile",
     "l is the sum of the last tile alone: the old l, times alpha, belongs to it."},
    {"old_maximum", "The new terms are exp(S - m_old). Before the first tile m is -inf, and they "
                    "are infinite: they are relative to m_new."},
    {NULL, NULL}};

static float *all_S, *V;
static Output *O, *l, *m;
static long N, keys, tile, d;

void prepare(void)
{
    long e;
    N = number("-N", 1), keys = number("--keys", 4), tile = number("--tile", 4),
    d = number("-d", 1);
    all_S = normal_input("the scores", N * keys, 11, NULL);
    V = normal_input("V", keys * d, 12, NULL);
    O = output("O / l", N, d, "row", "channel");
    l = output("l", N, 1, "row", "");
    m = output("m", N, 1, "row", "");
    for (e = 0; e < N * keys; e++) {
        if (has_flag("--growing"))
            all_S[e] = 0.5f * (float)(e % keys);
        if (has_flag("--masked") && e % keys < tile)
            all_S[e] = -INFINITY;
    }
}

void call(void)
{
    float *S = case_memory(N * tile, sizeof *S);
    long j, r, c, x;
    for (r = 0; r < N; r++) {
        m->found[r] = -INFINITY;
        l->found[r] = 0.0f;
        for (x = 0; x < d; x++)
            O->found[r * d + x] = 0.0f;
    }
    for (j = 0; j < keys; j += tile) {
        for (r = 0; r < N; r++)
            memcpy(S + r * tile, all_S + r * keys + j, sizeof *S * (size_t)tile);
        update_rows(S, m->found, l->found, O->found, (int)N, (int)tile, (int)d);
        for (r = 0; r < N; r++)
            for (c = 0; c < tile; c++)
                for (x = 0; x < d; x++)
                    O->found[r * d + x] += S[r * tile + c] * V[(j + c) * d + x];
    }
    for (r = 0; r < N; r++)
        for (x = 0; x < d; x++)
            O->found[r * d + x] /= l->found[r];
    free(S);
}

void expect(int mistake)
{
    long j, r, c, x;
    for (r = 0; r < N; r++) {
        double state_m = -INFINITY, sum = 0.0, *O_r = O->expected + r * d;
        for (x = 0; x < d; x++)
            O_r[x] = 0.0;
        for (j = 0; j < keys; j += tile) {
            const float *s = all_S + r * keys + j;
            double m_new = state_m, alpha;
            for (c = 0; c < tile; c++)
                m_new = fmax(m_new, s[c]);
            if (m_new == -INFINITY)
                continue;
            alpha = mistake == 3 ? 1.0 : exp(state_m - m_new);
            sum *= mistake == 2 ? 1.0 : mistake == 8 ? 0.0 : alpha;
            for (c = 0; c < tile; c++)
                sum += exp(s[c] - (mistake == 9 ? state_m : m_new));
            for (x = 0; x < d; x++)
                O_r[x] *= mistake == 1 ? 1.0 : alpha / (mistake == 5 || mistake == 6 ? sum : 1.0);
            for (c = 0; c < tile; c++)
                for (x = 0; x < d; x++)
                    O_r[x] += (mistake == 7   ? s[c]
                               : mistake == 9 ? exp(s[c] - state_m)
                                              : exp(s[c] - m_new)) /
                              (mistake == 6 ? sum : 1.0) * V[(j + c) * d + x];
            state_m = mistake == 4 ? state_m : m_new;
        }
        for (x = 0; x < d; x++)
            O_r[x] /= sum;
        l->expected[r] = sum;
        m->expected[r] = state_m;
    }
}
