/* SPDX-License-Identifier: MIT
 *
 * fuzz_cli.c: libFuzzer target of the command line. The first byte chooses the door: bit 0 clear,
 * the rest is a command line with a NUL behind each word; set, the rest is the text of a --cases
 * file. Bit 1 chooses the program: one with stage 05's flags, or one with stage 06's. Only --cases
 * itself is kept out: it would read files of this machine.
 *
 * The parser speaks on stdout and stderr: run it with -close_fd_mask=3.
 * Found values must satisfy what the rest of the suite relies on; a violation traps.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/bench/bench.h"
#include "harness/cli/cli_internal.h"

static AttnStatus nothing(const AttnArgs *args)
{
    (void)args;
    return ATTN_OK;
}

static const Variant variants[] = {
    {"v0_loops", ON_CPU, DTYPES_ALL, nothing, nothing, 0, "plain"},
    {"v1_cuda", ON_CUDA, DTYPES_16BIT, NULL, NULL, 0, "gpu"},
};
enum {
    OFFLINE = STAGE_HAS_BACKWARD | STAGE_HAS_ROWS_COLS | STAGE_HAS_TRACE | STAGE_HAS_VARLEN |
              STAGE_HAS_OFFLINE,
    RANKS = STAGE_HAS_BACKWARD | STAGE_HAS_TRACE | STAGE_HAS_DETERMINISTIC | STAGE_HAS_VARLEN |
            STAGE_HAS_RANKS
};
static const Stage stage = {"fuzz", "00_fuzz", "What breaks it?", 1, OFFLINE, variants, 2};
/* A stage over ranks: --cu-seqlens-* mean something else there, and names come twice. */
static const Variant methods[] = {
    {"ring", ON_CPU, DTYPES_ALL, NULL, NULL, VARIANT_RANKS, "cpu"},
    {"ring", ON_CUDA, DTYPES_16BIT, NULL, NULL, VARIANT_RANKS, "gpu"},
};
static const Stage ranks = {"fuzz", "00_fuzz", "What breaks it?", 1, RANKS, methods, 2};

static void demand(int condition)
{
    if (!condition)
        __builtin_trap();
}

/* What only stage 05 knows. */
static void look_at_options(const CliCase *c)
{
    demand(c->temperature > 0.0f && c->temperature - c->temperature == 0.0f);
    demand(c->clip_low <= 0.0f && c->clip_low >= -1e6f);
    demand(c->clip_high >= 1.0f && c->clip_high <= 1e6f);
    demand(c->dropout >= 0.0f && c->dropout < 1.0f);
    demand(c->norm_group >= 0 && c->block_q >= 1 && c->block_kv >= 1);
    demand(c->order >= 0 && c->order < 4);
    demand(!c->wq_file == !c->wk_file && (!c->wq_file || c->norm_group));
}

/* What only stage 06 knows. */
static void look_at_ranks(const CliCase *c)
{
    const CliRing *r = &c->ring;
    const int world_decides = r->transport != CLI_SIM && !r->ranks_given;
    demand(r->ranks >= 1 && r->ranks <= CLI_MAX_RANKS);
    demand(r->nodes >= 0 && (world_decides || !r->nodes || r->ranks % r->nodes == 0));
    demand(r->layout >= 0 && r->layout < RING_LAYOUTS);
    demand(r->partials == ATTN_F32 || r->partials == ATTN_BF16);
    demand(r->timeout_s > 0.0 && r->timeout_s <= 86400.0);
    demand(!r->adversarial || r->transport == CLI_SIM);
    demand(!r->inject || (r->inject <= CLI_EXIT && r->inject_step >= 0 && r->inject_rank >= 0));
    demand(!r->inject || world_decides || r->inject_rank < r->ranks);
    demand(r->transport != CLI_NCCL || (!r->inject && !r->verify_hops && c->needs_cuda));
    demand(!r->trace_json || strcmp(c->variant, "all") != 0);
}

static void look_at(const Cli *cli)
{
    demand(cli->case_count > 0);
    for (int i = 0; i < cli->case_count; i++) {
        const CliCase *c = &cli->cases[i];
        const Variant *v = NULL;
        int count = 0;
        demand(c->scale == c->scale && c->scale - c->scale == 0.0f);
        demand(c->softcap >= 0.0f && c->softcap - c->softcap == 0.0f);
        demand(c->window_left >= -1 && c->window_right >= -1);
        demand(c->threads >= 1 && c->iters >= 1 && c->iters <= BENCH_MAX_SAMPLES && c->warmup >= 0);
        demand(!c->rows == !c->cols && c->rows >= 0 && c->cols >= 0);
        demand(!c->mask_file || c->mask == ATTN_MASK_FULL);
        demand(!c->cu_q_file == !c->cu_kv_file && (!c->cu_q_file || c->B <= 1));
        look_at_options(c);
        if (cli->stage == &ranks)
            look_at_ranks(c);
        else
            demand(!c->ring.ranks && (c->tensors == CLI_THD) == (c->cu_q_file != NULL));
        if (!c->q_file && !c->bundled && !c->cu_q_file) {
            demand(c->B > 0 && c->H > 0 && c->Hkv > 0 && c->Nq > 0 && c->Nk > 0 && c->d > 0);
            demand(c->H % c->Hkv == 0 && c->d <= CLI_MAX_D);
            demand(c->B <= INT64_MAX / c->Nq / c->H / c->d);
        }
        while ((v = cli_next_variant(cli, c, v)) != NULL)
            demand(++count <= 3);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int parse_words(Cli *cli, const Stage *program, char *text, size_t size)
{
    char *words[64] = {"fuzz"};
    int count = 1;
    size_t at = 0;
    while (at < size && count < 64) {
        if (strncmp(text + at, "--cases", 7) != 0)
            words[count++] = text + at;
        at += strlen(text + at) + 1;
    }
    return cli_parse(cli, program, count, words);
}

static int parse_cases(Cli *cli, const Stage *program, char *text)
{
    CliCase base;
    CliGiven given = {{0}, NULL};
    int status;
    memset(cli, 0, sizeof *cli);
    cli->stage = program;
    cli_refuse_context("fuzz", NULL, 0);
    cli_case_defaults(&base);
    status = cli_cases_from_text(cli, &base, &given, text, "text");
    if (status != CLI_CONTINUE)
        cli_free(cli);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const Stage *program;
    Cli cli;
    char *text;
    int status;
    if (size < 2)
        return 0;
    text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    program = data[0] & 2 ? &ranks : &stage;
    status =
        data[0] & 1 ? parse_cases(&cli, program, text) : parse_words(&cli, program, text, size - 1);
    if (status == CLI_CONTINUE) {
        look_at(&cli);
        cli_free(&cli);
    } else {
        demand(status == EXIT_OK || status == EXIT_USAGE || status == EXIT_RUNTIME);
        demand(!cli.cases);
    }
    free(text);
    return 0;
}
