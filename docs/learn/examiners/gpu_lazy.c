/* SPDX-License-Identifier: MIT
 *
 * gpu_lazy.c: attention of rows whose scores are given, S [rows][keys] and V [keys], one channel.
 * The learner's maximum moves only when it must; `rescaled` counts how often.
 */
#include "gpu.h"

void attend_rows(const float *S, const float *V, float *O, float *lse, float *rescaled, int rows,
                 int keys);

enum { RIGHT, AT_8, TOO_OFTEN, NEVER, STALE_A, STALE_BOTH, MOVES_BY_8 };

const Mistake mistakes[] = {
    {"at_8", "m moves where the score is exactly 8 above it; it stays there, and moves beyond."},
    {"too_often", "Some rows are rescaled at every new maximum. Move m only when the new maximum "
                  "is more than 8 above it."},
    {"never", "The maximum never moves behind the first key: a later score that is 100 larger "
              "overflows, or what was before it should have vanished."},
    {"stale_a", "l is rescaled and a is not, or the other way round: both are sums relative to m."},
    {"stale_both",
     "m moves, and l and a stay relative to the old one: rescale_row() does all of it."},
    {"moves_by_8",
     "m moves by 8, and the score may be more than 8 above it still: it has to become "
     "the score."},
    {NULL, NULL},
};

static int rows, keys, shape;
static float *S, *V;
static Output *O, *lse, *rescaled;

void prepare(void)
{
    int r, j;
    rows = (int)number("--rows", 32);
    keys = (int)number("--keys", 20);
    shape = (int)number("--step", 0); /* the scores grow by that much, in tenths, at each key */
    S = input("S", (long)rows * keys);
    V = normal_input("V", keys, 2, NULL);
    O = output("O", rows, 1, "row", "");
    lse = output("lse", rows, 1, "row", "");
    rescaled = output("rescaled", rows, 1, "row", "");
    for (r = 0; r < rows; r++)
        for (j = 0; j < keys; j++)
            S[r * keys + j] = 0.1f * (float)(shape * j) + 0.01f * (float)(r % 7 * (j % 3));
}

void call(void)
{
    attend_rows(on_device(S, (long)rows * keys), on_device(V, keys), back(O), back(lse),
                back(rescaled), rows, keys);
    end_kernels();
}

void expect(int mistake)
{
    int r, j;
    for (r = 0; r < rows; r++) {
        double m = S[r * keys], l = 0.0, a = 0.0;
        int count = 0;
        for (j = 0; j < keys; j++) {
            const double s = S[r * keys + j];
            if (mistake != NEVER &&
                (s > m + (mistake == TOO_OFTEN ? 0.0 : 8.0) || (mistake == AT_8 && s == m + 8.0))) {
                const double m_new = mistake == MOVES_BY_8 ? m + 8.0 : s;
                l *= mistake == STALE_BOTH ? 1.0 : exp(m - m_new);
                a *= mistake == STALE_A || mistake == STALE_BOTH ? 1.0 : exp(m - m_new);
                m = m_new;
                count += mistake != STALE_BOTH;
            }
            l += (double)expf((float)(s - m));
            a += (double)expf((float)(s - m)) * V[j];
        }
        O->expected[r] = (float)a / (float)l;
        lse->expected[r] = m + log((double)(float)l);
        rescaled->expected[r] = count;
    }
}
