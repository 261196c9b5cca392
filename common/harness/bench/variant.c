/* SPDX-License-Identifier: MIT
 *
 * variant.c: what a rung that takes the plain problem only leaves to the library.
 *
 * A rung is for reading, so it computes the problem of the papers and nothing else: each row sees
 * one range of keys, and tensors lie as [B][N][H][d] without gaps. Then a row of a GPU's tensors
 * starts on 16 bytes, which a vector load needs, and the head dimension is one of two for which
 * tiles are compiled.
 *
 * Interface: variant_of_rung, variant_has, variant_plain_refuses (variant.h).
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

static int is_contiguous(const Tensor *t)
{
    const int64_t *n = t->shape;
    return !t->data || (t->stride[3] == 1 && t->stride[2] == n[3] && t->stride[1] == n[2] * n[3] &&
                        t->stride[0] == n[1] * n[2] * n[3]);
}

static int all_contiguous(const AttnArgs *a)
{
    const Tensor *const all[] = {&a->Q, &a->K, &a->V, &a->O, &a->dO, &a->dQ, &a->dK, &a->dV};
    for (size_t t = 0; t < sizeof all / sizeof *all; t++)
        if (!is_contiguous(all[t]))
            return 0;
    return 1;
}

/* Then each row sees one range of keys: first + shift .. last + shift, cut at both ends. */
static int is_one_segment(const AttnArgs *a)
{
    const AttnSegment *q = a->positions_q.segments, *k = a->positions_k.segments;
    return a->positions_q.count == 1 && a->positions_k.count == 1 && q->stride == 1 &&
           k->stride == 1 && q->sequence == k->sequence;
}

const char *variant_plain_refuses(const Variant *v, const AttnArgs *a)
{
    if (!(v->traits & VARIANT_PLAIN) || v->rung)
        return NULL;
    if (a->mask)
        return "a rung skips a mask from memory; the library takes it";
    if (!is_one_segment(a))
        return "a rung skips positions in several segments; the library takes them";
    if (a->softcap > 0.0f)
        return "a rung skips a softcap; the library takes it";
    if (!(a->scale > 0.0f))
        return "a rung skips a scale that is not positive; the library takes it";
    if (a->options)
        return "a rung skips the options of stage 05; the library takes them";
    if (!all_contiguous(a))
        return "a rung skips tensors that are not contiguous [B][N][H][d]; the library takes them";
    if (v->device == ON_CUDA && a->shape.d != 64 && a->shape.d != 128)
        return "a rung on the GPU skips every d but 64 and 128; the library takes it";
    return NULL;
}
