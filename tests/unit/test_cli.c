/* SPDX-License-Identifier: MIT
 *
 * test_cli.c: what cli_parse makes of flags. That bad usage ends programs as it should is the
 * business of tests/stages/test_bad_usage.py; here are the values, the overlays of --cases and the
 * strict readers at their edges.
 */
#include "cli_lines.h"

#include "harness/cli/cli_internal.h"
#include "harness/device/device.h"

static const Variant variants[] = {
    {"v0_plain", ON_CPU, DTYPES_ALL, nothing, nothing, 0, "plain"},
    {"v1_fast", ON_CPU, DTYPES_F32, nothing, NULL, 0, "fast"},
    {"v0_gpu", ON_CUDA, DTYPES_16BIT, NULL, NULL, 0, "gpu"},
    {"v1_bytes", ON_CUDA, DTYPES_E4M3, NULL, NULL, 0, "bytes"},
};
enum { FEATURES = STAGE_HAS_BACKWARD | STAGE_HAS_ROWS_COLS | STAGE_HAS_TRACE };
static const Stage stage = {"unit", "00_unit", "What is tested?", 1, FEATURES, variants, 4};

TEST(defaults)
{
    CliCase c = accepted("");
    assert_true(c.B == 1 && c.H == 4 && c.Hkv == 4 && c.Nq == 256 && c.Nk == 256 && c.d == 64);
    assert_true(c.dtype == ATTN_F32 && c.mask == ATTN_MASK_NONE && !c.window_given);
    assert_true(c.window_left == -1 && c.window_right == -1 && c.scale == 0.0f &&
                c.softcap == 0.0f);
    assert_true(c.seed == 0 && c.dist == FILL_NORMAL && c.layout == LAYOUT_BSHD && !c.bundled);
    assert_true(c.check && !c.bench && !c.backward && !c.trace && c.warmup == 3 && c.iters == 20);
    assert_true(c.threads >= 1 && c.rows == 0 && c.cols == 0 && c.line == 0);
    assert_string_equal(c.variant, "all");
}

TEST(values)
{
    CliCase c = accepted("-B 2 --heads=6 --kv-heads 3 --seq 17 --seq-kv 300 -d 59 --dtype bf16 "
                         "--mask causal-upper-left --window 16,5 --scale -2.5e-1 --softcap 30 "
                         "--seed 18446744073709551615 --dist large --strides odd --threads 3 "
                         "--bench --warmup 0 --iters 1000 --no-check --backward --device cpu "
                         "--variant v0_plain");
    assert_true(c.B == 2 && c.H == 6 && c.Hkv == 3 && c.Nq == 17 && c.Nk == 300 && c.d == 59);
    assert_true(c.dtype == ATTN_BF16 && c.mask == ATTN_MASK_CAUSAL_UPPER_LEFT);
    assert_true(c.window_left == 16 && c.window_right == 0); /* causal makes R 0 */
    assert_true(c.scale == -0.25f && c.softcap == 30.0f && c.seed == UINT64_MAX);
    assert_true(c.dist == FILL_LARGE && c.layout == LAYOUT_ODD && c.threads == 3);
    assert_true(c.bench && c.warmup == 0 && c.iters == 1000 && !c.check && c.backward);
    /* the last of two flags counts, and --seq sets both sides */
    c = accepted("--seq-q 5 --seq 7 --seq-kv 9 -N=11 --seq-q 3");
    assert_true(c.Nq == 3 && c.Nk == 11);
    c = accepted("--window -1,4");
    assert_true(c.window_left == -1 && c.window_right == 4 && c.window_given);
    c = accepted("--causal --mask causal-lower-right");
    assert_true(c.mask == ATTN_MASK_CAUSAL_LOWER_RIGHT && c.window_right == 0);
    c = accepted("--rows 7 --cols 1000");
    assert_true(c.rows == 7 && c.cols == 1000);
    c = accepted("--bundled");
    assert_true(c.bundled == CLI_BUNDLED_ENCODER && c.B == 0 && c.Nq == 0); /* the files decide */
    c = accepted("--bundled=encoder");
    assert_true(c.bundled == CLI_BUNDLED_ENCODER && c.mask == ATTN_MASK_NONE);
    /* the mask it was trained with, unless there is another */
    c = accepted("--bundled=causal --window 9,9");
    assert_true(c.bundled == CLI_BUNDLED_CAUSAL && c.B == 0 && c.d == 0);
    assert_true(c.mask == ATTN_MASK_CAUSAL_LOWER_RIGHT && c.window_right == 0);
    assert_int_equal(accepted("--mask none --bundled=causal").mask, ATTN_MASK_NONE);
    assert_int_equal(accepted("--bundled=causal --mask full").mask, ATTN_MASK_FULL);
    accepted("--bundled=causal --causal");
    c = accepted("--trace");
    assert_true(c.trace && c.Nq == 4 && c.Nk == 4 && c.d == 4 && c.H == 1);
}

TEST(edges_of_numbers)
{
    CliCase c;
    each_line(expect_refused,
              "-N ++5|-N 5.0|-N 0x10|-N -|-N 1,5|-B 1099511627777|--seed 1e3|--seed +-1|"
              "--scale 1e39|--scale 1.1e18|--scale -2e18|--scale 1e-50|--scale -inf|"
              "--scale 0x1p3|--scale 1.5f|--scale .|--scale -0.0|--softcap nan|--softcap -1e-3|"
              "--window ,|--window 1|--window -1,-2|--window 1,2x|"
              "--window 99999999999999999999,0|--threads 257|--warmup 1001 --bench|"
              "--iters 1001 --bench|--so-time 1e9|--so-time -3|--so-memory 9999999999");
    c = accepted("-N +5");
    assert_true(c.Nq == 5);
    c = accepted("--scale -1e18");
    assert_true(c.scale == -1e18f);
    c = accepted("--softcap 1e38");
    assert_true(c.softcap == 1e38f);
    c = accepted("-d 1024");
    assert_true(c.d == 1024);
    c = accepted("--window 1099511627776,-1");
    assert_true(c.window_left == (int64_t)1 << 40);
}

TEST(conflicts)
{
    each_line(expect_refused,
              "--variant v0_gpu --device cpu|--variant v0_plain --device cuda|"
              "--variant v1_fast --dtype f16|--variant v1_fast --backward|"
              "--device cuda --dtype f32|--variant v0_gpu --dtype bf16 -d 257|"
              "--device cuda --dtype f16 -d 257|--rows 3 --cols 4 --save x|"
              "--rows 3 --cols 4 --backward|--bundled=causal --do x|"
              "--bundled=causal --q a --k b --v c|--q a --k b --v c --dist normal|--trace -N 9");
    accepted("--bundled --backward --dist large"); /* of the random dO */
    accepted("--dtype f16");                       /* one variant of two on the CPU can */
}

TEST(selection)
{
    Cli cli;
    const Variant *v;
    assert_int_equal(parse(&cli, "--device cpu"), CLI_CONTINUE);
    v = cli_next_variant(&cli, &cli.cases[0], NULL);
    assert_ptr_equal(v, &variants[0]);
    v = cli_next_variant(&cli, &cli.cases[0], v);
    assert_ptr_equal(v, &variants[1]);
    assert_null(cli_next_variant(&cli, &cli.cases[0], v));
    cli_free(&cli);
    /* /bin/sh stands for any file that can be read: nothing is loaded here */
    assert_int_equal(parse(&cli, "--variant-so /bin/sh"), CLI_CONTINUE);
    v = cli_next_variant(&cli, &cli.cases[0], NULL);
    assert_ptr_equal(v, &cli.cases[0].so);
    assert_string_equal(v->name, "sh");
    assert_null(cli_next_variant(&cli, &cli.cases[0], v));
    cli_free(&cli);
    assert_int_equal(parse(&cli, "--variant-so /bin/sh --variant v1_fast"), CLI_CONTINUE);
    v = cli_next_variant(&cli, &cli.cases[0], NULL);
    assert_ptr_equal(v, &variants[1]);
    v = cli_next_variant(&cli, &cli.cases[0], v);
    assert_ptr_equal(v, &cli.cases[0].so);
    cli_free(&cli);
}

/* Without one every variant would be skipped, and nothing would be said. */
TEST(bytes_want_a_gpu)
{
    Cli cli;
    const int status = parse(&cli, "--dtype e4m3 -d 128");
    assert_int_equal(status, device_count() > 0 ? CLI_CONTINUE : EXIT_USAGE);
    if (status == CLI_CONTINUE)
        cli_free(&cli);
    assert_int_equal(parse(&cli, "--dtype e4m3 -d 128 --device cuda"), CLI_CONTINUE);
    cli_free(&cli);
    assert_int_equal(parse(&cli, "--dtype e4m3 -d 128 --device cpu"), EXIT_USAGE);
}

TEST(pages_end_the_program)
{
    Cli cli;
    assert_int_equal(parse(&cli, "--help"), EXIT_OK);
    assert_int_equal(parse(&cli, "-h"), EXIT_OK);
    assert_int_equal(parse(&cli, "--list"), EXIT_OK);
    assert_int_equal(parse(&cli, "--version"), EXIT_OK);
    assert_int_equal(parse(&cli, "-N 5 --help"), EXIT_OK);
    assert_int_equal(parse(&cli, "-N 0 --help"), EXIT_USAGE); /* in the order of the words */
}

static char *write_cases(const char *text)
{
    static char path[64];
    FILE *f;
    snprintf(path, sizeof path, "test_cli_cases.%ld", (long)getpid());
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static int parse_cases(Cli *cli, const char *flags, const char *text)
{
    char line[512];
    char *path = write_cases(text);
    int status;
    snprintf(line, sizeof line, "%s --cases %s", flags, path);
    status = parse(cli, line);
    unlink(path);
    return status;
}

TEST(cases_overlay)
{
    Cli cli;
    const CliCase *c;
    assert_int_equal(parse_cases(&cli, "-d 8 --dtype f16 --mask full --mask-file m.npy",
                                 "# first\n-N 5\n\n\t --causal   -N 6 \r\n-d 16 --mask full\n-N 7"),
                     CLI_CONTINUE);
    assert_int_equal(cli.case_count, 4);
    c = cli.cases;
    assert_true(c[0].line == 2 && c[0].Nq == 5 && c[0].d == 8 && c[0].dtype == ATTN_F16);
    assert_string_equal(c[0].mask_file, "m.npy");
    /* a line overrides the mask of the command line, and with it the mask's file */
    assert_true(c[1].line == 4 && c[1].mask == ATTN_MASK_CAUSAL_LOWER_RIGHT && !c[1].mask_file);
    assert_true(c[2].line == 5 && c[2].d == 16 && c[2].Nq == 256);
    assert_true(c[3].line == 6 && c[3].Nq == 7 && c[3].mask == ATTN_MASK_FULL);
    cli_free(&cli);
    /* the mask that --bundled=causal brings is not "given": it goes with the inputs of the line */
    assert_int_equal(parse_cases(&cli, "--bundled=causal", "--seed 1\n--bundled\n--mask none\n"),
                     CLI_CONTINUE);
    c = cli.cases;
    assert_true(c[0].mask == ATTN_MASK_CAUSAL_LOWER_RIGHT && c[0].bundled == CLI_BUNDLED_CAUSAL);
    assert_true(c[1].mask == ATTN_MASK_NONE && c[1].bundled == CLI_BUNDLED_ENCODER);
    assert_true(c[2].mask == ATTN_MASK_NONE && c[2].bundled == CLI_BUNDLED_CAUSAL);
    cli_free(&cli);
}

TEST(cases_refused)
{
    static const char *const bad[] = {"",
                                      "\n#x\n",
                                      "-N 5\n-N 0\n",
                                      "-N 5\n--json x\n",
                                      "--cases x\n",
                                      "--help\n",
                                      "-N 5 --mask-file m.npy\n",
                                      "--causal --mask none\n"};
    Cli cli;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (parse_cases(&cli, "", bad[i]) != EXIT_USAGE)
            fail_msg("accepted: %s", bad[i]);
}

TEST(recorded_command)
{
    Cli cli;
    assert_int_equal(
        parse(&cli, "-N 8 --mask full --mask-file=/a/m.npy --json /home/me/r.jsonl --save out"),
        CLI_CONTINUE);
    assert_string_equal(cli.command,
                        "unit -N 8 --mask full --mask-file=m.npy --json r.jsonl --save out");
    cli_free(&cli);
}

TEST(worst_status)
{
    static const int order[] = {EXIT_OK, EXIT_NO_DEVICE, EXIT_WRONG, EXIT_RUNTIME, EXIT_USAGE};
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            assert_int_equal(exit_worst(order[i], order[j]), order[i > j ? i : j]);
}

TEST(suggestions)
{
    static const Stage bare = {"unit", "00_unit", "?", 1, 0, variants, 3};
    assert_string_equal(cli_nearest_flag(&stage, "--hed", 5)->name, "--heads");
    assert_string_equal(cli_nearest_flag(&stage, "--headdim", 9)->name, "--head-dim");
    assert_string_equal(cli_nearest_flag(&stage, "--bakward", 9)->name, "--backward");
    assert_null(cli_nearest_flag(&stage, "--frobnicate", 12));
    assert_null(cli_nearest_flag(&bare, "--bakward", 9)); /* not a flag of that stage */
}

TEST(table_of_flags)
{
    for (int i = 0; i < FLAG_COUNT; i++) {
        const CliFlag *f = &cli_flags[i];
        assert_ptr_equal(cli_find_flag(f->name, strlen(f->name)), f);
        if (f->alias)
            assert_ptr_equal(cli_find_flag(f->alias, strlen(f->alias)), f);
        assert_non_null(f->help);
    }
}
