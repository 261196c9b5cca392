/* SPDX-License-Identifier: MIT
 *
 * cli_apply.c: one flag onto a case. What must hold between flags is the business of cli_finish.c.
 * See cli_internal.h.
 */
#include "bench.h"
#include "cli_internal.h"

#include <string.h>

static int apply_size(CliCase *c, FlagId id, const char *flag, const char *text)
{
    const int64_t max = id == FLAG_D ? CLI_MAX_D : (int64_t)1 << 40;
    int64_t value = 0;
    int status = cli_read_int(flag, text, 1, max, &value);
    switch (id) {
    case FLAG_B:
        c->B = value;
        break;
    case FLAG_H:
        c->H = value;
        break;
    case FLAG_KV_HEADS:
        c->Hkv = value;
        break;
    case FLAG_SEQ:
        c->Nq = c->Nk = value;
        break;
    case FLAG_SEQ_Q:
        c->Nq = value;
        break;
    case FLAG_SEQ_KV:
        c->Nk = value;
        break;
    case FLAG_ROWS:
        c->rows = value;
        break;
    case FLAG_COLS:
        c->cols = value;
        break;
    case FLAG_SRAM:
        c->sram = value;
        break;
    case FLAG_SMEM_LIMIT:
        c->smem_limit = value;
        break;
    default:
        c->d = value;
        break;
    }
    return status;
}

static int apply_name(CliCase *c, FlagId id, const char *flag, const char *text)
{
    static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
    static const char *const masks[] = {"none", "full", "causal-upper-left", "causal-lower-right",
                                        NULL};
    static const char *const dists[] = {"normal", "outlier", "large", "paired", NULL};
    static const char *const layouts[] = {"bshd", "sbhd", "bhsd", "odd", NULL};
    static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
    static const char *const bundles[] = {"encoder", "causal", NULL};
    int i = 0, status;
    switch (id) {
    case FLAG_DTYPE:
        status = cli_read_name(flag, text, dtypes, &i);
        c->dtype = (AttnDtype)i;
        break;
    case FLAG_MASK:
        status = cli_read_name(flag, text, masks, &i);
        c->mask = (AttnMask)i;
        c->mask_given = 1;
        break;
    case FLAG_DIST:
        status = cli_read_name(flag, text, dists, &i);
        c->dist = (FillDist)i;
        break;
    case FLAG_STRIDES:
        status = cli_read_name(flag, text, layouts, &i);
        c->layout = (TensorLayout)i;
        break;
    case FLAG_DEVICE:
        status = cli_read_name(flag, text, devices, &i);
        c->device = (CliDevice)i;
        break;
    default:
        status = cli_read_name(flag, text ? text : "encoder", bundles, &i);
        c->bundled = (CliBundled)(CLI_BUNDLED_ENCODER + i);
        break;
    }
    return status;
}

static int apply_file(Cli *cli, CliCase *c, FlagId id, const char *flag, const char *text)
{
    if (text[0] == '\0' || strncmp(text, "--", 2) == 0)
        return cli_refuse("%s: found '%s', accepted is a path", flag, text);
    switch (id) {
    case FLAG_Q:
        c->q_file = text;
        break;
    case FLAG_K:
        c->k_file = text;
        break;
    case FLAG_V:
        c->v_file = text;
        break;
    case FLAG_DO:
        c->do_file = text;
        break;
    case FLAG_MASK_FILE:
        c->mask_file = text;
        break;
    case FLAG_SAVE:
        c->save_dir = text;
        break;
    case FLAG_VARIANT_SO:
        c->variant_so = text;
        break;
    case FLAG_CASES:
        cli->cases_file = text;
        break;
    default:
        cli->json_file = text;
        break;
    }
    return 0;
}

static int apply_number(Cli *cli, CliCase *c, FlagId id, const char *flag, const char *text)
{
    int64_t value = 0;
    float real = 0.0f;
    int status = 0;
    switch (id) {
    case FLAG_WINDOW:
        c->window_given = 1;
        return cli_read_window(flag, text, &c->window_left, &c->window_right);
    case FLAG_SCALE:
        status = cli_read_float(flag, text, 0, &c->scale);
        if (status == 0 && !(c->scale >= -CLI_MAX_SCALE && c->scale <= CLI_MAX_SCALE))
            return cli_refuse("%s: found '%s', accepted is a number from -%g to %g: larger ones "
                              "make scores that float32 does not hold",
                              flag, text, CLI_MAX_SCALE, CLI_MAX_SCALE);
        return status;
    case FLAG_SOFTCAP:
        status = cli_read_float(flag, text, 1, &c->softcap);
        if (status == 0 && !(c->softcap <= CLI_MAX_SOFTCAP))
            return cli_refuse("%s: found '%s', accepted is a number up to %g: a larger one times "
                              "log2(e) is more than float32 holds",
                              flag, text, CLI_MAX_SOFTCAP);
        return status;
    case FLAG_SEED:
        return cli_read_u64(flag, text, &c->seed);
    case FLAG_THREADS:
        status = cli_read_int(flag, text, 1, CLI_MAX_THREADS, &value);
        c->threads = (int)value;
        return status;
    case FLAG_WARMUP:
        status = cli_read_int(flag, text, 0, BENCH_MAX_SAMPLES, &value);
        c->warmup = (int)value;
        return status;
    case FLAG_ITERS:
        status = cli_read_int(flag, text, 1, BENCH_MAX_SAMPLES, &value);
        c->iters = (int)value;
        return status;
    case FLAG_SO_MEMORY:
        return cli_read_int(flag, text, 1, (int64_t)1 << 30, &cli->so_mebibytes);
    default:
        status = cli_read_float(flag, text, 1, &real);
        if (status == 0 && !(real <= 86400.0f))
            return cli_refuse("%s: found '%s', accepted are seconds up to 86400", flag, text);
        cli->so_seconds = real;
        return status;
    }
}

static void apply_switch(Cli *cli, CliCase *c, FlagId id)
{
    switch (id) {
    case FLAG_CAUSAL:
        c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
        c->mask_given = 1;
        break;
    case FLAG_BACKWARD:
        c->backward = 1;
        break;
    case FLAG_DETERMINISTIC:
        c->deterministic = 1;
        break;
    case FLAG_CHECK:
        c->check = 1;
        break;
    case FLAG_NO_CHECK:
        c->check = 0;
        break;
    case FLAG_BENCH:
        c->bench = 1;
        break;
    case FLAG_TRACE:
        c->trace = 1;
        break;
    default:
        cli->quiet = 1;
        break;
    }
}

int cli_apply(Cli *cli, CliCase *c, CliGiven *given, const CliFlag *f, const char *flag,
              const char *text)
{
    /* The order of --causal and --mask must not decide which one wins. */
    if (f->id == FLAG_CAUSAL && GIVEN(given, FLAG_MASK) && c->mask != ATTN_MASK_CAUSAL_LOWER_RIGHT)
        return cli_refuse("--causal: found beside --mask %s, accepted is one of the two",
                          given->mask_text);
    given->flag[f->id] = 1;
    switch (f->id) {
    case FLAG_B:
    case FLAG_H:
    case FLAG_KV_HEADS:
    case FLAG_SEQ:
    case FLAG_SEQ_Q:
    case FLAG_SEQ_KV:
    case FLAG_D:
    case FLAG_ROWS:
    case FLAG_COLS:
    case FLAG_SRAM:
    case FLAG_SMEM_LIMIT:
        return apply_size(c, f->id, flag, text);
    case FLAG_MASK:
        given->mask_text = text;
        if (GIVEN(given, FLAG_CAUSAL) && strcmp(text, "causal-lower-right") != 0)
            return cli_refuse("--causal: found beside --mask %s, accepted is one of the two", text);
        return apply_name(c, f->id, flag, text);
    case FLAG_DTYPE:
    case FLAG_DIST:
    case FLAG_STRIDES:
    case FLAG_DEVICE:
    case FLAG_BUNDLED:
        return apply_name(c, f->id, flag, text);
    case FLAG_METHOD: /* stage 06's word for it */
        given->flag[FLAG_VARIANT] = 1;
        c->variant = text;
        return 0;
    case FLAG_VARIANT:
        c->variant = text;
        return 0;
    case FLAG_Q:
    case FLAG_K:
    case FLAG_V:
    case FLAG_DO:
    case FLAG_MASK_FILE:
    case FLAG_SAVE:
    case FLAG_VARIANT_SO:
    case FLAG_CASES:
    case FLAG_JSON:
        return apply_file(cli, c, f->id, flag, text);
    default:
        if (f->feature == STAGE_HAS_RANKS)
            return cli_apply_ring(c, f->id, flag, text);
        if (f->feature & (STAGE_HAS_VARLEN | STAGE_HAS_OFFLINE))
            return cli_apply_offline(c, f->id, flag, text);
        if (f->value)
            return apply_number(cli, c, f->id, flag, text);
        apply_switch(cli, c, f->id);
        return 0;
    }
}
