/* SPDX-License-Identifier: MIT
 *
 * v4_exp2: v3_register_tiles with powers of 2 instead of e, computed in vectors in this file.
 *
 * The softmax of v3 calls two functions of units/exp_rows.h for each row and expf for each alpha.
 * They are vector code, but for any argument: e^x of any x, exact to the last subnormal, NaN put
 * back. A softmax asks for less. Its arguments are s - m <= 0, and
 *
 *     e^(s - m) = 2^(s log2(e) - m log2(e))
 *
 * so log2(e) goes into the factor that multiplies Q anyway, and m is a maximum of scores in units
 * of log2. 2^x then takes three steps, 11 operations in all: x = k + r with k an integer and
 * |r| <= 1/2, a polynomial of degree 6 for 2^r, and k into the exponent bits. The sums stay in
 * vectors too; only lse is brought back to natural logarithms, once for each row.
 *
 * Prediction: for d = 64 there are 2 * 64 multiply-adds and one exponential to a score. With
 * 11 operations in place of about 25, and no calls, the softmax should cost a tenth of the time
 * instead of a quarter; d = 128 gains half of that.
 *
 * Instruction sets: Meson compiles this file once for each (units/vector.h). The copy for any
 * processor holds the choice (EACH_ISA) and registers the rung.
 *
 * Interface: the rung of stage 03 that brings powers of 2; float32.
 */
#include <math.h>
#include <string.h>

#include "problem.h"
#include "units/strips.h"

#define ROOM 16 /* at least STRIP, whole vectors */

/* 2^x for x <= 0, NaN for NaN; from -126.5 down 0. The rounder has 127 added: what it leaves in the
 * low bits is the exponent field of 2^k, and 0, the field of the number 0, for k = -127. */
static inline Vector exp2_negative(Vector x)
{
    const float rounder = 0x1.8p23f + 127.0f;
    Vector z, r, q;
    x = larger((Vector){0} - 127.0f, x);
    z = x + rounder;
    r = x - (z - rounder); /* exact, |r| <= 1/2 */
    q = 0x1.4bc274p-13f * r + 0x1.5fc048p-10f;
    q = q * r + 0x1.3b21c6p-7f;
    q = q * r + 0x1.c6ada6p-5f;
    q = q * r + 0x1.ebfbe6p-3f;
    q = q * r + 0x1.62e432p-1f;
    return (q * r + 1.0f) * (Vector)((VectorBits)z << 23);
}

static inline float largest_lane(Vector v)
{
    float most = v[0];
    for (int t = 1; t < LANES; t++)
        most = v[t] > most ? v[t] : most;
    return most;
}

static inline float sum_of_lanes(Vector v)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int t = 0; t < half; t++)
            v[t] += v[t + half];
    return v[0];
}

/* The online update of `rows` rows (at most ROOM): S [rows][ld], cols of it (pairs of vectors),
 * becomes P relative to the new maxima m [rows], l [rows] follows. alpha: what the old O is worth
 * now. Two vectors at a time, so that one does not wait for the other. */
static inline void update_rows(float *S, const int64_t ld, const int rows, int64_t cols, float *m,
                               float *l, float alpha[ROOM])
{
    float shift[ROOM];
    for (int row = 0; row < rows; row++) {
        const float *S_r = S + row * ld;
        Vector a = load(S_r), b = load(S_r + LANES);
        for (int64_t c = 2 * LANES; c < cols; c += 2 * LANES) {
            a = larger(a, load(S_r + c));
            b = larger(b, load(S_r + c + LANES));
        }
        const float tile_max = largest_lane(larger(a, b));
        const float m_new = m[row] > tile_max ? m[row] : tile_max;
        shift[row] = m_new == -INFINITY ? 0.0f : m_new; /* nothing seen: not -inf - -inf */
        alpha[row] = m[row] - shift[row];
        m[row] = m_new;
    }
    for (int row = 0; row < rows; row += LANES) { /* alpha of several rows at once */
        Vector v;
        memcpy(&v, alpha + row, sizeof v);
        v = exp2_negative(v);
        memcpy(alpha + row, &v, sizeof v);
    }
    for (int row = 0; row < rows; row++) {
        float *P_r = S + row * ld;
        Vector a = {0}, b = {0};
        for (int64_t c = 0; c < cols; c += 2 * LANES) {
            const Vector p0 = exp2_negative(load(P_r + c) - shift[row]);
            const Vector p1 = exp2_negative(load(P_r + c + LANES) - shift[row]);
            store(P_r + c, p0);
            store(P_r + c + LANES, p1);
            a += p0;
            b += p1;
        }
        l[row] = alpha[row] * l[row] + sum_of_lanes(a + b);
    }
}

/* --- one strip, one block ----------------------------------------------------------------------*/

/* What a strip sees of keys j .. j+BLOCK_KEYS-1: S, P, and O = alpha O + P V. */
static void attend_strip(const Problem *p, const Block *block, const Packed *packed, int64_t i,
                         int64_t r, int64_t j)
{
    const int64_t from = first_key(p, (int)i), first = from > j ? from : j;
    const int64_t last = smaller(i + STRIP, p->Nq) - 1;
    const int64_t end = smaller(end_key(p, (int)last), j + BLOCK_KEYS);
    const int64_t start = first / PANEL * PANEL, cols = round_up(end - start, PANEL);
    float alpha[ROOM] = {0};
    if (first >= end)
        return;
    score_strip(block, packed, p->d, r, start, cols);
    for (int row = 0; row < STRIP; row++) { /* rows of a strip see different keys */
        const int q = (int)i + row;
        hide_keys(block->S + row * S_ROW, first_key(p, q) - start, end_key(p, q) - start, cols);
    }
    update_rows(block->S, S_ROW, STRIP, cols, block->m_i + r, block->l_i + r, alpha);
    add_values(block, packed, r, alpha, block->S + first - start, first, end);
}

static void attend_block(const Problem *p, const Block *block, const Packed *packed, int b, int h,
                         int64_t i)
{
    const int64_t rows = smaller(BLOCK_ROWS, p->Nq - i), ld = p->H * p->d;
    const int64_t query = query_row(p, b, h, (int)i);
    const int64_t end = end_key(p, (int)(i + rows - 1)); /* later queries see later keys */
    start_block(block, (const float *)p->Q + query, ld, rows, p->d, p->scale * (float)M_LOG2E);
    for (int64_t j = first_key(p, (int)i) / BLOCK_KEYS * BLOCK_KEYS; j < end; j += BLOCK_KEYS)
        for (int64_t r = 0; r < rows; r += STRIP)
            attend_strip(p, block, packed, i + r, r, j);
    finish_block(block, (float *)p->O + query, ld, p->lse + lse_row(p, b, h, (int)i), rows, p->d,
                 (float)M_LN2);
}

/* --- all of it ---------------------------------------------------------------------------------*/

/* Keys j .. of kv head `kv` (batch * Hkv + head). */
static void pack_keys(const Problem *p, const Packed *to, int64_t kv, int64_t j)
{
    const int64_t key = key_row(p, (int)(kv / p->Hkv), (int)(kv % p->Hkv), (int)j);
    pack_panel(to, (const float *)p->K + key, (const float *)p->V + key, p->Hkv * p->d, p->d, j,
               p->Nk - j);
}

static void attend(const Problem *p)
{
    const int threads = p->threads, group = p->H / p->Hkv;
    const int64_t kv_heads = p->B * p->Hkv, panels = round_up(p->Nk, PANEL) / PANEL;
    const int64_t blocks = (p->Nq + BLOCK_ROWS - 1) / BLOCK_ROWS, tasks = p->B * p->H * blocks;
    float *heads = p->work, *of_threads = heads + kv_heads * packed_floats(p->Nk, p->d, PANEL);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < kv_heads * panels; t++) {
        const Packed packed = packed_head(heads, t / panels, p->Nk, p->d);
        pack_keys(p, &packed, t / panels, t % panels * PANEL);
    }
    /* Neighbouring blocks go to different threads: under a causal mask the last ones see more. */
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int thread = 0; thread < threads; thread++) {
        const Block block =
            place_block(of_threads + thread * block_floats(p->d, PANEL, STRIP), p->d);
        for (int64_t t = thread; t < tasks; t += threads) {
            const int64_t head = t / blocks; /* batch * H + h; its kv head is head / group */
            const Packed packed = packed_head(heads, head / group, p->Nk, p->d);
            attend_block(p, &block, &packed, (int)(head / p->H), (int)(head % p->H),
                         t % blocks * BLOCK_ROWS);
        }
    }
}

/* Enough for the widest vectors. */
static int64_t work(const Problem *p, int backward)
{
    (void)backward;
    return (int64_t)sizeof(float) * (p->B * p->Hkv * packed_floats(p->Nk, p->d, MOST_PANEL) +
                                     p->threads * block_floats(p->d, MOST_PANEL, MOST_STRIP));
}

/* For the byte model: panels with AVX2. */
static Tiles tiles(const Problem *p)
{
    (void)p;
    return (Tiles){BLOCK_ROWS, 16};
}

EACH_ISA(flash_forward_v4_exp2, attend, forward)

RUNG(flash_forward, v4_exp2, "powers of 2 in vectors, log2(e) in Q", F32, forward, NULL, work,
     tiles, 0);
