/* SPDX-License-Identifier: MIT
 *
 * flash_simple.c: judges attention of one head that must not keep an N x N matrix.
 *
 * Before the call the process gives up the right to more memory than it has and a few MiB: a matrix
 * of N x N floats does not fit into these. (Not with --asan, whose own memory is larger.)
 *
 * Interface: -N queries and keys, -d channels, --causal, --hand, --large, --below: scores far
 * below 0, --memory: with the limit.
 */
#include "attention.h"

#include <signal.h>
#include <sys/resource.h>

int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, float *lse,
                         int N, int d, int causal);

#define ROOM (8L << 20) /* bytes; N = 2048: 16 MiB */

const Mistake mistakes[] = {ATTENTION_MISTAKES, {NULL, NULL}};

static Head head;
static Output *O, *lse;

void prepare(void)
{
    const int hand = has_flag("--hand");
    const long N = hand ? 4 : number("-N", 1), d = hand ? 2 : number("-d", 1);
    float *Q = input("Q", N * d), *K = input("K", N * d), *V = input("V", N * d);
    long e;
    O = output("O", N, d, "query", "channel");
    lse = output("lse", N, 1, "query", "");
    fill_normal(Q, N * d, 1);
    fill_normal(K, N * d, 2);
    fill_normal(V, N * d, 3);
    if (hand) {
        memcpy(Q, hand_Q, sizeof hand_Q);
        memcpy(K, hand_K, sizeof hand_K);
        memcpy(V, hand_V, sizeof hand_V);
    }
    for (e = 0; e < N * d && has_flag("--large"); e++)
        Q[e] *= 100.0f;
    for (e = 0; e < N * d && has_flag("--below"); e += d)
        Q[e] = 30.0f;
    for (e = 0; e < N * d && has_flag("--below"); e += d)
        K[e] = -30.0f; /* scores around -900 / sqrt(d) */
    O->tolerance = has_flag("--large") || has_flag("--below") ? 3e-3 : 1e-4;
    head = (Head){Q, K, V, N, N, d, has_flag("--causal"), NULL};
}

/* Bytes of address space that this process has now; 0: the system does not say. */
static long address_space(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (f && fscanf(f, "%ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * 4096;
}

/* A malloc that gave NULL was not looked at, or the stack was taken for the matrix. */
static void no_room(int sig)
{
    (void)sig;
    refuse("no_room", "Your code ended with SIGSEGV: it used memory that is not its own. An N x N "
                      "matrix has no room in this case: malloc returns NULL, and the stack ends.");
}

/* A stack of its own: the learner's may be what is full. */
static void catch_no_room(void)
{
    static char stack[1 << 16];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = no_room, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, NULL);
    sigaction(SIGSEGV, &action, NULL);
}

void call(void)
{
    const long now = address_space();
    struct rlimit old;
    int status;
#ifdef LEARN_ASAN
    const int limited = 0;
#else
    const int limited = has_flag("--memory") && now > 0 && getrlimit(RLIMIT_AS, &old) == 0;
#endif
    if (limited) {
        const struct rlimit less = {(rlim_t)(now + ROOM), old.rlim_max};
        setrlimit(RLIMIT_AS, &less);
        void *volatile probe = malloc(sizeof(float) * (size_t)(head.Nq * head.Nk));
        if (probe)
            refuse("limit", "The memory limit of this case does not hold on this system.");
        catch_no_room();
    }
    status = flash_simple_variant(head.Q, head.K, head.V, O->found, lse->found, (int)head.Nq,
                                  (int)head.d, head.causal);
    if (limited) {
        setrlimit(RLIMIT_AS, &old);
        signal(SIGSEGV, SIG_DFL);
    }
    if (status != 0)
        refuse("status", "Your function returned %d. (An N x N matrix has no room in this case.)",
               status);
}

void expect(int mistake)
{
    reference(&head, mistake, O->expected, lse->expected);
}

const Mistake *diagnose(void)
{
    return diagnose_attention(O, lse, 1);
}
