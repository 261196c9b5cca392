/* SPDX-License-Identifier: MIT
 *
 * visits.h: the blocks of stage 05's steps, and the order in which they are visited.
 *
 * Interface:
 * - VisitOrder, visits_set_blocks, visits_set_order: --block-q, --block-kv, --order.
 * - visits_block_q, visits_block_kv: at most that many queries and keys a step.
 * - visits_fill: the order itself.
 */
#ifndef ATTN_VISITS_H
#define ATTN_VISITS_H

#include <stdint.h>

typedef enum VisitOrder { VISIT_ROWS, VISIT_COLUMNS, VISIT_DIAGONAL, VISIT_RANDOM } VisitOrder;

void visits_set_blocks(int64_t block_q, int64_t block_kv); /* 64, 64 unless told otherwise */
void visits_set_order(VisitOrder order, uint64_t seed);
int64_t visits_block_q(void);
int64_t visits_block_kv(void);
/* visits [Tr*Tc]: visit t is block (visits[t] / Tc, visits[t] % Tc), in the order that was set. */
void visits_fill(int64_t Tr, int64_t Tc, int64_t *visits);
#endif
