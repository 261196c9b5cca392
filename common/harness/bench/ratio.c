/* SPDX-License-Identifier: MIT
 *
 * ratio.c: rounds of FMA loop, sgemm, piece, sgemm. See ratio.h.
 */
#include "harness/bench/ratio.h"

#include "attn_config.h"
#include "harness/bench/fma_isa.h"
#include "units/exp_isa.h"

#include <math.h>
#include <string.h>

#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif
#ifdef HAVE_OPENMP
#include <omp.h>
#endif

#define FMA_MS 10.0 /* of the FMA loop in a round */

/* Which of our copies does the same instructions as OpenBLAS's sgemm? Its cores are named after the
 * first processor that a kernel was written for. */
static const FmaIsa *sgemm_isa(void)
{
#ifdef HAVE_OPENBLAS
    static const char *const names_512[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const names_256[] = {"Haswell", "Zen", "Excavator"};
    const char *core = openblas_get_corename();
    for (int i = 0; i < 3; i++) {
#ifdef HAVE_ISA_AVX512
        if (strcmp(core, names_512[i]) == 0)
            return &fma_isa_avx512;
#endif
#ifdef HAVE_ISA_AVX2
        if (strcmp(core, names_256[i]) == 0)
            return &fma_isa_avx2;
#endif
    }
    (void)names_512, (void)names_256;
#endif
    return &fma_isa_portable;
}

const char *ratio_isa(void)
{
    return sgemm_isa()->name;
}

const char *ratio_best_isa(const char **core)
{
    const char *best = exp_isa_choose(NULL)->name;
    *core = strcmp(best, "avx512") == 0 ? "SkylakeX" : strcmp(best, "avx2") == 0 ? "Haswell" : "";
    return best;
}

static double now_ms(int threads)
{
    return threads == 1 ? bench_thread_ms() : bench_now_ms();
}

static _Atomic float keep; /* written by all threads, so that no compiler may drop the loop */

static double fma_ms(const FmaIsa *isa, int64_t turns, int threads)
{
    const double start = now_ms(threads);
    if (threads == 1) {
        keep = isa->run(turns);
    } else {
#pragma omp parallel num_threads(threads)
        keep = isa->run(turns);
    }
    return now_ms(threads) - start;
}

/* How many turns fill FMA_MS one thread tells alone: several may first have to wake up. For that
 * reason too the better of two runs is taken; a peak is meant. */
double ratio_fma_gflops(int threads)
{
    const FmaIsa *isa = sgemm_isa();
    int64_t turns = 1 << 14;
    double ms = fma_ms(isa, turns, 1), again;
    turns = (int64_t)((double)turns * FMA_MS / (ms > 1e-3 ? ms : 1e-3)) + 1;
    ms = fma_ms(isa, turns, threads);
    again = fma_ms(isa, turns, threads);
    ms = again < ms ? again : ms;
    return (double)isa->flops_per_turn * (double)turns * threads / (ms * 1e6);
}

/* --- sgemm and piece ---------------------------------------------------------------------------*/

typedef struct Bench {
    const RatioPiece *piece;
    BenchSgemm sgemm;
} Bench;

/* One round with one number of threads; GFLOP/s. */
typedef struct Round {
    double fma, sgemm, piece, ms;
} Round;

static double sgemm_flops(const Bench *b)
{
    return 2.0 * b->sgemm.n * b->sgemm.n * (double)b->sgemm.n;
}

static double sgemm_gflops(const Bench *b, int threads)
{
    double start;
    bench_set_threads(threads);
    start = now_ms(threads);
    bench_sgemm_run(&b->sgemm);
    return sgemm_flops(b) / ((now_ms(threads) - start) * 1e6);
}

static void time_piece(const Bench *b, int threads, Round *round)
{
    const RatioPiece *piece = b->piece;
    const double least = sgemm_flops(b) / 4.0; /* a smaller piece runs several times in a row */
    const int repeats = piece->flops < least ? (int)(least / piece->flops) + 1 : 1;
    double start;
    if (piece->prepare)
        piece->prepare(piece->context);
    start = now_ms(threads);
    for (int i = 0; i < repeats; i++)
        piece->run(piece->context, threads);
    round->ms = (now_ms(threads) - start) / repeats;
    round->piece = piece->flops / (round->ms * 1e6);
}

static Round run_round(const Bench *b, int threads)
{
    Round round;
    double before;
    round.fma = ratio_fma_gflops(threads);
    before = sgemm_gflops(b, threads);
    time_piece(b, threads, &round);
    round.sgemm = 0.5 * (before + sgemm_gflops(b, threads));
    return round;
}

double ratio_scaling(double piece_all, double piece_one, double sgemm_all, double sgemm_one)
{
    return piece_all / piece_one / (sgemm_all / sgemm_one);
}

static void add(Samples *s, double value)
{
    if (s->count < BENCH_MAX_SAMPLES)
        s->ms[s->count++] = value;
}

/* With several threads: `one` is the same round on one thread. */
static void keep_round(RatioResult *to, const Round *all, const Round *one)
{
    add(&to->ms, all->ms);
    add(&to->ratio, all->piece / all->sgemm);
    add(&to->sgemm, all->sgemm);
    add(&to->fma, all->fma);
    add(&to->sgemm_of_fma, all->sgemm / all->fma);
    if (one)
        add(&to->scaling, ratio_scaling(all->piece, one->piece, all->sgemm, one->sgemm));
}

int ratio_measure(RatioResult *result, const RatioPiece *piece, int n, int rounds, int threads)
{
    Bench b = {.piece = piece};
    const int status = bench_sgemm_open(&b.sgemm, n);
    memset(result, 0, sizeof *result);
    if (status == 0) /* page faults, the thread pool, the clock: a round that nobody looks at */
        run_round(&b, threads);
    for (int i = 0; status == 0 && i < rounds; i++) {
        Round one = {0}, all;
        if (threads > 1)
            one = run_round(&b, 1);
        all = run_round(&b, threads);
        bench_progress("round %d of %d", i + 1, rounds);
        keep_round(result, &all, threads > 1 ? &one : NULL);
    }
    bench_progress_clear();
    bench_sgemm_close(&b.sgemm);
    return status;
}
