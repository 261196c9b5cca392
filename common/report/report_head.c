/* SPDX-License-Identifier: MIT
 *
 * report_head.c: what stands above the rows of the table: the machine, the case with everything
 * that was asked for, the columns; and the column that only stage 05 has.
 *
 * Interface: head_machine, head_case, head_tiles (report_internal.h).
 */
#include "report/report_internal.h"

#include "cuda/device.h"

#include <inttypes.h>
#include <string.h>

/* --device auto leaves GPU variants out silently but for this line. */
static void note_no_device(const Report *r, const CliCase *c)
{
    const Stage *stage = r->cli->stage;
    int i, cuda = 0;
    for (i = 0; i < stage->variant_count; i++)
        cuda |= stage->variants[i].device == ON_CUDA;
    if (cuda && c->own_variants && c->device == CLI_DEVICE_AUTO && device_count() == 0 &&
        strcmp(c->variant, "all") == 0)
        fprintf(stderr, "note: %s, so the CPU variants run\n",
                device_built() ? "no CUDA device here" : "built without CUDA");
}

void head_machine(const Report *r, const CliCase *c)
{
    char blas[64];
    if (r->rows > 0)
        return;
    note_no_device(r, c);
    snprintf(blas, sizeof blas, "%.60s", machine_blas());
    printf("# %s: %s\n", r->cli->stage->name, r->cli->stage->question);
    printf("# CPU %s, %d thread%s, BLAS %s\n", machine_cpu(), c->threads,
           c->threads == 1 ? "" : "s", blas);
    if (device_count() > 0)
        printf("# GPU %s, sm_%d\n", device_name(), device_arch());
    if (!c->bench)
        printf("# ms and speed are of one cold run; --bench measures\n");
}

/* What only stage 05 knows, as far as it was asked for. */
static void print_options(const CliCase *c, const AttnArgs *a)
{
    static const char *const packs[] = {"", ", K and V packed", ", Q, K and V packed"};
    const AttnOptions *o = a->options;
    if (c->tensors == CLI_THD)
        printf(", %" PRId64 " sequence%s in a row", a->positions_q.count,
               a->positions_q.count == 1 ? "" : "s");
    printf("%s%s", c->tensors == CLI_SBHD ? ", SBHD" : "", packs[c->pack]);
    if (o && o->temperature != 1.0f)
        printf(", temperature %g", (double)o->temperature);
    if (o && (o->clip_low != 0.0f || o->clip_high != 1.0f))
        printf(", clip %g,%g", (double)o->clip_low, (double)o->clip_high);
    if (o && o->dropout > 0.0f)
        printf(", dropout %g", (double)o->dropout);
    if (o && o->norm_group)
        printf(", QK norm %" PRId64, o->norm_group);
}

/* Stage 05's last column: how many tiles the window leaves. */
void head_tiles(const Report *r, const ReportTiles *tiles)
{
    char text[64] = "-";
    if (!(r->cli->stage->features & STAGE_HAS_OFFLINE))
        return;
    if (tiles && tiles->Br)
        snprintf(text, sizeof text, "%" PRId64 "/%" PRId64 "/%" PRId64, tiles->skipped,
                 tiles->masked, tiles->clean);
    printf(" %20s", tiles ? text : "tiles skip/mask/full");
}

/* Which part of a large case was looked at, and how to look at the same part again. */
static void head_sample(const Check *check)
{
    const CheckSample *s = check ? &check->sample : NULL;
    if (!s || !s->sampled)
        return;
    printf("# checked: %" PRId64 " rows of each head", s->rows);
    if (s->keys)
        printf("; %" PRId64 " keys of %" PRId64 " kv head%s%s", s->keys, s->kv_heads,
               s->kv_heads == 1 ? "" : "s",
               s->given ? ", gradients from the run's own O and lse" : "");
    printf("; ATTN_SAMPLE_SEED=%" PRIu64 "\n", s->seed);
}

void head_case(const Report *r, const ReportRow *row)
{
    static const char *const masks[] = {"", ", full mask", ", causal upper-left",
                                        ", causal lower-right"};
    const CliCase *c = row->c;
    const AttnShape *s = &row->problem->args.shape;
    printf("# ");
    if (c->line)
        printf("line %d: ", c->line);
    printf("B=%" PRId64 " H=%" PRId64 " Hkv=%" PRId64 " Nq=%" PRId64 " Nk=%" PRId64 " d=%" PRId64
           " %s%s",
           s->B, s->H, s->Hkv, s->Nq, s->Nk, s->d, dtype_name(c->dtype), masks[c->mask]);
    if (c->window_given)
        printf(", window %" PRId64 ",%" PRId64, c->window_left, c->window_right);
    print_options(c, &row->problem->args);
    printf("%s%s%s\n",
           c->bundled == CLI_BUNDLED_CAUSAL ? ", bundled training step"
           : c->bundled                     ? ", bundled activations"
           : c->q_file                      ? ", files"
                                            : "",
           backward_alone(r) ? ", backward pass alone"
           : c->backward     ? ", forward + backward"
                             : "",
           c->deterministic ? ", deterministic" : "");
    head_ring_case(r, row);
    head_sample(row->check);
    printf("%-20s %-4s %-5s %9s %9s %9s %7s %10s %10s %7s", "variant", "on", "check", "err/bound",
           "ms", "GFLOP/s", "%sgemm", "traffic", "peak mem", "speed");
    head_tiles(r, NULL);
    head_ring(r, NULL);
    putchar('\n');
}
