/* SPDX-License-Identifier: MIT
 *
 * oracle_case.c: what the plain oracle (oracle.c, oracle_core.c) stands on: what holds for a whole
 * case, memory for the results, the float64 copy of one key/value head, products of its matrices,
 * and which rows and keys of a big case are looked at.
 *
 * Interface: oracle_free, oracle_sample_find (oracle.h); oracle_plan_..., oracle_allocate,
 * oracle_group_..., oracle_matrix_..., oracle_sample_..., oracle_scratch_... and the factors of the
 * bounds that hold for a whole case (oracle_core.h).
 */
#include "harness/io/fill.h"
#include "harness/io/philox.h"
#include "harness/oracle/oracle_core.h"
#include "tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- what holds for a whole case ---------------------------------------------------------------*/

/* Scale, cap and options as numbers, units of rounding, the position of every token; and the
 * factors of the bounds in oracle_core.c that depend on these. */

/* Local index - those of earlier sequences: how many of its sequence come before. */
static int64_t *index_in_sequence(AttnPositions map, int64_t N)
{
    int64_t *in = malloc(sizeof *in * (size_t)N);
    for (int64_t s = 0; in && s < map.count; s++) {
        int64_t before = 0;
        for (int64_t t = 0; t < s; t++)
            if (map.segments[t].sequence == map.segments[s].sequence)
                before += map.segments[t].length;
        for (int64_t t = 0; t < map.segments[s].length; t++)
            in[map.segments[s].first + t] = before + t;
    }
    return in;
}

/* What the options ask for beyond a scale. */
static int plan_options(OraclePlan *p, const AttnArgs *args)
{
    const AttnOptions *o = args->options;
    if (!o)
        return 0;
    if (p->cap == 0) {
        p->scale /= o->temperature;
        p->folds = o->temperature != 1;
    }
    p->norm_group = o->norm_group;
    p->clips = o->clip_low != 0 || o->clip_high != 1;
    p->clip_low = o->clip_low;
    p->gain = (double)o->clip_high - o->clip_low;
    p->drops = o->dropout > 0;
    p->kept = 1 / (1 - (double)o->dropout);
    p->threshold = attn_dropout_threshold(o->dropout);
    if (p->norm_group || p->clips || p->drops)
        p->options = o;
    p->q_in = index_in_sequence(args->positions_q, args->shape.Nq);
    p->k_in = index_in_sequence(args->positions_k, args->shape.Nk);
    return p->q_in && p->k_in ? 0 : -1;
}

int oracle_plan_make(OraclePlan *p, const AttnArgs *args, OracleRoundings roundings, int whole)
{
    const AttnShape *s = &args->shape;
    memset(p, 0, sizeof *p);
    p->args = args;
    p->scale = args->scale;
    p->cap = args->softcap > 0 ? args->softcap : 0;
    p->u16 = args->Q.dtype == ATTN_F32 ? 0 : args->Q.dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
    p->bytes = args->Q.dtype == ATTN_E4M3;
    p->copies = p->u16 > 0 && roundings.copies > 1 ? roundings.copies : 0;
    p->u_copy = p->u16;
    p->u16 += roundings.partials;
    p->eta = args->Q.dtype == ATTN_F16 ? 0x1p-25 : 0x1p-126;
    p->q_at = malloc(sizeof *p->q_at * (size_t)s->Nq);
    p->k_at = malloc(sizeof *p->k_at * (size_t)s->Nk);
    if (!p->q_at || !p->k_at || plan_options(p, args) != 0)
        return -1;
    for (int64_t i = 0; i < s->Nq; i++)
        p->q_at[i] = attn_position(args->positions_q, i);
    for (int64_t j = 0; j < s->Nk; j++)
        p->k_at[j] = attn_position(args->positions_k, j);
    if (whole)
        return 0;
    p->q_range = oracle_ranges(p->q_at, s->Nq);
    p->k_range = oracle_ranges(p->k_at, s->Nk);
    return p->q_range && p->k_range ? 0 : -1;
}

void oracle_plan_free(OraclePlan *p)
{
    free(p->q_at);
    free(p->k_at);
    free(p->q_range);
    free(p->k_range);
    free(p->q_in);
    free(p->k_in);
}

/* --- factors of the bounds ---------------------------------------------------------------------*/

static double exponent_error(const OraclePlan *p, double g)
{
    const double x = (p->args->Q.dtype == ATTN_F32 ? 4 : 16) * ORACLE_U * g;
    return p->cap > 0 && x > 2 * p->cap + 1 ? 2 * p->cap + 1 : x; /* capped scores are in +-cap */
}

int oracle_is_beyond(const OraclePlan *p, double g)
{
    const double x = exponent_error(p, g);
    return x > ORACLE_MOST && x < INFINITY; /* infinity comes from an input, not from rounding */
}

double oracle_grown(const OraclePlan *p, double g)
{
    const double x = exponent_error(p, g);
    return x > 0 && x < INFINITY ? g * expm1(x < ORACLE_MOST ? x : ORACLE_MOST) / x : g;
}

double oracle_score_error(const OraclePlan *p)
{
    return 1 + sqrt((double)p->args->shape.d) / 4 + (p->folds ? 0.5 : 0);
}

void oracle_row_errors(const OraclePlan *p, double A, int64_t n, OracleRowState *state)
{
    A *= oracle_score_error(p);
    state->rounding = sqrt((double)n) + 8 + p->drops;
    state->forward = A + state->rounding;
    state->output = n == 1 && A < INFINITY ? state->rounding : state->forward;
    state->g = state->forward + fabs(state->lse) + (p->cap == 0 ? 0 : 2 * A / p->cap);
}

void oracle_note_copy(const OraclePlan *p, int64_t h, const double *sum, double *before,
                      double *copied)
{
    const AttnShape *s = &p->args->shape;
    if (!p->copies || (h + 1) % (s->H / s->Hkv / p->copies) != 0)
        return;
    for (int64_t x = 0; x < s->d; x++) {
        copied[x] += p->u_copy * fabs(sum[x] - before[x]) + p->eta;
        before[x] = sum[x];
    }
}

/* --- memory of results, and of a thread that computes them -------------------------------------*/

static int array_new(OracleArray *a, int64_t count)
{
    a->count = count;
    a->value = calloc((size_t)count, sizeof(double));
    a->fixed = calloc((size_t)count, sizeof(double));
    a->per_c = calloc((size_t)count, sizeof(double));
    return a->value && a->fixed && a->per_c ? 0 : -1;
}

void oracle_array_free(OracleArray *a)
{
    free(a->value);
    free(a->fixed);
    free(a->per_c);
    free(a->copied);
    free(a->square);
}

int oracle_new_gradients(Oracle *o, const OraclePlan *p)
{
    const int64_t rows = o->shape.B * o->shape.H * o->rows.count;
    const int64_t count = o->kv_heads.count * o->keys.count * o->shape.d;
    int bad =
        array_new(&o->dQ, rows * o->shape.d) | array_new(&o->dK, count) | array_new(&o->dV, count);
    if (!p->copies)
        return bad;
    bad |= !(o->dK.copied = calloc((size_t)count, sizeof(double)));
    bad |= !(o->dV.copied = calloc((size_t)count, sizeof(double)));
    return bad;
}

int oracle_allocate(Oracle *o, OraclePlan *p, int backward, OracleArray of_tokens[2])
{
    const AttnShape *s = &o->shape;
    const int64_t rows = s->B * s->H * o->rows.count;
    int bad = !(o->tainted = calloc((size_t)(s->B * s->Hkv), 1)) |
              !(o->tainted_at = calloc((size_t)(s->B * s->Hkv * s->d), 1));
    bad |= array_new(&o->O, rows * s->d) | array_new(&o->lse, rows);
    if (p->bytes)
        bad |= !(o->lse.square = calloc((size_t)rows, sizeof(double)));
    if (!backward)
        return bad;
    if (!o->given)
        bad |= oracle_new_gradients(o, p);
    if (o->whole && p->norm_group) {
        bad |= array_new(&o->dwq, s->H * s->d);
        bad |= array_new(&o->dwk, s->Hkv * s->d);
        bad |= array_new(&of_tokens[0], s->B * s->H * s->Nq * s->d);
        bad |= array_new(&of_tokens[1], s->B * s->Hkv * s->Nk * s->d);
        p->dwq_of = &of_tokens[0];
        p->dwk_of = &of_tokens[1];
    }
    return bad;
}

void oracle_given_free(Oracle *with)
{
    oracle_array_free(&with->dQ);
    oracle_array_free(&with->dK);
    oracle_array_free(&with->dV);
    memset(with, 0, sizeof *with);
}

void oracle_free(Oracle *o)
{
    free(o->rows.index);
    free(o->keys.index);
    free(o->kv_heads.index);
    free(o->tainted);
    free(o->tainted_at);
    oracle_array_free(&o->O);
    oracle_array_free(&o->lse);
    oracle_array_free(&o->dQ);
    oracle_array_free(&o->dK);
    oracle_array_free(&o->dV);
    oracle_array_free(&o->dwq);
    oracle_array_free(&o->dwk);
    memset(o, 0, sizeof *o);
}

#define SCRATCH_N 12
#define SCRATCH_D 12

int64_t oracle_scratch_doubles(const AttnShape *s)
{
    const int64_t N = s->Nq > s->Nk ? s->Nq : s->Nk;
    return SCRATCH_N * N + SCRATCH_D * s->d;
}

OracleScratch oracle_scratch_divide(const AttnShape *s, double *memory)
{
    const int64_t N = s->Nq > s->Nk ? s->Nq : s->Nk, d = s->d;
    double *n = memory, *x = memory + SCRATCH_N * N;
    OracleScratch m;
    m.index = (int64_t *)(void *)n;
    m.dot = n + N, m.size = n + 2 * N, m.P = n + 3 * N, m.slope = n + 4 * N;
    m.w = n + 5 * N, m.wc = n + 6 * N, m.wf = n + 7 * N;
    m.v = n + 8 * N, m.vc = n + 9 * N, m.vf = n + 10 * N;
    m.row = x, m.row_size = x + d, m.row2 = x + 2 * d, m.row2_size = x + 3 * d;
    m.y = x + 4 * d, m.yc = x + 5 * d, m.yf = x + 6 * d;
    m.z = x + 7 * d, m.zc = x + 8 * d, m.zf = x + 9 * d;
    m.unsure = n + 11 * N, m.spare = x + 10 * d, m.spare2 = x + 11 * d;
    return m;
}

/* --- one key/value head and its query heads ----------------------------------------------------*/

/* Any dtype and stride becomes plain matrices in float64. With QK normalisation they hold the
 * normalised values, rounded to the dtype as the definition says, and beside them what may be off
 * in each. */

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

/* --- which rows, keys and heads of a big case are looked at ------------------------------------*/

/* Sampling keeps the check of a big timed run affordable. The shape says some of the rows (ends,
 * tile edges); a hash of the data and of a seed says 64 more. Each run has another seed, so a later
 * run finds what is wrong in a row that this one did not check. Reports name the seed;
 * ATTN_SAMPLE_SEED=<it> looks at the same rows again. */

#define SAMPLE_RANDOM 64

/* One step of the generator of the random inputs. */
static uint64_t next_hash(uint64_t x)
{
    return fill_mix(x + FILL_STEP);
}

uint64_t oracle_sample_seed(void)
{
    static uint64_t seed;
    const char *given = getenv("ATTN_SAMPLE_SEED");
    struct timespec now;
    if (given)
        return strtoull(given, NULL, 10);
    while (!seed) { /* once in a process */
        clock_gettime(CLOCK_REALTIME, &now);
        seed = next_hash((uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30) >> 32;
    }
    return seed;
}

/* From the first row of Q of every head. */
static uint64_t data_hash(const AttnArgs *a, uint64_t seed)
{
    uint64_t hash = next_hash(seed);
    for (int64_t h = 0; h < a->shape.H; h++)
        for (int64_t x = 0; x < a->shape.d; x++) {
            const float value = tensor_get(&a->Q, tensor_offset(&a->Q, 0, 0, h) + x);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            hash = next_hash(hash ^ bits);
        }
    return hash;
}

static int compare_index(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int sample_all(OracleSample *s, int64_t N)
{
    s->count = N;
    s->index = malloc(sizeof *s->index * (size_t)N);
    for (int64_t i = 0; s->index && i < N; i++)
        s->index[i] = i;
    return s->index ? 0 : -1;
}

/* Ends, the edges of the first tiles, of a middle one and of the last, and random indexes. */
static int sample_some(OracleSample *s, int64_t N, uint64_t hash)
{
    const int64_t edges[] = {0, 64, 128, 256, N / 2 / 64 * 64, (N - 1) / 64 * 64, N};
    const int edge_count = (int)(sizeof edges / sizeof *edges);
    int64_t kept = 0;
    s->count = 0;
    s->index = malloc(sizeof *s->index * (size_t)(3 * edge_count + SAMPLE_RANDOM));
    if (!s->index)
        return -1;
    for (int e = 0; e < edge_count; e++)
        for (int64_t i = edges[e] - 1; i <= edges[e] + 1; i++)
            if (i >= 0 && i < N)
                s->index[s->count++] = i;
    for (uint64_t r = 0; r < SAMPLE_RANDOM; r++)
        s->index[s->count++] = (int64_t)(next_hash(hash + r) % (uint64_t)N);
    qsort(s->index, (size_t)s->count, sizeof *s->index, compare_index);
    for (int64_t t = 0; t < s->count; t++)
        if (t == 0 || s->index[t] != s->index[t - 1])
            s->index[kept++] = s->index[t];
    s->count = kept;
    return 0;
}

/* Which groups get dK and dV: evenly spread, the first place from the hash. */
static int sample_groups(OracleSample *s, int64_t groups, int64_t count, uint64_t hash)
{
    count = count < 1 ? 1 : count > groups ? groups : count;
    if (sample_all(s, groups) != 0)
        return -1;
    for (int64_t t = 0; t < count; t++)
        s->index[t] = (t * groups + (int64_t)(hash % (uint64_t)groups)) / count % groups;
    s->count = count;
    qsort(s->index, (size_t)count, sizeof *s->index, compare_index);
    return 0;
}

int64_t oracle_sample_find(const OracleSample *s, int64_t index)
{
    const int64_t *at = bsearch(&index, s->index, (size_t)s->count, sizeof index, compare_index);
    return at ? at - s->index : -1;
}

/* Pair-channels that are visible, from 64 rows evenly spread: of one kv head and its queries. */
static double group_work(const OraclePlan *p)
{
    const AttnShape *s = &p->args->shape;
    const int64_t rows = s->Nq < 64 ? s->Nq : 64;
    int64_t seen = 0;
    for (int64_t t = 0; t < rows; t++)
        seen += oracle_seen(p, 1, t * (s->Nq - 1) / (rows > 1 ? rows - 1 : 1), NULL);
    return (double)(s->H / s->Hkv) * (double)seen / (double)rows * (double)s->Nq * (double)s->d;
}

int oracle_sample_choose(Oracle *o, const OraclePlan *p, int backward, const OracleLimits *limits)
{
    const AttnShape *s = &o->shape;
    const int64_t groups = s->B * s->Hkv;
    double work, budget = limits->groups;
    uint64_t hash;
    if (o->whole)
        return sample_all(&o->rows, s->Nq) ||
               (backward && (sample_all(&o->keys, s->Nk) || sample_all(&o->kv_heads, groups)));
    o->seed = oracle_sample_seed();
    hash = data_hash(p->args, o->seed);
    work = group_work(p);
    o->streamed = limits->given > 0 && work > limits->groups && !p->options;
    o->given = o->streamed && backward;
    if (sample_some(&o->rows, s->Nq, hash) != 0)
        return -1;
    if (!backward)
        return 0;
    if (sample_some(&o->keys, s->Nk, next_hash(hash)) != 0)
        return -1;
    if (o->given) { /* of a group only the sampled keys */
        work *= (double)o->keys.count / (double)s->Nk;
        budget = limits->given;
    }
    return sample_groups(&o->kv_heads, groups, (int64_t)(budget / (work + 1)), hash);
}

/* --- y = w^T M, and the sums of |w||M| that rounding bounds need -------------------------------*/

/* One function body compiled for several instruction sets, chosen at program start. By what a
 * processor can, not by its name: "arch=haswell" is that one processor, and no later one. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) &&                  \
    !defined(__clang__)
#define ORACLE_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define ORACLE_CLONES
#endif

#define TILE 256 /* columns whose sums stay in the first-level cache */

/* Four rows at a time: sums are loaded and stored once for four products. The loop has no calls and
 * no branches, so it becomes SIMD code for each of ORACLE_CLONES. b may be NULL. */
static inline __attribute__((always_inline)) void
add_four(const float *const r[4], const double w[4], const double wa[4], const double wb[4],
         int64_t n, double *restrict y, double *restrict a, double *restrict b)
{
    const float *restrict r0 = r[0], *restrict r1 = r[1], *restrict r2 = r[2], *restrict r3 = r[3];
    const double w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    const double a0 = wa[0], a1 = wa[1], a2 = wa[2], a3 = wa[3];
    const double b0 = wb[0], b1 = wb[1], b2 = wb[2], b3 = wb[3];
    if (b) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const double x0 = r0[c], x1 = r1[c], x2 = r2[c], x3 = r3[c];
            y[c] += w0 * x0 + w1 * x1 + (w2 * x2 + w3 * x3);
            a[c] += a0 * fabs(x0) + a1 * fabs(x1) + (a2 * fabs(x2) + a3 * fabs(x3));
            b[c] += b0 * fabs(x0) + b1 * fabs(x1) + (b2 * fabs(x2) + b3 * fabs(x3));
        }
    } else {
#pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            const double x0 = r0[c], x1 = r1[c], x2 = r2[c], x3 = r3[c];
            y[c] += w0 * x0 + w1 * x1 + (w2 * x2 + w3 * x3);
            a[c] += a0 * fabs(x0) + a1 * fabs(x1) + (a2 * fabs(x2) + a3 * fabs(x3));
        }
    }
}

/* value[c] += sum_t w[t] M[row t][c],  size_a[c] += sum_t wa[t] |M[row t][c]|, size_b likewise
 * (may be NULL), for columns first .. last-1. Row t is index[t], or t without an index. */
ORACLE_CLONES void oracle_weigh_rows(const OracleMatrix *M, const int64_t *index, int64_t count,
                                     int64_t first, int64_t last, const double *w, const double *wa,
                                     const double *wb, double *value, double *size_a,
                                     double *size_b)
{
    static const float zeros[TILE];
    for (int64_t c = first; c < last; c += TILE) {
        const int64_t n = last - c < TILE ? last - c : TILE;
        for (int64_t t = 0; t < count; t += 4) {
            const float *r[4];
            double w4[4], wa4[4], wb4[4];
            for (int64_t k = 0; k < 4; k++) {
                const int64_t at = t + k;
                const int past = at >= count; /* zeros: 0 times a row of M may be 0 * inf */
                r[k] = past ? zeros : M->at + (index ? index[at] : at) * M->cols + c;
                w4[k] = past ? 0 : w[at];
                wa4[k] = past ? 0 : wa[at];
                wb4[k] = past || !wb ? 0 : wb[at];
            }
            add_four(r, w4, wa4, wb4, n, value + c, size_a + c, size_b ? size_b + c : NULL);
        }
    }
}

/* dot[c] = sum_x w[x] M[x][c] and size[c] = sum_x |w[x]||M[x][c]| of columns first .. last-1. */
void oracle_dot_columns(const OracleMatrix *M, int64_t first, int64_t last, const double *w,
                        const double *size_w, double *dot, double *size)
{
    memset(dot + first, 0, sizeof *dot * (size_t)(last - first));
    memset(size + first, 0, sizeof *size * (size_t)(last - first));
    oracle_weigh_rows(M, NULL, M->rows, first, last, w, size_w, NULL, dot, size, NULL);
}

/* value [cols] = M[row][*], size = its absolute values */
void oracle_matrix_row(const OracleMatrix *M, int64_t row, double *value, double *size)
{
    for (int64_t c = 0; c < M->cols; c++) {
        value[c] = M->at[row * M->cols + c];
        size[c] = fabs(value[c]);
    }
}

float *oracle_matrix_place(OracleMatrix *M, float *memory, int64_t rows, int64_t cols)
{
    M->at = memory;
    M->rows = rows;
    M->cols = cols;
    return memory + rows * cols;
}

/* Fills M [N][d] and Mt [d][N] from one head of t. */
void oracle_matrix_load(OracleMatrix *M, OracleMatrix *Mt, const Tensor *t, int64_t b, int64_t h)
{
    for (int64_t n = 0; n < M->rows; n++) {
        float *row = M->at + n * M->cols;
        tensor_read_row(t, b, n, h, row);
        for (int64_t x = 0; x < M->cols; x++)
            Mt->at[x * M->rows + n] = row[x];
    }
}
