/* SPDX-License-Identifier: MIT
 *
 * test_ring_bytes.c: what runs of all methods really send and allocate, against the formulas of
 * common/model_ring, to the byte: for each rank, pass and tensor, inside nodes and between them;
 * and against the rehearsed timetable, from which times are predicted and --trace is drawn.
 */
#include "ring_method_case.h"

#include "planner/cost.h"
#include "planner/schedule.h"

static const char *name_of(const MethodRun *run, char name[200])
{
    const RingSetup *s = &run->plan.setup;
    snprintf(name, 200, "%s, %s, %d ranks on %d nodes, hops %d up %d down, dtype %d, sums %d",
             ring_method_name(s->method), ring_layout_name(s->layout), s->ranks, s->nodes,
             run->plan.hops_up, run->plan.hops_down, run->plan.dtype, s->partials);
    return name;
}

static void check_bytes(const MethodRun *run, RingPass pass, int rank)
{
    const RingModelCase formulas = ring_model_case(&run->plan);
    const RingModelBytes model = model_ring_sent(&formulas, pass, rank);
    const RingRankReport *told = &run->report.rank[rank];
    char name[200];
    for (int t = 0; t < RING_TENSORS; t++)
        if (told->traffic.sent[pass][t] != model.sent[t])
            fail_msg("%s: rank %d sends %lld bytes of %s in pass %d, by the model %lld",
                     name_of(run, name), rank, (long long)told->traffic.sent[pass][t],
                     ring_tensor_name((RingTensor)t), pass, (long long)model.sent[t]);
    assert_int_equal(model.inner, told->traffic.sent_inner[pass]);
    assert_int_equal(model.outer, told->traffic.sent_outer[pass]);
}

static void check_memory(const MethodRun *run, int rank)
{
    const RingModelCase formulas = ring_model_case(&run->plan);
    const RingModelMemory model = model_ring_memory(&formulas, rank);
    const RingRankReport *told = &run->report.rank[rank];
    const int64_t forward = run->plan.backward ? model.forward_kept : model.forward;
    char name[200];
    if ((int64_t)told->peak_bytes != forward)
        fail_msg("%s: rank %d has %zu bytes in the forward pass, by the model %lld",
                 name_of(run, name), rank, told->peak_bytes, (long long)forward);
    if (run->plan.backward && (int64_t)told->peak_backward_bytes != model.backward_pass)
        fail_msg("%s: rank %d has %zu bytes in the backward pass, by the model %lld",
                 name_of(run, name), rank, told->peak_backward_bytes,
                 (long long)model.backward_pass);
    assert_true(model.backward >= model.forward_kept && model.backward >= model.backward_pass);
}

/* A number that differs when a message goes at another step, elsewhere, or is another tensor. */
static int64_t mark_of(int step, int peer, RingTensor tensor, int64_t bytes)
{
    return ((step * 100 + peer) * RING_TENSORS + (int)tensor + 1) * bytes;
}

/* The run sends what the rehearsal sends, and computes all blocks that see something, in order. */
static void check_timetable(const MethodRun *run, RingPass pass)
{
    RingSchedule s;
    char name[200];
    assert_int_equal(0, ring_schedule_make(&s, &run->plan, pass));
    for (int r = 0; r < run->plan.setup.ranks; r++) {
        const RingEvent *first = run->report.events[r], *end = first + run->report.event_count[r];
        const RingEvent *e = first;
        int64_t sent = 0;
        for (; e < end; e++)
            if (e->pass == pass && e->kind == RING_EVENT_SEND)
                sent += mark_of(e->step, e->peer, e->tensor, e->bytes);
        e = first;
        for (int64_t n = 0; n < s.count[r]; n++) {
            const RingAction *a = &s.actions[r][n];
            const RingMessage *m = a->message >= 0 ? &s.messages[a->message] : NULL;
            const int peer = a->k.owner == r ? a->q.owner : a->k.owner;
            if (a->kind == RING_ACT_START && m->from == r)
                sent -= mark_of(a->step, m->to, m->tensor, m->bytes);
            if (a->kind != RING_ACT_COMPUTE || a->work.pairs == 0)
                continue;
            while (e < end && (e->pass != pass || e->kind != RING_EVENT_COMPUTE ||
                               e->step != a->step || e->peer != peer))
                e++;
            if (e++ >= end)
                fail_msg("%s: rank %d does not compute (%d, %d) at step %d of pass %d",
                         name_of(run, name), r, a->q.owner, a->k.owner, a->step, pass);
        }
        if (sent != 0)
            fail_msg("%s: rank %d sends other messages than the rehearsal, pass %d",
                     name_of(run, name), r, pass);
    }
    ring_schedule_free(&s);
}

static void check_run(Case *c, const RingSetup *setup)
{
    static MethodRun run;
    if (!method_run(&run, c, setup, 1))
        return;
    for (int pass = RING_FORWARD; pass <= (run.plan.backward ? RING_BACKWARD : RING_FORWARD);
         pass++) {
        for (int r = 0; r < setup->ranks; r++)
            check_bytes(&run, (RingPass)pass, r);
        check_timetable(&run, (RingPass)pass);
    }
    for (int r = 0; r < setup->ranks; r++)
        check_memory(&run, r);
    method_close(&run);
}

/* One number of ranks for each case, method and layout. The list has masks, windows, packed
 * sequences, empty shards; numbers of ranks, nodes and types change from one to the next. */
TEST(all_methods)
{
    const int ranks[] = {1, 2, 3, 4, 6, 8, 12};
    int number = 0;
    for (int n = 0; n < METHOD_CASES; n++)
        for (int dtype = 0; dtype < 2; dtype++) {
            Case *c = method_case_new(&method_cases[n], dtype ? ATTN_BF16 : ATTN_F32);
            void *const dO = c->args.dO.data;
            for (int method = RING_METHOD_RING; method < RING_METHODS; method++, number++) {
                const int G = ranks[(number + number / 7) % 7];
                const int nodes = G % 2 || number % 3 == 0 ? 1 : G % 3 || number % 4 ? 2 : 3;
                RingSetup setup = method_setup((RingMethod)method,
                                               (RingLayout)(number / 2 % RING_LAYOUTS), G, nodes);
                setup.partials = number % 2 ? ATTN_F32 : ATTN_BF16;
                c->args.dO.data = number % 4 == 3 ? NULL : dO;
                check_run(c, &setup);
            }
            c->args.dO.data = dO;
            case_free(c);
        }
}

/* Equal blocks: kv heads from 1 to all, every method and number of ranks. */
TEST(grouped_heads)
{
    const int64_t kv_heads[] = {1, 2, 4, 8};
    for (int kv = 0; kv < 4; kv++) {
        Case *c = case_new((AttnShape){1, 8, kv_heads[kv], 32, 32, 4}, ATTN_F16, LAYOUT_BSHD, 1);
        for (int method = RING_METHOD_RING; method < RING_METHODS; method++)
            for (int G = 1; G <= 8; G *= 2) {
                const RingSetup setup =
                    method_setup((RingMethod)method, RING_ZIGZAG, G, G > 2 ? 2 : 1);
                check_run(c, &setup);
            }
        case_free(c);
    }
}

/* Bytes of a bf16 rank by elements of its queries, n H d, as the papers count them. */
TEST(bytes_of_an_element)
{
    const struct {
        RingMethod method;
        int ranks, forward, backward;
    } wanted[] = {{RING_METHOD_RING, 4, 20, 38},
                  {RING_METHOD_BURST, 4, 20, 32},
                  {RING_METHOD_RING, 2, 16, 38},
                  {RING_METHOD_BURST, 2, 16, 28},
                  {RING_METHOD_RING, 1, 12, 22}};
    for (size_t n = 0; n < sizeof wanted / sizeof *wanted; n++) {
        const int G = wanted[n].ranks;
        const int64_t rows = 64 * 2, u = rows * 32;
        Case *c = case_new((AttnShape){1, 2, 2, 64 * G, 64 * G, 32}, ATTN_BF16, LAYOUT_BSHD, 1);
        const RingSetup setup = method_setup(wanted[n].method, RING_CONTIGUOUS, G, 1);
        static MethodRun run;
        assert_int_equal(1, method_run(&run, c, &setup, 1));
        for (int r = 0; r < G; r++) {
            const RingRankReport *told = &run.report.rank[r];
            /* and a few floats for each row: forward lse, m, l and its rest */
            assert_int_equal(wanted[n].forward, (int64_t)told->peak_bytes / u);
            assert_true((int64_t)told->peak_bytes % u <= 16 * rows);
            assert_int_equal(wanted[n].backward, (int64_t)told->peak_backward_bytes / u);
            assert_true((int64_t)told->peak_backward_bytes % u <= 32 * rows);
        }
        method_close(&run);
        case_free(c);
    }
}

/* The program's own check of a run: whatever is off by a byte is told, of memory what is off by
 * more than 5 %. */
TEST(what_does_not_agree_is_told)
{
    const Option o = {"agree", {1, 2, 1, 20, 20, 4}, ATTN_MASK_NONE, -1, -1, 0, 0, 0};
    const RingSetup setup = {
        .method = RING_METHOD_RING_DOUBLE, .ranks = 4, .nodes = 2, .timeout_s = 60, .threads = 1};
    Case *c = case_option(&o, ATTN_F32, 1, 1);
    static MethodRun run;
    char why[256] = "";
    assert_int_equal(1, method_run(&run, c, &setup, 1));
    const RingModelCase formulas = ring_model_case(&run.plan);
    for (int pass = RING_FORWARD; pass <= RING_BACKWARD; pass++) {
        RingRankReport *told = &run.report.rank[3];
        for (int f = 0; f < RING_TENSORS + 2; f++) { /* all tensors, and both kinds of links */
            int64_t *const field = f < RING_TENSORS    ? &told->traffic.sent[pass][f]
                                   : f == RING_TENSORS ? &told->traffic.sent_inner[pass]
                                                       : &told->traffic.sent_outer[pass];
            char words[64] = "inside its node";
            if (f < RING_TENSORS)
                snprintf(words, sizeof words, "bytes of %s in", ring_tensor_name((RingTensor)f));
            assert_int_equal(1, ring_bytes_agree(&formulas, &run.report, 1, why, sizeof why));
            (*field)++;
            assert_int_equal(0, ring_bytes_agree(&formulas, &run.report, 1, why, sizeof why));
            assert_non_null(strstr(why, "rank 3 sent "));
            assert_non_null(strstr(why, words));
            assert_int_equal(pass == RING_BACKWARD, /* which was not asked for */
                             ring_bytes_agree(&formulas, &run.report, 0, why, sizeof why));
            (*field)--;
        }
    }
    for (int64_t found = 90; found <= 110; found++)
        assert_int_equal(found >= 95 && found <= 105,
                         ring_memory_agrees(found, 100, 2, why, sizeof why));
    assert_non_null(strstr(why, "rank 2 held 110 bytes, the model says 100"));
    method_close(&run);
    case_free(c);
}
