/* SPDX-License-Identifier: MIT
 *
 * test_problem: what stage 05's flags make of the inputs. Files in all layouts and packings hold
 * the same numbers, packed tensors share a storage, cu_seqlens become segments.
 */
#include "offline_case.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "bench/bench.h"

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

static void expect_all_values(const Problem *p, int thd)
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

TEST(lengths_refused)
{
    static const int64_t bad[][3] = {{1, 4, 9}, {0, 5, 4}, {0, -3, 9}, {0, 0, 0}};
    const int64_t good[] = {0, 4, 9}, one[] = {0, 9}, alone[] = {0};
    const char *const both = "--tensor-layout thd --cu-seqlens-q bad.npy --cu-seqlens-kv good.npy";
    float real[3] = {0, 4, 9};
    const int64_t three = 3;
    char error[NPY_ERROR_SIZE];
    write_integers("good.npy", 0, 3, good);
    for (int n = 0; n < 4; n++) {
        write_integers("bad.npy", 1, 3, bad[n]);
        expect_refused(both);
    }
    write_integers("bad.npy", 0, 2, one); /* another number of sequences */
    expect_refused(both);
    write_integers("bad.npy", 0, 1, alone);
    expect_refused(both);
    assert_int_equal(npy_write_f32("bad.npy", real, 1, &three, error), 0);
    expect_refused(both);
    expect_refused("--tensor-layout thd --cu-seqlens-q none.npy --cu-seqlens-kv good.npy");
    write_integers("bad.npy", 0, 3, good);
    expect_refused("--tensor-layout thd --cu-seqlens-q bad.npy --cu-seqlens-kv good.npy -N 8");
    expect_refused("--tensor-layout thd --cu-seqlens-q bad.npy --cu-seqlens-kv good.npy -B 2");
    expect_refused("--tensor-layout thd --cu-seqlens-q bad.npy");
    expect_refused("--tensor-layout thd");
    expect_refused("--cu-seqlens-q bad.npy --cu-seqlens-kv good.npy");
    expect_refused("--bundled --tensor-layout thd --cu-seqlens-q bad.npy --cu-seqlens-kv good.npy");
}

BETWEEN(enter_folder, leave_folder)
