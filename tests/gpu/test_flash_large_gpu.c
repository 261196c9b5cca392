/* SPDX-License-Identifier: MIT
 *
 * test_flash_large_gpu: tensors of more than 2^31 elements, where a 32-bit index wraps around.
 *
 * The problems are those of large_case.h. O and lse of all rows of all heads: every lse finite.
 * Inputs are made on the device and stay there. What the oracle needs, the rows it judges and the
 * keys that they see, is downloaded: a small case with the positions of the large one.
 *
 * Exit status: 0 right, 1 wrong, 77 no device, or less than 40 GiB on it.
 */
#include <math.h>

#include "device_case.h"

#include "../unit/judge_case.h"
#include "harness/rung.h"
#include "large_case.h"

CUDA_RUNG_FN(flash_forward, v0_fa1)
CUDA_RUNG_FN(flash_forward, v1_fa2)
CUDA_RUNG_FN(flash_forward, v2_register_tiles)
CUDA_RUNG_FN(flash_forward, v3_mma)
CUDA_RUNG_FN(flash_forward, v4_ldmatrix)
CUDA_RUNG_FN(flash_forward, v5_cp_async)
CUDA_RUNG_FN(flash_forward, v6_exp2)
CUDA_RUNG_FN(flash_forward, v7_full_tiles)
CUDA_RUNG_FN(flash_forward, v8_schedule)

/* O (or the state) and lse of the sampled queries into the small case. */
static void fetch_outputs(const Large *g, const Sample *queries, float *O_state_dev, Case *c)
{
    const int64_t Nq = g->args.shape.Nq;
    float *lse = malloc((size_t)(HEADS * Nq) * sizeof *lse);
    Storage state;
    Tensor from = g->args.O;
    assert_non_null(lse);
    assert_int_equal(
        0, tensor_new(&state, ATTN_F32, LAYOUT_BSHD, 1, queries->count, HEADS, from.shape[3]));
    if (O_state_dev) {
        from.data = O_state_dev;
        from.dtype = ATTN_F32;
    }
    assert_int_equal(0, device_download(lse, g->args.lse, (size_t)(HEADS * Nq) * sizeof *lse));
    for (int64_t e = 0; e < HEADS * Nq; e++) /* every row of every head has one */
        assert_true(isfinite(lse[e]));
    for (int64_t r = 0, at = 0; r < queries->runs; at += queries->length[r++]) {
        fetch_rows(&from, queries->first[r], O_state_dev ? &state.view : &c->args.O, at,
                   queries->length[r]);
        for (int64_t h = 0; h < HEADS; h++)
            memcpy(c->lse + h * queries->count + at, lse + h * Nq + queries->first[r],
                   sizeof *lse * (size_t)queries->length[r]);
    }
    if (O_state_dev)
        flash_state_store(&c->args, state.view.data);
    tensor_free(&state);
    free(lse);
}

static void judge(const char *name, const Large *g, const Sample *queries, float *O_state_dev,
                  Case *c, const Oracle *oracle, double bound_c)
{
    assert_int_equal(0, device_synchronize());
    fetch_outputs(g, queries, O_state_dev, c);
    const Check check = check_of(&c->args, oracle, 0, bound_c);
    print_message("%s: worst error %.2f of its bound\n", name, check.bound_ratio);
    assert_pass(&check, &c->args, name);
}

/* Every forward variant of the dtype, then every kernel that resumes. */
static void run_all(Large *g, const Sample *queries, const Sample *keys)
{
    static const struct {
        const char *name;
        AttnFn forward;
        unsigned dtypes;
        double c;
    } variants[] = {
        {"v0_fa1", flash_forward_v0_fa1, 1, 4},
        {"v1_fa2", flash_forward_v1_fa2, 1, 4},
        {"v2_register_tiles", flash_forward_v2_register_tiles, 1, 4},
        {"v3_mma", flash_forward_v3_mma, 6, 16},
        {"v4_ldmatrix", flash_forward_v4_ldmatrix, 6, 16},
        {"v5_cp_async", flash_forward_v5_cp_async, 6, 16},
        {"v6_exp2", flash_forward_v6_exp2, 6, 16},
        {"v7_full_tiles", flash_forward_v7_full_tiles, 6, 16},
        {"v8_schedule", flash_forward_v8_schedule, 6, 16},
        {"library, f32", flash_forward_library_cuda, 1, 4},
        {"library, 16 bit", flash_forward_library_cuda, 6, 16},
    };
    const AttnDtype dtype = g->args.Q.dtype;
    const size_t rows = (size_t)(HEADS * g->args.shape.Nq), state = rows * 128 * sizeof(float);
    Case *c = large_small_case(g, queries, keys);
    float *O_state_dev = device_alloc(state), *minus_inf = malloc(rows * sizeof *minus_inf);
    assert_true(O_state_dev && minus_inf);
    for (size_t e = 0; e < rows; e++)
        minus_inf[e] = -INFINITY;
    Oracle oracle = oracle_of(&c->args, 0, 4);
    assert_int_equal(queries->count, oracle.rows.count); /* all of the sample, no sample of it */
    for (size_t n = 0; n < sizeof variants / sizeof *variants; n++) {
        const int rung = variants[n].name[0] == 'v'; /* which takes one segment */
        if (!(variants[n].dtypes >> dtype & 1) || (rung && g->args.positions_q.count > 1))
            continue;
        assert_int_equal(0, device_fill_bytes(g->args.O.data, 0xFF, large_bytes(&g->args.O)));
        assert_int_equal(0, device_fill_bytes(g->args.lse, 0xFF, rows * sizeof(float)));
        assert_int_equal(ATTN_OK, variants[n].forward(&g->args));
        judge(variants[n].name, g, queries, NULL, c, &oracle, variants[n].c);
    }
    for (int k = 0; k < KERNEL_COUNT; k++) {
        if (!kernel_takes(&kernels[k], dtype))
            continue;
        assert_int_equal(0, device_fill_bytes(O_state_dev, 0, state));
        assert_int_equal(0, device_upload(g->args.lse, minus_inf, rows * sizeof(float)));
        assert_int_equal(ATTN_OK, kernels[k].function(&g->args, O_state_dev));
        judge(kernels[k].name, g, queries, O_state_dev, c, &oracle, kernels[k].c);
    }
    oracle_free(&oracle);
    free(minus_inf);
    device_free(O_state_dev);
    case_free(c);
}

int main(void)
{
    return large_main(run_all, 40);
}
