/* SPDX-License-Identifier: MIT
 *
 * test_window_repeat_gpu: what the CUDA variants of stage 05 promise about determinism. O, lse and
 * all gradients, those of the normalisation's weights too, have the same bits on every run,
 * whatever else the GPU does (noise.h); of the library's tensor cores, which sum dQ by atomics, O
 * and lse. The first run is judged by the oracle.
 *
 *     test_window_repeat_gpu [REPEATS]
 *
 * Exit status: 0 right, 1 wrong, 77 no device.
 */
#include "attn_options.h"
#include "gradient_device.h"

#include "../unit/judge_case.h"
#include "attention/window/window_library.h"
#include "harness/rung.h"
#include "noise.h"

CUDA_RUNG_FN(sliding_window, v0_online_block)
CUDA_RUNG_FN(sliding_window, v3_decode_window)

static int repeats = 60;

/* A case with options, all of it on the device. */
typedef struct Job {
    Case *c;
    AttnOptions options, options_dev; /* with pointers of the host, of the device */
    float *weights[4];                /* wq, wk, dwq, dwk on the host */
    int64_t counts[4];
    Copies copies;
    AttnArgs args; /* device pointers */
} Job;

enum { OUT_O, OUT_DQ, OUT_DK, OUT_DV, OUT_LSE, OUT_DWQ, OUT_DWK, OUT_COUNT };

typedef struct Output {
    void *dev, *host; /* host: what the oracle's check looks at */
    size_t bytes;
} Output;

static void list_outputs(Job *job, Output out[OUT_COUNT])
{
    Storage *host[4] = {&job->c->O, &job->c->dQ, &job->c->dK, &job->c->dV};
    Tensor *dev[4] = {&job->args.O, &job->args.dQ, &job->args.dK, &job->args.dV};
    const AttnShape *n = &job->c->args.shape;
    for (int t = 0; t < 4; t++)
        out[t] = (Output){dev[t]->data, host[t]->view.data,
                          host[t]->bytes -
                              (size_t)((unsigned char *)host[t]->view.data - host[t]->base)};
    out[OUT_LSE] =
        (Output){job->args.lse, job->c->lse, sizeof(float) * (size_t)(n->B * n->H * n->Nq)};
    out[OUT_DWQ] =
        (Output){job->options_dev.dwq, job->weights[2], sizeof(float) * (size_t)job->counts[2]};
    out[OUT_DWK] =
        (Output){job->options_dev.dwk, job->weights[3], sizeof(float) * (size_t)job->counts[3]};
}

static void job_start(Job *job, AttnShape shape, AttnDtype dtype, const AttnOptions *like,
                      cudaStream_t stream)
{
    float *dev[4];
    memset(job, 0, sizeof *job);
    job->c = case_new(shape, dtype, LAYOUT_BSHD, 1);
    case_align(job->c, ATTN_MASK_CAUSAL_LOWER_RIGHT);
    job->c->args.rule.left = 70;
    for (int t = 0; t < 4; t++) {
        job->counts[t] = (t % 2 ? shape.Hkv : shape.H) * shape.d;
        job->weights[t] = floats_new(job->counts[t]);
        for (int64_t e = 0; e < job->counts[t]; e++)
            job->weights[t][e] = 1 + case_normal() / 4;
        dev[t] = floats_up(&job->copies, job->weights[t], job->counts[t]);
    }
    memset(job->c->lse, 0, sizeof(float) * (size_t)(shape.B * shape.H * shape.Nq));
    job->args = args_up(&job->copies, &job->c->args);
    Storage *host[4] = {&job->c->O, &job->c->dQ, &job->c->dK, &job->c->dV};
    Tensor *out[4] = {&job->args.O, &job->args.dQ, &job->args.dK, &job->args.dV};
    for (int t = 0; t < 4; t++)
        *out[t] = tensor_up(&job->copies, &host[t]->view);
    job->options = job->options_dev = *like;
    job->options.wq = job->weights[0], job->options.wk = job->weights[1];
    job->options.dwq = job->weights[2], job->options.dwk = job->weights[3];
    job->options_dev.wq = dev[0], job->options_dev.wk = dev[1];
    job->options_dev.dwq = dev[2], job->options_dev.dwk = dev[3];
    job->c->args.options = &job->options;
    job->args.options = &job->options_dev;
    job->args.stream = stream;
}

static void job_end(Job *job)
{
    copies_free(&job->copies);
    for (int t = 0; t < 4; t++)
        free(job->weights[t]);
    case_free(job->c);
}

typedef struct Repeated {
    const char *name;
    AttnFn forward, backward;
    int options;   /* of `some` below; 1: a rung, which takes none */
    int steps;     /* 16 bits: roundings of O */
    int64_t heads; /* of K and V; half as many as of Q */
} Repeated;

static const Repeated variants[] = {
    {"v0_online_block", sliding_window_v0_online_block, NULL, 1, 1, 2},
    {"library", sliding_window_library_cuda, sliding_window_library_cuda_backward, 4, 0, 2},
    /* So many heads that a block of threads goes from rows to rows. */
    {"library", sliding_window_library_cuda, NULL, 2, 0, 40},
    {"v3_decode_window", sliding_window_v3_decode_window, NULL, 1, 0, 2},
};

#define VARIANT_COUNT ((int)(sizeof variants / sizeof *variants))

static void run_once(const Repeated *v, const Job *job, int backward, const Output out[OUT_COUNT])
{
    for (int t = 0; t < OUT_COUNT; t++)
        assert_int_equal(0, device_fill_bytes(out[t].dev, 0xFF, out[t].bytes));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(NULL));
    assert_int_equal(ATTN_OK, v->forward(&job->args));
    if (backward)
        assert_int_equal(ATTN_OK, v->backward(&job->args));
    assert_int_equal(cudaSuccess, cudaStreamSynchronize(job->args.stream));
}

static void repeat_variant(const Repeated *v, AttnDtype dtype, const AttnOptions *with,
                           cudaStream_t stream)
{
    Job job;
    Output out[OUT_COUNT];
    void *first[OUT_COUNT] = {NULL};
    job_start(&job, (AttnShape){2, 2 * v->heads, v->heads, 333, 300, 40}, dtype, with, stream);
    list_outputs(&job, out);
    const int other_weights = with->clip_low < 0 || with->dropout > 0;
    const int backward = v->backward && (dtype == ATTN_F32 || other_weights);
    const int norm = with->norm_group > 0;
    if (v->options == 1)
        job.args.options = job.c->args.options = NULL;
    Oracle oracle = oracle_of(&job.c->args, backward, 4);
    for (int n = 0; n < repeats; n++) {
        run_once(v, &job, backward, out);
        for (int t = 0; t < OUT_COUNT; t++) {
            if (t != OUT_O && t != OUT_LSE && !(backward && (t < OUT_DWQ || norm)))
                continue;
            assert_int_equal(0, device_download(out[t].host, out[t].dev, out[t].bytes));
            assert_repeats(&first[t], out[t].host, out[t].bytes);
        }
    }
    for (int t = 0; t < OUT_COUNT; t++)
        free(first[t]);
    if (!(v->steps && dtype != ATTN_F32)) /* v0 rounds O at every step: the sweep judges that */
        assert_right(job.c, &oracle, backward, 4, v->name);
    oracle_free(&oracle);
    job_end(&job);
}

TEST(test_same_bits_beside_other_work)
{
    static const AttnOptions some[] = {
        {1, 0, 1, 0, 3, 0, 1e-5f, NULL, NULL, NULL, NULL},
        {0.8f, 0, 1, 0, 3, 20, 1e-5f, NULL, NULL, NULL, NULL},
        {1, -0.05f, 1.1f, 0, 3, 8, 1e-5f, NULL, NULL, NULL, NULL},
        {1, -0.05f, 1.1f, 0.3f, 3, 0, 1e-5f, NULL, NULL, NULL, NULL},
    };
    cudaStream_t stream;
    assert_int_equal(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int n = 0; n < VARIANT_COUNT; n++)
        for (int o = 0; o < variants[n].options; o++) {
            const int before = atomic_load(&noise_rounds);
            for (int dtype = ATTN_F32; dtype < 3; dtype++)
                repeat_variant(&variants[n], (AttnDtype)dtype, &some[o], stream);
            print_message("%s, options %d: %d runs, %d rounds of other work\n", variants[n].name, o,
                          3 * repeats, atomic_load(&noise_rounds) - before);
            assert_true(atomic_load(&noise_rounds) > before);
        }
    (void)cudaStreamDestroy(stream);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        repeats = atoi(argv[1]);
    return run_beside_noise(unit_tests);
}
