/* SPDX-License-Identifier: MIT
 *
 * report_json.c: one JSON object a row, schema 1 (docs/json_schema.md). JSON has no NaN and no
 * infinity: an unknown number is null, and a non-finite bound_ratio too (nonfinite tells why). And
 * what only stage 06 reports, in the table too: how the tokens were dealt out, what each rank sent
 * and held, and how much of the communication was hidden behind computation.
 *
 * Interface: report_json..., put_..., head_ring_case, head_ring (report_internal.h).
 */
#include "attn_config.h"
#include "harness/device/device.h"
#include "harness/models/model.h"
#include "harness/report/report_internal.h"
#include "harness/report/source_hash.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

static const char *const mask_names[] = {"none", "full", "causal-upper-left", "causal-lower-right"};
static const char *const dist_names[] = {"normal", "outlier", "large", "paired"};
static const char *const layout_names[] = {"bshd", "sbhd", "bhsd", "odd"};

/* Fields of an object, each with a comma before it. null: no text, a count of 0, a number that is
 * not finite, a truth below 0. */

/* Control characters, quotes, and bytes that are not ASCII (a path may hold any) are escaped. */
static void put_string(FILE *f, const char *key, const char *text)
{
    if (!text) {
        fprintf(f, ",\"%s\":null", key);
        return;
    }
    fprintf(f, ",\"%s\":\"", key);
    for (; *text; text++) {
        const unsigned char b = (unsigned char)*text;
        if (b == '"' || b == '\\')
            fprintf(f, "\\%c", b);
        else if (b < 32 || b > 126)
            fprintf(f, "\\u%04x", b);
        else
            fputc(b, f);
    }
    fputc('"', f);
}

static void put_int(FILE *f, const char *key, int64_t value)
{
    fprintf(f, ",\"%s\":%" PRId64, key, value);
}

static void put_count(FILE *f, const char *key, int64_t value)
{
    if (value > 0)
        put_int(f, key, value);
    else
        fprintf(f, ",\"%s\":null", key);
}

static void put_number(FILE *f, const char *key, double value)
{
    if (isfinite(value))
        fprintf(f, ",\"%s\":%.17g", key, value);
    else
        fprintf(f, ",\"%s\":null", key);
}

static void put_bool(FILE *f, const char *key, int value)
{
    fprintf(f, ",\"%s\":%s", key, value < 0 ? "null" : value ? "true" : "false");
}

static void put_samples(FILE *f, const char *key, const Samples *s)
{
    fprintf(f, ",\"%s\":[", key);
    for (int i = 0; i < s->count; i++)
        fprintf(f, "%s%.6g", i ? "," : "", s->ms[i]);
    fputc(']', f);
}

/* --- stage 06 ----------------------------------------------------------------------------------*/

static const char *const transports[] = {"sim", "mpi", "nccl"};
static const char *const links[] = {"nccl", "copy"};
static const char *const faults[] = {"none", "drop", "duplicate", "corrupt", "delay", "exit"};

void head_ring_case(const Report *r, const ReportRow *row)
{
    const CliCase *c = row->c;
    const CliRing *g = &c->ring;
    const int ranks = row->result->ring ? row->result->ring->ranks : (int)g->ranks;
    if (!(r->cli->stage->features & STAGE_HAS_RANKS))
        return;
    printf("# %d rank%s (%s), %s layout", ranks, ranks == 1 ? "" : "s", transports[g->transport],
           ring_layout_name(g->layout));
    if (g->nodes > 1)
        printf(" on %" PRId64 " nodes", g->nodes);
    if (c->cu_q_file)
        printf(", %" PRId64 " sequences", row->problem->args.positions_q.count);
    if (g->transport == CLI_NCCL)
        printf(", link %s", links[g->link]);
    if (g->partials == ATTN_BF16)
        printf(", bf16 partials");
    if (g->adversarial)
        printf(", schedule %" PRIu64, g->schedule_seed);
    if (g->inject)
        printf(", %s at rank %" PRId64 " step %" PRId64, faults[g->inject], g->inject_rank,
               g->inject_step);
    printf("%s\n", g->verify_hops ? ", hops verified" : "");
}

/* Payload of both passes of the rank that sends most. */
static int64_t most_sent(const RingResult *ring)
{
    int64_t most = 0;
    for (int g = 0; g < ring->ranks; g++)
        if (ring->sent[g] + ring->sent_backward[g] > most)
            most = ring->sent[g] + ring->sent_backward[g];
    return most;
}

/* "97.1/95.3": of the messages' time, in percent, hidden in the two passes. */
static const char *hidden_text(char text[16], const RingResult *ring, int backward)
{
    size_t used;
    if (!ring || !isfinite(ring->hidden))
        return "-";
    used = (size_t)snprintf(text, 16, "%.1f", 100.0 * ring->hidden);
    if (backward && isfinite(ring->hidden_backward))
        snprintf(text + used, 16 - used, "/%.1f", 100.0 * ring->hidden_backward);
    return text;
}

void head_ring(const Report *r, const ReportRow *row)
{
    const RingResult *ring = row ? row->result->ring : NULL;
    char sent[16], hidden[16];
    if (!(r->cli->stage->features & STAGE_HAS_RANKS))
        return;
    if (row)
        printf(" %10s %11s", bytes_text(sent, ring ? (double)most_sent(ring) : NAN),
               hidden_text(hidden, ring, row->c->backward));
    else
        printf(" %10s %11s", "sent/rank", "%hidden");
}

static void put_array(FILE *f, const char *key, const int64_t *values, int count)
{
    fprintf(f, ",\"%s\":[", key);
    for (int g = 0; g < count; g++)
        fprintf(f, "%s%" PRId64, g ? "," : "", values[g]);
    fputc(']', f);
}

/* Largest absolute errors, bound or no bound: what grows with the ranks, and what does not. */
static void put_errors(FILE *f, const Check *check)
{
    const char *separator = "";
    fputs(",\"errors\":", f);
    if (!check) {
        fputs("null", f);
        return;
    }
    fputc('{', f);
    for (int which = CHECK_O; which <= CHECK_DV; which++)
        if (check->array[which].checked) {
            fprintf(f, "%s\"%s\":%.6g", separator, check->array[which].name,
                    check->array[which].max_error);
            separator = ",";
        }
    fputc('}', f);
}

static void json_ring(FILE *f, const ReportRow *row)
{
    static const RingResult nothing = {.hidden = NAN,
                                       .hidden_backward = NAN,
                                       .efficiency = NAN,
                                       .efficiency_both = NAN,
                                       .balance = NAN}; /* a --variant-so: it has no ranks */
    const RingResult *ring = row->result->ring ? row->result->ring : &nothing;
    const CliRing *g = &row->c->ring;
    const int ran = row->result->ring != NULL;
    char fault[64];
    snprintf(fault, sizeof fault, "%s@%" PRId64 ":%" PRId64, faults[g->inject], g->inject_rank,
             g->inject_step);
    put_int(f, "ranks", ran ? ring->ranks : 1);
    put_string(f, "transport", ran ? transports[g->transport] : NULL);
    put_string(f, "method", ran ? row->variant->name : NULL);
    put_string(f, "layout", ran ? ring_layout_name(g->layout) : NULL);
    put_count(f, "nodes", ring->nodes);
    put_string(f, "link", g->transport == CLI_NCCL ? links[g->link] : NULL);
    put_string(f, "partials", g->partials ? "bf16" : "f32");
    put_int(f, "sequences", row->problem->args.positions_q.count);
    if (g->adversarial)
        fprintf(f, ",\"seed_schedule\":%" PRIu64, g->schedule_seed);
    else
        fputs(",\"seed_schedule\":null", f);
    put_string(f, "inject", g->inject ? fault : NULL);
    put_bool(f, "verify_hops", g->verify_hops);
    put_array(f, "sent_bytes", ring->sent, ring->ranks);
    put_array(f, "sent_bytes_backward", ring->sent_backward, ring->ranks);
    put_int(f, "outer_bytes", ring->outer_bytes);
    put_array(f, "rank_peak_bytes", ring->peak, ring->ranks);
    put_array(f, "rank_peak_model_bytes", ring->peak_model, ring->ranks);
    put_int(f, "workspace_bytes", ring->workspace_bytes);
    put_errors(f, row->check);
    put_number(f, "hidden", ring->hidden);
    put_number(f, "hidden_backward", ring->hidden_backward);
    put_samples(f, "alone_ms", &ring->baseline);
    put_samples(f, "alone_ms_backward", &ring->baseline_backward);
    put_number(f, "efficiency", ring->efficiency);
    put_number(f, "efficiency_both", ring->efficiency_both);
    put_number(f, "balance", ring->balance);
}

/* --- objects -----------------------------------------------------------------------------------*/

static void put_machine(FILE *f, const Report *r, const CliCase *c, AttnDevice device)
{
    const time_t now = time(NULL);
    struct tm utc;
    char date[32];
    int sm = 0, memory = 0;
    if (device == ON_CUDA)
        device_clocks_khz(&sm, &memory);
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    put_int(f, "threads", c->threads);
    put_string(f, "machine", machine_name());
    put_string(f, "cpu", machine_cpu());
    put_int(f, "ram_bytes", machine_ram_bytes());
    put_string(f, "gpu", device == ON_CUDA ? device_name() : "");
    fprintf(f, ",\"clocks\":{\"sm_khz\":%d,\"memory_khz\":%d}", sm, memory);
    put_string(f, "blas", machine_blas());
    put_string(f, "flags", build_flags());
    put_string(f, "revision", build_revision());
    put_string(f, "date", date);
    put_string(f, "command", r->cli->command);
}

static void put_head(FILE *f, const Report *r, const char *variant, AttnDevice device)
{
    const Stage *stage = r->cli->stage;
    const char *on = device == ON_CPU ? "cpu" : "cuda";
    fprintf(f, "{\"schema\":%d", REPORT_SCHEMA);
    put_string(f, "stage", stage->name);
    put_string(f, "variant", variant);
    put_string(f, "sha256", variant_sha256(stage->folder, variant, on));
    put_string(f, "sources_sha256", variant_sources_sha256(stage->folder, variant, on));
    put_string(f, "device", device == ON_CUDA && device_is_model() ? "simt" : on);
}

/* What only stage 05 knows. */
static void put_offline(FILE *f, const CliCase *c, const AttnArgs *a)
{
    static const char *const tensors[] = {"bshd", "sbhd", "thd"};
    static const char *const packs[] = {"q_k_v", "q_kv", "qkv"};
    static const char *const orders[] = {"rows", "columns", "diagonal", "random"};
    put_string(f, "tensor_layout", tensors[c->tensors]);
    put_string(f, "pack", packs[c->pack]);
    put_int(f, "sequences", a->positions_q.count);
    put_number(f, "temperature", (double)c->temperature);
    fprintf(f, ",\"clip\":[%.9g,%.9g]", (double)c->clip_low, (double)c->clip_high);
    put_number(f, "dropout", (double)c->dropout);
    put_int(f, "qk_norm", c->norm_group);
    put_int(f, "block_q", c->block_q);
    put_int(f, "block_kv", c->block_kv);
    put_string(f, "order", orders[c->order]);
}

/* Of all heads and batches; null for variants without tiles. */
static void put_tile_counts(FILE *f, const ReportTiles *t)
{
    if (t->Br)
        fprintf(f,
                ",\"tiles\":{\"skipped\":%" PRId64 ",\"masked\":%" PRId64 ",\"clean\":%" PRId64 "}",
                t->skipped, t->masked, t->clean);
    else
        fputs(",\"tiles\":null", f);
}

static void put_case(FILE *f, const Stage *stage, const ReportRow *row)
{
    const AttnArgs *a = &row->problem->args;
    const AttnShape *s = &a->shape;
    const CliCase *c = row->c;
    put_string(f, "dtype", dtype_name(c->dtype));
    put_int(f, "B", s->B);
    put_int(f, "H", s->H);
    put_int(f, "Hkv", s->Hkv);
    put_int(f, "Nq", s->Nq);
    put_int(f, "Nk", s->Nk);
    put_int(f, "d", s->d);
    put_string(f, "mask", mask_names[c->mask]);
    fprintf(f, ",\"window\":[%" PRId64 ",%" PRId64 "]", a->rule.left, a->rule.right);
    put_number(f, "scale", (double)a->scale);
    put_number(f, "softcap", (double)a->softcap);
    put_string(f, "strides", layout_names[row->problem->layout]);
    put_string(f, "input",
               c->bundled == CLI_BUNDLED_CAUSAL ? "bundled-causal"
               : c->bundled                     ? "bundled"
               : c->q_file                      ? "files"
                                                : "fill");
    fprintf(f, ",\"seed\":%" PRIu64, c->seed);
    put_string(f, "dist", dist_names[c->dist]);
    put_bool(f, "backward", c->backward);
    put_bool(f, "deterministic", stage->features & STAGE_HAS_DETERMINISTIC ? c->deterministic : -1);
    put_int(f, "line", c->line);
    if (stage->features & STAGE_HAS_OFFLINE)
        put_offline(f, c, a);
    if (stage->features & STAGE_HAS_RANKS)
        json_ring(f, row);
    else
        fputs(",\"ranks\":1,\"transport\":null,\"method\":null,\"layout\":null", f);
}

/* Only of rows that rest on a sample. */
static void put_sample(FILE *f, const Check *check)
{
    const CheckSample *s = check ? &check->sample : NULL;
    if (!s || !s->sampled)
        return;
    fprintf(f,
            ",\"sample\":{\"rows\":%" PRId64 ",\"keys\":%" PRId64 ",\"kv_heads\":%" PRId64
            ",\"given\":%s,\"seed\":%" PRIu64 "}",
            s->rows, s->keys, s->kv_heads, s->given ? "true" : "false", s->seed);
}

/* All of an attention row but its end. */
static void put_attention(FILE *f, const Report *r, const ReportRow *row)
{
    const RunResult *out = row->result;
    const int on_cpu = row->variant->device == ON_CPU;
    put_head(f, r, row->variant->name, row->variant->device);
    put_case(f, r->cli->stage, row);
    put_samples(f, "ms", &out->forward);
    put_number(f, "ms_med", samples_median(&out->forward));
    put_samples(f, "ms_backward", &out->backward);
    put_number(f, "ms_backward_med", samples_median(&out->backward));
    put_bool(f, "l2_flushed", out->l2_flushed);
    put_number(f, "flops", row_flops(r, row));
    put_number(f, "gflops", row_gflops(r, row));
    put_number(f, "sgemm_gflops", on_cpu && r->sgemm_gflops > 0.0 ? r->sgemm_gflops : NAN);
    put_number(f, "hbm_bytes_model", row->model_bytes > 0.0 ? row->model_bytes : NAN);
    put_number(f, "compulsory_bytes_model",
               model_compulsory_bytes(&row->problem->args, row->c->backward));
    put_count(f, "sram_elements", row->tiles.sram_elements);
    put_count(f, "tile_rows", row->tiles.Br);
    put_count(f, "tile_keys", row->tiles.Bc);
    put_count(f, "key_splits", row->tiles.splits);
    if (r->cli->stage->features & STAGE_HAS_OFFLINE)
        put_tile_counts(f, &row->tiles);
    put_number(f, "link_bytes", out->ring ? out->ring->link_bytes : 0.0);
    put_int(f, "peak_bytes", (int64_t)row_peak(r, row));
    put_number(f, "bound_ratio", row->check ? row->check->bound_ratio : NAN);
    put_number(f, "flash_ratio", NAN); /* a second reference measured it once */
    if (r->cli->stage->features & STAGE_HAS_OFFLINE)
        put_number(f, "o_error", row->check ? row->check->array[CHECK_O].max_error : NAN);
    if (row->check)
        put_int(f, "nonfinite", row->check->nonfinite);
    else
        fputs(",\"nonfinite\":null", f);
    put_bool(f, "pass", row_pass(row));
    put_sample(f, row->check);
    put_string(f, "failure", out->failure);
    put_string(f, "so_sandbox",
               row->variant != &row->c->so || !row->c->variant_so ? NULL
               : r->cli->so_sandbox == CLI_SANDBOX_STRICT         ? "strict"
                                                                  : "off");
    put_machine(f, r, row->c, row->variant->device);
}

void report_json(Report *r, const ReportRow *row)
{
    FILE *f = report_json_file(r);
    if (!f)
        return;
    put_attention(f, r, row);
    report_json_end(r);
}

void report_json_softmax(Report *r, const ReportSoftmax *row)
{
    FILE *f = report_json_file(r);
    if (!f)
        return;
    put_head(f, r, row->variant, row->device);
    put_string(f, "dtype", dtype_name(row->c->dtype));
    put_int(f, "rows", row->c->rows);
    put_int(f, "cols", row->c->cols);
    fprintf(f, ",\"seed\":%" PRIu64, row->c->seed);
    put_string(f, "dist", dist_names[row->c->dist]);
    put_int(f, "line", row->c->line);
    put_samples(f, "ms", row->ms);
    put_number(f, "ms_med", samples_median(row->ms));
    put_bool(f, "l2_flushed", row->l2_flushed);
    put_number(f, "accesses", row->accesses);
    put_number(f, "hbm_bytes_model", row->bytes);
    put_number(f, "gbps", row->bytes / (samples_median(row->ms) * 1e6));
    put_number(f, "copy_gbps", row->copy_gbps > 0.0 ? row->copy_gbps : NAN);
    put_int(f, "peak_bytes", (int64_t)row->peak_bytes);
    put_number(f, "bound_ratio", row->bound_ratio);
    put_int(f, "nonfinite", row->nonfinite);
    put_bool(f, "pass", row->pass);
    put_machine(f, r, row->c, row->device);
    report_json_end(r);
}
