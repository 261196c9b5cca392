/* SPDX-License-Identifier: MIT
 *
 * attn_config.h: for the sources of stage 06's backend of a GPU, when they are compiled for a
 * pretended one: a build without MPI and NCCL. Ranks are threads.
 */
