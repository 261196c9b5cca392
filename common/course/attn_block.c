/* SPDX-License-Identifier: MIT
 *
 * attn_block.c: see attn_block.h.
 *
 * Interface: attn_block.h.
 */
#include "course/attn_block.h"

#include <string.h>

enum { POINTERS = 16 };

/* All places of a block that hold an address. */
static void places(AttnBlock *b, void **all[POINTERS])
{
    AttnArgs *a = &b->args;
    Tensor *const tensors[] = {&a->Q, &a->K, &a->V, &a->O, &a->dO, &a->dQ, &a->dK, &a->dV};
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
        all[t] = &tensors[t]->data;
    all[8] = (void **)&a->positions_q.segments;
    all[9] = (void **)&a->positions_k.segments;
    all[10] = (void **)&a->mask;
    all[11] = (void **)&a->lse;
    all[12] = (void **)&b->options.wq;
    all[13] = (void **)&b->options.wk;
    all[14] = (void **)&b->options.dwq;
    all[15] = (void **)&b->options.dwk;
}

void attn_block_make(AttnBlock *block, const AttnArgs *args, const IsolateTask *task)
{
    void **all[POINTERS];
    memset(block, 0, sizeof *block);
    block->args = *args;
    block->has_options = args->options != NULL;
    if (args->options)
        block->options = *args->options;
    block->args.options = NULL;
    block->args.stream = NULL;
    places(block, all);
    for (int i = 0; i < POINTERS; i++)
        *all[i] = (void *)(uintptr_t)isolate_pointer(task, *all[i]);
}

int attn_block_open(AttnBlock *block, const RunnerCall *call)
{
    void **all[POINTERS];
    if (call->bytes != sizeof *block)
        return -1;
    memcpy(block, call->numbers, sizeof *block);
    places(block, all);
    for (int i = 0; i < POINTERS; i++)
        *all[i] = runner_pointer(call, (RunnerPointer)(uintptr_t)*all[i]);
    block->args.positions_q.host = block->args.positions_q.segments;
    block->args.positions_k.host = block->args.positions_k.segments;
    if (block->has_options)
        block->args.options = &block->options;
    return 0;
}
