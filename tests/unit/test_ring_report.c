/* SPDX-License-Identifier: MIT
 *
 * test_ring_report.c: what a row of stage 06 says of ranks, bytes and memory, in JSON and in the
 * table; what it says where there are no ranks (a --variant-so), and where there is no place for it
 * any more; and that partial sums in bf16 widen the bound by as many roundings as they may have, no
 * more.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

#include "check/judge.h"
#include "report/report_internal.h"

static const Variant variants[] = {
    {"burst", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS, "burst"}};
static const Stage stage = {
    "unit",   "00_unit", "?", 1, STAGE_HAS_BACKWARD | STAGE_HAS_DETERMINISTIC | STAGE_HAS_RANKS,
    variants, 1};

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

/* One row of these flags, its JSON in text and its lines of the table in table. */
static void make_row(const char *flags, const RingResult *ring, const Check *check, char text[8192],
                     char table[4096])
{
    char line[512], *argv[32] = {"unit"}, *rest = NULL;
    int argc = 1;
    Cli cli;
    Report report;
    Problem problem;
    RunResult out;
    FILE *f;
    snprintf(line, sizeof line, "-N 3 -H 1 -d 2 --json rows.jsonl %s", flags);
    for (char *w = strtok_r(line, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    assert_int_equal(cli_parse(&cli, &stage, argc, argv), CLI_CONTINUE);
    assert_int_equal(report_open(&report, &cli), EXIT_OK);
    assert_int_equal(problem_make(&problem, &cli.cases[0]), EXIT_OK);
    memset(&out, 0, sizeof out);
    out.ran = 1;
    out.args = problem.args;
    out.ring = ring;
    {
        ReportRow row = {&cli.cases[0], &problem, &variants[0], &out, check, 0.0, {0}};
        const int saved = dup(STDOUT_FILENO);
        FILE *lines = tmpfile();
        size_t length;
        assert_non_null(lines);
        fflush(stdout);
        dup2(fileno(lines), STDOUT_FILENO);
        report_row(&report, &row);
        fflush(stdout);
        dup2(saved, STDOUT_FILENO);
        close(saved);
        rewind(lines);
        length = fread(table, 1, 4095, lines);
        table[length] = '\0';
        fclose(lines);
    }
    assert_int_equal(report_close(&report), EXIT_OK);
    problem_free(&problem);
    cli_free(&cli);
    f = fopen("rows.jsonl", "r");
    assert_non_null(f);
    text[fread(text, 1, 8191, f)] = '\0';
    fclose(f);
    unlink("rows.jsonl");
}

static void expect(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("%s is not in %s", part, text);
}

TEST(ranks_in_json)
{
    char text[8192], table[4096];
    Check check;
    memset(&check, 0, sizeof check);
    check.pass = 1;
    check.array[CHECK_O] = (CheckArray){.name = "O", .checked = 1, .max_error = 0.5};
    make_row("--ranks 3 --layout striped --backward --seed-schedule 18446744073709551615 "
             "--inject drop@2:9 --verify-hops --partials bf16",
             &three, &check, text, table);
    expect(text, "\"ranks\":3,\"transport\":\"sim\",\"method\":\"burst\",\"layout\":\"striped\","
                 "\"nodes\":1,\"link\":null,\"partials\":\"bf16\",\"sequences\":1,"
                 "\"seed_schedule\":18446744073709551615,\"inject\":\"drop@2:9\","
                 "\"verify_hops\":true,\"sent_bytes\":[10,20,30],"
                 "\"sent_bytes_backward\":[1,2,3000],\"outer_bytes\":0,\"rank_peak_bytes\":[7,8,9],"
                 "\"rank_peak_model_bytes\":[7,8,10],\"workspace_bytes\":64,"
                 "\"errors\":{\"O\":0.5},\"hidden\":0.25,\"hidden_backward\":null");
    expect(text, "\"link_bytes\":3063,");
    expect(table, "# 3 ranks (sim), striped layout, bf16 partials, schedule 18446744073709551615, "
                  "drop at rank 2 step 9, hops verified\n");
    expect(table, "sent/rank     %hidden\n");
    expect(table, "    3.0 KiB        25.0\n"); /* the rank that sends most, both passes */
    assert_null(strstr(text, ":nan"));
}

TEST(no_ranks)
{
    char text[8192], table[4096];
    make_row("--ranks 3 --nodes 3", NULL, NULL, text, table);
    expect(text, "\"ranks\":1,\"transport\":null,\"method\":null,\"layout\":null,\"nodes\":null,");
    expect(text, "\"seed_schedule\":null,\"inject\":null,\"verify_hops\":false,\"sent_bytes\":[],"
                 "\"sent_bytes_backward\":[],");
    expect(text, "\"link_bytes\":0,");
    expect(text, "\"errors\":null,\"hidden\":null,\"hidden_backward\":null");
    expect(table, "# 3 ranks (sim), contiguous layout on 3 nodes\n");
    expect(table, "          -           -\n");
}

/* Bounds of one case: those of float32, those with partials, and what dtype bf16 would have. */
TEST(partials_widen_the_bound)
{
    char *plain[] = {"unit", "-N", "5", "-H", "1", "-d", "2", "--ranks", "1"};
    char *rounded[] = {"unit", "-N",      "5", "-H",         "1",   "-d",
                       "2",    "--ranks", "1", "--partials", "bf16"};
    const double u = 0x1p-8, allowed = 2.0 * u * (1.0 + u) * (1.0 + u);
    Cli a, b;
    Problem problem;
    Reference f32, partial;
    assert_int_equal(cli_parse(&a, &stage, 9, plain), CLI_CONTINUE);
    assert_int_equal(cli_parse(&b, &stage, 11, rounded), CLI_CONTINUE);
    assert_int_equal(problem_make(&problem, &a.cases[0]), EXIT_OK);
    assert_int_equal(reference_make(&f32, &problem, &a.cases[0]), EXIT_OK);
    assert_int_equal(reference_make(&partial, &problem, &b.cases[0]), EXIT_OK);
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
    problem_free(&problem);
    cli_free(&a);
    cli_free(&b);
}

/* The folder is there when --json is tried, and gone when the first row comes. */
TEST(no_place)
{
    char *argv[] = {"unit", "-N", "1",       "-H",     "1",
                    "-d",   "1",  "--quiet", "--json", "gone/rows.jsonl"};
    char folder[] = "test_ring_report.XXXXXX";
    Cli cli;
    Report report;
    Problem problem;
    RunResult out = {.failure = "it did not run", .ring = &three};
    assert_non_null(mkdtemp(folder));
    assert_true(chdir(folder) == 0 && mkdir("gone", 0777) == 0);
    assert_int_equal(cli_parse(&cli, &stage, 10, argv), CLI_CONTINUE);
    assert_int_equal(report_open(&report, &cli), EXIT_OK);
    assert_int_equal(rmdir("gone"), 0); /* empty: trying has left nothing */
    assert_int_equal(problem_make(&problem, &cli.cases[0]), EXIT_OK);
    out.args = problem.args;
    {
        ReportRow row = {&cli.cases[0], &problem, &variants[0], &out, NULL, 0.0, {0}};
        report_row(&report, &row);
        report_row(&report, &row);
    }
    assert_int_equal(report_close(&report), EXIT_RUNTIME);
    assert_true(chdir("..") == 0 && rmdir(folder) == 0);
    problem_free(&problem);
    cli_free(&cli);
}
