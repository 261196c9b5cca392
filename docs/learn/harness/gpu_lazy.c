/* SPDX-License-Identifier: MIT
 *
 * gpu_lazy.c: attention of rows whose scores are given, S [rows][keys] and V [keys], one channel.
 * The learner's maximum moves only when it must; `rescaled` counts how often.
 */
#include "gpu.h"

void attend_rows(const float *S, const float *V, float *O, float *lse, float *rescaled, int rows,
                 int keys);

const Mistake mistakes[] = {
    {"too_often", "Some rows are rescaled at every new maximum. Move m only when the new maximum "
                  "is more than 8 above it."},
    {"never", "The maximum never moves behind the first key: a later score that is 100 larger "
              "overflows, or what was before it should have vanished."},
    {"stale_a", "l is rescaled and a is not, or the other way round: both are sums relative to m."},
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
    V = input("V", keys);
    O = output("O", rows, 1, "row", "");
    lse = output("lse", rows, 1, "row", "");
    rescaled = output("rescaled", rows, 1, "row", "");
    fill_normal(V, keys, 2);
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
            if (mistake != 2 && s > m + (mistake == 1 ? 0.0 : 8.0)) {
                l *= exp(m - s);
                a *= mistake == 3 ? 1.0 : exp(m - s);
                m = s;
                count++;
            }
            l += exp(s - m);
            a += exp(s - m) * V[j];
        }
        O->expected[r] = (float)a / (float)l;
        lse->expected[r] = m + log((double)(float)l);
        rescaled->expected[r] = count;
    }
}
