/* SPDX-License-Identifier: MIT
 *
 * 03.5a: a tile of keys, loaded once for 32 queries.
 */
#define TILE 32

/* Q: [Nq][d]. K: [Nk][d]. S: [Nq][Nk]. d <= 64. */
__global__ void scores_kernel(const float *Q, const float *K, float *S, int Nq, int Nk, int d)
{
    __shared__ float K_smem[TILE][65];
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE; /* the first query, the first key */
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    /* YOUR CODE: 8 lines are enough */
    /* END OF YOUR CODE */
    for (int i = i0 + warp; i < i0 + TILE && i < Nq; i += 8) {
        float sum = 0.0f;
        for (int x = 0; x < d; x++)
            sum += Q[i * d + x] * K_smem[lane][x];
        if (j0 + lane < Nk)
            S[i * Nk + j0 + lane] = sum;
    }
}

extern "C" void scores(const float *Q, const float *K, float *S, int Nq, int Nk, int d)
{
    const dim3 grid((Nk + TILE - 1) / TILE, (Nq + TILE - 1) / TILE);
    scores_kernel<<<grid, 256>>>(Q, K, S, Nq, Nk, d);
}
