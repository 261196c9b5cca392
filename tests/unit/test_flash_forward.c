/* SPDX-License-Identifier: MIT
 *
 * test_flash_forward: what the sweep of stage 03 cannot see.
 *
 * - Traffic: the counters of v0 and v1 against the model, for many (N, d, M), masks and dtypes, and
 *   against the closed forms of the papers, written out here once more.
 * - Tile sizes: ceilings, and what really has to fit in fast memory.
 * - v2 with a softcap so small that its reciprocal overflows.
 * - v2's exp2: error over a dense sample of its range, exact zeros, NaN; for each instruction set.
 */
#include <math.h>

#include "attention/forward/flash_library.h"
#include "judge_case.h"

#include "attn_config.h"
#include "attn_pairs.h"
#include "flash_forward_rungs.h"
#include "harness/device/device.h"
#include "harness/models/model.h"
#include "harness/rung.h"
#include "problem_rows.h"
#include "units/exp_isa.h"
#include "units/fast_memory.h"
#include "units/vector.h"

#include "attention/forward/cpu/simd.h"

extern const Rung rung_flash_forward_standard, rung_flash_forward_v0_fa1_tiles,
    rung_flash_forward_v1_fa2_rows;

static FastMemory fast_memory_of(const AttnShape *s, int64_t M)
{
    return fast_memory(M, (int)s->Nq, (int)s->Nk, (int)s->d);
}

static AccessCounts count(const Rung *rung, const Case *c, int64_t M)
{
    AccessCounts counted;
    assert_int_equal(ATTN_OK, rung_count(rung, &c->args, 0, M, &counted));
    return counted;
}

/* --- traffic -----------------------------------------------------------------------------------*/

static void assert_traffic(AccessCounts counted, ModelTraffic model)
{
    assert_true((double)counted.loads == model.loads);
    assert_true((double)counted.stores == model.stores);
    assert_true(4.0 * (double)counted.loads == model.load_bytes);
    assert_true(4.0 * (double)counted.stores == model.store_bytes);
}

/* A rung moves float32, whatever the tensors hold. */
static void compare_traffic(const Case *c, int64_t M)
{
    const FastMemory fast = fast_memory_of(&c->args.shape, M);
    AttnArgs f32 = c->args;
    f32.Q.dtype = ATTN_F32;
    assert_traffic(count(&rung_flash_forward_v0_fa1_tiles, c, M),
                   model_fa1_traffic(&f32, fast.Br, fast.Bc));
    assert_traffic(count(&rung_flash_forward_v1_fa2_rows, c, M),
                   model_fa2_traffic(&f32, fast.Br, fast.Bc, 1));
    assert_traffic(count(&rung_flash_forward_standard, c, M),
                   model_standard_traffic(&f32, fast.Br));
}

TEST(test_traffic_is_the_models)
{
    static const int64_t lengths[] = {1, 2, 17, 64, 130}, channels[] = {1, 8, 33, 64};
    static const int64_t memories[] = {1, 31, 256, 1000, 4096, 100000};
    for (int q = 0; q < 5; q++)
        for (int k = 0; k < 5; k++)
            for (int x = 0; x < 4; x++)
                for (int m = 0; m < 6; m += quick() ? 5 : 1) {
                    const AttnShape s = {1, 2, 1, lengths[q], lengths[k], channels[x]};
                    const AttnMask mask =
                        (q + k + x + m) % 2 ? ATTN_MASK_NONE : ATTN_MASK_CAUSAL_LOWER_RIGHT;
                    Case *c = case_new(s, (AttnDtype)((q + k + m) % 3), LAYOUT_BSHD, 1);
                    c->args.threads = 1 + m % 2;
                    case_align(c, mask);
                    compare_traffic(c, memories[m]);
                    case_free(c);
                }
}

/* One head, f32, no mask: the numbers of the two papers, without the model. */
TEST(test_traffic_is_the_papers)
{
    for (int64_t N = 64; N <= (quick() ? 64 : 256); N *= 2)
        for (int64_t d = 16; d <= 64; d *= 2)
            for (int64_t M = 4 * d; M <= 64 * d * d; M *= 4) {
                Case *c = case_new((AttnShape){1, 1, 1, N, N, d}, ATTN_F32, LAYOUT_BSHD, 1);
                const int64_t Bc = (M + 4 * d - 1) / (4 * d), Tc = (N + Bc - 1) / Bc;
                const int64_t Br = Bc < d ? Bc : d, Tr = (N + Br - 1) / Br;
                AccessCounts counted;
                counted = count(&rung_flash_forward_v0_fa1_tiles, c, M);
                assert_int_equal(2 * N * d + Tc * (2 * N * d + 2 * N) + 2 * N, counted.loads);
                assert_int_equal((Tc + 1) * (N * d + 2 * N) + N, counted.stores);
                counted = count(&rung_flash_forward_v1_fa2_rows, c, M);
                assert_int_equal(N * d + Tr * 2 * N * d, counted.loads);
                assert_int_equal(N * d + N, counted.stores);
                counted = count(&rung_flash_forward_standard, c, M);
                assert_int_equal(2 * N * N + N * d + Tr * 2 * N * d, counted.loads);
                assert_int_equal(2 * N * N + N * d + N, counted.stores);
                case_free(c);
            }
}

/* A counter on a wrong answer would count the wrong thing. */
TEST(test_standard_is_right)
{
    for (int n = 0; n < OPTION_COUNT; n++) {
        Case *c = case_option(&options[n], (AttnDtype)(n % 3), 1 + n % 5, 1);
        if (!rung_skips(&rung_flash_forward_standard, ON_CPU, &c->args)) {
            count(&rung_flash_forward_standard, c, 700);
            case_judge(c, 0, 4, 1, options[n].name);
        }
        case_free(c);
    }
}

/* A rung counts rows, and steps from row to row, in int: without these limits it would wrap. */
TEST(test_what_int_cannot_count)
{
    static const int64_t M = (int64_t)1 << 20;
    static const struct {
        AttnShape shape; /* B H Hkv Nq Nk d */
        int skipped;
    } cases[] = {
        {{1, 1, 1, 1, 1024 * M - 1025, 1}, 0}, {{1, 1, 1, 1, 1024 * M - 1024, 1}, 1},
        {{1, 1, 1, 1024 * M - 1024, 1, 1}, 1}, {{1, 2047 * 1024, 1, 1, 1, 1024}, 0},
        {{1, 2048 * 1024, 1, 1, 1, 1024}, 1},  {{2047, 1024, 1, 1024, 1, 1}, 0},
        {{2048, 1024, 1, 1024, 1, 1}, 1},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const AttnSegment one = {.length = 1, .stride = 1};
        AttnArgs a = {.shape = cases[n].shape, .scale = 1.0f};
        a.positions_q.host = a.positions_k.host = &one;
        a.positions_q.count = a.positions_k.count = 1;
        assert_int_equal(cases[n].skipped,
                         rung_skips(&rung_flash_forward_standard, ON_CPU, &a) != NULL);
    }
}

/* scale / cap is no float32 number here, or q times it is none. */
TEST(test_tiny_cap)
{
    static const float caps[] = {1e-30f, 1e-38f, 1e-45f};
    for (int n = 0; n < 6; n++) {
        Case *c = case_new((AttnShape){1, 2, 1, 40, 50, 24}, ATTN_F32, LAYOUT_BSHD, 8);
        case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        c->args.softcap = caps[n / 2];
        c->args.scale = n % 2 ? -0.25f : 0.25f;
        c->args.threads = 1;
        assert_int_equal(ATTN_OK, flash_forward_library_cpu(&c->args));
        case_judge(c, 0, 4, 1, "library");
        case_free(c);
    }
}

/* What a kernel tells the byte model is what it is made of. */
TEST(test_tiles_of_the_kernels)
{
    const FlashSimd *simd = &flash_simd_portable;
    const AttnSegment whole = {0, 1000, 0, 0, 1};
    AttnArgs a = {.shape = {1, 1, 1, 1000, 1000, 64}, .threads = 1};
    FlashTiles tiles;
    a.positions_q = a.positions_k = attn_positions(&whole, 1);
#ifdef HAVE_ISA_AVX2
    simd = strcmp(exp_isa(), "avx2") == 0 ? &flash_simd_avx2 : simd;
#endif
#ifdef HAVE_ISA_AVX512
    simd = strcmp(exp_isa(), "avx512") == 0 ? &flash_simd_avx512 : simd;
#endif
    assert_string_equal(exp_isa(), simd->name);
    tiles = flash_tiles_library_cpu(&a);
    assert_int_equal(simd->panel, tiles.Bc);
    assert_int_equal(0, tiles.Br % simd->strip);
    assert_int_equal((1000 + tiles.Br - 1) / tiles.Br, tiles.Tr);
#ifdef HAVE_CUDA
    static const Rung *const rungs[] = {&rung_flash_forward_v0_fa1,
                                        &rung_flash_forward_v1_fa2,
                                        &rung_flash_forward_v2_register_tiles,
                                        &rung_flash_forward_v3_mma,
                                        &rung_flash_forward_v4_ldmatrix,
                                        &rung_flash_forward_v5_cp_async,
                                        &rung_flash_forward_v6_exp2,
                                        &rung_flash_forward_v7_full_tiles,
                                        &rung_flash_forward_v8_schedule};
    for (int k = 0; k < 9; k++)
        for (int d = 64; d <= 128; d += 64) {
            const Problem p = {.d = d};
            const Tiles t = rungs[k]->tiles(&p);
            assert_int_equal(0, t.Br % 16);
            assert_int_equal(0, t.Bc % 16);
            /* Q and one tile of keys at least lie in shared memory, 99 KiB where there is least */
            assert_in_range((t.Br + t.Bc) * d * (k < 3 ? 4 : 2), 1, 101376);
        }
#endif
}

TEST(test_smem_limit)
{
    assert_int_equal(0, device_smem_limit());
    assert_int_equal(0, device_smem_refuses(INT64_C(1) << 40));
    device_set_smem_limit(1000);
    assert_int_equal(0, device_smem_refuses(1000));
    assert_int_equal(0, device_smem_refused());
    assert_int_equal(1, device_smem_refuses(1001));
    assert_int_equal(1001, device_smem_refused());
    char why[128] = "";
    assert_true(device_smem_explain(why, sizeof why));
    assert_non_null(strstr(why, "it needs 1001 bytes of shared memory, --smem-limit is 1000"));
    device_set_smem_limit(0);
    assert_int_equal(0, device_smem_refused());
}

TEST(test_tile_sizes)
{
    const AttnShape s = {1, 1, 1, 1000, 1000, 64}, small = {1, 1, 1, 300, 300, 64};
    FastMemory t = fast_memory_of(&s, 1); /* floors would give tiles of no row */
    assert_int_equal(1, t.Br);
    assert_int_equal(1, t.Bc);
    t = fast_memory_of(&s, 4 * 64 * 7 + 1);
    assert_int_equal(8, t.Bc);
    assert_int_equal(8, t.Br);
    t = fast_memory_of(&s, 4 * 64 * 96); /* Br stops at d */
    assert_int_equal(96, t.Bc);
    assert_int_equal(64, t.Br);
    t = fast_memory_of(&s, INT64_C(1) << 40);
    assert_int_equal(1000, t.Bc);
    t = fast_memory_of(&s, 0);
    assert_int_equal(FAST_ELEMENTS / (4 * 64), t.Bc);
    /* M = 4 * 64 * 64: four tiles of 64 x 64 are M, S is M / 4 more, m and l on top */
    t = fast_memory_of(&small, 16384);
    assert_int_equal(16384 + 4096 + 128, fast_elements(&t));
    /* and this is where they lie: behind l nothing of it is left */
    float *memory = malloc(sizeof *memory * (size_t)fast_elements(&t));
    assert_non_null(memory);
    place_tiles(&t, memory);
    assert_true(t.l_i + t.Br == memory + fast_elements(&t));
    free(memory);
}

/* --- exp2 --------------------------------------------------------------------------------------*/

static void check_exp2(const FlashSimd *simd)
{
    enum { N = 1 << 20 };
    float *x = aligned_alloc(64, N * sizeof *x), *y = aligned_alloc(64, N * sizeof *y);
    double worst = 0;
    assert_true(x && y);
    for (int n = 0; n < N; n++) /* -0 down to -126, in steps that are no power of two */
        x[n] = -(float)n * (126.0f / N);
    x[1] = -1e-30f;
    simd->exp2_all(x, y, N);
    for (int n = 0; n < N; n++) {
        const double exact = exp2((double)x[n]), error = fabs((double)y[n] - exact) / exact;
        worst = error > worst ? error : worst;
    }
    assert_true(y[0] == 1.0f);
    assert_true(worst < 1.2 * 0x1p-23);
    for (int n = 0; n < 64; n++)
        x[n] = n % 4 == 0 ? -INFINITY : n % 4 == 1 ? -128.0f : n % 4 == 2 ? -3e38f : NAN;
    simd->exp2_all(x, y, 64);
    for (int n = 0; n < 64; n++)
        assert_true(n % 4 == 3 ? !isfinite(y[n]) : y[n] == 0.0f);
    free(x);
    free(y);
}

/* The capped score and its slope over small, middle and large arguments of both signs. */
static void check_cap(const FlashSimd *simd)
{
    const int64_t strip = simd->strip, cols = SIMD_ROW;
    float *S = aligned_alloc(64, (size_t)(strip * cols) * sizeof *S);
    float *slope = aligned_alloc(64, (size_t)(strip * cols) * sizeof *slope);
    double worst = 0;
    assert_true(S && slope);
    for (int turn = 0; turn < 40; turn++) {
        const float step = turn < 20 ? 1e-3f : turn < 39 ? 7e-3f : 1e30f;
        for (int64_t n = 0; n < strip * cols; n++)
            S[n] = slope[n] = (n % 2 ? -1.0f : 1.0f) * step * (float)(turn % 20 * 40 + n);
        S[0] = slope[0] = turn == 0 ? 1e-30f : turn == 1 ? -INFINITY : S[0];
        float *x = aligned_alloc(64, (size_t)(strip * cols) * sizeof *x);
        assert_non_null(x);
        memcpy(x, S, (size_t)(strip * cols) * sizeof *x);
        simd->cap(S, slope, 1.0f, cols);
        for (int64_t n = 0; n < strip * cols; n++) {
            const double exact = tanh((double)x[n]), error = fabs((double)S[n] - exact);
            worst = error > worst * fabs(exact) ? error / fabs(exact) : worst;
            assert_true(fabsf(slope[n] - (1.0f - S[n] * S[n])) <= 0x1p-23f);
        }
        free(x);
    }
    assert_true(worst < 2 * 0x1p-23);
    S[0] = NAN;
    S[1] = -1e30f;
    simd->cap(S, NULL, 3.0f, simd->lanes);
    assert_true(!isfinite(S[0]) && S[1] == -3.0f);
    free(S);
    free(slope);
}

static void check_isa(const FlashSimd *simd)
{
    check_exp2(simd);
    check_cap(simd);
}

TEST(test_functions_of_each_isa)
{
    check_isa(&flash_simd_portable);
#ifdef HAVE_ISA_AVX2
    if (exp_isa_usable(&exp_isa_avx2))
        check_isa(&flash_simd_avx2);
#endif
#ifdef HAVE_ISA_AVX512
    if (exp_isa_usable(&exp_isa_avx512))
        check_isa(&flash_simd_avx512);
#endif
}
