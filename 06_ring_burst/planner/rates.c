/* SPDX-License-Identifier: MIT
 *
 * rates.c: the speeds that predictions start from, where ATTN_RING_RATES names no file with those
 * of the machine at hand.
 *
 * Kernels: the block kernels of stages 03 and 04 for Hopper, d = 128, bf16, as an H100 with 32768
 * tokens had them without mask and messages on 2026-11-25. Where positions do not grow with the
 * index (ulysses over zigzag shards, packed sequences), or there is a mask array or a cap, the
 * portable kernels run: 365 and 285 TFLOP/s on an H200, 2026-11-22. CPU: one thread. Links of 8
 * H200s of one host: 255 GB/s each way through NCCL's send and receive, 382 GB/s by copy engines,
 * both measured; between nodes one NIC of 50 GB/s a GPU, its nominal rate, since no second node was
 * at hand.
 *
 * A rate is what is left of a machine when everything is taken away that is not needed to predict
 * a run: bytes per second, operations per second, and what a call or a message costs before its
 * first byte.
 *
 * Interface: ring_rates_default, ring_rates_read (cost.h).
 */
#include "planner/cost.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Rates of whole kernels: what blocks, the host and a pass cost beside is in them. */
static const RingRates gpu = {.flops = {785e12, 634e12},
                              .scattered = 2.2,
                              .masked_keys = 64,
                              .call_s = 8e-6,
                              .memory = 4.2e12,
                              .latency = {15e-6, 25e-6},
                              .bandwidth = {255e9, 50e9}};
static const RingRates cpu = {.flops = {60e9, 50e9},
                              .scattered = 1,
                              .masked_keys = 16,
                              .call_s = 5e-6,
                              .memory = 8e9,
                              .latency = {10e-6, 10e-6},
                              .bandwidth = {5e9, 5e9}};

RingRates ring_rates_default(const char *transport, AttnDtype dtype)
{
    const int copy = strcmp(transport, "copy") == 0;
    RingRates rates = gpu;
    if (!copy && strcmp(transport, "nccl") != 0)
        return cpu;
    if (dtype == ATTN_F32) { /* no tensor cores */
        rates.flops[0] = 42e12;
        rates.flops[1] = 25e12;
        rates.scattered = 1;
    }
    if (copy)
        rates.bandwidth[RING_INNER] = 382e9;
    return rates;
}

#define RATE(name, field, may_be_0)                                                                \
    {                                                                                              \
        name, offsetof(RingRates, field), may_be_0                                                 \
    }
static const struct {
    const char *name;
    size_t offset;
    int may_be_0;
} names[] = {
    RATE("flops_forward", flops[0], 0),
    RATE("flops_backward", flops[1], 0),
    RATE("scattered", scattered, 0),
    RATE("masked_keys", masked_keys, 1),
    RATE("call_s", call_s, 1),
    RATE("memory", memory, 0),
    RATE("latency_inner", latency[RING_INNER], 1),
    RATE("latency_outer", latency[RING_OUTER], 1),
    RATE("bandwidth_inner", bandwidth[RING_INNER], 0),
    RATE("bandwidth_outer", bandwidth[RING_OUTER], 0),
};
#undef RATE

/* -1: there is no rate of this name, or not with this value. Speeds must be positive; what adds to
 * a time may be zero. A speed of 0 would be a division by zero, a negative one a run that ends
 * before it begins. An infinite one gives times that are no numbers. */
static int set_rate(RingRates *rates, const char *name, double value)
{
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (strcmp(name, names[n].name) == 0 &&
            ((1e-30 <= value && value <= 1e30) || (names[n].may_be_0 && value == 0))) {
            memcpy((char *)rates + names[n].offset, &value, sizeof value);
            return 0;
        }
    return -1;
}

/* A copy is changed and given back only when every line was good: nothing is half read. */
int ring_rates_read(RingRates *rates, const char *path, char why[256])
{
    RingRates read = *rates;
    char line[256], name[64], rest;
    int number = 0;
    FILE *f = fopen(path, "r");
    if (!f) {
        snprintf(why, 256, "'%.150s': no such file of rates, or it cannot be read", path);
        return -1;
    }
    while (fgets(line, sizeof line, f)) {
        double value;
        number++;
        while (line[0] == '#' && !strchr(line, '\n') && fgets(line + 1, sizeof line - 1, f)) {
        } /* a comment may be longer than the buffer */
        if (line[0] == '#' ||
            (line[strspn(line, " \t\r\n")] == '\0' && (strchr(line, '\n') || feof(f))))
            continue;
        if (sscanf(line, "%63s %lf %c", name, &value, &rest) != 2 ||
            set_rate(&read, name, value) != 0) {
            snprintf(why, 256, "'%.100s', line %d: accepted is the name of a rate and its value",
                     path, number);
            fclose(f);
            return -1;
        }
    }
    if (ferror(f)) { /* a folder opens, and cannot be read */
        snprintf(why, 256, "'%.150s': it cannot be read: %s", path, strerror(errno));
        fclose(f);
        return -1;
    }
    fclose(f);
    *rates = read;
    return 0;
}
