/* SPDX-License-Identifier: MIT
 *
 * test_softmax_merge: the merge of stage 02 and the CPU softmaxes built on it.
 *
 * - Random rows are cut into random pieces, and the pieces merged in random binary trees: whatever
 *   the tree, m is exact and l stays within the rounding of its depth.
 * - Identity, empty sets, -inf, +-1e4, NaN.
 * - Every CPU variant on rows that break careless code, in place and out of place, 1 and 3 threads,
 *   judged by rows_oracle; and rows_oracle itself fed with wrong answers.
 * - Accesses counted by the twins against the numbers of the lesson.
 */
#include <math.h>

#include "unit.h"

#include "harness/rows_oracle.h"
#include "problem_rows.h"
#include "units/softmax_state.h"

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

#define MAX_COLS 512

static SoftmaxState pushed(const float *x, int64_t n)
{
    SoftmaxState state = softmax_empty();
    for (int64_t c = 0; c < n; c++)
        state = softmax_push(state, x[c]);
    return state;
}

/* A random tree over x[0..n-1]: leaves are pieces of one to eight elements. */
static SoftmaxState random_tree(const float *x, int64_t n)
{
    if (n <= 8 && random_below(2))
        return pushed(x, n);
    if (n == 1)
        return pushed(x, 1);
    int64_t left = 1 + (int64_t)random_below((uint64_t)(n - 1));
    SoftmaxState a = random_tree(x, left);
    SoftmaxState b = random_tree(x + left, n - left);
    return random_below(2) ? softmax_merge(a, b) : softmax_merge(b, a);
}

TEST(test_random_trees)
{
    static const float spreads[] = {0.0f, 1.0f, 30.0f, 1e4f};
    float x[MAX_COLS];
    for (int trial = 0; trial < 2000; trial++) {
        int64_t n = 1 + (int64_t)random_below(MAX_COLS);
        double m = -INFINITY, l = 0.0;
        for (int64_t c = 0; c < n; c++) {
            float u = (float)random_below(1 << 20) / (1 << 19) - 1.0f;
            x[c] = random_below(5) ? u * spreads[trial % 4] : -INFINITY;
            m = x[c] > m ? x[c] : m;
        }
        for (int64_t c = 0; c < n; c++)
            l += m == -INFINITY ? 0.0 : exp((double)x[c] - m);
        SoftmaxState state = random_tree(x, n);
        assert_true((double)state.m == m);
        /* Terms near the maximum carry the sum: each of at most n merges rounds a few times. */
        assert_true(fabs((double)state.l - l) <= (8.0 * (double)n + 64.0) * 0x1p-24 * l);
    }
}

TEST(test_identity)
{
    SoftmaxState empty = softmax_empty(), a = {3.5f, 2.25f}, both;
    both = softmax_merge(empty, empty);
    assert_true(both.m == -INFINITY && both.l == 0.0f);
    assert_true(softmax_inverse(both) == 0.0f && softmax_lse(both) == -INFINITY);
    both = softmax_merge(a, empty);
    assert_true(both.m == a.m && both.l == a.l);
    both = softmax_merge(empty, a);
    assert_true(both.m == a.m && both.l == a.l);
    both = softmax_push(empty, -INFINITY);
    assert_true(both.m == -INFINITY && both.l == 0.0f);
    both = softmax_push(a, -INFINITY);
    assert_true(both.m == a.m && both.l == a.l);
}

TEST(test_extremes)
{
    SoftmaxState high = softmax_push(softmax_empty(), 1e4f);
    SoftmaxState low = softmax_push(softmax_empty(), -1e4f);
    SoftmaxState both = softmax_merge(low, high), nan;
    assert_true(both.m == 1e4f && both.l == 1.0f);
    both = softmax_merge(low, low);
    assert_true(both.m == -1e4f && both.l == 2.0f);
    nan = softmax_push(high, NAN);
    assert_true(isnan(nan.l));
    nan = softmax_push(softmax_empty(), NAN);
    assert_true(isnan(nan.l) && isnan(softmax_inverse(nan)));
}

typedef struct CpuVariant {
    const char *name;
    const RowsRung *rung, *counted;
} CpuVariant;

extern const RowsRung rows_v0_three_pass, rows_v0_three_pass_counted, rows_v1_online,
    rows_v1_online_counted, rows_v2_tiled_merge, rows_v2_tiled_merge_counted, rows_v3_simd_threads,
    rows_v3_simd_threads_counted;
static const CpuVariant variants[] = {
    {"v0", &rows_v0_three_pass, &rows_v0_three_pass_counted},
    {"v1", &rows_v1_online, &rows_v1_online_counted},
    {"v2", &rows_v2_tiled_merge, &rows_v2_tiled_merge_counted},
    {"v3", &rows_v3_simd_threads, &rows_v3_simd_threads_counted},
};
#define VARIANTS 4

static void run_and_judge(const CpuVariant *v, const float *x, int64_t rows, int64_t cols,
                          int threads, int in_place)
{
    size_t bytes = (size_t)(rows * cols) * sizeof(float);
    float *y = malloc(bytes), *lse = malloc((size_t)rows * sizeof *lse);
    SoftmaxArgs args = {x, y, lse, rows, cols, threads, NULL, NULL};
    memset(y, 0xFF, bytes);
    memset(lse, 0xFF, (size_t)rows * sizeof *lse);
    if (in_place) {
        memcpy(y, x, bytes);
        args.x = y;
    }
    v->rung->softmax(&args);
    RowsVerdict verdict = rows_judge(x, y, lse, rows, cols, 1);
    if (verdict.off)
        rows_explain(&verdict, v->name, stderr);
    assert_int_equal(verdict.off, 0);
    free(y);
    free(lse);
}

TEST(test_edge_rows)
{
    static const int64_t widths[] = {1, 2, 3, 63, 64, 65, 127, 129, 1000, 4096, 4097, 30000};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        float *x = malloc((size_t)(EDGE_ROWS * widths[w]) * sizeof *x);
        rows_fill_edges(x, widths[w]);
        for (int i = 0; i < VARIANTS; i++)
            for (int mode = 0; mode < 4; mode++)
                run_and_judge(&variants[i], x, EDGE_ROWS, widths[w], mode & 1 ? 3 : 1, mode >> 1);
        free(x);
    }
}

TEST(test_one_row_shared)
{
    int64_t cols = 100003; /* v3 cuts it for its threads */
    float *x = malloc((size_t)cols * sizeof *x);
    rows_fill(x, 1, cols, 7, FILL_OUTLIER, 1.0f, 1);
    for (int i = 0; i < VARIANTS; i++)
        run_and_judge(&variants[i], x, 1, cols, 5, 0);
    free(x);
}

TEST(test_nan_stays)
{
    for (int i = 0; i < VARIANTS; i++)
        for (int at = 0; at < 3; at++) {
            float x[3] = {-INFINITY, -INFINITY, -INFINITY}, y[3], lse;
            SoftmaxArgs args = {x, y, &lse, 1, 3, 1, NULL, NULL};
            x[at] = NAN;
            variants[i].rung->softmax(&args);
            assert_true(isnan(y[0]) && isnan(y[1]) && isnan(y[2]));
            assert_true(isnan(lse));
        }
}

TEST(test_counts)
{
    enum { NARROW = 4096 }; /* what v3_simd_threads keeps in the cache */
    /* accesses of an element of a narrow row (4096 columns) and of a wide one */
    static const int expected[VARIANTS][2] = {{4, 4}, {3, 3}, {3, 3}, {2, 3}};
    static const int64_t widths[2] = {NARROW, NARROW + 1};
    float *x = malloc(2 * (NARROW + 1) * sizeof *x);
    float *y = malloc(2 * (NARROW + 1) * sizeof *y);
    for (int i = 0; i < VARIANTS; i++)
        for (int w = 0; w < 2; w++) {
            SoftmaxArgs args = {x, y, NULL, 2, widths[w], 2, NULL, NULL};
            rows_fill(x, 2, widths[w], 3, FILL_NORMAL, 1.0f, 1);
            access_counts_reset();
            variants[i].counted->softmax(&args);
            AccessCounts seen = access_counts();
            assert_int_equal(seen.stores, 2 * widths[w]);
            assert_int_equal(seen.loads, 2 * widths[w] * (expected[i][w] - 1));
        }
    free(x);
    free(y);
}

/* The judge must object to what it exists to find. */
TEST(test_judge_objects)
{
    enum { COLS = 300 };
    float x[COLS], y[COLS], lse;
    SoftmaxArgs args = {x, y, &lse, 1, COLS, 1, NULL, NULL};
    rows_fill(x, 1, COLS, 11, FILL_NORMAL, 1.0f, 1);
    rows_v0_three_pass.softmax(&args);
    assert_int_equal(rows_judge(x, y, &lse, 1, COLS, 1).off, 0);

    float kept = y[17];
    y[17] = NAN;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).off > 0);
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).nonfinite > 0);
    y[17] = kept * 1.00005f;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).off > 0);
    y[17] = 0.0f;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).off > 0);
    y[17] = kept;
    lse *= 1.00005f;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).off > 0);

    rows_fill(x, 1, COLS, 11, FILL_NORMAL, 100.0f, 1);
    float sum = 0.0f; /* the unsafe form, exp without the maximum, on large scores */
    for (int c = 0; c < COLS; c++)
        sum += expf(x[c]);
    for (int c = 0; c < COLS; c++)
        y[c] = expf(x[c]) / sum;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).nonfinite > 0);

    for (int c = 0; c < COLS; c++) /* an empty row must be zeros and -inf */
        x[c] = -INFINITY, y[c] = 1.0f / COLS;
    lse = -INFINITY;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).off > 0);
    memset(y, 0, sizeof y);
    assert_int_equal(rows_judge(x, y, &lse, 1, COLS, 1).off, 0);
    lse = NAN;
    assert_true(rows_judge(x, y, &lse, 1, COLS, 1).off > 0);
}
