/* SPDX-License-Identifier: MIT
 *
 * flash_forward.h: the contract of stage 03. How can exact attention never write the N x N matrix,
 * and why is that faster although it computes more?
 *
 *     for each tile i of Br queries, for each tile j of Bc keys:
 *         S_ij  = scale * Q_i K_j^T                   [Br][Bc], lives in fast memory only
 *         m_new = max(m_i, rowmax(S_ij))              alpha = exp(m_i - m_new)
 *         P_ij  = exp(S_ij - m_new)
 *         l_i   = alpha * l_i + rowsum(P_ij)          O_i   = alpha * O_i + P_ij V_j
 *     O_i = O_i / l_i                                 lse_i = m_i + ln l_i
 *
 * Fast memory is what a tile fits in: registers and L1 on a CPU, registers and shared memory on a
 * GPU. Slow memory is the rest. The variants differ in which loop is outside, that is, in which
 * tiles travel between the two again and again.
 *
 * Interface:
 * - flash_forward_v*: the rungs.
 * - FlashTraffic, FlashTiles: what moved between slow and fast memory, and tile sizes from M.
 * - flash_fa1, flash_fa2: v0 and v1 with a given fast memory, counted; flash_standard: stage 01's
 *   order of work in the same fast memory.
 * - flash_tiles_library_cpu ...: the tiles that a kernel works with, for the byte model.
 * - flash_set_smem_limit: --smem-limit.
 * All of attention, fast, blocks of keys, memory of the caller: library/flash_library.h.
 */
#ifndef FLASH_FORWARD_H
#define FLASH_FORWARD_H

#include <stdio.h>

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A shared object for --variant-so exports `int flash_forward_abi_version =
 * FLASH_FORWARD_ABI_VERSION;` and `AttnStatus flash_forward_variant(const AttnArgs *)`. */
#define FLASH_FORWARD_ABI_VERSION 2

/* --- variants ----------------------------------------------------------------------------------*/

/* All of them are deterministic: the same arguments give the same bits, run after run; the CPU
 * library with any number of threads too. (v0_fa1_tiles and v1_fa2_rows leave a large product to
 * OpenBLAS, which may cut it for its threads. The GPU's library: on GPUs with equally many
 * multiprocessors.) */

AttnStatus flash_forward_v0_fa1_tiles(const AttnArgs *args);
AttnStatus flash_forward_v1_fa2_rows(const AttnArgs *args);
AttnStatus flash_forward_v2_packing(const AttnArgs *args);
AttnStatus flash_forward_v3_register_tiles(const AttnArgs *args);
AttnStatus flash_forward_v4_exp2(const AttnArgs *args);
AttnStatus flash_forward_v5_own_heads(const AttnArgs *args);

AttnStatus flash_forward_v0_fa1(const AttnArgs *args);
AttnStatus flash_forward_v1_fa2(const AttnArgs *args);
AttnStatus flash_forward_v2_register_tiles(const AttnArgs *args);
AttnStatus flash_forward_v3_mma(const AttnArgs *args);
AttnStatus flash_forward_v4_ldmatrix(const AttnArgs *args);
AttnStatus flash_forward_v5_cp_async(const AttnArgs *args);
AttnStatus flash_forward_v6_exp2(const AttnArgs *args);
AttnStatus flash_forward_v7_full_tiles(const AttnArgs *args);
AttnStatus flash_forward_v8_schedule(const AttnArgs *args);

/* --- traffic between slow and fast memory ------------------------------------------------------*/

/* Elements and bytes that tiles moved. An element of Q, K, V and O has the tensor's size, one of
 * l, m, lse or a float32 state has 4 bytes. */
typedef struct FlashTraffic {
    int64_t loads, stores;           /* elements, slow -> fast and fast -> slow */
    int64_t load_bytes, store_bytes; /* the same in bytes */
    int64_t fast_peak;               /* most elements that one head's tiles, S, l, m really take */
} FlashTraffic;

typedef struct FlashTiles {
    int64_t Br, Bc, Tr, Tc;
    int64_t splits; /* blocks that share the keys of a row tile: 1 but in the GPU's library */
} FlashTiles;

#define FLASH_SRAM_DEFAULT 32768 /* elements: 128 KiB of float32 */

/* The paper's sizes for a fast memory of M elements: Bc = ceil(M / 4d), Br = min(Bc, d). No tile is
 * larger than the matrix. */
FlashTiles flash_tiles(const AttnShape *shape, int64_t M);
/* Elements that these tiles really take: Q_i, K_j, V_j and O_i, and with them S, m and l. About
 * 1.25 M where Br = Bc: the paper's sizes are an order, not a budget. */
int64_t flash_fast_elements(const AttnShape *shape, int64_t M);
/* Tiles of Br x Bc, counted. */
FlashTiles flash_tiles_of(const AttnShape *shape, int64_t Br, int64_t Bc);
/* M of the variants v0 and v1 (--sram). Set it before any of them runs. */
void flash_set_sram(int64_t elements);
int64_t flash_sram(void);

/* v0 and v1 with a fast memory of M elements. traffic, if not NULL, is overwritten. */
AttnStatus flash_fa1(const AttnArgs *args, int64_t M, FlashTraffic *traffic);
AttnStatus flash_fa2(const AttnArgs *args, int64_t M, FlashTraffic *traffic);

/* The papers' standard attention (Algorithm 0) with the same door between the two memories: S and P
 * are whole matrices in slow memory, and a row of them has to fit in fast memory beside M. */
AttnStatus flash_standard(const AttnArgs *args, int64_t M, FlashTraffic *traffic);

/* The tiles that each kernel works with on this case, told by its own constants. The CPU library:
 * rows of a block of queries, keys of a panel. */
FlashTiles flash_tiles_library_cpu(const AttnArgs *args);
FlashTiles flash_tiles_v0_fa1(const AttnArgs *args);
FlashTiles flash_tiles_v1_fa2(const AttnArgs *args);
FlashTiles flash_tiles_v2_register_tiles(const AttnArgs *args);
FlashTiles flash_tiles_v3_mma(const AttnArgs *args);
FlashTiles flash_tiles_v4_ldmatrix(const AttnArgs *args);
FlashTiles flash_tiles_v5_cp_async(const AttnArgs *args);
FlashTiles flash_tiles_v6_exp2(const AttnArgs *args);
FlashTiles flash_tiles_v7_full_tiles(const AttnArgs *args);
FlashTiles flash_tiles_v8_schedule(const AttnArgs *args);
FlashTiles flash_tiles_library_cuda(const AttnArgs *args);

/* --- a smaller GPU -----------------------------------------------------------------------------*/

/* Bytes of shared memory that a block may have (--smem-limit), 0 = what the device offers. A kernel
 * that needs more is not launched: ATTN_SKIP. */
void flash_set_smem_limit(int64_t bytes);
int64_t flash_smem_limit(void);
/* Launchers ask this. 1: `bytes` are too many, which flash_smem_refused remembers (0: no refusal
 * since the limit was set). */
int flash_smem_refuses(int64_t bytes);
int64_t flash_smem_refused(void);

/* m, l and O of a tiny case (host tensors), tile by tile; M = 0: 8d. 0, or -1: memory is short. */
int flash_trace(const AttnArgs *args, int64_t M, FILE *to);

#ifdef __cplusplus
}
#endif
#endif
