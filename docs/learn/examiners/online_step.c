/* SPDX-License-Identifier: MIT
 *
 * online_step.c: judges an online step by visiting all blocks with it.
 *
 * Blocks are copied to memory of their own, padded with zeros, as a caller of such a module has
 * them. O and lse begin as the empty state.
 *
 * Interface: -N queries, --keys, -d channels, --bq, --bk: blocks, -w keys on either side,
 * --backwards: the blocks in the opposite order, --hand: the four tokens, blocks of 2, w = 3,
 * --large: scores in the hundreds, --below: far below 0, --pages: one block whose rows are a page,
 * so that a key that is read and not seen is noticed.
 */
#include <math.h>

#include "head.h"

void online_step(const float *Q_i, const float *K_j, const float *V_j, float *O, float *lse, int i,
                 int j, int bq, int bk, int Nq, int Nk, int d, int w);

enum {
    RIGHT,
    MASK_OF_THE_BLOCK,
    OTHER_CORNER,
    OFF_BY_ONE,
    END_OFF_BY_ONE,
    PADDING,
    NO_MASK,
    CAUSAL,
    LAST_BLOCK,
    NO_SCALE,
    BLOCK_INDEX,
    ROW_OF_THE_BLOCK
};

const Mistake mistakes[] = {
    {"mask_of_the_block",
     "The window is laid into each block as if it stood on the diagonal. A block has a place: its "
     "first query is i * bq, its first key j * bk."},
    {"other_corner",
     "Query r of the block stands at i * bq + r + Nk - Nq: the last query at the last key."},
    {"window_off_by_one",
     "The first key of the window is not seen; both ends, w before and w behind, are."},
    {"end_off_by_one", "The last key of the window is not seen: the row sees position + w, so an "
                       "end that is not seen any "
                       "more is position + w + 1."},
    {"padding_seen",
     "The zeros behind the last key are taken for keys: their score is 0, and exp(0) is 1."},
    {"no_mask", "All keys are seen; the window is ignored."},
    {"keys_behind_forgotten", "Keys behind the query are not seen; w of them are visible."},
    {"last_tile_only",
     "O and lse are those of the last block alone: each block is to be merged into what is there."},
    {"no_scale", "The scores lack the scale 1/sqrt(d)."},
    {"block_forgotten", "The window is compared with the place of a key inside its block; key c of "
                        "block j is key j * bk + c of the sequence."},
    {"row_of_the_block",
     "The window is laid around r, the row inside its block; query r of block i is "
     "query i * bq + r of the sequence."},
    {NULL, NULL}};

static float *Q, *K, *V;
static Output *O, *lse;
static long Nq, Nk, d, bq, bk, w;

void prepare(void)
{
    const Head head = head_of_flags();
    Q = head.Q, K = head.K, V = head.V, O = head_O, lse = head_lse;
    Nq = head.Nq, Nk = head.Nk, d = head.d;
    bq = number("--bq", 2), bk = number("--bk", 2), w = number("-w", 3);
}

/* Rows of poison on either side of a block; AddressSanitizer has its own. */
static long margin(void)
{
#ifdef LEARN_ASAN
    return 0;
#else
    return (Nk + w) * d;
#endif
}

/* Block n of rows [count][d], padded with zeros to `size` rows. */
static float *block_of(const float *rows, long n, long size, long count)
{
    const long first = n * size, exist = count - first < size ? count - first : size;
    const long floats = size * d + 2 * margin();
    float *all = malloc(sizeof *all * (size_t)floats), *block = all + margin();
    if (!all)
        refuse("memory", "There is no memory for this case.");
    poison(all, floats);
    memset(block, 0, sizeof *block * (size_t)(size * d));
    memcpy(block, rows + first * d, sizeof *block * (size_t)(exist * d));
    return block;
}

static int head_sees(int mistake, long i, long j);

/* One block of all queries meets one of all keys. */
static void call_with_pages(void)
{
    long pairs = 0, of_K;
    for (long e = 0; e < Nq * Nk; e++)
        pairs += head_sees(RIGHT, e / Nk, e % Nk);
    close_pages();
    online_step(Q, K, V, O->found, lse->found, 0, 0, (int)Nq, (int)Nk, (int)Nq, (int)Nk, (int)d,
                (int)w);
    of_K = page_visits(0);
    open_pages();
    if (of_K > page_visits(1) && of_K > pairs)
        refuse("hidden_keys_read",
               "Rows of K were opened %ld times, rows of V %ld times, for %ld visible pairs. What "
               "a window saves is the work on hidden pairs: leave them out before the product, and "
               "compute each score once.",
               of_K, page_visits(1), pairs);
}

void call(void)
{
    const long Tr = (Nq + bq - 1) / bq, Tc = (Nk + bk - 1) / bk;
    memset(O->found, 0, sizeof(float) * (size_t)(Nq * d));
    for (long i = 0; i < Nq; i++)
        lse->found[i] = -INFINITY;
    if (has_flag("--pages")) {
        call_with_pages();
        return;
    }
    for (long visit = 0; visit < Tr * Tc; visit++) {
        const long n = has_flag("--backwards") ? Tr * Tc - 1 - visit : visit;
        const long i = n / Tc, j = n % Tc;
        float *Q_i = block_of(Q, i, bq, Nq), *K_j = block_of(K, j, bk, Nk);
        float *V_j = block_of(V, j, bk, Nk);
        online_step(Q_i, K_j, V_j, O->found, lse->found, (int)i, (int)j, (int)bq, (int)bk, (int)Nq,
                    (int)Nk, (int)d, (int)w);
        free(Q_i - margin()), free(K_j - margin()), free(V_j - margin());
    }
}

static int head_sees(int mistake, long i, long j)
{
    const long row = mistake == ROW_OF_THE_BLOCK ? i % bq : i;
    const long position = mistake == OTHER_CORNER ? row : row + Nk - Nq;
    const long low = position - w + (mistake == OFF_BY_ONE);
    const long high = mistake == CAUSAL ? position : position + w - (mistake == END_OFF_BY_ONE);
    if (mistake == MASK_OF_THE_BLOCK)
        return labs(j % bk - i % bq) <= w && j < Nk;
    if (mistake == BLOCK_INDEX)
        return j < Nk && j % bk >= low && j % bk <= high;
    if (mistake == LAST_BLOCK && j / bk != (high < Nk - 1 ? high : Nk - 1) / bk)
        return 0;
    if (j >= Nk)
        return mistake == PADDING && j <= high;
    return mistake == NO_MASK || (j >= low && j <= high);
}

/* A key behind the last one is padding, with the score 0. */
static double score(int mistake, long i, long j)
{
    const double sum = j < Nk ? dot_in_double(Q + i * d, K + j * d, d) : 0;
    return mistake == NO_SCALE ? sum : sum / sqrt((double)d);
}

const Mistake *diagnose(void)
{
    static const Mistake outside = {
        "outside_the_block",
        "A block has the keys 0 to bk - 1, and something before or behind them was taken for a "
        "key. Both ends of the window are to be cut at the block."};
    static const Mistake shares = {
        "shares",
        "lse is right, O is not. In the merge each side has a share, exp(its lse - both), "
        "and its O is divided by its own l before."};
    if (from_poison(O))
        return &outside;
    return is_right(lse) ? &shares : diagnose_overflow(lse);
}

void expect(int mistake)
{
    const long keys = (Nk + bk - 1) / bk * bk; /* with the padding */
    for (long i = 0; i < Nq; i++) {
        double sum = 0, most = -INFINITY;
        for (long x = 0; x < d; x++)
            O->expected[i * d + x] = 0;
        for (long j = 0; j < keys; j++)
            most = head_sees(mistake, i, j) ? fmax(most, score(mistake, i, j)) : most;
        for (long j = 0; j < keys; j++) {
            const double p = head_sees(mistake, i, j) ? exp(score(mistake, i, j) - most) : 0;
            sum += p;
            for (long x = 0; x < d && j < Nk; x++)
                O->expected[i * d + x] += p * V[j * d + x];
        }
        for (long x = 0; x < d && sum > 0; x++)
            O->expected[i * d + x] /= sum;
        lse->expected[i] = most + log(sum);
    }
}
