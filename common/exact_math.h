/* SPDX-License-Identifier: MIT
 *
 * exact_math.h: no compiler may rewrite the arithmetic of this suite. "Fast math" tells it that
 * there is no NaN and no infinity, and that sums may be taken in any order: but a row without keys
 * has lse = -inf, the checker looks for NaN, and a vector exp adds a large number to round.
 *
 * The build puts it in front of every source, C and CUDA, and flash_attention_op.h brings it to the
 * users of the operator. (nvcc's own fast math defines no macro: nvcc_report.py sees it.)
 *
 * Interface: none.
 */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||           \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "compile without fast math: NaN, infinity and the order of sums must stay as written"
#endif
