/* SPDX-License-Identifier: MIT
 *
 * alloc_internal.h: what alloc.c and alloc_device.c share; nobody else includes it.
 *
 * Interface:
 * - workspace_count_add, workspace_count_sub: live bytes and their peak.
 * - workspace_all_ones: 1 if all bytes are 0xFF.
 * - workspace_damaged: workspace_intact is 0 from now on, and why on stderr.
 */
#ifndef ATTN_ALLOC_INTERNAL_H
#define ATTN_ALLOC_INTERNAL_H

#include "alloc.h"

void workspace_count_add(size_t bytes);
void workspace_count_sub(size_t bytes);
int workspace_all_ones(const unsigned char *p, size_t bytes);
void workspace_damaged(const char *what, size_t bytes);

#endif
