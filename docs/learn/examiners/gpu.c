/* SPDX-License-Identifier: MIT
 *
 * gpu.c: the part of a GPU step's program that is the same in all of them. See gpu.h.
 */
#include "gpu.h"

#include <cuda_runtime_api.h>
#include <simt_report.h>
#include <stdint.h>

#define LANE_MISSING                                                                               \
    "Every lane that the mask names has to come to the shuffle: it must not stand in a branch "    \
    "that some lanes skip, nor in a loop that some leave earlier."

/* A finding's title begins so; its code, and what it means. */
static const struct {
    const char *title, *code, *sentence;
} rules[] = {
    {"race: written, then read", "race",
     "One thread writes, another reads, and nothing orders the two. A barrier has to stand between "
     "these lines: __syncthreads(), to which all threads of a block come, or an mbarrier, at which "
     "one arrives and for which the other waits. Between blocks of a launch there is none."},
    {"race: read, then written", "race_overwritten",
     "A thread overwrites what another may still read. Who overwrites has to wait, at a barrier "
     "behind the last read, until all have read."},
    {"race: written twice", "race_twice",
     "Two threads write one place, and nothing orders them: one of the two values is lost. Give "
     "each place one owner, or add with atomicAdd."},
    {"read of memory that nobody", "unwritten",
     "Nobody has written this place yet. Either nobody ever does, or who writes it comes later: "
     "then "
     "a barrier is missing between the two."},
    {"out of bounds", "out_of_bounds", "The address is outside of what was allocated."},
    {"use of bytes of a copy", "in_flight",
     "cp.async has only begun to copy. Each thread waits for its own copies, and the barrier "
     "behind "
     "the wait makes that true for all threads."},
    {"a thread ends before", "not_waited", "Wait for every copy before the kernel ends."},
    {"a barrier in a branch", "barrier_split",
     "All threads of a block have to come to the same __syncthreads()."},
    {"a barrier that some", "barrier_ended",
     "Some threads have returned; the others wait for them at a barrier. Let them skip the work "
     "and not the barrier."},
    {"a lane is missing", "lane_missing", LANE_MISSING},
    {"misaligned", "misaligned", "An address has to be a multiple of the size of the access."},
    {"wrong phase", "phase",
     "A wait names the parity of the phase that has to be over: 0 the first time, then 1, 0, 1."},
    {"wrong use of an mbarrier", "mbarrier",
     "An mbarrier is initialised once, by one thread, with the number of arrivals of a phase, and "
     "nobody uses it before all threads know that."},
    {"deadlock", "deadlock",
     "Everyone waits, and no one is left who could end that. For each line above: who should come, "
     "and where does he stand?"},
    {"no progress", "no_progress", "A loop waits for a value that never comes."},
};

/* What a case may bound: the word behind --most- and --least-, the runtime's name, and the idea. */
static const struct {
    const char *word, *count;
    int has_line; /* simt_worst() names one */
    const char *why;
} limits[] = {
    {"sectors-read", "sectors read", 1, ""},
    {"sectors-written", "sectors written", 1, ""},
    {"global-writes", "global writes", 0, "A warp's store of 4 or of 16 bytes a lane is one."},
    {"shared-reads", "shared reads", 0, ""},
    {"shared-writes", "shared writes", 0, ""},
    {"wavefronts", "wavefronts", 1, ""},
    {"shuffles", "shuffles", 0, ""},
    {"copies", "cp.async", 0, ""},
    {"overlap", "groups of copies beside reads", 0,
     "While a tile is added, the next one has to be on its way: begin to copy it before, and wait "
     "only for the groups that this tile needs."},
    {"ldmatrix", "ldmatrix", 0, ""},
    {"mma", "mma", 0, ""},
    {"atomics", "atomics", 0, ""},
    {"barriers", "barriers", 0, ""},
    {"mbarrier", "mbarrier", 0, ""},
    {"mbarriers", "mbarriers in use", 0,
     "With one stage the producer waits while consumers add, and they while it fills."},
    {"blocks", "blocks", 0, ""},
    {"launches", "launches", 0, "Blocks that run one after the other are no grid."},
};

static struct {
    const Output *out;
    float *dev;
} to_copy[8];
static int n_to_copy;

/* Before the runtime reads its flags. */
__attribute__((constructor(101))) static void set_flags(int argc, char **argv)
{
    int i;
    setenv("SIMT_CHECK", "1", 0);
    setenv("SIMT_COUNT", "1", 0);
    setenv("SIMT_SECONDS", "2", 0);
    for (i = 1; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "--early"))
            setenv("SIMT_EARLY", argv[i + 1], 1);
        if (!strcmp(argv[i], "--seed"))
            setenv("SIMT_SEED", argv[i + 1], 1);
        if (!strcmp(argv[i], "--blocks"))
            setenv("SIMT_BLOCKS", argv[i + 1], 1);
    }
}

static void *copy_to_device(const void *x, size_t bytes)
{
    void *dev = NULL;
    if (cudaMalloc(&dev, bytes) || cudaMemcpy(dev, x, bytes, cudaMemcpyHostToDevice))
        refuse("memory", "There is no memory for this case.");
    return dev;
}

float *on_device(const float *x, long count)
{
    return copy_to_device(x, sizeof(float) * (size_t)count);
}

float *back(const Output *out)
{
    to_copy[n_to_copy].out = out;
    return to_copy[n_to_copy++].dev = on_device(out->found, out->rows * out->cols);
}

/* Round to nearest, ties to even; no NaN comes here. */
static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void round_bf16(float *x, long count)
{
    long i;
    for (i = 0; i < count; i++) {
        const uint32_t u = (uint32_t)to_bf16(x[i]) << 16;
        memcpy(x + i, &u, sizeof u);
    }
}

void *bf16_on_device(const float *x, long count)
{
    uint16_t *half = malloc(sizeof *half * (size_t)count);
    void *dev;
    long i;
    for (i = 0; i < count; i++)
        half[i] = to_bf16(x[i]);
    dev = copy_to_device(half, sizeof *half * (size_t)count);
    free(half);
    return dev;
}

static void say_finding(void)
{
    const char *title, *text = simt_finding(&title);
    size_t k;
    if (!text)
        return;
    if (!strcmp(title, "deadlock") && strstr(text, "shuffle") && strstr(text, "ended"))
        refuse("lane_missing", "%s\n%s\n%s", title, text, LANE_MISSING);
    for (k = 0; k < sizeof rules / sizeof *rules; k++)
        if (!strncmp(title, rules[k].title, strlen(rules[k].title)))
            refuse(rules[k].code, "%s\n%s\n%s", title, text, rules[k].sentence);
    refuse("finding", "%s\n%s", title, text);
}

void end_kernels(void)
{
    int k;
    if (getenv("LEARN_FD"))
        simt_no_report();
    cudaDeviceSynchronize();
    say_finding();
    for (k = 0; k < n_to_copy; k++)
        cudaMemcpy(to_copy[k].out->found, to_copy[k].dev,
                   sizeof(float) * (size_t)(to_copy[k].out->rows * to_copy[k].out->cols),
                   cudaMemcpyDeviceToHost);
}

/* Of a right result: is it right for the reason that the step is about? */
void judge_counts(void)
{
    char most[40], least[40];
    size_t k;
    for (k = 0; k < sizeof limits / sizeof *limits; k++) {
        const long found = simt_count(limits[k].count);
        snprintf(most, sizeof most, "--most-%s", limits[k].word);
        snprintf(least, sizeof least, "--least-%s", limits[k].word);
        if (found < number(least, 0))
            refuse(least + 2,
                   "The result is right, but the idea of this step needs %ld %s at "
                   "least; your kernel has %ld. %s",
                   number(least, 0), limits[k].count, found, limits[k].why);
        if (found > number(most, found)) {
            const char *worst = limits[k].has_line ? simt_worst(limits[k].count) : limits[k].why;
            if (!worst)
                worst = "No request is wider than its bytes need. There are too many: the same "
                        "numbers are read, or written, again and again.";
            refuse(most + 2, "The result is right, but it takes %ld %s; %ld are enough.\n\n%s",
                   found, limits[k].count, number(most, 0), worst);
        }
    }
}

__attribute__((constructor)) static void at_stop(void)
{
    simt_at_stop = say_finding;
}
