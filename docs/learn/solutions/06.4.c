/* SPDX-License-Identifier: MIT
 *
 * 06.4: which tokens has a rank?
 */

/* tokens: memory for N numbers. Returns how many tokens the rank has. */
int take_zigzag(int rank, int G, int N, int *tokens)
{
    int count = 0;
    /* YOUR CODE: at most 8 lines */
    for (int c = 0; c < 2; c++) {
        const int chunk = c == 0 ? rank : 2 * G - 1 - rank;
        const int first = chunk * N / (2 * G), end = (chunk + 1) * N / (2 * G);
        for (int t = first; t < end; t++)
            tokens[count++] = t;
    }
    /* END OF YOUR CODE */
    return count;
}
