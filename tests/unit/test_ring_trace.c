/* SPDX-License-Identifier: MIT
 *
 * test_ring_trace.c: the screen of --trace: what it must say about known plans, and that 4 ranks
 * fit a projector's 80 columns and 24 lines whatever the method and the mask.
 */
#include "ring_method_case.h"

#include "show/trace.h"

static struct Screen {
    char text[16384];
    int lines, columns;
} screen;

static void draw(const Case *c, const RingSetup *setup)
{
    RingPlan *plan = plan_of(c, setup);
    FILE *f = tmpfile();
    size_t length;
    int column = 0;
    assert_non_null(f);
    assert_int_equal(0, ring_trace_screen(f, plan));
    rewind(f);
    length = fread(screen.text, 1, sizeof screen.text - 1, f);
    fclose(f);
    screen.text[length] = '\0';
    screen.lines = screen.columns = 0;
    for (size_t n = 0; n < length; n++) {
        column = screen.text[n] == '\n' ? 0 : column + 1;
        screen.lines += screen.text[n] == '\n';
        screen.columns = column > screen.columns ? column : screen.columns;
    }
    plan_delete(plan);
}

static void assert_has(const char *line)
{
    if (!strstr(screen.text, line))
        fail_msg("no line '%s' on this screen:\n%s", line, screen.text);
}

static Case *causal(int64_t N)
{
    Case *c = case_new((AttnShape){1, 4, 2, N, N, 4}, ATTN_BF16, LAYOUT_BSHD, 1);
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    return c;
}

TEST(known_screens)
{
    Case *c = causal(64), *few = causal(16);
    RingSetup setup = method_setup(RING_METHOD_RING, RING_ZIGZAG, 4, 1);
    draw(c, &setup);
    assert_has("rank 1  tokens 8-15 48-55\n");
    assert_has("rank 3  tokens 24-39\n"); /* its chunks are neighbours */
    assert_has("rank 0   K0 triangle K3 half     K2 half     K1 half     25 %\n");
    assert_has("rank 0   K1 half     K2 half     K3 half     K0 triangle 25 %\n");
    assert_has("a rank sends 1.54 kB: K 768 B, V 768 B\n");
    assert_has("100 % of the time is useful");
    draw(few, &setup); /* a chunk has two tokens, half a chunk one */
    assert_has("rank 0   K0 triangle K3 half     K2 half     K1 half     25 %\n");
    setup.layout = RING_CONTIGUOUS;
    draw(c, &setup);
    assert_has("rank 3  tokens 48-63\n");
    assert_has("rank 0   K0 triangle K3 skip     K2 skip     K1 skip      7 %\n");
    assert_has("rank 3   K3 triangle K2 full     K1 full     K0 full     43 %\n");
    assert_has("58 % of the time is useful"); /* (64 + 1) / (16 + 1 + 6 * 16) */
    setup.layout = RING_STRIPED;
    setup.method = RING_METHOD_BURST;
    draw(c, &setup);
    assert_has("rank 1  tokens 1 5 .. 61\n");
    assert_has("rank 2   Q2 triangle Q1 triangle Q0 triangle Q3 triangle 2");
    setup = method_setup(RING_METHOD_ULYSSES, RING_CONTIGUOUS, 2, 1);
    draw(c, &setup);
    assert_has("rank 1   heads 2-3 of all tokens 50 %\n");
    setup = method_setup(RING_METHOD_RING_DOUBLE, RING_CONTIGUOUS, 4, 2);
    draw(c, &setup);
    assert_has("on 2 nodes\n");
    assert_has("rank 3   K3 triangle K2 full     K1 full     K0 full ");
    assert_has("512 B of it to another node\n");
    case_free(c);
    case_free(few);
}

/* A window's two rings; a full mask. */
TEST(other_masks)
{
    Case *c = case_new((AttnShape){1, 4, 2, 64, 64, 4}, ATTN_F32, LAYOUT_BSHD, 1);
    RingSetup setup = method_setup(RING_METHOD_RING, RING_CONTIGUOUS, 4, 1);
    c->args.rule = (AttnRule){4, 4};
    draw(c, &setup);
    assert_has("window 4,4");
    assert_has("rank 1   ");
    assert_has(" K2 band K1 band K0 band "); /* from above; own; from below */
    c->args.rule = (AttnRule){-1, -1};
    case_mask(c);
    draw(c, &setup);
    assert_has("full mask");
    assert_has("K0 mask");
    case_free(c);
}

TEST(four_ranks_fit)
{
    for (int n = 0; n < METHOD_CASES; n++) {
        Case *c = method_case_new(&method_cases[n], ATTN_F32);
        for (int method = RING_METHOD_RING; method < RING_METHODS; method++)
            for (int layout = 0; layout < RING_LAYOUTS; layout++) {
                const RingSetup setup =
                    method_setup((RingMethod)method, (RingLayout)layout, 4, method % 2 ? 2 : 1);
                if (method == RING_METHOD_ULYSSES && c->args.shape.Hkv % 4 && 4 % c->args.shape.Hkv)
                    continue;
                draw(c, &setup);
                if (screen.lines > 24 || screen.columns > 80)
                    fail_msg("%d lines of %d columns:\n%s", screen.lines, screen.columns,
                             screen.text);
            }
        case_free(c);
    }
}
