/* SPDX-License-Identifier: MIT
 *
 * test_window_offline: what the sweep of stage 05 cannot see of its library: whole calls on a CPU.
 *
 * - Lists that leave out who has no tokens; several sequences in each of two batches.
 * - Threads change no bit, nor do options that ask for nothing.
 * - Memory grows with N, not with N^2.
 *
 * Which pairs they see, drop and walk over:
 * - Maps that cannot be parted: several sequences at once, the two segments of a rolling cache.
 * - Dropout's zeros are exactly those of attn_keeps, and its mean is right.
 * - Counts of tiles are those of asking all pairs.
 */
#include <math.h>

#include "window_world.h"

#include "alloc.h"
#include "attention/window/cpu/weights.h"
#include "attention/window/window_library.h"
#include "attn_pairs.h"
#include "harness/io/philox.h"

/* Runs both passes on arguments of world_args; results are in the world. */
static void run_args(World *w, const AttnArgs *args)
{
    workspace_reset_peak();
    assert_int_equal(ATTN_OK, sliding_window_library_cpu(args));
    assert_int_equal(ATTN_OK, sliding_window_library_cpu_backward(args));
    assert_true(workspace_intact());
    assert_int_equal(0, workspace_live());
    world_collect(w, args);
}

static void run_world(World *w, int threads)
{
    AttnArgs args = world_args(w);
    args.threads = threads;
    run_args(w, &args);
}

/* --- sequences ---------------------------------------------------------------------------------*/

static int64_t without_empty(AttnSegment *segments, int64_t count)
{
    int64_t left = 0;
    for (int64_t s = 0; s < count; s++)
        if (segments[s].length > 0)
            segments[left++] = segments[s];
    return left;
}

/* A sequence without queries, or without keys, need not be in that list. */
TEST(test_lists_need_not_name_every_sequence)
{
    int shorter = 0;
    for (int n = 0; n < SETTINGS; n++)
        if (settings[n].sequences > 1) {
            World *named = world_from(41, &settings[n], ATTN_F32, 2);
            World *listed = world_from(41, &settings[n], ATTN_F32, 2);
            AttnArgs args = world_args(listed);
            const int64_t count = args.positions_q.count;
            args.positions_q.count = without_empty(listed->segments_q, count);
            args.positions_k.count = without_empty(listed->segments_k, count);
            shorter += args.positions_q.count < count || args.positions_k.count < count;
            run_world(named, 1);
            run_args(listed, &args);
            assert_memory_equal(named->O, listed->O, sizeof(float) * (size_t)named->sizes[IN_Q]);
            for (int g = 0; g < 3; g++)
                assert_memory_equal(named->gradient[g], listed->gradient[g],
                                    sizeof(float) * (size_t)named->sizes[g]);
            world_free(listed);
            world_free(named);
        }
    assert_true(shorter >= 3);
}

/* Two batches of two sequences, the second one behind the first: no part of it is one run. */
TEST(test_sequences_in_two_batches)
{
    const Setting s = {"batches", 2, 1, 4, 1, 5, 0, 0, 1, 0, 1, 0, 2, 2, {5, 8}, {9, 6}};
    Setting twice = s; /* memory of twice as many tokens */
    twice.Nq[1] += 13, twice.Nk[1] += 15;
    World *one = world_new(&s, ATTN_F32, 1), *both = world_new(&twice, ATTN_F32, 1);
    AttnArgs args = world_args(both);
    Tensor *const all[] = {&args.Q,  &args.K,  &args.V,  &args.O,
                           &args.dO, &args.dQ, &args.dK, &args.dV};
    for (int t = 0; t < 8; t++) {
        all[t]->shape[0] = 2, all[t]->shape[1] /= 2;
        all[t]->stride[0] = all[t]->shape[1] * all[t]->stride[1];
    }
    args.shape.B = 2, args.shape.Nq = 13, args.shape.Nk = 15;
    args.positions_q = one->args.positions_q, args.positions_k = one->args.positions_k;
    assert_int_equal(ATTN_OK, sliding_window_library_cpu(&args));
    assert_int_equal(ATTN_OK, sliding_window_library_cpu_backward(&args));
    args_judge(&args, 1, 4, 1, s.name);
    world_free(one);
    world_free(both);
}

/* --- nothing but the options -------------------------------------------------------------------*/

static void assert_same_bits(const World *a, const World *b)
{
    assert_memory_equal(a->O, b->O, sizeof(float) * (size_t)a->sizes[IN_Q]);
    assert_memory_equal(a->lse, b->lse, sizeof(float) * (size_t)(a->total_q * a->s.H));
    for (int g = 0; g < (a->s.group > 0 ? 5 : 3); g++)
        assert_memory_equal(a->gradient[g], b->gradient[g], sizeof(float) * (size_t)a->sizes[g]);
}

/* dwq and dwk are sums over all tokens: their order must not be that of the threads. */
TEST(test_threads_change_no_bit)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 3 : 1) {
        const uint64_t state = window_state;
        World *one = world_from(state, &settings[n], (AttnDtype)(n % 3), 25);
        World *three = world_from(state, &settings[n], (AttnDtype)(n % 3), 25);
        run_world(one, 1);
        run_world(three, 3);
        assert_same_bits(one, three);
        world_free(three);
        world_free(one);
    }
}

/* Options that ask for nothing, and no options: the same. A temperature beside a cap too. */
TEST(test_neutral_options_change_no_bit)
{
    for (int capped = 0; capped < 2; capped++) {
        const Setting s = {"neutral", 4, 2, 8, 1, 9, 0,    capped ? 2.0f : 0,
                           1,         0, 1, 0, 0, 1, {90}, {130}};
        World *with[2];
        for (int n = 0; n < 2; n++) {
            with[n] = world_from(7, &s, ATTN_F32, 1);
            AttnArgs args = world_args(with[n]);
            with[n]->options.temperature = capped ? 5.0f : 1.0f;
            args.options = n ? &with[n]->options : NULL;
            run_args(with[n], &args);
        }
        assert_same_bits(with[0], with[1]);
        world_free(with[0]);
        world_free(with[1]);
    }
}

/* Bytes of workspace of one setting with N tokens, both passes. */
static size_t peak_of(int64_t N)
{
    const Setting s = {"memory", 2, 1, 8, 1, 20, 0, 0, 1, -0.1f, 1.1f, 0.1f, 4, 1, {N}, {N}};
    World *w = world_new(&s, ATTN_F32, 1);
    run_world(w, 1);
    world_free(w);
    return workspace_peak();
}

TEST(test_memory_is_proportional_to_n)
{
    assert_true(peak_of(1200) < 2.05 * (double)peak_of(600));
}

/* --- position maps that cannot be parted -------------------------------------------------------*/

/* The whole problem at once, with its map of many segments: a mask of zeros asks for that. */
TEST(test_a_map_of_sequences_without_parting)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 2 : 1)
        if (settings[n].sequences > 1) {
            World *w = world_new(&settings[n], ATTN_F32, 11);
            uint8_t *mask = calloc((size_t)(w->total_q * w->total_k), 1);
            AttnArgs args = world_args(w);
            assert_non_null(mask);
            args.mask = mask;
            run_args(w, &args);
            args_judge(&args, 1, 4, 1, w->s.name);
            free(mask);
            world_free(w);
        }
}

/* Local index j of a rolling cache holds key (j + turn) % Nk: one sequence in two segments. */
static void turn_keys(World *w, AttnArgs *args, int64_t turn)
{
    const int64_t Nk = w->total_k, row = w->s.Hkv * w->s.d;
    Tensor *const keys[] = {&args->K, &args->V};
    for (int t = 0; t < 2; t++)
        for (int64_t j = 0; j < Nk; j++)
            for (int64_t x = 0; x < row; x++)
                tensor_set(keys[t], j * row + x,
                           (float)w->input[t ? IN_V : IN_K][(j + turn) % Nk * row + x]);
    w->segments_k[0] = (AttnSegment){0, Nk - turn, 0, turn, 1};
    w->segments_k[1] = (AttnSegment){Nk - turn, turn, 0, 0, 1};
    args->positions_k.count = 2;
}

TEST(test_keys_of_a_rolling_cache)
{
    for (int n = 0; n < SETTINGS; n += quick() ? 2 : 1)
        if (settings[n].sequences == 1 && settings[n].dropout == 0) { /* it counts keys by place */
            World *w = world_new(&settings[n], ATTN_F32, 21);
            AttnArgs args = world_args(w);
            turn_keys(w, &args, w->total_k / 3);
            run_args(w, &args);
            args_judge(&args, 1, 4, 1, w->s.name);
            world_free(w);
        }
}

/* --- dropout -----------------------------------------------------------------------------------*/

/* Q = 0 makes P uniform, and V = the unit matrix makes O the weights themselves: those of several
 * tiles of keys, with other edges in every sequence. */
TEST(test_dropped_pairs)
{
    enum { N = 200 };
    const Setting s = {"weights",     2,        1, N, 0, -1, 0, 0, 1, 0, 1, 0.3f, 0, 3,
                       {30, 64, 150}, {N, N, N}};
    World *w = world_new(&s, ATTN_F32, 1);
    const uint32_t threshold = attn_dropout_threshold(s.dropout);
    int64_t kept = 0, pairs = 0;
    memset(w->input[IN_Q], 0, sizeof(double) * (size_t)w->sizes[IN_Q]);
    for (int64_t e = 0; e < w->sizes[IN_V]; e++)
        w->input[IN_V][e] = e / N % N == e % N;
    run_world(w, 2);
    for (int n = 0; n < s.sequences; n++)
        for (int64_t i = 0; i < s.Nq[n]; i++)
            for (int64_t h = 0; h < s.H; h++)
                for (int64_t j = 0; j < N; j++) {
                    const int keeps = attn_keeps(&w->options, threshold, n, h, i, j);
                    const float weight = w->O[((w->first_q[n] + i) * s.H + h) * N + j];
                    if (keeps)
                        assert_near(weight, 1.0 / N / 0.7, 1e-6, "a weight", s.name, j);
                    else
                        assert_true(weight == 0.0f);
                    kept += keeps;
                    pairs++;
                }
    /* lse knows nothing of it */
    for (int64_t e = 0; e < w->total_q * s.H; e++)
        assert_near(w->lse[e], log(N), 1e-6, "lse", s.name, e);
    /* binomial: five standard deviations */
    assert_true(fabs((double)kept / (double)pairs - 0.7) < 5 * sqrt(0.21 / (double)pairs));
    world_free(w);
}

/* weigh_row makes four words for four keys where attn_keeps makes them for one: the same answer, at
 * the threshold too, from any key on and with gaps. */
TEST(test_a_row_is_dropped_pair_by_pair)
{
    const int64_t j[] = {2, 3, 4, 5, 6, 7, 8, 21, 22, 0, 1, 4};
    const AttnOptions o = {.dropout = 0.5f, .dropout_seed = UINT64_C(0x299f31d0a4093822)};
    for (int at = 0; at < 12; at++)
        for (uint32_t above = 0; above < 2; above++) {
            const PhiloxWords words = philox_4x32_10(
                (PhiloxWords){{(uint32_t)(j[at] / 4), 7, 1, 5}}, 0xa4093822, 0x299f31d0);
            const uint32_t threshold = words.word[j[at] % 4] + above;
            const WeightRule rule = {0, 1, 0, 1, threshold, 2.0f, &o};
            const float P[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
            float weight[12];
            weigh_row(&rule, (WeightPlace){5, 1, 7, j}, 12, P, weight);
            assert_true(weight[at] == (above ? 0.0f : 2.0f));
            for (int c = 0; c < 12; c++)
                assert_true(weight[c] == (attn_keeps(&o, threshold, 5, 1, 7, j[c]) ? 2.0f : 0.0f));
        }
}

/* --- tiles -------------------------------------------------------------------------------------*/

enum { MOST = 40, SEQUENCES = 4 };

static int64_t below(int64_t n)
{
    return case_random() % (unsigned)n;
}

typedef struct Sequences {
    AttnArgs args;
    AttnSegment q[SEQUENCES], k[SEQUENCES];
    uint8_t mask[MOST * MOST];
} Sequences;

/* Some sequences side by side (a few of them may be empty), or a single one; upper- or lower-right
 * alignment; any window. */
static void random_sequences(Sequences *s, int64_t count)
{
    static const int64_t limits[] = {-1, 0, 1, 2, 5, 8, 15, 16, 1000, INT64_C(1) << 40};
    const int upper_left = below(3) == 0;
    AttnArgs *a = &s->args;
    *a = (AttnArgs){.shape = {1 + below(2), 1 + below(3), 1, 0, 0, 1}};
    for (int64_t t = 0; t < count; t++) {
        const int64_t Nq = below(MOST / count + 1), Nk = below(MOST / count + 1);
        s->q[t] = (AttnSegment){a->shape.Nq, Nq, t, upper_left ? 0 : Nk - Nq, 1};
        s->k[t] = (AttnSegment){a->shape.Nk, Nk, t, 0, 1};
        a->shape.Nq += Nq;
        a->shape.Nk += Nk;
    }
    a->positions_q = attn_positions(s->q, count);
    a->positions_k = attn_positions(s->k, count);
    a->rule = (AttnRule){limits[below(10)], limits[below(10)]};
}

/* Each pair of each tile of each sequence. With a full mask no tile is clean, whatever it holds. */
static WindowTiles ask_every_pair(const Sequences *s, int64_t Br, int64_t Bc)
{
    const AttnArgs *a = &s->args;
    const int64_t heads = a->shape.B * a->shape.H;
    WindowTiles sum = {Br, Bc, 0, 0, 0};
    for (int64_t t = 0; t < a->positions_q.count; t++)
        for (int64_t i = 0; i < s->q[t].length; i += Br)
            for (int64_t j = 0; j < s->k[t].length; j += Bc) {
                int64_t seen = 0, pairs = 0;
                for (int64_t r = i; r < i + Br && r < s->q[t].length; r++)
                    for (int64_t c = j; c < j + Bc && c < s->k[t].length; c++, pairs++)
                        seen +=
                            attn_visible(a->rule, attn_position(a->positions_q, s->q[t].first + r),
                                         attn_position(a->positions_k, s->k[t].first + c));
                sum.skipped += seen == 0 ? heads : 0;
                sum.masked += seen > 0 && (seen < pairs || a->mask) ? heads : 0;
                sum.clean += seen == pairs && !a->mask ? heads : 0;
            }
    return sum;
}

static void compare(const Sequences *s)
{
    const int64_t Br = 1 + below(12), Bc = 1 + below(12);
    const WindowTiles asked = ask_every_pair(s, Br, Bc);
    const WindowTiles walked = window_count_tiles(&s->args, Br, Bc);
    assert_memory_equal(&asked, &walked, sizeof asked);
}

/* One sequence in several batches, several of them, one behind a full mask. */
TEST(test_tiles)
{
    Sequences s;
    for (int n = 0; n < 8500; n++) {
        const int several = n >= 5000 && n < 8000, masked = n >= 8000;
        random_sequences(&s, several ? 1 + below(SEQUENCES) : 1);
        if (several)
            s.args.shape.B = 1;
        for (int e = 0; masked && e < MOST * MOST; e++)
            s.mask[e] = below(2) == 0;
        s.args.mask = masked ? s.mask : NULL;
        if (s.args.shape.Nq > 0 && s.args.shape.Nk > 0)
            compare(&s);
    }
}

/* A causal window over 2^20 tokens, by hand: a row tile has up to w / Bc - 1 full tiles, a masked
 * one on the diagonal and from the 17th on one at the far end. */
TEST(test_tiles_of_long_sequence)
{
    const int64_t N = INT64_C(1) << 20, T = N / 64;
    const AttnSegment all = {0, N, 0, 0, 1};
    AttnArgs a = {.shape = {1, 3, 1, N, N, 1}, .rule = {1024, 0}};
    WindowTiles of;
    a.positions_q = a.positions_k = attn_positions(&all, 1);
    of = window_count_tiles(&a, 64, 64);
    assert_int_equal(of.clean, 3 * (15 * T - 15 * 16 / 2));
    assert_int_equal(of.skipped + of.masked + of.clean, 3 * T * T);
    assert_int_equal(of.masked, 3 * (T + (T - 16)));
}
