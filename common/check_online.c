/* SPDX-License-Identifier: MIT
 *
 * check_online.c: the wider bound of a variant that rounds O to its dtype after every step.
 *
 * Interface: check.h (check_online_reach).
 */
#include <math.h>
#include <string.h>

#include "check.h"
#include "tensor.h"

void check_online_reach(const AttnArgs *args, int64_t block, int64_t b, int64_t h, int64_t i,
                        double *reach)
{
    const AttnShape *s = &args->shape;
    const AttnDtype dtype = args->O.dtype;
    const double half = dtype == ATTN_F32 ? 0x1p-24 : dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
    const int64_t kv = h / (s->H / s->Hkv);
    int64_t steps = 0, last = -1, first = 0, sequence = -1;
    memset(reach, 0, sizeof *reach * (size_t)s->d);
    for (int64_t j = 0; j < s->Nk; j++) {
        const AttnPosition at = attn_position(args->positions_k, j);
        if (at.sequence != sequence) { /* each sequence is cut into blocks of its own */
            sequence = at.sequence;
            first = j;
            last = -1;
        }
        if (!attn_sees(args, i, j))
            continue;
        steps += (j - first) / block != last;
        last = (j - first) / block;
        for (int64_t x = 0; x < s->d; x++)
            reach[x] =
                fmax(reach[x], fabs(tensor_get(&args->V, tensor_offset(&args->V, b, j, kv) + x)));
    }
    for (int64_t x = 0; x < s->d; x++)
        reach[x] *= (double)steps * half;
}
