/* SPDX-License-Identifier: MIT
 *
 * debug.c: runs your method on the sizes of a case, see debug_case.h. Ranks are threads here, with
 * a shard each and the layout contiguous. Where all of them wait for a message that nobody has
 * sent, the program aborts: in gdb `thread apply all backtrace` shows who is where.
 *
 *     make debug CASE="--ranks 2 -N 8 -d 2"      make asan CASE="--ranks 3 -N 331 -d 16 --causal"
 *
 * Interface: none.
 */
#include <math.h>
#include <pthread.h>

#include "debug_case.h"
#include "ring_method.h"

enum { MOST = 16 };

typedef struct Letter {
    struct Letter *next;
    size_t bytes;
    char data[];
} Letter;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Letter *queue[MOST][MOST]; /* [from][to], the oldest first */
static int waits_for[MOST];       /* -1: at work; `world`: it has ended */
static int status;

static void stop_if(int bad, int rank, const char *what, int peer)
{
    if (!bad)
        return;
    fprintf(stderr, "rank %d %s rank %d\n", rank, what, peer);
    abort();
}

/* Called with the lock. Somebody waits, and nobody is left who could send. */
static void stop_if_stuck(int rank, int world)
{
    int waiting = 0, r;
    for (r = 0; r < world; r++) {
        if (waits_for[r] < 0 || (waits_for[r] < world && queue[waits_for[r]][r]))
            return;
        waiting += waits_for[r] < world;
    }
    stop_if(waiting > 0, rank, "was the last at work; nobody can go on, from rank 0 to", world - 1);
}

static void send_letter(const RingPart *part, int to, const void *data, size_t bytes)
{
    Letter *letter = malloc(sizeof *letter + bytes), **end;
    stop_if(to < 0 || to >= part->world || !letter, part->rank, "cannot send to", to);
    letter->next = NULL;
    letter->bytes = bytes;
    memcpy(letter->data, data, bytes);
    pthread_mutex_lock(&lock);
    for (end = &queue[part->rank][to]; *end; end = &(*end)->next)
        ;
    *end = letter;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void receive_letter(const RingPart *part, int from, void *data, size_t bytes)
{
    Letter *letter;
    stop_if(from < 0 || from >= part->world, part->rank, "cannot receive from", from);
    pthread_mutex_lock(&lock);
    waits_for[part->rank] = from;
    stop_if_stuck(part->rank, part->world);
    while (!(letter = queue[from][part->rank]))
        pthread_cond_wait(&changed, &lock);
    waits_for[part->rank] = -1;
    queue[from][part->rank] = letter->next;
    pthread_mutex_unlock(&lock);
    stop_if(letter->bytes != bytes, part->rank, "receives another size than was sent by", from);
    memcpy(data, letter->data, bytes);
    free(letter);
}

static void *run_rank(void *argument)
{
    const RingPart *part = argument;
    const int one = ring_method_variant(part);
    pthread_mutex_lock(&lock);
    status |= one;
    waits_for[part->rank] = part->world;
    stop_if_stuck(part->rank, part->world);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Rows of a tensor in memory of their own, so that a step beyond them is seen. */
static float *shard_of(const float *from, int first, int n, int row)
{
    return memcpy(debug_results(n * row), from + first * row, sizeof(float) * (size_t)(n * row));
}

static void call_all(RingPart *part, int world)
{
    pthread_t thread[MOST];
    for (int r = 0; r < world; r++)
        if (pthread_create(&thread[r], NULL, run_rank, &part[r]) != 0)
            exit(3);
    for (int r = 0; r < world; r++)
        pthread_join(thread[r], NULL);
}

int main(int count, char *words[])
{
    const DebugCase c = debug_read(count, words);
    const int row = c.H * c.d, row_kv = c.Hkv * c.d, world = c.ranks < MOST ? c.ranks : MOST;
    float *Q = debug_inputs(&c, FILL_Q, c.N * row), *K = debug_inputs(&c, FILL_K, c.N * row_kv);
    float *V = debug_inputs(&c, FILL_V, c.N * row_kv);
    int tokens[MOST], *position[MOST];
    RingPart part[MOST];
    for (int r = 0; r < world; r++) {
        const int first = (r * c.N + world - 1) / world;
        const int n = tokens[r] = ((r + 1) * c.N + world - 1) / world - first;
        position[r] = malloc(sizeof(int) * (size_t)(n + 1));
        for (int t = 0; t < n; t++)
            position[r][t] = first + t;
        waits_for[r] = -1;
        part[r] = (RingPart){.rank = r,
                             .world = world,
                             .H = c.H,
                             .Hkv = c.Hkv,
                             .d = c.d,
                             .tokens = tokens,
                             .position = (const int *const *)position,
                             .left = c.left,
                             .right = c.right,
                             .scale = 1.0f / sqrtf((float)c.d),
                             .Q = shard_of(Q, first, n, row),
                             .K = shard_of(K, first, n, row_kv),
                             .V = shard_of(V, first, n, row_kv),
                             .O = debug_results(n * row),
                             .lse = debug_results(n * c.H),
                             .send = send_letter,
                             .receive = receive_letter};
    }
    call_all(part, world);
    for (int r = 0; r < world; r++) {
        printf("rank %d\n", r);
        debug_show("O", part[r].O, tokens[r], row), debug_show("lse", part[r].lse, c.H, tokens[r]);
        free((void *)part[r].Q), free((void *)part[r].K), free((void *)part[r].V);
        free(part[r].O), free(part[r].lse), free(position[r]);
    }
    free(Q), free(K), free(V);
    return status;
}
