/* SPDX-License-Identifier: MIT
 *
 * state.c: what the CPU variants share: tile sizes from the size of fast memory, and the state
 * (O, lse) that block kernels resume from.
 *
 * The paper divides a fast memory of M elements among four tiles of equal size, Q_i, K_j, V_j and
 * O_i, hence M / 4d rows each. Br is capped at d, so that the scores Br x Bc take no more than
 * another M / 4. So M is the order of what is needed, not a budget: with S it is 1.25 M, and the
 * vectors m and l come on top (flash_fast_elements has the exact number).
 *
 * Interface:
 * - flash_tiles, flash_tiles_of, flash_fast_elements, flash_set_sram, flash_sram.
 * - flash_set_smem_limit, flash_smem_limit, flash_smem_refuses, flash_smem_refused.
 * - flash_state_start, flash_state_store; flash_rows_start, flash_rows_store.
 */
#include "flash_forward.h"
#include "tensor.h"
#include "tiles.h"

static int64_t sram_elements = FLASH_SRAM_DEFAULT;
static int64_t smem_limit, smem_refused; /* bytes, 0 = none */

void flash_set_sram(int64_t elements)
{
    sram_elements = elements;
}

int64_t flash_sram(void)
{
    return sram_elements;
}

/* Ceilings: a division that rounds down loses the last rows, or gives tiles of no row at all. */
static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

FlashTiles flash_tiles_of(const AttnShape *shape, int64_t Br, int64_t Bc)
{
    FlashTiles tiles = {Br, Bc, ceil_div(shape->Nq, Br), ceil_div(shape->Nk, Bc), 1};
    return tiles;
}

FlashTiles flash_tiles(const AttnShape *shape, int64_t M)
{
    int64_t Bc = ceil_div(M, 4 * shape->d);
    int64_t Br = Bc < shape->d ? Bc : shape->d;
    Bc = Bc < shape->Nk ? Bc : shape->Nk;
    Br = Br < shape->Nq ? Br : shape->Nq;
    return flash_tiles_of(shape, Br, Bc);
}

int64_t flash_fast_elements(const AttnShape *shape, int64_t M)
{
    return fast_memory_floats(flash_tiles(shape, M), shape->d);
}

void flash_set_smem_limit(int64_t bytes)
{
    smem_limit = bytes;
    smem_refused = 0;
}

int64_t flash_smem_limit(void)
{
    return smem_limit;
}

int flash_smem_refuses(int64_t bytes)
{
    if (smem_limit == 0 || bytes <= smem_limit)
        return 0;
    smem_refused = bytes;
    return 1;
}

int64_t flash_smem_refused(void)
{
    return smem_refused;
}

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

void flash_rows_start(const AttnArgs *args, float *O_state, FlashRows rows)
{
    const AttnShape *n = &args->shape;
    flash_state_start(args, O_state);
    for (int64_t row = 0; row < n->B * n->H * n->Nq; row++) {
        rows.m[row] = -INFINITY;
        rows.l[row] = rows.l_rest[row] = 0.0f;
    }
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
