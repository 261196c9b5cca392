/* SPDX-License-Identifier: MIT
 *
 * start.c: a program that cannot start says so, instead of waiting for ever or answering "wrong".
 *
 * OpenBLAS maps a buffer of 128 MiB for each processor before main, and later one for each thread
 * that shares a product and one for each thread that asks for a product: 2 T for T threads. Where
 * the system gives none (ulimit -v, ulimit -d, a strict vm.overcommit_memory) it asks again, for
 * ever. So we ask first: once in .preinit_array, which runs before the constructors of all
 * libraries, and once when T is known. Then OpenBLAS maps all of them at once, before matrices
 * take their room.
 *
 * It also waits for ever for threads that OpenMP does not start. OMP_DYNAMIC and
 * OMP_MAX_ACTIVE_LEVELS allow that, so libgomp, which reads them in its constructor, does not find
 * them. OMP_THREAD_LIMIT: bench_set_threads.
 *
 * When libgomp cannot start a thread (ulimit -u, OMP_STACKSIZE) it calls exit(1). That is our
 * status for a wrong answer, so it becomes 3.
 *
 * Interface: start.h.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include "harness/start.h"

#include "attn_config.h"
#include "harness/bench/bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef HAVE_OPENBLAS
#include <cblas.h>
#endif

enum { STATUS = 3 /* EXIT_RUNTIME of cli.h */ };

static const char *program = "program";
static pid_t running; /* a child's exit is its own affair */

static void ended_by_library(int status, void *unused)
{
    (void)unused;
    if (status != EXIT_FAILURE || running != getpid())
        return;
    fflush(stdout);
    fprintf(stderr,
            "%s: found that a library ended the program, see above; if it could not start a "
            "thread, accepted are a smaller --threads, a larger ulimit -u or OMP_STACKSIZE\n",
            program);
    _exit(STATUS);
}

void start_ended(void)
{
    running = 0;
}

#ifdef HAVE_OPENBLAS

#define BUFFER ((size_t)128 << 20) /* of OpenBLAS 0.3 on x86-64 and arm64 */
#define STACK  ((size_t)8 << 20)   /* of a thread, as a rule */

/* Of the same names and types since GotoBLAS, though in no header. NULL if hidden. */
void *blas_memory_alloc(int unused) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

/* Can so much be mapped? MAP_NORESERVE: a sum may be larger than the memory, as its parts, which
 * are hardly touched, may. */
static int is_room(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at != MAP_FAILED && munmap(at, bytes) == 0;
}

/* Ends the program if there is none for this many buffers and stacks. */
static void need_room(int buffers, int stacks)
{
    const size_t needed = (size_t)buffers * BUFFER + (size_t)stacks * STACK;
    size_t found = needed;
    char text[320];
    int length;
    if (is_room(needed))
        return;
    while (found > 0 && !is_room(found))
        found -= STACK < found ? STACK : found;
    length =
        snprintf(text, sizeof text,
                 "%s: found room for %zu MiB of address space, needed are %zu MiB: OpenBLAS would "
                 "wait for ever for its buffers; accepted are a larger ulimit -v or -d, or a "
                 "smaller OMP_NUM_THREADS and --threads\n",
                 program, found >> 20, needed >> 20);
    fflush(stdout);
    (void)!write(STDERR_FILENO, text, (size_t)length);
    _exit(STATUS);
}

/* The processors, or fewer if the environment says so: the first number above 0 of these. */
static int buffers_before_main(char **environment)
{
    static const char *const names[] = {
        "OPENBLAS_NUM_THREADS=", "GOTO_NUM_THREADS=", "OMP_NUM_THREADS="};
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (char **word = environment; *word; word++) {
            const size_t length = strlen(names[n]);
            const int wanted = strncmp(*word, names[n], length) == 0 ? atoi(*word + length) : 0;
            if (wanted > 0)
                return wanted < count ? wanted : count;
        }
    return count;
}

static void before_libraries(int argc, char **argv, char **environment)
{
    char **kept = environment;
    if (argc > 0)
        program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (char **word = environment; *word; word++)
        if (strncmp(*word, "OMP_DYNAMIC", 11) != 0 &&
            strncmp(*word, "OMP_MAX_ACTIVE_LEVELS", 21) != 0)
            *kept++ = *word;
    *kept = NULL;
    need_room(buffers_before_main(environment), 0);
}

__attribute__((section(".preinit_array"),
               used)) static void (*const first)(int, char **, char **) = before_libraries;

/* All buffers at once, those for threads that share a product and those for threads that each ask
 * for one. They stay OpenBLAS's own when it gets them back. */
static void map_buffers(int threads)
{
    static int mapped;
    const int before = openblas_get_num_threads();
    void **buffer;
    if (threads <= mapped)
        return;
    need_room(threads - mapped + (threads > before ? threads - before : 0), threads - 1);
    mapped = threads;
    bench_set_threads(threads);
    threads = openblas_get_num_threads(); /* it has an upper limit of its own */
    buffer = calloc((size_t)threads, sizeof *buffer);
    for (int n = 0; buffer && blas_memory_alloc && n < threads; n++)
        buffer[n] = blas_memory_alloc(0);
    for (int n = 0; buffer && blas_memory_free && n < threads && buffer[n]; n++)
        blas_memory_free(buffer[n]);
    free(buffer);
}

#endif

void start_threads(int threads)
{
    if (!running)
        on_exit(ended_by_library, NULL);
    running = getpid();
#ifdef HAVE_OPENBLAS
    map_buffers(threads);
#endif
    bench_set_threads(threads);
}
