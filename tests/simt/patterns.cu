/* SPDX-License-Identifier: MIT
 *
 * patterns.cu: wavefronts of one read of shared memory, whose pattern comes from test_counts.py.
 *
 * usage: simt_patterns BYTES INDEX...     lane l reads word INDEX[l], of 4, 8 or 16 bytes
 */
#include <cuda_runtime.h>
#include <simt_report.h>

#include <stdio.h>
#include <stdlib.h>

template <class T> __global__ void look_up(const int *index, T *out)
{
    extern __shared__ T words[];
    out[threadIdx.x] = words[index[threadIdx.x]];
}

template <class T> static void run(int lanes, char **words)
{
    int *index;
    T *out;
    cudaMallocManaged(&index, 32 * sizeof(int));
    cudaMallocManaged(&out, 32 * sizeof(T));
    for (int l = 0; l < lanes; l++)
        index[l] = atoi(words[l]);
    look_up<<<1, lanes, 512 * sizeof(T)>>>(index, out);
    printf("%ld\n", simt_count("wavefronts"));
    simt_no_report();
}

int main(int argc, char **argv)
{
    const int bytes = argc > 2 ? atoi(argv[1]) : 0;
    void (*const of_size)(int, char **) = bytes == 16  ? run<float4>
                                          : bytes == 8 ? run<float2>
                                                       : run<float>;
    of_size(argc - 2, argv + 2);
    return 0;
}
