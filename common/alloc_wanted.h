/* SPDX-License-Identifier: MIT
 *
 * alloc_wanted.h: how much memory was asked for in vain, for the sentence that says so.
 *
 * Interface:
 * - workspace_refuse: so much is not there. workspace_wanted: what was refused last.
 */
#ifndef ATTN_ALLOC_WANTED_H
#define ATTN_ALLOC_WANTED_H

#include <stddef.h>

void workspace_refuse(size_t bytes);
/* ", it asked for 12.5 MiB", or "" if nothing was refused since workspace_reset_peak; returns text.
 */
const char *workspace_wanted(char text[64]);

#endif
