/* SPDX-License-Identifier: MIT
 *
 * test_window_decode_gpu: stage 05's library against what decoding asks for: a few queries and a
 * rolling cache. v3_decode_window, where it takes the case (a cache that has not come round).
 *
 * - A cache of Nk slots in which token t lies in slot t % Nk, two segments of the position map: the
 *   attention of the same tokens in the order in which they came, by the oracle. Every place of the
 *   seam, groups of 1 to 16 query heads, keys enough for many parts.
 * - Every option of oracle_case.h and every shard of a ring, among them falling positions, strides,
 *   several sequences and masks.
 */
#include "device_case.h"
#include "gpu_main.h"

#include "../unit/judge_case.h"
#include "attention/window/window_library.h"
#include "attn_options.h"
#include "harness/rung.h"

#include <cuda_runtime_api.h>

CUDA_RUNG_FN(sliding_window, v3_decode_window)

/* O and lse of the device to the case on the host. */
static void run_on_device(const Case *c)
{
    DeviceCase *d = device_case_new(c);
    const AttnArgs args = device_case_args(d, &c->args);
    const AttnFn pass = rung_skips(&rung_sliding_window_v3_decode_window, ON_CUDA, &args)
                            ? sliding_window_library_cuda
                            : sliding_window_v3_decode_window;
    assert_int_equal(ATTN_OK, pass(&args));
    assert_int_equal(0, device_synchronize());
    assert_int_equal(0, device_download(c->O.base, d->O_dev, c->O.bytes));
    assert_int_equal(0, device_download(c->lse, d->lse_dev, d->rows * sizeof *c->lse));
    device_case_free(d);
}

static void assert_O_right(const Case *c, const Oracle *oracle, const char *label)
{
    assert_right(c, oracle, 0, 4, label);
    assert_true(tensor_intact(&c->O));
}

/* The keys and values of c, token t in slot (t + seam) % Nk, and the map that says so. */
static void roll_cache(Case *c, int64_t seam)
{
    const AttnShape *n = &c->args.shape;
    Storage *both[] = {&c->K, &c->V};
    if (seam == 0)
        return; /* it has not come round yet: one segment */
    for (int t = 0; t < 2; t++) {
        float *tokens = malloc(sizeof *tokens * (size_t)(n->Nk * n->d));
        assert_non_null(tokens);
        for (int64_t b = 0; b < n->B; b++)
            for (int64_t h = 0; h < n->Hkv; h++) {
                for (int64_t j = 0; j < n->Nk; j++)
                    tensor_read_row(&both[t]->view, b, j, h, tokens + j * n->d);
                for (int64_t j = 0; j < n->Nk; j++)
                    tensor_write_row(&both[t]->view, b, (j + seam) % n->Nk, h, tokens + j * n->d);
            }
        free(tokens);
    }
    /* slots 0 .. seam-1 hold the newest tokens */
    c->segments_k[0] = (AttnSegment){0, seam, 0, n->Nk - seam, 1};
    c->segments_k[1] = (AttnSegment){seam, n->Nk - seam, 0, 0, 1};
    c->args.positions_k.count = 2;
}

static void try_cache(AttnShape shape, AttnDtype dtype, int64_t window, int64_t seam)
{
    Case *c = case_new(shape, dtype, (seam + dtype) % 2 ? LAYOUT_BSHD : LAYOUT_ODD, 1);
    Oracle oracle;
    case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    c->args.rule.left = window;
    assert_int_equal(0, oracle_run(&oracle, &c->args, 0, 4)); /* tokens in order */
    roll_cache(c, seam);
    run_on_device(c);
    assert_O_right(c, &oracle, "a rolling cache");
    oracle_free(&oracle);
    case_free(c);
}

TEST(test_every_place_of_the_seam)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int64_t seam = 0; seam < 37; seam += small ? 12 : 1)
            try_cache((AttnShape){2, 4, 2, 1, 37, 24}, (AttnDtype)dtype, 36, seam);
}

/* Groups of every size that a kernel is compiled for, and sizes between; widths of every one; one
 * query and some; as many keys as a cache has, and a smaller window. */
TEST(test_groups_widths_and_parts)
{
    static const int64_t heads[][2] = {{2, 2}, {4, 2}, {3, 1},  {8, 2},
                                       {5, 1}, {8, 1}, {12, 1}, {16, 1}};
    static const int64_t widths[] = {8, 40, 64, 75, 96, 128, 200, 256};
    for (int n = 0; n < 8 * 8; n += small ? 5 : 1) {
        const int64_t Nk = n % 3 == 0 ? 2600 : 700, Nq = n % 4 == 3 ? 5 : 1;
        const AttnShape shape = {1 + n % 2, heads[n / 8][0], heads[n / 8][1], Nq,
                                 Nk,        widths[n % 8]};
        try_cache(shape, (AttnDtype)(n % 3), n % 5 ? Nk - 1 : 300, n % 2 ? case_random() % Nk : 0);
    }
}

static void try_case(const Case *c, const char *label)
{
    Oracle oracle = oracle_of(&c->args, 0, 4);
    run_on_device(c);
    assert_O_right(c, &oracle, label);
    oracle_free(&oracle);
}

TEST(test_any_map)
{
    for (int larger = 1; larger <= (small ? 1 : 25); larger += 24)
        for (int n = 0; n < OPTION_COUNT; n += small ? 3 : 1)
            for (int dtype = 0; dtype < 3; dtype++) {
                Case *c = case_option(&options[n], (AttnDtype)dtype, larger, 1);
                try_case(c, options[n].name);
                case_free(c);
            }
    for (int n = 0; n < SHARD_COUNT; n += small ? 3 : 1)
        for (int dtype = 0; dtype < 3; dtype++) {
            Case *c =
                shard_new(&shards[n], (AttnDtype)dtype, (n + dtype) % 2 ? LAYOUT_ODD : LAYOUT_BSHD);
            try_case(c, shards[n].name);
            case_free(c);
        }
}
