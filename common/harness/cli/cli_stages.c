/* SPDX-License-Identifier: MIT
 *
 * cli_stages.c: the flags that one stage alone has. Stage 05: layouts and packing of tensors,
 * sequences in a row, and what its offline module does to scores and weights. Stage 06: over how
 * many ranks the tokens are dealt out, what carries the messages, and what is done to them on
 * purpose.
 *
 * Interface: the readers of --clip, --dropout, --partials and --inject, cli_finish_offline,
 * cli_finish_ring, cli_finish_layout, cli_check_nccl (cli_internal.h).
 */
#include "attn_config.h"
#include "harness/cli/cli_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- stage 05 ----------------------------------------------------------------------------------*/

/* Beyond this a clipped weight says nothing any more: it is 0 or 1. */
#define MAX_CLIP 1e6f
/* A causal window that leaves all variants something to do. */
#define DEFAULT_WINDOW 16

CLI_READER(clip)
{
    float *low = &c->clip_low, *high = &c->clip_high;
    const int plain = strspn(text, "0123456789+-.eE,") == strlen(text);
    char rest;
    (void)given, (void)f;
    if (!plain || sscanf(text, "%f,%f%c", low, high, &rest) != 2 ||
        !(*low <= 0.0f && *low >= -MAX_CLIP && *high >= 1.0f && *high <= MAX_CLIP))
        return cli_refuse("%s: found '%s', accepted is L,R with L from %g to 0 and R from 1 to %g, "
                          "such as -0.1,1.1",
                          flag, text, (double)-MAX_CLIP, (double)MAX_CLIP);
    *low += 0.0f; /* "-0" means the same as 0, and must look the same */
    return 0;
}

CLI_READER(dropout)
{
    float *p = &c->dropout;
    (void)given, (void)f;
    if (!cli_parse_number(text, p) || !(*p >= 0.0f && *p < 1.0f))
        return cli_refuse("%s: found '%s', accepted is a probability from 0 to below 1 (in "
                          "float32)",
                          flag, text);
    *p += 0.0f;
    return 0;
}

/* A run without sizes, masks, windows and input files is causal with a small window. */
static void default_window(CliCase *c, const CliGiven *given)
{
    if (c->line || cli_given(given, "--batch --heads --kv-heads --seq --seq-q --seq-kv --head-dim "
                                    "--mask --causal --window --q --bundled --cu-seqlens-q"))
        return;
    c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
    c->window_left = DEFAULT_WINDOW;
    c->window_right = 0;
    c->window_given = 1;
}

static int finish_tensors(CliCase *c, const CliGiven *given)
{
    const int thd = c->tensors == CLI_THD, cu = (c->cu_q_file != NULL) + (c->cu_kv_file != NULL);
    if (thd && cu < 2)
        return cli_refuse("--tensor-layout thd: found without %s, accepted are both --cu-seqlens-q "
                          "and --cu-seqlens-kv",
                          c->cu_q_file    ? "--cu-seqlens-kv"
                          : c->cu_kv_file ? "--cu-seqlens-q"
                                          : "--cu-seqlens-q and --cu-seqlens-kv");
    if (!thd && cu > 0) {
        if (cli_given(given, "--cu-seqlens-q --cu-seqlens-kv"))
            return cli_refuse("%s: found without --tensor-layout thd, accepted is both",
                              cli_given(given, "--cu-seqlens-q --cu-seqlens-kv"));
        c->cu_q_file = c->cu_kv_file = NULL; /* of the command line; this line of --cases is not */
    }
    if (thd && c->B > 1)
        return cli_refuse("--batch: found beside --tensor-layout thd, accepted is none: the "
                          "sequences are those of --cu-seqlens-q");
    if (thd && c->bundled)
        return cli_refuse("--bundled: found beside --tensor-layout thd, accepted is bshd or sbhd");
    if (c->tensors == CLI_SBHD) {
        if (cli_given(given, "--strides"))
            return cli_refuse("--strides: found beside --tensor-layout sbhd, accepted is one of "
                              "the two");
        c->layout = LAYOUT_SBHD;
    }
    if (c->pack == CLI_QKV && c->q_file && (!c->H || !c->Hkv))
        return cli_refuse("--pack qkv: found without %s, accepted is --q with --heads and "
                          "--kv-heads, which tell where K and V begin",
                          c->H ? "--kv-heads" : "--heads");
    return 0;
}

static int finish_options(CliCase *c, const CliGiven *given)
{
    const double scale = c->scale != 0.0f ? (double)c->scale : 1.0;
    if (!c->wq_file != !c->wk_file)
        return cli_refuse("%s: found without %s, accepted is both", c->wq_file ? "--wq" : "--wk",
                          c->wq_file ? "--wk" : "--wq");
    if (c->wq_file && !c->norm_group)
        return cli_refuse("--wq: found without --qk-norm, accepted is both");
    if (c->scale == 0.0f && !((double)c->temperature >= 1.0 / CLI_MAX_SCALE))
        return cli_refuse(
            "--temperature: found %g, accepted is %g or more: smaller ones make scores "
            "that float32 does not hold",
            (double)c->temperature, 1.0 / CLI_MAX_SCALE);
    if (!(fabs(scale) / (double)c->temperature <= CLI_MAX_SCALE))
        return cli_refuse("--temperature: found %g with a scale of %g, accepted is a quotient up "
                          "to %g: larger ones make scores that float32 does not hold",
                          (double)c->temperature, scale, CLI_MAX_SCALE);
    if (c->trace && !cli_given(given, "--block-q --block-kv"))
        c->block_q = c->block_kv = 8; /* 64 positions in an 8 x 8 matrix of blocks */
    c->trace_blocks = c->trace;
    return 0;
}

int cli_finish_offline(const Cli *cli, CliCase *c, const CliGiven *given)
{
    int status;
    if (!(cli->stage->features & STAGE_HAS_OFFLINE))
        return 0;
    default_window(c, given);
    status = finish_tensors(c, given);
    return status == 0 ? finish_options(c, given) : status;
}

/* --- stage 06 ----------------------------------------------------------------------------------*/

#define MAX_STEP 1000000

static const char *const transports[] = {"sim", "mpi", "nccl"};

/* KIND@RANK:STEP */
CLI_READER(inject)
{
    static const char *const kinds[] = {"", "drop", "duplicate", "corrupt", "delay", "exit"};
    char kind[16], rank[16], step[16], rest;
    CliRing *r = &c->ring;
    int k = CLI_EXIT;
    (void)given, (void)f;
    if (sscanf(text, "%15[a-z]@%15[^:]:%15[^ ]%c", kind, rank, step, &rest) != 3)
        k = CLI_NO_FAULT;
    while (k > CLI_NO_FAULT && strcmp(kinds[k], kind) != 0)
        k--;
    if (k == CLI_NO_FAULT)
        return cli_refuse("%s: found '%s', accepted is KIND@RANK:STEP with drop, duplicate, "
                          "corrupt, delay or exit, such as drop@1:2",
                          flag, text);
    r->inject = (CliInject)k;
    if (cli_read_int(flag, rank, 0, CLI_MAX_RANKS - 1, &r->inject_rank) != 0)
        return EXIT_USAGE;
    return cli_read_int(flag, step, 0, MAX_STEP, &r->inject_step);
}

CLI_READER(partials)
{
    int i = 0, status = cli_read_name(flag, text, f->value, &i);
    (void)given;
    c->ring.partials = i ? ATTN_BF16 : ATTN_F32;
    return status;
}

/* Sequences in a row: tensors stay [1][tokens][heads][d]. */
static int finish_sequences(const CliCase *c)
{
    if (!c->cu_q_file != !c->cu_kv_file)
        return cli_refuse("%s: found without %s, accepted is both",
                          c->cu_q_file ? "--cu-seqlens-q" : "--cu-seqlens-kv",
                          c->cu_q_file ? "--cu-seqlens-kv" : "--cu-seqlens-q");
    if (c->cu_q_file && c->B > 1)
        return cli_refuse("--batch: found beside --cu-seqlens-q, accepted is none: the sequences "
                          "are those of the files");
    if (c->cu_q_file && c->bundled)
        return cli_refuse("--bundled: found beside --cu-seqlens-q, accepted is one of the two");
    return 0;
}

/* What a transport can do, and where its ranks compute. */
static int finish_transport(CliCase *c, const CliGiven *given)
{
    static const char *const devices[] = {"auto", "cpu", "cuda"};
    const CliRing *r = &c->ring;
    const CliDevice home = r->transport == CLI_MPI ? CLI_DEVICE_CPU : CLI_DEVICE_CUDA;
    const char *name = transports[r->transport];
#ifndef HAVE_MPI
    if (r->transport == CLI_MPI)
        return cli_refuse("--transport mpi: found a build without MPI, accepted is sim");
#endif
    if (r->adversarial && r->transport != CLI_SIM)
        return cli_refuse("--seed-schedule: found beside --transport %s, accepted is sim", name);
    if (cli_given(given, "--link") && r->transport != CLI_NCCL)
        return cli_refuse("--link: found beside --transport %s, accepted is nccl", name);
    if ((r->inject || r->verify_hops) && r->transport == CLI_NCCL)
        return cli_refuse("%s: found beside --transport nccl, accepted is sim or mpi",
                          r->inject ? "--inject" : "--verify-hops");
    if (r->transport == CLI_SIM)
        return 0;
    if (c->device != CLI_DEVICE_AUTO && c->device != home)
        return cli_refuse("--transport %s: found beside --device %s, accepted is --device %s", name,
                          devices[c->device], devices[home]);
    c->device = home;
    return 0;
}

/* Each run writes its trace anew, so a file that two of them share would keep the last one, and one
 * that --json shares would lose its rows. */
static int finish_trace(const Cli *cli, const CliCase *c)
{
    const char *path = c->ring.trace_json;
    if (!path)
        return 0;
    if (strcmp(c->variant, "all") == 0)
        return cli_refuse("--trace-json: found beside --method all, accepted is one method: each "
                          "would overwrite the file");
    if (cli->json_file && strcmp(path, cli->json_file) == 0)
        return cli_refuse("--trace-json: found %s, the file of --json, accepted is another", path);
    for (int i = 0; i < cli->case_count && &cli->cases[i] != c; i++)
        if (cli->cases[i].ring.trace_json && strcmp(path, cli->cases[i].ring.trace_json) == 0)
            return cli_refuse("--trace-json: found %s, the file of line %d, accepted is another: "
                              "each would overwrite it",
                              path, cli->cases[i].line);
    return 0;
}

int cli_finish_ring(const Cli *cli, CliCase *c, const CliGiven *given)
{
    CliRing *r = &c->ring;
    int status;
    if (!(cli->stage->features & STAGE_HAS_RANKS)) {
        r->ranks = 0;
        return 0;
    }
    status = finish_sequences(c);
    if (status == 0)
        status = finish_transport(c, given);
    if (status == 0)
        status = finish_trace(cli, c);
    if (status != 0)
        return status;
    if (r->transport != CLI_SIM && !r->ranks_given)
        return 0; /* the world is as large as it is: ring_plan_make looks at the rest */
    if (r->nodes && r->ranks % r->nodes != 0)
        return cli_refuse("--nodes: found %" PRId64 " with %" PRId64 " ranks, accepted is a "
                          "divisor of the ranks",
                          r->nodes, r->ranks);
    if (r->inject && r->inject_rank >= r->ranks)
        return cli_refuse("--inject: found rank %" PRId64 " of %" PRId64
                          ", accepted is 0 to %" PRId64,
                          r->inject_rank, r->ranks, r->ranks - 1);
    return 0;
}

void cli_finish_layout(CliCase *c)
{
    if (!c->ring.layout_given) /* zigzag balances the triangle; a window likes neighbours */
        c->ring.layout = c->window_right == 0 && c->window_left < 0 ? RING_ZIGZAG : RING_CONTIGUOUS;
}

int cli_check_nccl(void)
{
#ifdef HAVE_NCCL
    return EXIT_OK;
#else
    cli_refuse("--transport nccl: found a build without NCCL, accepted is sim or mpi");
    return EXIT_NO_DEVICE;
#endif
}
