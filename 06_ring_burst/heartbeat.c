/* SPDX-License-Identifier: MIT
 *
 * heartbeat.c: the notice board of heartbeat.h, and reading between its lines.
 *
 * Who is to blame when everybody waits? Each slot says for whom its rank waits, so the board is a
 * graph with one arrow out of each waiting rank. Following the arrows ends
 *
 *     3 -> 2 -> 1          at a rank that does not wait: it computes, is stopped, or is gone;
 *     3 -> 2 -> 1 -> 3     or in a circle: a deadlock, or a message that was lost between two.
 *
 * Text is put together without the C library's printf, which must not run in a signal handler.
 *
 * Interface: see heartbeat.h.
 */
#define _GNU_SOURCE /* memfd_create */
#include "heartbeat.h"

#include <errno.h>
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

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static HeartBoard *map_board(int file)
{
    void *p = mmap(NULL, sizeof(HeartBoard), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return p == MAP_FAILED ? NULL : p;
}

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

void heart_close(HeartBoard *board)
{
    if (board)
        munmap(board, sizeof *board);
}

/* --- what a rank tells -------------------------------------------------------------------------*/

void heart_join(HeartBoard *board, int rank)
{
    heart_place(board, rank, (HeartPlace){RING_SETUP, 0, HEART_IDLE, 0, 0});
    WRITE(board->slot[rank].pid, (int64_t)getpid());
    WRITE(board->slot[rank].state, HEART_ALIVE);
}

int heart_joined(const HeartBoard *board)
{
    int rank, joined = 0;
    for (rank = 0; rank < board->ranks; rank++)
        joined += READ(board->slot[rank].state) != HEART_ABSENT;
    return joined;
}

void heart_place(HeartBoard *board, int rank, HeartPlace p)
{
    const uint64_t word = (uint64_t)p.pass << 56 | (uint64_t)p.operation << 48 |
                          (uint64_t)p.tensor << 40 | (uint64_t)(p.peer & 0xffff) << 24 |
                          (uint64_t)(p.step & 0xffffff);
    WRITE(board->slot[rank].place, word);
    WRITE(board->slot[rank].since, now_ns());
}

HeartPlace heart_read(const HeartBoard *board, int rank)
{
    const uint64_t word = READ(board->slot[rank].place);
    return (HeartPlace){(RingPass)(word >> 56), (int)(word & 0xffffff),
                        (HeartOperation)(word >> 48 & 0xff), (int)(word >> 40 & 0xff),
                        (int)(word >> 24 & 0xffff)};
}

void heart_crash(HeartBoard *board, int rank, int number)
{
    WRITE(board->slot[rank].signal, number);
}

void heart_stop(HeartBoard *board, int rank)
{
    WRITE(board->slot[rank].stopped, now_ns());
}

void heart_end(HeartBoard *board, int rank, HeartState state)
{
    WRITE(board->slot[rank].state, state);
}

void heart_fail(HeartBoard *board, int rank)
{
    int32_t none = 0;
    __atomic_compare_exchange_n(&board->first, &none, rank + 1, 0, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
}

int heart_failed(const HeartBoard *board)
{
    return READ(board->first) - 1;
}

void heart_clear(HeartBoard *board)
{
    WRITE(board->first, 0);
}

int heart_tell(HeartBoard *board, const char *text)
{
    int32_t none = 0;
    size_t n = strlen(text);
    if (!__atomic_compare_exchange_n(&board->teller, &none, 1, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return 0;
    n = n < sizeof board->told ? n : sizeof board->told - 1;
    memcpy(board->told, text, n);
    board->told[n] = '\0';
    WRITE(board->teller, 2);
    return 1;
}

const char *heart_told(const HeartBoard *board)
{
    return READ(board->teller) == 2 ? board->told : "";
}

/* --- text --------------------------------------------------------------------------------------*/

typedef struct Text {
    char *to;
    size_t used, room;
} Text;

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

static void add_message(Text *t, int tensor)
{
    add(t, tensor < RING_TENSORS ? ring_tensor_name((RingTensor)tensor) : "results");
}

/* "forward step 3, waiting for K from rank 1" */
static void add_place(Text *t, HeartPlace p)
{
    static const char *const passes[] = {"set-up", "forward", "backward"};
    if (p.operation == HEART_IDLE) {
        add(t, "between two runs");
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
        add_message(t, p.tensor);
        add(t, p.operation == HEART_RECEIVE ? " from " : " to ");
        add_rank(t, p.peer);
    }
}

static void add_seconds_since(Text *t, int64_t since)
{
    const int64_t tenths = (now_ns() - since) / 100000000;
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

static int is_gone(const HeartSlot *slot)
{
    const char state = process_state(slot->pid);
    return state == 0 || state == 'Z' || state == 'X';
}

/* The rank that all wait for: of those that are not there yet, the one that is silent longest. */
static int last_to_meet(const HeartBoard *board)
{
    int rank, last = -1;
    for (rank = 0; rank < board->ranks; rank++)
        if (heart_read(board, rank).operation != HEART_MEET &&
            (last < 0 || READ(board->slot[rank].since) < READ(board->slot[last].since)))
            last = rank;
    return last;
}

void heart_blame(const HeartBoard *board, int rank, char *text, size_t room)
{
    Text t = {text, 0, room};
    char seen[RING_MAX_RANKS] = {0};
    HeartPlace place = heart_read(board, rank);
    int next = rank;
    while (next >= 0 && next < board->ranks && !seen[next]) {
        rank = next;
        seen[rank] = 1;
        place = heart_read(board, rank);
        if (is_gone(&board->slot[rank]))
            break;
        next = place.operation == HEART_MEET ? last_to_meet(board)
               : place.operation == HEART_RECEIVE || place.operation == HEART_SEND ? place.peer
                                                                                   : -1;
    }
    add_rank(&t, rank);
    if (is_gone(&board->slot[rank])) {
        add(&t, " is gone, last seen at ");
        add_place(&t, place);
        return;
    }
    add(&t, process_state(board->slot[rank].pid) == 'T' ? " is stopped at " : " is at ");
    add_place(&t, place);
    add_seconds_since(&t, READ(board->slot[rank].since));
    if (next >= 0)
        add(&t, ": all wait in a circle");
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

/* In the order of how sure it is: a rank that noted its own crash; one that vanished although
 * nobody had told it to; the first that was told to. */
void heart_explain(const HeartBoard *board, char *text, size_t room)
{
    Text t = {text, 0, room};
    int rank, crashed = -1, vanished = -1, told = -1;
    for (rank = board->ranks - 1; rank >= 0; rank--) {
        const HeartSlot *s = &board->slot[rank];
        if (READ(s->signal))
            crashed = rank;
        if (READ(s->state) != HEART_ALIVE)
            continue;
        if (!READ(s->stopped) && is_gone(s) &&
            (vanished < 0 || READ(s->since) <= READ(board->slot[vanished].since)))
            vanished = rank;
        if (READ(s->stopped) && (told < 0 || READ(s->stopped) <= READ(board->slot[told].stopped)))
            told = rank;
    }
    rank = crashed >= 0 ? crashed : vanished >= 0 ? vanished : told;
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
        add(&t, vanished >= 0 ? "it ended without a word (it left, or was killed)"
                              : "it was told to end from outside (SIGTERM)");
}
