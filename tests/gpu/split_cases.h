/* SPDX-License-Identifier: MIT
 *
 * split_cases.h: the cases whose keys the tests of block kernels cut in blocks, for both passes.
 *
 * Interface: each calls try_case for case after case.
 * - try_options: every option, in tiny and in larger sizes.
 * - try_shards: every shard of a ring. Head dimensions up to 256, aligned and not.
 * - try_few_queries: where a kernel may share out the keys among blocks of its own.
 * few: few of them, each in one dtype, for compute-sanitizer; else all, in all dtypes.
 */
#ifndef SPLIT_CASES_H
#define SPLIT_CASES_H

#include "../unit/key_blocks.h"

/* world: also the blocks of a ring, from block `rank` on; 0: none. single_keys: tiny, cut up as far
 * as it goes. */
typedef void (*TryCase)(Case *c, const char *label, int world, int rank, int single_keys);

static inline void try_options(int few, TryCase try_case)
{
    for (int larger = few ? 9 : 1; larger <= (few ? 9 : 25); larger += 24)
        for (int n = 0; n < OPTION_COUNT; n++)
            for (int dtype = few ? n % 3 : 0; dtype < (few ? n % 3 + 1 : 3); dtype++) {
                Case *c = case_option(&options[n], (AttnDtype)dtype, larger, 1);
                try_case(c, options[n].name, 0, 0, larger == 1);
                case_free(c);
            }
}

static inline void try_shards(int few, TryCase try_case)
{
    for (int n = 0; n < SHARD_COUNT; n++)
        for (int dtype = few ? n % 3 : 0; dtype < (few ? n % 3 + 1 : 3); dtype++) {
            Case *c =
                shard_new(&shards[n], (AttnDtype)dtype, (n + dtype) % 2 ? LAYOUT_ODD : LAYOUT_BSHD);
            try_case(c, shards[n].name, shards[n].world, shards[n].rank, 0);
            case_free(c);
        }
}

static inline void try_few_queries(int few, TryCase try_case)
{
    static const AttnShape shapes[] = {{1, 2, 1, 7, 3000, 64}, {2, 4, 4, 1, 2051, 128}};
    for (int n = 0; n < (few ? 1 : 4); n++)
        for (int dtype = 0; dtype < 3; dtype++) {
            Case *c =
                case_new(shapes[n / 2], (AttnDtype)dtype, n % 2 ? LAYOUT_ODD : LAYOUT_BHSD, 1);
            case_align(c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
            if (n % 2) /* most parts see nothing */
                c->args.rule = (AttnRule){100, 0};
            try_case(c, "few queries, many keys", 2, 1, 0);
            case_free(c);
        }
}

#endif
