/* SPDX-License-Identifier: MIT
 *
 * run_so_leash.c: what the child of --variant-so prints, and the processes that it leaves behind.
 *
 * A process that a student's code started may move to a session of its own (setsid) and live on
 * with the caller's pipes open: who waits for the end of our output would wait for it. So the child
 * gets a pipe of ours, and this process is the subreaper: orphans below it become its children, are
 * found in /proc, killed and reaped.
 *
 * Interface: see SoLeash in run_so_internal.h.
 */
#define _GNU_SOURCE /* pipe2 */
#include "run_so_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RELAY_BYTES = 64 << 10 };
#define SWEEP_MS 5000.0 /* a killed process that takes longer hangs in the kernel */

/* Parent and start time of a process from /proc/PID/stat: 0, or -1 when it is gone. */
static int read_stat(long pid, long *parent, unsigned long long *born)
{
    char path[64], line[1024];
    const char *after; /* the name may hold blanks and parentheses: fields count from its end */
    size_t got;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!(f = fopen(path, "r")))
        return -1;
    got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = 0;
    after = strrchr(line, ')');
    return after && sscanf(after + 1,
                           " %*c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                           "%*s %*s %*s %llu",
                           parent, born) == 2
               ? 0
               : -1;
}

/* Calls f for every child of this process; the sum of what it returned. */
static int each_child(SoLeash *l, int (*f)(SoLeash *, long pid, unsigned long long born))
{
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    int sum = 0;
    while (folder && (entry = readdir(folder)) != NULL) {
        const long pid = strtol(entry->d_name, NULL, 10);
        unsigned long long born;
        long parent;
        if (pid > 0 && read_stat(pid, &parent, &born) == 0 && parent == (long)getpid())
            sum += f(l, pid, born);
    }
    if (folder)
        closedir(folder);
    return sum;
}

static int remember(SoLeash *l, long pid, unsigned long long born)
{
    (void)born;
    if (l->older_count < SO_OLDER)
        l->older[l->older_count++] = pid;
    return 0;
}

/* Kills and reaps a process that the user's code started: 1, or 0 for any other. Its own children
 * are ours in the next round. */
static int end_one(SoLeash *l, long pid, unsigned long long born)
{
    int i;
    for (i = 0; i < l->older_count; i++)
        if (l->older[i] == pid)
            return 0;
    if (born < l->born)
        return 0;
    kill((pid_t)pid, SIGKILL);
    waitpid((pid_t)pid, NULL, WNOHANG);
    return 1;
}

int so_leash_make(SoLeash *l)
{
    int ends[2];
    memset(l, 0, sizeof *l);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    l->read_end = ends[0];
    l->write_end = ends[1];
    fcntl(l->read_end, F_SETFL, O_NONBLOCK); /* of this end only */
    each_child(l, remember);
    prctl(PR_GET_CHILD_SUBREAPER, &l->was_subreaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return 0;
}

void so_leash_take(SoLeash *l, pid_t pid)
{
    long parent;
    close(l->write_end);
    /* not reaped yet, so it is there; what is older than the child is not the child's */
    if (pid < 0 || read_stat(pid, &parent, &l->born) != 0)
        l->born = ~0ull;
}

/* Relays one piece: 1, or 0 when there is nothing more for now. */
static int relay_piece(SoLeash *l)
{
    char text[4096];
    const ssize_t got = read(l->read_end, text, sizeof text);
    size_t i, keep;
    if (got <= 0)
        return 0;
    keep = (size_t)got < RELAY_BYTES - l->relayed ? (size_t)got : RELAY_BYTES - l->relayed;
    for (i = 0; i < keep; i++) /* it shall not steer the caller's terminal */
        if (((unsigned char)text[i] < 32 && text[i] != '\n' && text[i] != '\t') || text[i] == 127)
            text[i] = '?';
    if (keep > 0) {
        fwrite(text, 1, keep, stderr);
        l->relayed += keep;
        l->last = text[keep - 1];
        if (l->relayed == RELAY_BYTES) {
            fputs("\n[the rest of its output is left out]", stderr);
            l->last = ']';
        }
    }
    return 1;
}

void so_leash_relay(SoLeash *l, double ms)
{
    struct pollfd ready = {l->read_end, POLLIN, 0};
    const struct timespec pause = {0, (long)(ms * 1e6)};
    int i;
    /* POLLHUP without data: every write end is closed, poll would return at once for ever */
    if (ppoll(&ready, 1, &pause, NULL) > 0 && !(ready.revents & POLLIN))
        nanosleep(&pause, NULL);
    for (i = 0; i < 64 && relay_piece(l); i++) /* bounded: the time limit must be looked at */
        ;
}

void so_leash_end(SoLeash *l)
{
    const double end = bench_now_ms() + SWEEP_MS;
    int i;
    while (each_child(l, end_one) > 0 && bench_now_ms() < end)
        so_leash_relay(l, 1.0);
    for (i = 0; i < 1024 && relay_piece(l); i++)
        ;
    if (l->relayed > 0 && l->last != '\n')
        fputc('\n', stderr);
    close(l->read_end);
    prctl(PR_SET_CHILD_SUBREAPER, l->was_subreaper);
}
