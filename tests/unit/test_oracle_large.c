/* SPDX-License-Identifier: MIT
 *
 * test_oracle_large.c: cases that are checked on samples against tiles, with gradients from the
 * O and lse of the run. Keys and queries of a few kinds make the right outputs a matter of sums
 * over prefixes and suffixes, N d in all, so what a run should have left is known without a run.
 *
 * Right outputs pass; a block of rows missing in dK and dV, a hop missing in dQ, in lse and O, a
 * NaN where nobody looks: none of them does, each is seen in the arrays that it is in, in f32 and
 * bf16.
 */
#include <math.h>

#include "judge_case.h"

#include "harness/oracle/oracle_core.h"

#define KINDS 4

/* Keys and queries of KINDS kinds: key j is of kind j % KINDS, query i of kind i / 3 % KINDS, so
 * that P_ij = e[kind of i][kind of j] / Z_i, and every sum over keys or queries is KINDS sums over
 * a prefix or a suffix. Causal, one batch, one kv head. */
typedef struct Kinds {
    Case *c;
    double *Z, *delta, *O; /* [H][N], [H][N], [H][N][d] */
    double e[8][KINDS][KINDS];
} Kinds;

/* What is left out, in eighths of the tokens, -1 = nothing: keys from the softmax of rows, keys
 * from dQ of rows, rows from dK and dV of keys. */
typedef struct Hole {
    int softmax_keys, softmax_rows, dQ_keys, dQ_rows, dK_rows, dK_keys;
} Hole;

static const Hole whole = {-1, -1, -1, -1, -1, -1};

static int kind_of_key(int64_t j)
{
    return (int)(j % KINDS);
}

static int kind_of_query(int64_t i)
{
    return (int)(i / 3 % KINDS);
}

static int eighth(int64_t i, int64_t N)
{
    return (int)(i * 8 / N);
}

/* V and dO lean on K and Q: gradients of large cases that do not average out. */
static Kinds *kinds_new(AttnShape s, AttnDtype dtype)
{
    Kinds *k = calloc(1, sizeof *k);
    Case *c = k->c = case_new(s, dtype, LAYOUT_BSHD, 1);
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    k->Z = calloc((size_t)(s.H * s.Nq), sizeof *k->Z);
    k->delta = calloc((size_t)(s.H * s.Nq), sizeof *k->delta);
    k->O = calloc((size_t)(s.H * s.Nq * s.d), sizeof *k->O);
    assert_true(k->Z && k->delta && k->O);
    for (int64_t i = KINDS; i < s.Nk; i++)
        for (int64_t x = 0; x < s.d; x++) {
            const float same = case_get(&c->args.K, 0, kind_of_key(i), 0, x);
            case_set(&c->args.K, 0, i, 0, x, same);
            case_set(&c->args.V, 0, i, 0, x, same + case_get(&c->args.V, 0, i, 0, x) / 4);
        }
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 3 * KINDS; i < s.Nq; i++)
            for (int64_t x = 0; x < s.d; x++) {
                const float same = case_get(&c->args.Q, 0, 3 * kind_of_query(i), h, x);
                case_set(&c->args.Q, 0, i, h, x, same);
                case_set(&c->args.dO, 0, i, h, x, same + case_get(&c->args.dO, 0, i, h, x) / 4);
            }
    for (int64_t h = 0; h < s.H; h++)
        for (int64_t i = 0; i < 3 * KINDS; i++)
            for (int64_t x = 0; x < s.d; x++)
                case_set(&c->args.Q, 0, i, h, x,
                         case_get(&c->args.Q, 0, 3 * kind_of_query(i), h, x));
    for (int64_t h = 0; h < s.H; h++)
        for (int a = 0; a < KINDS; a++)
            for (int b = 0; b < KINDS; b++) {
                double qk = 0;
                for (int64_t x = 0; x < s.d; x++)
                    qk += (double)case_get(&c->args.Q, 0, 3 * a, h, x) *
                          (double)case_get(&c->args.K, 0, b, 0, x);
                k->e[h][a][b] = exp((double)c->args.scale * qk);
            }
    return k;
}

static void kinds_free(Kinds *k)
{
    case_free(k->c);
    free(k->Z);
    free(k->delta);
    free(k->O);
    free(k);
}

/* O, lse and dQ of head h: prefix sums of V by kind. */
static void rows_of_kinds(Kinds *k, int64_t h, const Hole *hole)
{
    const AttnShape *s = &k->c->args.shape;
    const AttnArgs *a = &k->c->args;
    double count[3][KINDS] = {{0}}, V[3][KINDS][16] = {{{0}}}; /* all, one hole, the other */
    for (int64_t i = 0; i < s->Nq; i++) {
        const int kind = kind_of_key(i), q = kind_of_query(i), part = eighth(i, s->Nq);
        const int in[3] = {1, part == hole->softmax_keys, part == hole->dQ_keys};
        const int soft = part == hole->softmax_rows, short_dQ = part == hole->dQ_rows;
        double *O = &k->O[(h * s->Nq + i) * s->d], Z = 0, delta = 0, dQ[16] = {0};
        for (int n = 0; n < 3; n++) {
            count[n][kind] += in[n];
            for (int64_t x = 0; in[n] && x < s->d; x++)
                V[n][kind][x] += (double)case_get(&a->V, 0, i, 0, x);
        }
        for (int c = 0; c < KINDS; c++)
            Z += k->e[h][q][c] * (count[0][c] - soft * count[1][c]);
        for (int64_t x = 0; x < s->d; x++) {
            O[x] = 0;
            for (int c = 0; c < KINDS; c++)
                O[x] += k->e[h][q][c] / Z * (V[0][c][x] - soft * V[1][c][x]);
            case_set(&a->O, 0, i, h, x, (float)O[x]);
            delta += (double)case_get(&a->dO, 0, i, h, x) * O[x];
        }
        for (int c = 0; c < KINDS; c++) {
            double dS = 0;
            for (int64_t x = 0; x < s->d; x++)
                dS += (double)case_get(&a->dO, 0, i, h, x) * (V[0][c][x] - short_dQ * V[2][c][x]);
            dS = k->e[h][q][c] / Z * (dS - delta * (count[0][c] - short_dQ * count[2][c]));
            for (int64_t x = 0; x < s->d; x++)
                dQ[x] += (double)a->scale * dS * (double)case_get(&a->K, 0, c, 0, x);
        }
        for (int64_t x = 0; x < s->d; x++)
            case_set(&a->dQ, 0, i, h, x, (float)dQ[x]);
        k->Z[h * s->Nq + i] = Z;
        k->delta[h * s->Nq + i] = delta;
        k->c->lse[h * s->Nq + i] = (float)log(Z);
    }
}

/* dK and dV: suffix sums over the rows of all heads, from Z and delta as they are. */
static void keys_of_kinds(Kinds *k, const Hole *hole)
{
    const AttnShape *s = &k->c->args.shape;
    const AttnArgs *a = &k->c->args;
    static double dO[2][8][KINDS][16], delta[2][8][KINDS];
    memset(dO, 0, sizeof dO);
    memset(delta, 0, sizeof delta);
    for (int64_t j = s->Nk - 1; j >= 0; j--) {
        const int kind = kind_of_key(j), q = kind_of_query(j), part = eighth(j, s->Nk);
        const int hole_here = part == hole->dK_keys;
        double dK[16] = {0}, dV[16] = {0};
        for (int64_t h = 0; h < s->H; h++) {
            const double Z = k->Z[h * s->Nq + j];
            for (int n = 0; n <= (part == hole->dK_rows); n++) {
                delta[n][h][q] += k->delta[h * s->Nq + j] / Z;
                for (int64_t x = 0; x < s->d; x++)
                    dO[n][h][q][x] += (double)case_get(&a->dO, 0, j, h, x) / Z;
            }
        }
        for (int64_t h = 0; h < s->H; h++)
            for (int c = 0; c < KINDS; c++) {
                double dS = -(delta[0][h][c] - hole_here * delta[1][h][c]);
                for (int64_t x = 0; x < s->d; x++) {
                    const double sum = dO[0][h][c][x] - hole_here * dO[1][h][c][x];
                    dS += sum * (double)case_get(&a->V, 0, j, 0, x);
                    dV[x] += k->e[h][c][kind] * sum;
                }
                for (int64_t x = 0; x < s->d; x++)
                    dK[x] += (double)a->scale * k->e[h][c][kind] * dS *
                             (double)case_get(&a->Q, 0, 3 * c, h, x);
            }
        for (int64_t x = 0; x < s->d; x++) {
            case_set(&a->dK, 0, j, 0, x, (float)dK[x]);
            case_set(&a->dV, 0, j, 0, x, (float)dV[x]);
        }
    }
}

static void compute(Kinds *k, const Hole *hole)
{
    for (int64_t h = 0; h < k->c->args.shape.H; h++)
        rows_of_kinds(k, h, hole);
    keys_of_kinds(k, hole);
}

static Check judge(const Kinds *k, const Oracle *o)
{
    Oracle keys;
    assert_int_equal(0, oracle_run_given(&keys, o, &k->c->args, 1));
    const Check check = check_of(&k->c->args, &keys, 1, 16);
    oracle_given_free(&keys);
    return check;
}

/* wrong: arrays in which errors must be seen; may: in which they may be. */
static void expect_verdict(Kinds *k, const Oracle *o, Hole hole, unsigned wrong, unsigned may,
                           const char *what)
{
    unsigned found = 0;
    Check check;
    compute(k, &hole);
    check = judge(k, o);
    for (int n = 0; n < CHECK_DWQ; n++)
        found |= (unsigned)(check.array[n].off > 0) << n;
    if ((found & ~may) != wrong)
        check_explain(&check, what, &k->c->args, stderr);
    assert_int_equal(wrong, found & ~may);
    assert_int_equal(wrong == 0, check.pass);
}

enum { O_ = 1 << CHECK_O, LSE = 1 << CHECK_LSE, DQ = 1 << CHECK_DQ, DK = 1 << CHECK_DK };
enum { DV = 1 << CHECK_DV };

/* Everything on samples, whatever the size. */
static const OracleLimits no_size = {0, 0, 1e12};

/* Whole dK and dV would be 7 * 10^10 visible pair-channels, a minute of work. With ATTN_TEST_QUICK
 * (sanitizers) one dtype, and fewer tokens that are taken for as many. */
TEST(large_cases)
{
    const int64_t N = quick() ? 8192 : 65536;
    const AttnShape shape = {1, 2, 1, N, N, 16};
    for (int dtype = quick() ? ATTN_BF16 : ATTN_F32; dtype <= ATTN_BF16; dtype += 2) {
        Kinds *k = kinds_new(shape, (AttnDtype)dtype);
        const int f32 = dtype == ATTN_F32;
        Oracle o;
        Hole hole = whole;
        if (quick())
            assert_int_equal(
                0, oracle_run_within(&o, &k->c->args, 1, 1, (OracleRoundings){0}, &no_size));
        else
            assert_int_equal(0, oracle_run_reference(&o, &k->c->args, 1, 1, (OracleRoundings){0}));
        assert_true(!o.whole && o.given);
        expect_verdict(k, &o, whole, 0, 0, "right");
        hole.dK_keys = 3, hole.dK_rows = 5;
        expect_verdict(k, &o, hole, DK | DV, 0, "dK and dV miss a block of rows");
        hole = whole, hole.dQ_rows = 7, hole.dQ_keys = 2;
        expect_verdict(k, &o, hole, DQ, 0, "dQ of one hop short");
        /* gradients follow from the wrong lse and O, so these must be seen themselves (a mean over
         * many V may hide in the roundings of bf16; lse does not) */
        hole = whole, hole.softmax_rows = 6, hole.softmax_keys = 2;
        expect_verdict(k, &o, hole, LSE | (f32 ? O_ : 0), f32 ? 0 : O_, "a hop short");
        oracle_free(&o);
        kinds_free(k);
    }
}

TEST(nan_where_nobody_looks)
{
    const AttnShape shape = {1, 1, 1, 3000, 3000, 16};
    Kinds *k = kinds_new(shape, ATTN_BF16);
    const AttnArgs *a = &k->c->args;
    const Tensor *const of[] = {&a->O, NULL, &a->dQ, &a->dK, &a->dV};
    Oracle o;
    Check check;
    int64_t i = 1600;
    assert_int_equal(0, oracle_run_within(&o, a, 1, 1, (OracleRoundings){0}, &no_size));
    compute(k, &whole);
    while (oracle_sample_find(&o.rows, i) >= 0 || oracle_sample_find(&o.keys, i) >= 0)
        i++;
    for (int n = 0; n < CHECK_DWQ; n++) {
        const float before = of[n] ? case_get(of[n], 0, i, 0, 3) : k->c->lse[i];
        for (int bad = 0; bad < 2 - (n != CHECK_LSE); bad++) {
            if (of[n])
                case_set(of[n], 0, i, 0, 3, NAN);
            else
                k->c->lse[i] = bad ? INFINITY : NAN;
            check = judge(k, &o);
            assert_false(check.pass);
            assert_int_equal(1, check.array[n].off_nan);
        }
        if (of[n])
            case_set(of[n], 0, i, 0, 3, before);
        else
            k->c->lse[i] = before;
    }
    assert_true(judge(k, &o).pass);
    oracle_free(&o);
    kinds_free(k);
}

int main(void)
{
    setenv("ATTN_SAMPLE_SEED", "5", 1);
    return unit_tests();
}
