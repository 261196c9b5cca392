/* SPDX-License-Identifier: MIT
 *
 * gpu_shell.cpp: what stands around a submission in CUDA that is judged without a GPU. compile.py
 * links it with the submission's kernels and common/simt; the submission's flash_simple_variant has
 * another name there.
 *
 * What the kernels did to memory goes to the judge beside the result, and the first rule of CUDA
 * that they broke, in words. The process can start no other, so places in the code are addresses.
 *
 * Interface: flash_cuda_variant (runner_contracts.h).
 */
#include <cuda_runtime_api.h>
#include <simt_report.h>
#include <stdio.h>
#include <stdlib.h>

enum { FINDING_BYTES = 1024 };

extern "C" int submitted_variant(const float *Q, const float *K, const float *V, float *O,
                                 float *lse, int N, int d, int causal);

static char *finding_to;

/* Before the model reads its flags. */
__attribute__((constructor(101))) static void set_flags(void)
{
    setenv("SIMT_CHECK", "1", 1);
    setenv("SIMT_COUNT", "1", 1);
    setenv("SIMT_REGION", "256", 1);
    setenv("SIMT_SYMBOLIZER", "none", 1);
}

static void keep_finding(void)
{
    const char *title, *text = simt_finding(&title);
    if (text && finding_to)
        snprintf(finding_to, FINDING_BYTES, "%s\n%s", title, text);
}

extern "C" int flash_cuda_variant(const float *Q, const float *K, const float *V, float *O,
                                  float *lse, int N, int d, int causal, double *counts,
                                  char *finding)
{
    static const char *const names[] = {"blocks",     "sectors read",     "sectors written",
                                        "wavefronts", "ideal wavefronts", "shared reads"};
    int status;
    finding_to = finding;
    finding[0] = 0;
    simt_at_stop = keep_finding;
    simt_no_report();
    status = submitted_variant(Q, K, V, O, lse, N, d, causal);
    cudaDeviceSynchronize();
    keep_finding();
    for (int n = 0; n < 6; n++)
        counts[n] = (double)simt_count(names[n]);
    return status;
}
