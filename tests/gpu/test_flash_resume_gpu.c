/* SPDX-License-Identifier: MIT
 *
 * test_flash_resume_gpu: test_flash_resume for the CUDA kernels that resume from (O, lse). Any
 * split of the keys, in any order, equals one pass within the oracle's bound; a fixed order gives
 * fixed bits.
 */
#include <math.h>

#include "device_case.h"
#include "gpu_main.h"

#include "../unit/judge_case.h"
#include "split_cases.h"

static void add_keys(DeviceCase *d, const Kernel *kernel, int64_t first, int64_t count)
{
    KeyBlock block;
    key_block_cut(&block, d->host, first, count);
    const AttnArgs args = device_case_args(d, &block.args);
    assert_int_equal(ATTN_OK, kernel->function(&args, d->O_state_dev));
    key_block_free(&block);
}

static void add_split(DeviceCase *d, const Kernel *kernel, const KeySplit *split, int from)
{
    for (int n = from; n < split->count; n++)
        add_keys(d, kernel, split->first[n], split->length[n]);
}

static void start(DeviceCase *d, float *O_state)
{
    flash_state_start(&d->host->args, O_state);
    device_case_state_up(d, O_state);
}

static void assert_kernel_right(const DeviceCase *d, const Kernel *kernel, const Oracle *oracle,
                                float *O_state, const char *label)
{
    device_case_state_down(d, O_state);
    flash_state_store(&d->host->args, O_state);
    if (!case_agrees(d->host, oracle, 0, kernel->c, label))
        fail_msg("%s", kernel->name);
}

/* The splits of a case for each kernel that takes its dtype. */
static void try_case(Case *c, const char *label, int world, int rank, int single_keys)
{
    const int64_t Nk = c->args.shape.Nk;
    DeviceCase *d = device_case_new(c);
    float *O_state = state_new(c);
    Oracle oracle = oracle_of(&c->args, 0, 2);
    for (int k = 0; k < KERNEL_COUNT; k++)
        for (int trial = 0; kernel_takes(&kernels[k], c->args.Q.dtype) && trial < 6; trial++) {
            KeySplit split = split_random(Nk, single_keys ? MOST_BLOCKS : 1 + trial);
            if (small && trial != 2)
                continue;
            if (trial == 0 && world)
                split = split_evenly(Nk, world, rank);
            if (trial == 1) { /* the first block by the definition */
                split = split_evenly(Nk, Nk < 3 ? (int)Nk : 3, 0);
                state_from_oracle(c, split.length[0], O_state);
                device_case_state_up(d, O_state);
            } else {
                start(d, O_state);
            }
            add_split(d, &kernels[k], &split, trial == 1);
            assert_kernel_right(d, &kernels[k], &oracle, O_state, label);
        }
    oracle_free(&oracle);
    free(O_state);
    device_case_free(d);
}

TEST(test_any_split_is_one_pass)
{
    try_options(small, try_case);
}

TEST(test_shards_of_a_ring)
{
    try_shards(small, try_case);
}

/* Where a kernel may share out the keys among blocks of its own and merge what they found. */
TEST(test_few_queries_many_keys)
{
    try_few_queries(small, try_case);
}

/* Keys of the future, of another sequence, behind the mask: the state stays where it was. */
TEST(test_a_block_that_nobody_sees)
{
    for (int kind = 0; kind < 3; kind++)
        for (int k = 0; k < KERNEL_COUNT; k++) {
            const AttnDtype dtype = kernels[k].dtypes & 1 ? ATTN_F32 : ATTN_F16;
            if (!kernel_takes(&kernels[k], dtype))
                continue;
            Case *c = unseen_case(kind, dtype, 24);
            DeviceCase *d = device_case_new(c);
            float *O_state = state_new(c);
            Oracle before = oracle_of(&c->args, 0, 1); /* the last 70 add nothing */
            state_from_oracle(c, 140, O_state);
            device_case_state_up(d, O_state);
            add_keys(d, &kernels[k], 140, 70);
            assert_kernel_right(d, &kernels[k], &before, O_state, "a block that nobody sees");
            start(d, O_state);
            add_keys(d, &kernels[k], 140, 70);
            device_case_state_down(d, O_state);
            for (size_t e = 0; e < d->rows; e++)
                assert_true(c->lse[e] == -INFINITY);
            for (size_t e = 0; e < d->elements; e++)
                assert_true(O_state[e] == 0.0f);
            oracle_free(&before);
            free(O_state);
            device_case_free(d);
            case_free(c);
        }
}

TEST(test_same_order_same_bits)
{
    for (int k = 0; k < KERNEL_COUNT; k++)
        for (int n = 0; n < SHARD_COUNT; n += small ? SHARD_COUNT : 2) {
            const AttnDtype dtype = kernels[k].dtypes & 1 ? ATTN_F32 : n % 4 ? ATTN_F16 : ATTN_BF16;
            if (!kernel_takes(&kernels[k], dtype))
                continue;
            Case *c = shard_new(&shards[n], dtype, LAYOUT_BSHD);
            DeviceCase *d = device_case_new(c);
            const KeySplit split = split_random(c->args.shape.Nk, 4);
            float *O_state = state_new(c);
            void *O = NULL, *lse = NULL;
            for (int repeat = 0; repeat < (small ? 2 : 20); repeat++) {
                start(d, O_state);
                add_split(d, &kernels[k], &split, 0);
                device_case_state_down(d, O_state);
                assert_repeats(&O, O_state, d->elements * sizeof *O_state);
                assert_repeats(&lse, c->lse, d->rows * sizeof *c->lse);
            }
            free(O), free(lse), free(O_state);
            device_case_free(d);
            case_free(c);
        }
}
