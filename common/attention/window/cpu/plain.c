/* SPDX-License-Identifier: MIT
 *
 * plain.c: what surrounds a kernel. Two of the options never reach the kernels.
 *
 * The temperature divides every score, and so does a smaller scale: scale / temperature says it
 * all. (With a cap it is left out by contract: the cap wins.)
 *
 * QK normalisation changes the inputs, not the attention: normalise Q and K, round them to their
 * dtype, call a kernel that has never heard of it. Backward runs the same way in reverse. The
 * kernel gives the gradients of what it was given, Qn and Kn; the chain rule through the
 * normalisation turns them into those of Q and K. Between the two they are float32: they have not
 * arrived in a tensor yet, so nothing asks for rounding.
 *
 *     forward   Q, K -- normalise --> Qn, Kn -- attention --> O, lse
 *     backward  dQ, dK, dwq, dwk <-- normalise backward -- dQn, dKn <-- attention backward
 *
 * Interface: window_plain_run, window_plain_backward (window_library.h).
 */
#include "alloc.h"
#include "attention/backward/backward_library.h"
#include "attention/window/window_library.h"
#include "attn_options.h"
#include "tensor.h"

/* The arguments of the plain problem, which point into this struct: never copy it. */
typedef struct Plain {
    AttnArgs args;
    AttnOptions options;
    void *Qn, *Kn; /* [B][Nq][H][d], [B][Nk][Hkv][d] in their dtypes; NULL without a norm */
} Plain;

static int normalises(const AttnArgs *args)
{
    return args->options && args->options->norm_group > 0;
}

static void free_plain(Plain *plain)
{
    workspace_free(plain->Kn);
    workspace_free(plain->Qn);
}

/* On failure too, what is there has to be freed by free_plain. */
static AttnStatus make_plain(const AttnArgs *args, Plain *plain)
{
    const AttnOptions *o = args->options;
    AttnStatus status;
    plain->args = *args;
    plain->Qn = plain->Kn = NULL;
    if (!o)
        return ATTN_OK;
    plain->options = *o;
    plain->options.temperature = 1.0f;
    plain->options.norm_group = 0;
    plain->args.options = &plain->options;
    if (args->softcap == 0.0f)
        plain->args.scale = args->scale / o->temperature;
    if (!normalises(args))
        return ATTN_OK;
    plain->Qn = workspace_alloc((size_t)tensor_count(&args->Q) * dtype_size(args->Q.dtype));
    plain->Kn = workspace_alloc((size_t)tensor_count(&args->K) * dtype_size(args->K.dtype));
    if (!plain->Qn || !plain->Kn)
        return ATTN_NO_MEMORY;
    plain->args.Q.data = plain->Qn;
    plain->args.K.data = plain->Kn;
    status = window_normalise(&args->Q, o->wq, o->norm_group, o->norm_eps, args->threads,
                              &plain->args.Q);
    if (status == ATTN_OK)
        status = window_normalise(&args->K, o->wk, o->norm_group, o->norm_eps, args->threads,
                                  &plain->args.K);
    return status;
}

AttnStatus window_plain_run(const AttnArgs *args, AttnFn run)
{
    Plain plain;
    AttnStatus status = make_plain(args, &plain);
    if (status == ATTN_OK)
        status = run(&plain.args);
    free_plain(&plain);
    return status;
}

/* The sums, which are gradients of Qn and Kn, through the normalisation. */
static AttnStatus normalise_backward(const AttnArgs *args, FlashSums sums)
{
    const AttnOptions *o = args->options;
    Tensor dQ = args->dQ, dK = args->dK;
    AttnStatus status = window_normalise_backward(&args->Q, o->wq, o->norm_group, o->norm_eps,
                                                  sums.dQ, args->threads, &dQ, o->dwq);
    if (status == ATTN_OK)
        status = window_normalise_backward(&args->K, o->wk, o->norm_group, o->norm_eps, sums.dK,
                                           args->threads, &dK, o->dwk);
    return status;
}

/* [B][N][heads][d] -> t, rounded to its dtype, if there is such a tensor */
static void store_sums(const Tensor *t, const float *sums, int threads)
{
    const int64_t tokens = t->shape[0] * t->shape[1], heads = t->shape[2], d = t->shape[3];
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t h = 0; h < heads; h++)
            tensor_write_row(t, token / t->shape[1], token % t->shape[1], h,
                             sums + (token * heads + h) * d);
}

/* The kernel adds to float32 sums as large as Q, K and V. They reach the normalisation as they are,
 * or the tensors with one rounding. */
AttnStatus window_plain_backward(const AttnArgs *args, WindowSumsFn add_gradients)
{
    const AttnShape *n = &args->shape;
    const int64_t Q_floats = n->B * n->Nq * n->H * n->d, K_floats = n->B * n->Nk * n->Hkv * n->d;
    float *memory = workspace_alloc((size_t)(Q_floats + 2 * K_floats) * sizeof *memory);
    FlashSums sums = {memory, memory + Q_floats, memory + Q_floats + K_floats};
    Plain plain;
    AttnStatus status;
    if (!memory)
        return ATTN_NO_MEMORY;
    status = make_plain(args, &plain);
    if (status == ATTN_OK) {
        flash_sums_start(n, sums);
        status = add_gradients(&plain.args, sums);
    }
    free_plain(&plain);
    if (status == ATTN_OK && normalises(args)) {
        status = normalise_backward(args, sums);
    } else if (status == ATTN_OK) {
        store_sums(&args->dQ, sums.dQ, args->threads);
        store_sums(&args->dK, sums.dK, args->threads);
    }
    if (status == ATTN_OK)
        store_sums(&args->dV, sums.dV, args->threads);
    workspace_free(memory);
    return status;
}
