/* SPDX-License-Identifier: MIT
 *
 * cli_finish.c: what must hold between flags once all of a case are known, and which variants a
 * case selects. Sizes: cli_sizes.c; stage 05's own flags: cli_offline.c; stage 06's: cli_ring.c.
 * See cli.h.
 */
#include "cli/cli_internal.h"
#include "cuda/device.h"
#include "judge/isolate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int needs_cuda(const CliCase *c, const Stage *stage)
{
    int i;
    if (c->device == CLI_DEVICE_CUDA)
        return 1;
    for (i = 0; stage && i < stage->variant_count; i++)
        if (strcmp(stage->variants[i].name, c->variant) == 0)
            return stage->variants[i].device == ON_CUDA;
    return 0;
}

int cli_check_device(const CliCase *c)
{
    const int nccl = c->ring.ranks && c->ring.transport == CLI_NCCL;
    if (!c->needs_cuda || device_count() > 0)
        return nccl ? cli_check_nccl() : EXIT_OK;
    cli_refuse("%s: found %s, accepted is --%s",
               nccl                           ? "--transport nccl"
               : c->device == CLI_DEVICE_CUDA ? "--device cuda"
                                              : "--variant",
               device_built() ? "no CUDA device on this machine" : "a build without CUDA",
               nccl ? "transport sim or mpi" : "device cpu");
    return EXIT_NO_DEVICE;
}

/* May this row run where --device says? */
static int on_asked_device(const CliCase *c, const Variant *v)
{
    return c->device == CLI_DEVICE_AUTO || (c->device == CLI_DEVICE_CPU) == (v->device == ON_CPU);
}

/* A first look at what --variant-so names; a directory or a FIFO is not even opened. */
static int check_shared_object(const char *path)
{
    struct stat about;
    char magic[4] = "";
    int file;
    ssize_t got;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return cli_refuse("--variant-so: found that %s is no regular file, accepted is a shared "
                          "object",
                          path);
    file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return cli_refuse("--variant-so: found that %s cannot be read (%s), accepted is a shared "
                          "object",
                          path, strerror(errno));
    got = read(file, magic, sizeof magic);
    close(file);
    if (got != sizeof magic || memcmp(magic, "\177ELF", sizeof magic) != 0)
        return cli_refuse("--variant-so: found that %s is no ELF file, accepted is a shared object",
                          path);
    return 0;
}

/* strict where it can be had. Whoever asked for it gets it or nothing. */
static int finish_sandbox(Cli *cli)
{
    char why[256];
    if (cli->so_sandbox == ISOLATE_OFF)
        return 0;
    if (isolate_strict_here(why, sizeof why))
        cli->so_sandbox = ISOLATE_STRICT;
    else if (cli->so_sandbox == ISOLATE_STRICT)
        return cli_refuse("--so-sandbox: found strict, but %s; accepted here is off", why);
    else {
        fprintf(stderr, "--variant-so runs without a sandbox: %s\n", why);
        cli->so_sandbox = ISOLATE_OFF;
    }
    return 0;
}

/* Is the name of row i that of an earlier row? */
static int named_before(const Stage *stage, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(stage->variants[k].name, stage->variants[i].name) == 0)
            return 1;
    return 0;
}

static int finish_variant(const Cli *cli, CliCase *c, const CliGiven *given)
{
    const Stage *stage = cli->stage;
    static const char *const device_names[] = {"auto", "cpu", "cuda"};
    const int ranks = (stage->features & STAGE_HAS_RANKS) != 0;
    int i, named = -1, able = 0, on_device = 0;
    char names[512];
    size_t used = (size_t)snprintf(names, sizeof names, ranks ? "auto, all" : "all");
    for (i = 0; i < stage->variant_count; i++) {
        const Variant *v = &stage->variants[i];
        const int again = i > 0 && named_before(stage, i);
        /* stage 06 has each name once for the CPU and once for the GPU */
        if (strcmp(v->name, c->variant) == 0 && (named < 0 || on_asked_device(c, v)))
            named = named < 0 || !on_asked_device(c, &stage->variants[named]) ? i : named;
        if (used < sizeof names && !again)
            used += (size_t)snprintf(names + used, sizeof names - used, ", %s", v->name);
        if (!on_asked_device(c, v))
            continue;
        on_device++;
        able += (v->dtypes >> c->dtype & 1u) &&
                (!c->backward || variant_has(v, 1) || !variant_has(v, 0));
    }
    if (c->variant_so && check_shared_object(c->variant_so) != 0)
        return EXIT_USAGE;
    if (c->variant_so && !GIVEN(given, FLAG_VARIANT) && strcmp(c->variant, "all") == 0)
        return c->device != CLI_DEVICE_CUDA
                   ? 0
                   : cli_refuse("--variant-so: found beside --device cuda, accepted is the CPU");
    if (ranks && strcmp(c->variant, "auto") == 0)
        return 0;
    if (strcmp(c->variant, "all") == 0)
        return able || !on_device
                   ? 0
                   : cli_refuse("--dtype %s%s: found no variant of %s that computes this on "
                                "--device %s, accepted is what --list shows",
                                dtype_name(c->dtype),
                                c->backward && !(stage->features & STAGE_ALWAYS_BACKWARD)
                                    ? " --backward"
                                    : "",
                                stage->name, device_names[c->device]);
    if (named < 0)
        return cli_refuse("%s: found '%s', accepted is one of %s", c->variant_flag, c->variant,
                          names);
    {
        const Variant *v = &stage->variants[named];
        const char *where = v->device == ON_CPU ? "cpu" : "cuda";
        if (!on_asked_device(c, v))
            return cli_refuse("%s %s: found beside --device %s, accepted is --device %s",
                              c->variant_flag, v->name, device_names[c->device], where);
        if (!(v->dtypes >> c->dtype & 1u))
            return cli_refuse("%s %s: found --dtype %s, accepted are the dtypes that --list "
                              "shows for it",
                              c->variant_flag, v->name, dtype_name(c->dtype));
        if (c->backward && variant_has(v, 0) && !variant_has(v, 1))
            return cli_refuse("%s %s: found --backward, accepted is the forward pass only",
                              c->variant_flag, v->name);
    }
    return 0;
}

/* --q, --k and --v, or fewer files where --pack puts tensors side by side. */
static int finish_files(const CliCase *c)
{
    static const char *const names[] = {"--q", "--k", "--v"};
    static const char *const packs[] = {"--q, --k and --v together",
                                        "--q, and --k, which holds K and V (--pack q_kv)",
                                        "--q, which holds Q, K and V (--pack qkv)"};
    const char *paths[] = {c->q_file, c->k_file, c->v_file};
    const int wanted = c->pack == CLI_QKV ? 1 : c->pack == CLI_Q_KV ? 2 : 3;
    int i, found = -1, missing = -1;
    for (i = 2; i >= 0; i--) {
        found = paths[i] ? i : found;
        missing = !paths[i] && i < wanted ? i : missing;
    }
    if (found < 0)
        return 0;
    for (i = wanted; i < 3; i++)
        if (paths[i])
            return cli_refuse("%s: found beside --pack, accepted is %s", names[i], packs[c->pack]);
    if (missing >= 0)
        return cli_refuse("%s: found without %s, accepted is %s", names[found], names[missing],
                          packs[c->pack]);
    if (c->bundled)
        return cli_refuse("--bundled: found beside --q --k --v, accepted is one of the two");
    return 0;
}

static int finish_inputs(CliCase *c, const CliGiven *given)
{
    const int files = c->q_file != NULL;
    if (finish_files(c) != 0)
        return EXIT_USAGE;
    /* a random dO still has that distribution */
    if ((files || c->bundled) && (!c->backward || c->do_file || c->bundled == CLI_BUNDLED_CAUSAL) &&
        GIVEN(given, FLAG_DIST))
        return cli_refuse("--dist: found beside %s, accepted is with random inputs only",
                          files ? "--q --k --v" : "--bundled");
    if (c->bundled == CLI_BUNDLED_CAUSAL && !c->mask_given) /* the mask it was trained with */
        c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
    if (c->do_file && !c->backward)
        return cli_refuse("--do: found without --backward, accepted is both");
    if (c->mask_file && c->mask != ATTN_MASK_FULL) {
        if (GIVEN(given, FLAG_MASK_FILE))
            return cli_refuse("--mask-file: found without --mask full, accepted is both");
        c->mask_file = NULL; /* of the command line; this line of --cases wants another mask */
    }
    if (!c->bench && (GIVEN(given, FLAG_WARMUP) || GIVEN(given, FLAG_ITERS)) && c->line == 0)
        return cli_refuse("%s: found without --bench, accepted is both",
                          GIVEN(given, FLAG_WARMUP) ? "--warmup" : "--iters");
    if (c->mask == ATTN_MASK_CAUSAL_UPPER_LEFT || c->mask == ATTN_MASK_CAUSAL_LOWER_RIGHT)
        c->window_right = 0;
    cli_finish_layout(c);
    return 0;
}

static int finish_rows(const CliCase *c, const CliGiven *given)
{
    static const FlagId senseless[] = {
        FLAG_Q,       FLAG_BUNDLED, FLAG_SAVE,   FLAG_SEQ,       FLAG_SEQ_Q,
        FLAG_SEQ_KV,  FLAG_D,       FLAG_B,      FLAG_H,         FLAG_KV_HEADS,
        FLAG_MASK,    FLAG_CAUSAL,  FLAG_WINDOW, FLAG_MASK_FILE, FLAG_SCALE,
        FLAG_SOFTCAP, FLAG_STRIDES, FLAG_TRACE,  FLAG_BACKWARD,  FLAG_VARIANT_SO};
    double bytes = (double)c->rows * (double)c->cols * 2.0 * (double)dtype_size(c->dtype);
    size_t i;
    if (!c->rows != !c->cols)
        return cli_refuse("%s: found without %s, accepted is both", c->rows ? "--rows" : "--cols",
                          c->rows ? "--cols" : "--rows");
    for (i = 0; c->rows && i < sizeof senseless / sizeof *senseless; i++)
        if (GIVEN(given, senseless[i]))
            return cli_refuse("%s: found beside --rows, accepted is the softmax alone or attention",
                              cli_flags[senseless[i]].name);
    if (c->rows && c->dtype != ATTN_F32)
        return cli_refuse("--dtype: found %s beside --rows, accepted is f32", dtype_name(c->dtype));
    if (bytes > cli_memory_limit())
        return cli_refuse("--rows: found %" PRId64 " with --cols %" PRId64 ", which take %.3g GiB, "
                          "accepted is up to this machine's %.3g GiB",
                          c->rows, c->cols, bytes / 0x1p30, cli_memory_limit() / 0x1p30);
    return 0;
}

/* Outputs of another program: there is nothing to run, to time or to save. */
static int finish_judge(const CliCase *c, const CliGiven *given)
{
    static const FlagId senseless[] = {FLAG_VARIANT_SO, FLAG_VARIANT, FLAG_SAVE,    FLAG_BENCH,
                                       FLAG_ROWS,       FLAG_PACK,    FLAG_NO_CHECK};
    for (size_t i = 0; c->judge_dir && i < sizeof senseless / sizeof *senseless; i++)
        if (GIVEN(given, senseless[i]))
            return cli_refuse("--judge: found beside %s, accepted is one of the two",
                              cli_flags[senseless[i]].name);
    return 0;
}

int cli_finish(Cli *cli, CliCase *c, const CliGiven *given)
{
    int status = finish_rows(c, given);
    if (status == 0)
        status = cli_finish_offline(cli, c, given);
    if (status == 0)
        status = cli_finish_ring(cli, c, given);
    if (status == 0)
        status = finish_inputs(c, given);
    if (status == 0)
        status = finish_judge(c, given);
    if (status == 0)
        status = finish_variant(cli, c, given);
    if (status != 0)
        return status;
    c->needs_cuda = needs_cuda(c, cli->stage);
    if (c->bench && c->needs_cuda && device_is_model())
        return cli_refuse("--bench: found on simt, a model on a CPU, accepted is a GPU or "
                          "--device cpu: a model has no times");
    c->own_variants = (!c->variant_so && !c->judge_dir) || GIVEN(given, FLAG_VARIANT) ||
                      strcmp(c->variant, "all") != 0;
    if (c->variant_so && finish_sandbox(cli) != 0)
        return EXIT_USAGE;
    if (c->variant_so) {
        const char *slash = strrchr(c->variant_so, '/');
        c->so.name = slash ? slash + 1 : c->variant_so;
        c->so.device = ON_CPU;
        c->so.dtypes = DTYPES_ALL;
        c->so.idea = "--variant-so";
    }
    if (c->judge_dir) /* it may come from tensor cores */
        c->so = (Variant){.name = "--judge",
                          .dtypes = DTYPES_ALL,
                          .traits = VARIANT_TENSOR_CORES,
                          .idea = "--judge"};
    return c->q_file || c->bundled ? 0 : cli_finish_sizes(c);
}

int cli_selects(const CliCase *c, const Variant *v)
{
    if (!c->own_variants)
        return 0;
    if (strcmp(c->variant, "all") != 0)
        return strcmp(c->variant, v->name) == 0 && on_asked_device(c, v) &&
               (v->device == ON_CPU || c->needs_cuda || device_count() > 0);
    if (v->device == ON_CPU)
        return c->device != CLI_DEVICE_CUDA;
    return c->device != CLI_DEVICE_CPU && device_count() > 0;
}

const Variant *cli_next_variant(const Cli *cli, const CliCase *c, const Variant *v)
{
    const Stage *stage = cli->stage;
    int i;
    if (v == &c->so)
        return NULL;
    for (i = v ? (int)(v - stage->variants) + 1 : 0; i < stage->variant_count; i++)
        if (cli_selects(c, &stage->variants[i]))
            return &stage->variants[i];
    return c->variant_so || c->judge_dir ? &c->so : NULL;
}
