/* SPDX-License-Identifier: MIT
 *
 * hopper_gradients: the 16-bit gradients on a GPU of compute capability 9.0, in the plain problem:
 * queries and keys each one run of positions of one sequence, no full mask, no cap, no options, a
 * positive scale, not --deterministic; d = 64, 128 and 256, rows that the copy engine can read, the
 * whole pass at once. What is not like that is left to gradients_16bit.cu.
 * d = 64 and 128 are the kernel of rung v13_fused_delta.
 *
 * Interface: flash_gradients_hopper, flash_gradients_hopper_bytes, flash_gradients_hopper_tiles
 * (block.cuh).
 */
#include "../../cuda/wgmma_turns.cuh"
#include "block.cuh"
#include "wide_keys.cuh"

using namespace rung;

template <int D> struct TileOf {
    typedef KeyTile<D> C;
};
template <> struct TileOf<256> {
    typedef WideTile C;
};

static bool read_by_engine(const Tensor *t)
{
    const int64_t limit = (int64_t)1 << 39;
    for (int n = 0; n < 3; n++)
        if (t->stride[n] <= 0 || t->stride[n] >= limit)
            return false;
    return on_16_bytes(t);
}

static bool one_run(const AttnPositions *map)
{
    return map->host && map->count == 1 && (map->host->stride == 1 || map->host->length == 1);
}

static bool is_case_for_hopper(const AttnArgs *a)
{
    const AttnShape *n = &a->shape;
    const int64_t limit = (int64_t)1 << 28;
    const Tensor *const tensors[] = {&a->Q, &a->K, &a->V, &a->O, &a->dO, &a->dQ, &a->dK, &a->dV};
    if ((n->d != 64 && n->d != 128 && n->d != 256) || a->mask || a->softcap > 0.0f ||
        !(a->scale > 0.0f) || a->options || flash_backward_deterministic() || n->B < 1 ||
        n->Nq < 1 || n->Nk < 1 || n->Nq > limit || n->Nk > limit || !one_run(&a->positions_q) ||
        !one_run(&a->positions_k) ||
        a->positions_q.host->sequence != a->positions_k.host->sequence || !hopper_is_here())
        return false;
    for (const Tensor *t : tensors)
        if (!read_by_engine(t))
            return false;
    return true;
}

template <typename T, int D> static AttnStatus launch(const AttnArgs *a, const Pass &pass)
{
    typedef typename TileOf<D>::C C;
    const int threads = 128 + CONSUMER_THREADS;
    if constexpr (D == 256)
        return launch_keys<T, C>(wide_kernel<T>, a, pass, threads);
    else
        return launch_keys<T, C>(turns_kernel<T, C>, a, pass, threads);
}

template <typename T> static AttnStatus run(const AttnArgs *a, float *workspace_dev)
{
    if (a->shape.d == 64)
        return run_prepared<T, 64>(a, launch<T, 64>, workspace_dev);
    return a->shape.d == 128 ? run_prepared<T, 128>(a, launch<T, 128>, workspace_dev)
                             : run_prepared<T, 256>(a, launch<T, 256>, workspace_dev);
}

AttnStatus flash_gradients_hopper(const AttnArgs *a, void *workspace_dev)
{
    if (!is_case_for_hopper(a))
        return ATTN_SKIP;
    return a->Q.dtype == ATTN_F16 ? run<__half>(a, (float *)workspace_dev)
                                  : run<__nv_bfloat16>(a, (float *)workspace_dev);
}

size_t flash_gradients_hopper_bytes(const AttnShape *n)
{
    return pass_floats(n) * sizeof(float);
}

int flash_gradients_hopper_tiles(const AttnArgs *a, FlashTiles *tiles)
{
    if (!is_case_for_hopper(a))
        return 0;
    *tiles = flash_tiles_of(&a->shape, a->shape.d == 64 ? 128 : 64, a->shape.d == 256 ? 64 : 128);
    return 1;
}
