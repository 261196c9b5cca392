/* SPDX-License-Identifier: MIT
 *
 * v13_fused_delta: v12, but delta, lse and the zeros of dQ come from one kernel that moves 16 bytes
 * at a time (hopper_pass.cuh).
 *
 * Interface:
 * - flash_backward_v13_fused_delta, flash_backward_tiles_v13_fused_delta: as v10.
 */
#include "alloc.h"
#include "hopper_pass.cuh"
#include "wgmma_turns.cuh"

using namespace rung;

template <typename T, int D> static AttnStatus launch(const AttnArgs *a, const Pass &pass)
{
    typedef KeyTile<D> C;
    return launch_keys<T, C>(turns_kernel<T, C>, a, pass, 128 + CONSUMER_THREADS);
}

template <typename T, int D> struct LaunchV13 {
    static AttnStatus run(const AttnArgs *a, const Pass &)
    {
        if (flash_backward_deterministic())
            return ATTN_SKIP;
        float *memory_dev =
            (float *)workspace_alloc_device(pass_floats(&a->shape, D) * sizeof(float));
        if (!memory_dev)
            return ATTN_NO_MEMORY;
        typedef KeyTile<D> C;
        const AttnStatus status = run_prepared<T, D>(
            a, launch<T, D>, (const void *)turns_kernel<T, C>, C::ALL, memory_dev);
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
