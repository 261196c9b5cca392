/* SPDX-License-Identifier: MIT
 *
 * launch_mpi.c: `ring_burst --transport mpi --ranks 4` without mpirun: start it, and watch over it.
 *
 * The process that the user started does not compute. It makes a notice board (heartbeat.h), starts
 *
 *     mpirun -n 4 ring_burst --transport mpi --ranks 4
 *
 * as its child, and waits. Each of those four is a rank, finds the board through the environment,
 * and writes on it where it is. When mpirun ends and not all ranks have ended as they should, this
 * process reads from the board which of them went first, and where it was.
 *
 * What the ranks print goes through this process, too: mpirun does not tell anybody that its
 * standard output is a full disk or closed, and we do.
 *
 * No process stays behind, whatever happens: this one is the subreaper of all that it started, so
 * that orphans become its children; a signal that would end it ends mpirun first; and ranks end
 * with their mpirun.
 *
 * Interface: ring_mpi_launch (world_mpi.h).
 */
#define _GNU_SOURCE /* nftw, pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transports/mpi/heartbeat.h"
#include "transports/mpi/world_mpi.h"

#define START_S 30.0 /* on top of --timeout: until all processes have started */
#define STOP_S  4.0  /* on top of --timeout: a rank that waits says more, so it speaks first */
#define END_S   5.0  /* until mpirun has ended, after it was told to */

typedef struct Launch {
    HeartBoard *board;
    char path[64];    /* of the board */
    char folder[256]; /* where OpenMPI keeps its files while it runs; "" = where it likes */
    char mpirun[512]; /* of the program */
    int ranks;
    double timeout_s;
    pid_t child;
    int status;         /* of mpirun, when it has ended */
    char why[512];      /* that it was told to end, in a sentence; "" */
    double start, told; /* s: when it was started; when a rank told what is wrong */
    double held;        /* s: since when mpirun is stopped; 0: it is not */
    int output[2];      /* a pipe: what the ranks print */
    int lost;           /* some of it was not taken */
} Launch;

static volatile sig_atomic_t told_to_end; /* the signal */

/* All that a handler may safely do: set a flag that the loop in `watch` looks at. */
static void note_signal(int number)
{
    told_to_end = number;
}

/* Where a program is, by PATH: 1, or 0. */
static int find_program(const char *name, char *path, size_t room)
{
    const char *at = getenv("PATH");
    while (at && *at) {
        const size_t n = strcspn(at, ":");
        snprintf(path, room, "%.*s/%s", (int)n, at, name);
        if (n > 0 && access(path, X_OK) == 0)
            return 1;
        at += n + (at[n] == ':');
    }
    return 0;
}

/* By itself, all mpiruns of a user share one folder, and one that ends takes it away while another
 * starts. */
static void make_folder(Launch *l)
{
    const char *base = getenv("TMPDIR");
    snprintf(l->folder, sizeof l->folder, "%.200s/ring_burst.XXXXXX",
             base && *base ? base : "/tmp");
    if (!mkdtemp(l->folder))
        l->folder[0] = '\0';
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *where)
{
    (void)s, (void)type, (void)where;
    return remove(path);
}

static void remove_folder(const Launch *l)
{
    if (l->folder[0])
        nftw(l->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* What OpenMPI needs to know on a laptop, in a container, with more ranks than cores. What the user
 * has set stays. */
static void set_environment(const Launch *l)
{
    static const char *const settings[][2] = {
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"}, /* more ranks than cores are fine, */
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},                /* but then nobody may spin, */
        {"OMP_WAIT_POLICY", "passive"},                       /* OpenMP's threads neither; */
        {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"}, /* containers forbid it, noisily */
    };
    char path[512];
    size_t i;
    for (i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
    if (geteuid() == 0) { /* CI runs as root in a container; twice, or OpenMPI refuses */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    if (!find_program("ssh", path, sizeof path) && !find_program("rsh", path, sizeof path))
        setenv("OMPI_MCA_plm", "isolated", 0); /* else it insists on one, for other machines */
    if (l->folder[0])
        setenv("OMPI_MCA_orte_tmpdir_base", l->folder, 0);
    setenv("RING_MPI_BOARD", l->path, 1);
}

/* In the child, after fork and before exec. A group of processes of its own, so that all of it can
 * be killed at once; and the kernel ends it if this parent dies. */
static void become_mpirun(const Launch *l, pid_t parent, int argc, char **argv)
{
    static char self[4096], count[16];
    const char *const front[] = {l->mpirun, "-q", "-n", count, self};
    enum { FRONT = sizeof front / sizeof *front };
    const char **words = calloc((size_t)argc + FRONT, sizeof *words);
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const int empty = open("/dev/null", O_RDONLY);
    if (!words || n < 0)
        _exit(127);
    self[n] = '\0';
    snprintf(count, sizeof count, "%d", l->ranks);
    memcpy(words, front, sizeof front);
    memcpy(words + FRONT, argv + 1, (size_t)(argc - 1) * sizeof *words);
    setpgid(0, 0); /* Ctrl-C reaches us, and we tell mpirun */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127); /* it died before that call */
    if (empty >= 0)
        dup2(empty, STDIN_FILENO);
    dup2(l->output[1], STDOUT_FILENO);
    set_environment(l);
    execv(l->mpirun, (char **)(uintptr_t)words);
    _exit(127);
}

/* --- watching ----------------------------------------------------------------------------------*/

static double now_s(void)
{
    return (double)heart_now() * 1e-9;
}

/* Why mpirun should be ended: 1 (with a sentence, or the ranks have told theirs), or 0. */
static int must_end(Launch *l, double now)
{
    const int joined = heart_joined(l->board);
    if (told_to_end)
        snprintf(l->why, sizeof l->why, "ended by signal %d", (int)told_to_end);
    else if (joined < l->ranks && now - l->start > l->timeout_s + START_S)
        snprintf(l->why, sizeof l->why, "%d of %d ranks have not started in %g s",
                 l->ranks - joined, l->ranks, l->timeout_s + START_S);
    else if (l->held > 0.0 && now - l->held > l->timeout_s + STOP_S)
        snprintf(l->why, sizeof l->why, "mpirun is stopped, for %.1f s", now - l->held);
    if (heart_reported(l->board)[0] && l->told == 0.0)
        l->told = now;
    return l->why[0] || (l->told > 0.0 && now - l->told > END_S);
}

/* WNOHANG: ask whether it has ended and go on. That it was stopped, or goes on, is told as well. */
static int mpirun_has_ended(Launch *l)
{
    pid_t told;
    while ((told = waitpid(l->child, &l->status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
        if (WIFEXITED(l->status) || WIFSIGNALED(l->status))
            return 1;
        l->held = WIFSTOPPED(l->status) ? now_s() : 0.0;
    }
    return told < 0;
}

/* Passes on what the ranks have printed; waits up to 10 ms for it. */
static void relay(Launch *l)
{
    struct pollfd ready = {l->output[0], POLLIN, 0};
    char text[1 << 14];
    ssize_t count, done, at;
    poll(&ready, 1, 10);
    while ((count = read(l->output[0], text, sizeof text)) > 0)
        for (at = 0; at < count && !l->lost; at += done > 0 ? done : 0) {
            done = write(STDOUT_FILENO, text + at, (size_t)(count - at));
            l->lost = done < 0 && errno != EINTR;
        }
}

/* Returns when mpirun has ended, by itself or by force. First it is asked politely (SIGTERM, which
 * a stopped process takes when it goes on), then not (SIGKILL, to the whole group). */
static void watch(Launch *l)
{
    double ending = 0.0;
    int turn = 0;
    l->start = now_s();
    while (!mpirun_has_ended(l)) {
        if (turn++ % 10 == 0 && ending == 0.0 && must_end(l, now_s())) {
            ending = now_s();
            kill(l->child, SIGTERM);
            kill(l->child, SIGCONT);
        }
        if (ending > 0.0 && now_s() - ending > END_S)
            kill(-l->child, SIGKILL);
        heart_watch(l->board);
        relay(l);
    }
    relay(l);
}

/* Ranks whose mpirun is gone are our children now. */
static void end_orphans(const Launch *l)
{
    int rank;
    for (rank = 0; rank < l->ranks; rank++) {
        const pid_t pid = (pid_t)l->board->slot[rank].pid;
        if (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
    }
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

/* Exit status of the whole, after telling what there is to tell. */
static int ending(const Launch *l)
{
    const char *told;
    char text[512];
    int rank, begun = 0, ended = 0;
    for (rank = 0; rank < l->ranks; rank++) {
        begun += l->board->slot[rank].state != HEART_ABSENT;
        ended += l->board->slot[rank].state == HEART_DONE;
    }
    if (ended == l->ranks && WIFEXITED(l->status) && !l->why[0])
        return WEXITSTATUS(l->status) ? WEXITSTATUS(l->status) : l->board->status;
    if (l->why[0])
        snprintf(text, sizeof text, "%s", l->why);
    else if (WIFSIGNALED(l->status)) /* its ranks go with it, and none of them is to blame */
        snprintf(text, sizeof text, "mpirun was ended by signal %d", WTERMSIG(l->status));
    else if (begun == 0)
        snprintf(
            text, sizeof text,
            "%.200s could not start %d processes (it ended with %d); to see why, type: mpirun -n "
            "%d hostname",
            l->mpirun, l->ranks, WIFEXITED(l->status) ? WEXITSTATUS(l->status) : -1, l->ranks);
    else
        heart_explain(l->board, text, sizeof text);
    heart_report(l->board, text); /* unless a rank has told its own */
    told = heart_reported(l->board);
    fprintf(stderr, "ring_burst: %s\n", told[0] ? told : text);
    return EXIT_RUNTIME;
}

/* Signal handlers are put back in the end, in this process and in the child: mpirun should find the
 * world as the user left it. */
static int launch(Launch *l, int argc, char **argv)
{
    const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    const pid_t parent = getpid();
    struct sigaction action, before[3];
    int i, status;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_signal;
    for (i = 0; i < 3; i++) {
        sigaction(signals[i], &action, &before[i]);
        if (before[i].sa_handler == SIG_IGN) /* started by nohup, or in a script's background */
            sigaction(signals[i], &before[i], NULL);
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    make_folder(l);
    fflush(NULL);
    l->child = pipe2(l->output, O_CLOEXEC) == 0 ? fork() : -1;
    if (l->child == 0) {
        for (i = 0; i < 3; i++)
            sigaction(signals[i], &before[i], NULL);
        become_mpirun(l, parent, argc, argv);
    }
    if (l->child < 0) {
        remove_folder(l);
        cli_refuse("--transport mpi: found that no process can be started, accepted is a machine "
                   "that starts one more");
        return EXIT_RUNTIME;
    }
    close(l->output[1]);
    fcntl(l->output[0], F_SETFL, O_NONBLOCK);
    watch(l);
    end_orphans(l);
    remove_folder(l);
    status = ending(l);
    close(l->output[0]);
    if (l->lost) {
        cli_refuse("found that the standard output did not take the table, accepted is one that "
                   "does");
        status = exit_worst(status, EXIT_RUNTIME);
    }
    for (i = 0; i < 3; i++)
        sigaction(signals[i], &before[i], NULL);
    if (told_to_end)
        raise(told_to_end); /* the shell shall know */
    return status;
}

int ring_mpi_launch(int ranks, double timeout_s, int argc, char **argv)
{
    Launch l = {.ranks = ranks, .timeout_s = timeout_s};
    int status;
    if (!find_program("mpirun", l.mpirun, sizeof l.mpirun)) {
        cli_refuse("--transport mpi: found no mpirun in PATH, accepted is an installed OpenMPI "
                   "(Debian: openmpi-bin)");
        return EXIT_NO_DEVICE;
    }
    l.board = heart_create(l.ranks, l.path);
    if (!l.board) {
        cli_refuse("--transport mpi: found no memory for the heartbeats, accepted is a machine "
                   "with some");
        return EXIT_RUNTIME;
    }
    status = launch(&l, argc, argv);
    heart_close(l.board);
    return status;
}
