/* SPDX-License-Identifier: MIT
 *
 * test_ring_streams: nothing in the runs of stage 06's methods on a GPU depends on how its streams
 * get on with each other.
 *
 * The host code of the ranks (06_ring_burst/runtime/cuda/) runs here as it is, over a GPU that is
 * pretended (pretend_cuda/pretend_gpu.h): two uses of the same memory that nothing keeps in order
 * are a failure. Whole tasks: every method, problems of ring_method_case.h, forward and backward.
 * What kernels compute is not asked here (./ladder gpu check 06).
 *
 * And the pretended GPU itself: two uses are a problem exactly if one of them forbids the other and
 * no event keeps them in order; so are memory that is not given back or not the device's, and what
 * the host finds done by chance. (Patches 757 to 764 of tests/wrong are orders that are missing.)
 */
#include "pretend_cuda/pretend_gpu.h"
#include "ring_method_case.h"
#include "runtime/cuda/backend_cuda.h"

#include "attention/backward/backward_library.h"

/* The seed is also that of the ranks' turns. Rounds before the timed one, marks in the streams for
 * a trace, and the local baseline, in some of them. */
static void run_once(Case *c, RingSetup setup, const RingBackend *backend, int seed)
{
    static RingReport report;
    static RingPlan plan;
    double ms[4];
    char words[256];
    setup.adversarial = 1;
    setup.schedule_seed = (uint64_t)seed;
    if (ring_plan_make(&plan, &c->args, &setup, words)) {
        assert_non_null(strstr(words, "heads")); /* what ulysses cannot do */
        return;
    }
    const RingTask task = {.plan = &plan,
                           .args = &c->args,
                           .warmup = seed % 2,
                           .rounds = 1,
                           .trace = seed % 4 / 2,
                           .forward_ms = &ms[0],
                           .backward_ms = &ms[1],
                           .baseline_calls = seed % 3,
                           .baseline_ms = &ms[2],
                           .baseline_backward_ms = &ms[3]};
    flash_backward_set_deterministic(setup.deterministic);
    pretend_gpu_begin((uint64_t)seed);
    const int status = ring_world_sim(&task, backend, &report);
    const int problems = pretend_gpu_end(words);
    if (status || problems)
        fail_msg("%s, %s, %s, %d ranks, %d nodes, partials %s, seed %d: %d problems; %s",
                 ring_method_name(setup.method), ring_layout_name(setup.layout),
                 dtype_name(c->args.Q.dtype), setup.ranks, setup.nodes, dtype_name(setup.partials),
                 seed, problems, status ? report.failure : words);
    ring_report_free(&report);
    ring_plan_free(&plan);
    flash_backward_set_deterministic(0);
    assert_int_equal(0, workspace_live());
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

/* Each method has one of the dtypes; ring, which has streams for 16 bits, has all. Partials in bf16
 * are rounded on their way, in the stream of their half. */
TEST(test_every_method)
{
    static const int ranks[] = {4, 3, 6, 2};
    for (int n = 0; n <= METHOD_CASES; n += quick() ? 2 : 1)
        for (int dtype = 0; dtype < 3; dtype++) {
            Case *c = method_case_new(problem(n), (AttnDtype)dtype);
            for (int m = RING_METHOD_RING; m < RING_METHODS; m++) {
                const RingMethod method = (RingMethod)m;
                const int G = ranks[(quick() ? n / 2 + m : n + m) % 4];
                RingSetup setup = method_setup(method, (RingLayout)((n / 4 + m) % RING_LAYOUTS), G,
                                               nodes_of(method, G));
                setup.deterministic = 0;
                setup.partials = dtype != ATTN_F32 && n % 2 ? ATTN_BF16 : ATTN_F32;
                for (int seed = 0; seed < 2; seed++)
                    if (m == RING_METHOD_RING || (n + m) % 3 == dtype)
                        run_once(c, setup, &ring_backend_cuda, n + 5 * m + seed);
            }
            case_free(c);
        }
}

/* One stream; ranks on GPUs of their own; all keys are another sequence's. */
TEST(test_other_ways)
{
    for (int n = 0; n < 6; n++) {
        Case *c = method_case_new(problem(n), n % 2 ? ATTN_BF16 : ATTN_F16);
        RingSetup setup = method_setup(RING_METHOD_RING, RING_CONTIGUOUS, 4, 1);
        run_once(c, setup, &ring_backend_cuda, n);
        setup.deterministic = 0;
        run_once(c, setup, &ring_backend_gpus, n);
        c->segments_k[0].sequence = 1;
        for (int m = RING_METHOD_RING; m < RING_METHODS; m++)
            run_once(c, method_setup((RingMethod)m, RING_ZIGZAG, 4, nodes_of((RingMethod)m, 4)),
                     &ring_backend_cuda, n + m);
        case_free(c);
    }
}

/* --- the pretended GPU ------------------------------------------------------------------------*/

enum { STREAMS = 3, BYTES = 64 };

static cudaStream_t streams[STREAMS];
static cudaEvent_t event;
static char *memory;

static void begin(int seed)
{
    pretend_gpu_begin((uint64_t)seed);
    for (int s = 0; s < STREAMS; s++)
        (void)cudaStreamCreateWithPriority(&streams[s], cudaStreamNonBlocking, 0);
    (void)cudaEventCreate(&event);
    (void)cudaMalloc((void **)&memory, BYTES);
}

static void ask(int stream, char *first, PretendUse how) /* for 16 bytes */
{
    PretendWork work = {.name = "work"};
    pretend_uses(&work, first, 16, how);
    pretend_ask(&work, streams[stream]);
}

/* So many problems, the first in these words. */
static void assert_end(int problems, int frees, const char *wanted)
{
    char words[256];
    for (int s = 0; s < STREAMS; s++) {
        while (cudaStreamQuery(streams[s]) == cudaErrorNotReady)
            continue;
        (void)cudaStreamDestroy(streams[s]);
    }
    if (frees)
        (void)cudaFree(memory);
    (void)cudaEventDestroy(event);
    assert_int_equal(problems, pretend_gpu_end(words));
    assert_non_null(strstr(words, wanted));
}

TEST(test_what_is_a_problem)
{
    for (int how = 0; how < 9; how++)
        for (int waits = 0; waits < 2; waits++)
            for (int apart = 0; apart < 2; apart++) {
                const PretendUse a = (PretendUse)(how / 3), b = (PretendUse)(how % 3);
                const int harmless = waits || apart || (a == b && a != PRETEND_WRITES);
                begin(how);
                ask(0, memory, a);
                (void)cudaEventRecord(event, streams[0]);
                if (waits)
                    (void)cudaStreamWaitEvent(streams[1], event, 0);
                ask(1, memory + (apart ? 16 : 12), b);
                assert_end(!harmless, 1, harmless ? "" : "neither waits for the other");
            }
    begin(0); /* of the first use only a part is covered by the second: the third meets both */
    ask(0, memory, PRETEND_READS);
    (void)cudaEventRecord(event, streams[0]);
    (void)cudaStreamWaitEvent(streams[1], event, 0);
    ask(1, memory + 8, PRETEND_WRITES);
    ask(2, memory, PRETEND_WRITES);
    assert_end(2, 1, "work in stream 2 writes");
}

TEST(test_memory_and_events)
{
    begin(1);
    ask(0, memory, PRETEND_WRITES);
    (void)cudaFree(memory);
    assert_end(1, 0, "still writes");
    begin(0);
    assert_end(1, 0, "64 bytes were not freed");
    begin(0);
    ask(0, memory + BYTES - 8, PRETEND_WRITES);
    assert_end(1, 1, "memory that is not the device's");
    begin(1); /* the event is not there yet, so the host has not seen the first */
    ask(0, memory, PRETEND_WRITES);
    (void)cudaEventRecord(event, streams[0]);
    assert_int_equal(cudaErrorNotReady, cudaEventQuery(event));
    ask(1, memory, PRETEND_WRITES);
    assert_int_equal(cudaSuccess, cudaEventSynchronize(event));
    assert_end(1, 1, "neither waits for the other");
}
