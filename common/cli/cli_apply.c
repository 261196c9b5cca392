/* SPDX-License-Identifier: MIT
 *
 * cli_apply.c: one flag onto a case, as the table says (cli_flags.c). What must hold between flags
 * is the business of cli_finish.c.
 *
 * Interface: cli_apply, the readers of flags that every stage has (cli_internal.h).
 */
#include "cli/cli_internal.h"

#include <stdio.h>
#include <string.h>

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
    if (GIVEN(given, FLAG_MASK) && c->mask != ATTN_MASK_CAUSAL_LOWER_RIGHT)
        return refuse_both_masks(given->mask_text);
    c->mask = ATTN_MASK_CAUSAL_LOWER_RIGHT;
    c->mask_given = 1;
    return 0;
}

CLI_READER(mask)
{
    int mask = 0, status;
    given->mask_text = text;
    if (GIVEN(given, FLAG_CAUSAL) && strcmp(text, "causal-lower-right") != 0)
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
    given->flag[FLAG_VARIANT] = 1;
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

int cli_apply(Cli *cli, CliCase *c, CliGiven *given, const CliFlag *f, const char *flag,
              const char *text)
{
    void *at = (f->per_program ? (char *)cli : (char *)c) + f->at;
    int64_t value = 0;
    int status;
    given->flag[f->id] = 1;
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
