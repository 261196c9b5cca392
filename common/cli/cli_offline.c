/* SPDX-License-Identifier: MIT
 *
 * cli_offline.c: the flags that only stage 05 has: layouts and packing of tensors, sequences in a
 * row, and what its offline module does to scores and weights.
 *
 * Interface: the readers of --clip and --dropout, cli_finish_offline (cli_internal.h).
 */
#include "cli/cli_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
    static const FlagId plain[] = {
        FLAG_B,    FLAG_H,      FLAG_KV_HEADS, FLAG_SEQ, FLAG_SEQ_Q,   FLAG_SEQ_KV,      FLAG_D,
        FLAG_MASK, FLAG_CAUSAL, FLAG_WINDOW,   FLAG_Q,   FLAG_BUNDLED, FLAG_CU_SEQLENS_Q};
    size_t i;
    for (i = 0; i < sizeof plain / sizeof *plain; i++)
        if (GIVEN(given, plain[i]))
            return;
    if (c->line)
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
        if (GIVEN(given, FLAG_CU_SEQLENS_Q) || GIVEN(given, FLAG_CU_SEQLENS_KV))
            return cli_refuse("%s: found without --tensor-layout thd, accepted is both",
                              GIVEN(given, FLAG_CU_SEQLENS_Q) ? "--cu-seqlens-q"
                                                              : "--cu-seqlens-kv");
        c->cu_q_file = c->cu_kv_file = NULL; /* of the command line; this line of --cases is not */
    }
    if (thd && c->B > 1)
        return cli_refuse("--batch: found beside --tensor-layout thd, accepted is none: the "
                          "sequences are those of --cu-seqlens-q");
    if (thd && c->bundled)
        return cli_refuse("--bundled: found beside --tensor-layout thd, accepted is bshd or sbhd");
    if (c->tensors == CLI_SBHD) {
        if (GIVEN(given, FLAG_STRIDES))
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
    if (c->trace && !GIVEN(given, FLAG_BLOCK_Q) && !GIVEN(given, FLAG_BLOCK_KV))
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
