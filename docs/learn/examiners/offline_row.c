/* SPDX-License-Identifier: MIT
 *
 * offline_row.c: judges a row of windowed attention whose weights are clipped and dropped.
 *
 * Interface: -N keys, -d channels, --position, --left, --right: the window, --low, --high and
 * --dropout: in hundredths, --large: scores in the hundreds, --below: far below 0, --hand: query 3
 * of the four tokens.
 */
#include <math.h>

#include "learn.h"

void offline_row(const float *q, const float *K, const float *V, const unsigned char *keep,
                 float *O, float *lse, int position, int left, int right, int Nk, int d, float low,
                 float high, float dropout);

enum {
    RIGHT,
    CLIP_TOO_EARLY,
    NOT_CUT,
    NOT_STRETCHED,
    NO_KEEP_FACTOR,
    LSE_OF_THE_KEPT,
    DROPOUT_BEFORE_CLIP,
    NORMALISED_AGAIN,
    KEEP_TURNED
};

const Mistake mistakes[] = {
    {"clip_too_early", "The weights are clipped while lse still grows. Clip is no sum that a "
                       "factor corrects later: it needs the P of the finished row."},
    {"clip_not_cut", "Stretched weights below 0 or above 1 are in O: they have to be cut."},
    {"clip_not_stretched", "P goes into O as it is. Clip stretches it first, (high - low) P + low, "
                           "and then cuts at 0 and 1."},
    {"dropout_not_scaled", "The factor 1 / (1 - dropout) is missing: O is too small in the mean."},
    {"lse_of_the_kept", "Dropped keys are missing in lse. The softmax is that of the whole row; "
                        "dropout comes after it."},
    {"dropout_before_clip", "The factor 1 / (1 - dropout) is in P before the clip; it comes after "
                            "it."},
    {"normalised_again", "O is divided by the sum of the clipped or dropped weights. Nothing makes "
                         "them sum to 1 again."},
    {"keep_turned", "The dropped keys are in O and the others are not: keep[j] = 1 stays."},
    {NULL, NULL}};

static float *q, *K, *V;
static unsigned char *keep;
static Output *O, *lse;
static long N, d, first, end, position, left, right;
static float low, high, dropout;

void prepare(void)
{
    N = case_size("-N", 4, 4), d = case_size("-d", 2, 2);
    left = number("--left", N), right = number("--right", N);
    position = number("--position", has_flag("--hand") ? 3 : N / 2);
    low = (float)number("--low", 0) / 100, high = (float)number("--high", 100) / 100;
    dropout = (float)number("--dropout", 0) / 100;
    first = position - left > 0 ? position - left : 0;
    end = position + right + 1 < N ? position + right + 1 : N;
    q = normal_input("q", d, 1, hand_Q + 6), K = normal_input("K", N * d, 2, hand_K);
    V = normal_input("V", N * d, 3, hand_V);
    keep = case_memory(N, 1);
    O = output("O", d, 1, "channel", ""), lse = output("lse", 1, 1, "", "");
    for (long j = 0; j < N; j++)
        keep[j] = dropout == 0 || j % 3 != 1;
    O->tolerance = move_scores(q, 1, K, N, d);
}

void call(void)
{
    offline_row(q, K, V, keep, O->found, lse->found, (int)position, (int)left, (int)right, (int)N,
                (int)d, low, high, dropout);
}

const Mistake *diagnose(void)
{
    static const Mistake only_O = {
        "o_only", "lse is right. Look at the second walk: exp(s - lse), clip, dropout, V."};
    const Mistake *overflow = diagnose_overflow(lse);
    return overflow ? overflow : is_right(lse) ? &only_O : NULL;
}

static double score(long j)
{
    return dot_in_double(q, K + j * d, d) / sqrt((double)d);
}

static double lse_of(int mistake, long stop)
{
    double most = -INFINITY, sum = 0;
    for (long j = first; j < stop; j++)
        most = fmax(most, score(j));
    for (long j = first; j < stop; j++)
        sum += keep[j] || mistake != LSE_OF_THE_KEPT ? exp(score(j) - most) : 0;
    return sum > 0 ? most + log(sum) : -INFINITY;
}

static double weight(int mistake, double P, long j)
{
    const double factor = mistake == NO_KEEP_FACTOR ? 1 : 1 / (1 - (double)dropout);
    double A = mistake == DROPOUT_BEFORE_CLIP ? P * factor : P;
    if (mistake != NOT_STRETCHED)
        A = ((double)high - low) * A + low;
    if (mistake != NOT_CUT)
        A = fmin(fmax(A, 0), 1);
    if (mistake == KEEP_TURNED ? keep[j] && dropout > 0 : !keep[j])
        return 0;
    return mistake == DROPOUT_BEFORE_CLIP ? A : A * factor;
}

void expect(int mistake)
{
    double sum = 0;
    *lse->expected = lse_of(mistake, end);
    for (long x = 0; x < d; x++)
        O->expected[x] = 0;
    for (long j = first; j < end; j++) {
        const int early = mistake == CLIP_TOO_EARLY;
        const double now = early ? lse_of(mistake, j + 1) : *lse->expected;
        const double A = weight(mistake, exp(score(j) - now), j);
        const double old = early && j > first ? exp(lse_of(mistake, j) - now) : 1;
        sum += A;
        for (long x = 0; x < d; x++)
            O->expected[x] = old * O->expected[x] + A * V[j * d + x];
    }
    for (long x = 0; x < d && mistake == NORMALISED_AGAIN && sum > 0; x++)
        O->expected[x] /= sum;
}
