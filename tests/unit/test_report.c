/* SPDX-License-Identifier: MIT
 *
 * test_report.c: JSON rows with hostile strings and non-finite numbers, folders of --save that
 * must not stay behind. The table and the fields are the business of
 * tests/stages/test_interface.py.
 *
 * And what a row of stage 06 says of ranks, bytes and memory, in JSON and in the table; what it
 * says where there are no ranks (a --variant-so), and where there is no place for it any more; and
 * that partial sums in bf16 widen the bound by as many roundings as they may have, no more.
 */
#include <math.h>
#include <sys/stat.h>

#include "cli_lines.h"

#include "harness/bench/run.h"
#include "harness/check/judge.h"
#include "harness/io/npy.h"
#include "harness/report/report_internal.h"

static const Variant variants[] = {
    {"v0_\"odd\"\\\n\x7f\xc3", ON_CPU, DTYPES_ALL, nothing, NULL, 0, ""}};
static const Stage stage = {"test_report", "00_unit", "?", 1, 0, variants, 1};

static const Variant windows[] = {{"v0_window", ON_CPU, DTYPES_ALL, nothing, nothing, 0, ""}};
static const Stage offline = {
    "unit",  "00_unit", "?", 1, STAGE_HAS_BACKWARD | STAGE_HAS_VARLEN | STAGE_HAS_OFFLINE,
    windows, 1};

static const Variant methods[] = {
    {"burst", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS, "burst"}};
static const Stage ranks = {
    "unit",  "00_unit", "?", 1, STAGE_HAS_BACKWARD | STAGE_HAS_DETERMINISTIC | STAGE_HAS_RANKS,
    methods, 1};

BETWEEN(enter_folder, leave_folder)

/* A line's problem, and a report that is open. */
static void open_report(Report *report, Made *m, const Stage *of, const char *line)
{
    assert_int_equal(make_for(m, of, line), EXIT_OK);
    assert_int_equal(report_open(report, &m->cli), EXIT_OK);
}

static char json[8192], table[8192]; /* what make_rows wrote */

/* Rows of one result, with some tiles each. */
static void make_rows(const Stage *of, const char *flags, RunResult out, const Check *check,
                      double model_bytes, const ReportTiles *tiles, int count)
{
    char line[512];
    Made m;
    Report report;
    int saved, file;
    snprintf(line, sizeof line, "--json rows.jsonl %s", flags);
    open_report(&report, &m, of, line);
    out.args = m.problem.args;
    fflush(stdout);
    saved = dup(1);
    file = open("table.txt", O_WRONLY | O_CREAT, 0600);
    dup2(file, 1);
    for (int n = 0; n < count; n++) {
        const ReportRow row = {&m.cli.cases[0], &m.problem,  of->variants, &out,
                               check,           model_bytes, tiles[n]};
        report_row(&report, &row);
    }
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    close(file);
    assert_int_equal(report_close(&report), EXIT_OK);
    drop(&m);
    strcpy(json, read_text("rows.jsonl"));
    strcpy(table, read_text("table.txt"));
}

/* One row with a given check. */
static void make_row(const Check *check, int ran, ReportTiles tiles)
{
    const RunResult out = {.ran = ran, .failure = "a\tb\"c\\"};
    make_rows(&stage, "-N 3 -H 1 -d 2 --quiet", out, check, NAN, &tiles, 1);
}

TEST(rows_are_json)
{
    const Check check = {.bound_ratio = INFINITY, .nonfinite = 7};
    make_row(&check, 1, (ReportTiles){0});
    expect(json, "\"variant\":\"v0_\\\"odd\\\"\\\\\\u000a\\u007f\\u00c3\"");
    expect(json, "\"failure\":\"a\\u0009b\\\"c\\\\\"");
    expect(json, "\"bound_ratio\":null");
    expect(json, "\"flash_ratio\":null");
    expect(json, "\"hbm_bytes_model\":null");
    expect(json, "\"compulsory_bytes_model\":108,"); /* Q K V O of 6 floats, lse of 3 */
    expect(json,
           "\"sram_elements\":null,\"tile_rows\":null,\"tile_keys\":null,\"key_splits\":null,");
    expect(json, "\"ms\":[]");
    expect(json, "\"ms_med\":null");
    expect(json, "\"nonfinite\":7");
    expect(json, "\"pass\":false");
    assert_null(strstr(json, ":nan"));
    assert_null(strstr(json, ":-nan"));
    assert_null(strstr(json, ":inf"));
    for (const char *p = json; *p; p++) /* one object, one line, ASCII */
        assert_true((*p >= ' ' && *p < 127) || (*p == '\n' && p[1] == '\0'));
}

TEST(pass_is_said_honestly)
{
    Check check = {.pass = 1};
    make_row(&check, 1, (ReportTiles){4096, 16, 32, 2, 0, 0, 0});
    expect(json, "\"pass\":true");
    expect(json, "\"sram_elements\":4096,\"tile_rows\":16,\"tile_keys\":32,\"key_splits\":2,");
    assert_null(strstr(json, "\"sample\""));
    check.sample = (CheckSample){1, 1, 82, 80, 3, 7};
    make_row(&check, 1, (ReportTiles){0});
    expect(json, "\"pass\":true,\"sample\":{\"rows\":82,\"keys\":80,\"kv_heads\":3,"
                 "\"given\":true,\"seed\":7},");
    make_row(NULL, 1, (ReportTiles){0}); /* --no-check */
    expect(json, "\"pass\":null");
    expect(json, "\"nonfinite\":null");
    make_row(NULL, 0, (ReportTiles){0}); /* the run failed */
    expect(json, "\"pass\":false");
    make_row(&check, 0, (ReportTiles){0}); /* whatever a stale check says */
    expect(json, "\"pass\":false");
}

TEST(no_rows_leave_no_file)
{
    Cli cli;
    Report report;
    FILE *f;
    struct stat s;
    assert_int_equal(parse(&cli, "--json rows.jsonl"), CLI_CONTINUE);
    assert_int_equal(report_open(&report, &cli), EXIT_OK);
    assert_int_not_equal(stat("rows.jsonl", &s), 0); /* who is killed now leaves none either */
    assert_true(report_close(&report) == EXIT_OK && stat("rows.jsonl", &s) != 0);
    f = fopen("rows.jsonl", "w"); /* but an empty file of the user's stays */
    assert_non_null(f);
    fclose(f);
    assert_int_equal(report_open(&report, &cli), EXIT_OK);
    assert_int_equal(report_close(&report), EXIT_OK);
    assert_int_equal(stat("rows.jsonl", &s), 0);
    unlink("rows.jsonl");
    cli_free(&cli);
}

TEST(probe_leaves_nothing)
{
    struct stat s;
    FILE *f;
    int file, below;
    assert_int_equal(save_probe("."), EXIT_OK);
    assert_int_equal(save_probe("a/b//c/"), EXIT_OK);
    assert_int_not_equal(stat("a", &s), 0);
    assert_int_equal(mkdir("a", 0777), 0);
    assert_int_equal(save_probe("a/b"), EXIT_OK);
    assert_int_equal(stat("a", &s), 0); /* what was there before stays */
    assert_int_not_equal(stat("a/b", &s), 0);
    f = fopen("a/file", "w");
    assert_non_null(f);
    fclose(f);
    silence(1);
    file = save_probe("a/file");
    below = save_probe("a/file/b");
    silence(0);
    assert_int_equal(file, EXIT_USAGE);
    assert_int_equal(below, EXIT_USAGE);
    unlink("a/file");
    rmdir("a");
}

/* --- stage 05 ----------------------------------------------------------------------------------*/

/* Options and tile counts, in the row and above the table. */
TEST(windows_are_told)
{
    const ReportTiles tiles[] = {{0, 4, 4, 1, 1, 3, 0}, {0}};
    make_rows(&offline,
              "--causal --window 3,0 -N 8 -d 4 -H 1 --clip -0.5,2 --pack qkv --dropout 0.25 "
              "--qk-norm 2 --temperature 2 --block-kv 16 --order diagonal",
              (RunResult){0}, NULL, NAN, tiles, 2);
    expect(json, "\"window\":[3,0]");
    expect(json, "\"tensor_layout\":\"bshd\",\"pack\":\"qkv\",\"sequences\":1,\"temperature\":2,"
                 "\"clip\":[-0.5,2],\"dropout\":0.25,\"qk_norm\":2,\"block_q\":64,"
                 "\"block_kv\":16,\"order\":\"diagonal\",");
    expect(json, "\"tiles\":{\"skipped\":1,\"masked\":3,\"clean\":0},");
    expect(json, "\"tiles\":null,"); /* the second row */
    expect(json, "\"o_error\":null,");
    expect(table,
           "window 3,0, Q, K and V packed, temperature 2, clip -0.5,2, dropout 0.25, QK norm 2");
    expect(table, "tiles skip/mask/full\n");
    expect(table, " 1/3/0\n");
}

static void expect_shape(const char *path, int ndim, int64_t a, int64_t b, int64_t c, int64_t first)
{
    char error[NPY_ERROR_SIZE];
    NpyArray array;
    if (npy_read(path, &array, error) != 0)
        fail_msg("%s", error);
    assert_int_equal(array.ndim, ndim);
    assert_int_equal(array.shape[0], a);
    assert_true(ndim < 2 || array.shape[1] == b);
    assert_true(ndim < 3 || array.shape[2] == c);
    assert_true(npy_value(&array, 1) == (double)first);
    npy_free(&array);
    unlink(path);
}

/* --save in the layout of --tensor-layout: element 1 tells which axis is the next to the last. */
TEST(saved_in_the_tensor_layout)
{
    Cli cli;
    Report report;
    Inputs problem;
    RunResult out;
    assert_int_equal(parse_for(&cli, &offline,
                               "--tensor-layout sbhd -B 2 -N 3 -H 1 -d 1 --save . --backward "
                               "--qk-norm 1"),
                     CLI_CONTINUE);
    for (int thd = 0; thd < 2; thd++) {
        CliCase *c = &cli.cases[0];
        Tensor *tensors[] = {&out.args.O, &out.args.dQ, &out.args.dK, &out.args.dV};
        c->tensors = thd ? CLI_THD : CLI_SBHD; /* as if there were cu_seqlens: B = 1, 6 tokens */
        c->B = thd ? 1 : 2;
        c->Nq = c->Nk = thd ? 6 : 3;
        assert_int_equal(report_open(&report, &cli), EXIT_OK);
        assert_int_equal(inputs_make(&problem, c), EXIT_OK);
        assert_int_equal(result_make(&out, &problem, c), EXIT_OK);
        for (int t = 0; t < 4; t++)
            for (int64_t b = 0; b < c->B; b++)
                for (int64_t n = 0; n < c->Nq; n++)
                    tensor_set(tensors[t], tensor_offset(tensors[t], b, n, 0), (float)(10 * b + n));
        for (int i = 0; i < 6; i++)
            out.args.lse[i] = (float)i;
        out.options.dwq[0] = out.options.dwk[0] = 7.0f;
        out.ran = 1;
        assert_int_equal(report_save(&report, c, &out), EXIT_OK);
        for (int t = 0; t < 4; t++) {
            static const char *const names[] = {"o.npy", "dq.npy", "dk.npy", "dv.npy"};
            expect_shape(names[t], thd ? 3 : 4, thd ? 6 : 3, thd ? 1 : 2, 1, thd ? 1 : 10);
        }
        expect_shape("lse.npy", thd ? 2 : 3, thd ? 1 : 2, thd ? 6 : 1, 3, 1);
        assert_int_equal(unlink("dwq.npy"), 0);
        assert_int_equal(unlink("dwk.npy"), 0);
        assert_int_equal(report_close(&report), EXIT_OK);
        result_free(&out);
        inputs_free(&problem);
    }
    cli_free(&cli);
}

/* --- stage 06 ----------------------------------------------------------------------------------*/

static const RingResult three = {.ranks = 3,
                                 .nodes = 1,
                                 .sent = {10, 20, 30},
                                 .sent_backward = {1, 2, 3000},
                                 .link_bytes = 3063.0,
                                 .peak = {7, 8, 9},
                                 .peak_model = {7, 8, 10},
                                 .workspace_bytes = 64,
                                 .hidden = 0.25,
                                 .hidden_backward = NAN};

static void make_ring_row(const char *flags, const RingResult *ring, const Check *check)
{
    char line[512];
    snprintf(line, sizeof line, "-N 3 -H 1 -d 2 %s", flags);
    make_rows(&ranks, line, (RunResult){.ran = 1, .ring = ring}, check, 0.0, &(ReportTiles){0}, 1);
}

TEST(ranks_in_json)
{
    const Check check = {.pass = 1,
                         .array[CHECK_O] = {.name = "O", .checked = 1, .max_error = 0.5}};
    make_ring_row("--ranks 3 --layout striped --backward --seed-schedule 18446744073709551615 "
                  "--inject drop@2:9 --verify-hops --partials bf16",
                  &three, &check);
    expect(json, "\"ranks\":3,\"transport\":\"sim\",\"method\":\"burst\",\"layout\":\"striped\","
                 "\"nodes\":1,\"link\":null,\"partials\":\"bf16\",\"sequences\":1,"
                 "\"seed_schedule\":18446744073709551615,\"inject\":\"drop@2:9\","
                 "\"verify_hops\":true,\"sent_bytes\":[10,20,30],"
                 "\"sent_bytes_backward\":[1,2,3000],\"outer_bytes\":0,\"rank_peak_bytes\":[7,8,9],"
                 "\"rank_peak_model_bytes\":[7,8,10],\"workspace_bytes\":64,"
                 "\"errors\":{\"O\":0.5},\"hidden\":0.25,\"hidden_backward\":null");
    expect(json, "\"link_bytes\":3063,");
    expect(table, "# 3 ranks (sim), striped layout, bf16 partials, schedule 18446744073709551615, "
                  "drop at rank 2 step 9, hops verified\n");
    expect(table, "sent/rank     %hidden\n");
    expect(table, "    3.0 KiB        25.0\n"); /* the rank that sends most, both passes */
    assert_null(strstr(json, ":nan"));
}

TEST(no_ranks)
{
    make_ring_row("--ranks 3 --nodes 3", NULL, NULL);
    expect(json, "\"ranks\":1,\"transport\":null,\"method\":null,\"layout\":null,\"nodes\":null,");
    expect(json, "\"seed_schedule\":null,\"inject\":null,\"verify_hops\":false,\"sent_bytes\":[],"
                 "\"sent_bytes_backward\":[],");
    expect(json, "\"link_bytes\":0,");
    expect(json, "\"errors\":null,\"hidden\":null,\"hidden_backward\":null");
    expect(table, "# 3 ranks (sim), contiguous layout on 3 nodes\n");
    expect(table, "          -           -\n");
}

/* Bounds of one case: those of float32, those with partials, and what dtype bf16 would have. */
TEST(partials_widen_the_bound)
{
    const double u = 0x1p-8, allowed = 2.0 * u * (1.0 + u) * (1.0 + u);
    Made a;
    Cli b;
    Reference f32, partial;
    assert_int_equal(make_for(&a, &ranks, "-N 5 -H 1 -d 2 --ranks 1"), EXIT_OK);
    assert_int_equal(parse_for(&b, &ranks, "-N 5 -H 1 -d 2 --ranks 1 --partials bf16"),
                     CLI_CONTINUE);
    assert_int_equal(reference_make(&f32, &a.problem, &a.cli.cases[0]), EXIT_OK);
    assert_int_equal(reference_make(&partial, &a.problem, &b.cases[0]), EXIT_OK);
    for (int64_t e = 0; e < f32.oracle.O.count; e++) {
        const double more = partial.oracle.O.fixed[e] - f32.oracle.O.fixed[e];
        const double O = fabs(f32.oracle.O.value[e]);
        assert_true(partial.oracle.O.value[e] == f32.oracle.O.value[e]);
        assert_true(partial.oracle.O.per_c[e] == f32.oracle.O.per_c[e]);
        /* u16 (|O| + W), W being at least |O| and at most the largest |V| of 5 normal numbers */
        assert_true(more >= 2.0 * allowed * O * (1 - 1e-9) && more <= allowed * (O + 5.0));
    }
    for (int64_t e = 0; e < f32.oracle.lse.count; e++)
        assert_true(partial.oracle.lse.fixed[e] == f32.oracle.lse.fixed[e]);
    reference_free(&f32);
    reference_free(&partial);
    drop(&a);
    cli_free(&b);
}

/* The folder is there when --json is tried, and gone when the first row comes. */
TEST(no_place)
{
    Made m;
    Report report;
    RunResult out = {.failure = "it did not run", .ring = &three};
    assert_int_equal(mkdir("gone", 0777), 0);
    open_report(&report, &m, &ranks, "-N 1 -H 1 -d 1 --quiet --json gone/rows.jsonl");
    assert_int_equal(rmdir("gone"), 0); /* empty: trying has left nothing */
    out.args = m.problem.args;
    for (int n = 0; n < 2; n++)
        report_row(&report, &(ReportRow){&m.cli.cases[0], &m.problem, methods, &out, NULL, 0, {0}});
    assert_int_equal(report_close(&report), EXIT_RUNTIME);
    drop(&m);
}
