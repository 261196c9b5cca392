/* SPDX-License-Identifier: MIT
 *
 * v12_turns: v11, but the two warpgroups take turns at the tensor cores (wgmma_turns.cuh).
 *
 * Interface:
 * - flash_backward_v12_turns, flash_backward_tiles_v12_turns: as v10.
 */
#include "wgmma_turns.cuh"

using namespace rung;

template <typename T, int D> struct LaunchV12 {
    static AttnStatus run(const AttnArgs *a, const Pass &pass)
    {
        typedef KeyTile<D> C;
        return launch_keys<T, C>(turns_kernel<T, C>, a, pass, 128 + CONSUMER_THREADS);
    }
};

FlashTiles flash_backward_tiles_v12_turns(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, a->shape.d == 64 ? 128 : 64, 128);
}

AttnStatus flash_backward_v12_turns(const AttnArgs *a)
{
    return run_on_hopper<LaunchV12>(a);
}
