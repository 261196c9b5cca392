/* SPDX-License-Identifier: MIT
 *
 * steps.c: what a step page asks of the suite's C code. Compiled to WebAssembly with the rungs,
 * each of which is compiled behind watch.h. The browser has one thread.
 *
 * The log: float32 numbers, one line behind the other; addresses of texts as numbers (below 2^24):
 *
 *     numbers, op, name, file, function, line, rows, cols, buffer, offset, i, ni, j, nj,
 *     loads, stores, then rows * cols values
 *
 * buffer, offset: where in slow memory a moved tile lies (number of a buffer, or -1).
 *
 * Interface (exports; numbers are float32 and int32):
 * - step_case: sizes, band, seed; fills Q, K, V, dO with the native program's random numbers.
 * - step_buffer: where Q K V dO O lse dQ dK dV, the work space, visits and the log lie.
 * - step_run: a rung's forward or backward pass. step_rows: the softmax of a query's row.
 *   Both return the length of the log, or -1.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/io/fill.h"
#include "watch.h"

#define EXPORT(name) __attribute__((export_name(#name)))
enum { MOST = 1024, MOST_D = 16, LOG = 1 << 20, HEAD = 16, WORK = 1 << 18 };
enum { Q, K, V, DO, O, LSE, DQ, DK, DV, WORK_SPACE, BUFFERS };

/* The rungs that pages show, in the order that pages.js knows. */
#define RUNGS(X)                                                                                   \
    X(naive, v0_loops)                                                                             \
    X(flash_forward, v0_fa1_tiles)                                                                 \
    X(flash_forward, v1_fa2_rows)                                                                  \
    X(flash_backward, v0_fa1_backward)                                                             \
    X(flash_backward, v1_fa2_backward)                                                             \
    X(sliding_window, v1_online_block)                                                             \
    X(sliding_window, v3_streaming)
#define DECLARE(stage, name) extern const Rung rung_##stage##_##name;
#define ADDRESS(stage, name) &rung_##stage##_##name,
RUNGS(DECLARE)
static const Rung *const rungs[] = {RUNGS(ADDRESS)};
extern const RowsRung rows_v1_online, rows_v2_tiled_merge;

static float buffers[BUFFERS - 1][MOST * MOST_D], work[WORK] __attribute__((aligned(64)));
static float lines[LOG];
static int64_t used, tile[4], visits[MOST];
static Problem problem;
const Problem *watch_problem = &problem;
const FastMemory *watch_fast;
int watch_query, watch_rows = 64, watch_keys = 64;

void watch_clear(void)
{
    used = 0;
}

int watch_length(void)
{
    return (int)used;
}

void watch_tile(int64_t i, int64_t rows, int64_t j, int64_t cols)
{
    memcpy(tile, (int64_t[]){i, rows, j, cols}, sizeof tile);
}

static float *buffer_at(int32_t buffer)
{
    return buffer == WORK_SPACE ? work : buffers[buffer];
}

void watch_values(int op, WatchAt at, const float *slow, const float *values, int64_t rows,
                  int64_t cols, int64_t ld)
{
    const int64_t numbers = HEAD + rows * cols;
    int buffer = slow ? BUFFERS - 1 : -1;
    if (used + numbers > LOG)
        return;
    while (buffer >= 0 &&
           !(slow >= buffer_at(buffer) &&
             slow < buffer_at(buffer) + (buffer == WORK_SPACE ? WORK : MOST * MOST_D)))
        buffer--;
    const int64_t offset = buffer < 0 ? 0 : slow - buffer_at(buffer);
    const int64_t loads = watch_fast ? watch_fast->loads : 0;
    const int64_t stores = watch_fast ? watch_fast->stores : 0;
    const intptr_t name = (intptr_t)at.name, file = (intptr_t)at.file;
    const int64_t head[HEAD] = {numbers, op,      name,    file,    (intptr_t)at.function,
                                at.line, rows,    cols,    buffer,  offset,
                                tile[0], tile[1], tile[2], tile[3], loads,
                                stores};
    for (int k = 0; k < HEAD; k++)
        lines[used + k] = (float)head[k];
    for (int64_t r = 0; r < rows; r++)
        memcpy(lines + used + HEAD + r * cols, values + r * ld, (size_t)cols * sizeof *values);
    used += numbers;
}

/* The harness's counters, which rungs report to: the log has them already. */
void access_counts_add(int64_t loads, int64_t stores)
{
    (void)loads, (void)stores;
}

EXPORT(step_buffer) void *step_buffer(int32_t buffer)
{
    return buffer == BUFFERS ? visits : buffer > BUFFERS ? (void *)lines : buffer_at(buffer);
}

/* from, to: the band (problem.h). sram, Br, Bc: tile sizes of stage 03, of 04 and 05. -1: too
 * large. */
EXPORT(step_case)
int32_t step_case(int32_t N, int32_t d, int32_t from, int32_t to, int32_t seed, int32_t sram,
                  int32_t Br, int32_t Bc)
{
    if (N < 1 || N > MOST || d < 1 || d > MOST_D || Br < 1 || Bc < 1 || Br > 64 || Bc > 64)
        return -1;
    problem = (Problem){.Q = buffers[Q], .K = buffers[K], .V = buffers[V], .dO = buffers[DO]};
    problem.O = buffers[O], problem.lse = buffers[LSE], problem.work = work;
    problem.dQ = buffers[DQ], problem.dK = buffers[DK], problem.dV = buffers[DV];
    problem.B = problem.H = problem.Hkv = problem.threads = 1;
    problem.Nq = problem.Nk = N, problem.d = d, problem.dtype = F32;
    problem.scale = 1.0f / sqrtf((float)d), problem.from = from, problem.to = to;
    problem.sram = sram, problem.block_q = Br, problem.block_kv = Bc, problem.visits = visits;
    watch_rows = Br, watch_keys = Bc;
    for (int t = Q; t <= DO; t++)
        for (int e = 0; e < N * d; e++)
            buffers[t][e] = fill_value((uint64_t)seed, t + FILL_Q, (uint64_t)e, FILL_NORMAL);
    return 0;
}

static int32_t pass(const Rung *rung, int backward)
{
    void (*const f)(const Problem *) = backward ? rung->backward : rung->forward;
    if (rung->work && rung->work(&problem, backward) > (int64_t)sizeof work)
        return -1;
    for (int e = 0; e < WORK; e++)
        work[e] = NAN;
    used = 0, watch_fast = NULL;
    memset(tile, 0, sizeof tile);
    f(&problem);
    return (int32_t)used;
}

/* What backward needs of a forward pass the first rung makes. */
EXPORT(step_run) int32_t step_run(int32_t rung, int32_t backward)
{
    if (backward && pass(rungs[0], 0) < 0)
        return -1;
    return pass(rungs[rung], backward);
}

/* The scores of query i are the row; y stands in O, its lse in LSE. */
EXPORT(step_rows) int32_t step_rows(int32_t tree, int32_t i)
{
    const int N = problem.Nk;
    const SoftmaxArgs args = {.x = buffers[DQ],
                              .y = buffers[O],
                              .lse = buffers[LSE],
                              .rows = 1,
                              .cols = N,
                              .threads = 1,
                              .work = work};
    const ScoreRule rule = {problem.scale, 0, problem.from, problem.to, NULL, N};
    score_block(&rule, buffers[Q] + (int64_t)i * problem.d, problem.d, i, 1, buffers[K], problem.d,
                0, N, problem.d, buffers[DQ], N);
    used = 0;
    (tree ? rows_v2_tiled_merge : rows_v1_online).softmax(&args);
    return (int32_t)used;
}
