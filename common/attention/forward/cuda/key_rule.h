/* SPDX-License-Identifier: MIT
 *
 * key_rule.h: which keys a row sees, where that is one run of them.
 *
 * Where positions grow with the index, in rows and in keys, "at position p - left or later" is a
 * suffix of the keys and "at p + right or earlier" a prefix: a row sees one run of keys, and rows
 * further down see runs further right. That holds for ordinary attention, for a zigzag shard of a
 * ring (two segments, the later one second) and for a striped shard (each fourth position, say).
 * The run of a row is then a few additions, and no kernel needs to read a segment.
 *
 *     first = keys before position p + from          last = keys before p + to + 1, less 1
 *
 * Positions are counted from that of key 0 and in steps, so that 32 bits are enough. One segment of
 * each is the rule; it costs no turn of a loop.
 *
 * With KEY_RULE_KEEPS_ITS_LOOP the device code is shorter. The forward kernel must not have it: the
 * compiler would give the numbers of its main loop other registers (docs/lab/03_hopper.md).
 *
 * Interface:
 * - KeyRule, make_key_rule (host): 0 where rows do not see runs.
 * - row_position, first_key, last_key: of a row; of its position.
 */
#ifndef FLASH_FORWARD_KEY_RULE_H
#define FLASH_FORWARD_KEY_RULE_H

#include "attn.h"

#define RULE_SEGMENTS 4                  /* of each map, at most */
#define RULE_FAR      ((int64_t)1 << 28) /* above any index and position; 4 of them are infinite */

typedef struct KeyRule {
    int from, to;
    int q_count, k_count;
    int q_first[RULE_SEGMENTS], q_shift[RULE_SEGMENTS]; /* row i stands at i + q_shift */
    int k_position[RULE_SEGMENTS], k_length[RULE_SEGMENTS];
} KeyRule;

/* a / b rounded down; b > 0. */
static inline int64_t rule_floor(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static inline int rule_distance(int64_t steps)
{
    const int64_t most = 4 * RULE_FAR;
    return (int)(steps < -most ? -most : steps > most ? most : steps);
}

static inline int rule_is_near(int64_t position)
{
    return position > -RULE_FAR && position < RULE_FAR;
}

/* The segments that hold anything: of one sequence, with steps of `step`, each behind the one
 * before. Returns how many; 0: not such a map. */
static inline int rule_segments(const AttnSegment **list, AttnPositions map, int64_t step)
{
    const int64_t limit = (int64_t)1 << 60;
    int count = 0;
    for (int64_t s = 0; s < map.count; s++) {
        const AttnSegment *next = &map.host[s], *before = count ? list[count - 1] : NULL;
        if (next->length == 0)
            continue;
        if (count == RULE_SEGMENTS || (next->length > 1 && next->stride != step) ||
            next->position < -limit || next->position > limit)
            return 0;
        if (before && (next->sequence != before->sequence ||
                       next->position <= before->position + (before->length - 1) * step))
            return 0;
        list[count++] = next;
    }
    return count;
}

/* Returns 1, or 0: positions do not grow, or are not known to the host. */
static inline int make_key_rule(KeyRule *rule, const AttnArgs *a)
{
    const AttnSegment *q[RULE_SEGMENTS], *k[RULE_SEGMENTS];
    const int64_t none = (int64_t)1 << 60;
    if (!a->positions_q.host || !a->positions_k.host || a->positions_k.count < 1 ||
        a->shape.Nq >= RULE_FAR || a->shape.Nk >= RULE_FAR)
        return 0;
    const int64_t step = a->positions_k.host[0].stride;
    if (step < 1 || step >= RULE_FAR)
        return 0;
    rule->q_count = rule_segments(q, a->positions_q, step);
    rule->k_count = rule_segments(k, a->positions_k, step);
    const int plain = rule->q_count == 1 && rule->k_count == 1;
    if (rule->q_count == 0 || rule->k_count == 0 || (step != 1 && !plain))
        return 0;
    /* One segment each: what lies between them goes into from and to. */
    const int64_t base = k[0]->position, shift = plain ? q[0]->position - base : 0;
    const int64_t left = a->rule.left < 0 || a->rule.left > none ? none : a->rule.left;
    const int64_t right = a->rule.right < 0 || a->rule.right > none ? none : a->rule.right;
    rule->from = rule_distance(-rule_floor(left - shift, step)); /* rounded up */
    rule->to = rule_distance(rule_floor(right + shift, step));
    for (int s = 0; s < rule->q_count; s++) {
        const int64_t q_shift = plain ? 0 : q[s]->position - base - q[s]->first;
        rule->q_first[s] = (int)q[s]->first;
        rule->q_shift[s] = (int)q_shift;
        if (!rule_is_near(q_shift))
            return 0;
    }
    for (int s = 0; s < rule->k_count; s++) {
        const int64_t position = plain ? 0 : k[s]->position - base;
        rule->k_position[s] = (int)position;
        rule->k_length[s] = (int)k[s]->length;
        if (!rule_is_near(position))
            return 0;
    }
    if (q[0]->sequence != k[0]->sequence)
        rule->k_length[0] = 0, rule->k_count = 1; /* nobody sees anything */
    return 1;
}

static inline ATTN_HD int row_position(const KeyRule *rule, int i)
{
    int s = 0;
    while (s + 1 < rule->q_count && i >= rule->q_first[s + 1])
        s++;
    return i + rule->q_shift[s];
}

/* Of `length` keys, the first at `position`, how many stand before position x? */
static inline ATTN_HD int keys_before_in(int position, int length, int x)
{
    const int here = x - position;
    return here < 0 ? 0 : here > length ? length : here;
}

static inline ATTN_HD int keys_before(const KeyRule *rule, int x)
{
    int count = keys_before_in(0, rule->k_length[0], x); /* positions count from the first key */
#ifdef KEY_RULE_KEEPS_ITS_LOOP
#pragma unroll 1 /* seldom taken, and code before a tile's first load is time */
#endif
    for (int s = 1; s < rule->k_count; s++)
        count += keys_before_in(rule->k_position[s], rule->k_length[s], x);
    return count;
}

/* The row at position p sees keys first ... last: none, if last < first. */
static inline ATTN_HD int first_key(const KeyRule *rule, int p)
{
    return keys_before(rule, p + rule->from);
}

static inline ATTN_HD int last_key(const KeyRule *rule, int p)
{
    return keys_before(rule, p + rule->to + 1) - 1;
}

#endif
