/* SPDX-License-Identifier: MIT
 *
 * run_so_supervisor.c: the process between this program and the user's code of --variant-so. When
 * it is gone, nothing that the code started is left, however this program ends.
 *
 *     program            judges; Ctrl-C, SIGTERM or SIGKILL may end it at any time
 *       supervisor       waits for the child, the time limit, or the end of the program
 *         child          the user's code, in a process group of its own
 *           ...          what it starts
 *
 * A process that the code started may leave its group and its session (setsid) and live on, with
 * the caller's pipes open: who waits for the end of our output would wait for it. But no process
 * leaves the tree below a subreaper: whose parent ended becomes a child of the supervisor. It is
 * found there in /proc, killed and reaped. The kernel signals the supervisor when the program ends
 * (PR_SET_PDEATHSIG); a program killed by SIGKILL could not do so itself.
 *
 * Interface: so_supervise (run_so_internal.h).
 */
#define _GNU_SOURCE /* pipe2 */
#include "judge/run_so_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
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

/* --- the supervisor ----------------------------------------------------------------------------*/

/* Parent of a process from /proc/PID/stat, or -1 when it is gone. */
static long parent_of(long pid)
{
    char path[64], line[1024];
    const char *after; /* the name may hold blanks and parentheses: fields count from its end */
    long parent = -1;
    size_t got;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!(f = fopen(path, "r")))
        return -1;
    got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = 0;
    after = strrchr(line, ')');
    return after && sscanf(after + 1, " %*c %ld", &parent) == 1 ? parent : -1;
}

/* Kills all children of this process; how many there were. Their own become ours. */
static int kill_children(void)
{
    DIR *folder = opendir("/proc");
    const struct dirent *entry;
    int count = 0;
    while (folder && (entry = readdir(folder)) != NULL) {
        const long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 0 && parent_of(pid) == (long)getpid()) {
            kill((pid_t)pid, SIGKILL);
            count++;
        }
    }
    if (folder)
        closedir(folder);
    return count;
}

/* Kills and reaps all that is left of the child and below it; *how: how the child itself ended. */
static void end_all(pid_t pid, int *how)
{
    const double end = bench_now_ms() + SWEEP_MS;
    const struct timespec pause = {0, 1000000};
    int one;
    kill(-pid, SIGKILL);
    while (kill_children() > 0 && bench_now_ms() < end) {
        pid_t gone;
        while ((gone = waitpid(-1, &one, WNOHANG)) > 0)
            if (gone == pid)
                *how = one;
        nanosleep(&pause, NULL);
    }
}

/* Waits for the child: 1 ended, 0 the time is over, -1 the program is gone. All signals are
 * blocked: this process sleeps until one is there, and no Ctrl-C ends it. */
static int wait_for(pid_t pid, pid_t program, double seconds, int *how)
{
    const double end = bench_now_ms() + seconds * 1e3;
    sigset_t wanted;
    double left;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM); /* PDEATHSIG */
    while ((left = end - bench_now_ms()) > 0.0) {
        const struct timespec most = {(time_t)(left / 1e3), (long)(fmod(left, 1e3) * 1e6)};
        if (getppid() != program)
            return -1;
        if (waitpid(pid, how, WNOHANG) == pid)
            return 1;
        sigtimedwait(&wanted, NULL, &most);
    }
    return waitpid(pid, how, WNOHANG) == pid;
}

static _Noreturn void supervise(const SoLimits *limits, SoChild *k, const Problem *p, pid_t program,
                                int report)
{
    SoEnd end = {0, 0};
    sigset_t all, before;
    pid_t pid;
    signal(SIGCHLD, SIG_DFL); /* ignored, children could not be waited for */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    setpgid(0, 0); /* the program's group may be killed as a whole */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid = fork();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        setpgid(0, 0);
        so_child_main(k, p, limits->seconds, limits->mebibytes);
    }
    close(k->output); /* the child's alone */
    if (pid < 0)
        _exit(1);      /* no report: no process */
    setpgid(pid, pid); /* also here: whoever comes first, kill(-pid) is right */
    end.in_time = wait_for(pid, program, limits->seconds, &end.how);
    end_all(pid, &end.how);
    if (end.in_time >= 0 && write(report, &end, sizeof end) != sizeof end)
        _exit(1);
    _exit(0);
}

/* --- the program -------------------------------------------------------------------------------*/

/* What of the child's output was shown. */
typedef struct Relay {
    size_t bytes;
    char last;
} Relay;

/* Relays one piece to stderr: 1, or 0 when there is nothing more for now. */
static int relay_piece(Relay *r, int from)
{
    char text[4096];
    const ssize_t got = read(from, text, sizeof text);
    size_t i, keep;
    if (got <= 0)
        return 0;
    keep = (size_t)got < RELAY_BYTES - r->bytes ? (size_t)got : RELAY_BYTES - r->bytes;
    for (i = 0; i < keep; i++) /* it shall not steer the caller's terminal */
        if (((unsigned char)text[i] < 32 && text[i] != '\n' && text[i] != '\t') || text[i] == 127)
            text[i] = '?';
    if (keep > 0) {
        fwrite(text, 1, keep, stderr);
        r->bytes += keep;
        r->last = text[keep - 1];
        if (r->bytes == RELAY_BYTES) {
            fputs("\n[the rest of its output is left out]", stderr);
            r->last = ']';
        }
    }
    return 1;
}

/* Relays output until the supervisor reports: 0, or -1 when it ends without a report. */
static int relay_until_report(int output, int report, SoEnd *end)
{
    struct pollfd ready[2] = {{report, POLLIN, 0}, {output, POLLIN, 0}};
    Relay relay = {0, '\n'};
    ssize_t got;
    int i;
    do {
        while (poll(ready, 2, -1) < 0 && errno == EINTR)
            ;
        if (ready[1].revents && !relay_piece(&relay, output))
            ready[1].fd = -1; /* every write end is closed */
    } while (!ready[0].revents);
    while ((got = read(report, end, sizeof *end)) < 0 && errno == EINTR)
        ;
    for (i = 0; i < 1024 && relay_piece(&relay, output); i++)
        ;
    if (relay.last != '\n')
        fputc('\n', stderr);
    return got == (ssize_t)sizeof *end ? 0 : -1;
}

int so_supervise(const SoLimits *limits, SoChild *k, const Problem *p, SoEnd *end)
{
    const pid_t program = getpid();
    int output[2], report[2], status, how = 0;
    pid_t pid;
    if (pipe2(output, O_CLOEXEC) != 0)
        return -1;
    if (pipe2(report, O_CLOEXEC) != 0) {
        close(output[0]);
        close(output[1]);
        return -1;
    }
    k->output = output[1];
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        close(output[0]);
        close(report[0]);
        supervise(limits, k, p, program, report[1]);
    }
    close(output[1]);
    close(report[1]);
    fcntl(output[0], F_SETFL, O_NONBLOCK); /* of this end only */
    status = pid < 0 ? -1 : relay_until_report(output[0], report[0], end);
    while (pid > 0 && waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    if (status != 0 && pid > 0 && WIFSIGNALED(how)) { /* the user's code killed its parent */
        *end = (SoEnd){1, how};
        status = 0;
    }
    close(output[0]);
    close(report[0]);
    return status;
}
