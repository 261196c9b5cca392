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
 * Text is put together without the C library's printf, which must not run in a signal handler.
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
    const size_t most = sizeof board->told - 1, n = strlen(text), at = strnlen(board->told, most);
    int32_t none = 0;
    if (!__atomic_compare_exchange_n(&board->teller, &none, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return 0;
    memcpy(board->told + at, text, n < most - at ? n : most - at);
    board->told[n < most - at ? at + n : most] = '\0';
    WRITE(board->teller, 2);
    return 1;
}

const char *heart_reported(const HeartBoard *board)
{
    return READ(board->teller) == 2 ? board->told : "";
}

/* --- text --------------------------------------------------------------------------------------*/

typedef struct Text {
    char *to;
    size_t used, room;
} Text;

/* Cuts what does not fit, and always ends with a zero. */
static void add(Text *t, const char *words)
{
    for (; *words && t->used + 1 < t->room; words++)
        t->to[t->used++] = *words;
    t->to[t->used] = '\0';
}

static void add_number(Text *t, int64_t n)
{
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    add(t, digits + at);
}

static void add_rank(Text *t, int rank)
{
    add(t, "rank ");
    add_number(t, rank);
}

/* "forward step 3, waiting for K from rank 1" */
static void add_place(Text *t, HeartPlace p)
{
    static const char *const passes[] = {"set-up", "forward", "backward"};
    if (p.operation == HEART_IDLE) {
        add(t, p.step == 0 ? "before its first step" : "between two runs");
        return;
    }
    add(t, passes[p.pass < RING_PASSES ? p.pass : 0]);
    if (p.pass != RING_SETUP) {
        add(t, " step ");
        add_number(t, p.step);
    }
    if (p.operation == HEART_COMPUTE)
        add(t, ", computing");
    if (p.operation == HEART_MEET)
        add(t, ", waiting for all ranks");
    if (p.operation == HEART_RECEIVE || p.operation == HEART_SEND) {
        add(t, p.operation == HEART_RECEIVE ? ", waiting for " : ", sending ");
        add(t, ring_tensor_name((RingTensor)p.tensor));
        add(t, p.operation == HEART_RECEIVE ? " from " : " to ");
        add_rank(t, p.peer);
    }
}

static void add_seconds_since(Text *t, int64_t since)
{
    const int64_t tenths = (heart_now() - since) / 100000000;
    add(t, " for ");
    add_number(t, tenths / 10);
    add(t, ".");
    add_number(t, tenths % 10);
    add(t, " s");
}

/* --- who is to blame ---------------------------------------------------------------------------*/

/* The state letter of /proc/PID/stat ('T': stopped, 'Z': dead but not yet collected), or 0. */
static char process_state(int64_t pid)
{
    char path[64], line[512];
    Text t = {path, 0, sizeof path};
    const char *after;
    ssize_t got;
    int file;
    add(&t, "/proc/");
    add_number(&t, pid);
    add(&t, "/stat");
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return 0;
    got = read(file, line, sizeof line - 1);
    close(file);
    line[got > 0 ? got : 0] = '\0';
    after = strrchr(line, ')');
    return after && after[1] ? after[2] : 0;
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
    Text t = {text, 0, room};
    const HeartPlace place = heart_read(board, rank);
    const int gone = is_gone(&board->slot[rank]);
    add_rank(&t, rank);
    if (READ(board->slot[rank].state) == HEART_ABSENT) {
        add(&t, " is on another machine");
        return;
    }
    add(&t, gone                            ? " is gone, last seen "
            : heart_is_stopped(board, rank) ? " is stopped "
                                            : " is ");
    add(&t, place.operation == HEART_IDLE ? "" : "at ");
    add_place(&t, place);
    if (!gone)
        add_seconds_since(&t, READ(board->slot[rank].since));
}

/* `seen` marks who has been passed, so that a circle ends the walk and not only the patience of its
 * reader. */
int heart_blame(const HeartBoard *board, int rank, char *text, size_t room)
{
    Text t = {text, 0, room};
    char seen[RING_MAX_RANKS] = {0};
    const int asked = rank;
    int next;
    while ((next = waits_for(board, rank)) >= 0 && next < board->ranks && !seen[next]) {
        seen[rank] = 1;
        rank = next;
    }
    if (next >= 0)
        rank = furthest_behind(board, asked);
    text[0] = '\0';
    if (next >= 0 && rank == asked) {
        add(&t, ", and the others wait as well");
        return rank;
    }
    add(&t, "; ");
    heart_describe(board, rank, text + t.used, room - t.used);
    return rank;
}

static void add_signal(Text *t, int number)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGSEGV, "SIGSEGV, memory that is not there"},
                 {SIGBUS, "SIGBUS, a bad address"},
                 {SIGFPE, "SIGFPE, arithmetic"},
                 {SIGILL, "SIGILL, instruction"},
                 {SIGABRT, "SIGABRT, abort()"}};
    size_t i;
    add(t, "crashed (signal ");
    add_number(t, number);
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number) {
            add(t, ": ");
            add(t, names[i].name);
        }
    add(t, ")");
}

/* Which of two ranks went first, as far as is known; -1 is nobody. */
static int earlier(int64_t a_ns, int a, int64_t b_ns, int b)
{
    return b < 0 || (a_ns > 0 && (b_ns == 0 || a_ns < b_ns)) ? a : b;
}

/* In the order of how sure it is: a rank that noted its own crash; one that was told to end by
 * somebody else than mpirun; one that vanished although nobody had told it to (the lowest: none
 * could note when); the first that was told to. (A busy machine may give a rank no time to note
 * that mpirun told it to end before it is killed: it seems to have vanished. So who vanished is
 * asked late.) */
void heart_explain(const HeartBoard *board, char *text, size_t room)
{
    Text t = {text, 0, room};
    int rank, crashed = -1, outside = -1, vanished = -1, told = -1;
    for (rank = 0; rank < board->ranks; rank++) {
        const HeartSlot *s = &board->slot[rank];
        if (READ(s->signal) && crashed < 0)
            crashed = rank;
        if (READ(s->state) == HEART_ABSENT || READ(s->state) == HEART_DONE)
            continue;
        if (READ(s->outside))
            outside =
                earlier(s->outside, rank, outside < 0 ? 0 : board->slot[outside].outside, outside);
        if (READ(s->stopped))
            told = earlier(s->stopped, rank, told < 0 ? 0 : board->slot[told].stopped, told);
        else if (vanished < 0 && is_gone(s))
            vanished = rank;
    }
    rank = crashed >= 0 ? crashed : outside >= 0 ? outside : vanished >= 0 ? vanished : told;
    if (rank < 0) {
        add(&t, "the ranks ended, and none says why");
        return;
    }
    add_rank(&t, rank);
    add(&t, ", ");
    add_place(&t, heart_read(board, rank));
    add(&t, ": ");
    if (crashed >= 0)
        add_signal(&t, READ(board->slot[rank].signal));
    else
        add(&t, rank == vanished ? "it ended without a word (it left, or was killed)"
                                 : "it was told to end from outside (SIGTERM)");
}
