/* SPDX-License-Identifier: MIT
 *
 * block_state.c: the state that blocks of keys resume from: before the first one, and after the
 * last.
 *
 * Interface: flash_state_start, flash_state_store, flash_rows_store (flash_library.h).
 */
#include <math.h>

#include "attention/forward/flash_library.h"
#include "tensor.h"

void flash_state_start(const AttnArgs *args, float *O_state)
{
    const AttnShape *n = &args->shape;
    for (int64_t e = 0; e < n->B * n->Nq * n->H * n->d; e++)
        O_state[e] = 0.0f;
    for (int64_t e = 0; e < n->B * n->H * n->Nq; e++)
        args->lse[e] = -INFINITY;
}

void flash_state_store(const AttnArgs *args, const float *O_state)
{
    const AttnShape *n = &args->shape;
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t i = 0; i < n->Nq; i++)
            for (int64_t h = 0; h < n->H; h++)
                tensor_write_row(&args->O, b, i, h, O_state + ((b * n->Nq + i) * n->H + h) * n->d);
}

/* The division that all blocks have put off. A row that saw nothing: O = 0. */
void flash_rows_store(const AttnArgs *args, float *O_state, FlashRows rows)
{
    const AttnShape *n = &args->shape;
    for (int64_t row = 0; row < n->B * n->Nq * n->H; row++) { /* [B][Nq][H], as O lies */
        const int64_t b = row / (n->Nq * n->H), i = row / n->H % n->Nq, h = row % n->H;
        const float l = rows.l[(b * n->H + h) * n->Nq + i];
        const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
        for (int64_t x = row * n->d; x < (row + 1) * n->d; x++)
            O_state[x] *= inverse;
    }
    flash_state_store(args, O_state);
}
