/* SPDX-License-Identifier: MIT
 *
 * window_variants.h: a World (window_definition.h) through stage 05's variants for whole calls.
 *
 * Interface:
 * - variants: v0_offline_mask, and v2_window_tiles with the gradients of v4_window_backward.
 * - run_variant, run_args: both passes. smooth_state: numbers that stay away from the clip's kinks.
 */
#ifndef WINDOW_VARIANTS_H
#define WINDOW_VARIANTS_H

#include "window_definition.h"

#include "alloc.h"
#include "sliding_window.h"

/* forward, backward; the second line is v2 with its gradients */
static const struct {
    const char *name;
    AttnFn forward, backward;
} variants[] = {
    {"v0_offline_mask", sliding_window_v0_offline_mask, sliding_window_v0_offline_mask_backward},
    {"v2_window_tiles", sliding_window_v2_window_tiles, sliding_window_v4_window_backward},
};

/* Runs both passes of variant v on arguments of world_args; results are in the world. */
static inline void run_args(World *w, int v, const AttnArgs *args)
{
    workspace_reset_peak();
    assert_int_equal(ATTN_OK, variants[v].forward(args));
    assert_int_equal(ATTN_OK, variants[v].backward(args));
    assert_true(workspace_intact());
    assert_int_equal(0, workspace_live());
    world_collect(w, args);
}

static inline void run_variant(World *w, int v, int threads)
{
    AttnArgs args = world_args(w);
    args.threads = threads;
    run_args(w, v, &args);
}

/* A start of the generator with which no pair is so near to a kink of the clip that two roundings
 * of P could be on different sides. */
static inline uint64_t smooth_state(const Setting *s, int64_t larger)
{
    for (uint64_t state = 1;; state++) {
        window_state = state;
        World *w = world_new(s, ATTN_F32, larger);
        double *O = window_memory(w->sizes[IN_Q], sizeof *O);
        double *lse = window_memory(w->total_q * w->s.H, sizeof *lse);
        const double kink = define_forward(w, 1, O, lse);
        free(lse);
        free(O);
        world_free(w);
        if (kink > 1e-7)
            return state;
    }
}

#endif
