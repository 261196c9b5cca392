/* SPDX-License-Identifier: MIT
 *
 * cli_sizes.c: which sizes this machine, this stage and these flags accept.
 *
 * Interface: cli_check_shape (cli.h), cli_finish_sizes, cli_memory_limit (cli_internal.h).
 */
#include "cli/cli_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* Physical memory, or less when a container's limit is lower. */
double cli_memory_limit(void)
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
int cli_finish_sizes(CliCase *c)
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
