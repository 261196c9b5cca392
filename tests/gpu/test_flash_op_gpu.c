/* SPDX-License-Identifier: MIT
 *
 * test_flash_op_gpu: the operator of stage 03 on a real GPU, by way of its shared library.
 *
 * - Results against the oracle: dtypes, mask types, dimensions, layouts, negative strides, masks
 *   with rows apart or one row for all, with and without lse, on a stream.
 * - Nothing is allocated and nothing waits in a run: CUDA refuses both while a stream is captured
 *   in global mode, and a captured run gives the bits of a direct one. Free memory stays the same.
 * - Memory that is not the GPU's is refused, pinned and managed memory serve; a refused launch is a
 *   status, and the next run works. The caller's current device stays.
 * - Threads with operators and streams of their own; infiniop's names; destroy waits for its work.
 *
 * Exit status: 0 right, 1 wrong, 77 no device. cudart is in this program and once more in the
 * library, as it may be in an application.
 */
#include <pthread.h>

#include "attention/op/infiniop_flash_attention.h"
#include "gpu_main.h"
#include "op_job.h"

static FlashAttentionHandle *gpu(void)
{
    FlashAttentionHandle *handle;
    assert_int_equal(SUCCESS, flash_attention_create_handle(&handle, FLASH_ATTENTION_CUDA, 0));
    return handle;
}

/* --- tests -------------------------------------------------------------------------------------*/

TEST(test_results)
{
    static const TensorLayout layouts[] = {LAYOUT_BSHD, LAYOUT_SBHD, LAYOUT_BHSD, LAYOUT_ODD};
    static const int64_t dims[] = {8, 32, 40, 64, 96, 128, 200, 256, 1};
    FlashAttentionHandle *handle = gpu();
    for (int n = 0; n < 144; n++) {
        const int64_t Hkv = 1 + case_random() % 3, B = 1 + case_random() % 2;
        const AttnShape s = {B,
                             Hkv * (1 + case_random() % 3),
                             Hkv,
                             1 + case_random() % 200,
                             1 + case_random() % 200,
                             dims[case_random() % 9]};
        Case *c = case_new(s, (AttnDtype)(n % 3), layouts[case_random() % 4], 1);
        Tensor *all[] = {&c->args.Q, &c->args.K, &c->args.V, &c->args.O};
        for (int t = 0; t < 4; t++)
            for (int dim = 0; dim < 3; dim++)
                if (case_random() % 6 == 0)
                    flip(all[t], dim);
        const int64_t apart = case_random() % 3 == 0 ? 0 : s.Nk + case_random() % 3;
        Job j = job_new(handle, c, B == 1 ? 3 : 4, (FlashAttentionMask)(n / 3 % 4), apart);
        job_poison(&j);
        assert_int_equal(SUCCESS, job_run(&j, NULL));
        const uint64_t first = job_fetch(&j);
        job_poison(&j);
        assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
        assert_true(job_fetch(&j) == first);
        job_judge(&j, "random case");
        job_free(&j);
    }
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}

/* Runs keep no memory. The free memory is that of all processes on the GPU: one that comes or goes
 * beside this program changes it during some tries, a leak of megabytes during every one. (Smaller
 * ones do not show in every 50 runs; a capture refuses whatever is allocated in a run.) */
static void assert_memory_stays(const Job *j)
{
    size_t before = 0, after = 1, total;
    for (int attempt = 0; attempt < 200 && before != after; attempt++) {
        CUDA(cudaMemGetInfo(&before, &total));
        for (int t = 0; t < 50; t++)
            assert_int_equal(SUCCESS, job_run(j, j->d->lse_dev));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemGetInfo(&after, &total));
    }
    assert_int_equal(before, after);
}

TEST(test_run_in_a_graph)
{
    FlashAttentionHandle *handle = gpu();
    for (int n = 0; n < 12; n++) {
        const AttnShape s = {1, 4, 2, n % 4 == 0 ? 3 : 300, 700, 64};
        const FlashAttentionMask type = (FlashAttentionMask)(n / 3);
        Case *c = case_new(s, (AttnDtype)(n % 3), LAYOUT_BSHD, 1);
        Job j = job_new(handle, c, 4, type, n % 2 ? 0 : s.Nk + 5);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
        const uint64_t direct = job_fetch(&j);
        assert_memory_stays(&j);

        job_poison(&j);
        CUDA(cudaStreamBeginCapture(j.stream, cudaStreamCaptureModeGlobal));
        assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
        CUDA(cudaStreamEndCapture(j.stream, &graph));
        CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        for (int t = 0; t < 2; t++) {
            job_poison(&j);
            CUDA(cudaGraphLaunch(exec, j.stream));
            assert_true(job_fetch(&j) == direct);
        }
        job_judge(&j, "graph");
        CUDA(cudaGraphExecDestroy(exec));
        CUDA(cudaGraphDestroy(graph));
        job_free(&j);
    }
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}

TEST(test_statuses)
{
    FlashAttentionHandle *handle = gpu(), *none;
    Case *c = case_new((AttnShape){1, 2, 2, 64, 64, 64}, ATTN_F16, LAYOUT_BSHD, 1);
    Job j = job_new(handle, c, 4, FLASH_ATTENTION_MASK_NONE, 0);
    const size_t bytes = c->Q.bytes;
    const AttnArgs device = j.a;
    void *pinned, *managed;
    cudaGraph_t graph = NULL;
    cudaStream_t other;
    int count = 0;
    CUDA(cudaGetDeviceCount(&count));
    assert_int_equal(FLASH_ATTENTION_DEVICE_NOT_FOUND,
                     flash_attention_create_handle(&none, FLASH_ATTENTION_CUDA, count));
    j.a.Q.data = c->args.Q.data; /* ordinary host memory */
    assert_int_equal(FLASH_ATTENTION_BAD_PARAM, job_run(&j, NULL));
    j.a = device;
    assert_int_equal(FLASH_ATTENTION_BAD_PARAM, job_run(&j, c->lse));
    CUDA(cudaGetLastError()); /* refusals leave no error behind */

    CUDA(cudaMallocHost(&pinned, bytes));
    CUDA(cudaMallocManaged(&managed, bytes, cudaMemAttachGlobal));
    memcpy(pinned, c->Q.base, bytes);
    memcpy(managed, c->K.base, bytes);
    j.a.Q.data = pinned;
    j.a.K.data = managed;
    assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
    (void)job_fetch(&j);
    job_judge(&j, "pinned and managed memory");
    j.a = device;
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(managed));

    /* The default stream waits for all others, so it cannot be used while one is captured. */
    CUDA(cudaStreamCreate(&other));
    CUDA(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal));
    assert_int_equal(FLASH_ATTENTION_INTERNAL_ERROR,
                     flash_attention_run(j.op, j.workspace, j.bytes, j.a.O.data, j.a.Q.data,
                                         j.a.K.data, j.a.V.data, NULL, NULL, NULL));
    (void)cudaStreamEndCapture(other, &graph);
    (void)cudaGetLastError();
    CUDA(cudaStreamDestroy(other));
    job_poison(&j);
    assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
    (void)job_fetch(&j);
    job_judge(&j, "after a refusal");
    job_free(&j);
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}

/* With a second GPU: work on the first leaves the second current, and its memory is foreign. */
TEST(test_current_device)
{
    FlashAttentionHandle *handle = gpu();
    Job j = job_new(handle, case_new((AttnShape){1, 1, 1, 9, 9, 16}, ATTN_F32, LAYOUT_BSHD, 1), 4,
                    FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT, 0);
    const AttnArgs device = j.a;
    int count = 0, current = -1;
    CUDA(cudaGetDeviceCount(&count));
    if (count > 1) {
        void *foreign;
        CUDA(cudaSetDevice(1));
        CUDA(cudaMalloc(&foreign, j.c->Q.bytes));
        assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
        j.a.Q.data = foreign;
        assert_int_equal(FLASH_ATTENTION_BAD_PARAM, job_run(&j, j.d->lse_dev));
        j.a = device;
        CUDA(cudaFree(foreign));
    } else {
        assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
    }
    CUDA(cudaGetDevice(&current));
    assert_int_equal(count > 1, current);
    CUDA(cudaSetDevice(0));
    (void)job_fetch(&j);
    job_judge(&j, "current device");
    job_free(&j);
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}

static void *run_many(void *argument)
{
    const Job *j = argument;
    for (int n = 0; n < 100; n++)
        if (job_run(j, j->d->lse_dev) != SUCCESS)
            return argument;
    return NULL;
}

TEST(test_threads_and_destroy)
{
    FlashAttentionHandle *handle = gpu();
    Job jobs[4];
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) {
        const AttnShape s = {2, 4, 2, 500 + 100 * n, 900, 64};
        jobs[n] = job_new(handle, case_new(s, (AttnDtype)(n % 3), LAYOUT_BSHD, 1), 4,
                          FLASH_ATTENTION_MASK_CAUSAL_LOWER_RIGHT, 0);
        job_poison(&jobs[n]);
    }
    for (int n = 0; n < 4; n++)
        assert_int_equal(0, pthread_create(&threads[n], NULL, run_many, &jobs[n]));
    for (int n = 0; n < 4; n++) {
        void *failed;
        assert_int_equal(0, pthread_join(threads[n], &failed));
        assert_null(failed);
    }
    for (int n = 0; n < 4; n++) {
        assert_int_equal(SUCCESS, flash_attention_destroy(jobs[n].op)); /* runs are queued */
        jobs[n].op = NULL;
        (void)job_fetch(&jobs[n]);
        job_judge(&jobs[n], "threads");
        job_free(&jobs[n]);
    }
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}

/* infiniop's names: the mask type comes with the call, in host memory. */
TEST(test_infiniop)
{
    const size_t shape[] = {1, 70, 2, 64}, mask_shape[] = {70, 70};
    infiniopHandle_t h;
    infiniopTensorDescriptor_t t, m, type;
    infiniopFlashAttentionDescriptor_t desc;
    size_t bytes = 0;
    FlashAttentionHandle *handle = gpu();
    assert_int_equal(0, (int)infiniopCreateHandle(&h, INFINI_DEVICE_NVIDIA, 0));
    assert_int_equal(0, (int)infiniopCreateTensorDescriptor(&t, 4, shape, NULL, INFINI_DTYPE_BF16));
    assert_int_equal(
        0, (int)infiniopCreateTensorDescriptor(&m, 2, mask_shape, NULL, INFINI_DTYPE_BOOL));
    assert_int_equal(0,
                     (int)infiniopCreateTensorDescriptor(&type, 0, NULL, NULL, INFINI_DTYPE_I32));
    assert_int_equal(0, (int)infiniopCreateFlashAttentionDescriptor(h, &desc, t, t, t, t, m, type));
    assert_int_equal(0, (int)infiniopGetFlashAttentionWorkspaceSize(desc, &bytes));
    void *workspace = workspace_alloc_device(bytes);
    for (int32_t mask_type = 0; mask_type < 4; mask_type++) {
        Case *c = case_new((AttnShape){1, 2, 2, 70, 70, 64}, ATTN_BF16, LAYOUT_BSHD, 1);
        Job j = job_new(handle, c, 4, (FlashAttentionMask)mask_type, 70);
        assert_int_equal(SUCCESS, job_run(&j, j.d->lse_dev));
        const uint64_t ours = job_fetch(&j);
        job_poison(&j);
        assert_int_equal(0, (int)infiniopFlashAttention(desc, workspace, bytes, j.a.O.data,
                                                        j.a.Q.data, j.a.K.data, j.a.V.data, j.mask,
                                                        &mask_type, j.stream));
        assert_true(job_fetch(&j) == ours);
        job_free(&j);
    }
    workspace_free_device(workspace);
    const infiniStatus_t gone = infiniopDestroyFlashAttentionDescriptor(desc);
    assert_int_equal(0, (int)gone);
    infiniopTensorDescriptor_t all[] = {t, m, type};
    for (int n = 0; n < 3; n++)
        assert_int_equal(0, (int)infiniopDestroyTensorDescriptor(all[n]));
    assert_int_equal(0, (int)infiniopDestroyHandle(h));
    assert_int_equal(SUCCESS, flash_attention_destroy_handle(handle));
}
