/* SPDX-License-Identifier: MIT
 *
 * test_pretend_gpu: the pretended GPU of the tests of stage 06 sees what it is there to see.
 *
 * - Two uses of the same memory are a problem exactly if one of them writes and nothing keeps them
 *   in order; whether something does, for each way of keeping order.
 * - Work is late, and the orders that are allowed all come about. Those that are not never do.
 * - Memory that is freed too early, or never, or that is not the device's.
 */
#include "pretend_cuda/pretend_gpu.h"

#include "unit.h"

enum { STREAMS = 3, BYTES = 64 };

static cudaStream_t streams[STREAMS];
static cudaEvent_t events[2];
static char *memory;

static char story[16]; /* the names of what was done, in that order */

static void tell(void *context)
{
    const size_t length = strlen(story);
    memcpy(story + length, context, 1);
    story[length + 1] = '\0';
}

static void begin(int seed)
{
    pretend_gpu_begin((uint64_t)seed);
    story[0] = '\0';
    for (int s = 0; s < STREAMS; s++)
        assert_int_equal(cudaSuccess,
                         cudaStreamCreateWithPriority(&streams[s], cudaStreamNonBlocking, 0));
    assert_int_equal(cudaSuccess, cudaEventCreate(&events[0]));
    assert_int_equal(cudaSuccess, cudaEventCreate(&events[1]));
    assert_int_equal(cudaSuccess, cudaMalloc((void **)&memory, BYTES));
}

static void drain(int stream)
{
    while (cudaStreamQuery(streams[stream]) == cudaErrorNotReady)
        continue;
}

static void drain_all(void)
{
    for (int s = 0; s < STREAMS; s++)
        drain(s);
}

/* Of everything but `memory`. The number of problems. */
static int end(char words[256])
{
    drain_all();
    for (int s = 0; s < STREAMS; s++)
        (void)cudaStreamDestroy(streams[s]);
    (void)cudaEventDestroy(events[0]);
    (void)cudaEventDestroy(events[1]);
    return pretend_gpu_end(words);
}

static int end_well(void)
{
    char words[256];
    drain_all();
    (void)cudaFree(memory);
    return end(words);
}

/* Work called 'a', 'b' ... on 16 bytes from `first` on. */
static void ask(int stream, char name, const char *first, PretendUse how)
{
    PretendWork *work = pretend_work("work", tell, &name, 1);
    pretend_uses(work, first, 16, how);
    pretend_ask(work, streams[stream]);
}

/* --- orders ------------------------------------------------------------------------------------*/

typedef enum Order { NOTHING, EVENT, CHAIN, HOST, SAME, EARLY, NEVER, BACKWARDS, ORDERS } Order;

static int second_stream(Order order)
{
    return order == SAME ? 0 : 1;
}

/* a, in stream 0, is there to be waited for by what comes next in stream 1. */
static void put_between(Order order)
{
    if (order == EVENT || order == CHAIN)
        (void)cudaEventRecord(events[0], streams[0]);
    if (order == CHAIN) {
        (void)cudaStreamWaitEvent(streams[2], events[0], 0);
        (void)cudaEventRecord(events[1], streams[2]);
    }
    if (order == HOST)
        drain(0);
    if (order == BACKWARDS) { /* a should wait for b, not b for a: too late */
        (void)cudaEventRecord(events[0], streams[1]);
        (void)cudaStreamWaitEvent(streams[0], events[0], 0);
    } else if (order != NOTHING && order != HOST && order != SAME) {
        (void)cudaStreamWaitEvent(streams[1], events[order == CHAIN], 0);
    }
}

static int keeps(Order order)
{
    return order == EVENT || order == CHAIN || order == HOST || order == SAME;
}

TEST(test_what_is_a_problem)
{
    for (int order = 0; order < ORDERS; order++)
        for (int how = 0; how < 9; how++)
            for (int apart = 0; apart < 2; apart++) {
                const PretendUse a = (PretendUse)(how / 3), b = (PretendUse)(how % 3);
                const int harmless = apart || (a == b && a != PRETEND_WRITES);
                begin(how);
                if (order == EARLY) /* recorded before there was anything to wait for */
                    (void)cudaEventRecord(events[0], streams[0]);
                ask(0, 'a', memory, a);
                put_between((Order)order);
                ask(second_stream((Order)order), 'b', memory + (apart ? 16 : 12), b);
                assert_int_equal(!harmless && !keeps((Order)order), end_well());
            }
}

/* A write that covers older uses and comes behind them stands for them; one that covers a part of
 * them, or does not come behind all, does not. */
TEST(test_older_uses_are_remembered)
{
    for (int part = 0; part < 2; part++) {
        begin(part);
        ask(0, 'a', memory, PRETEND_READS);
        put_between(EVENT);
        ask(1, 'b', memory + 8 * part, PRETEND_WRITES);
        ask(2, 'c', memory, PRETEND_WRITES);
        assert_int_equal(part ? 2 : 1, end_well());
        begin(part);
        ask(0, 'a', memory, PRETEND_WRITES);
        ask(2, 'd', memory + 32, PRETEND_READS);
        put_between(CHAIN);
        ask(1, 'b', memory, PRETEND_WRITES);
        ask(1, 'c', memory + 32, PRETEND_WRITES);
        assert_int_equal(0, end_well());
    }
    begin(0); /* c comes behind b, and behind a no more than b does */
    ask(0, 'a', memory, PRETEND_WRITES);
    ask(1, 'b', memory, PRETEND_WRITES);
    ask(1, 'c', memory, PRETEND_WRITES);
    assert_int_equal(2, end_well());
}

/* A stream rushes ahead, another one overtakes it, and so on. */
TEST(test_streams_take_turns)
{
    int most = 0;
    for (int seed = 0; seed < 32; seed++) {
        int turns = 0;
        begin(seed);
        for (int n = 0; n < 6; n++)
            ask(n % 2, (char)('a' + n % 2), memory, PRETEND_READS);
        drain_all();
        for (int n = 1; n < 6; n++)
            turns += story[n] != story[n - 1];
        most = turns > most ? turns : most;
        assert_int_equal(0, end_well());
    }
    assert_true(most > 1);
}

TEST(test_orders_come_about)
{
    int seen[ORDERS][2] = {{0}};
    for (int seed = 0; seed < 32; seed++)
        for (int order = 0; order < ORDERS; order++) {
            begin(seed);
            ask(0, 'a', memory, PRETEND_READS);
            if (order != HOST)
                assert_string_equal("", story); /* nothing is done before the host looks */
            put_between((Order)order);
            ask(second_stream((Order)order), 'b', memory, PRETEND_READS);
            drain(1);
            drain(0);
            assert_int_equal(2, strlen(story));
            seen[order][story[0] == 'b']++;
            assert_int_equal(0, end_well());
        }
    for (int order = 0; order < ORDERS; order++) {
        assert_true(seen[order][0] > 0);
        assert_int_equal(keeps((Order)order), seen[order][1] == 0);
    }
}

/* --- memory ------------------------------------------------------------------------------------*/

TEST(test_memory)
{
    char words[256], host[BYTES];
    begin(0);
    ask(0, 'a', memory, PRETEND_READS);
    (void)cudaFree(memory);
    assert_int_equal(1, end(words));
    assert_non_null(strstr(words, "still reads"));

    begin(0);
    assert_int_equal(1, end(words));
    assert_non_null(strstr(words, "not freed"));

    begin(0);
    ask(0, 'a', memory + BYTES - 8, PRETEND_WRITES);
    assert_int_equal(1, end_well());

    begin(0); /* fresh memory is NaN; a copy of rows, and of what lies between them nothing */
    (void)cudaMemsetAsync(memory, 7, 8, streams[0]);
    (void)cudaMemcpy2DAsync(memory + 16, 16, memory, 4, 4, 2, cudaMemcpyDeviceToDevice, streams[0]);
    (void)cudaMemcpyAsync(host, memory, BYTES, cudaMemcpyDeviceToHost, streams[0]);
    drain(0);
    for (int n = 0; n < BYTES; n++)
        assert_int_equal(n < 8 || (n >= 16 && n < 20) || (n >= 32 && n < 36) ? 7 : (char)0xFF,
                         host[n]);
    assert_int_equal(0, end_well());
}

TEST(test_events)
{
    float ms = -1;
    begin(0);
    assert_int_equal(cudaSuccess, cudaEventQuery(events[0])); /* never recorded */
    ask(0, 'a', memory, PRETEND_WRITES);
    (void)cudaEventRecord(events[0], streams[0]);
    ask(0, 'b', memory, PRETEND_WRITES);
    (void)cudaEventRecord(events[1], streams[0]);
    assert_int_equal(cudaErrorNotReady, cudaEventQuery(events[0]));
    assert_int_equal(cudaErrorNotReady, cudaEventElapsedTime(&ms, events[0], events[1]));
    assert_int_equal(cudaSuccess, cudaEventSynchronize(events[0]));
    assert_int_equal('a', story[0]);
    drain(0);
    assert_int_equal(cudaSuccess, cudaEventElapsedTime(&ms, events[0], events[1]));
    assert_true(ms > 0);
    assert_int_equal(0, end_well());
}
