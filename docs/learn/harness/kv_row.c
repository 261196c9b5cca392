/* SPDX-License-Identifier: MIT
 *
 * kv_row.c: judges where the key of (batch b, token j) for query head h begins in a BSHD tensor.
 *
 * Interface: -B batch, -H query heads, --kv-heads, -N tokens, -d channels.
 */
#include "learn.h"

long kv_row(int b, int j, int h, int N, int H, int Hkv, int d);

const Mistake mistakes[] = {
    {"kv_head_modulo",
     "Head h reads kv head h % Hkv here. Neighbouring query heads share a kv head: "
     "h / (H / Hkv)."},
    {"kv_head_of_query",
     "K has Hkv heads, not H: head h has to be divided by the size of a group."},
    {"head_before_token",
     "This is the order [B][Hkv][N][d]. In BSHD the token comes before the head."},
    {"query_heads_in_a_token", "A token of K has Hkv heads of d channels; this counts H of them."},
    {NULL, NULL}};

static Output *row;
static long B, H, Hkv, N, d;

void prepare(void)
{
    B = number("-B", 1);
    H = number("-H", 1);
    Hkv = number("--kv-heads", H);
    N = number("-N", 1);
    d = number("-d", 1);
    row = output("the row of (b, j)", B * N, H, "b * N + j =", "head");
}

void call(void)
{
    long b, j, h;
    for (b = 0; b < B; b++)
        for (j = 0; j < N; j++)
            for (h = 0; h < H; h++)
                row->found[(b * N + j) * H + h] =
                    (float)kv_row((int)b, (int)j, (int)h, (int)N, (int)H, (int)Hkv, (int)d);
}

void expect(int mistake)
{
    long b, j, h;
    for (b = 0; b < B; b++)
        for (j = 0; j < N; j++)
            for (h = 0; h < H; h++) {
                const long kv = mistake == 1 ? h % Hkv : mistake == 2 ? h : h / (H / Hkv);
                const long heads = mistake == 4 ? H : Hkv;
                row->expected[(b * N + j) * H + h] =
                    (double)(mistake == 3 ? ((b * Hkv + kv) * N + j) * d
                                          : ((b * N + j) * heads + kv) * d);
            }
}
