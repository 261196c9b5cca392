/* SPDX-License-Identifier: MIT
 *
 * test_run.c: does the runner see what variants do to memory, time and inputs? The variants here
 * misbehave in one way each. Also what rungs skip, and the positions of inputs_make.
 */
#include <math.h>
#include <time.h>

#include "cli_lines.h"

#include "alloc.h"
#include "attn_config.h"
#include "attn_pairs.h"
#include "harness/check/judge.h"
#include "harness/rung.h"

#ifdef HAVE_OPENMP
#include <omp.h>
#endif
#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

static int calls, backward_calls, dirty_entries, saw_own_output;

/* O and lse all `value`; counts how often an output was not NaN when the call began. */
static void fill_outputs(const AttnArgs *a, float value)
{
    const AttnShape *s = &a->shape;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t n = 0; n < s->Nq; n++)
            for (int64_t h = 0; h < s->H; h++) {
                const int64_t at = tensor_offset(&a->O, b, n, h);
                for (int64_t x = 0; x < s->d; x++) {
                    dirty_entries += !isnan(tensor_get(&a->O, at + x));
                    tensor_set(&a->O, at + x, value);
                }
                a->lse[(b * s->H + h) * s->Nq + n] = value;
            }
}

static AttnStatus counting(const AttnArgs *a)
{
    fill_outputs(a, (float)++calls);
    return ATTN_OK;
}

static AttnStatus counting_backward(const AttnArgs *a)
{
    backward_calls++;
    saw_own_output += a->lse[0] == (float)calls && tensor_get(&a->O, 0) == (float)calls;
    return ATTN_OK;
}

/* A variant of one deed. */
#define DEED(name, deed, status)                                                                   \
    static AttnStatus name(const AttnArgs *a)                                                      \
    {                                                                                              \
        (void)a;                                                                                   \
        (void)(deed);                                                                              \
        return status;                                                                             \
    }
DEED(writes_input, (tensor_set(&a->V, 0, 123.0f), 0), ATTN_OK)
DEED(writes_mask, ((uint8_t *)(uintptr_t)a->mask)[0] ^= 1, ATTN_OK)
DEED(writes_gap, (tensor_set(&a->O, a->shape.d, 1.0f), 0), ATTN_OK)
DEED(writes_before_lse, a->lse[-1] = 1.0f, ATTN_OK)
DEED(no_memory, 0, ATTN_NO_MEMORY)
DEED(skips, 0, ATTN_SKIP)

static AttnStatus uses_workspace(const AttnArgs *a)
{
    void *p = workspace_alloc(5000), *q = workspace_alloc(7000);
    fill_outputs(a, 1.0f);
    workspace_free(p);
    workspace_free(q);
    return ATTN_OK;
}

static void *leak;

static AttnStatus leaks(const AttnArgs *a)
{
    fill_outputs(a, 1.0f);
    leak = workspace_alloc(333);
    return ATTN_OK;
}

#ifndef __SANITIZE_ADDRESS__
static AttnStatus overruns_workspace(const AttnArgs *a)
{
    char *p = workspace_alloc(64);
    (void)a;
    p[64] = 1;
    workspace_free(p);
    return ATTN_OK;
}
#endif

static AttnStatus sleeps(const AttnArgs *a)
{
    const struct timespec pause = {0, 700000000};
    (void)a;
    calls++;
    nanosleep(&pause, NULL);
    return ATTN_OK;
}

static AttnStatus unsteady(const AttnArgs *a)
{
    fill_outputs(a, 1.0f);
    return ++calls == 3 ? ATTN_NO_MEMORY : ATTN_OK;
}

static int seen_threads, seen_omp, seen_blas;

static AttnStatus probes_threads(const AttnArgs *a)
{
    fill_outputs(a, 1.0f);
    seen_threads = seen_omp = seen_blas = a->threads;
#ifdef HAVE_OPENMP
    seen_omp = omp_get_max_threads();
#endif
#ifdef HAVE_OPENBLAS
    seen_blas = openblas_get_num_threads();
#endif
    return ATTN_OK;
}

static Variant variants[] = {
    {"v0_test", ON_CPU, DTYPES_ALL, counting, counting_backward, 0, "test"}};
static const Stage stage = {"unit", "00_unit", "?", 1, STAGE_HAS_BACKWARD, variants, 1};

typedef struct Run {
    Made made;
    RunResult out;
    int status;
} Run;

static void make(Run *r, const char *line)
{
    memset(r, 0, sizeof *r);
    expect_made(&r->made, line);
}

static void run(Run *r, AttnFn forward, const char *line)
{
    calls = backward_calls = dirty_entries = saw_own_output = 0;
    variants[0].forward = forward;
    make(r, line);
    silence(1);
    r->status = run_variant(&r->out, &variants[0], &r->made.problem, &r->made.cli.cases[0]);
    silence(0);
}

static void done(Run *r)
{
    result_free(&r->out);
    drop(&r->made);
    assert_int_equal(workspace_live(), 0);
}

static const char small[] = "-B 2 -N 5 -H 3 -d 4 --threads 1 --strides odd";

TEST(repetitions)
{
    Run r;
    run(&r, counting, small);
    assert_int_equal(r.status, EXIT_OK);
    assert_true(calls == 1 && r.out.forward.count == 1 && r.out.backward.count == 0 && r.out.ran);
    assert_true(r.out.inputs_intact && r.out.storage_intact && !r.out.failure[0]);
    done(&r);
    run(&r, counting,
        "-N 5 -H 1 -d 4 --threads 1 --bench --warmup 2 --iters 5 --backward --strides bhsd");
    assert_true(calls == 7 && r.out.forward.count == 5);
    assert_true(backward_calls == 7 && r.out.backward.count == 5);
    assert_int_equal(saw_own_output, 7);    /* backward reads the O and lse of its own forward */
    assert_int_equal(dirty_entries, 0);     /* outputs are poisoned before every run */
    assert_true(r.out.args.lse[0] == 7.0f); /* what is checked is the last timed run's output */
    done(&r);
}

TEST(a_slow_variant_stops)
{
    Run r;
    run(&r, sleeps, "-N 1 -H 1 -d 1 --threads 1 --bench --warmup 1 --iters 20");
    /* warm-up 0.7 s, then samples end at 1.4 s and 2.1 s: over the budget of 2 s */
    assert_true(r.out.forward.count >= 1 && r.out.forward.count <= 2);
    assert_true(r.out.forward.ms[0] >= 700.0);
    done(&r);
    /* a warm-up that eats the budget: still one sample, and no second warm-up */
    run(&r, sleeps, "-N 1 -H 1 -d 1 --threads 1 --bench --warmup 100 --iters 20");
    assert_int_equal(r.out.forward.count, 1);
    assert_true(calls >= 2 && calls <= 4);
    done(&r);
}

TEST(stray_writes)
{
    Run r;
    run(&r, writes_input, small);
    assert_true(!r.out.inputs_intact && r.out.storage_intact);
    done(&r);
    run(&r, writes_mask, "-N 5 -H 1 -d 4 --threads 1 --mask full");
    assert_true(!r.out.inputs_intact);
    done(&r);
    run(&r, writes_gap, small);
    assert_true(r.out.inputs_intact && !r.out.storage_intact);
    done(&r);
    run(&r, writes_before_lse, small);
    assert_true(!r.out.storage_intact);
    done(&r);
#ifndef __SANITIZE_ADDRESS__ /* which ends the program at such a write by itself */
    run(&r, overruns_workspace, small);
    assert_true(!r.out.storage_intact);
    done(&r);
#endif
}

TEST(stray_writes_are_wrong)
{
    AttnFn bad[] = {writes_input, writes_gap, counting};
    for (size_t i = 0; i < 3; i++) {
        Run r;
        Reference reference;
        Check check;
        run(&r, bad[i], small);
        assert_int_equal(reference_make(&reference, &r.made.problem, &r.made.cli.cases[0]),
                         EXIT_OK);
        silence(1);
        assert_int_equal(
            judge_result(&check, &reference, &r.out, &r.made.cli.cases[0], &variants[0]),
            EXIT_WRONG);
        silence(0);
        assert_false(check.pass);
        reference_free(&reference);
        done(&r);
    }
}

static void skips_with(const Rung *rung, AttnDevice device, const AttnArgs *a, const char *why)
{
    const char *sentence = rung_skips(rung, device, a);
    assert_true(why ? sentence && strstr(sentence, why) : !sentence);
}

/* The plain problem runs, anything else is skipped with the reason. */
TEST(what_rungs_skip)
{
    static const AttnSegment whole = {0, 8, 0, 3, 1}, odd = {0, 8, 0, 0, 2},
                             other = {0, 8, 1, 0, 1}, back = {0, 8, 0, 7, -1},
                             early = {0, 8, 0, 0, 1};
    static const AttnSegment two[] = {{0, 4, 0, 0, 1}, {4, 4, 0, 4, 1}};
    static const AttnOptions options = {.temperature = 1.0f};
    static const uint8_t mask[64];
    const Rung plain = {.name = "v9_rung"}, full = {.name = "v0_full", .flags = FULL},
               stream = {.name = "v3_stream", .flags = STREAM};
    AttnArgs right = {.shape = {1, 1, 1, 8, 8, 64}, .scale = 1.0f, .rule = {-1, 0}}, a;
    right.positions_q = attn_positions(&whole, 1);
    right.positions_k = attn_positions(&whole, 1);
    skips_with(&plain, ON_CUDA, &right, NULL);
    a = right, a.shape.d = 96;
    skips_with(&plain, ON_CUDA, &a, "skips every d but 64 and 128");
    skips_with(&plain, ON_CPU, &a, NULL);
    a = right, a.mask = mask;
    skips_with(&plain, ON_CPU, &a, "mask from memory");
    skips_with(&full, ON_CPU, &a, NULL);
    a = right, a.softcap = 2.0f;
    skips_with(&plain, ON_CPU, &a, "softcap");
    skips_with(&full, ON_CPU, &a, NULL);
    a = right, a.scale = 0.0f;
    skips_with(&plain, ON_CPU, &a, "skips a scale");
    a = right, a.positions_q = attn_positions(&other, 1);
    skips_with(&full, ON_CPU, &a, "skips positions");
    a = right, a.positions_k = attn_positions(&odd, 1);
    skips_with(&full, ON_CPU, &a, "skips positions");
    a = right, a.positions_q = attn_positions(&back, 1);
    skips_with(&full, ON_CPU, &a, "skips positions");
    a = right, a.positions_k = attn_positions(two, 2);
    skips_with(&full, ON_CPU, &a, "skips positions");
    a = right, a.options = &options;
    skips_with(&full, ON_CPU, &a, "skips the options");
    skips_with(&stream, ON_CPU, &right, "finite");
    a = right, a.rule = (AttnRule){3, 0};
    skips_with(&stream, ON_CPU, &a, NULL);
    a.rule.right = 1;
    skips_with(&stream, ON_CPU, &a, "key at their position");
    a.rule.right = -1;
    skips_with(&stream, ON_CPU, &a, "all but a causal mask");
    a.rule.right = 0, a.positions_q = attn_positions(&early, 1);
    skips_with(&stream, ON_CPU, &a, "key at their position");
}

TEST(workspace_is_counted)
{
    Run r;
    run(&r, uses_workspace, small);
    assert_int_equal(r.out.peak_bytes, 12000);
    assert_int_equal(r.out.leaked_bytes, 0);
    done(&r);
    run(&r, leaks, small);
    assert_int_equal(r.out.leaked_bytes, 333);
    assert_non_null(strstr(r.out.failure, "333"));
    workspace_free(leak);
    done(&r);
}

TEST(statuses)
{
    Run r;
    run(&r, no_memory, small);
    assert_int_equal(r.status, EXIT_RUNTIME);
    assert_true(r.out.status == ATTN_NO_MEMORY && !r.out.ran && r.out.failure[0]);
    done(&r);
    run(&r, skips, small);
    assert_int_equal(r.status, EXIT_OK);
    assert_true(r.out.status == ATTN_SKIP && !r.out.ran && r.out.failure[0]);
    done(&r);
    run(&r, unsteady, "-N 5 -H 1 -d 4 --threads 1 --bench --warmup 0 --iters 9");
    assert_int_equal(r.status, EXIT_RUNTIME); /* two good samples do not make a run */
    assert_false(r.out.ran);
    done(&r);
}

/* Two counts: whatever the machine's default is, one of them differs from it. */
TEST(threads_are_set)
{
    for (int threads = 1; threads <= 2; threads++) {
        char line[64];
        Run r;
        snprintf(line, sizeof line, "-N 3 -H 1 -d 2 --threads %d", threads);
        run(&r, probes_threads, line);
        assert_int_equal(r.status, EXIT_OK);
        assert_int_equal(seen_threads, threads);
        assert_int_equal(seen_omp, threads);
        assert_int_equal(seen_blas, threads);
        done(&r);
    }
}

TEST(positions)
{
    Run r;
    make(&r, "--seq-q 3 --seq-kv 8 -H 1 -d 2 --causal");
    assert_true(attn_position(r.made.problem.args.positions_q, 2).position == 7);
    assert_true(attn_sees(&r.made.problem.args, 0, 5) && !attn_sees(&r.made.problem.args, 0, 6));
    done(&r);
    make(&r, "--seq-q 3 --seq-kv 8 -H 1 -d 2 --mask causal-upper-left");
    assert_true(attn_sees(&r.made.problem.args, 0, 0) && !attn_sees(&r.made.problem.args, 0, 1));
    done(&r);
    make(&r, "--seq-q 8 --seq-kv 3 -H 1 -d 2 --window 0,0"); /* a window is lower-right too */
    assert_true(!attn_sees(&r.made.problem.args, 4, 0) && attn_sees(&r.made.problem.args, 5, 0));
    assert_true(attn_sees(&r.made.problem.args, 7, 2) && !attn_sees(&r.made.problem.args, 7, 1));
    done(&r);
}
