/* SPDX-License-Identifier: MIT
 *
 * pretend_gpu.c: a pretended GPU from its beginning to its end: what was wrong; work to be asked
 * for.
 *
 * One lock for all of it: ranks are threads.
 *
 * Interface: the rest of pretend_gpu.h.
 */
#include "pretend_gpu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int problems;
static char first_problem[256];

void pretend_lock(void)
{
    pthread_mutex_lock(&lock);
}

void pretend_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void *pretend_need(void *p)
{
    if (!p)
        abort();
    return p;
}

void pretend_problem(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (problems++ == 0)
        vsnprintf(first_problem, sizeof first_problem, format, list);
    va_end(list);
}

PretendWork *pretend_work(const char *name, void (*run)(void *context), const void *context,
                          size_t bytes)
{
    PretendWork *work = pretend_need(calloc(1, sizeof *work));
    work->name = name;
    work->run = run;
    work->context = pretend_need(malloc(bytes));
    memcpy(work->context, context, bytes);
    return work;
}

void pretend_uses(PretendWork *work, const void *p, size_t bytes, PretendUse how)
{
    if (!p || bytes == 0)
        return;
    if (work->count == work->room) {
        work->room = 2 * work->room + 16;
        work->spans = pretend_need(realloc(work->spans, (size_t)work->room * sizeof *work->spans));
    }
    work->spans[work->count++] = (PretendSpan){p, bytes, how};
}

void pretend_gpu_begin(uint64_t seed)
{
    pretend_lock();
    problems = 0;
    first_problem[0] = '\0';
    pretend_queues_begin(seed);
    pretend_unlock();
}

int pretend_gpu_end(char words[256])
{
    pretend_lock();
    pretend_memory_end();
    pretend_queues_end();
    memcpy(words, first_problem, sizeof first_problem);
    const int count = problems;
    pretend_unlock();
    return count;
}
