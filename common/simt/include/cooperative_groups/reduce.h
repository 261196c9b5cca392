/* SPDX-License-Identifier: MIT
 *
 * reduce.h: a value of each thread of a tile becomes one that all have.
 *
 * Interface: cooperative_groups::reduce, plus, less, greater.
 */
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups
{
template <class T> struct plus {
    SIMT_QUIET T operator()(T a, T b) const
    {
        return a + b;
    }
};
template <class T> struct less { /* the smaller of two */
    SIMT_QUIET T operator()(T a, T b) const
    {
        return b < a ? b : a;
    }
};
template <class T> struct greater {
    SIMT_QUIET T operator()(T a, T b) const
    {
        return a < b ? b : a;
    }
};
template <class Tile, class T, class Op>
static inline SIMT_QUIET T reduce(const Tile &tile, T value, Op op)
{
    for (unsigned i = tile.size() / 2; i > 0; i /= 2)
        value = op(value, tile.shfl_xor(value, i));
    return value;
}
} // namespace cooperative_groups
