/* SPDX-License-Identifier: MIT
 *
 * judge.c: the oracle of a case, and the verdict on a result. See judge.h.
 */
#include "harness/check/judge.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attn_options.h"
#include "harness/bench/foreign.h"

/* --partials bf16: O is rounded at most once for each rank whose keys come by, travelling sums at
 * most once a hop and once more where they change nodes. */
static double partial_rounding(const CliCase *c)
{
    const double u = 0x1p-8, roundings = 2.0 * (double)c->ring.ranks;
    if (!c->ring.ranks || c->ring.partials == ATTN_F32)
        return 0.0;
    return roundings * u * pow(1.0 + u, roundings);
}

/* Of a kv head, where ulysses has more ranks than there are kv heads. */
static int64_t copies_of(const CliCase *c, const AttnShape *s)
{
    return c->ring.ranks > s->Hkv && c->ring.ranks % s->Hkv == 0 && s->H % c->ring.ranks == 0
               ? c->ring.ranks / s->Hkv
               : 0;
}

int reference_make(Reference *r, const Inputs *p, const CliCase *c)
{
    const OracleRoundings roundings = {partial_rounding(c), copies_of(c, &p->args.shape)};
    memset(r, 0, sizeof *r);
    if (!c->check)
        return EXIT_OK;
    if (oracle_overflows(&p->args, c->backward) > 0)
        return cli_refuse("found inputs with which a sum on the way to the result overflows "
                          "float32, accepted are smaller ones, or --no-check");
    bench_progress("float64 oracle");
    r->ready = 1;
    if (oracle_run_reference(&r->oracle, &p->args, c->backward, c->threads, roundings) != 0) {
        bench_progress_clear();
        cli_refuse("out of memory while computing the reference; --no-check does without it");
        return EXIT_RUNTIME;
    }
    bench_progress_clear();
    if (c->backward && r->oracle.beyond)
        return cli_refuse("found scores that are too large for their gradients to be judged in "
                          "float32: roundings alone may change a weight by a factor of exp(80); "
                          "accepted are a smaller --scale, or --no-check");
    return EXIT_OK;
}

void reference_free(Reference *r)
{
    if (r->ready)
        oracle_free(&r->oracle);
    memset(r, 0, sizeof *r);
}

/* Of the largest cases gradients follow from the O and lse of this very run: oracle_tiles.c. */
static int check_with_own_rows(Check *check, const Reference *r, const RunResult *out,
                               const CliCase *c, double order)
{
    Oracle given;
    if (!r->oracle.given) {
        check_outputs(check, &r->oracle, &out->args, c->backward, order);
        return EXIT_OK;
    }
    bench_progress("float64 oracle, gradients");
    if (oracle_run_given(&given, &r->oracle, &out->args, c->threads) != 0) {
        bench_progress_clear();
        cli_refuse("out of memory while computing the reference; --no-check does without it");
        return EXIT_RUNTIME;
    }
    bench_progress_clear();
    check_outputs(check, &given, &out->args, c->backward, order);
    oracle_given_free(&given);
    return EXIT_OK;
}

int judge_result(Check *check, const Reference *r, const RunResult *out, const CliCase *c,
                 const Variant *v)
{
    /* f32 never goes through tensor cores here (no TF32), so their wider bound is not its own; nor
     * is it of weights that are clipped or dropped, which the library computes in float32. */
    const int in_f32 = c->dtype == ATTN_F32 || attn_clips(&out->args) || attn_drops(&out->args);
    const double order = (v->traits & VARIANT_TENSOR_CORES) && !in_f32 ? 16.0 : 4.0;
    const Foreign *course;
    char why[512];
    memset(check, 0, sizeof *check);
    check->inputs_intact = out->inputs_intact;
    check->storage_intact = out->storage_intact;
    check->copies = (v->traits & VARIANT_COPIES) != 0;
    check->online_block = v->traits & VARIANT_ONLINE_STEPS ? c->block_kv : 0;
    if (check_with_own_rows(check, r, out, c, order) != 0)
        return EXIT_RUNTIME;
    if (!check->pass)
        check_explain(check, v->name, &out->args, stderr);
    check_note_shared(check, v->name, stderr);
    if (!check->pass && v == &c->so && (course = foreign_load(why, sizeof why)))
        course->hint(check, &r->oracle, out, c); /* a student's; ours have none of these mistakes */
    if (out->leaked_bytes > 0) {
        check->pass = 0;
        cli_refuse("%s: %s", v->name, out->failure);
    }
    return check->pass ? EXIT_OK : EXIT_WRONG;
}
