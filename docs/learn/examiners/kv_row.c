/* SPDX-License-Identifier: MIT
 *
 * kv_row.c: judges where the key of (batch b, token j) for query head h begins in a BSHD tensor.
 *
 * Interface: -B batch, -H query heads, --kv-heads, -N tokens, -d channels, --last: only so many
 * tokens at the end of each batch are asked for. Nothing of the size of K is allocated.
 */
#include "learn.h"

long kv_row(int b, int j, int h, int N, int H, int Hkv, int d);

const Mistake mistakes[] = {
    {"kv_head_modulo",
     "Head h reads kv head h % Hkv here. Neighbouring query heads share a kv head: "
     "h / (H / Hkv)."},
    {"kv_head_of_query",
     "K has Hkv heads, not H: head h has to be divided by the size of a group."},
    {"heads_before_tokens",
     "This is the order [B][Hkv][N][d]. In BSHD the token comes before the head."},
    {"query_heads_in_a_token", "A token of K has Hkv heads of d channels; this counts H of them."},
    {"row_of_query",
     "This is where query head h stands in Q. K has Hkv heads: the kv head and the length of a "
     "token are others."},
    {"divided_by_kv_heads",
     "h is divided by Hkv here. It has to be divided by the number of query heads that share a "
     "kv head: H / Hkv."},
    {"no_channels", "This counts rows; the index counts floats, and a row has d of them."},
    {"head_not_times_d",
     "Each kv head takes d floats of a token: the head, too, is multiplied by d."},
    {NULL, NULL}};

static Output *row;
static long B, H, Hkv, N, d, last;

void prepare(void)
{
    B = number("-B", 1);
    H = number("-H", 1);
    Hkv = number("--kv-heads", H);
    N = number("-N", 1);
    d = number("-d", 1);
    last = number("--last", N);
    row = last < N ? output("the row of the last tokens", B * last, H, "asked token", "head")
                   : output("the row of (b, j)", B * N, H, "b * N + j =", "head");
}

void call(void)
{
    long b, j, h;
    for (b = 0; b < B; b++)
        for (j = 0; j < last; j++)
            for (h = 0; h < H; h++)
                row->found[(b * last + j) * H + h] = (float)kv_row(
                    (int)b, (int)(N - last + j), (int)h, (int)N, (int)H, (int)Hkv, (int)d);
}

void expect(int mistake)
{
    long b, j, h;
    for (b = 0; b < B; b++)
        for (j = 0; j < last; j++)
            for (h = 0; h < H; h++) {
                const long kv = mistake == 1                   ? h % Hkv
                                : mistake == 2 || mistake == 5 ? h
                                : mistake == 6                 ? h / Hkv
                                                               : h / (H / Hkv);
                const long heads = mistake == 4 || mistake == 5 ? H : Hkv;
                const long token = N - last + j;
                row->expected[(b * last + j) * H + h] =
                    (double)(mistake == 3   ? ((b * Hkv + kv) * N + token) * d
                             : mistake == 7 ? (b * N + token) * heads + kv
                             : mistake == 8 ? (b * N + token) * heads * d + kv
                                            : ((b * N + token) * heads + kv) * d);
            }
}

/* The large case comes after those that show every other mistake. */
const Mistake *diagnose(void)
{
    static const Mistake overflow = {
        "int_overflow", "A product passed 2^31 in int. The first factor has to be a long already: "
                        "(long)b * N."};
    return last < N ? &overflow : NULL;
}
