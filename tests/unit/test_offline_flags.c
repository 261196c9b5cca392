/* SPDX-License-Identifier: MIT
 *
 * test_offline_flags: stage 05's options arrive where variants look for them, and whatever does not
 * fit together is refused, by the flags alone or with the files.
 */
#include "offline_case.h"

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
    before = problem_fingerprint(&m.problem);
    assert_int_equal(result_make(&out, &m.problem, &m.cli.cases[0]), EXIT_OK);
    assert_ptr_equal(out.args.options, &out.options);
    assert_true(out.options.dwq && out.options.dwk && out.options.wq == o->wq);
    out.options.dwq[31] = out.options.dwk[15] = 1.0f; /* no fault */
    assert_int_equal(problem_fingerprint(&m.problem), before);
    ((float *)(uintptr_t)o->wk)[15] = 0.5f;
    assert_int_not_equal(problem_fingerprint(&m.problem), before);
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
    expect_refused("-N 4 -d 8 -H 4 --kv-heads 2 --qk-norm 8 --wq wk.npy --wk wk.npy");
    expect_refused("-N 4 -d 8 -H 4 --kv-heads 2 --wq wq.npy --wk wk.npy");
    expect_refused("-N 4 -d 8 -H 4 --kv-heads 2 --qk-norm 8 --wq wq.npy");
}

TEST(flags_refused)
{
    static const char *const lines[] = {"--clip 0.1,1.1",
                                        "--clip -0.1,0.9",
                                        "--clip -0.1",
                                        "--clip ,",
                                        "--clip nan,2",
                                        "--dropout x",
                                        "--temperature -1",
                                        "--qk-norm 48 -d 64",
                                        "--block-kv -4",
                                        "--pack q_kv --q q.npy",
                                        "--wq",
                                        "--wq --wk"};
    for (size_t n = 0; n < sizeof lines / sizeof *lines; n++)
        expect_refused(lines[n]);
}

TEST(shapes_refused)
{
    write_tensors("qkv.npy", CLI_BSHD, 0, 2); /* 8 heads */
    write_tensors("q.npy", CLI_BSHD, 0, 0);
    write_tensors("k.npy", CLI_SBHD, 1, 1);
    write_tensors("v.npy", CLI_SBHD, 2, 2);
    expect_refused("--pack qkv --q qkv.npy -H 4 --kv-heads 4");
    expect_refused("--pack qkv --q qkv.npy -H 3 --kv-heads 2");
    expect_refused("--pack qkv --q qkv.npy -H 8 --kv-heads 1");
    expect_refused("--q q.npy --k k.npy --v v.npy"); /* batch and tokens exchanged */
    expect_refused("--tensor-layout sbhd --q q.npy --k k.npy --v v.npy");
    expect_refused("--tensor-layout thd --cu-seqlens-q x --cu-seqlens-kv x --q q.npy --k k.npy "
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

BETWEEN(enter_folder, leave_folder)
