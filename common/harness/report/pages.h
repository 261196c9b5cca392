/* SPDX-License-Identifier: MIT
 *
 * pages.h: --trace --step, a trace as pages of 80 x 24 characters that one turns with the keyboard.
 *
 * A stage writes its trace as text; a form feed ('\f', the character that ends a sheet on a
 * printer) ends a page. Pages of a stage have the same layout, so what stands in one place can be
 * compared with what stood there one page before.
 *
 * Interface:
 * - pages_open: a stream for the text.
 * - pages_play: shows the pages and closes the stream.
 * - pages_trace: --trace. STAGE_TRACE: what a stage's trace.c defines for it.
 */
#ifndef ATTN_PAGES_H
#define ATTN_PAGES_H

#include <stdio.h>

#include "harness/cli/cli.h"

#define PAGE_LINES 23 /* of 24: the last one says which page it is */

typedef struct Pages {
    char *text;
    size_t bytes;
    FILE *to;
} Pages;

/* NULL: no memory. */
FILE *pages_open(Pages *p);

/* Shows the pages on `screen`; keys are read from `keys`: Enter or space the next page, b the one
 * before, q the end. When there is no key any more (the end of a file), the remaining pages follow
 * at once. On a terminal, each page replaces the one before and what changed is shown in reverse;
 * elsewhere pages follow each other and changed lines end with a '*'.
 * 0, or -1: no memory, and nothing was shown. */
int pages_play(Pages *p, FILE *keys, FILE *screen);

/* Writes a trace as text; 0, or -1: no memory. */
typedef int (*PagesWriter)(const AttnArgs *args, FILE *to);

/* A tiny case (host tensors) on one screen, and as a page for each step. 0, or -1: no memory. */
#define STAGE_TRACE(stage)                                                                         \
    int stage##_trace(const AttnArgs *args, FILE *to);                                             \
    int stage##_trace_steps(const AttnArgs *args, FILE *to)

/* On stdout: `screen` at once, or with --step the pages of `steps`. 0, or -1: no memory. */
int pages_trace(const CliCase *c, const AttnArgs *args, PagesWriter screen, PagesWriter steps);
#endif
