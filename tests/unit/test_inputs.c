/* SPDX-License-Identifier: MIT
 *
 * test_inputs: what stage 05's flags make of the inputs. Options arrive where variants look for
 * them; files in all layouts and packings hold the same numbers, packed tensors share a storage,
 * cu_seqlens become segments. (What is refused, flags and lengths: tests/stages/test_bad_usage.py.)
 *
 * And: the shipped activations reach a case as they lie in common/data. Which files they are and
 * what they hold is the business of tests/docs/test_plots.py.
 */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn_pairs.h"
#include "cli_lines.h"
#include "dtype_f64.h"

#include "harness/bench/bench.h"
#include "harness/bench/run.h"
#include "harness/io/npy.h"

static const Variant variants[] = {{"v0_plain", ON_CPU, DTYPES_ALL, nothing, nothing, 0, "plain"}};
static const Stage stage = {"test_inputs",
                            "00_unit",
                            "?",
                            1,
                            STAGE_HAS_BACKWARD | STAGE_HAS_VARLEN | STAGE_HAS_OFFLINE |
                                STAGE_HAS_TRACE,
                            variants,
                            1};

static int clear_folder(void **state)
{
    return system("rm -f *.npy") == 0 ? leave_folder(state) : -1;
}

BETWEEN(enter_folder, clear_folder)

/* Refused by the flags, or by the files. */
static void no_problem(const char *line)
{
    Made m;
    const int status = make_for(&m, &stage, line);
    if (status != EXIT_USAGE)
        fail_msg("status %d: %s", status, line);
}

/* --- files: value (b, n, h, x) of tensor t is 1000 t + 100 b + 10 n + h + x / 8 ----------------*/

enum { B = 2, N = 3, H = 4, HKV = 2, D = 8 };

static float value_at(int t, int b, int n, int h, int x)
{
    return (float)(1000 * t + 100 * b + 10 * n + h) + (float)x / 8.0f;
}

/* Tensors `first` .. `last` (0 Q, 1 K, 2 V) side by side on the heads axis. */
static void write_tensors(const char *path, CliTensors layout, int first, int last)
{
    static float data[B * N * (H + 2 * HKV) * D];
    char error[NPY_ERROR_SIZE];
    int64_t shape[4] = {B, N, 0, D};
    float *to = data;
    for (int t = first; t <= last; t++)
        shape[2] += t == 0 ? H : HKV;
    for (int outer = 0; outer < (layout == CLI_SBHD ? N : B); outer++)
        for (int inner = 0; inner < (layout == CLI_SBHD ? B : N); inner++)
            for (int t = first; t <= last; t++)
                for (int h = 0; h < (t == 0 ? H : HKV); h++)
                    for (int x = 0; x < D; x++)
                        *to++ = layout == CLI_SBHD ? value_at(t, inner, outer, h, x)
                                                   : value_at(t, outer, inner, h, x);
    if (layout == CLI_SBHD) {
        shape[0] = N;
        shape[1] = B;
    } else if (layout == CLI_THD) { /* two sequences of three tokens each */
        shape[0] = B * N;
        shape[1] = shape[2];
        shape[2] = D;
    }
    assert_int_equal(npy_write_f32(path, data, layout == CLI_THD ? 3 : 4, shape, error), 0);
}

static void write_integers(const char *path, int wide, int count, const int64_t *values)
{
    char head[128];
    FILE *f = fopen(path, "wb");
    int length =
        snprintf(head, sizeof head, "{'descr': '<i%d', 'fortran_order': False, 'shape': (%d,), }",
                 wide ? 8 : 4, count);
    assert_non_null(f);
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, f); /* 118 bytes: the data begin at 128 */
    fprintf(f, "%-117.*s\n", length, head);
    for (int i = 0; i < count; i++) {
        const int32_t narrow = (int32_t)values[i];
        fwrite(wide ? (const void *)&values[i] : (const void *)&narrow, wide ? 8 : 4, 1, f);
    }
    fclose(f);
}

/* --- options -----------------------------------------------------------------------------------*/

TEST(options_arrive)
{
    Made m;
    const AttnOptions *o;
    RunResult out;
    uint64_t before;
    expect_made(&m, "-N 4 -d 8 --clip -0.25,1.5 --dropout 0.125 --temperature 2 --seed 7");
    o = m.problem.args.options;
    assert_ptr_equal(o, &m.problem.options);
    assert_true(o->clip_low == -0.25f && o->clip_high == 1.5f && o->dropout == 0.125f);
    assert_true(o->temperature == 2.0f && o->dropout_seed == 7 && !o->norm_group && !o->wq);
    drop(&m);
    expect_made(&m, "-N 4 -d 8 -H 4 --kv-heads 2 --qk-norm 4 --backward");
    o = m.problem.args.options;
    assert_true(o->norm_group == 4 && o->norm_eps == 1e-5f && o->temperature == 1.0f);
    for (int i = 0; i < 32; i++) /* around 1, and not all 1 */
        assert_true(o->wq[i] > 0.0f && o->wq[i] < 2.0f && o->wq[i] != 1.0f);
    before = inputs_fingerprint(&m.problem);
    assert_int_equal(result_make(&out, &m.problem, &m.cli.cases[0]), EXIT_OK);
    assert_ptr_equal(out.args.options, &out.options);
    assert_true(out.options.dwq && out.options.dwk && out.options.wq == o->wq);
    out.options.dwq[31] = out.options.dwk[15] = 1.0f; /* no fault */
    assert_int_equal(inputs_fingerprint(&m.problem), before);
    ((float *)(uintptr_t)o->wk)[15] = 0.5f;
    assert_int_not_equal(inputs_fingerprint(&m.problem), before);
    result_free(&out);
    drop(&m);
    expect_made(&m, "-N 4 -d 8 --clip 0,1 --dropout 0 --temperature 1"); /* none of them */
    assert_null(m.problem.args.options);
    drop(&m);
}

TEST(weights_from_files)
{
    float w[32];
    char error[NPY_ERROR_SIZE];
    int64_t of_q = 32, of_k = 16;
    Made m;
    for (int i = 0; i < 32; i++)
        w[i] = (float)i;
    assert_int_equal(npy_write_f32("wq.npy", w, 1, &of_q, error), 0);
    assert_int_equal(npy_write_f32("wk.npy", w, 1, &of_k, error), 0);
    expect_made(&m, "-N 4 -d 8 -H 4 --kv-heads 2 --qk-norm 8 --wq wq.npy --wk wk.npy");
    assert_true(m.problem.options.wq[31] == 31.0f && m.problem.options.wk[15] == 15.0f);
    drop(&m);
    each_line(no_problem, "-N 4 -d 8 -H 4 --kv-heads 2 --qk-norm 8 --wq wk.npy --wk wk.npy|"
                          "-N 4 -d 8 -H 4 --kv-heads 2 --wq wq.npy --wk wk.npy|"
                          "-N 4 -d 8 -H 4 --kv-heads 2 --qk-norm 8 --wq wq.npy");
}

TEST(shapes_refused)
{
    write_tensors("qkv.npy", CLI_BSHD, 0, 2); /* 8 heads */
    write_tensors("q.npy", CLI_BSHD, 0, 0);
    write_tensors("k.npy", CLI_SBHD, 1, 1);
    write_tensors("v.npy", CLI_SBHD, 2, 2);
    no_problem("--pack qkv --q qkv.npy -H 4 --kv-heads 4");
    no_problem("--pack qkv --q qkv.npy -H 3 --kv-heads 2");
    no_problem("--pack qkv --q qkv.npy -H 8 --kv-heads 1");
    no_problem("--q q.npy --k k.npy --v v.npy"); /* batch and tokens exchanged */
    no_problem("--tensor-layout sbhd --q q.npy --k k.npy --v v.npy");
    no_problem("--tensor-layout thd --cu-seqlens-q x --cu-seqlens-kv x --q q.npy --k k.npy "
               "--v v.npy");
}

/* Without sizes, masks, windows and files: causal with window 16. */
TEST(default_window)
{
    Made m;
    expect_made(&m, "");
    assert_true(m.problem.args.rule.left == 16 && m.problem.args.rule.right == 0);
    drop(&m);
    expect_made(&m, "--dropout 0.5 --seed 3 --dtype f16 --order random");
    assert_true(m.problem.args.rule.left == 16 && m.problem.args.rule.right == 0);
    drop(&m);
    expect_made(&m, "-N 8");
    assert_true(m.problem.args.rule.left == -1 && m.problem.args.rule.right == -1);
    drop(&m);
    expect_made(&m, "--mask none");
    assert_true(m.problem.args.rule.left == -1 && m.problem.args.rule.right == -1);
    drop(&m);
}

/* --- files and tensors -------------------------------------------------------------------------*/

static void expect_values(const Tensor *t, int which, int thd)
{
    for (int b = 0; b < B; b++)
        for (int n = 0; n < N; n++)
            for (int h = 0; h < t->shape[2]; h++)
                for (int x = 0; x < D; x++)
                    assert_true(tensor_get(t, (thd ? tensor_offset(t, 0, b * N + n, h)
                                                   : tensor_offset(t, b, n, h)) +
                                                  x) == value_at(which, b, n, h, x));
}

static void expect_all_values(const Inputs *p, int thd)
{
    const AttnShape *s = &p->args.shape;
    assert_true(s->B == (thd ? 1 : B) && s->Nq == (thd ? B * N : N) && s->Nk == s->Nq);
    assert_true(s->H == H && s->Hkv == HKV && s->d == D);
    expect_values(&p->args.Q, 0, thd);
    expect_values(&p->args.K, 1, thd);
    expect_values(&p->args.V, 2, thd);
}

/* Every layout with every packing, and with every way that memory can be laid out. */
TEST(files_of_every_kind)
{
    static const char *const layouts[] = {"bshd", "sbhd", "thd"};
    static const char *const packs[] = {"q_k_v --q q.npy --k k.npy --v v.npy",
                                        "q_kv --q q.npy --k kv.npy",
                                        "qkv --q qkv.npy -H 4 --kv-heads 2"};
    static const char *const strides[] = {"", "--strides odd", "--strides bhsd"};
    const int64_t lengths[] = {0, 3, 6};
    Made m;
    write_integers("cu.npy", 0, 3, lengths);
    for (int l = 0; l < 3; l++) {
        write_tensors("q.npy", (CliTensors)l, 0, 0);
        write_tensors("k.npy", (CliTensors)l, 1, 1);
        write_tensors("v.npy", (CliTensors)l, 2, 2);
        write_tensors("kv.npy", (CliTensors)l, 1, 2);
        write_tensors("qkv.npy", (CliTensors)l, 0, 2);
        for (int n = 0; n < 9; n++) {
            char line[512];
            if (l == CLI_SBHD && n >= 3) /* is a layout in memory itself */
                continue;
            snprintf(line, sizeof line, "--tensor-layout %s --pack %s %s%s", layouts[l],
                     packs[n % 3], strides[n / 3],
                     l == CLI_THD ? " --cu-seqlens-q cu.npy --cu-seqlens-kv cu.npy" : "");
            expect_made(&m, line);
            expect_all_values(&m.problem, l == CLI_THD);
            drop(&m);
        }
    }
}

/* --- packing -----------------------------------------------------------------------------------*/

static int inside(const Storage *s, const Tensor *t)
{
    const unsigned char *at = t->data;
    return s->mapping && at >= s->base && at < s->base + s->bytes;
}

TEST(packed_tensors_share_a_storage)
{
    static const char *const lines[] = {"--pack q_k_v", "--pack q_kv", "--pack qkv",
                                        "--pack qkv --strides odd"};
    for (int n = 0; n < 4; n++) {
        char line[256];
        Made m;
        RunResult out;
        const CliCase *c;
        const AttnArgs *a = &m.problem.args;
        snprintf(line, sizeof line, "-N 5 -B 2 -H 4 --kv-heads 2 -d 8 --backward %s", lines[n]);
        expect_made(&m, line);
        c = &m.cli.cases[0];
        assert_true(inside(&m.problem.Q, &a->Q));
        assert_int_equal(inside(&m.problem.Q, &a->K), c->pack == CLI_QKV);
        assert_int_equal(inside(&m.problem.K, &a->V), c->pack == CLI_Q_KV);
        assert_int_equal(inside(&m.problem.V, &a->V), c->pack == CLI_Q_K_V);
        if (c->pack == CLI_QKV && c->layout == LAYOUT_BSHD) {
            assert_int_equal(a->K.stride[1], (4 + 2 + 2) * 8);
            assert_int_equal((float *)a->V.data - (float *)a->Q.data, (4 + 2) * 8);
        }
        assert_int_equal(result_make(&out, &m.problem, c), EXIT_OK);
        assert_int_equal(inside(&out.dQ, &out.args.dV), c->pack == CLI_QKV);
        assert_int_equal(inside(&out.dK, &out.args.dV), c->pack == CLI_Q_KV);
        assert_int_equal(out.args.dK.stride[1], a->K.stride[1]);
        result_free(&out);
        drop(&m);
    }
}

/* The numbers do not depend on packing, layout or strides. */
TEST(inputs_are_the_same_packed)
{
    static const char *const lines[] = {"--pack q_kv", "--pack qkv", "--tensor-layout sbhd",
                                        "--pack qkv --strides odd"};
    Made plain, m;
    expect_made(&plain, "-N 5 -B 2 -H 4 --kv-heads 2 -d 8 --dtype bf16");
    for (int n = 0; n < 4; n++) {
        char line[256];
        snprintf(line, sizeof line, "-N 5 -B 2 -H 4 --kv-heads 2 -d 8 --dtype bf16 %s", lines[n]);
        expect_made(&m, line);
        for (int t = 0; t < 3; t++) {
            const AttnArgs *a = &plain.problem.args, *p = &m.problem.args;
            const Tensor *x = t == 0 ? &a->Q : t == 1 ? &a->K : &a->V;
            const Tensor *y = t == 0 ? &p->Q : t == 1 ? &p->K : &p->V;
            float one[8], other[8];
            for (int row = 0; row < 2 * 5 * x->shape[2]; row++) {
                const int64_t b = row % 2, i = row / 2 % 5, h = row / 10;
                tensor_read_row(x, b, i, h, one);
                tensor_read_row(y, b, i, h, other);
                assert_memory_equal(one, other, sizeof one);
            }
        }
        drop(&m);
    }
    drop(&plain);
}

/* A ring leaves one thread behind; what is filled next is filled by those of its own case. */
TEST(threads_of_the_case)
{
    Made m;
    bench_set_threads(1);
    expect_made(&m, "-N 5 --threads 3");
#ifdef _OPENMP
    assert_int_equal(3, omp_get_max_threads());
#endif
    drop(&m);
}

/* --- sequences ---------------------------------------------------------------------------------*/

TEST(lengths_become_segments)
{
    const int64_t q[] = {0, 4, 4, 9}, k[] = {0, 2, 5, 13};
    Made m;
    AttnPosition at;
    write_integers("q.npy", 1, 4, q);
    write_integers("k.npy", 0, 4, k);
    expect_made(&m, "--tensor-layout thd --cu-seqlens-q q.npy --cu-seqlens-kv k.npy --causal -d 4");
    assert_int_equal(m.problem.args.shape.Nq, 9);
    assert_int_equal(m.problem.args.shape.Nk, 13);
    assert_int_equal(m.problem.args.positions_q.count, 3);
    at = attn_position(m.problem.args.positions_q, 0); /* lower right: 4 queries, 2 keys */
    assert_true(at.sequence == 0 && at.position == -2);
    at = attn_position(m.problem.args.positions_q, 4); /* the empty one has no token */
    assert_true(at.sequence == 2 && at.position == 8 - 5);
    at = attn_position(m.problem.args.positions_k, 4);
    assert_true(at.sequence == 1 && at.position == 2);
    drop(&m);
    expect_made(&m, "--tensor-layout thd --cu-seqlens-q q.npy --cu-seqlens-kv k.npy "
                    "--mask causal-upper-left --seq-q 9 -B 1");
    at = attn_position(m.problem.args.positions_q, 4);
    assert_true(at.sequence == 2 && at.position == 0);
    drop(&m);
}

/* --- bundled -----------------------------------------------------------------------------------*/

static const AttnArgs *make(Made *m, const char *line)
{
    expect_made(m, line);
    return &m->problem.args;
}

TEST(sizes_and_mask)
{
    Made c;
    const AttnArgs *a = make(&c, "--bundled=causal");
    assert_true(a->shape.B == 1 && a->shape.H == 4 && a->shape.Hkv == 2 && a->shape.Nq == 512 &&
                a->shape.Nk == 512 && a->shape.d == 64);
    assert_true(c.problem.mask_type == ATTN_MASK_CAUSAL_LOWER_RIGHT);
    assert_true(attn_sees(a, 100, 100) && !attn_sees(a, 100, 101));
    assert_null(c.problem.dO.mapping); /* a forward pass has no use for it */
    drop(&c);
    a = make(&c, "--bundled=causal --mask none");
    assert_true(c.problem.mask_type == ATTN_MASK_NONE && attn_sees(a, 100, 101));
    drop(&c);
    a = make(&c, "--bundled --backward");
    assert_true(a->shape.H == 12 && a->shape.Nq == 384 && a->shape.d == 32);
    assert_true(c.problem.mask_type == ATTN_MASK_NONE);
    drop(&c);
}

/* The dO of the training step is the file's, whatever the seed and the strides; the encoder has
 * none, so its comes from the seed. */
TEST(dO_is_of_the_file)
{
    static const char *const flags[] = {"--seed 1", "--seed 2 --strides odd --dtype bf16",
                                        "--dtype f16"};
    char error[NPY_ERROR_SIZE], line[128];
    NpyArray file;
    Made one, other;
    assert_int_equal(0, npy_read(ATTN_DATA_DIR "/causal_do.npy", &file, error));
    for (int n = 0; n < 3; n++) {
        snprintf(line, sizeof line, "--bundled=causal --backward %s", flags[n]);
        const Tensor *dO = &make(&one, line)->dO;
        assert_int_equal(file.count, tensor_count(dO));
        for (int64_t e = 0; e < file.count; e++) {
            const int64_t at = tensor_offset(dO, 0, e / (64 * 4), e / 64 % 4) + e % 64;
            assert_true(tensor_get(dO, at) == dtype_round_f64(dO->dtype, npy_value(&file, e)));
        }
        drop(&one);
    }
    npy_free(&file);
    make(&one, "--bundled --backward --seed 1");
    make(&other, "--bundled --backward --seed 2");
    assert_true(tensor_fingerprint(&one.problem.dO) != tensor_fingerprint(&other.problem.dO));
    drop(&one);
    drop(&other);
}
