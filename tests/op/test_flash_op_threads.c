/* SPDX-License-Identifier: MIT
 *
 * test_flash_op_threads.c: operators at work in several threads at once. TSan watches in its build.
 *
 * Each thread creates, runs and destroys operators of its own, and all of them run one operator
 * that they share, each with its own workspace and output. Every result must have the bits of a run
 * alone.
 */
#include <pthread.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "op_case.h"

enum { THREADS = 4, ROUNDS = 12 };

typedef struct Worker {
    const FlashAttentionHandle *handle;
    const FlashAttention *shared;
    Case *own, *common; /* common: the shared operator's inputs, but an output of its own */
    Scratch scratch;    /* for the shared operator */
    uint64_t own_bits, common_bits;
    int failures;
} Worker;

/* cmocka's assertions belong to the main thread: failures are counted. */
static void *work(void *argument)
{
    Worker *w = argument;
    const AttnArgs *a = &w->own->args;
    FlashAttentionTensor q, k;
    w->failures +=
        flash_attention_describe(&q, FLASH_ATTENTION_F32, 4, a->Q.shape, a->Q.stride) != SUCCESS ||
        flash_attention_describe(&k, FLASH_ATTENTION_F32, 4, a->K.shape, a->K.stride) != SUCCESS;
    for (int n = 0; n < ROUNDS && w->failures == 0; n++) {
        FlashAttention *op;
        size_t bytes = 0;
        void *workspace = NULL;
        w->failures +=
            flash_attention_create(w->handle, &op, &q, &q, &k, &k, NULL,
                                   FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT, &a->scale) != SUCCESS;
        w->failures += flash_attention_workspace_size(op, &bytes) != SUCCESS;
        workspace = workspace_alloc(bytes);
        tensor_poison(&w->own->O);
        tensor_poison(&w->common->O);
        w->failures += flash_attention_run(op, workspace, bytes, a->O.data, a->Q.data, a->K.data,
                                           a->V.data, NULL, w->own->lse, NULL) != SUCCESS;
        w->failures += case_run(w->shared, w->common, &w->scratch, NULL, NULL) != SUCCESS;
        w->failures += tensor_fingerprint(&w->own->O) != w->own_bits;
        w->failures += tensor_fingerprint(&w->common->O) != w->common_bits;
        w->failures += flash_attention_destroy(op) != SUCCESS;
        workspace_free(workspace);
    }
    return NULL;
}

/* Alone: what the bits must be. */
static uint64_t bits_alone(const FlashAttention *op, Case *c)
{
    Scratch scratch = op_scratch(op);
    assert_int_equal(SUCCESS, case_run(op, c, &scratch, NULL, c->lse));
    case_judge(c, 0, 4, 1, "alone");
    workspace_free(scratch.memory);
    return tensor_fingerprint(&c->O);
}

static void run_together(int openmp_threads)
{
    const AttnShape shape = {1, 2, 1, 130, 90, 32};
    FlashAttentionHandle *handle;
    Worker workers[THREADS];
    pthread_t threads[THREADS];
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
    assert_int_equal(SUCCESS, flash_attention_set_threads(handle, openmp_threads));
    Case *inputs = case_new(shape, ATTN_BF16, LAYOUT_BHSD, 1);
    FlashAttention *shared = op_like(handle, inputs, 4, FLASH_ATTENTION_MASK_NONE, NULL);
    const uint64_t common_bits = bits_alone(shared, inputs);
    for (int n = 0; n < THREADS; n++) {
        Worker *w = &workers[n];
        *w = (Worker){.handle = handle, .shared = shared, .common_bits = common_bits};
        w->own = case_new((AttnShape){1, 2, 2, 40 + 17 * n, 60, 24}, ATTN_F32, LAYOUT_BSHD, 1);
        case_align(w->own, ATTN_MASK_CAUSAL_LOWER_RIGHT);
        w->common = case_new(shape, ATTN_BF16, LAYOUT_BHSD, 1);
        w->common->args.Q = inputs->args.Q;
        w->common->args.K = inputs->args.K;
        w->common->args.V = inputs->args.V;
        w->scratch = op_scratch(shared);
        FlashAttention *alone =
            op_like(handle, w->own, 4, FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT, NULL);
        w->own_bits = bits_alone(alone, w->own);
        assert_int_equal(SUCCESS, flash_attention_destroy(alone));
    }
    for (int n = 0; n < THREADS; n++)
        assert_int_equal(0, pthread_create(&threads[n], NULL, work, &workers[n]));
    for (int n = 0; n < THREADS; n++)
        assert_int_equal(0, pthread_join(threads[n], NULL));
    for (int n = 0; n < THREADS; n++) {
        assert_int_equal(0, workers[n].failures);
        workspace_free(workers[n].scratch.memory);
        case_free(workers[n].own);
        case_free(workers[n].common);
    }
    assert_int_equal(SUCCESS, flash_attention_destroy(shared));
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
    case_free(inputs);
}

TEST(test_one_thread_each)
{
    run_together(1);
}

TEST(test_teams_of_two)
{
    run_together(2);
}

/* A handle that was told nothing takes what OpenMP would. The workspace has room for each. */
TEST(test_as_many_as_openmp_takes)
{
    Case *c = case_new((AttnShape){1, 4, 4, 20, 20, 16}, ATTN_F32, LAYOUT_BSHD, 1);
    FlashAttentionHandle *handle;
    size_t bytes[2];
    int threads = 1;
#ifdef _OPENMP
    omp_set_num_threads(3);
    threads = 3;
#endif
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CPU, 0));
    for (int n = 0; n < 2; n++) {
        FlashAttention *op = op_like(handle, c, 4, FLASH_ATTENTION_MASK_NONE, NULL);
        assert_int_equal(SUCCESS, flash_attention_workspace_size(op, &bytes[n]));
        assert_int_equal(SUCCESS, flash_attention_destroy(op));
        assert_int_equal(SUCCESS, flash_attention_set_threads(handle, threads));
    }
    assert_true(bytes[0] == bytes[1]);
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
    case_free(c);
}
