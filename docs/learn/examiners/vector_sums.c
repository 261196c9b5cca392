/* SPDX-License-Identifier: MIT
 *
 * vector_sums.c: judges dot products of a query with many keys, by the time that they take.
 *
 * Interface: -N keys, -d channels; --pace: against dot products with one sum.
 */
#include "pace.h"

void query_scores(const float *q, const float *K, float *s, int N, int d);

#define SHARE 0.45

const Mistake mistakes[] = {
    {"tail_forgotten",
     "The channels behind the last whole group are missing: d is no multiple of the group."},
    {"first_sum_only",
     "Only one of the sums reaches s: all of them have to be added, behind the loop."},
    {"sums_not_reset", "The sums go on from one key to the next; each key begins with 0."},
    {NULL, NULL}};

#define GROUP 8 /* channels of a group in what the mistakes would give */

static float *q, *K;
static Output *s;
static long N, d;

void prepare(void)
{
    N = number("-N", 1);
    d = number("-d", 1);
    q = normal_input("q", d, 1, NULL);
    K = normal_input("K", N * d, 2, NULL);
    s = output("s", N, 1, "key", "");
    s->tolerance = 1e-3;
}

static void yours(void)
{
    query_scores(q, K, s->found, (int)N, (int)d);
}

static void plain(void)
{
    long j, x;
    for (j = 0; j < N; j++) {
        float sum = 0.0f;
        for (x = 0; x < d; x++)
            sum += q[x] * K[j * d + x];
        s->found[j] = sum;
    }
}

void call(void)
{
    yours();
}

void judge_counts(void)
{
    if (has_flag("--pace"))
        refuse_slow(plain, yours, SHARE,
                    "How many of your sums wait for nobody? A term can be added to a sum only when "
                    "the term before it is in it.");
}

void expect(int mistake)
{
    double sum = 0.0;
    long j, x;
    for (j = 0; j < N; j++) {
        sum = mistake == 3 ? sum : 0.0;
        for (x = 0; x < (mistake == 1 ? d / GROUP * GROUP : d); x++)
            if (mistake != 2 || x % GROUP == 0)
                sum += (double)q[x] * K[j * d + x];
        s->expected[j] = sum;
    }
}
