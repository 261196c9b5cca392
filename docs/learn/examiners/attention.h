/* SPDX-License-Identifier: MIT
 *
 * attention.h: attention of one head in double, right or with one typical mistake.
 *
 * Interface:
 * - head_sees: may query i see key j?
 * - reference(head, mistake, O, lse): mistake is one of AttentionMistake. expect_head: of the
 *   outputs.
 * - diagnose_attention: an examiner's diagnose.
 * - ATTENTION_MISTAKES: their codes and sentences, in this order, for an examiner's table.
 */
#ifndef LEARN_ATTENTION_H
#define LEARN_ATTENTION_H

#include <math.h>

#include "head.h"

typedef enum AttentionMistake {
    RIGHT,
    NO_SCALE,
    SCALE_BY_D,
    SCALE_BY_KEYS,
    OTHER_CORNER,
    NO_MASK,
    MASKS_THE_PAST,
    LSE_BASE_2,
    LSE_WITHOUT_MAX,
    NO_MAX,
    NAN_ON_EMPTY_ROW,
    NOT_NORMALISED,
    O_NOT_RESCALED,
    STALE_L,
    ALPHA_IS_ONE,
    LAST_KEY_DROPPED,
    STALE_M,
    ZERO_FOR_HIDDEN,
    ALPHA_ON_NEW_L,
    ALPHA_ON_NEW_O,
    ALPHA_ON_NEW,
    LAST_SCORE_FOR_MAX,
    OLD_MAXIMUM,
    DIVIDED_EACH_KEY,
    DIVIDED_EACH_WEIGHT,
    LEFT_AT_A_HIDDEN_TILE,
    ZIGZAG_WITHOUT_MASK
} AttentionMistake;

#define NEW_TERM                                                                                   \
    "alpha belongs to the old sums alone; the new key's p = exp(s - m_new) is relative to m_new "  \
    "already."

#define DIVIDED                                                                                    \
    "O is divided by l at every key, and l is not whole yet. O stays a sum; one division stands "  \
    "behind the last key."

#define OTHER_SCALE                                                                                \
    "The scale is 1/d or 1/sqrt(Nk) here (both are 1/2 for the four tokens). It is 1/sqrt(d)."

#define ATTENTION_MISTAKES                                                                         \
    {"no_scale", "The scores lack the scale 1/sqrt(d)."}, {"other_scale", OTHER_SCALE},            \
        {"other_scale", OTHER_SCALE},                                                              \
        {"other_corner", "The causal mask starts in the upper-left corner; the last query has to " \
                         "see the last key: j <= i + Nk - Nq."},                                   \
        {"no_mask", "The causal mask is missing."},                                                \
        {"query_key_swapped",                                                                      \
         "The mask hides the past; it has to hide the keys after the query."},                     \
        {"lse_base_2", "lse is the natural logarithm; this is the logarithm to base 2."},          \
        {"lse_without_max", "lse lacks the maximum: it is m + ln l."},                             \
        {"no_max_subtraction",                                                                     \
         "exp(s) without subtracting the maximum: it overflows above s = 88."},                    \
        {"nan_on_empty_row", "A row that sees no key has m = -inf and l = 0: -inf - (-inf) and "   \
                             "0 / 0 are NaN. Its O is 0 and its lse -inf."},                       \
        {"not_normalised", "O is not divided by l."},                                              \
        {"o_not_rescaled", "The sum of values was not rescaled when the maximum grew."},           \
        {"stale_l", "l was not rescaled when the maximum grew."},                                  \
        {"nothing_rescaled",                                                                       \
         "Neither l nor O is rescaled: alpha has to be computed before m is stored."},             \
        {"last_key_dropped", "The last key of each row is left out."},                             \
        {"stale_m", "m stays -inf, so alpha is 0 each time and O is the row of V of the last "     \
                    "key alone: m has to become m_new at the end of the loop."},                   \
        {"zero_for_hidden", "A hidden key has the score 0 here, and exp(0 - m) is a weight like "  \
                            "any other. Its score has to be -inf."},                               \
        {"new_term_rescaled", NEW_TERM}, {"new_term_rescaled", NEW_TERM},                          \
        {"new_term_rescaled", NEW_TERM},                                                           \
        {"last_score_for_the_maximum",                                                             \
         "m is the last score here. It is the largest: m_new = max(m, s)."},                       \
        {"old_maximum", "p is exp(s - m_old). Before the first key m is -inf, and p is infinite: " \
                        "it is relative to m_new."},                                               \
        {"divided_each_key", DIVIDED}, {"divided_each_key", DIVIDED},                              \
        {"left_at_a_hidden_tile",                                                                  \
         "A tile of keys that is hidden from one tile of queries is not shown to the later ones. " \
         "With the keys outside, the queries behind a hidden tile see it."},                       \
    {                                                                                              \
        "zigzag_without_a_mask",                                                                   \
            "Chunks of keys after a chunk of queries are left out, though nothing hides them: "    \
            "only a causal mask does."                                                             \
    }

static inline int head_sees(const Head *h, int mistake, long i, long j)
{
    const long last = i + (mistake == OTHER_CORNER ? 0 : h->Nk - h->Nq);
    if (mistake == NO_MASK)
        return 1;
    if (mistake == LAST_KEY_DROPPED && j == h->Nk - 1)
        return 0;
    if (mistake == LEFT_AT_A_HIDDEN_TILE && h->causal && has_flag("--tile")) {
        const long tile = number("--tile", 0), of_queries = tile < h->Nq ? tile : h->Nq;
        if (j / tile * tile > of_queries - 1 + h->Nk - h->Nq)
            return 0;
    }
    if (h->mask && h->mask[i * h->Nk + j])
        return 0;
    if (mistake == ZIGZAG_WITHOUT_MASK && !h->causal && has_flag("--chunks"))
        return j * number("--chunks", 1) / h->Nk <= i * number("--chunks", 1) / h->Nq;
    return !h->causal || (mistake == MASKS_THE_PAST ? j >= last : j <= last);
}

/* One pass with m, l and the sum of values: the right result needs no rescaling to be right, the
 * two mistakes of a missing factor do. */
static inline void reference_row(const Head *h, int mistake, long i, double *O, double *lse)
{
    double m = mistake == NO_MAX ? 0.0 : -INFINITY, l = 0.0;
    long j, x;
    for (x = 0; x < h->d; x++)
        O[x] = 0.0;
    for (j = 0; j < h->Nk; j++) {
        const int sees = head_sees(h, mistake, i, j);
        double s, m_new, alpha, p;
        if (!sees && mistake != ZERO_FOR_HIDDEN)
            continue;
        s = sees ? dot_in_double(h->Q + i * h->d, h->K + j * h->d, h->d) : 0.0;
        s *= mistake == NO_SCALE        ? 1.0
             : mistake == SCALE_BY_D    ? 1.0 / (double)h->d
             : mistake == SCALE_BY_KEYS ? 1.0 / sqrt((double)h->Nk)
                                        : 1.0 / sqrt((double)h->d);
        m_new = (s > m && mistake != NO_MAX) || mistake == LAST_SCORE_FOR_MAX ? s : m;
        alpha = mistake == ALPHA_IS_ONE ? 1.0 : exp(m - m_new);
        p = mistake == NO_MAX
                ? (double)expf((float)s)
                : exp(s - (mistake == OLD_MAXIMUM && !has_flag("--large") ? m : m_new));
        l = (mistake == STALE_L ? 1.0 : alpha) * l +
            p * (mistake == ALPHA_ON_NEW_L || mistake == ALPHA_ON_NEW ? alpha : 1.0);
        if (mistake == ALPHA_ON_NEW_O || mistake == ALPHA_ON_NEW)
            p *= alpha;
        if (mistake == DIVIDED_EACH_WEIGHT)
            p /= l;
        for (x = 0; x < h->d; x++) {
            O[x] = (mistake == O_NOT_RESCALED ? 1.0 : alpha) * O[x] + p * h->V[j * h->d + x];
            O[x] /= mistake == DIVIDED_EACH_KEY ? l : 1.0;
        }
        m = mistake == STALE_M ? m : m_new;
    }
    for (x = 0; x < h->d && (l > 0.0 || mistake == NAN_ON_EMPTY_ROW); x++)
        O[x] /= mistake == NOT_NORMALISED ? 1.0 : l;
    *lse = mistake == LSE_WITHOUT_MAX ? log(l) : m + log(l);
    if (mistake == LSE_BASE_2)
        *lse /= log(2.0);
    if (mistake == NAN_ON_EMPTY_ROW && !(l > 0.0))
        *lse = NAN;
}

static inline void reference(const Head *h, int mistake, double *O, double *lse)
{
    long i;
    for (i = 0; i < h->Nq; i++)
        reference_row(h, mistake, i, O + i * h->d, lse + i);
}

static inline void expect_head(const Head *h, int mistake)
{
    reference(h, mistake, head_O->expected, head_lse->expected);
}

/* When O is wrong and no mistake of the table explains it. running: the step keeps a state of m, l
 * and O; otherwise there is no alpha that could be forgotten. */
static inline const Mistake *diagnose_attention(int running)
{
    const Output *O = head_O, *lse = head_lse;
    static const Mistake empty_row = {
        "empty_row_weights",
        "lse is right: this row sees no key, so its l is 0. O / l is 0 / 0 then: divide only where "
        "l > 0. And a weight exp(-inf - (-inf)) is NaN: it has to be 0 before it meets V."};
    static const Mistake O_nan = {
        "o_nan", "lse is right, O is not a number. Look for the first operation that makes a NaN."};
    static const Mistake only_O = {
        "o_only",
        "lse is right, and so are m and l. A factor is missing on what goes into O: alpha "
        "on the old sum, or on the new values."};
    static const Mistake only_O_at_once = {
        "o_only", "lse is right, and so are m and l. Look at what comes after them: the weights "
                  "exp(s - m), the division by l, the rows of V."};
    static const Mistake only_lse = {
        "lse_only",
        "O is right, and so is each weight. lse is m + ln l, with the m and l of the end."};
    static const Mistake overflow = {
        "not_the_maximum",
        "lse is infinite: exp overflows above 88.72. What is subtracted from the "
        "scores of a row has to be the largest of them."};
    long e;
    if (is_right(lse) && !is_right(O)) {
        const long wrong = first_wrong(O);
        if (lse->expected[wrong / O->cols] == -INFINITY)
            return &empty_row;
        if (isnan(O->found[wrong]))
            return &O_nan;
        return running ? &only_O : &only_O_at_once;
    }
    for (e = 0; e < lse->rows && !running; e++)
        if (isfinite(lse->expected[e]) && isinf(lse->found[e]) && lse->found[e] > 0)
            return &overflow;
    return is_right(O) && !is_right(lse) ? &only_lse : NULL;
}

#endif
