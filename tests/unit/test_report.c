/* SPDX-License-Identifier: MIT
 *
 * test_report.c: JSON rows with hostile strings and non-finite numbers, folders of --save that
 * must not stay behind. The table and the fields are the business of
 * tests/stages/test_interface.py.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

#include "bench/run_internal.h"
#include "io/npy.h"
#include "report/report_internal.h"

static AttnStatus nothing(const AttnArgs *args)
{
    (void)args;
    return ATTN_OK;
}

static const Variant variants[] = {
    {"v0_\"odd\"\\\n\x7f\xc3", ON_CPU, DTYPES_ALL, nothing, NULL, 0, ""}};
static const Stage stage = {"unit", "00_unit", "?", 1, 0, variants, 1};

static char folder[64];

static int enter_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "test_report.XXXXXX");
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    return chdir("..") == 0 && rmdir(folder) == 0 ? 0 : -1; /* fails when something was left */
}

static ReportTiles tiles; /* of the next row */

/* One row with a given check into rows.jsonl, read back into text. */
static void make_row(const Check *check, int ran, char *text, size_t size)
{
    char *argv[] = {"unit", "-N", "3", "-H", "1", "-d", "2", "--quiet", "--json", "rows.jsonl"};
    Cli cli;
    Report report;
    Problem problem;
    RunResult out;
    FILE *f;
    size_t length;
    assert_int_equal(cli_parse(&cli, &stage, 10, argv), CLI_CONTINUE);
    assert_int_equal(report_open(&report, &cli), EXIT_OK);
    assert_int_equal(problem_make(&problem, &cli.cases[0]), EXIT_OK);
    memset(&out, 0, sizeof out);
    out.ran = ran;
    out.args = problem.args;
    snprintf(out.failure, sizeof out.failure, "a\tb\"c\\");
    {
        ReportRow row = {&cli.cases[0], &problem, &variants[0], &out, check, NAN, tiles};
        report_row(&report, &row);
    }
    assert_int_equal(report_close(&report), EXIT_OK);
    problem_free(&problem);
    cli_free(&cli);
    f = fopen("rows.jsonl", "r");
    assert_non_null(f);
    length = fread(text, 1, size - 1, f);
    text[length] = '\0';
    fclose(f);
    unlink("rows.jsonl");
}

static void expect(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("%s is not in %s", part, text);
}

TEST(rows_are_json)
{
    char text[8192], *p;
    Check check;
    memset(&check, 0, sizeof check);
    check.bound_ratio = INFINITY;
    check.flash_ratio = NAN;
    check.nonfinite = 7;
    make_row(&check, 1, text, sizeof text);
    expect(text, "\"variant\":\"v0_\\\"odd\\\"\\\\\\u000a\\u007f\\u00c3\"");
    expect(text, "\"failure\":\"a\\u0009b\\\"c\\\\\"");
    expect(text, "\"bound_ratio\":null");
    expect(text, "\"flash_ratio\":null");
    expect(text, "\"hbm_bytes_model\":null");
    expect(text, "\"compulsory_bytes_model\":108,"); /* Q K V O of 6 floats, lse of 3 */
    expect(text,
           "\"sram_elements\":null,\"tile_rows\":null,\"tile_keys\":null,\"key_splits\":null,");
    expect(text, "\"ms\":[]");
    expect(text, "\"ms_med\":null");
    expect(text, "\"nonfinite\":7");
    expect(text, "\"pass\":false");
    assert_null(strstr(text, ":nan"));
    assert_null(strstr(text, ":-nan"));
    assert_null(strstr(text, ":inf"));
    for (p = text; *p; p++) /* one object, one line, ASCII */
        assert_true((*p >= ' ' && *p < 127) || (*p == '\n' && p[1] == '\0'));
}

TEST(pass_is_said_honestly)
{
    char text[8192];
    Check check;
    memset(&check, 0, sizeof check);
    check.pass = 1;
    tiles = (ReportTiles){4096, 16, 32, 2, 0, 0, 0};
    make_row(&check, 1, text, sizeof text);
    tiles = (ReportTiles){0};
    expect(text, "\"pass\":true");
    expect(text, "\"sram_elements\":4096,\"tile_rows\":16,\"tile_keys\":32,\"key_splits\":2,");
    assert_null(strstr(text, "\"sample\""));
    check.sample = (CheckSample){1, 1, 82, 80, 3, 7};
    make_row(&check, 1, text, sizeof text);
    expect(text, "\"pass\":true,\"sample\":{\"rows\":82,\"keys\":80,\"kv_heads\":3,"
                 "\"given\":true,\"seed\":7},");
    make_row(NULL, 1, text, sizeof text); /* --no-check */
    expect(text, "\"pass\":null");
    expect(text, "\"nonfinite\":null");
    make_row(NULL, 0, text, sizeof text); /* the run failed */
    expect(text, "\"pass\":false");
    make_row(&check, 0, text, sizeof text); /* whatever a stale check says */
    expect(text, "\"pass\":false");
}

TEST(no_rows_leave_no_file)
{
    char *argv[] = {"unit", "--json", "rows.jsonl"};
    Cli cli;
    Report report;
    FILE *f;
    struct stat s;
    assert_int_equal(cli_parse(&cli, &stage, 3, argv), CLI_CONTINUE);
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
    freopen("/dev/null", "w", stderr);
    assert_int_equal(save_probe("a/file"), EXIT_USAGE);
    assert_int_equal(save_probe("a/file/b"), EXIT_USAGE);
    unlink("a/file");
    rmdir("a");
}

/* --- stage 05 ----------------------------------------------------------------------------------*/

static const Variant windows[] = {{"v0_window", ON_CPU, DTYPES_ALL, nothing, nothing, 0, ""}};
static const Stage offline = {
    "unit",  "00_unit", "?", 1, STAGE_HAS_BACKWARD | STAGE_HAS_VARLEN | STAGE_HAS_OFFLINE,
    windows, 1};

static void read_text(const char *path, char *text, size_t size)
{
    FILE *f = fopen(path, "r");
    size_t length;
    assert_non_null(f);
    length = fread(text, 1, size - 1, f);
    text[length] = '\0';
    fclose(f);
    unlink(path);
}

/* Options and tile counts, in the row and above the table. */
TEST(windows_are_told)
{
    char *argv[] = {
        "unit",      "--causal",   "--window", "3,0",        "-N",        "8",      "-d",
        "4",         "-H",         "1",        "--clip",     "-0.5,2",    "--pack", "qkv",
        "--dropout", "0.25",       "--json",   "rows.jsonl", "--qk-norm", "2",      "--temperature",
        "2",         "--block-kv", "16",       "--order",    "diagonal"};
    char text[8192];
    Cli cli;
    Report report;
    Problem problem;
    RunResult out;
    int saved, file;
    assert_int_equal(cli_parse(&cli, &offline, 26, argv), CLI_CONTINUE);
    assert_int_equal(report_open(&report, &cli), EXIT_OK);
    assert_int_equal(problem_make(&problem, &cli.cases[0]), EXIT_OK);
    assert_int_equal(result_make(&out, &problem, &cli.cases[0]), EXIT_OK);
    fflush(stdout);
    saved = dup(1);
    file = open("table.txt", O_WRONLY | O_CREAT, 0600);
    dup2(file, 1);
    {
        ReportRow row = {&cli.cases[0], &problem, &windows[0],          &out,
                         NULL,          NAN,      {0, 4, 4, 1, 1, 3, 0}};
        report_row(&report, &row);
        row.tiles = (ReportTiles){0};
        report_row(&report, &row);
    }
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    close(file);
    assert_int_equal(report_close(&report), EXIT_OK);
    read_text("rows.jsonl", text, sizeof text);
    expect(text, "\"window\":[3,0]");
    expect(text, "\"tensor_layout\":\"bshd\",\"pack\":\"qkv\",\"sequences\":1,\"temperature\":2,"
                 "\"clip\":[-0.5,2],\"dropout\":0.25,\"qk_norm\":2,\"block_q\":64,"
                 "\"block_kv\":16,\"order\":\"diagonal\",");
    expect(text, "\"tiles\":{\"skipped\":1,\"masked\":3,\"clean\":0},");
    expect(text, "\"tiles\":null,"); /* the second row */
    expect(text, "\"o_error\":null,");
    read_text("table.txt", text, sizeof text);
    expect(text,
           "window 3,0, Q, K and V packed, temperature 2, clip -0.5,2, dropout 0.25, QK norm 2");
    expect(text, "tiles skip/mask/clean\n");
    expect(text, " 1/3/0\n");
    result_free(&out);
    problem_free(&problem);
    cli_free(&cli);
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
    char *argv[] = {
        "unit", "--tensor-layout", "sbhd", "-B",         "2",         "-N", "3", "-H", "1", "-d",
        "1",    "--save",          ".",    "--backward", "--qk-norm", "1"};
    Cli cli;
    Report report;
    Problem problem;
    RunResult out;
    assert_int_equal(cli_parse(&cli, &offline, 16, argv), CLI_CONTINUE);
    for (int thd = 0; thd < 2; thd++) {
        CliCase *c = &cli.cases[0];
        Tensor *tensors[] = {&out.args.O, &out.args.dQ, &out.args.dK, &out.args.dV};
        c->tensors = thd ? CLI_THD : CLI_SBHD; /* as if there were cu_seqlens: B = 1, 6 tokens */
        c->B = thd ? 1 : 2;
        c->Nq = c->Nk = thd ? 6 : 3;
        assert_int_equal(report_open(&report, &cli), EXIT_OK);
        assert_int_equal(problem_make(&problem, c), EXIT_OK);
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
        problem_free(&problem);
    }
    cli_free(&cli);
}

BETWEEN(enter_folder, leave_folder)
