/* SPDX-License-Identifier: MIT
 *
 * report_ring.c: what only stage 06 tells: how the tokens were dealt out, what each rank sent and
 * held, and how much of the communication was hidden behind computation.
 *
 * Interface: head_ring_case, head_ring, json_ring (report_internal.h).
 */
#include "report/report_internal.h"

#include <inttypes.h>
#include <math.h>

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
    if (!ring || !is_finite_f64(ring->hidden))
        return "-";
    used = (size_t)snprintf(text, 16, "%.1f", 100.0 * ring->hidden);
    if (backward && is_finite_f64(ring->hidden_backward))
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

void json_ring(FILE *f, const ReportRow *row)
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
