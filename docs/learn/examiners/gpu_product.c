/* SPDX-License-Identifier: MIT
 *
 * gpu_product.c: C = A B^T by tensor cores: A [16][K], B [8][K] in bfloat16, C [16][8] in float32.
 */
#include "gpu.h"

void product(const void *A, const void *B, float *C, int K);

const Mistake mistakes[] = {
    {"a1_a2", "Two registers of A are exchanged: a1 is row g + 8 with the first eight channels, a2 "
              "row g with the second eight."},
    {"b_halves", "The two registers of B are exchanged: b0 has channels 2t and 2t + 1, b1 those "
                 "eight further."},
    {"c_rows", "The rows of C are exchanged: c0 and c1 are row g, c2 and c3 row g + 8."},
    {"first_block", "Only the first 16 channels are counted: each block of 16 is an mma of its "
                    "own, and all add to the same c."},
    {NULL, NULL},
};

static int K;
static float *A, *B;
static Output *C;

void prepare(void)
{
    K = (int)number("-K", 16);
    A = normal_input("A", 16L * K, 1, NULL);
    B = normal_input("B", 8L * K, 2, NULL);
    C = output("C", 16, 8, "row", "column");
    round_bf16(A, 16L * K);
    round_bf16(B, 8L * K);
}

void call(void)
{
    product(bf16_on_device(A, 16L * K), bf16_on_device(B, 8L * K), back(C), K);
    end_kernels();
}

const Mistake *diagnose(void)
{
    static const Mistake places = {
        "places_of_c", "Some numbers of C were not written. A lane stores four: row g, columns 2t "
                       "and 2t + 1, and the same columns of row g + 8."};
    long e;
    for (e = 0; e < 16 * 8; e++)
        if (is_unwritten(C, e))
            return &places;
    return NULL;
}

void expect(int mistake)
{
    int r, c, k;
    for (r = 0; r < 16; r++)
        for (c = 0; c < 8; c++) {
            double sum = 0.0;
            for (k = 0; k < (mistake == 4 ? 16 : K); k++) {
                const int swapped = mistake == 1 && (r < 8) == (k % 16 >= 8);
                const int row = swapped || mistake == 3 ? (r + 8) % 16 : r;
                const int channel = swapped || mistake == 2 ? k ^ 8 : k;
                sum += (double)A[row * K + (swapped ? channel : k)] *
                       B[c * K + (mistake == 2 ? channel : k)];
            }
            C->expected[r * 8 + c] = sum;
        }
}
