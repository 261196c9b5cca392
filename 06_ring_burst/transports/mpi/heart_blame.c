/* SPDX-License-Identifier: MIT
 *
 * heart_blame.c: reading between the lines of the notice board: who is to blame?
 *
 * When a message does not come, the rank that waits for it knows only its neighbour, and that one
 * may itself be waiting. Each slot says for whom its rank waits, so the board is a graph with one
 * arrow out of each waiting rank. Following the arrows ends
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
 * Interface: heart_blame, heart_describe, heart_explain, heart_is_stopped (heartbeat.h).
 */
#include "transports/mpi/heartbeat.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define READ(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)

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
 * somebody else than mpirun; one that vanished although nobody had told it to; the first that was
 * told to. (A busy machine may give a rank no time to note that mpirun told it to end before it is
 * killed: it seems to have vanished. So who vanished is asked late.) */
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
        else if (is_gone(s))
            vanished =
                earlier(s->gone, rank, vanished < 0 ? 0 : board->slot[vanished].gone, vanished);
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
