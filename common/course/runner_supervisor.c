/* SPDX-License-Identifier: MIT
 *
 * runner_supervisor.c: the process between the judge and a submission that runs without a sandbox.
 * When it is gone, nothing that the submission started is left, however the judge ends.
 *
 *     judge              Ctrl-C, SIGTERM or SIGKILL may end it at any time
 *       supervisor       waits for the runner's end, or for SIGTERM
 *         runner         the submission, in a process group of its own
 *           ...          what it starts
 *
 * A process that the code started may leave its group and its session (setsid) and live on, with
 * the caller's pipes open: who waits for the end of our output would wait for it. But no process
 * leaves the tree below a subreaper: whose parent ended becomes a child of the supervisor. It is
 * found there in /proc, killed and reaped. The kernel signals the supervisor when the judge ends
 * (PR_SET_PDEATHSIG); a judge killed by SIGKILL could not do so itself.
 *
 * In the sandbox no process can be started, and a runner has no supervisor.
 *
 * Interface: runner_supervise (runner.h).
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "course/runner.h"

enum { SWEEP_TRIES = 5000 }; /* of 1 ms: a killed process that takes longer hangs in the kernel */

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

/* Kills and reaps all that is left of the runner and below it; *how: how the runner ended. */
static void end_all(pid_t pid, int *how)
{
    const struct timespec pause = {0, 1000000};
    int one;
    kill(-pid, SIGKILL);
    for (int i = 0; i < SWEEP_TRIES && kill_children() > 0; i++) {
        pid_t gone;
        while ((gone = waitpid(-1, &one, WNOHANG)) > 0)
            if (gone == pid)
                *how = one;
        nanosleep(&pause, NULL);
    }
}

void runner_supervise(void)
{
    RunnerReply ended = {.says = RUNNER_ENDED};
    const pid_t judge = getppid();
    sigset_t all, before, wanted;
    pid_t pid;
    signal(SIGCHLD, SIG_DFL); /* ignored, children could not be waited for */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); /* it sleeps until a signal is there; none ends it */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid = fork();
    if (pid < 0)
        _exit(EXIT_FAILURE);
    if (pid == 0) {
        setpgid(0, 0);
        sigprocmask(SIG_SETMASK, &before, NULL);
        return;
    }
    setpgid(pid, pid); /* also here: whoever comes first, kill(-pid) is right */
    for (int file = 0; file < RUNNER_FILES; file++)
        if (file != RUNNER_CONTROL)
            close(file);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    while (getppid() == judge && waitpid(pid, &ended.number, WNOHANG) == 0)
        if (sigwaitinfo(&wanted, NULL) == SIGTERM)
            break;
    end_all(pid, &ended.number);
    if (write(RUNNER_CONTROL, &ended, sizeof ended) < 0)
        _exit(EXIT_FAILURE);
    _exit(EXIT_SUCCESS);
}
