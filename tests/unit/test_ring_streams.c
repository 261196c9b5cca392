/* SPDX-License-Identifier: MIT
 *
 * test_ring_streams: no order of a GPU's streams gives another result.
 *
 * The host code of stage 06's ranks on a GPU (06_ring_burst/cuda/space_*.cu) runs here as it is,
 * over a GPU that is pretended (pretend_cuda/pretend_gpu.h): work is done late and in odd orders,
 * and two uses of the same memory that nothing keeps in order are a failure, whether or not they
 * have done harm.
 *
 * - Plays of two lanes, each with an order between them that once was missing.
 * - Whole jobs: every method, problems of ring_method_case.h, forward and backward. Results are
 *   right, and have the same bits in every order (but for dQ to which two lanes add).
 *
 * RING_STREAM_SEEDS=N: so many orders of each job.
 */
#include "cuda/space_cuda.h"
#include "pretend_cuda/pretend_gpu.h"
#include "ring_method_case.h"

#include "flash_backward.h"

static int seeds(int usual)
{
    const char *wanted = getenv("RING_STREAM_SEEDS");
    return wanted ? atoi(wanted) : sim_quick() ? 1 : usual;
}

/* --- plays -------------------------------------------------------------------------------------*/

enum { PIECE = 64 }; /* bytes */

static const PlainRing *rooms(const RingRank *r)
{
    return r->method;
}

static int copy_in(RingRank *r, int lane, void *to, const void *from)
{
    ring_lane(r, lane);
    return ring_copy(r, to, PIECE, from, PIECE, PIECE, 1);
}

/* K comes while lane 1 has no work; who asks for something in both lanes counts on it. */
static int message_for_lane_1(RingRank *r)
{
    RingExchange x = {0};
    if (ring_step(r, 0) || ring_send(r, &x, 1 - r->rank, RING_K, r->K, PIECE) ||
        ring_receive(r, &x, 1 - r->rank, RING_K, rooms(r)->K[0], PIECE) || ring_start(r, &x))
        return -1;
    ring_lane(r, 1);
    return ring_wait(r, &x) ? -1 : copy_in(r, RING_BOTH_LANES, rooms(r)->V[0], rooms(r)->K[0]);
}

/* Sums of either lane, rounded where they stand. */
static int narrowing_in_both(RingRank *r)
{
    if (r->workspace_bytes < PIECE)
        return ring_fail(r, "this play needs a workspace");
    for (int lane = 0; lane < RING_LANES; lane++) {
        void *p = lane ? rooms(r)->V[0] : rooms(r)->K[0];
        ring_lane(r, lane);
        if (ring_zero(r, p, PIECE) || ring_narrow(r, p, PIECE / 4, ATTN_BF16))
            return -1;
    }
    return 0;
}

/* A piece that one lane has written is freed in both, and the other lane gets the next one. */
static int free_and_use(RingRank *r, int first)
{
    void *p = ring_alloc(r, PIECE, "a piece"), *next;
    if (!p || copy_in(r, first, p, r->K))
        return -1;
    ring_lane(r, RING_BOTH_LANES);
    ring_free(r, p, PIECE);
    next = ring_alloc(r, PIECE, "the next piece");
    if (next != p)
        return ring_fail(r, "this play needs the same piece twice");
    if (copy_in(r, 1 - first, next, r->V))
        return -1;
    ring_lane(r, RING_BOTH_LANES);
    ring_free(r, next, PIECE);
    return 0;
}

static int free_behind_lane_0(RingRank *r)
{
    return free_and_use(r, 0);
}

static int free_behind_lane_1(RingRank *r)
{
    return free_and_use(r, 1);
}

/* Both lanes read zeros that both were asked to have. */
static int zeros_for_both(RingRank *r)
{
    const PlainRing *ring = rooms(r);
    return ring_zero(r, ring->K[0], PIECE) || copy_in(r, 0, ring->V[0], ring->K[0]) ||
                   copy_in(r, 1, ring->V[1], ring->K[0])
               ? -1
               : 0;
}

/* So many other zeros that the first ones have to be written, in lane 0; lane 1 reads them. */
static int zeros_pushed_out(RingRank *r)
{
    const PlainRing *ring = rooms(r);
    if (ring_zero(r, ring->K[0], PIECE))
        return -1;
    ring_lane(r, 0);
    for (int n = 0; n < CUDA_ZEROS; n++)
        if (ring_zero(r, (char *)ring->K[1] + 4 * n, 4))
            return -1;
    return copy_in(r, 1, ring->V[1], ring->K[0]);
}

static int (*on_stage)(RingRank *r);

static int play_forward(RingRank *r)
{
    const int status = on_stage(r);
    ring_lane(r, RING_BOTH_LANES);
    return status;
}

/* Over two ranks, whose results nobody looks at. */
static void play(int (*scene)(RingRank *r))
{
    const RingMethodTable table = {plain_open, play_forward, NULL, plain_close};
    const AttnShape shape = {1, 4, 4, 8, 8, 8};
    on_stage = scene;
    for (int seed = 0; seed < seeds(4); seed++) {
        const RingSetup setup = sim_setup(2, RING_CONTIGUOUS);
        SimCase *c = sim_case(case_new(shape, ATTN_BF16, LAYOUT_BSHD, 1), &setup, &table);
        char words[256];
        c->plan.backward = 0;
        pretend_gpu_begin((uint64_t)seed);
        const int status = ring_world_sim(&c->job, &ring_space_cuda, &c->report);
        const int problems = pretend_gpu_end(words);
        if (status || problems)
            fail_msg("%s", status ? c->report.failure : words);
        sim_case_free(c);
        assert_int_equal(0, workspace_live());
    }
}

static void test_message_for_lane_1(void **unused)
{
    (void)unused;
    play(message_for_lane_1);
}

static void test_narrowing_in_both_lanes(void **unused)
{
    (void)unused;
    play(narrowing_in_both);
}

static void test_free_in_both_lanes(void **unused)
{
    (void)unused;
    play(free_behind_lane_0);
    play(free_behind_lane_1);
}

static void test_zeros_for_both_lanes(void **unused)
{
    (void)unused;
    play(zeros_for_both);
    play(zeros_pushed_out);
}

/* --- whole jobs --------------------------------------------------------------------------------*/

typedef struct Job {
    const char *name;
    Case *c;
    const Oracle *oracle;
    RingSetup setup;
    const RingSpace *space;
    int alone_calls;
} Job;

static const char *job_words(const Job *job, int seed)
{
    static char words[256];
    snprintf(words, sizeof words, "%s, %s, %s, %s, %d ranks, %d nodes, partials %s, seed %d",
             job->name, ring_method_name(job->setup.method), ring_layout_name(job->setup.layout),
             dtype_name(job->c->args.Q.dtype), job->setup.ranks, job->setup.nodes,
             dtype_name(job->setup.partials), seed);
    return words;
}

/* The seed is also that of the ranks' turns. Rounds before the timed one, and marks in the streams
 * for a trace, in some of them. */
static void run_once(const Job *job, const RingPlan *plan, int seed)
{
    static RingReport report;
    double ms[4];
    const RingJob ring_job = {.plan = plan,
                              .args = &job->c->args,
                              .warmup = seed % 2,
                              .rounds = 1,
                              .trace = seed % 4 / 2,
                              .forward_ms = &ms[0],
                              .backward_ms = &ms[1],
                              .alone_calls = job->alone_calls,
                              .alone_ms = &ms[2],
                              .alone_backward_ms = &ms[3]};
    const Storage *results[] = {&job->c->O, &job->c->dQ, &job->c->dK, &job->c->dV};
    char words[256];
    for (int n = 0; n < 4; n++)
        tensor_poison(results[n]);
    pretend_gpu_begin((uint64_t)seed);
    const int status = ring_world_sim(&ring_job, job->space, &report);
    const int problems = pretend_gpu_end(words);
    if (status || problems)
        fail_msg("%s: %d problems; %s", job_words(job, seed), problems,
                 status ? report.failure : words);
    ring_report_free(&report);
    assert_int_equal(0, workspace_live());
}

static void assert_right(const Job *job, int seed)
{
    Check check = {.inputs_intact = 1, .storage_intact = 1, .pass = 1};
    check_outputs(&check, job->oracle, NULL, &job->c->args, 1, 4);
    if (check.pass)
        return;
    check_explain(&check, job->name, &job->c->args, stderr);
    fail_msg("%s", job_words(job, seed));
}

/* Two lanes add to dQ in whatever order. */
static int dQ_varies(const Job *job)
{
    const RingMethod method = job->setup.method;
    const int one_lane =
        job->setup.deterministic || job->c->args.mask || job->c->args.Q.dtype == ATTN_F32;
    return !one_lane && (method == RING_METHOD_RING || method == RING_METHOD_ALLGATHER ||
                         method == RING_METHOD_RING_DOUBLE);
}

/* 0: the method cannot do it (heads of Ulysses). */
static int try_job(Job job, int usual_seeds)
{
    static RingPlan plan;
    Bits first = {0};
    char why[256];
    job.space = job.space ? job.space : &ring_space_cuda;
    flash_backward_set_deterministic(job.setup.deterministic);
    for (int seed = 0; seed < seeds(usual_seeds); seed++) {
        job.setup.adversarial = 1;
        job.setup.schedule_seed = (uint64_t)seed;
        if (ring_plan_make(&plan, &job.c->args, &job.setup, why)) {
            assert_non_null(strstr(why, "heads"));
            return 0;
        }
        run_once(&job, &plan, seed);
        ring_plan_free(&plan);
        assert_right(&job, seed);
        Bits bits = bits_of(job.c);
        bits.dQ = dQ_varies(&job) ? first.dQ : bits.dQ;
        if (seed == 0)
            first = bits;
        if (!bits_equal(first, bits))
            fail_msg("%s: other bits than with seed 0", job_words(&job, seed));
    }
    flash_backward_set_deterministic(0);
    return 1;
}

/* Rank 0's queries come behind all keys that their window reaches; some ranks see no key at all. */
static const MethodCase blind = {"blind", {1, 8, 4, 48, 24, 8}, ATTN_MASK_NONE, 9, 8, 0, 0, 0};

static const MethodCase *problem(int n)
{
    return n < METHOD_CASES ? &method_cases[n] : &blind;
}

static int nodes_of(RingMethod method, int ranks)
{
    const int two = method == RING_METHOD_RING_DOUBLE || method == RING_METHOD_BURST_DOUBLE;
    return two && ranks % 2 == 0 ? 2 : 1;
}

/* Each method has one of the dtypes; ring, which has lanes for 16 bits, has all. */
static void test_every_order_is_right(void **unused)
{
    static const int ranks[] = {4, 3, 6, 2};
    (void)unused;
    for (int n = 0; n <= METHOD_CASES; n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            Case *c = method_case_new(problem(n), (AttnDtype)dtype);
            Oracle oracle;
            assert_int_equal(0, oracle_run(&oracle, &c->args, 1, 1));
            for (int m = RING_METHOD_RING; m < RING_METHODS; m++) {
                const RingMethod method = (RingMethod)m;
                const int G = ranks[(n + m) % 4];
                RingSetup setup = method_setup(method, (RingLayout)((n / 4 + m) % RING_LAYOUTS), G,
                                               nodes_of(method, G));
                setup.deterministic = 0;
                if (m == RING_METHOD_RING || (n + m) % 3 == dtype)
                    try_job((Job){problem(n)->name, c, &oracle, setup, NULL, 0}, 4);
            }
            oracle_free(&oracle);
            case_free(c);
        }
}

/* Sums that travel are rounded on their way, in the lane of their half. */
static void test_bf16_partials(void **unused)
{
    static const int problems[] = {METHOD_CASES, 1, 4, 6, 7, 10};
    (void)unused;
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
            try_job((Job){problem(problems[n])->name, c, &oracle, setup, NULL, 0}, 4);
        }
        oracle_free(&oracle);
        case_free(c);
    }
}

/* One lane; ranks on GPUs of their own; the yardstick behind each round. */
static void test_other_ways(void **unused)
{
    static const int problems[] = {0, 1, 5, METHOD_CASES};
    (void)unused;
    for (int n = 0; n < 4; n++) {
        Case *c = method_case_new(problem(problems[n]), n % 2 ? ATTN_BF16 : ATTN_F16);
        RingSetup setup = method_setup(RING_METHOD_RING, RING_CONTIGUOUS, 4, 1);
        Oracle oracle;
        assert_int_equal(0, oracle_run(&oracle, &c->args, 1, 1));
        try_job((Job){"one lane", c, &oracle, setup, NULL, 0}, 2);
        setup.deterministic = 0;
        try_job((Job){"own GPUs", c, &oracle, setup, &ring_space_gpus, 0}, 2);
        try_job((Job){"yardstick", c, &oracle, setup, NULL, 2}, 2);
        oracle_free(&oracle);
        case_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_for_lane_1),   cmocka_unit_test(test_narrowing_in_both_lanes),
        cmocka_unit_test(test_free_in_both_lanes),   cmocka_unit_test(test_zeros_for_both_lanes),
        cmocka_unit_test(test_every_order_is_right), cmocka_unit_test(test_bf16_partials),
        cmocka_unit_test(test_other_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
