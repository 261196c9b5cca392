/* SPDX-License-Identifier: MIT
 *
 * limits.h: cases in which only the idea of a step has room: inputs of which one page is readable
 * at a time, and a call with little memory. With --asan, whose own memory is larger, neither holds.
 *
 * Interface:
 * - page_floats: floats of a page of memory.
 * - paged_input(pages): zeros; close_pages(): from now on one page of each such input is readable,
 *   the one that was read last, and nothing may be written; open_pages(): all of them, again.
 * - paged_output(pages): the same, and the one page may be written, too.
 * - page_visits(n): how often a page of the n-th such array became readable.
 * - refuse_second_pass(pairs, remedy): of K and V as such inputs, opens them again and asks that
 *   scores were computed once.
 * - little_memory(body, bytes, sentence): runs body with that much heap and that much stack, static
 *   arrays included. The case ends with `sentence` where body takes more.
 */
#ifndef LEARN_LIMITS_H
#define LEARN_LIMITS_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include "learn.h"

#define MAX_PAGED  2
#define MAX_VISITS 1000000L /* an instruction that needs two pages at once would never end */
#define OWN_STACK  (1 << 16)

typedef struct Paged {
    char *base;
    long pages, readable, visits; /* readable: a page, or -1 */
    int open;                     /* what one may do with it */
} Paged;

static Paged paged[MAX_PAGED];
static int n_paged;
static const char *no_room_sentence = "Your code ended with SIGSEGV: it used memory that is not "
                                      "its own.";

static inline long page_bytes(void)
{
    return sysconf(_SC_PAGESIZE);
}

static inline long page_floats(void)
{
    return page_bytes() / (long)sizeof(float);
}

static inline float *paged_array(long pages, int open)
{
    Paged *p = &paged[n_paged++];
    void *base = mmap(NULL, (size_t)(pages * page_bytes()), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        refuse("memory", "There is no memory for this case.");
    *p = (Paged){base, pages, -1, 0, open};
    return base;
}

static inline float *paged_input(long pages)
{
    return paged_array(pages, PROT_READ);
}

static inline float *paged_output(long pages)
{
    return paged_array(pages, PROT_READ | PROT_WRITE);
}

static inline long page_visits(int n)
{
    return paged[n].visits;
}

static inline void protect_pages(int closed)
{
    int k;
    for (k = 0; k < n_paged; k++)
        mprotect(paged[k].base, (size_t)(paged[k].pages * page_bytes()),
                 closed ? PROT_NONE : paged[k].open);
}

/* A page that is not readable yet becomes it, and the one before it no longer is. */
static inline void on_fault(int number_of_signal, siginfo_t *info, void *context)
{
    const long size = page_bytes();
    int k;
    (void)number_of_signal, (void)context;
    for (k = 0; k < n_paged; k++) {
        Paged *p = &paged[k];
        const long page = ((char *)info->si_addr - p->base) / size;
        if ((char *)info->si_addr < p->base || page >= p->pages)
            continue;
        if (page == p->readable)
            refuse("input_changed", "Your function writes to its input.");
        if (++p->visits > MAX_VISITS)
            refuse("pages", "Pages of an input were opened more than %ld times.", MAX_VISITS);
        if (p->readable >= 0)
            mprotect(p->base + p->readable * size, (size_t)size, PROT_NONE);
        mprotect(p->base + page * size, (size_t)size, p->open);
        p->readable = page;
        return;
    }
    refuse("no_room", "%s", no_room_sentence);
}

/* The handler has a stack of its own: the learner's may be what is full. */
static inline void catch_faults(void)
{
    const stack_t other = {.ss_sp = malloc(OWN_STACK), .ss_size = OWN_STACK};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    sigaltstack(&other, NULL);
    sigaction(SIGSEGV, &action, NULL);
}

static inline void close_pages(void)
{
#ifndef LEARN_ASAN
    catch_faults();
    protect_pages(1);
#endif
}

static inline void open_pages(void)
{
    protect_pages(0);
    signal(SIGSEGV, SIG_DFL);
}

/* Each pair needs its key once and its value once. Where V is opened as often as K, the loops have
 * an order in which a page is opened again; that is no second pass over the scores. */
static inline void refuse_second_pass(long pairs, const char *remedy)
{
    const long of_K = page_visits(0), of_V = page_visits(1);
    open_pages();
    if (of_K > of_V && of_K > pairs)
        refuse("scores_twice",
               "Rows of K were opened %ld times, rows of V %ld times, for %ld pairs. Scores are "
               "computed more than once; %s.",
               of_K, of_V, pairs, remedy);
}

/* Bytes of address space that this process has now; 0: the system does not say. */
static inline long address_space(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (f && fscanf(f, "%ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * page_bytes();
}

extern char __data_start[], _end[]; /* the linker's names for the ends of static memory */

/* The heap: what malloc has left is taken away, but for one piece of `bytes`. */
static inline void shrink_heap(long bytes)
{
    void *volatile left = malloc((size_t)bytes), *volatile rest;
    const struct rlimit all = {(rlim_t)address_space(), RLIM_INFINITY};
    struct rlimit now;
    size_t size;
    getrlimit(RLIMIT_AS, &now);
    setrlimit(RLIMIT_AS, &(struct rlimit){all.rlim_cur, now.rlim_max});
    for (size = 1 << 20; size >= 16; size /= 2)
        do
            rest = malloc(size);
        while (rest);
    free(left);
}

static inline void little_memory(void (*body)(void), long bytes, const char *sentence)
{
#ifndef LEARN_ASAN
    static ucontext_t outside, inside;
    const size_t stack = (size_t)((bytes + page_bytes() - 1) / page_bytes() * page_bytes());
    char *base = mmap(NULL, stack + (size_t)page_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rlimit old;
    if (base == MAP_FAILED || address_space() == 0 || getrlimit(RLIMIT_AS, &old) != 0)
        refuse("limit", "The memory limit of this case does not hold on this system.");
    no_room_sentence = sentence;
    if (_end - __data_start > bytes)
        refuse("static_memory", "%s A static array counts, too.", sentence);
    mprotect(base, (size_t)page_bytes(), PROT_NONE); /* where the stack ends */
    getcontext(&inside);
    inside.uc_stack.ss_sp = base + page_bytes();
    inside.uc_stack.ss_size = stack;
    inside.uc_link = &outside;
    makecontext(&inside, body, 0);
    catch_faults();
    shrink_heap(bytes);
    swapcontext(&outside, &inside);
    setrlimit(RLIMIT_AS, &old);
    signal(SIGSEGV, SIG_DFL);
#else
    (void)bytes, (void)sentence;
    body();
#endif
}

#endif
