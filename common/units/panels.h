/* SPDX-License-Identifier: MIT
 *
 * panels.h: keys and values of a head, laid out once in the order of use; v2_packing of stage 03 is
 * the rung that brings it, in the same words.
 *
 *     K_packed [panels of keys][d][PANEL]        PANEL keys side by side, for each channel
 *     V_packed [panels of channels][Nk][PANEL]   PANEL channels side by side, for each key
 *
 * Then both products read one operand as whole vectors, without a gap, and the other one number at
 * a time.
 *
 * Interface:
 * - PANEL: two vectors. MOST_PANEL: with the widest ones.
 * - Packed, packed_floats, packed_head, pack_panel. smaller, round_up.
 * For files that are compiled once for each instruction set (units/vector.h).
 */
#ifndef UNITS_PANELS_H
#define UNITS_PANELS_H

#include <string.h>

#include "units/vector.h"

#define PANEL      (2 * LANES)
#define MOST_PANEL (2 * MOST_LANES)

/* One kv head, laid out. */
typedef struct Packed {
    float *K;               /* [keys / PANEL][d][PANEL] */
    float *V;               /* [channels / PANEL][keys][PANEL] */
    int64_t keys, channels; /* Nk and d, rounded up to whole panels */
} Packed;

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t round_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b * b;
}

/* Floats of a kv head with panels of so many columns. */
static inline int64_t packed_floats(int64_t Nk, int64_t d, int64_t panel)
{
    return round_up(Nk, panel) * (d + round_up(d, panel));
}

/* Number kv of the kv heads that lie one behind the other. */
static inline Packed packed_head(float *heads, int64_t kv, int64_t Nk, int64_t d)
{
    const int64_t keys = round_up(Nk, PANEL), channels = round_up(d, PANEL);
    float *K = heads + kv * packed_floats(Nk, d, PANEL);
    return (Packed){K, K + keys * d, keys, channels};
}

/* Keys j .. j+PANEL-1, or the `left` ones that there are. K, V: d channels of key j, the next key
 * ld floats further. What is past the last key or channel becomes 0. */
static inline void pack_panel(const Packed *to, const float *K, const float *V, int64_t ld,
                              int64_t d, int64_t j, int64_t left)
{
    const int64_t count = smaller(PANEL, left);
    float *K_panel = to->K + j * d;
    if (count < PANEL)
        memset(K_panel, 0, (size_t)(PANEL * d) * sizeof(float));
    for (int64_t x = 0; x < d; x++)
        for (int64_t c = 0; c < count; c++)
            K_panel[x * PANEL + c] = K[c * ld + x];
    for (int64_t x = 0; x < to->channels; x += PANEL)
        for (int64_t c = 0; c < PANEL; c++) {
            const int64_t width = c < count ? smaller(PANEL, d - x) : 0;
            float *V_c = to->V + x * to->keys + (j + c) * PANEL;
            memset(V_c + width, 0, (size_t)(PANEL - width) * sizeof(float));
            memcpy(V_c, V + c * ld + x, (size_t)width * sizeof(float));
        }
}

#endif
