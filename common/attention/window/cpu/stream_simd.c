/* SPDX-License-Identifier: MIT
 *
 * stream_simd.c: one query against a rolling cache, with a cap if there is one. The vectors are
 * those of units/stream_row.h.
 *
 * Meson compiles this file once for each instruction set, with -DFLASH_ISA=avx2 and the like, as it
 * does with stage 03's kernels.
 *
 * Interface: stream_simd.h, as the table stream_simd_<FLASH_ISA>.
 */
#include "attention/window/cpu/stream_simd.h"

#include "attention/forward/cpu/simd_vector.h"
#include "units/stream_row.h"

static void stream_attend(StreamRow *row)
{
    const KeyCache cache = {(float *)row->K, (float *)row->V, row->count, row->d, row->ld};
    Vector most = (Vector){0} - INFINITY;
    for (int64_t t = 0; t < row->count; t += LANES) {
        Vector s = score_keys(&cache, row->q, t);
        if (row->cap > 0.0f)
            s = row->cap * tanh_of(s);
        for (int64_t lane = row->count - t; lane < LANES; lane++)
            s[lane] = -INFINITY; /* empty slots of the last vector */
        store(row->S + t, s);
        most = larger(most, s);
    }
    row->m = largest_lane(most);
    row->l = weigh_values(&cache, row->S, row->m, row->O);
}

const StreamSimd OWN(stream_simd) = {LANES, stream_attend};
