/* SPDX-License-Identifier: MIT
 *
 * v13_fused_delta: v12, but delta, lse and the zeros of dQ come from one kernel that moves 16 bytes
 * at a time (hopper_pass.cuh).
 *
 * Prediction (H200, bf16, d = 64): 2 % at N = 16384, 10 % at N = 1024.
 * Measured: docs/lab/04_hopper.md, beside the prediction.
 *
 * Interface:
 * - flash_backward_v13_fused_delta, flash_backward_tiles_v13_fused_delta: as v10.
 */
#include "alloc.h"
#include "hopper_pass.cuh"
#include "wgmma_turns.cuh"

using namespace rung;

template <typename T, int D> struct LaunchV13 {
    static AttnStatus run(const AttnArgs *a, const Pass &)
    {
        typedef KeyTile<D> C;
        if (flash_backward_deterministic() || !on_16_bytes(&a->O) || !on_16_bytes(&a->dO))
            return ATTN_SKIP;
        float *memory_dev =
            (float *)workspace_alloc_device(pass_floats(&a->shape, D) * sizeof(float));
        if (!memory_dev)
            return ATTN_NO_MEMORY;
        const Pass pass = place_pass(&a->shape, memory_dev);
        /* Asked for before anything is launched: a refusal leaves nothing behind. */
        AttnStatus status = cuda_reserve_smem((const void *)turns_kernel<T, C>, C::ALL);
        if (status == ATTN_OK)
            status = prepare_pass<T, D>(a, SumDelta<T>(), pass, 0);
        if (status == ATTN_OK)
            status = launch_keys<T, C>(turns_kernel<T, C>, a, pass, 128 + CONSUMER_THREADS);
        workspace_free_device(memory_dev); /* kept until the kernels are done */
        return status;
    }
};

FlashTiles flash_backward_tiles_v13_fused_delta(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? 128 : 64, 128);
}

AttnStatus flash_backward_v13_fused_delta(const AttnArgs *a)
{
    return hopper_is_here() ? run_16_bit<LaunchV13>(a, Pass()) : ATTN_SKIP;
}
