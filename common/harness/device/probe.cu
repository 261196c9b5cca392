/* SPDX-License-Identifier: MIT
 * The smallest program that needs all of nvcc: compiled once per architecture by probe-arch.sh. */
__global__ void probe_kernel(float *x)
{
    x[threadIdx.x] += 1.0f;
}

int probe(float *x_dev)
{
    probe_kernel<<<1, 32>>>(x_dev);
    return 0;
}
