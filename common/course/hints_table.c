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

const HintMistake hint_mistakes[] = {
    /* --- scores --- */
    {"no_scale", "this is attention without 1/sqrt(d)", HINT_ALL, .bug.score = SCORE_NO_SCALE},
    {"no_scale", "this is attention without 1/sqrt(d), in the scores and behind dS", HINT_GRADIENTS,
     .bug.score = SCORE_NO_SCALE, .bug.gradient = GRADIENT_NO_OUTER_SCALE},
    {"mean_of_v", "the scores are ignored: all visible keys have the same weight", HINT_FORWARD,
     .bug.score = SCORE_ZERO},
    {"scaled_twice", "the scores are multiplied by the scale twice", HINT_ALL,
     .bug.score = SCORE_SCALED_TWICE},
    {"scale_by_d", "the scores are divided by d, not by sqrt(d)", HINT_ALL,
     .bug.score = SCORE_BY_D},
    {"scale_ignored", "the scale is 1/sqrt(d), whatever the caller asks for", HINT_ALL,
     .bug.score = SCORE_DEFAULT_SCALE},
    {"exp2_for_exp", "this is 2^s where e^s belongs: log2(e) is missing in the scores", HINT_ALL,
     .bug.score = SCORE_BASE_2},
    {"softcap_ignored", "the scores are not capped", HINT_ALL, .bug.score = SCORE_NO_CAP},
    {"softcap_after_mask",
     "the cap comes after the mask: tanh makes -cap of the -inf of a hidden key", HINT_ALL,
     .bug.score = SCORE_CAP_AFTER_MASK},
    {"softcap_after_mask",
     "the cap comes after the mask: tanh makes -cap of the -inf of a hidden key", HINT_ALL,
     TILES_PAIRS, .bug.score = SCORE_CAP_AFTER_MASK},
    {"softcap_not_scaled", "the score is tanh(s / cap): the cap in front of it is missing",
     HINT_ALL, .bug.score = SCORE_CAP_NOT_SCALED},
    {"softcap_before_scale", "q.k is capped before it is scaled", HINT_FORWARD,
     .bug.score = SCORE_CAP_BEFORE_SCALE},
    {"temperature_beside_cap", "the scores are divided by the temperature although a cap is given",
     HINT_ALL, .bug.score = SCORE_TEMPERATURE_BEFORE_CAP},
    {"temperature_beside_cap", "the capped scores are divided by the temperature, too", HINT_ALL,
     .bug.score = SCORE_TEMPERATURE_BEHIND_CAP},
    {"temperature_ignored", "the scores are not divided by the temperature", HINT_ALL,
     .bug.score = SCORE_NO_TEMPERATURE},
    /* --- who sees whom --- */
    {"no_mask", "this is attention without the mask: every query sees every key", HINT_ALL,
     .bug.see = SEE_ALL},
    {"no_mask", "neither the causal rule nor the window is applied", HINT_ALL,
     .bug.see = SEE_NO_RULE},
    {"mean_of_v", "scores and mask are ignored: all keys have the same weight", HINT_FORWARD,
     .bug.see = SEE_ALL, .bug.score = SCORE_ZERO},
    {"mask_ignored", "the full mask is not applied", HINT_ALL, .bug.see = SEE_NO_MASK},
    {"window_ignored", "the window has no left end: all earlier keys are seen", HINT_ALL,
     .bug.see = SEE_NO_LEFT},
    {"causal_ignored", "later keys are seen: the window has no right end", HINT_ALL,
     .bug.see = SEE_NO_RIGHT},
    {"other_corner",
     "queries are counted from the other corner: where Nq and Nk differ, lower-right means that "
     "the last query is at the last key",
     HINT_ALL, .bug.see = SEE_OTHER_CORNER},
    {"other_corner",
     "queries are counted from the first key, also where the last query is at the last key "
     "(lower-right)",
     HINT_ALL, .bug.see = SEE_FROM_FIRST},
    {"other_corner",
     "queries are counted from the last key, also where query 0 is at key 0 (upper-left)", HINT_ALL,
     .bug.see = SEE_FROM_LAST},
    {"nothing_seen", "O is 0 and lse is -inf, as of rows that see no key: nothing was computed",
     HINT_FORWARD, .bug.see = SEE_NONE},
    {"mask_polarity", "the full mask is read with 1 = visible; here 1 means masked out", HINT_ALL,
     .bug.see = SEE_POLARITY},
    {"mask_transposed", "the full mask is read as [Nk][Nq]; it is [Nq][Nk]", HINT_ALL,
     .bug.see = SEE_MASK_TRANSPOSED},
    {"query_key_swapped",
     "query and key are exchanged in the question who sees whom: the past is hidden, not the "
     "future",
     HINT_ALL, .bug.see = SEE_SWAPPED},
    {"window_mirrored", "left and right of the window are exchanged", HINT_ALL,
     .bug.see = SEE_MIRRORED},
    {"window_off_by_one", "the key at the left end of the window is hidden; both ends are seen",
     HINT_ALL, .bug.see = SEE_MOVED, .bug.left = -1},
    {"window_off_by_one", "the window reaches one key too far to the left", HINT_ALL,
     .bug.see = SEE_MOVED, .bug.left = 1},
    {"window_off_by_one",
     "the key at the right end is hidden: a causal query sees its own key, and the end of a window "
     "is seen",
     HINT_ALL, .bug.see = SEE_MOVED, .bug.right = -1},
    {"window_off_by_one", "one key too many is seen to the right", HINT_ALL, .bug.see = SEE_MOVED,
     .bug.right = 1},
    {"window_off_by_one", "both ends of the window are hidden; both are to be seen", HINT_ALL,
     .bug.see = SEE_MOVED, .bug.left = -1, .bug.right = -1},
    {"window_off_by_one", "the window is one key too wide on either side", HINT_ALL,
     .bug.see = SEE_MOVED, .bug.left = 1, .bug.right = 1},
    {"window_off_by_one",
     "the key at the left end of the window is hidden in tiles that the mask crosses", HINT_ALL,
     TILES_PAIRS, .bug.see = SEE_MOVED, .bug.left = -1, .bug.tiled = 1},
    {"window_off_by_one",
     "the window reaches one key too far to the left in tiles that the mask crosses", HINT_ALL,
     TILES_PAIRS, .bug.see = SEE_MOVED, .bug.left = 1, .bug.tiled = 1},
    {"window_off_by_one",
     "the key at the right end is hidden in tiles that the mask crosses: a causal query sees its "
     "own key",
     HINT_ALL, TILES_PAIRS, .bug.see = SEE_MOVED, .bug.right = -1, .bug.tiled = 1},
    {"window_off_by_one", "one key too many is seen to the right in tiles that the mask crosses",
     HINT_ALL, TILES_PAIRS, .bug.see = SEE_MOVED, .bug.right = 1, .bug.tiled = 1},
    {"window_mirrored", "left and right of the window are exchanged in tiles that the mask crosses",
     HINT_ALL, TILES_PAIRS, .bug.see = SEE_MIRRORED, .bug.tiled = 1},
    {"window_off_by_one",
     "the key at the left end of the window is hidden where it is not the first one of a vector",
     HINT_ALL, TILES_PAIRS, .bug.see = SEE_LEFT_EDGE},
    {"window_off_by_one",
     "the key at the right end is hidden where it is not the last one of a vector: a causal query "
     "sees its own key",
     HINT_ALL, TILES_PAIRS, .bug.see = SEE_RIGHT_EDGE},
    {"query_key_swapped",
     "query and key are exchanged in tiles that the mask crosses: the past is hidden", HINT_ALL,
     TILES_PAIRS, .bug.see = SEE_SWAPPED, .bug.tiled = 1},
    {"segments_ignored", "all sequences are taken for one long run", HINT_ALL,
     .bug.see = SEE_ONE_SEQUENCE},
    {"segments_ignored", "keys of other sequences are seen", HINT_ALL, .bug.see = SEE_ANY_SEQUENCE},
    /* --- loops that stop too early or start too late --- */
    {"tail_tile_dropped", "the keys of the last partial tile are left out", HINT_ALL, TILES_ROW,
     .bug.see = SEE_NO_TAIL},
    {"tail_tile_dropped", "the keys of the last partial tile are missing in the sum of exp alone",
     HINT_FORWARD, TILES_ROW, .bug.sum = SUM_NO_TAIL_L},
    {"tail_tile_dropped", "the keys of the last partial tile are missing in the product with V",
     HINT_O, TILES_ROW, .bug.sum = SUM_NO_TAIL_PV},
    {"tail_tile_dropped", "the queries of the last partial tile are left out of dK and dV",
     HINT_DK | HINT_DV, TILES_QUERY, .bug.see = SEE_NO_TAIL_ROWS},
    {"padding_seen",
     "the last tile is taken as full: the zeros that fill it count as keys with the score 0",
     HINT_FORWARD, TILES_ROW, .bug.see = SEE_PADDING},
    {"padding_seen",
     "the last tile is taken as full: the zeros that fill it count as keys with the score 0",
     HINT_FORWARD, TILES_PAIRS, .bug.see = SEE_PADDING, .bug.tiled = 1},
    {"vector_tail_dropped", "the last partial vector of a row never goes through exp", HINT_FORWARD,
     TILES_ROW, .bug.sum = SUM_TAIL_NOT_EXP},
    {"one_key_dropped", "the last key is left out", HINT_ALL, .bug.see = SEE_NOT_LAST_KEY},
    {"one_key_dropped", "the first key is left out", HINT_ALL, .bug.see = SEE_NOT_FIRST_KEY},
    {"one_key_dropped", "the last key is left out of the product with V", HINT_O,
     .bug.sum = SUM_NOT_LAST_KEY},
    {"one_key_dropped", "the first key is left out of the product with V", HINT_O,
     .bug.sum = SUM_NOT_FIRST_KEY},
    {"first_tile_dropped", "the first tile of keys is left out", HINT_ALL, TILES_ROW,
     .bug.see = SEE_NOT_FIRST_TILE},
    {"last_tile_dropped", "the last tile of keys that a query sees is left out", HINT_ALL,
     TILES_ROW, .bug.see = SEE_NOT_LAST_VISIBLE},
    {"last_tile_dropped", "the last tile of keys that a tile of queries sees is left out", HINT_ALL,
     TILES_PAIRS, .bug.see = SEE_NOT_LAST_VISIBLE},
    {"sum_of_the_largest_tree",
     "the sum holds the largest power of two of the blocks; the rest was never merged",
     HINT_FORWARD, TILES_ROW, .bug.sum = SUM_LARGEST_TREE},
    /* --- tiles and their masks --- */
    {"masked_tiles_skipped", "tiles in which the mask hides a pair are skipped as a whole",
     HINT_ALL, TILES_PAIRS, .bug.see = SEE_CLEAN_ONLY},
    {"masked_tile_taken_for_full",
     "tiles in which the mask hides some pairs are computed as if it hid none", HINT_ALL,
     TILES_PAIRS, .bug.see = SEE_TILES_WHOLE},
    {"masked_tile_taken_for_full", "all rows of a strip see what its last row sees", HINT_ALL,
     TILES_QUERY, .bug.see = SEE_STRIP_END},
    {"wrong_side_skipped",
     "tiles on the wrong side of the diagonal are skipped: later queries see earlier keys",
     HINT_ALL, TILES_EVEN, .bug.see = SEE_WRONG_SIDE},
    /* --- which memory --- */
    {"kv_head_modulo", "query head h reads kv head h % Hkv; it is h / (H / Hkv)", HINT_ALL,
     .bug.feed = FEED_KV_MODULO},
    {"kv_head_modulo", "the group of a kv head is taken to be every Hkv-th query head",
     HINT_GRADIENTS, .bug.feed = FEED_KV_MODULO, .bug.gradient = GRADIENT_GROUP_STRIDED},
    {"kv_head_modulo",
     "query head h reads kv head h % Hkv, and dK and dV of H / Hkv neighbours go where the last of "
     "them reads",
     HINT_GRADIENTS, .bug.feed = FEED_KV_MODULO, .bug.gradient = GRADIENT_GROUP_STORED},
    {"kv_head_first", "all query heads read kv head 0", HINT_ALL, .bug.feed = FEED_KV_FIRST},
    {"batch_ignored", "all batches read the queries of batch 0", HINT_FORWARD,
     .bug.feed = FEED_BATCH_Q},
    {"batch_ignored", "all batches read the keys of batch 0", HINT_ALL, .bug.feed = FEED_BATCH_K},
    {"batch_ignored", "all batches read the values of batch 0", HINT_ALL, .bug.feed = FEED_BATCH_V},
    {"batch_ignored", "all batches read keys and values of batch 0", HINT_ALL,
     .bug.feed = FEED_BATCH_KV},
    {"keys_for_values", "the weights multiply K, not V", HINT_O, .bug.feed = FEED_K_FOR_V},
    {"values_transposed", "V is read as [d][N]; it is [N][d]", HINT_O,
     .bug.feed = FEED_V_TRANSPOSED},
    {"q_and_k_exchanged",
     "Q and K are exchanged: the score of query i and key j is that of query j and key i",
     HINT_FORWARD, .bug.feed = FEED_SWAPPED},
    {"heads_before_tokens", "memory is read as [B][H][N][d]; it is [B][N][H][d]", HINT_FORWARD,
     .bug.feed = FEED_LAYOUT},
    {"row_shifted", "each row holds what belongs to the row before it", HINT_FORWARD,
     .bug.shift = -1},
    {"row_shifted", "each row holds what belongs to the row behind it", HINT_FORWARD,
     .bug.shift = 1},
    /* --- the softmax --- */
    {"not_normalised", "the weights are not divided by their sum", HINT_O,
     .bug.sum = SUM_NOT_NORMALISED},
    {"not_normalised", "the weights are exp(s), not divided by their sum", HINT_O,
     .bug.sum = SUM_RAW_NOT_NORMALISED},
    {"softmax_over_queries", "the softmax is taken over the queries of a key: the wrong axis",
     HINT_O, .bug.sum = SUM_OVER_QUERIES},
    {"mean_of_v", "all visible keys have the same weight", HINT_O, .bug.sum = SUM_MEAN_VISIBLE},
    {"mean_of_v", "all keys have the same weight", HINT_O, .bug.sum = SUM_MEAN_ALL},
    {"zeros", "the result is all zeros", HINT_O | HINT_GRADIENTS, .bug.sum = SUM_ZEROS},
    {"zeros", "lse is all zeros", HINT_LSE, .bug.lse = LSE_ZERO},
    {"not_initialised",
     "all values are the NaN that fills memory before a run: never written, or computed from "
     "memory that never was",
     HINT_O | HINT_GRADIENTS, .bug.sum = SUM_NOT_WRITTEN},
    {"not_initialised",
     "all values are the NaN that fills memory before a run: never written, or computed from "
     "memory that never was",
     HINT_FORWARD, .bug.sum = SUM_NOT_WRITTEN, .bug.lse = LSE_NOT_WRITTEN},
    {"not_initialised",
     "all values are the NaN that fills memory before a run: never written, or computed from "
     "memory that never was",
     HINT_LSE, .bug.lse = LSE_NOT_WRITTEN},
    {"no_max_subtraction",
     "exp overflows where scores are large: the row's maximum is not subtracted before exp",
     HINT_FORWARD, .bug.sum = SUM_NO_MAX},
    {"m_from_zero",
     "the maximum starts at 0, not at -inf: exp vanishes in a row whose scores are all far below 0",
     HINT_FORWARD, .bug.sum = SUM_M_FROM_ZERO},
    {"nan_on_empty_row", "a row that sees no key computes (-inf) - (-inf) or 0 / 0; it is 0",
     HINT_FORWARD, .bug.sum = SUM_NAN_EMPTY},
    {"nan_on_empty_row",
     "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
     HINT_FORWARD, TILES_ROW, .bug.sum = SUM_NAN_EMPTY},
    {"nan_on_empty_row",
     "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
     HINT_FORWARD, TILES_EVEN, .bug.sum = SUM_NAN_EMPTY_RULED},
    {"nan_on_empty_row",
     "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
     HINT_FORWARD, TILES_SRAM, .bug.sum = SUM_NAN_EMPTY_RULED},
    {"nan_on_empty_row",
     "a row that sees no key of its first tile computes (-inf) - (-inf): NaN to the end",
     HINT_FORWARD, TILES_PAIRS, .bug.sum = SUM_NAN_EMPTY_RULED},
    {"mask_by_large_number",
     "hidden scores are a large negative number, not -inf: a row that sees no key gets the mean of "
     "V",
     HINT_FORWARD, .bug.sum = SUM_LARGE_NUMBER},
    /* --- the online softmax --- */
    {"o_not_rescaled", "O is not rescaled when a later tile raises the maximum", HINT_O, TILES_ROW,
     .bug.sum = SUM_STALE_O},
    {"stale_l", "the sum l is not rescaled when a later tile raises the maximum", HINT_FORWARD,
     TILES_ROW, .bug.sum = SUM_STALE_L},
    {"nothing_rescaled", "neither O nor l is rescaled when a later tile raises the maximum",
     HINT_FORWARD, TILES_ROW, .bug.sum = SUM_STALE_BOTH},
    {"new_tile_not_rescaled",
     "exp(m_tile - m_new) is missing on the new tile: its weights keep its own maximum", HINT_O,
     TILES_ROW, .bug.sum = SUM_STALE_NEW},
    {"new_tile_not_rescaled",
     "exp(m_tile - m_new) is missing on the new tile and on its part of the sum", HINT_FORWARD,
     TILES_ROW, .bug.sum = SUM_STALE_NEW_L},
    {"normalised_twice", "O is divided by l after each tile, and again at the end", HINT_O,
     TILES_ROW, .bug.sum = SUM_NORMALISED_TWICE},
    {"stale_m", "the running maximum is never written back: only the last tile counts",
     HINT_FORWARD, TILES_ROW, .bug.sum = SUM_STALE_M},
    {"stale_m", "the running maximum is never written back: only the last tile counts",
     HINT_FORWARD, TILES_EVEN, .bug.sum = SUM_STALE_M},
    {"stale_m", "the running maximum is never written back: only the last tile counts",
     HINT_FORWARD, TILES_SRAM, .bug.sum = SUM_STALE_M},
    {"last_tile_only", "O and lse are those of the last tile of keys alone", HINT_FORWARD,
     TILES_ROW, .bug.sum = SUM_LAST_TILE},
    {"last_tile_only", "O and lse are those of the last tile of keys alone", HINT_FORWARD,
     TILES_EVEN, .bug.sum = SUM_LAST_TILE},
    {"tiles_normalised", "each tile is normalised by its own sum, and the results are added",
     HINT_O, TILES_ROW, .bug.sum = SUM_TILES_NORMALISED},
    {"merge_without_weights", "O of a block is merged without its weight exp(lse_block - lse)",
     HINT_O, TILES_ROW, .bug.sum = SUM_NEW_NOT_WEIGHTED},
    {"merge_without_weights", "the old O is merged without its weight exp(lse_old - lse)", HINT_O,
     TILES_ROW, .bug.sum = SUM_OLD_NOT_WEIGHTED},
    /* --- lse --- */
    {"lse_base_2", "lse is a base 2 logarithm; it must be the natural one", HINT_LSE,
     .bug.lse = LSE_BASE_2},
    {"lse_base_2", "lse is m + log2(l): the logarithm of l must be the natural one, too", HINT_LSE,
     .bug.lse = LSE_LOG2_L},
    {"lse_base_10", "lse is a base 10 logarithm; it must be the natural one", HINT_LSE,
     .bug.lse = LSE_BASE_10},
    {"lse_without_max", "lse is log(l): the maximum that was subtracted is missing", HINT_LSE,
     .bug.lse = LSE_NO_MAX},
    {"lse_without_log_l", "lse is the maximum m alone: log(l) is missing", HINT_LSE,
     .bug.lse = LSE_NO_LOG_L},
    {"lse_with_l", "lse is m + l: the logarithm is missing", HINT_LSE, .bug.lse = LSE_L_NOT_LOG},
    {"lse_is_l", "lse is the sum l itself", HINT_LSE, .bug.lse = LSE_IS_L},
    /* --- stage 05's options --- */
    {"dropout_ignored", "no weight is dropped", HINT_ALL, .bug.sum = SUM_NO_DROPOUT},
    {"dropout_not_scaled", "the weights that are kept are not divided by 1 - p", HINT_ALL,
     .bug.sum = SUM_DROPOUT_NOT_SCALED},
    {"dropout_by_tile", "dropout counts keys from the start of a tile: all tiles drop alike",
     HINT_ALL, TILES_ROW, .bug.sum = SUM_DROPOUT_BY_TILE},
    {"clip_ignored", "the weights are not clipped", HINT_ALL, .bug.sum = SUM_NO_CLIP},
    {"clip_not_cut", "clipped weights stay negative: they are to be cut off at 0", HINT_ALL,
     .bug.sum = SUM_CLIP_NOT_CUT},
    {"delta_of_clipped_weights",
     "delta is rowsum(dO O), but with clipping that is no longer the sum of P dP", HINT_GRADIENTS,
     .bug.gradient = GRADIENT_DELTA_CLIPPED},
    {"norm_ignored", "Q and K are not normalised", HINT_FORWARD, .bug.feed = FEED_NOT_NORMALISED},
    {"norm_of_first_group", "all groups are divided by the root mean square of the head's first",
     HINT_FORWARD, .bug.feed = FEED_FIRST_GROUP},
    {"norm_gradient_ignored",
     "the gradient stops at the normalised Q and K: it does not go through the normalisation",
     HINT_DQ | HINT_DK | HINT_TOGETHER, .bug.gradient = GRADIENT_NORM_IGNORED},
    {"norm_gradient_without_mean",
     "the root mean square is taken for a constant: each channel of a group changes it, too",
     HINT_DQ | HINT_DK | HINT_TOGETHER, .bug.gradient = GRADIENT_NORM_NO_MEAN},
    {"norm_gradient_without_weight", "the weight of the normalisation is missing in the gradient",
     HINT_DQ | HINT_DK | HINT_TOGETHER, .bug.gradient = GRADIENT_NORM_NO_WEIGHT},
    /* --- gradients --- */
    {"delta_missing", "dS is P dP: delta = rowsum(dO O) is not subtracted", HINT_DQ | HINT_DK,
     .bug.gradient = GRADIENT_NO_DELTA},
    {"delta_added", "dS is P (dP + delta): delta is to be subtracted", HINT_DQ | HINT_DK,
     .bug.gradient = GRADIENT_DELTA_ADDED},
    {"delta_from_v", "delta is rowsum(dO V); it is rowsum(dO O)", HINT_DQ | HINT_DK,
     .bug.gradient = GRADIENT_DELTA_V},
    {"delta_from_v", "delta is rowsum(dO V) of the tile at hand; it is rowsum(dO O)",
     HINT_DQ | HINT_DK, TILES_EVEN, .bug.gradient = GRADIENT_DELTA_V_TILE},
    {"delta_of_one_tile", "delta is the sum of P dP of one tile; it belongs to the whole row",
     HINT_DQ | HINT_DK, TILES_FEW, .bug.gradient = GRADIENT_DELTA_TILE},
    {"softcap_slope_missing", "the derivative of the cap, 1 - (s / cap)^2, is missing in dS",
     HINT_DQ | HINT_DK, .bug.gradient = GRADIENT_NO_SLOPE},
    {"p_not_normalised", "P is exp(s) in the backward pass: lse is not subtracted", HINT_GRADIENTS,
     .bug.gradient = GRADIENT_P_RAW},
    {"p_from_m", "P is exp(s - m) in the backward pass: nothing is divided by l", HINT_GRADIENTS,
     .bug.gradient = GRADIENT_P_M},
    {"p_from_m", "P is exp(s - m) with the maximum of a tile in the backward pass", HINT_GRADIENTS,
     TILES_FEW, .bug.gradient = GRADIENT_P_TILE_M},
    {"ds_without_p", "dS is dP - delta: the factor P is missing", HINT_DQ | HINT_DK,
     .bug.gradient = GRADIENT_NO_P},
    {"group_not_summed", "dK and dV hold only the last query head of a group", HINT_DK | HINT_DV,
     .bug.gradient = GRADIENT_GROUP_LAST},
    {"group_not_summed", "dK and dV hold only the first query head of a group", HINT_DK | HINT_DV,
     .bug.gradient = GRADIENT_GROUP_FIRST},
    {"not_transposed", "dK is dS Q; it is dS^T Q", HINT_DK,
     .bug.gradient = GRADIENT_DK_NOT_TRANSPOSED},
    {"not_transposed", "dV is P dO; it is P^T dO", HINT_DV,
     .bug.gradient = GRADIENT_DV_NOT_TRANSPOSED},
    {"dq_overwritten", "dQ holds what the last tile of keys gave: it is not added up", HINT_DQ,
     TILES_ROW, .bug.gradient = GRADIENT_DQ_LAST_TILE},
    {"dkv_overwritten", "dK and dV hold what the last tile of queries gave: they are not added up",
     HINT_DK | HINT_DV, TILES_EVEN, .bug.gradient = GRADIENT_DKV_LAST_TILE},
    {"dq_part_lost", "one part of the keys is missing in dQ", HINT_DQ, TILES_PARTS,
     .bug.gradient = GRADIENT_DQ_PART_LOST},
    {"dq_part_lost", "dQ holds the first part of the keys alone", HINT_DQ, TILES_PARTS,
     .bug.gradient = GRADIENT_DQ_ONE_PART},
    /* --- a constant factor on one array --- */
    {"dq_without_scale", "dQ is 1/scale times too large: the scale is missing", HINT_DQ,
     .bug.factor = FACTOR_INVERSE_SCALE},
    {"dk_without_scale", "dK is 1/scale times too large: the scale is missing", HINT_DK,
     .bug.factor = FACTOR_INVERSE_SCALE},
    {"dq_dk_without_scale", "dQ and dK are 1/scale times too large: the scale is missing",
     HINT_DQ | HINT_DK | HINT_TOGETHER, .bug.factor = FACTOR_INVERSE_SCALE},
    {"dq_scaled_twice", "dQ is multiplied by the scale twice", HINT_DQ, .bug.factor = FACTOR_SCALE},
    {"dk_scaled_twice", "dK is multiplied by the scale twice", HINT_DK, .bug.factor = FACTOR_SCALE},
    {"dq_dk_scaled_twice", "dQ and dK are multiplied by the scale twice",
     HINT_DQ | HINT_DK | HINT_TOGETHER, .bug.factor = FACTOR_SCALE},
    {"wrong_sign", "the sign is flipped", HINT_ALL, .bug.factor = FACTOR_MINUS_1},
    {"wrong_factor", "the result is a constant factor too large: H / Hkv", HINT_ALL,
     .bug.factor = FACTOR_GROUP},
    {"wrong_factor", "the result is a constant factor too small: Hkv / H", HINT_ALL,
     .bug.factor = FACTOR_INVERSE_GROUP},
    {"wrong_factor", "the result is twice what it should be", HINT_ALL, .bug.factor = FACTOR_2},
    {"wrong_factor", "the result is half of what it should be", HINT_ALL,
     .bug.factor = FACTOR_HALF},
    {"wrong_factor", "the result is log2(e) times what it should be", HINT_O | HINT_GRADIENTS,
     .bug.factor = FACTOR_LOG2_E},
    {"wrong_factor", "the result is ln(2) times what it should be", HINT_ALL,
     .bug.factor = FACTOR_LN_2},
    {"wrong_factor", "the result is Nk times what it should be", HINT_ALL, .bug.factor = FACTOR_N},
    {"wrong_factor", "the result is 1/Nk times what it should be", HINT_ALL,
     .bug.factor = FACTOR_INVERSE_N},
    {"wrong_factor", "the result is multiplied by the scale", HINT_O | HINT_DV,
     .bug.factor = FACTOR_SCALE},
    {"wrong_factor", "the result is divided by the scale", HINT_O | HINT_DV,
     .bug.factor = FACTOR_INVERSE_SCALE},
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
