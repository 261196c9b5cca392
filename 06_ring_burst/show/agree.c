/* SPDX-License-Identifier: MIT
 *
 * agree.c: what the ranks of a run told against the formulas.
 *
 * Interface: ring_bytes_agree, ring_memory_agrees (cost.h).
 */
#include "planner/cost.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What rank g sent in a pass against the formulas. 1, or 0 with a sentence. */
static int bytes_agree(const RingModelCase *m, const RingTraffic *told, RingPass pass, int g,
                       char *sentence, size_t size)
{
    const RingModelBytes model = model_ring_sent(m, pass, g);
    for (int t = 0; t < RING_TENSORS; t++)
        if (told->sent[pass][t] != model.sent[t]) {
            snprintf(sentence, size,
                     "rank %d sent %" PRId64 " bytes of %s in the %s pass, the model says %" PRId64,
                     g, told->sent[pass][t], ring_tensor_name((RingTensor)t),
                     pass == RING_FORWARD ? "forward" : "backward", model.sent[t]);
            return 0;
        }
    if (told->sent_inner[pass] != model.inner || told->sent_outer[pass] != model.outer) {
        snprintf(sentence, size,
                 "rank %d sent %" PRId64 " bytes inside its node and %" PRId64 " to others, the "
                 "model says %" PRId64 " and %" PRId64,
                 g, told->sent_inner[pass], told->sent_outer[pass], model.inner, model.outer);
        return 0;
    }
    return 1;
}

/* Every rank by itself: with 31 tokens on 4 ranks they do not send the same, and an error of one
 * rank could hide in a sum or a mean. */
int ring_bytes_agree(const RingModelCase *m, const RingReport *report, int backward, char *sentence,
                     size_t size)
{
    for (int g = 0; g < m->ranks; g++)
        if (!bytes_agree(m, &report->rank[g].traffic, RING_FORWARD, g, sentence, size) ||
            (backward &&
             !bytes_agree(m, &report->rank[g].traffic, RING_BACKWARD, g, sentence, size)))
            return 0;
    return 1;
}

int ring_memory_agrees(int64_t found, int64_t model, int rank, char *sentence, size_t size)
{
    if (llabs(found - model) * 20 <= model)
        return 1;
    snprintf(sentence, size, "rank %d held %" PRId64 " bytes, the model says %" PRId64, rank, found,
             model);
    return 0;
}
