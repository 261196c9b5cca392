/* SPDX-License-Identifier: MIT
 *
 * check_online.c: the wider bound of a variant that rounds O to its dtype after every step.
 *
 * Interface: check.h (check_online_reach).
 */
#include <math.h>
#include <string.h>

#include "attn_pairs.h"
#include "check/check.h"
#include "tensor.h"

void check_online_reach(const AttnArgs *args, int64_t block, int64_t b, int64_t h, int64_t i,
                        double *reach)
{
    const AttnShape *s = &args->shape;
    const AttnDtype dtype = args->O.dtype;
    const double half = dtype == ATTN_F32 ? 0x1p-24 : dtype == ATTN_F16 ? 0x1p-11 : 0x1p-8;
    const int64_t kv = h / (s->H / s->Hkv);
    int64_t steps = 0;
    memset(reach, 0, sizeof *reach * (size_t)s->d);
    for (int64_t n = 0; n < args->positions_k.count; n++) { /* cut into blocks of its own */
        const AttnSegment *g = &args->positions_k.segments[n];
        int64_t last = -1;
        for (int64_t t = 0; t < g->length; t++) {
            if (!attn_sees(args, i, g->first + t))
                continue;
            steps += t / block != last;
            last = t / block;
            const int64_t at = tensor_offset(&args->V, b, g->first + t, kv);
            for (int64_t x = 0; x < s->d; x++) { /* fmax is a call, and this takes all N^2 d */
                const double value = fabs(tensor_get(&args->V, at + x));
                reach[x] = value > reach[x] ? value : reach[x];
            }
        }
    }
    for (int64_t x = 0; x < s->d; x++)
        reach[x] *= (double)steps * half;
}
