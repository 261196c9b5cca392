/* SPDX-License-Identifier: MIT
 *
 * heartbeat.c: the notice board of heartbeat.h.
 *
 * Processes share one page of memory and no lock: a rank that dies with a lock in its hand would
 * take the others with it. So a field is a word that is stored at once, by one writer, or by
 * whoever exchanges it for "nobody yet" first.
 *
 * Reading between the lines of it: who is to blame? When a message does not come, the rank that
 * waits for it knows only its neighbour, and that one may itself be waiting. Each slot says for
 * whom its rank waits, so the board is a graph with one arrow out of each waiting rank. Following
 * the arrows ends
 *
 *     3 -> 2 -> 1          at a rank that does not wait: it computes, is stopped, or is gone;
 *     3 -> 2 -> 1 -> 3     or in a circle. Then a rank beside it is stopped and holds up the rest,
 *                          or a message was lost, or two ranks disagree about who sends what: look
 *                          where the work is furthest behind.
 *
 *     rank 3, forward step 5: waiting for K from rank 2: nothing came in 60 s; rank 1 is stopped at
 *     forward step 4, computing for 61.2 s
 *
 * Interface: see heartbeat.h.
 */
#define _GNU_SOURCE /* memfd_create */
#include "transports/mpi/heartbeat.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime/ring_world.h"

#define READ(field)         __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define WRITE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)

/* --- the board ---------------------------------------------------------------------------------*/

/* Monotonic, and the same for all processes of a machine. */
static int64_t heart_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* MAP_SHARED: what one process stores there the others see, as if it were their own memory. */
static HeartBoard *map_board(int file)
{
    void *p = mmap(NULL, sizeof(HeartBoard), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* memfd is memory with a file descriptor and no name: nobody has to delete it, the kernel does when
 * the last process has closed it. */
HeartBoard *heart_create(int ranks, char path[64])
{
    const int file = memfd_create("ring_heartbeat", MFD_CLOEXEC);
    HeartBoard *board = NULL;
    if (file < 0)
        return NULL;
    if (ftruncate(file, sizeof *board) == 0)
        board = map_board(file);
    if (!board) {
        close(file);
        return NULL;
    }
    board->ranks = ranks;
    snprintf(path, 64, "/proc/%ld/fd/%d", (long)getpid(), file); /* open as long as we live */
    return board;
}

HeartBoard *heart_open(const char *path)
{
    const int file = open(path, O_RDWR | O_CLOEXEC);
    HeartBoard *board = file < 0 ? NULL : map_board(file);
    if (file >= 0)
        close(file);
    return board;
}

/* The mapping goes, the memory stays as long as somebody else has it. */
void heart_close(HeartBoard *board)
{
    if (board)
        munmap(board, sizeof *board);
}

/* --- what a rank tells -------------------------------------------------------------------------*/

/* The place first and the state last: who sees the state may rely on the rest. */
void heart_join(HeartBoard *board, int rank)
{
    heart_place(board, rank, (HeartPlace){RING_SETUP, 0, HEART_IDLE, 0, 0});
    WRITE(board->slot[rank].pid, (int64_t)getpid());
    WRITE(board->slot[rank].state, HEART_ALIVE);
}

/* Pass, step, operation, tensor and peer in one word of 64 bits, since a word is stored at once: no
 * reader ever sees the step of one moment with the peer of another. RELEASE and ACQUIRE say that
 * what was stored before is seen before. */
void heart_place(HeartBoard *board, int rank, HeartPlace p)
{
    const uint64_t word = (uint64_t)p.pass << 56 | (uint64_t)p.operation << 48 |
                          (uint64_t)p.tensor << 40 | (uint64_t)(p.peer & 0xffff) << 24 |
                          (uint64_t)(p.step & 0xffffff);
    WRITE(board->slot[rank].place, word);
    WRITE(board->slot[rank].since, heart_now());
}

/* heart_place backwards. */
HeartPlace heart_read(const HeartBoard *board, int rank)
{
    const uint64_t word = READ(board->slot[rank].place);
    return (HeartPlace){(RingPass)(word >> 56), (int)(word & 0xffffff),
                        (HeartOperation)(word >> 48 & 0xff), (int)(word >> 40 & 0xff),
                        (int)(word >> 24 & 0xffff)};
}

/* All ranks, not the one that is waited for: where one computes for long, those who wait for it are
 * patient; where nobody does anything any more, something is wrong. */
double heart_silence(const HeartBoard *board)
{
    int64_t last = 0;
    int rank;
    for (rank = 0; rank < board->ranks; rank++) {
        const int64_t since = READ(board->slot[rank].since);
        last = since > last ? since : last;
    }
    return (double)(heart_now() - last) * 1e-9;
}

/* In a signal handler: one store, no lock, no memory. */
void heart_crash(HeartBoard *board, int rank, int number)
{
    WRITE(board->slot[rank].signal, number);
}

void heart_stop(HeartBoard *board, int rank, int from_outside)
{
    const int64_t now = heart_now();
    if (from_outside)
        WRITE(board->slot[rank].outside, now);
    WRITE(board->slot[rank].stopped, now);
}

/* DONE is the last word of a rank; one that is gone without it has crashed, or was killed. */
void heart_end(HeartBoard *board, int rank)
{
    WRITE(board->slot[rank].state, HEART_DONE);
}

/* Compare and exchange: the field becomes 1 if it is still 0, in one step that no other rank can
 * come between. Who has changed it may write, and 2 says that it is written. The user reads one
 * sentence, not eight. */
int heart_report(HeartBoard *board, const char *text)
{
    const size_t at = strlen(board->told);
    int32_t none = 0;
    if (!__atomic_compare_exchange_n(&board->teller, &none, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return 0;
    snprintf(board->told + at, sizeof board->told - at, "%s", text);
    WRITE(board->teller, 2);
    return 1;
}

const char *heart_reported(const HeartBoard *board)
{
    return READ(board->teller) == 2 ? board->told : "";
}

/* "forward step 3, waiting for K from rank 1" */
static const char *place_words(HeartPlace p, char words[128])
{
    const int receives = p.operation == HEART_RECEIVE;
    char step[24] = "", doing[64] = "";
    if (p.operation == HEART_IDLE)
        return p.step == 0 ? "before its first step" : "between two runs";
    if (p.pass != RING_SETUP)
        snprintf(step, sizeof step, " step %d", p.step);
    if (receives || p.operation == HEART_SEND)
        snprintf(doing, sizeof doing, ", %s %s %s rank %d", receives ? "waiting for" : "sending",
                 ring_tensor_name((RingTensor)p.tensor), receives ? "from" : "to", p.peer);
    else
        snprintf(doing, sizeof doing, ", %s",
                 p.operation == HEART_MEET ? "waiting for all ranks" : "computing");
    snprintf(words, 128, "%s%s%s", ring_pass_name(p.pass), step, doing);
    return words;
}

/* --- who is to blame ---------------------------------------------------------------------------*/

/* The state letter of /proc/PID/stat ('T': stopped, 'Z': dead but not yet collected), or 0. */
static char process_state(int64_t pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    const char *name_end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    return name_end && name_end[1] ? name_end[2] : 0;
}

/* A process that has ended stays in the table as Z, a zombie, until its parent has asked for its
 * exit status. */
static int is_gone(const HeartSlot *slot)
{
    const char state = process_state(slot->pid);
    return state == 0 || state == 'Z' || state == 'X';
}

/* SIGSTOP, Ctrl-Z and debuggers stop a process without ending it. Its neighbours see no difference:
 * no message comes. */
int heart_is_stopped(const HeartBoard *board, int rank)
{
    const char state = process_state(board->slot[rank].pid);
    return state == 'T' || state == 't';
}

/* The rank that all wait for: of those that are not there yet, the one that is silent longest. If
 * all are there, one that cannot leave: it was stopped, or went, while it waited. */
static int last_to_meet(const HeartBoard *board)
{
    int rank, last = -1;
    for (rank = 0; rank < board->ranks; rank++)
        if (heart_read(board, rank).operation != HEART_MEET &&
            (last < 0 || READ(board->slot[rank].since) < READ(board->slot[last].since)))
            last = rank;
    for (rank = 0; last < 0 && rank < board->ranks; rank++)
        if (is_gone(&board->slot[rank]) || heart_is_stopped(board, rank))
            last = rank;
    return last;
}

/* For whom a rank waits, or -1. */
static int waits_for(const HeartBoard *board, int rank)
{
    const HeartPlace p = heart_read(board, rank);
    if (is_gone(&board->slot[rank]) || heart_is_stopped(board, rank))
        return -1;
    if (p.operation == HEART_MEET)
        return last_to_meet(board);
    return p.operation == HEART_RECEIVE || p.operation == HEART_SEND ? p.peer : -1;
}

/* Smaller: further behind. Who waits for results or for a meeting has done its part. */
static int64_t progress(HeartPlace p)
{
    if (p.operation == HEART_MEET || p.tensor >= RING_TENSORS)
        return INT64_MAX;
    return (int64_t)p.pass << 32 | (int64_t)p.step << 1 | (p.operation == HEART_SEND);
}

static int furthest_behind(const HeartBoard *board, int rank)
{
    int other;
    for (other = 0; other < board->ranks; other++)
        if (heart_is_stopped(board, other))
            return other;
    for (other = 0; other < board->ranks; other++)
        if (progress(heart_read(board, other)) < progress(heart_read(board, rank)))
            rank = other;
    return rank;
}

/* "rank 2 is stopped at forward step 3, computing for 4.1 s" */
void heart_describe(const HeartBoard *board, int rank, char *text, size_t room)
{
    const HeartSlot *s = &board->slot[rank];
    const HeartPlace place = heart_read(board, rank);
    const int gone = is_gone(s);
    char words[128], since[32] = "";
    if (READ(s->state) == HEART_ABSENT) {
        snprintf(text, room, "rank %d is on another machine", rank);
        return;
    }
    if (!gone)
        snprintf(since, sizeof since, " for %.1f s", (double)(heart_now() - READ(s->since)) * 1e-9);
    snprintf(text, room, "rank %d is %s%s%s%s", rank,
             gone                            ? "gone, last seen "
             : heart_is_stopped(board, rank) ? "stopped "
                                             : "",
             place.operation == HEART_IDLE ? "" : "at ", place_words(place, words), since);
}

/* `seen` marks who has been passed, so that a circle ends the walk and not only the patience of its
 * reader. */
int heart_blame(const HeartBoard *board, int rank, char *text, size_t room)
{
    char seen[RING_MAX_RANKS] = {0};
    const int asked = rank;
    int next;
    while ((next = waits_for(board, rank)) >= 0 && next < board->ranks && !seen[next]) {
        seen[rank] = 1;
        rank = next;
    }
    if (next >= 0)
        rank = furthest_behind(board, asked);
    if (next >= 0 && rank == asked) {
        snprintf(text, room, ", and the others wait as well");
        return rank;
    }
    snprintf(text, room, "; ");
    heart_describe(board, rank, text + 2, room - 2);
    return rank;
}

static void signal_words(int number, char words[96])
{
    const char *name = number == SIGSEGV   ? ": SIGSEGV, memory that is not there"
                       : number == SIGBUS  ? ": SIGBUS, a bad address"
                       : number == SIGFPE  ? ": SIGFPE, arithmetic"
                       : number == SIGILL  ? ": SIGILL, instruction"
                       : number == SIGABRT ? ": SIGABRT, abort()"
                                           : "";
    snprintf(words, 96, "crashed (signal %d%s)", number, name);
}

/* Which rank was the first, as far as is known; -1 is nobody. */
typedef struct First {
    int rank;
    int64_t ns;
} First;

static void be_first(First *first, int rank, int64_t ns)
{
    if (first->rank < 0 || ns < first->ns)
        *first = (First){rank, ns};
}

/* In the order of how sure it is: a rank that noted its own crash; one that was told to end by
 * somebody else than mpirun; one that vanished although nobody had told it to; the first that was
 * told to. Nobody can note when it vanishes, so of several it is the one whose last sign of life
 * is the oldest. (Several: a busy machine may give a rank no time to note that mpirun told it to
 * end before it is killed. So who vanished is asked late.) */
void heart_explain(const HeartBoard *board, char *text, size_t room)
{
    First outside = {-1, 0}, vanished = {-1, 0}, told = {-1, 0};
    char words[128], why[96] = "it was told to end from outside (SIGTERM)";
    int rank, crashed = -1;
    for (rank = 0; rank < board->ranks; rank++) {
        const HeartSlot *s = &board->slot[rank];
        if (READ(s->signal) && crashed < 0)
            crashed = rank;
        if (READ(s->state) == HEART_ABSENT || READ(s->state) == HEART_DONE)
            continue;
        if (READ(s->outside))
            be_first(&outside, rank, READ(s->outside));
        if (READ(s->stopped))
            be_first(&told, rank, READ(s->stopped));
        else if (is_gone(s))
            be_first(&vanished, rank, READ(s->since));
    }
    rank = crashed >= 0         ? crashed
           : outside.rank >= 0  ? outside.rank
           : vanished.rank >= 0 ? vanished.rank
                                : told.rank;
    if (rank < 0) {
        snprintf(text, room, "the ranks ended, and none says why");
        return;
    }
    if (crashed >= 0)
        signal_words(READ(board->slot[rank].signal), why);
    else if (rank == vanished.rank)
        snprintf(why, sizeof why, "it ended without a word (it left, or was killed)");
    snprintf(text, room, "rank %d, %s: %s", rank, place_words(heart_read(board, rank), words), why);
}
