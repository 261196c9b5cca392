/* SPDX-License-Identifier: MIT
 *
 * inputs.h: the inputs of one case, from seed, files or the bundled real activations.
 *
 * Interface:
 * - inputs_make: CliCase -> Inputs; prints one sentence and returns EXIT_USAGE for bad input.
 * - inputs_fingerprint: of everything that a variant may read but not write.
 * - tensors_new: storage of three tensors, packed or apart.
 * - inputs_read_result: a saved output, for --judge.
 * - inputs_storages: all storages. inputs_free.
 * The inputs lie in guarded storage; nobody writes to them after inputs_make.
 */
#ifndef ATTN_INPUTS_H
#define ATTN_INPUTS_H

#include "attn_options.h"
#include "harness/cli/cli.h"

typedef struct Inputs {
    AttnArgs args;       /* host pointers; O, lse, dQ, dK, dV empty; options NULL without any */
    AttnOptions options; /* dwq and dwk empty */
    AttnMask mask_type;
    Storage Q, K, V, dO; /* dO only with a backward; --pack: see tensors_new */
    Storage mask;        /* bytes [Nq][Nk] at args.mask, up to the guard page; unused without one */
    Storage wq, wk;      /* float32 [H*d] and [Hkv*d] with --qk-norm */
    AttnSegment *segments; /* of the queries, then as many of the keys: one for each sequence */
    TensorLayout layout;
    int backward;
    uint64_t serial; /* no two problems of a process have the same: device copies are kept by it */
} Inputs;

/* EXIT_OK, EXIT_USAGE or EXIT_NO_DEVICE (sentence printed), or EXIT_RUNTIME (memory). The problem
 * must not move afterwards: args points into it. */
int inputs_make(Inputs *p, const CliCase *c);
void inputs_free(Inputs *p);
/* All storages: Q K V dO mask wq wk. Those that are not needed are empty. */
enum { INPUT_STORAGES = 7 };
void inputs_storages(const Inputs *p, const Storage *all[INPUT_STORAGES]);
uint64_t inputs_fingerprint(const Inputs *p);
/* A file with `to`'s shape in the dimensions of --tensor-layout into it: EXIT_OK, EXIT_USAGE or
 * EXIT_RUNTIME (sentence printed). */
int inputs_read_result(const char *path, const CliCase *c, const Tensor *to);

/* Q, K and V (or their gradients) as --pack and --strides want them: with q_kv K and V lie side by
 * side on the heads axis of storage[1], with qkv all three in storage[0], and the other storages
 * are empty. 0, or -1 when memory is short. */
int tensors_new(Storage *const storage[3], Tensor *const view[3], const CliCase *c,
                const AttnShape *s);
#endif
