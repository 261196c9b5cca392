/* SPDX-License-Identifier: MIT
 *
 * test_ring_methods: attention over many ranks is attention.
 *
 * - Each method, in each layout, over 1 to 8 ranks and on nodes: O, lse and gradients within the
 *   oracle's bound, for every problem of ring_method_case.h, in three dtypes.
 * - One rank: the very bits of the block kernels of stages 03 and 04.
 * - The same bits in every run, in every round of a run, whatever the number of threads, and
 *   whatever order the messages come in.
 *
 * (How far off more ranks are than one, and --partials bf16: tests/stages/test_ring_errors.py.)
 */
#include "attention/backward/backward_library.h"
#include "ring_method_case.h"

/* Divisors of G; the double rings walk through them as n counts. */
static int nodes_of(RingMethod method, int G, int n)
{
    int nodes = 1 + n % G;
    while (is_double(method) && G % nodes)
        nodes = nodes % G + 1;
    return is_double(method) ? nodes : 1;
}

/* --- right -------------------------------------------------------------------------------------*/

static void assert_method_right(const Case *c, const Oracle *oracle, const RingSetup *setup,
                                const char *name)
{
    if (case_agrees(c, oracle, 1, 4, name))
        return;
    fail_msg("%s: %s, %s, %d ranks on %d nodes", name, ring_method_name(setup->method),
             ring_layout_name(setup->layout), setup->ranks, setup->nodes);
}

static void try_case(const MethodCase *m, AttnDtype dtype, int number)
{
    static const int ranks[] = {1, 2, 3, 4, 6, 8};
    static MethodRun run;
    const int step = quick() ? 6 : 3; /* neighbours in the list of problems take the others */
    Case *c = method_case_new(m, dtype);
    Oracle oracle = oracle_of(&c->args, 1, 1);
    for (int method = RING_METHOD_RING; method < RING_METHODS; method++)
        for (int layout = 0; layout < RING_LAYOUTS; layout++)
            for (int n = (number + method + layout) % step; n < 6; n += step) {
                if (quick() && (number / step + method + layout) % 2)
                    continue; /* twelve problems: each method, layout and number of ranks once */
                const RingSetup setup =
                    method_setup((RingMethod)method, (RingLayout)layout, ranks[n],
                                 nodes_of((RingMethod)method, ranks[n], number + layout));
                if (!method_run(&run, c, &setup, 1))
                    continue;
                assert_method_right(c, &oracle, &setup, m->name);
                method_close(&run);
            }
    oracle_free(&oracle);
    case_free(c);
}

TEST(test_every_method_is_right)
{
    for (int n = 0; n < METHOD_CASES; n++)
        try_case(&method_cases[n], (AttnDtype)(n % 3), n);
}

/* Every method with float32, and every divisor as a number of nodes. */
TEST(test_every_number_of_nodes)
{
    static MethodRun run;
    for (int n = 1; n < METHOD_CASES; n += 4) {
        Case *c = method_case_new(&method_cases[n], ATTN_F32);
        Oracle oracle = oracle_of(&c->args, 1, 1);
        for (int G = 4; G <= (quick() ? 6 : 12); G += 2)
            for (int nodes = 2; nodes < G; nodes++)
                for (int m = RING_METHOD_RING_DOUBLE; m <= RING_METHOD_BURST_DOUBLE; m++) {
                    const RingSetup setup = method_setup(
                        (RingMethod)m, (RingLayout)((n + G + nodes) % RING_LAYOUTS), G, nodes);
                    if (G % nodes)
                        continue;
                    assert_true(method_run(&run, c, &setup, 1));
                    assert_method_right(c, &oracle, &setup, method_cases[n].name);
                    method_close(&run);
                }
        oracle_free(&oracle);
        case_free(c);
    }
}

/* --- the same bits -----------------------------------------------------------------------------*/

/* Stages 03 and 04 without any ring: all keys in one block. */
static Bits bits_of_kernels(const Case *c)
{
    const AttnShape *n = &c->args.shape;
    const size_t q = (size_t)(n->B * n->Nq * n->H * n->d),
                 k = (size_t)(n->B * n->Nk * n->Hkv * n->d);
    float *room = malloc((2 * q + 2 * k + (size_t)(n->B * n->H * n->Nq)) * sizeof *room);
    const FlashSums sums = {room + q, room + 2 * q, room + 2 * q + k};
    float *delta = room + 2 * q + 2 * k;
    assert_non_null(room);
    flash_state_start(&c->args, room);
    assert_int_equal(ATTN_OK, flash_block_cpu(&c->args, room));
    flash_state_store(&c->args, room);
    flash_backward_delta(&c->args, delta);
    flash_sums_start(n, sums);
    assert_int_equal(ATTN_OK, flash_backward_block_cpu(&c->args, delta, sums));
    flash_sums_store(&c->args, sums);
    free(room);
    return bits_of(c);
}

TEST(test_one_rank_is_the_kernel)
{
    static MethodRun run;
    for (int n = 0; n < METHOD_CASES; n++) {
        Case *c = method_case_new(&method_cases[n], (AttnDtype)((n + 1) % 3));
        const Bits kernels = bits_of_kernels(c);
        for (int method = RING_METHOD_RING; method < RING_METHODS; method++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                const RingSetup setup = method_setup((RingMethod)method, (RingLayout)layout, 1, 1);
                assert_true(method_run(&run, c, &setup, 1));
                if (!bits_equal(kernels, bits_of(c)))
                    fail_msg("%s: %s over one rank has other bits than the kernel",
                             method_cases[n].name, ring_method_name(setup.method));
                for (int tensor = 0; tensor < RING_TENSORS; tensor++)
                    assert_true(run.report.rank[0].traffic.sent[RING_FORWARD][tensor] == 0 &&
                                run.report.rank[0].traffic.sent[RING_BACKWARD][tensor] == 0);
                method_close(&run);
            }
        case_free(c);
    }
}

/* Free, with more rounds, with more threads, and with messages that come in another order. */
TEST(test_every_run_has_the_same_bits)
{
    static const int problems[] = {1, 5, 7, 10, 13};
    static MethodRun run;
    for (int p = 0; p < 5; p++)
        for (int method = RING_METHOD_RING; method < RING_METHODS; method++) {
            Case *c = method_case_new(&method_cases[problems[p]], (AttnDtype)((p + method) % 3));
            RingSetup setup = method_setup((RingMethod)method, (RingLayout)((p + method) % 3), 4,
                                           is_double(method) ? 2 : 1);
            Bits bits;
            if (!method_run(&run, c, &setup, 1)) {
                case_free(c);
                continue;
            }
            bits = bits_of(c);
            method_close(&run);
            for (int again = 0; again < (quick() ? 4 : p ? 12 : 200); again++) {
                setup.threads = again == 1 ? 12 : 1;
                setup.adversarial = again > 1;
                setup.schedule_seed = (uint64_t)(100 * p + again);
                setup.verify_hops = again % 2;
                assert_true(method_run(&run, c, &setup, again == 0 ? 3 : 1));
                if (!bits_equal(bits, bits_of(c)))
                    fail_msg("%s: %s has other bits in run %d", method_cases[problems[p]].name,
                             ring_method_name(setup.method), again);
                method_close(&run);
            }
            case_free(c);
        }
}
