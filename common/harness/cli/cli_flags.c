/* SPDX-License-Identifier: MIT
 *
 * cli_flags.c: the table of flags: what stands in --help, which stages have the flag, and where its
 * value goes. One table, so that help and parser cannot disagree. A value that needs more than its
 * kind says has a reader of its own: in cli.c, those of one stage in cli_stages.c.
 *
 * Interface: cli_flags, cli_find_flag, cli_nearest_flag, cli_read_..., cli_print_...
 * (cli_internal.h).
 */
#include "harness/bench/bench.h"
#include "harness/cli/cli_internal.h"
#include "harness/report/report.h"
#include "harness/report/source_hash.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- readers of values -------------------------------------------------------------------------*/

/* Strict, because "12x" read as 12 or 1e99 read as infinity would run an experiment that nobody
 * asked for. */

/* strtoll and strtod skip white space and accept more than a plain number: these are the only
 * characters that a decimal integer has. */
static int looks_like_int(const char *text)
{
    if (*text == '-' || *text == '+')
        text++;
    if (*text == '\0')
        return 0;
    for (; *text; text++)
        if (*text < '0' || *text > '9')
            return 0;
    return 1;
}

int cli_read_int(const char *flag, const char *text, int64_t min, int64_t max, int64_t *out)
{
    long long value;
    errno = 0;
    value = looks_like_int(text) ? strtoll(text, NULL, 10) : 0;
    if (!looks_like_int(text) || errno == ERANGE || value < min || value > max)
        return cli_refuse("%s: found '%s', accepted is an integer from %" PRId64 " to %" PRId64,
                          flag, text, min, max);
    *out = value;
    return 0;
}

int cli_read_u64(const char *flag, const char *text, uint64_t *out)
{
    unsigned long long value;
    errno = 0;
    value = looks_like_int(text) && *text != '-' ? strtoull(text, NULL, 10) : 0;
    if (!looks_like_int(text) || *text == '-' || errno == ERANGE)
        return cli_refuse("%s: found '%s', accepted is an integer from 0 to %" PRIu64, flag, text,
                          UINT64_MAX);
    *out = value;
    return 0;
}

int cli_parse_number(const char *text, float *out)
{
    char *end = NULL;
    /* no leading space, no hexadecimal, no "inf" or "nan" */
    int plain = text[0] != '\0' && strspn(text, "0123456789+-.eE") == strlen(text);
    *out = plain ? (float)strtod(text, &end) : 0.0f;
    return plain && *end == '\0' && fabsf(*out) <= 3.402823466e38f;
}

int cli_read_float(const char *flag, const char *text, int positive, float *out)
{
    float rounded;
    if (!cli_parse_number(text, &rounded) || rounded == 0.0f || (positive && rounded < 0.0f))
        return cli_refuse("%s: found '%s', accepted is a finite float32 number %s", flag, text,
                          positive ? "above 0" : "other than 0");
    *out = rounded;
    return 0;
}

int cli_read_window(const char *flag, const char *text, int64_t *left, int64_t *right)
{
    /* Positions are added to the window's ends: far from overflow at this size. */
    const int64_t max = (int64_t)1 << 40;
    const int plain = strspn(text, "0123456789+-,") == strlen(text);
    char rest;
    if (!plain || sscanf(text, "%" SCNd64 ",%" SCNd64 "%c", left, right, &rest) != 2 ||
        *left < -1 || *left > max || *right < -1 || *right > max)
        return cli_refuse("%s: found '%s', accepted is L,R with two integers from -1 (no limit) to "
                          "%" PRId64 ", such as 128,0",
                          flag, text, max);
    return 0;
}

int cli_read_name(const char *flag, const char *text, const char *names, int *out)
{
    const size_t length = strlen(text);
    char all[256] = "";
    size_t used = 0;
    int i = 0;
    for (const char *name = names, *end; name; name = *end ? end + 1 : NULL, i++) {
        end = name + strcspn(name, "|");
        if ((size_t)(end - name) == length && strncmp(name, text, length) == 0) {
            *out = i;
            return 0;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%.*s", i ? ", " : "",
                                 (int)(end - name), name);
    }
    return cli_refuse("%s: found '%s', accepted is one of %s", flag, text, all);
}

/* --- the table ---------------------------------------------------------------------------------*/

#define MANY      ((int64_t)1 << 40)
#define MAX_BLOCK ((int64_t)1 << 20)

/* Kinds of values. Of a flag for the whole program (per_program) the place is one in Cli. */
#define AT(field)            offsetof(CliCase, field)
#define SIZE(field, largest) .kind = TO_SIZE, .at = AT(field), .least = 1, .most = largest
#define INT(field, from, to) .kind = TO_INT, .at = AT(field), .least = from, .most = to
#define NAME(field)          .kind = TO_NAME, .at = AT(field)
#define PATH(place)          .kind = TO_PATH, .at = place
#define SWITCH(place, value) .kind = TO_SWITCH, .at = place, .least = value
#define BY(reader)           .kind = TO_READER, .read = reader
#define PAGE(printer)        .kind = TO_PAGE, .print = printer
#define OTHER(which, place)  .kind = which, .at = place

const CliFlag cli_flags[FLAG_COUNT] = {
    {"--batch", "B", "sequences in the batch (1)", SIZE(B, MANY), .alias = "-B", .group = "Sizes"},
    {"--heads", "H", "query heads (4)", SIZE(H, MANY), .alias = "-H"},
    {"--kv-heads", "HKV", "key/value heads, a divisor of H (as --heads)", SIZE(Hkv, MANY)},
    {"--seq", "N", "queries and keys (256)", BY(cli_read_seq_flag), .alias = "-N"},
    {"--seq-q", "NQ", "queries (as --seq)", SIZE(Nq, MANY)},
    {"--seq-kv", "NK", "keys (as --seq)", SIZE(Nk, MANY)},
    {"--head-dim", "D", "channels of a head: to 1024 on the CPU, to 256 on a GPU (64)",
     SIZE(d, CLI_MAX_D), .alias = "-d"},
    {"--dtype", "f32|f16|bf16|e4m3", "what tensors are stored in (f32)", NAME(dtype)},
    {"--rows", "R", "the softmax alone, on R rows; needs --cols", SIZE(rows, MANY),
     .feature = STAGE_HAS_ROWS_COLS},
    {"--cols", "C", "of C columns each", SIZE(cols, MANY), .feature = STAGE_HAS_ROWS_COLS},
    {"--sram", "M", "elements of fast memory that tile sizes are made from (32768)",
     SIZE(sram, MANY), .feature = STAGE_HAS_SRAM},
    {"--smem-limit", "BYTES",
     "shared memory of a block: CUDA variants that need more are skipped (no limit)",
     SIZE(smem_limit, MANY), .feature = STAGE_HAS_SMEM_LIMIT},
    {"--cu-seqlens-q", "FILE",
     "i4 or i8 [n+1]: n sequences in a row, the t-th from its entry t to entry t+1",
     PATH(AT(cu_q_file)), .feature = STAGE_HAS_VARLEN},
    {"--cu-seqlens-kv", "FILE", "the same for the keys", PATH(AT(cu_kv_file)),
     .feature = STAGE_HAS_VARLEN},

    {"--mask", "none|full|causal-upper-left|causal-lower-right",
     "(none); full without a file: random, every fifth row empty", BY(cli_read_mask_flag),
     .group = "Attention"},
    {"--causal", NULL, "the same as --mask causal-lower-right", BY(cli_read_causal_flag)},
    {"--mask-file", "M.npy",
     "u1 or bool [Nq][Nk], 1 = masked OUT (PyTorch: the opposite); needs --mask full",
     PATH(AT(mask_file))},
    {"--window", "L,R",
     "keys from L before to R after the query, -1 = no limit; causal makes R 0 (-1,-1)",
     BY(cli_read_window_flag)},
    {"--scale", "X", "multiplies q.k (1/sqrt(d))", BY(cli_read_scale_flag)},
    {"--softcap", "X", "scores become X*tanh(s/X) (off)", BY(cli_read_softcap_flag)},
    {"--temperature", "X", "scores become s/X, unless there is a cap (1)",
     OTHER(TO_REAL, AT(temperature)), .feature = STAGE_HAS_OFFLINE},
    {"--clip", "L,R", "weights P become (R-L)*P+L between 0 and 1; L <= 0, R >= 1 (0,1)",
     BY(cli_read_clip_flag), .feature = STAGE_HAS_OFFLINE},
    {"--dropout", "P",
     "probability that a weight becomes 0, from --seed; the others grow by 1/(1-P) (0)",
     BY(cli_read_dropout_flag), .feature = STAGE_HAS_OFFLINE},
    {"--qk-norm", "GROUP",
     "Q and K normalised over groups of so many channels, a divisor of d (off)",
     SIZE(norm_group, CLI_MAX_D), .feature = STAGE_HAS_OFFLINE},

    {"--seed", "S", "of the random inputs (0)", OTHER(TO_U64, AT(seed)), .group = "Inputs"},
    {"--dist", "normal|outlier|large|paired", "their distribution (normal); paired: V = K, dO = Q",
     NAME(dist)},
    {"--bundled", "[=encoder|causal]",
     "real: encoder (12 heads, d=32) or causal (4/2, d=64, its dO; --causal if no --mask)",
     BY(cli_read_bundled_flag)},
    {"--q", "Q.npy", "f2, f4 or f8 [B][Nq][H][d]; with --k and --v", PATH(AT(q_file))},
    {"--k", "K.npy", "[B][Nk][Hkv][d]; sizes come from the files", PATH(AT(k_file))},
    {"--v", "V.npy", "[B][Nk][Hkv][d]", PATH(AT(v_file))},
    {"--do", "DO.npy", "[B][Nq][H][d], for the gradients (random)", PATH(AT(do_file)),
     .feature = STAGE_HAS_BACKWARD | STAGE_ALWAYS_BACKWARD},
    {"--wq", "WQ.npy", "[H*d], weights of --qk-norm; with --wk (random, around 1)",
     PATH(AT(wq_file)), .feature = STAGE_HAS_OFFLINE},
    {"--wk", "WK.npy", "[HKV*d]", PATH(AT(wk_file)), .feature = STAGE_HAS_OFFLINE},
    {"--tensor-layout", "bshd|sbhd|thd",
     "of files and saved tensors; thd: [tokens][heads][d] with --cu-seqlens-* (bshd)",
     NAME(tensors), .feature = STAGE_HAS_OFFLINE},
    {"--pack", "q_k_v|q_kv|qkv",
     "tensors side by side on the heads axis: --k holds K,V; --q holds all (q_k_v)", NAME(pack),
     .feature = STAGE_HAS_OFFLINE},
    {"--strides", "bshd|sbhd|bhsd|odd",
     "how tensors lie in memory; odd: gaps and odd offsets (bshd)", NAME(layout)},
    {"--cases", "FILE",
     "many cases: each line holds flags, laid over those given here; # starts a comment line",
     PATH(offsetof(Cli, cases_file)), .per_program = 1},

    {"--device", "auto|cpu|cuda", "auto: the CPU, and a GPU that is there (auto)", NAME(device),
     .group = "What runs"},
    {"--variant", "NAME|all", "a name of --list (all)", BY(cli_read_variant_flag)},
    {"--method", "auto|all|NAME",
     "the same as --variant; auto: a planner picks it and the layout, and says why",
     BY(cli_read_variant_flag), .feature = STAGE_HAS_RANKS},
    {"--variant-so", "FILE.so", "your own implementation, run isolated and with limits",
     PATH(AT(variant_so))},
    {"--judge", "DIR",
     "judge o.npy lse.npy (dq dk dv) of any program, as --save writes them, and run nothing",
     PATH(AT(judge_dir))},
    {"--so-time", "S", "its seconds a case (60)", OTHER(TO_SECONDS, offsetof(Cli, so_seconds)),
     .per_program = 1},
    {"--so-sandbox", "off|strict",
     "off: another process and limits, no sandbox; for debugging (strict where possible)",
     OTHER(TO_NAME, offsetof(Cli, so_sandbox)), .per_program = 1},
    {"--so-memory", "MIB", "its memory in MiB (4096)", .kind = TO_SIZE,
     .at = offsetof(Cli, so_mebibytes), .least = 1, .most = (int64_t)1 << 30, .per_program = 1},
    {"--threads", "T", "CPU threads (all cores)", INT(threads, 1, CLI_MAX_THREADS)},
    {"--block-q", "B", "queries of a step of the online variants (64)", SIZE(block_q, MAX_BLOCK),
     .feature = STAGE_HAS_OFFLINE},
    {"--block-kv", "B", "and its keys (64)", SIZE(block_kv, MAX_BLOCK),
     .feature = STAGE_HAS_OFFLINE},
    {"--order", "rows|columns|diagonal|random", "of the steps (rows)", NAME(order),
     .feature = STAGE_HAS_OFFLINE},
    {"--backward", NULL, "gradients as well: dQ, dK, dV", SWITCH(AT(backward), 1),
     .feature = STAGE_HAS_BACKWARD},
    {"--deterministic", NULL,
     "the same bits on every run: variants that cannot promise it are skipped (off)",
     SWITCH(AT(deterministic), 1), .feature = STAGE_HAS_DETERMINISTIC},
    {"--check", NULL, "judge outputs by the float64 oracle (on)", SWITCH(AT(check), 1)},
    {"--no-check", NULL, "do not: rows are then never plotted", SWITCH(AT(check), 0)},
    {"--bench", NULL, "time several repetitions (one run)", SWITCH(AT(bench), 1)},
    {"--warmup", "W", "untimed runs before --bench (3)", INT(warmup, 0, BENCH_MAX_SAMPLES)},
    {"--iters", "I", "timed runs of --bench (20)", INT(iters, 1, BENCH_MAX_SAMPLES)},

    {"--ranks", "G", "ranks that share the tokens, to 64 (4; under mpirun its number)",
     SIZE(ring.ranks, CLI_MAX_RANKS), .also = AT(ring.ranks_given), .feature = STAGE_HAS_RANKS,
     .group = "Ranks"},
    {"--transport", "sim|mpi|nccl",
     "threads of this process, processes of mpirun, one GPU a rank (sim)", NAME(ring.transport),
     .feature = STAGE_HAS_RANKS},
    {"--layout", "contiguous|zigzag|striped",
     "which tokens a rank has (causal without a window: zigzag, else contiguous)",
     NAME(ring.layout), .also = AT(ring.layout_given), .feature = STAGE_HAS_RANKS},
    {"--nodes", "M", "of G/M ranks each, for double rings (1; double rings of an even G: 2)",
     SIZE(ring.nodes, CLI_MAX_RANKS), .feature = STAGE_HAS_RANKS},
    {"--link", "nccl|copy",
     "--transport nccl: who moves bytes, NCCL's kernels or the copy engines (nccl)",
     NAME(ring.link), .feature = STAGE_HAS_RANKS},
    {"--partials", "f32|bf16",
     "what O and travelling gradients are rounded to after every step (f32)",
     BY(cli_read_partials_flag), .feature = STAGE_HAS_RANKS},
    {"--timeout", "S", "seconds that one wait may take (60)", OTHER(TO_SECONDS, AT(ring.timeout_s)),
     .feature = STAGE_HAS_RANKS},
    {"--seed-schedule", "S",
     "sim: ranks in turns and messages late, as unkindly as this seed wants (off)",
     OTHER(TO_U64, AT(ring.schedule_seed)), .also = AT(ring.adversarial),
     .feature = STAGE_HAS_RANKS},
    {"--inject", "KIND@RANK:STEP",
     "a fault: drop, duplicate, corrupt or delay a message, or exit (off)",
     BY(cli_read_inject_flag), .feature = STAGE_HAS_RANKS},
    {"--verify-hops", NULL, "a number and a checksum travel with every message (off)",
     SWITCH(AT(ring.verify_hops), 1), .feature = STAGE_HAS_RANKS},

    {"--json", "FILE", "append one JSON object a row", PATH(offsetof(Cli, json_file)),
     .per_program = 1, .group = "Output"},
    {"--save", "DIR",
     "o.npy lse.npy (dq dk dv) of the first variant; with --cases DIR/<line number>",
     PATH(AT(save_dir))},
    {"--trace", NULL, "show a small case at work: matrices (N to 8, d to 8), blocks, or ranks (16)",
     SWITCH(AT(trace), 1), .feature = STAGE_HAS_TRACE},
    {"--step", NULL,
     "with --trace: a tile, block or hop a page (N to 6, d to 4); Enter next, b back, q end; no "
     "table",
     SWITCH(AT(step), 1), .feature = STAGE_HAS_TRACE},
    {"--trace-json", "FILE", "who computes, sends and receives when, for ui.perfetto.dev",
     PATH(AT(ring.trace_json)), .feature = STAGE_HAS_RANKS},
    {"--quiet", NULL, "no table and no notes, only failures", SWITCH(offsetof(Cli, quiet), 1),
     .per_program = 1},
    {"--list", NULL,
     "the variants: name, device, dtypes, directions, cases (any; full, plain: rungs), idea",
     PAGE(cli_print_list), .per_program = 1},
    {"--version", NULL, "revision and ABI version", PAGE(cli_print_version), .per_program = 1},
    {"--help", NULL, "this page", PAGE(cli_print_help), .alias = "-h", .per_program = 1},
};

const CliFlag *cli_find_flag(const char *text, size_t length)
{
    for (int i = 0; i < FLAG_COUNT; i++) {
        const CliFlag *f = &cli_flags[i];
        if ((strlen(f->name) == length && strncmp(f->name, text, length) == 0) ||
            (f->alias && strlen(f->alias) == length && strncmp(f->alias, text, length) == 0))
            return f;
    }
    return NULL;
}

const char *cli_given(const CliGiven *given, const char *names)
{
    while (*names) {
        const size_t length = strcspn(names, " ");
        const CliFlag *f = cli_find_flag(names, length);
        if (!f)
            abort(); /* no flag has this name */
        if (given->flag[f - cli_flags])
            return f->name;
        names += names[length] ? length + 1 : length;
    }
    return NULL;
}

/* Levenshtein distance, one row at a time; longer words than any flag are far from all. */
static int edit_distance(const char *a, size_t a_length, const char *b)
{
    enum { LONGEST = 32 };
    int row[LONGEST + 1];
    size_t i, j, b_length = strlen(b);
    if (a_length > LONGEST || b_length > LONGEST)
        return LONGEST;
    for (j = 0; j <= b_length; j++)
        row[j] = (int)j;
    for (i = 1; i <= a_length; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (j = 1; j <= b_length; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            diagonal = row[j];
            row[j] = replace < best ? replace : best;
        }
    }
    return row[b_length];
}

const CliFlag *cli_nearest_flag(const Stage *stage, const char *text, size_t length)
{
    const CliFlag *nearest = NULL;
    int i, distance, best = 4; /* more typing errors than 3, or half of the word: another word */
    for (i = 0; i < FLAG_COUNT; i++) {
        const CliFlag *f = &cli_flags[i];
        if (f->feature && !(f->feature & stage->features))
            continue;
        distance = edit_distance(text, length, f->name);
        if (distance < best && distance * 2 <= (int)strlen(f->name) - 2) {
            best = distance;
            nearest = f;
        }
    }
    return nearest;
}

/* --- --help, --list, --version -----------------------------------------------------------------*/

void cli_print_help(const Stage *stage)
{
    const char *heading = NULL;
    printf("%s: %s\n\nusage: %s [flags]        (--flag VALUE or --flag=VALUE)\n", stage->name,
           stage->question, stage->name);
    for (int i = 0; i < FLAG_COUNT; i++) {
        const CliFlag *f = &cli_flags[i];
        char left[128];
        int length;
        heading = f->group ? f->group : heading;
        if (f->feature && !(f->feature & stage->features))
            continue;
        if (heading) /* of the first flag of its group that this stage has */
            printf("\n%s\n", heading);
        heading = NULL;
        length = snprintf(left, sizeof left, "  %s%s%s%s%s", f->alias ? f->alias : "",
                          f->alias ? " " : "", f->name, f->value && f->value[0] != '[' ? " " : "",
                          f->value ? f->value : "");
        printf(length > 27 ? "%s\n%30s%s\n" : "%-30s%s%s\n", left, "", f->help);
    }
    if (stage->features & STAGE_HAS_OFFLINE)
        printf("\nWithout sizes, masks, a window and input files: causal, window 16.\n");
    printf("\nExit status: 0 right, 1 wrong answer or failed --variant-so, 2 bad usage or input,\n"
           "3 failure at run time, 77 hardware asked for is missing; of several cases the worst\n"
           "(2, then 3, then 1, then 77).\n"
           "\nExamples\n"
           "  %s -N 300 --heads 8 --kv-heads 2 --causal --dtype bf16\n"
           "  %s --bundled --bench --json results.jsonl\n",
           stage->name, stage->name);
}

void cli_print_list(const Stage *stage)
{
    for (int i = 0; i < stage->variant_count; i++) {
        const Variant *v = &stage->variants[i];
        const int ranks = (v->traits & VARIANT_RANKS) != 0;
        const char *passes = variant_has(v, 1) || ranks ? "forward,backward"
                             : variant_has(v, 0)        ? "forward"
                                                        : "(not built)"; /* it needs CUDA */
        const char *dtypes = v->dtypes == DTYPES_ALL     ? "f32,f16,bf16"
                             : v->dtypes == DTYPES_F32   ? "f32"
                             : v->dtypes == DTYPES_16BIT ? "f16,bf16"
                             : v->dtypes == DTYPES_E4M3  ? "e4m3"
                                                         : "other";
        printf("%-20s  %-4s  %-12s  %-16s  %-5s  %s\n", v->name,
               v->device == ON_CPU ? "cpu" : "cuda", dtypes, passes,
               v->traits & VARIANT_PLAIN  ? "plain"
               : v->traits & VARIANT_FULL ? "full"
                                          : "any",
               v->idea);
    }
}

void cli_print_version(const Stage *stage)
{
    printf("%s (Attention Ladder) %s, ABI version %d, JSON schema %d\n", stage->name,
           build_revision(), stage->abi_version, REPORT_SCHEMA);
}
