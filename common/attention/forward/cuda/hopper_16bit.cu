/* SPDX-License-Identifier: MIT
 *
 * hopper_16bit.cu: which cases the library gives to its Hopper kernel, and in which tiles.
 *
 * It takes f16 and bf16 on a GPU of compute capability 9.0 where each row sees one run of keys and
 * the copy engine can read Q, K and V: no mask array, no cap, positions that grow with the index.
 * A zigzag shard of a ring is such a case: two segments of one sequence, the later one second.
 * Everything else goes the portable way (attention_16bit.cu).
 *
 * Interface: flash_block_hopper, flash_tiles_hopper (block_kernels.cuh).
 */
#include "block_kernels.cuh"
#include "hopper_16bit.cuh"
#include "row_order.cuh"
#include "row_turns.h"

/* --- which cases -------------------------------------------------------------------------------*/

/* --smem-limit means a smaller GPU, which is no Hopper. */
static bool takes(const AttnArgs *a, KeyRule *rule)
{
    return a->Q.dtype != ATTN_F32 && !a->mask && a->softcap == 0.0f && a->scale > 0.0f &&
           a->shape.d <= 256 && device_smem_limit() == 0 && copies_by_engine(&a->Q) &&
           copies_by_engine(&a->K) && copies_by_engine(&a->V) &&
           a->shape.B * a->shape.H < RULE_FAR / (a->shape.Nq / 64 + 1) && make_key_rule(rule, a) &&
           on_hopper();
}

/* --- in which tiles ----------------------------------------------------------------------------*/

template <class C> static FlashTiles tiles_of(const AttnArgs *a)
{
    return flash_tiles_of(&a->shape, C::Br, C::Bc);
}

typedef HopperTile<64, 64, 4, 4> Tile64;
typedef HopperTile<64, 128, 3, 2> Tile64Long;
typedef HopperTile<128, 80, 3, 3> Tile128;
typedef HopperTile<256, 64, 2, 2> Tile256;

/* Heads of a group are folded into the rows: keys and queries are read in the same order, and a
 * mask cuts off less of a tile. */
static int fold_of(const AttnArgs *a, FlashHeads heads)
{
    const int64_t group = a->shape.H / a->shape.Hkv, all = group | heads.first | heads.count;
    int fold = 0;
    while (fold < 6 && all % (2 << fold) == 0 && a->shape.Nq < RULE_FAR >> (fold + 1))
        fold++;
    return fold;
}

/* Blocks stay where a row tile is short, or all rows see all keys. With a mask and many keys the
 * hardware deals out row tiles better, longest first, than a plan does (docs/lab/03_hopper.md); but
 * not under a causal mask where folded heads share their keys. Rows that resume from a state are a
 * step of a ring: a block whose multiprocessor a message has would begin its whole share late. So
 * they are dealt out, too (docs/lab/06_several_gpus.md). */
static bool blocks_stay(const AttnArgs *a, const HopperWork &work)
{
    const AttnRule rule = a->rule;
    const bool window = rule.left >= 0 && rule.right >= 0 && rule.left < 2048 && rule.right < 2048;
    if (a->shape.Nk <= 2048)
        return true;
    return !work.O_state && ((rule.left < 0 && (rule.right < 0 || work.fold > 0)) || window);
}

/* How many bundles of heads have their row tiles taken in turn, the longest first: those whose K
 * and V fit the L2 (row_order.cuh), if such sections divide all bundles evenly. A small last one
 * would leave most of the GPU idle. Where blocks stay and their rows are long, all: their plan is
 * worst at the end of a section. */
static int section_of(const AttnArgs *a, const HopperWork &work, int bundles)
{
    const int fit = heads_of_section(a) >> work.fold, most = fit < bundles ? fit : bundles;
    if (most <= 1)
        return 1;
    for (int section = most; section > most / 2 && !blocks_stay(a, work); section--)
        if (bundles % section == 0)
            return section;
    return bundles;
}

template <typename T, class C> static AttnStatus run_tile(const AttnArgs *a, HopperWork work)
{
    const int rows = (int)a->shape.Nq << work.fold, tiles = (rows + C::Br - 1) / C::Br;
    const int bundles = work.heads.count >> work.fold, fit = heads_of_section(a) >> work.fold;
    int device = 0, places = 0;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&places, cudaDevAttrMultiProcessorCount, device));
    int blocks = bundles * tiles;
    work.missing = (tiles * C::Br - rows) / 64 * 64;
    if (fit > 1 && a->shape.Nk <= 2048) {
        const RowTurns turns = row_turns(tiles, bundles, fit, places);
        work.section = turns.section;
        blocks = blocks < turns.blocks ? blocks : turns.blocks;
    } else {
        work.section = section_of(a, work, bundles);
        if (blocks_stay(a, work) && blocks > places)
            blocks = places;
        work.level = a->rule.right < 0 && a->rule.left < 0;
    }
    return launch_hopper<T, C>(a, work, (unsigned)blocks);
}

/* d = 64, all keys seen, and many of them: larger key tiles, of fewer rows, are faster. */
static bool long_rows(const AttnArgs *a)
{
    return a->rule.left < 0 && a->rule.right < 0 && a->shape.Nk >= 8192;
}

template <typename T> static AttnStatus run(const AttnArgs *a, const HopperWork &work)
{
    return a->shape.d <= 64
               ? long_rows(a) ? run_tile<T, Tile64Long>(a, work) : run_tile<T, Tile64>(a, work)
           : a->shape.d <= 128 ? run_tile<T, Tile128>(a, work)
                               : run_tile<T, Tile256>(a, work);
}

AttnStatus flash_block_hopper(const AttnArgs *a, float *O_state_dev, FlashRows rows_dev,
                              FlashHeads heads, int last)
{
    HopperWork work = {};
    if (!takes(a, &work.rule))
        return ATTN_SKIP;
    work.O_state = O_state_dev;
    work.rows = rows_dev;
    work.heads = heads;
    work.last = last != 0;
    work.fold = fold_of(a, heads);
    if (a->Q.dtype == ATTN_BF16)
        return run<__nv_bfloat16>(a, work);
#ifdef ATTN_NO_CUDA_F16
    return ATTN_SKIP;
#else
    return run<__half>(a, work);
#endif
}

int flash_tiles_hopper(const AttnArgs *a, FlashTiles *tiles)
{
    KeyRule rule;
    if (!takes(a, &rule))
        return 0;
    *tiles = a->shape.d <= 64    ? long_rows(a) ? tiles_of<Tile64Long>(a) : tiles_of<Tile64>(a)
                : a->shape.d <= 128 ? tiles_of<Tile128>(a)
                                 : tiles_of<Tile256>(a);
    return 1;
}
