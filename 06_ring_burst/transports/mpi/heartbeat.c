/* SPDX-License-Identifier: MIT
 *
 * heartbeat.c: the notice board of heartbeat.h.
 *
 * Processes share one page of memory and no lock: a rank that dies with a lock in its hand would
 * take the others with it. So a field is a word that is stored at once, by one writer, or by
 * whoever exchanges it for "nobody yet" first.
 *
 * Interface: see heartbeat.h; heart_blame and heart_explain are in heart_blame.c.
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
int64_t heart_now(void)
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
void heart_join(HeartBoard *board, int rank, HeartState state)
{
    heart_place(board, rank, (HeartPlace){RING_SETUP, 0, HEART_IDLE, 0, 0});
    WRITE(board->slot[rank].pid, (int64_t)getpid());
    WRITE(board->slot[rank].state, state);
}

/* How many have come so far: whoever started them waits for that with a time-out of its own. */
int heart_joined(const HeartBoard *board)
{
    int rank, joined = 0;
    for (rank = 0; rank < board->ranks; rank++)
        joined += READ(board->slot[rank].state) >= HEART_ALIVE;
    return joined;
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
void heart_end(HeartBoard *board, int rank, HeartState state)
{
    WRITE(board->slot[rank].state, state);
}

/* Signal 0 is never delivered: kill() only says whether there is such a process. */
void heart_watch(HeartBoard *board)
{
    int rank;
    for (rank = 0; rank < board->ranks; rank++) {
        HeartSlot *s = &board->slot[rank];
        const int32_t state = READ(s->state);
        if (state != HEART_ABSENT && state != HEART_DONE && !s->gone && kill((pid_t)s->pid, 0) != 0)
            s->gone = heart_now();
    }
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
