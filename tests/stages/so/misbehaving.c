/* SPDX-License-Identifier: MIT
 *
 * misbehaving.c: what else students hand in. -DMISBEHAVE=<a number below> chooses; the checking
 * program must live, exit 1 and say what happened. -DSTAGE=naive as in right.c; -DBACKWARD for a
 * stage whose outputs are dQ, dK and dV.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "alloc.h"
#include "course/runner.h"
#include "tensor.h"

/* clang-format off */
enum {
    CRASH = 1, HANG, OVERRUN, UNDERRUN, WRITES_INPUT, READS_PAST_K, HUGE_MALLOC, EXIT_EARLY, ABORTS,
    WRONG_ABI, NO_ABI, NO_SYMBOL, RETURNS_ERROR, SKIPS, DOES_NOTHING, DEEP_RECURSION, PRINTS,
    LEAVES_A_CHILD, WRITES_GAPS, LEAKS, CONSTANT, ENDS_IN_SILENCE, FORGES_REPORT, WRITES_FILES,
    LEAVES_A_SESSION, PRINTS_MUCH, KILLS_ITS_PARENT,
    WAITS_WITH_OTHERS, WAITS /* test_variant_so.py: interrupted */
};
/* clang-format on */

#define JOIN2(a, b) a##_##b
#define JOIN(a, b)  JOIN2(a, b)
#define EXPORT(x)   JOIN(STAGE, x)

/* The preprocessor knows no enumerators: these three must leave a symbol out or change it. */
#if MISBEHAVE == 10
int EXPORT(abi_version) = 999;
#elif MISBEHAVE != 11
int EXPORT(abi_version) = ABI_OF(STAGE);
#endif

/* Every element of an output is finite now, and wrong. */
static void fill_rows(const Tensor *t, const float *row)
{
    int64_t b, n, h;
    for (b = 0; b < t->shape[0]; b++)
        for (n = 0; n < t->shape[1]; n++)
            for (h = 0; h < t->shape[2]; h++)
                tensor_write_row(t, b, n, h, row);
}

static void fill_outputs(const AttnArgs *a)
{
    const AttnShape *s = &a->shape;
    float *row = calloc((size_t)s->d, sizeof *row);
#ifdef BACKWARD
    fill_rows(&a->dQ, row);
    fill_rows(&a->dK, row);
    fill_rows(&a->dV, row);
#else
    int64_t i;
    fill_rows(&a->O, row);
    for (i = 0; i < s->B * s->H * s->Nq; i++)
        a->lse[i] = 0.0f;
#endif
    free(row);
}

static volatile int sink;

static int recurse(int depth)
{
    volatile char room[4096];
    room[0] = (char)depth;
    sink += room[0];
    return depth < 0 ? 0 : recurse(depth + 1) + room[0];
}

/* "It returned", as the runner says it. */
static void forge_report(void)
{
    const RunnerReply done = {.says = RUNNER_DONE, .used = {.intact = 1}};
    if (write(RUNNER_CONTROL, &done, sizeof done) != sizeof done)
        abort();
}

/* A grandchild out of the process group, with stdout and stderr open. */
static void leave_a_session(void)
{
    int ends[2];
    char ready = 0;
    if (pipe(ends) != 0)
        return;
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            if (write(ends[1], "r", 1) == 1)
                sleep(300);
        }
        _exit(0);
    }
    if (read(ends[0], &ready, 1) == 1)
        sink += ready;
}

static AttnStatus misbehave(const AttnArgs *a)
{
#ifdef BACKWARD
    float *const first = a->dQ.data, *const second = a->dK.data;
#else
    float *const first = a->O.data, *const second = a->lse;
#endif
    float *const K = a->K.data;
    const int64_t last_k = tensor_count(&a->K);
    switch (MISBEHAVE) {
    case CRASH:
        *(volatile int *)(size_t)8 = 1;
        break;
    case HANG:
        for (;;)
            sink++;
    case OVERRUN:
        first[tensor_count(&a->Q)] = 1.0f; /* O and dQ are like Q */
        break;
    case UNDERRUN:
        second[-1] = 0.0f;
        fill_outputs(a);
        break;
    case WRITES_INPUT:
        K[0] = 1.0f;
        break;
    case READS_PAST_K:
        sink = (int)K[last_k];
        break;
    case HUGE_MALLOC: {
        /* 1 GiB in small steps: only a limit refuses one of them */
        int step, at;
        for (step = 0; step < 1024; step++) {
            volatile char *p = malloc((size_t)1 << 20);
            if (!p)
                return ATTN_NO_MEMORY;
            for (at = 0; at < 1 << 20; at += 4096)
                p[at] = 1;
        }
        fill_outputs(a);
        break;
    }
    case EXIT_EARLY:
        exit(0);
    case ABORTS:
        abort();
    case RETURNS_ERROR:
        return ATTN_NO_MEMORY;
    case SKIPS:
        return ATTN_SKIP;
    case DEEP_RECURSION:
        sink = recurse(0);
        break;
    case PRINTS:
        printf("hello from the student\n");
        fflush(stdout);
        fill_outputs(a);
        break;
    case LEAVES_A_CHILD:
        if (fork() == 0) {
            signal(SIGTERM, SIG_IGN);
            sleep(300);
            _exit(0);
        }
        fill_outputs(a);
        break;
    case WRITES_GAPS:
        first[a->shape.d] = 0.0f;
        fill_outputs(a);
        break;
    case LEAKS:
        fill_outputs(a);
        return workspace_alloc(1000) ? ATTN_OK : ATTN_NO_MEMORY;
    case ENDS_IN_SILENCE:
        close(RUNNER_CONTROL);
        break;
    case FORGES_REPORT:
        forge_report();
        _exit(0);
    case WRITES_FILES: {
        int file;
        for (file = 3; file < 1024; file++)
            if (write(file, "garbage\n", 8) == 8)
                sink++;
        fill_outputs(a);
        break;
    }
    case LEAVES_A_SESSION:
        leave_a_session();
        fill_outputs(a);
        break;
    case PRINTS_MUCH: {
        int line;
        for (line = 0; line < 1 << 20; line++)
            if (write(STDOUT_FILENO, "\033[2Jmuch\n", 9) < 0)
                break;
        fill_outputs(a);
        break;
    }
    case KILLS_ITS_PARENT:
        kill(getppid(), SIGTERM);
        kill(getppid(), SIGKILL);
        sleep(10); /* without a parent it ends, too */
        fill_outputs(a);
        break;
    case WAITS_WITH_OTHERS:
        leave_a_session();
        /* fall through */
    case WAITS:
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
        for (;;)
            sleep(1);
    case CONSTANT:
        fill_outputs(a);
        break;
    default: /* DOES_NOTHING, and the ones above that are about symbols */
        break;
    }
    return ATTN_OK;
}

#if MISBEHAVE == 12
static AttnStatus (*const unused)(const AttnArgs *) = misbehave;
AttnFn EXPORT(other_name)(void)
{
    return unused;
}
#else
AttnStatus EXPORT(variant)(const AttnArgs *a)
{
    return misbehave(a);
}
#endif
