/* SPDX-License-Identifier: MIT
 *
 * hints_table.c: the mistakes that have a name.
 *
 * What stands here is what people get wrong: the named wrong solutions of tests/wrong, the
 * historical bugs of public kernels, the errors of published pseudo-code. A sentence says what the
 * output is, not what the author thought. Several rows may share a code: the same thing is
 * forgotten in different ways.
 *
 * Interface: hint_mistakes, hint_tile_count, hint_tile (hints_internal.h), hint_code (hints.h).
 */
#include "course/hints_internal.h"

#include <stddef.h>

/* The last arguments: what is computed otherwise. */
#define MISTAKE(code, sentence, arrays, tiles, ...)                                                \
    {                                                                                              \
        code, sentence, arrays, tiles,                                                             \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

const HintMistake hint_mistakes[] = {
    /* --- scores --- */
    MISTAKE("no_scale", "this is attention without 1/sqrt(d)", HINT_ALL, TILES_NONE,
            .score = SCORE_NO_SCALE),
    MISTAKE("no_scale", "this is attention without 1/sqrt(d), in the scores and behind dS",
            HINT_GRADIENTS, TILES_NONE, .score = SCORE_NO_SCALE,
            .gradient = GRADIENT_NO_OUTER_SCALE),
    MISTAKE("mean_of_v", "the scores are ignored: all visible keys have the same weight",
            HINT_FORWARD, TILES_NONE, .score = SCORE_ZERO),
    MISTAKE("scaled_twice", "the scores are multiplied by the scale twice", HINT_ALL, TILES_NONE,
            .score = SCORE_SCALED_TWICE),
    MISTAKE("scale_by_d", "the scores are divided by d, not by sqrt(d)", HINT_ALL, TILES_NONE,
            .score = SCORE_BY_D),
    MISTAKE("scale_ignored", "the scale is 1/sqrt(d), whatever the caller asks for", HINT_ALL,
            TILES_NONE, .score = SCORE_DEFAULT_SCALE),
    MISTAKE("exp2_for_exp", "this is 2^s where e^s belongs: log2(e) is missing in the scores",
            HINT_ALL, TILES_NONE, .score = SCORE_BASE_2),
    MISTAKE("softcap_ignored", "the scores are not capped", HINT_ALL, TILES_NONE,
            .score = SCORE_NO_CAP),
    MISTAKE("softcap_after_mask",
            "the cap comes after the mask: tanh makes -cap of the -inf of a hidden key", HINT_ALL,
            TILES_NONE, .score = SCORE_CAP_AFTER_MASK),
    MISTAKE("softcap_after_mask",
            "the cap comes after the mask: tanh makes -cap of the -inf of a hidden key", HINT_ALL,
            TILES_PAIRS, .score = SCORE_CAP_AFTER_MASK),
    MISTAKE("softcap_not_scaled", "the score is tanh(s / cap): the cap in front of it is missing",
            HINT_ALL, TILES_NONE, .score = SCORE_CAP_NOT_SCALED),
    MISTAKE("softcap_before_scale", "q.k is capped before it is scaled", HINT_FORWARD, TILES_NONE,
            .score = SCORE_CAP_BEFORE_SCALE),
    MISTAKE("temperature_beside_cap",
            "the scores are divided by the temperature although a cap is given", HINT_ALL,
            TILES_NONE, .score = SCORE_TEMPERATURE_BEFORE_CAP),
    MISTAKE("temperature_beside_cap", "the capped scores are divided by the temperature, too",
            HINT_ALL, TILES_NONE, .score = SCORE_TEMPERATURE_BEHIND_CAP),
    MISTAKE("temperature_ignored", "the scores are not divided by the temperature", HINT_ALL,
            TILES_NONE, .score = SCORE_NO_TEMPERATURE),
    /* --- who sees whom --- */
    MISTAKE("no_mask", "this is attention without the mask: every query sees every key", HINT_ALL,
            TILES_NONE, .see = SEE_ALL),
    MISTAKE("no_mask", "neither the causal rule nor the window is applied", HINT_ALL, TILES_NONE,
            .see = SEE_NO_RULE),
    MISTAKE("mean_of_v", "scores and mask are ignored: all keys have the same weight", HINT_FORWARD,
            TILES_NONE, .see = SEE_ALL, .score = SCORE_ZERO),
    MISTAKE("mask_ignored", "the full mask is not applied", HINT_ALL, TILES_NONE,
            .see = SEE_NO_MASK),
    MISTAKE("window_ignored", "the window has no left end: all earlier keys are seen", HINT_ALL,
            TILES_NONE, .see = SEE_NO_LEFT),
    MISTAKE("causal_ignored", "later keys are seen: the window has no right end", HINT_ALL,
            TILES_NONE, .see = SEE_NO_RIGHT),
    MISTAKE("other_corner",
            "queries are counted from the other corner: where Nq and Nk differ, lower-right means "
            "that the last query is at the last key",
            HINT_ALL, TILES_NONE, .see = SEE_OTHER_CORNER),
    MISTAKE("other_corner",
            "queries are counted from the first key, also where the last query is at the last key "
            "(lower-right)",
            HINT_ALL, TILES_NONE, .see = SEE_FROM_FIRST),
    MISTAKE("other_corner",
            "queries are counted from the last key, also where query 0 is at key 0 (upper-left)",
            HINT_ALL, TILES_NONE, .see = SEE_FROM_LAST),
    MISTAKE("nothing_seen",
            "O is 0 and lse is -inf, as of rows that see no key: nothing was computed",
            HINT_FORWARD, TILES_NONE, .see = SEE_NONE),
    MISTAKE("mask_polarity", "the full mask is read with 1 = visible; here 1 means masked out",
            HINT_ALL, TILES_NONE, .see = SEE_POLARITY),
    MISTAKE("mask_transposed", "the full mask is read as [Nk][Nq]; it is [Nq][Nk]", HINT_ALL,
            TILES_NONE, .see = SEE_MASK_TRANSPOSED),
    MISTAKE("query_key_swapped",
            "query and key are exchanged in the question who sees whom: the past is hidden, not "
            "the future",
            HINT_ALL, TILES_NONE, .see = SEE_SWAPPED),
    MISTAKE("window_mirrored", "left and right of the window are exchanged", HINT_ALL, TILES_NONE,
            .see = SEE_MIRRORED),
    MISTAKE("window_off_by_one",
            "the key at the left end of the window is hidden; both ends are seen", HINT_ALL,
            TILES_NONE, .see = SEE_MOVED, .left = -1),
    MISTAKE("window_off_by_one", "the window reaches one key too far to the left", HINT_ALL,
            TILES_NONE, .see = SEE_MOVED, .left = 1),
    MISTAKE("window_off_by_one",
            "the key at the right end is hidden: a causal query sees its own key, and the end of a "
            "window is seen",
            HINT_ALL, TILES_NONE, .see = SEE_MOVED, .right = -1),
    MISTAKE("window_off_by_one", "one key too many is seen to the right", HINT_ALL, TILES_NONE,
            .see = SEE_MOVED, .right = 1),
    MISTAKE("window_off_by_one", "both ends of the window are hidden; both are to be seen",
            HINT_ALL, TILES_NONE, .see = SEE_MOVED, .left = -1, .right = -1),
    MISTAKE("window_off_by_one", "the window is one key too wide on either side", HINT_ALL,
            TILES_NONE, .see = SEE_MOVED, .left = 1, .right = 1),
    MISTAKE("window_off_by_one",
            "the key at the left end of the window is hidden in tiles that the mask crosses",
            HINT_ALL, TILES_PAIRS, .see = SEE_MOVED, .left = -1, .tiled = 1),
    MISTAKE("window_off_by_one",
            "the window reaches one key too far to the left in tiles that the mask crosses",
            HINT_ALL, TILES_PAIRS, .see = SEE_MOVED, .left = 1, .tiled = 1),
    MISTAKE("window_off_by_one",
            "the key at the right end is hidden in tiles that the mask crosses: a causal query "
            "sees its own key",
            HINT_ALL, TILES_PAIRS, .see = SEE_MOVED, .right = -1, .tiled = 1),
    MISTAKE("window_off_by_one",
            "one key too many is seen to the right in tiles that the mask crosses", HINT_ALL,
            TILES_PAIRS, .see = SEE_MOVED, .right = 1, .tiled = 1),
    MISTAKE("window_mirrored",
            "left and right of the window are exchanged in tiles that the mask crosses", HINT_ALL,
            TILES_PAIRS, .see = SEE_MIRRORED, .tiled = 1),
    MISTAKE(
        "window_off_by_one",
        "the key at the left end of the window is hidden where it is not the first one of a vector",
        HINT_ALL, TILES_PAIRS, .see = SEE_LEFT_EDGE),
    MISTAKE("window_off_by_one",
            "the key at the right end is hidden where it is not the last one of a vector: a causal "
            "query sees its own key",
            HINT_ALL, TILES_PAIRS, .see = SEE_RIGHT_EDGE),
    MISTAKE("query_key_swapped",
            "query and key are exchanged in tiles that the mask crosses: the past is hidden",
            HINT_ALL, TILES_PAIRS, .see = SEE_SWAPPED, .tiled = 1),
    MISTAKE("segments_ignored", "all sequences are taken for one long run", HINT_ALL, TILES_NONE,
            .see = SEE_ONE_SEQUENCE),
    MISTAKE("segments_ignored", "keys of other sequences are seen", HINT_ALL, TILES_NONE,
            .see = SEE_ANY_SEQUENCE),
    /* --- loops that stop too early or start too late --- */
    MISTAKE("tail_tile_dropped", "the keys of the last partial tile are left out", HINT_ALL,
            TILES_ROW, .see = SEE_NO_TAIL),
    MISTAKE("tail_tile_dropped",
            "the keys of the last partial tile are missing in the sum of exp alone", HINT_FORWARD,
            TILES_ROW, .sum = SUM_NO_TAIL_L),
    MISTAKE("tail_tile_dropped",
            "the keys of the last partial tile are missing in the product with V", HINT_O,
            TILES_ROW, .sum = SUM_NO_TAIL_PV),
    MISTAKE("tail_tile_dropped", "the queries of the last partial tile are left out of dK and dV",
            HINT_DK | HINT_DV, TILES_QUERY, .see = SEE_NO_TAIL_ROWS),
    MISTAKE("padding_seen",
            "the last tile is taken as full: the zeros that fill it count as keys with the score 0",
            HINT_FORWARD, TILES_ROW, .see = SEE_PADDING),
    MISTAKE("padding_seen",
            "the last tile is taken as full: the zeros that fill it count as keys with the score 0",
            HINT_FORWARD, TILES_PAIRS, .see = SEE_PADDING, .tiled = 1),
    MISTAKE("vector_tail_dropped", "the last partial vector of a row never goes through exp",
            HINT_FORWARD, TILES_ROW, .sum = SUM_TAIL_NOT_EXP),
    MISTAKE("one_key_dropped", "the last key is left out", HINT_ALL, TILES_NONE,
            .see = SEE_NOT_LAST_KEY),
    MISTAKE("one_key_dropped", "the first key is left out", HINT_ALL, TILES_NONE,
            .see = SEE_NOT_FIRST_KEY),
    MISTAKE("one_key_dropped", "the last key is left out of the product with V", HINT_O, TILES_NONE,
            .sum = SUM_NOT_LAST_KEY),
    MISTAKE("one_key_dropped", "the first key is left out of the product with V", HINT_O,
            TILES_NONE, .sum = SUM_NOT_FIRST_KEY),
    MISTAKE("first_tile_dropped", "the first tile of keys is left out", HINT_ALL, TILES_ROW,
            .see = SEE_NOT_FIRST_TILE),
    MISTAKE("last_tile_dropped", "the last tile of keys that a query sees is left out", HINT_ALL,
            TILES_ROW, .see = SEE_NOT_LAST_VISIBLE),
    MISTAKE("last_tile_dropped", "the last tile of keys that a tile of queries sees is left out",
            HINT_ALL, TILES_PAIRS, .see = SEE_NOT_LAST_VISIBLE),
    MISTAKE("sum_of_the_largest_tree",
            "the sum holds the largest power of two of the blocks; the rest was never merged",
            HINT_FORWARD, TILES_ROW, .sum = SUM_LARGEST_TREE),
    /* --- tiles and their masks --- */
    MISTAKE("masked_tiles_skipped", "tiles in which the mask hides a pair are skipped as a whole",
            HINT_ALL, TILES_PAIRS, .see = SEE_CLEAN_ONLY),
    MISTAKE("masked_tile_taken_for_full",
            "tiles in which the mask hides some pairs are computed as if it hid none", HINT_ALL,
            TILES_PAIRS, .see = SEE_TILES_WHOLE),
    MISTAKE("masked_tile_taken_for_full", "all rows of a strip see what its last row sees",
            HINT_ALL, TILES_QUERY, .see = SEE_STRIP_END),
    MISTAKE("wrong_side_skipped",
            "tiles on the wrong side of the diagonal are skipped: later queries see earlier keys",
            HINT_ALL, TILES_EVEN, .see = SEE_WRONG_SIDE),
    /* --- which memory --- */
    MISTAKE("kv_head_modulo", "query head h reads kv head h % Hkv; it is h / (H / Hkv)", HINT_ALL,
            TILES_NONE, .feed = FEED_KV_MODULO),
    MISTAKE("kv_head_modulo", "the group of a kv head is taken to be every Hkv-th query head",
            HINT_GRADIENTS, TILES_NONE, .feed = FEED_KV_MODULO, .gradient = GRADIENT_GROUP_STRIDED),
    MISTAKE("kv_head_modulo",
            "query head h reads kv head h % Hkv, and dK and dV of H / Hkv neighbours go where the "
            "last of them reads",
            HINT_GRADIENTS, TILES_NONE, .feed = FEED_KV_MODULO, .gradient = GRADIENT_GROUP_STORED),
    MISTAKE("kv_head_first", "all query heads read kv head 0", HINT_ALL, TILES_NONE,
            .feed = FEED_KV_FIRST),
    MISTAKE("batch_ignored", "all batches read the queries of batch 0", HINT_FORWARD, TILES_NONE,
            .feed = FEED_BATCH_Q),
    MISTAKE("batch_ignored", "all batches read the keys of batch 0", HINT_ALL, TILES_NONE,
            .feed = FEED_BATCH_K),
    MISTAKE("batch_ignored", "all batches read the values of batch 0", HINT_ALL, TILES_NONE,
            .feed = FEED_BATCH_V),
    MISTAKE("batch_ignored", "all batches read keys and values of batch 0", HINT_ALL, TILES_NONE,
            .feed = FEED_BATCH_KV),
    MISTAKE("keys_for_values", "the weights multiply K, not V", HINT_O, TILES_NONE,
            .feed = FEED_K_FOR_V),
    MISTAKE("values_transposed", "V is read as [d][N]; it is [N][d]", HINT_O, TILES_NONE,
            .feed = FEED_V_TRANSPOSED),
    MISTAKE("q_and_k_exchanged",
            "Q and K are exchanged: the score of query i and key j is that of query j and key i",
            HINT_FORWARD, TILES_NONE, .feed = FEED_SWAPPED),
    MISTAKE("heads_before_tokens", "memory is read as [B][H][N][d]; it is [B][N][H][d]",
            HINT_FORWARD, TILES_NONE, .feed = FEED_LAYOUT),
    MISTAKE("row_shifted", "each row holds what belongs to the row before it", HINT_FORWARD,
            TILES_NONE, .shift = -1),
    MISTAKE("row_shifted", "each row holds what belongs to the row behind it", HINT_FORWARD,
            TILES_NONE, .shift = 1),
    /* --- the softmax --- */
    MISTAKE("not_normalised", "the weights are not divided by their sum", HINT_O, TILES_NONE,
            .sum = SUM_NOT_NORMALISED),
    MISTAKE("not_normalised", "the weights are exp(s), not divided by their sum", HINT_O,
            TILES_NONE, .sum = SUM_RAW_NOT_NORMALISED),
    MISTAKE("softmax_over_queries",
            "the softmax is taken over the queries of a key: the wrong axis", HINT_O, TILES_NONE,
            .sum = SUM_OVER_QUERIES),
    MISTAKE("mean_of_v", "all visible keys have the same weight", HINT_O, TILES_NONE,
            .sum = SUM_MEAN_VISIBLE),
    MISTAKE("mean_of_v", "all keys have the same weight", HINT_O, TILES_NONE, .sum = SUM_MEAN_ALL),
    MISTAKE("zeros", "the result is all zeros", HINT_O | HINT_GRADIENTS, TILES_NONE,
            .sum = SUM_ZEROS),
    MISTAKE("zeros", "lse is all zeros", HINT_LSE, TILES_NONE, .lse = LSE_ZERO),
    MISTAKE("not_initialised",
            "all values are the NaN that fills memory before a run: never written, or computed "
            "from memory that never was",
            HINT_O | HINT_GRADIENTS, TILES_NONE, .sum = SUM_NOT_WRITTEN),
    MISTAKE("not_initialised",
            "all values are the NaN that fills memory before a run: never written, or computed "
            "from memory that never was",
            HINT_FORWARD, TILES_NONE, .sum = SUM_NOT_WRITTEN, .lse = LSE_NOT_WRITTEN),
    MISTAKE("not_initialised",
            "all values are the NaN that fills memory before a run: never written, or computed "
            "from memory that never was",
            HINT_LSE, TILES_NONE, .lse = LSE_NOT_WRITTEN),
    MISTAKE("no_max_subtraction",
            "exp overflows where scores are large: the row's maximum is not subtracted before exp",
            HINT_FORWARD, TILES_NONE, .sum = SUM_NO_MAX),
    MISTAKE("m_from_zero",
            "the maximum starts at 0, not at -inf: exp vanishes in a row whose scores are all far "
            "below 0",
            HINT_FORWARD, TILES_NONE, .sum = SUM_M_FROM_ZERO),
    MISTAKE("nan_on_empty_row", "a row that sees no key computes (-inf) - (-inf) or 0 / 0; it is 0",
            HINT_FORWARD, TILES_NONE, .sum = SUM_NAN_EMPTY),
    MISTAKE("nan_on_empty_row",
            "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
            HINT_FORWARD, TILES_ROW, .sum = SUM_NAN_EMPTY),
    MISTAKE("nan_on_empty_row",
            "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
            HINT_FORWARD, TILES_EVEN, .sum = SUM_NAN_EMPTY_RULED),
    MISTAKE("nan_on_empty_row",
            "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
            HINT_FORWARD, TILES_SRAM, .sum = SUM_NAN_EMPTY_RULED),
    MISTAKE("nan_on_empty_row",
            "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
            HINT_FORWARD, TILES_PAIRS, .sum = SUM_NAN_EMPTY_RULED),
    MISTAKE("mask_by_large_number",
            "hidden scores are a large negative number, not -inf: a row that sees no key gets the "
            "mean of V",
            HINT_FORWARD, TILES_NONE, .sum = SUM_LARGE_NUMBER),
    /* --- the online softmax --- */
    MISTAKE("o_not_rescaled", "O is not rescaled when a later tile raises the maximum", HINT_O,
            TILES_ROW, .sum = SUM_STALE_O),
    MISTAKE("stale_l", "the sum l is not rescaled when a later tile raises the maximum",
            HINT_FORWARD, TILES_ROW, .sum = SUM_STALE_L),
    MISTAKE("nothing_rescaled", "neither O nor l is rescaled when a later tile raises the maximum",
            HINT_FORWARD, TILES_ROW, .sum = SUM_STALE_BOTH),
    MISTAKE("new_tile_not_rescaled",
            "exp(m_tile - m_new) is missing on the new tile: its weights keep its own maximum",
            HINT_O, TILES_ROW, .sum = SUM_STALE_NEW),
    MISTAKE("new_tile_not_rescaled",
            "exp(m_tile - m_new) is missing on the new tile and on its part of the sum",
            HINT_FORWARD, TILES_ROW, .sum = SUM_STALE_NEW_L),
    MISTAKE("normalised_twice", "O is divided by l after each tile, and again at the end", HINT_O,
            TILES_ROW, .sum = SUM_NORMALISED_TWICE),
    MISTAKE("stale_m", "the running maximum is never written back: only the last tile counts",
            HINT_FORWARD, TILES_ROW, .sum = SUM_STALE_M),
    MISTAKE("stale_m", "the running maximum is never written back: only the last tile counts",
            HINT_FORWARD, TILES_EVEN, .sum = SUM_STALE_M),
    MISTAKE("stale_m", "the running maximum is never written back: only the last tile counts",
            HINT_FORWARD, TILES_SRAM, .sum = SUM_STALE_M),
    MISTAKE("last_tile_only", "O and lse are those of the last tile of keys alone", HINT_FORWARD,
            TILES_ROW, .sum = SUM_LAST_TILE),
    MISTAKE("last_tile_only", "O and lse are those of the last tile of keys alone", HINT_FORWARD,
            TILES_EVEN, .sum = SUM_LAST_TILE),
    MISTAKE("tiles_normalised", "each tile is normalised by its own sum, and the results are added",
            HINT_O, TILES_ROW, .sum = SUM_TILES_NORMALISED),
    MISTAKE("merge_without_weights",
            "O of a block is merged without its weight exp(lse_block - lse)", HINT_O, TILES_ROW,
            .sum = SUM_NEW_NOT_WEIGHTED),
    MISTAKE("merge_without_weights", "the old O is merged without its weight exp(lse_old - lse)",
            HINT_O, TILES_ROW, .sum = SUM_OLD_NOT_WEIGHTED),
    /* --- lse --- */
    MISTAKE("lse_base_2", "lse is a base 2 logarithm; it must be the natural one", HINT_LSE,
            TILES_NONE, .lse = LSE_BASE_2),
    MISTAKE("lse_base_2", "lse is m + log2(l): the logarithm of l must be the natural one, too",
            HINT_LSE, TILES_NONE, .lse = LSE_LOG2_L),
    MISTAKE("lse_base_10", "lse is a base 10 logarithm; it must be the natural one", HINT_LSE,
            TILES_NONE, .lse = LSE_BASE_10),
    MISTAKE("lse_without_max", "lse is log(l): the maximum that was subtracted is missing",
            HINT_LSE, TILES_NONE, .lse = LSE_NO_MAX),
    MISTAKE("lse_without_log_l", "lse is the maximum m alone: log(l) is missing", HINT_LSE,
            TILES_NONE, .lse = LSE_NO_LOG_L),
    MISTAKE("lse_with_l", "lse is m + l: the logarithm is missing", HINT_LSE, TILES_NONE,
            .lse = LSE_L_NOT_LOG),
    MISTAKE("lse_is_l", "lse is the sum l itself", HINT_LSE, TILES_NONE, .lse = LSE_IS_L),
    /* --- stage 05's options --- */
    MISTAKE("dropout_ignored", "no weight is dropped", HINT_ALL, TILES_NONE, .sum = SUM_NO_DROPOUT),
    MISTAKE("dropout_not_scaled", "the weights that are kept are not divided by 1 - p", HINT_ALL,
            TILES_NONE, .sum = SUM_DROPOUT_NOT_SCALED),
    MISTAKE("dropout_by_tile", "dropout counts keys from the start of a tile: all tiles drop alike",
            HINT_ALL, TILES_ROW, .sum = SUM_DROPOUT_BY_TILE),
    MISTAKE("clip_ignored", "the weights are not clipped", HINT_ALL, TILES_NONE,
            .sum = SUM_NO_CLIP),
    MISTAKE("clip_not_cut", "clipped weights stay negative: they are to be cut off at 0", HINT_ALL,
            TILES_NONE, .sum = SUM_CLIP_NOT_CUT),
    MISTAKE("delta_of_clipped_weights",
            "delta is rowsum(dO O), but with clipping that is no longer the sum of P dP",
            HINT_GRADIENTS, TILES_NONE, .gradient = GRADIENT_DELTA_CLIPPED),
    MISTAKE("norm_ignored", "Q and K are not normalised", HINT_FORWARD, TILES_NONE,
            .feed = FEED_NOT_NORMALISED),
    MISTAKE("norm_of_first_group",
            "all groups are divided by the root mean square of the head's first", HINT_FORWARD,
            TILES_NONE, .feed = FEED_FIRST_GROUP),
    MISTAKE(
        "norm_gradient_ignored",
        "the gradient stops at the normalised Q and K: it does not go through the normalisation",
        HINT_DQ | HINT_DK | HINT_TOGETHER, TILES_NONE, .gradient = GRADIENT_NORM_IGNORED),
    MISTAKE("norm_gradient_without_mean",
            "the root mean square is taken for a constant: each channel of a group changes it, too",
            HINT_DQ | HINT_DK | HINT_TOGETHER, TILES_NONE, .gradient = GRADIENT_NORM_NO_MEAN),
    MISTAKE("norm_gradient_without_weight",
            "the weight of the normalisation is missing in the gradient",
            HINT_DQ | HINT_DK | HINT_TOGETHER, TILES_NONE, .gradient = GRADIENT_NORM_NO_WEIGHT),
    /* --- gradients --- */
    MISTAKE("delta_missing", "dS is P dP: delta = rowsum(dO O) is not subtracted",
            HINT_DQ | HINT_DK, TILES_NONE, .gradient = GRADIENT_NO_DELTA),
    MISTAKE("delta_added", "dS is P (dP + delta): delta is to be subtracted", HINT_DQ | HINT_DK,
            TILES_NONE, .gradient = GRADIENT_DELTA_ADDED),
    MISTAKE("delta_from_v", "delta is rowsum(dO V); it is rowsum(dO O)", HINT_DQ | HINT_DK,
            TILES_NONE, .gradient = GRADIENT_DELTA_V),
    MISTAKE("delta_from_v", "delta is rowsum(dO V) of the tile at hand; it is rowsum(dO O)",
            HINT_DQ | HINT_DK, TILES_EVEN, .gradient = GRADIENT_DELTA_V_TILE),
    MISTAKE("delta_of_one_tile",
            "delta is the sum of P dP of one tile; it belongs to the whole row", HINT_DQ | HINT_DK,
            TILES_FEW, .gradient = GRADIENT_DELTA_TILE),
    MISTAKE("softcap_slope_missing", "the derivative of the cap, 1 - (s / cap)^2, is missing in dS",
            HINT_DQ | HINT_DK, TILES_NONE, .gradient = GRADIENT_NO_SLOPE),
    MISTAKE("p_not_normalised", "P is exp(s) in the backward pass: lse is not subtracted",
            HINT_GRADIENTS, TILES_NONE, .gradient = GRADIENT_P_RAW),
    MISTAKE("p_from_m", "P is exp(s - m) in the backward pass: nothing is divided by l",
            HINT_GRADIENTS, TILES_NONE, .gradient = GRADIENT_P_M),
    MISTAKE("p_from_m", "P is exp(s - m) with the maximum of a tile in the backward pass",
            HINT_GRADIENTS, TILES_FEW, .gradient = GRADIENT_P_TILE_M),
    MISTAKE("ds_without_p", "dS is dP - delta: the factor P is missing", HINT_DQ | HINT_DK,
            TILES_NONE, .gradient = GRADIENT_NO_P),
    MISTAKE("group_not_summed", "dK and dV hold only the last query head of a group",
            HINT_DK | HINT_DV, TILES_NONE, .gradient = GRADIENT_GROUP_LAST),
    MISTAKE("group_not_summed", "dK and dV hold only the first query head of a group",
            HINT_DK | HINT_DV, TILES_NONE, .gradient = GRADIENT_GROUP_FIRST),
    MISTAKE("not_transposed", "dK is dS Q; it is dS^T Q", HINT_DK, TILES_NONE,
            .gradient = GRADIENT_DK_NOT_TRANSPOSED),
    MISTAKE("not_transposed", "dV is P dO; it is P^T dO", HINT_DV, TILES_NONE,
            .gradient = GRADIENT_DV_NOT_TRANSPOSED),
    MISTAKE("dq_overwritten", "dQ holds what the last tile of keys gave: it is not added up",
            HINT_DQ, TILES_ROW, .gradient = GRADIENT_DQ_LAST_TILE),
    MISTAKE("dkv_overwritten",
            "dK and dV hold what the last tile of queries gave: they are not added up",
            HINT_DK | HINT_DV, TILES_EVEN, .gradient = GRADIENT_DKV_LAST_TILE),
    MISTAKE("dq_part_lost", "one part of the keys is missing in dQ", HINT_DQ, TILES_PARTS,
            .gradient = GRADIENT_DQ_PART_LOST),
    MISTAKE("dq_part_lost", "dQ holds the first part of the keys alone", HINT_DQ, TILES_PARTS,
            .gradient = GRADIENT_DQ_ONE_PART),
    /* --- a constant factor on one array --- */
    MISTAKE("dq_without_scale", "dQ is 1/scale times too large: the scale is missing", HINT_DQ,
            TILES_NONE, .factor = FACTOR_INVERSE_SCALE),
    MISTAKE("dk_without_scale", "dK is 1/scale times too large: the scale is missing", HINT_DK,
            TILES_NONE, .factor = FACTOR_INVERSE_SCALE),
    MISTAKE("dq_dk_without_scale", "dQ and dK are 1/scale times too large: the scale is missing",
            HINT_DQ | HINT_DK | HINT_TOGETHER, TILES_NONE, .factor = FACTOR_INVERSE_SCALE),
    MISTAKE("dq_scaled_twice", "dQ is multiplied by the scale twice", HINT_DQ, TILES_NONE,
            .factor = FACTOR_SCALE),
    MISTAKE("dk_scaled_twice", "dK is multiplied by the scale twice", HINT_DK, TILES_NONE,
            .factor = FACTOR_SCALE),
    MISTAKE("dq_dk_scaled_twice", "dQ and dK are multiplied by the scale twice",
            HINT_DQ | HINT_DK | HINT_TOGETHER, TILES_NONE, .factor = FACTOR_SCALE),
    MISTAKE("wrong_sign", "the sign is flipped", HINT_ALL, TILES_NONE, .factor = FACTOR_MINUS_1),
    MISTAKE("wrong_factor", "the result is a constant factor too large: H / Hkv", HINT_ALL,
            TILES_NONE, .factor = FACTOR_GROUP),
    MISTAKE("wrong_factor", "the result is a constant factor too small: Hkv / H", HINT_ALL,
            TILES_NONE, .factor = FACTOR_INVERSE_GROUP),
    MISTAKE("wrong_factor", "the result is twice what it should be", HINT_ALL, TILES_NONE,
            .factor = FACTOR_2),
    MISTAKE("wrong_factor", "the result is half of what it should be", HINT_ALL, TILES_NONE,
            .factor = FACTOR_HALF),
    MISTAKE("wrong_factor", "the result is log2(e) times what it should be",
            HINT_O | HINT_GRADIENTS, TILES_NONE, .factor = FACTOR_LOG2_E),
    MISTAKE("wrong_factor", "the result is ln(2) times what it should be", HINT_ALL, TILES_NONE,
            .factor = FACTOR_LN_2),
    MISTAKE("wrong_factor", "the result is Nk times what it should be", HINT_ALL, TILES_NONE,
            .factor = FACTOR_N),
    MISTAKE("wrong_factor", "the result is 1/Nk times what it should be", HINT_ALL, TILES_NONE,
            .factor = FACTOR_INVERSE_N),
    MISTAKE("wrong_factor", "the result is multiplied by the scale", HINT_O | HINT_DV, TILES_NONE,
            .factor = FACTOR_SCALE),
    MISTAKE("wrong_factor", "the result is divided by the scale", HINT_O | HINT_DV, TILES_NONE,
            .factor = FACTOR_INVERSE_SCALE),
};

const int hint_mistake_count = (int)(sizeof hint_mistakes / sizeof *hint_mistakes);

static const int64_t rows_of_tiles[] = {1,  2,  4,  6,  8,  10, 12, 14, 16,
                                        24, 28, 30, 32, 48, 64, 96, 128};
static const int64_t large_tiles[] = {160, 192, 224, 256, 320, 384, 512};
static const int64_t usual_tiles[] = {4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256};
enum {
    ROWS = sizeof rows_of_tiles / sizeof *rows_of_tiles,
    USUAL = sizeof usual_tiles / sizeof *usual_tiles,
    LARGE = sizeof large_tiles / sizeof *large_tiles,
    PARTS = 7,
    BLOCKS = 32
};

int hint_tile_count(int tiles)
{
    static const int count[] = {1,   128 + LARGE, 128 + LARGE,  128 + LARGE,
                                128, USUAL,       ROWS * USUAL, BLOCKS * PARTS};
    return count[tiles];
}

HintTile hint_tile(int tiles, int n, int64_t d)
{
    const int64_t T = n < 128 ? n + 1 : large_tiles[tiles <= TILES_SRAM ? n - 128 : 0];
    switch (tiles) {
    case TILES_ROW:
        return (HintTile){T, 1};
    case TILES_EVEN:
        return (HintTile){T, T};
    case TILES_SRAM:
        return (HintTile){T, T < d ? T : d};
    case TILES_QUERY:
        return (HintTile){1, T};
    case TILES_FEW:
        return (HintTile){usual_tiles[n], usual_tiles[n]};
    case TILES_PAIRS:
        return (HintTile){usual_tiles[n % USUAL], rows_of_tiles[n / USUAL]};
    case TILES_PARTS:
        return (HintTile){4 * (n % BLOCKS + 1), 2 + n / BLOCKS};
    default:
        return (HintTile){INT64_C(1) << 40, 1};
    }
}

const char *hint_code(int n, const char **sentence)
{
    if (n < 0 || n >= hint_mistake_count)
        return NULL;
    *sentence = hint_mistakes[n].sentence;
    return hint_mistakes[n].code;
}
