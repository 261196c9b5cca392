/* SPDX-License-Identifier: MIT
 *
 * test_ring_streams: no order of a GPU's streams gives another result.
 *
 * The host code of stage 06's ranks on a GPU (06_ring_burst/runtime/cuda/) runs here as it is,
 * over a GPU that is pretended (pretend_cuda/pretend_gpu.h): work is done late and in odd orders,
 * and two uses of the same memory that nothing keeps in order are a failure, whether or not they
 * have done harm.
 *
 * Whole tasks: every method, problems of ring_method_case.h, forward and backward. Results are
 * right, and have the same bits in every order (but for a dQ to which two streams add).
 *
 * RING_STREAM_SEEDS=N: so many orders of each task.
 */
#include <math.h>

#include "pretend_cuda/pretend_gpu.h"
#include "ring_method_case.h"
#include "runtime/cuda/backend_cuda.h"

#include "attention/backward/backward_library.h"

static int seeds(void)
{
    const char *wanted = getenv("RING_STREAM_SEEDS");
    return wanted ? atoi(wanted) : quick() ? 1 : 2;
}

typedef struct Task {
    const char *name;
    Case *c;
    const Oracle *oracle;
    RingSetup setup;
    const RingBackend *backend;
    int baseline_calls;
    int seed; /* the first one */
} Task;

static const char *task_words(const Task *task, int seed)
{
    static char words[256];
    snprintf(words, sizeof words, "%s, %s, %s, %s, %d ranks, %d nodes, partials %s, seed %d",
             task->name, ring_method_name(task->setup.method), ring_layout_name(task->setup.layout),
             dtype_name(task->c->args.Q.dtype), task->setup.ranks, task->setup.nodes,
             dtype_name(task->setup.partials), seed);
    return words;
}

/* The seed is also that of the ranks' turns. Rounds before the timed one, and marks in the streams
 * for a trace, in some of them. */
static void run_once(const Task *task, const RingPlan *plan, int seed)
{
    static RingReport report;
    double ms[4];
    const RingTask ring_task = {.plan = plan,
                                .args = &task->c->args,
                                .warmup = seed % 2,
                                .rounds = 1,
                                .trace = seed % 4 / 2,
                                .forward_ms = &ms[0],
                                .backward_ms = &ms[1],
                                .baseline_calls = task->baseline_calls,
                                .baseline_ms = &ms[2],
                                .baseline_backward_ms = &ms[3]};
    const Storage *results[] = {&task->c->O, &task->c->dQ, &task->c->dK, &task->c->dV};
    char words[256];
    for (int n = 0; n < 4; n++)
        tensor_poison(results[n]);
    pretend_gpu_begin((uint64_t)seed);
    const int status = ring_world_sim(&ring_task, task->backend, &report);
    const int problems = pretend_gpu_end(words);
    if (status || problems)
        fail_msg("%s: %d problems; %s", task_words(task, seed), problems,
                 status ? report.failure : words);
    ring_report_free(&report);
    assert_int_equal(0, workspace_live());
}

/* Two streams add to dQ in whatever order. */
static int dQ_varies(const Task *task)
{
    const RingMethod method = task->setup.method;
    const int one_stream =
        task->setup.deterministic || task->c->args.mask || task->c->args.Q.dtype == ATTN_F32;
    return !one_stream && (method == RING_METHOD_RING || method == RING_METHOD_ALLGATHER ||
                           method == RING_METHOD_RING_DOUBLE);
}

static int tried[RING_METHODS];

/* What the method cannot do (heads of Ulysses) is passed over. */
static void try_task(Task task)
{
    static RingPlan plan;
    Bits first = {0};
    char why[256];
    task.backend = task.backend ? task.backend : &ring_backend_cuda;
    flash_backward_set_deterministic(task.setup.deterministic);
    for (int n = 0; n < seeds(); n++) {
        const int seed = task.seed + n;
        task.setup.adversarial = 1;
        task.setup.schedule_seed = (uint64_t)seed;
        if (ring_plan_make(&plan, &task.c->args, &task.setup, why)) {
            assert_non_null(strstr(why, "heads"));
            return;
        }
        run_once(&task, &plan, seed);
        ring_plan_free(&plan);
        if (!case_agrees(task.c, task.oracle, 1, 4, task.name))
            fail_msg("%s", task_words(&task, seed));
        Bits bits = bits_of(task.c);
        bits.dQ = dQ_varies(&task) ? first.dQ : bits.dQ;
        if (n == 0)
            first = bits;
        if (!bits_equal(first, bits))
            fail_msg("%s: other bits than with seed %d", task_words(&task, seed), task.seed);
    }
    flash_backward_set_deterministic(0);
    tried[task.setup.method]++;
}

/* Rank 0's queries come behind all keys that their window reaches; some ranks see no key at all. */
static const MethodCase blind = {"blind", {1, 8, 4, 48, 24, 8}, ATTN_MASK_NONE, 9, 8, 0, 0, 0};

static const MethodCase *problem(int n)
{
    return n < METHOD_CASES ? &method_cases[n] : &blind;
}

static int nodes_of(RingMethod method, int ranks)
{
    return is_double(method) && ranks % 2 == 0 ? 2 : 1;
}

/* Each method has one of the dtypes; ring, which has streams for 16 bits, has all. */
TEST(test_every_order_is_right)
{
    static const int ranks[] = {4, 3, 6, 2};
    for (int n = 0; n <= METHOD_CASES; n += quick() ? 2 : 1)
        for (int dtype = 0; dtype < 3; dtype++) {
            Case *c = method_case_new(problem(n), (AttnDtype)dtype);
            Oracle oracle = oracle_of(&c->args, 1, 1);
            for (int m = RING_METHOD_RING; m < RING_METHODS; m++) {
                const RingMethod method = (RingMethod)m;
                const int G = ranks[(quick() ? n / 2 + m : n + m) % 4];
                RingSetup setup = method_setup(method, (RingLayout)((n / 4 + m) % RING_LAYOUTS), G,
                                               nodes_of(method, G));
                setup.deterministic = 0;
                if (m == RING_METHOD_RING || (n + m) % 3 == dtype)
                    try_task((Task){problem(n)->name, c, &oracle, setup, NULL, 0, n + 5 * m});
            }
            oracle_free(&oracle);
            case_free(c);
        }
    for (int m = RING_METHOD_RING; m < RING_METHODS; m++)
        assert_true(tried[m] > 5);
}

/* Sums that travel are rounded on their way, in the stream of their half. */
TEST(test_bf16_partials)
{
    static const int problems[] = {METHOD_CASES, 1, 4, 6, 7, 10};
    for (int n = 0; n < 6; n++) {
        Case *c = method_case_new(problem(problems[n]), n % 2 ? ATTN_F16 : ATTN_BF16);
        const double u = 0x1p-8, roundings = 8;
        Oracle oracle;
        assert_int_equal(
            0, oracle_run_reference(&oracle, &c->args, 1, 1,
                                    (OracleRoundings){roundings * u * pow(1 + u, roundings), 0}));
        for (int m = RING_METHOD_RING; m < RING_METHODS; m++) {
            RingSetup setup = method_setup((RingMethod)m, (RingLayout)(n % RING_LAYOUTS), 4,
                                           nodes_of((RingMethod)m, 4));
            setup.deterministic = 0;
            setup.partials = ATTN_BF16;
            try_task((Task){problem(problems[n])->name, c, &oracle, setup, NULL, 0, n + 5 * m});
        }
        oracle_free(&oracle);
        case_free(c);
    }
}

/* One stream; ranks on GPUs of their own; the local baseline behind each round. */
TEST(test_other_ways)
{
    static const int problems[] = {0, 1, 5, METHOD_CASES};
    for (int n = 0; n < 4; n++) {
        Case *c = method_case_new(problem(problems[n]), n % 2 ? ATTN_BF16 : ATTN_F16);
        RingSetup setup = method_setup(RING_METHOD_RING, RING_CONTIGUOUS, 4, 1);
        Oracle oracle = oracle_of(&c->args, 1, 1);
        try_task((Task){"one stream", c, &oracle, setup, NULL, 0, n});
        setup.deterministic = 0;
        try_task((Task){"own GPUs", c, &oracle, setup, &ring_backend_gpus, 0, n});
        try_task((Task){"baseline", c, &oracle, setup, NULL, 2, n});
        oracle_free(&oracle);
        case_free(c);
    }
}

/* All keys are another sequence's: a state is begun and ended, and no kernel has been there. */
TEST(test_nobody_sees_a_key)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        Case *c = method_case_new(problem(dtype), (AttnDtype)dtype);
        c->segments_k[0].sequence = 1;
        Oracle oracle = oracle_of(&c->args, 1, 1);
        for (int m = RING_METHOD_RING; m < RING_METHODS; m++)
            try_task((Task){"nothing to see", c, &oracle,
                            method_setup((RingMethod)m, RING_ZIGZAG, 4, nodes_of((RingMethod)m, 4)),
                            NULL, 0, m});
        oracle_free(&oracle);
        case_free(c);
    }
}
