/* SPDX-License-Identifier: MIT
 *
 * cli.c: from argv to cases. A set of flags (the command line, or one line of --cases) is read by
 * cli_read_set, flag by flag as the table says (cli_flags.c); what must hold between flags is
 * checked once all of a case are known. Flags of one stage alone: cli_stages.c.
 *
 * Interface: cli.h; cli_cases_from_text and readers of flags that every stage has (cli_internal.h).
 */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "harness/bench/bench.h"
#include "harness/bench/foreign.h"
#include "harness/cli/cli_internal.h"
#include "harness/device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- readers -----------------------------------------------------------------------------------*/

CLI_READER(seq)
{
    int64_t value = 0;
    int status = cli_read_int(flag, text, 1, (int64_t)1 << 40, &value);
    (void)given, (void)f;
    c->Nq = c->Nk = value;
    return status;
}

/* The order of --causal and --mask must not decide which one wins. */
static int refuse_both_masks(const char *mask)
{
    return cli_refuse("--causal: found beside --mask %s, accepted is one of the two", mask);
}

CLI_READER(causal)
{
    (void)f, (void)flag, (void)text;
    if (cli_given(given, "--mask") && c->mask != ATTN_MASK_CAUSAL_LOWER_RIGHT)
        return refuse_both_masks(given->mask_text);
    c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
    c->mask_given = 1;
    return 0;
}

CLI_READER(mask)
{
    int mask = 0, status;
    given->mask_text = text;
    if (cli_given(given, "--causal") && strcmp(text, "causal-lower-right") != 0)
        return refuse_both_masks(text);
    status = cli_read_name(flag, text, f->value, &mask);
    c->mask = (AttnMask)mask;
    c->mask_given = 1;
    return status;
}

CLI_READER(window)
{
    (void)given, (void)f;
    c->window_given = 1;
    return cli_read_window(flag, text, &c->window_left, &c->window_right);
}

CLI_READER(scale)
{
    int status = cli_read_float(flag, text, 0, &c->scale);
    (void)given, (void)f;
    if (status == 0 && !(c->scale >= -CLI_MAX_SCALE && c->scale <= CLI_MAX_SCALE))
        return cli_refuse("%s: found '%s', accepted is a number from -%g to %g: larger ones "
                          "make scores that float32 does not hold",
                          flag, text, CLI_MAX_SCALE, CLI_MAX_SCALE);
    return status;
}

CLI_READER(softcap)
{
    int status = cli_read_float(flag, text, 1, &c->softcap);
    (void)given, (void)f;
    if (status == 0 && !(c->softcap <= CLI_MAX_SOFTCAP))
        return cli_refuse("%s: found '%s', accepted is a number up to %g: a larger one times "
                          "log2(e) is more than float32 holds",
                          flag, text, CLI_MAX_SOFTCAP);
    return status;
}

CLI_READER(bundled)
{
    int i = 0, status = cli_read_name(flag, text ? text : "encoder", "encoder|causal", &i);
    (void)given, (void)f;
    c->bundled = (CliBundled)(CLI_BUNDLED_ENCODER + i);
    return status;
}

/* --method counts as --variant, so who asks whether a variant was named need not know both. */
CLI_READER(variant)
{
    (void)flag;
    if (given->variant && given->variant != f && strcmp(c->variant, text) != 0)
        return cli_refuse("%s %s: found beside %s %s, accepted is one of the two", f->name, text,
                          c->variant_flag, c->variant);
    given->variant = f;
    c->variant_flag = f->name;
    c->variant = text;
    return 0;
}

/* --- by kind -----------------------------------------------------------------------------------*/

static int read_path(const char *flag, const char *text, const char **path)
{
    if (text[0] == '\0' || strncmp(text, "--", 2) == 0)
        return cli_refuse("%s: found '%s', accepted is a path", flag, text);
    *path = text;
    return 0;
}

static int read_seconds(const char *flag, const char *text, double *seconds)
{
    float value = 0.0f;
    int status = cli_read_float(flag, text, 1, &value);
    if (status == 0 && !(value <= 86400.0f))
        return cli_refuse("%s: found '%s', accepted are seconds up to 86400", flag, text);
    *seconds = (double)value;
    return status;
}

/* One flag; `flag` is how the user wrote it, text its value or NULL. */
static int cli_apply(Cli *cli, CliCase *c, CliGiven *given, const CliFlag *f, const char *flag,
                     const char *text)
{
    void *at = (f->per_program ? (char *)cli : (char *)c) + f->at;
    int64_t value = 0;
    int status;
    given->flag[f - cli_flags] = 1;
    if (f->also)
        *(int *)(void *)((char *)c + f->also) = 1;
    switch (f->kind) {
    case TO_SIZE:
        return cli_read_int(flag, text, f->least, f->most, at);
    case TO_INT:
        status = cli_read_int(flag, text, f->least, f->most, &value);
        *(int *)at = (int)value;
        return status;
    case TO_U64:
        return cli_read_u64(flag, text, at);
    case TO_NAME:
        return cli_read_name(flag, text, f->value, at);
    case TO_PATH:
        return read_path(flag, text, at);
    case TO_REAL:
        return cli_read_float(flag, text, 1, at);
    case TO_SECONDS:
        return read_seconds(flag, text, at);
    case TO_SWITCH:
        *(int *)at = (int)f->least;
        return 0;
    case TO_READER:
        return f->read(c, given, f, flag, text);
    default:
        return 0;
    }
}

/* --- sizes that this machine, this stage and these flags accept --------------------------------*/

/* Physical memory, or less when a container's limit is lower. */
static double cli_memory_limit(void)
{
    double limit = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r");
    double group;
    if (f) {
        if (fscanf(f, "%lf", &group) == 1 && group > 0.0 && group < limit)
            limit = group;
        fclose(f);
    }
    return limit;
}

/* Bytes of all tensors of a case and of its reference, in floating point: it cannot overflow. */
static double case_bytes(const CliCase *c, const AttnShape *s)
{
    double q = (double)s->B * (double)s->Nq * (double)s->H * (double)s->d;
    double k = (double)s->B * (double)s->Nk * (double)s->Hkv * (double)s->d;
    double mask = c->mask == ATTN_MASK_FULL ? (double)s->Nq * (double)s->Nk : 0.0;
    double element = (double)dtype_size(c->dtype);
    /* Q, O, K, V; with a backward dO, dQ, dK, dV */
    return (c->backward ? 2.0 : 1.0) * (2.0 * q + 2.0 * k) * element + mask +
           4.0 * (double)s->B * (double)s->H * (double)s->Nq;
}

static const char *largest_flag(const AttnShape *s)
{
    const char *flag = "--head-dim";
    int64_t most = s->d;
    if (s->B > most) {
        most = s->B;
        flag = "--batch";
    }
    if (s->H > most) {
        most = s->H;
        flag = "--heads";
    }
    if (s->Nq > most) {
        most = s->Nq;
        flag = s->Nq == s->Nk ? "--seq" : "--seq-q";
    }
    if (s->Nk > most)
        flag = "--seq-kv";
    return flag;
}

/* What fits a screen, or with --step a page: ranks, blocks a side, or the matrices themselves. */
static int check_trace(const CliCase *c, const AttnShape *s)
{
    const char *flag = c->step ? "--step" : "--trace";
    const char *room = c->step ? "pages of 80 x 24" : "one screen";
    const int most = c->step ? 8 : 16, N = c->step ? 6 : 8, d = c->step ? 4 : 8;
    if (c->step && !c->trace)
        return cli_refuse("--step: found without --trace, accepted is beside it");
    if (c->trace && c->ring.ranks)
        return c->ring.ranks <= most
                   ? EXIT_OK
                   : cli_refuse("%s: found %" PRId64 " ranks, accepted is up to %d: %s", flag,
                                c->ring.ranks, most, room);
    if (c->trace_blocks && (s->Nq > most * c->block_q || s->Nk > most * c->block_kv))
        return cli_refuse("%s: found Nq=%" PRId64 " Nk=%" PRId64 " in blocks of %" PRId64
                          " x %" PRId64 ", accepted is up to %d blocks a side: %s",
                          flag, s->Nq, s->Nk, c->block_q, c->block_kv, most, room);
    if (c->trace && !c->trace_blocks && (s->Nq > N || s->Nk > N || s->d > d))
        return cli_refuse("%s: found Nq=%" PRId64 " Nk=%" PRId64 " d=%" PRId64
                          ", accepted is up to %d, %d and %d: %s",
                          flag, s->Nq, s->Nk, s->d, N, N, d, room);
    return EXIT_OK;
}

int cli_check_shape(const CliCase *c, const AttnShape *s)
{
    double bytes, limit;
    if (s->d > CLI_MAX_D)
        return cli_refuse("--head-dim: found %" PRId64 ", accepted is 1 to %d", s->d, CLI_MAX_D);
    if (s->d > CLI_MAX_D_CUDA && c->needs_cuda)
        return cli_refuse("--head-dim: found %" PRId64 ", accepted is 1 to %d on a GPU", s->d,
                          CLI_MAX_D_CUDA);
    if (s->H % s->Hkv != 0)
        return cli_refuse("--kv-heads: found %" PRId64 ", accepted is a divisor of the %" PRId64
                          " query heads",
                          s->Hkv, s->H);
    if (c->norm_group && s->d % c->norm_group != 0)
        return cli_refuse("--qk-norm: found groups of %" PRId64 ", accepted is a divisor of the "
                          "%" PRId64 " channels of a head",
                          c->norm_group, s->d);
    if (c->pack == CLI_QKV && s->Nq != s->Nk)
        return cli_refuse("--pack qkv: found %" PRId64 " queries and %" PRId64 " keys, accepted "
                          "are as many of both: they share a tensor",
                          s->Nq, s->Nk);
    if (check_trace(c, s) != EXIT_OK)
        return EXIT_USAGE;
    bytes = case_bytes(c, s);
    limit = cli_memory_limit();
    if (bytes > limit)
        return cli_refuse("%s: found sizes B=%" PRId64 " H=%" PRId64 " Nq=%" PRId64 " Nk=%" PRId64
                          " d=%" PRId64 " whose tensors take %.3g GiB, accepted is up to this "
                          "machine's %.3g GiB",
                          largest_flag(s), s->B, s->H, s->Nq, s->Nk, s->d, bytes / 0x1p30,
                          limit / 0x1p30);
    return EXIT_OK;
}

/* Sizes of random inputs. */
static int cli_finish_sizes(CliCase *c)
{
    const int64_t N = !c->trace ? 256 : c->trace_blocks || c->ring.ranks ? 64 : 4;
    AttnShape shape;
    c->B = c->B ? c->B : 1;
    c->H = c->H ? c->H : c->trace && !c->ring.ranks ? 1 : 4;
    c->Hkv = c->Hkv ? c->Hkv : c->H;
    c->d = c->d ? c->d : c->trace ? 4 : 64;
    if (c->cu_q_file) /* the lengths come from these files */
        return 0;
    c->Nq = c->Nq ? c->Nq : N;
    c->Nk = c->Nk ? c->Nk : N;
    shape = (AttnShape){c->B, c->H, c->Hkv, c->Nq, c->Nk, c->d};
    return cli_check_shape(c, &shape);
}

/* --- what must hold between flags; which variants a case selects -------------------------------*/

static int needs_cuda(const CliCase *c, const Stage *stage)
{
    if (c->device == CLI_DEVICE_CUDA)
        return 1;
    for (int i = 0; stage && i < stage->variant_count; i++)
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
    char why[512];
    const Foreign *course;
    if (cli->so_sandbox == CLI_SANDBOX_OFF)
        return 0;
    course = foreign_load(why, sizeof why);
    if (course && course->strict_here(why, sizeof why))
        cli->so_sandbox = CLI_SANDBOX_STRICT;
    else if (cli->so_sandbox == CLI_SANDBOX_STRICT)
        return cli_refuse("--so-sandbox: found strict, but %s; accepted here is off", why);
    else {
        fprintf(stderr, "--variant-so runs without a sandbox: %s\n", why);
        cli->so_sandbox = CLI_SANDBOX_OFF;
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

static const char *const device_names[] = {"auto", "cpu", "cuda"};

/* e4m3 is of single rungs: nothing in finish_variant speaks of a --variant-so or of ranks that have
 * it, and no variant for a CPU does. */
static int refuse_bytes(const CliCase *c, const Stage *stage, int able)
{
    if (c->variant_so || !able)
        return cli_refuse("--dtype e4m3%s: found no variant of %s that computes this on --device "
                          "%s, accepted is what --list shows",
                          c->backward ? " --backward" : "", stage->name, device_names[c->device]);
    if (c->device == CLI_DEVICE_AUTO && strcmp(c->variant, "all") == 0 && device_count() == 0)
        return cli_refuse("--dtype e4m3: found no CUDA device on this machine, accepted is a "
                          "machine with one: no variant for a CPU computes this");
    return 0;
}

static int finish_variant(const Cli *cli, CliCase *c, const CliGiven *given)
{
    const Stage *stage = cli->stage;
    const int ranks = (stage->features & STAGE_HAS_RANKS) != 0;
    int named = -1, able = 0, on_device = 0;
    char names[512];
    size_t used = (size_t)snprintf(names, sizeof names, ranks ? "auto, all" : "all");
    for (int i = 0; i < stage->variant_count; i++) {
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
    if (c->dtype == ATTN_E4M3 && refuse_bytes(c, stage, able))
        return EXIT_USAGE;
    if (c->variant_so && check_shared_object(c->variant_so) != 0)
        return EXIT_USAGE;
    if (c->variant_so && !given->variant && strcmp(c->variant, "all") == 0)
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
    int found = -1, missing = -1;
    for (int i = 2; i >= 0; i--) {
        found = paths[i] ? i : found;
        missing = !paths[i] && i < wanted ? i : missing;
    }
    if (found < 0)
        return 0;
    for (int i = wanted; i < 3; i++)
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
        cli_given(given, "--dist"))
        return cli_refuse("--dist: found beside %s, accepted is with random inputs only",
                          files ? "--q --k --v" : "--bundled");
    if (c->bundled == CLI_BUNDLED_CAUSAL && !c->mask_given) /* the mask it was trained with */
        c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
    if (c->do_file && !c->backward)
        return cli_refuse("--do: found without --backward, accepted is both");
    if (c->mask_file && c->mask != ATTN_MASK_FULL) {
        if (cli_given(given, "--mask-file"))
            return cli_refuse("--mask-file: found without --mask full, accepted is both");
        c->mask_file = NULL; /* of the command line; this line of --cases wants another mask */
    }
    if (!c->bench && cli_given(given, "--warmup --iters") && c->line == 0)
        return cli_refuse("%s: found without --bench, accepted is both",
                          cli_given(given, "--warmup --iters"));
    if (c->mask == ATTN_MASK_CAUSAL_UPPER_LEFT || c->mask == ATTN_MASK_CAUSAL_LOWER_RIGHT)
        c->window_right = 0;
    cli_finish_layout(c);
    return 0;
}

static int finish_rows(const CliCase *c, const CliGiven *given)
{
    const char *found = cli_given(
        given, "--q --bundled --save --seq --seq-q --seq-kv --head-dim --batch --heads --kv-heads "
               "--mask --causal --window --mask-file --scale --softcap --strides --trace "
               "--backward --variant-so");
    double bytes = (double)c->rows * (double)c->cols * 2.0 * (double)dtype_size(c->dtype);
    if (!c->rows != !c->cols)
        return cli_refuse("%s: found without %s, accepted is both", c->rows ? "--rows" : "--cols",
                          c->rows ? "--cols" : "--rows");
    if (c->rows && found)
        return cli_refuse("%s: found beside --rows, accepted is the softmax alone or attention",
                          found);
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
    const char *found = given->variant
                            ? given->variant->name
                            : cli_given(given, "--variant-so --save --bench --rows --pack "
                                               "--no-check");
    return c->judge_dir && found
               ? cli_refuse("--judge: found beside %s, accepted is one of the two", found)
               : 0;
}

/* The checks between flags once all are known. */
static int cli_finish(Cli *cli, CliCase *c, const CliGiven *given)
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
    c->own_variants =
        (!c->variant_so && !c->judge_dir) || given->variant || strcmp(c->variant, "all") != 0;
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
    if (v == &c->so)
        return NULL;
    for (int i = v ? (int)(v - stage->variants) + 1 : 0; i < stage->variant_count; i++)
        if (cli_selects(c, &stage->variants[i]))
            return &stage->variants[i];
    return c->variant_so || c->judge_dir ? &c->so : NULL;
}

/* --- a set of flags ----------------------------------------------------------------------------*/

static const char *refuse_program = "";
static const char *refuse_file;
static int refuse_line;

void cli_refuse_context(const char *program, const char *file, int line)
{
    if (program)
        refuse_program = program;
    refuse_file = line > 0 ? file : NULL;
    refuse_line = line;
}

int cli_refuse(const char *format, ...)
{
    char text[2048], *p;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    /* One sentence is one line, whatever a file name holds. */
    for (p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    bench_progress_clear();
    if (refuse_file)
        fprintf(stderr, "%s: %s:%d: %s\n", refuse_program, refuse_file, refuse_line, text);
    else
        fprintf(stderr, "%s: %s\n", refuse_program, text);
    return EXIT_USAGE;
}

int cli_no_memory(const char *what)
{
    cli_refuse("%s: found that memory is short, accepted are smaller sizes", what);
    return EXIT_RUNTIME;
}

int exit_worst(int a, int b)
{
    static const int order[] = {EXIT_USAGE, EXIT_RUNTIME, EXIT_WRONG, EXIT_NO_DEVICE};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (a == order[i] || b == order[i])
            return order[i];
    return EXIT_OK;
}

static int default_threads(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < 1 ? 1 : count > CLI_MAX_THREADS ? CLI_MAX_THREADS : count;
}

void cli_case_defaults(CliCase *c)
{
    memset(c, 0, sizeof *c);
    c->window_left = c->window_right = -1;
    c->temperature = c->clip_high = 1.0f;
    c->block_q = c->block_kv = 64;
    c->ring.ranks = 4;
    c->ring.timeout_s = 60.0;
    c->variant = "all";
    c->variant_flag = "--variant";
    c->threads = default_threads();
    c->check = 1;
    c->warmup = 3;
    c->iters = 20;
}

static int refuse_unknown(const Stage *stage, const char *word, size_t length, const CliFlag *f)
{
    const CliFlag *nearest = cli_nearest_flag(stage, word, length);
    if (f)
        return cli_refuse("%.*s: found a flag that %s does not have, accepted are those of --help",
                          (int)length, word, stage->name);
    if (word[0] != '-' || length < 2)
        return cli_refuse("found '%s', accepted are flags: see --help", word);
    if (nearest)
        return cli_refuse("%.*s: found an unknown flag, did you mean %s?", (int)length, word,
                          nearest->name);
    return cli_refuse("%.*s: found an unknown flag, accepted are those of --help", (int)length,
                      word);
}

/* One set of flags (a command line, or a line of --cases) onto *c. */
static int cli_read_set(Cli *cli, CliCase *c, CliGiven *given, int count, char **words,
                        int in_cases)
{
    int status;
    for (int i = 0; i < count; i++) {
        const char *word = words[i], *equals = strchr(word, '='), *value = NULL;
        size_t length = equals ? (size_t)(equals - word) : strlen(word);
        const CliFlag *f = cli_find_flag(word, length);
        char flag[32];
        if (!f || (f->feature && !(f->feature & cli->stage->features)))
            return refuse_unknown(cli->stage, word, length, f);
        snprintf(flag, sizeof flag, "%.*s", (int)length, word);
        if (in_cases && f->per_program)
            return cli_refuse(
                "%s: found in a line of --cases, accepted is on the command line only", flag);
        if (equals && !f->value)
            return cli_refuse("%s: found the value '%s', accepted is none", flag, equals + 1);
        if (equals)
            value = equals + 1;
        else if (f->value && f->value[0] != '[') {
            if (i + 1 >= count)
                return cli_refuse("%s: found no value, accepted is %s %s", flag, flag, f->value);
            value = words[++i];
        }
        if (f->kind == TO_PAGE) {
            f->print(cli->stage);
            if (fflush(stdout) == 0 && !ferror(stdout))
                return EXIT_OK;
            cli_refuse("%s: found that the standard output did not take the page, accepted is one "
                       "that does",
                       flag);
            return EXIT_RUNTIME;
        }
        status = cli_apply(cli, c, given, f, flag, value);
        if (status != 0)
            return status;
    }
    return CLI_CONTINUE;
}

/* --- --cases -----------------------------------------------------------------------------------*/

/* All lines are read and refused before any case runs, so that a typo in line 500 does not cost the
 * first 499. */

enum { MAX_BYTES = 16 << 20, MAX_WORDS = 256 };

/* White space between words only: a path with spaces cannot stand in a cases file. */
static int split(char *line, char **words)
{
    int count = 0;
    char *rest = NULL, *word = strtok_r(line, " \t\r\n\v\f", &rest);
    while (word && count < MAX_WORDS) {
        words[count++] = word;
        word = strtok_r(NULL, " \t\r\n\v\f", &rest);
    }
    return word ? -1 : count;
}

static int add_case(Cli *cli, const CliCase *c, int *room)
{
    if (cli->case_count == *room) {
        int more = *room ? 2 * *room : 64;
        CliCase *grown = realloc(cli->cases, (size_t)more * sizeof *grown);
        if (!grown)
            return cli_no_memory("--cases");
        cli->cases = grown;
        *room = more;
    }
    cli->cases[cli->case_count++] = *c;
    return 0;
}

int cli_cases_from_text(Cli *cli, const CliCase *base, const CliGiven *given, char *text,
                        const char *name)
{
    char *words[MAX_WORDS], *line = text;
    int number = 0, room = 0, status;
    while (line && *line) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
        CliCase c = *base;
        CliGiven set = {{0}, NULL, NULL};
        int count;
        if (end)
            *end = '\0';
        number++;
        c.line = number;
        c.cases_file = name;
        cli_refuse_context(NULL, name, number);
        count = split(line, words);
        line = next;
        if (count < 0)
            return cli_refuse("found more than %d words, accepted are fewer", MAX_WORDS);
        if (count == 0 || words[0][0] == '#')
            continue;
        status = cli_read_set(cli, &c, &set, count, words, 1);
        if (status != CLI_CONTINUE)
            return status;
        set.variant = set.variant ? set.variant : given->variant;
        status = cli_finish(cli, &c, &set);
        if (status == 0)
            status = add_case(cli, &c, &room);
        if (status != 0)
            return status;
    }
    cli_refuse_context(NULL, NULL, 0);
    if (cli->case_count == 0)
        return cli_refuse("--cases: found no case in %s, accepted is one line of flags or more",
                          name);
    return CLI_CONTINUE;
}

/* A regular file only: opening or reading a FIFO would wait for a writer that may never come. */
static FILE *open_regular(const char *path)
{
    struct stat s;
    int handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = NULL;
    if (handle < 0)
        return NULL;
    if (fstat(handle, &s) != 0 || S_ISREG(s.st_mode))
        f = fdopen(handle, "rb");
    else
        errno = S_ISDIR(s.st_mode) ? EISDIR : EINVAL;
    if (!f) {
        const int why = errno;
        close(handle);
        errno = why;
    }
    return f;
}

/* NULL after a sentence, and *status. */
static char *read_text(const char *path, int *status)
{
    FILE *f = open_regular(path);
    char *text = f ? malloc((size_t)MAX_BYTES + 1) : NULL;
    size_t size = text ? fread(text, 1, (size_t)MAX_BYTES + 1, f) : 0;
    int failed = !f || !text || ferror(f);
    *status = f && !text ? EXIT_RUNTIME : EXIT_USAGE;
    const char *why = f ? strerror(errno) : "";
    if (!f)
        cli_refuse("--cases: found that %s cannot be opened (%s), accepted is a regular text file",
                   path, strerror(errno));
    else if (!text)
        cli_no_memory("--cases");
    else if (failed)
        cli_refuse("--cases: found that %s cannot be read (%s), accepted is a text file", path,
                   why);
    else if (size > MAX_BYTES || memchr(text, '\0', size)) {
        cli_refuse("--cases: found %s in %s, accepted is text of up to 16 MiB",
                   size > MAX_BYTES ? "too many bytes" : "a zero byte", path);
        failed = 1;
    }
    if (f)
        fclose(f);
    if (failed) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* the mark of some editors */
        memmove(text, text + 3, size - 2);
    return text;
}

static int cli_read_cases(Cli *cli, const CliCase *base, const CliGiven *given)
{
    int status;
    char *text = read_text(cli->cases_file, &status);
    if (!text)
        return status;
    cli->storage = text;
    return cli_cases_from_text(cli, base, given, text, cli->cases_file);
}

/* --- argv --------------------------------------------------------------------------------------*/

/* Of an absolute path only the file's name: a row says nothing about the folders of a machine. */
void cli_keep_command(Cli *cli, const char *program, int argc, char **argv)
{
    size_t used = (size_t)snprintf(cli->command, sizeof cli->command, "%s", program);
    for (int i = 1; i < argc && used < sizeof cli->command; i++) {
        const char *equals = argv[i][0] == '-' ? strchr(argv[i], '=') : NULL;
        const char *value = equals ? equals + 1 : argv[i];
        const char *name = value[0] == '/' ? strrchr(value, '/') + 1 : value;
        used += (size_t)snprintf(cli->command + used, sizeof cli->command - used, " %.*s%s",
                                 (int)(value - argv[i]), argv[i], name);
    }
}

/* A program that was started with a closed standard output (`>&-`) would give its number to the
 * first file that it opens, and the table would be written into the rows of --json. So what is
 * closed becomes a file that takes nothing (a standard input: that gives nothing). */
static void hold_standard_files(void)
{
    for (int number = 0; number < 3; number++)
        if (fcntl(number, F_GETFD) < 0 && open("/dev/null", number ? O_RDONLY : O_WRONLY) < 0)
            break;
}

int cli_parse(Cli *cli, const Stage *stage, int argc, char **argv)
{
    CliCase base;
    CliGiven given = {{0}, NULL, NULL};
    volatile float least = FLT_MIN; /* is half of it 0? Nothing that the oracle says holds then. */
    int status;
    hold_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a write over the limit then fails like one on a full disk */
    memset(cli, 0, sizeof *cli);
    cli->stage = stage;
    cli->so_seconds = 60.0;
    cli->so_mebibytes = 4096;
    cli->so_sandbox = CLI_SANDBOX_BEST;
    cli_refuse_context(stage->name, NULL, 0);
    cli_case_defaults(&base);
    base.backward = (stage->features & STAGE_ALWAYS_BACKWARD) != 0;
    cli_keep_command(cli, stage->name, argc, argv);
    status = cli_read_set(cli, &base, &given, argc > 1 ? argc - 1 : 0, argv + 1, 0);
    if (status == CLI_CONTINUE && least * 0.5f == 0.0f) {
        cli_refuse("found a processor that takes numbers below 2^-126 for zero, accepted is a "
                   "start without the library (LD_PRELOAD, or linked fast math) that set this");
        status = EXIT_RUNTIME;
    }
    if (status == CLI_CONTINUE && cli->cases_file)
        status = cli_read_cases(cli, &base, &given);
    else if (status == CLI_CONTINUE) {
        cli->cases = malloc(sizeof *cli->cases);
        if (!cli->cases)
            return cli_no_memory("the command line");
        cli->cases[0] = base;
        cli->case_count = 1;
        status = cli_finish(cli, &cli->cases[0], &given);
        status = status == 0 ? CLI_CONTINUE : status;
    }
    for (int i = 0; i < cli->case_count && cli->cases; i++)
        cli->quiet |= cli->cases[i].step; /* the table would push the last page off the screen */
    if (status != CLI_CONTINUE)
        cli_free(cli);
    return status;
}

void cli_free(Cli *cli)
{
    free(cli->cases);
    free(cli->storage);
    cli->cases = NULL;
    cli->storage = NULL;
    cli->case_count = 0;
}
