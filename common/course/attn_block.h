/* SPDX-License-Identifier: MIT
 *
 * attn_block.h: AttnArgs on their way from the judge to a runner. Pointers travel as RunnerPointer
 * in the place of the address: array and offset, which both sides know.
 *
 * Interface:
 * - attn_block_make: the judge's side. All that args points to must lie in the task's arrays.
 * - attn_block_open: the runner's side.
 * - attn_block_arrays: the arrays of such a task.
 */
#ifndef ATTN_BLOCK_H
#define ATTN_BLOCK_H

#include "attn.h"
#include "attn_options.h"
#include "course/isolate.h"

typedef struct AttnBlock {
    AttnArgs args;
    AttnOptions options;
    int has_options;
} AttnBlock;

void attn_block_make(AttnBlock *block, const AttnArgs *args, const IsolateTask *task);
/* args points into block and into the runner's arrays afterwards. 0, or -1: no AttnBlock. */
int attn_block_open(AttnBlock *block, const RunnerCall *call);

/* The storages of a problem and of a result as the task's arrays (run_so.c). alone: a backward pass
 * whose O and lse are inputs. */
struct RunResult;
struct Inputs;
void attn_block_arrays(IsolateTask *task, struct RunResult *out, const struct Inputs *p, int alone);

#endif
