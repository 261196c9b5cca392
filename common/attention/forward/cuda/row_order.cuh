/* SPDX-License-Identifier: MIT
 *
 * row_order.cuh: which block of attention_16bit works on which rows.
 *
 * A causal row tile i costs i + 1. Blocks start in the order of their index, the longest first, so
 * the short ones fill the gaps at the end. Tiles of one length from many heads would fill them
 * best, tiles of one head share K and V in the L2 cache: sections of heads whose K and V fit it are
 * the compromise.
 *
 * Interface: heads_of_section (host), work_in_sections (device).
 */
#ifndef FLASH_FORWARD_ROW_ORDER_CUH
#define FLASH_FORWARD_ROW_ORDER_CUH

#include "dispatch.cuh"

#define SECTION_MIB 32 /* K and V of a section of heads */

/* How many heads' K and V go into SECTION_MIB; one head, where all row tiles cost the same. */
static int heads_of_section(const AttnArgs *a)
{
    const int64_t bytes = 2 * a->shape.Nk * a->shape.d * 2; /* K and V of a kv head */
    const int64_t heads = a->shape.B * a->shape.H, group = a->shape.H / a->shape.Hkv;
    if (a->rule.right < 0 || a->rule.left >= 0 || bytes == 0)
        return 1;
    const int64_t fit = ((int64_t)SECTION_MIB << 20) / bytes * group;
    return (int)(fit < 1 ? 1 : fit > heads ? heads : fit);
}

/* Longest row tiles first within a section of `heads`, of which there are B*H in all. */
template <class C>
static __device__ __forceinline__ BlockWork work_in_sections(const AttnArgs &a, FlashHeads heads,
                                                             int section_heads)
{
    const int tiles = ((int)a.shape.Nq + C::Br - 1) / C::Br;
    const int head = blockIdx.x / (tiles * section_heads) * section_heads;
    const int rest = blockIdx.x - head * tiles;
    const int here = min(section_heads, heads.count - head);
    return work_of_head(a, heads.first + head + rest % here, (tiles - 1 - rest / here) * C::Br);
}

#endif
