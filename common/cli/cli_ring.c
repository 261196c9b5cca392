/* SPDX-License-Identifier: MIT
 *
 * cli_ring.c: the flags that only stage 06 has: over how many ranks the tokens are dealt out, what
 * carries the messages, and what is done to them on purpose.
 *
 * Interface: the readers of --partials and --inject, cli_finish_ring, cli_finish_layout,
 * cli_check_nccl (cli_internal.h).
 */
#include "attn_config.h"
#include "cli/cli_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (GIVEN(given, FLAG_LINK) && r->transport != CLI_NCCL)
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
    int i;
    if (!path)
        return 0;
    if (strcmp(c->variant, "all") == 0)
        return cli_refuse("--trace-json: found beside --method all, accepted is one method: each "
                          "would overwrite the file");
    if (cli->json_file && strcmp(path, cli->json_file) == 0)
        return cli_refuse("--trace-json: found %s, the file of --json, accepted is another", path);
    for (i = 0; i < cli->case_count && &cli->cases[i] != c; i++)
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
