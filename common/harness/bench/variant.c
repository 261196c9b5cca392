/* SPDX-License-Identifier: MIT
 *
 * variant.c: what a variant is by its rung.
 *
 * Interface: variant_of_rung, variant_has (variant.h).
 */
#include "harness/bench/variant.h"

#include "problem.h"

void variant_of_rung(Variant *v)
{
    const Rung *rung = v->rung;
    if (!rung)
        return;
    v->name = rung->name;
    v->idea = v->idea ? v->idea : rung->idea;
    v->dtypes = v->device == ON_CPU ? DTYPES_ALL : rung->dtypes;
    v->traits = rung->flags & FULL ? VARIANT_FULL : VARIANT_PLAIN;
    v->traits |= rung->flags & (SM80 | SM90A | TENSOR_CORES) ? VARIANT_TENSOR_CORES : 0;
    v->traits |= rung->flags & STEPS ? VARIANT_ONLINE_STEPS : 0;
}

int variant_has(const Variant *v, int backward)
{
    return backward ? v->backward || (v->rung && v->rung->backward)
                    : v->forward || (v->rung && v->rung->forward);
}
