/* SPDX-License-Identifier: MIT
 *
 * plain.cuh: the products of v0_thread_per_score, for naive_cuda_scores and
 * naive_cuda_weighted_sum in a build without cuBLAS.
 *
 * Interface: plain_scores, plain_weighted_sum. All pointers are device pointers; the work is
 * queued on args->stream.
 */
#ifndef NAIVE_PLAIN_CUH
#define NAIVE_PLAIN_CUH

#include "naive.h"

/* S_dev [B][H][Nq][Nk]: scaled, capped, masked */
AttnStatus plain_scores(const AttnArgs *args, float *S_dev);
/* O = P V; P_dev [B][H][Nq][Nk] */
AttnStatus plain_weighted_sum(const AttnArgs *args, const float *P_dev);

#endif
