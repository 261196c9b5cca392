/* SPDX-License-Identifier: MIT
 *
 * model.h: the only place with formulas for floating-point operations and bytes.
 *
 * Interface:
 * - model_visible_pairs: exact number of (query, key) pairs that the rule and the mask leave.
 * - model_flops: forward 4 B H d pairs, backward 2.5 times that; pairs are those of one head.
 * - model_..._bytes, model_..._traffic: what a variant must move between slow and fast memory.
 */
#ifndef ATTN_MODEL_H
#define ATTN_MODEL_H

#include "attn.h"

/* Visible (i, j) pairs of one (batch, head), counted over positions and the full mask. */
int64_t model_visible_pairs(const AttnArgs *args);
/* Multiply-adds counted as 2: forward 4*B*H*d*pairs (QK^T and PV); backward 2.5x (five products).
 */
double model_flops(const AttnArgs *args, int backward);
/* Compulsory traffic: every input read once, every output written once (O, lse; backward also). */
double model_compulsory_bytes(const AttnArgs *args, int backward);
/* Materialised attention (stage 01): Q, K, V, O once, plus S written, read, P written, read (four
 * passes over B*H*Nq*Nk float32); in backward P, dP, dS likewise (six passes). */
double model_materialised_bytes(const AttnArgs *args, int backward);
/* Row tiles whose scores stay in cache (stage 02 v4): K and V are read once per row tile of Br
 * rows. */
double model_row_tiles_bytes(const AttnArgs *args, int64_t Br);

/* Elements and bytes between slow and fast memory, loads and stores apart. */
typedef struct ModelTraffic {
    double loads, stores, load_bytes, store_bytes;
} ModelTraffic;

/* FlashAttention's Algorithm 1 (stage 03 v0) with tiles of Br queries and Bc keys. For one head
 * without a mask, Tc = ceil(Nk/Bc):
 *   loads  2 Nk d + Tc (2 Nq d + 2 Nq)   + 2 Nq to make lse of m and l
 *   stores          Tc (Nq d + 2 Nq)     + Nq d + 2 Nq at the start   + Nq (lse)
 * Tiles that cannot have a visible pair (attn_tile_class) are left out. */
ModelTraffic model_fa1_traffic(const AttnArgs *args, int64_t Br, int64_t Bc);
/* FlashAttention-2 (v1), Tr = ceil(Nq/Br): loads Nq d + Tr 2 Nk d, stores Nq d + Nq.
 * With the keys of each row tile split among `splits` blocks (a GPU with more room than row tiles)
 * each of them reads Q and writes a float32 state (O, lse), which the merge reads. K and V are read
 * once by all of them together. One head:
 *   loads   splits Nq d + (sum over row tiles of keys seen) 2 d  + splits (Nq d + Nq) of states
 *   stores  splits (Nq d + Nq) of states                        + Nq d + Nq
 * splits = 1: no states. Each query head alone: a kernel whose tiles have the heads of a group as
 * rows moves less. */
ModelTraffic model_fa2_traffic(const AttnArgs *args, int64_t Br, int64_t Bc, int64_t splits);
/* Standard attention, the papers' Algorithm 0: stage 01 in the same fast memory. S is written,
 * read, overwritten by P and read again; the tiles of the two products are those of Algorithm 1.
 * One head:
 *   loads   Nq d + Tr Nk d + 2 Nq Nk + Tr Nk d      (Q, K; S, P; V)
 *   stores  2 Nq Nk + Nq d + Nq                     (S, P; O, lse)
 * A mask saves nothing: S and P are whole matrices. */
ModelTraffic model_standard_traffic(const AttnArgs *args, int64_t Br);
/* The CPU library: K and V are copied once for each kv head into panels of `panel` columns, float32
 * and padded to whole panels; then each block of Br queries streams the panels that it sees
 * anything of. A block's Q and O, its scores and a block of keys stay in the cache. One query head,
 * with the kv head's copies shared by its G = H/Hkv query heads:
 *   loads   Nq d + 2 Nk d / G  elements  + (sum over blocks of keys seen) (d + channels)  floats
 *   stores  Nq d               elements  + keys (d + channels) / G + Nq                   floats
 * where channels is d in whole panels (V), and keys is Nk in whole panels. */
ModelTraffic model_packed_traffic(const AttnArgs *args, int64_t Br, int64_t panel);

/* --- the backward pass (stage 04) ----------------------------------------------------------------
 *
 * All formulas are for one query head, with k = Nk d / G: the kv head's tensors are loaded and
 * stored once for its G = H/Hkv query heads, whose tiles are visited one after the other. Keys are
 * outside, so every visible tile (i, j) asks for the rows of its queries again. `rows` is the sum
 * of the rows of all visible tiles: Tc Nq without a mask. "el" has the tensors' type, "fl" is
 * float32.
 *
 * Algorithm 4 (v0). A tile loads Q_i, O_i, dO_i, lse_i and dQ_i, and stores dQ_i; dQ starts as
 * zeros and is rounded to its tensor in the end:
 *   loads   2k (K V) + 3 rows d    el   + rows (d + 1) + Nq d      fl
 *   stores  Nq d + 2k (dQ dK dV)   el   + Nq d + rows d            fl */
ModelTraffic model_fa1_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc);
/* FlashAttention-2 (v1 on the CPU): delta once, and lse instead of O in the tiles; `parts` of the
 * keys have a dQ of their own.
 *   delta                          loads 2 Nq d el                   stores Nq fl
 *   the parts = 0                                                    stores parts Nq d fl
 *   tiles    loads 2k + 2 rows d el + rows (d + 2) fl                stores rows d fl + 2k el
 *   the parts to dQ                loads parts Nq d fl               stores Nq d el */
ModelTraffic model_fa2_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc,
                                        int64_t parts);
/* The CPU library: the same with packed operands, and gradients that are sums in float32. Q and dO
 * are copied twice each in float32, since one product walks along d and the other along queries;
 * tiles load these 4 copies in place of 2 rows of the tensors. Padding is left out.
 *   delta, copies                  loads 4 Nq d el                   stores Nq + 4 Nq d fl
 *   the sums and the parts = 0                       stores (1 + parts) Nq d + 2k fl
 *   tiles    loads 2k el + rows (5d + 2) fl                          stores rows d fl
 *   dK, dV to the sums             loads 2k fl                       stores 2k fl
 *   the parts to the sums          loads (parts + 1) Nq d fl         stores Nq d fl
 *   the sums to the tensors        loads Nq d + 2k fl                stores Nq d + 2k el */
ModelTraffic model_packed_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc,
                                           int64_t parts);
/* A block of threads for each tile of keys, dQ by atomic additions: one of them reads and writes
 * its place in the L2.
 *   delta                          loads 2 Nq d el                   stores Nq fl
 *   dQ = 0, in the end rounded     loads Nq d fl                     stores Nq d fl + Nq d el
 *   tiles    loads 2k + 2 rows d el + rows (d + 2) fl                stores rows d fl
 *   direct: dK, dV                                                   stores 2k el
 *   else through sums: zeros, one addition, rounded
 *                                  loads 4k fl                       stores 4k fl + 2k el */
ModelTraffic model_atomic_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc,
                                           int direct);
/* Two kernels, each computes S and dP for itself and stores its gradients once. By tiles of Br
 * queries: Q, dO, lse, delta once, K and V for each of them (cols: the sum of the keys of all
 * visible tiles). By tiles of Bc keys: K and V once, Q, dO, lse, delta for each of them.
 *   delta    loads 2 Nq d el                                         stores Nq fl
 *   dQ       loads 2 Nq d + 2 cols d el + 2 Nq fl                    stores Nq d el
 *   dK dV    loads 2k + 2 rows d el + 2 rows fl                      stores 2k el */
ModelTraffic model_two_kernels_backward_traffic(const AttnArgs *args, int64_t Br, int64_t Bc);

/* --- windows (stage 05) ------------------------------------------------------------------------*/

/* The online module: every step reads the whole state of its queries and writes it back. One head,
 * rows and cols summed over the visible blocks:
 *   the state at first                                          stores Nq d el + Nq fl
 *   steps    loads rows d (Q) + 2 cols d (K V) + rows d (O) el + rows (lse) fl
 *            stores rows d el + rows fl */
ModelTraffic model_online_traffic(const AttnArgs *args, int64_t Br, int64_t Bc);
/* Streaming: a key and value is converted into the rolling cache (float32) once, and each query
 * reads the keys that it sees from there. One head, k = Nk d / G:
 *   loads   Nq d + 2k el + 2 pairs d fl                         stores Nq d el + 2k + Nq fl */
ModelTraffic model_stream_traffic(const AttnArgs *args);
/* Decoding: each query reads the keys that it sees, once for all query heads of a group:
 *   loads   Nq d + 2 pairs d / G el                             stores Nq d el + Nq fl */
ModelTraffic model_decode_traffic(const AttnArgs *args);

/* Softmax over rows x cols of `element_bytes`: accesses (2, 3 or 4 per element) times bytes. */
double model_softmax_bytes(int64_t rows, int64_t cols, int accesses, size_t element_bytes);
#endif
