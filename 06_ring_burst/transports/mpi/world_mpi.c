/* SPDX-License-Identifier: MIT
 *
 * world_mpi.c: which of the processes of --transport mpi is this one? A rank, when mpirun started
 * it; else it becomes that mpirun.
 *
 *     ring_burst --transport mpi          becomes mpirun -n 4 ring_burst ...
 *       |- rank 0                         computes, checks, prints
 *       `- ranks 1, 2, 3                  compute
 *
 * A rank that dies is known to mpirun only, which then ends the others by SIGTERM. Who went first?
 * Each rank notes on the board (heartbeat.h) that it crashed, or that it was told to end, by mpirun
 * or by somebody else (the kernel says who sent a signal). A rank that is gone and has noted
 * neither went first. The first rank that is told to end reads the board and says it. And if mpirun
 * itself is killed, the kernel ends its ranks: no orphans.
 *
 * In a run all processes have read the same command line and made the same inputs from the same
 * seed, so nothing needs to be dealt out: each rank takes its shard from its own copy. What comes
 * together on rank 0 are results, bytes and times.
 *
 * Interface: see world_mpi.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "transports/mpi/messages_mpi.h"
#include "transports/mpi/world_mpi.h"

#ifdef __SANITIZE_ADDRESS__ /* which has better words for a crash */
enum { OWN_WORDS = 0 };
#else
enum { OWN_WORDS = 1 };
#endif

enum { LOOKS_PER_S = 10 }; /* of a rank's guard */
#define START_S 30.0       /* on top of --timeout: until MPI has started */

static MpiEnd *end;
static HeartBoard *board;
static HeartBoard own_board; /* where the shared one cannot be had: nobody else sees it */
static int own_rank, own_line, loud = STDERR_FILENO;
static int joined;    /* 1: the board */
static sigset_t ends; /* SIGTERM */

/* --- before MPI is started: what the environment says ------------------------------------------*/

/* OpenMPI, then MPICH and its kin, then whatever starts processes by PMIx. */
static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};

static int rank_by_environment(void)
{
    size_t i;
    for (i = 0; i < sizeof rank_names / sizeof *rank_names; i++)
        if (getenv(rank_names[i]))
            return atoi(getenv(rank_names[i]));
    return -1;
}

static int under_mpirun(void)
{
    return rank_by_environment() >= 0;
}

void ring_mpi_hush(void)
{
    const int nothing = rank_by_environment() > 0 ? open("/dev/null", O_WRONLY) : -1;
    if (nothing < 0)
        return;
    dup2(nothing, STDOUT_FILENO);
    if (!getenv("ATTN_MPI_STDERR")) {
        loud = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        dup2(nothing, STDERR_FILENO);
    }
    close(nothing);
}

int ring_mpi_status(int status)
{
    return rank_by_environment() > 0 ? 0 : status;
}

/* --- the end of a rank -------------------------------------------------------------------------*/

/* In one write, so that no other process's words come between. */
void ring_mpi_report(const char *sentence)
{
    char line[600];
    if (board && !heart_report(board, sentence))
        return;
    const int length = snprintf(line, sizeof line, "ring_burst: %s\n",
                                board ? heart_reported(board) : sentence); /* with its case */
    if (write(loud, line, (size_t)length) < 0)
        return; /* nobody reads */
}

/* With the default handling back in its place the signal does what it would have done without us:
 * the parent sees of what the process died. */
static void on_crash(int number)
{
    heart_crash(board, own_rank, number);
    signal(number, SIG_DFL);
    raise(number);
}

/* mpirun sends SIGTERM to all ranks when one is gone. And when rank 0 ends with a status that is
 * not 0: who has left by then has nothing to say. */
static void told_to_end(pid_t by)
{
    const struct timespec others = {0, 100000000}; /* until they have noted it as well */
    char text[400];
    if (__atomic_load_n(&joined, __ATOMIC_ACQUIRE)) {
        heart_stop(board, own_rank, by != getppid());
        if (board->slot[own_rank].state != HEART_DONE) {
            nanosleep(&others, NULL);
            heart_explain(board, text, sizeof text);
            ring_mpi_report(text);
        }
    }
    pthread_sigmask(SIG_UNBLOCK, &ends, NULL);
    raise(SIGTERM);
}

/* The guard's pause between two looks. The kernel says who sent a signal. */
static void pause_or_end(void)
{
    const struct timespec pause = {0, 1000000000 / LOOKS_PER_S};
    siginfo_t sent;
    if (sigtimedwait(&ends, &sent, &pause) == SIGTERM)
        told_to_end(sent.si_pid);
}

/* A stopped process neither fails nor ends, and only a rank that waits for it notices. So each rank
 * has a thread that looks at the next rank of this machine all the time, and, if that one is
 * stopped, at the one behind it too: some rank that runs looks at each stopped one. After the
 * time-out the rank is named, and this process ends with a status, upon which mpirun ends the rest.
 * The time is counted in looks: if all were stopped (Ctrl-Z), nobody has looked meanwhile. SIGTERM
 * ends the process here, too, and not in a handler, which could say little. */
static void *guard(void *timeout_s)
{
    const double most = *(double *)timeout_s * LOOKS_PER_S;
    int looks[RING_MAX_RANKS] = {0}, n, rank;
    char text[400];
    for (n = 0; !__atomic_load_n(&end, __ATOMIC_ACQUIRE); n++, pause_or_end())
        if (n > most + START_S * LOOKS_PER_S) {
            snprintf(text, sizeof text, "rank %d: not all ranks have started in %g s", own_rank,
                     (double)n / LOOKS_PER_S);
            ring_mpi_report(text);
            _exit(EXIT_RUNTIME);
        }
    for (;; pause_or_end())
        for (n = 1; n < board->ranks; n++) {
            rank = (own_rank + n) % board->ranks;
            if (board->slot[rank].pid == 0) /* on another machine */
                continue;
            looks[rank] = heart_is_stopped(board, rank) ? looks[rank] + 1 : 0;
            if (looks[rank] > most) {
                heart_describe(board, rank, text, sizeof text);
                ring_mpi_report(text);
                _exit(EXIT_RUNTIME);
            }
            if (looks[rank] == 0)
                break;
        }
    return NULL;
}

/* It runs from before MPI_Init until the process ends: both MPI_Init and MPI_Finalize wait for all
 * ranks. This thread and all that start later block SIGTERM: it waits for the guard. */
static void start_guard(double timeout_s)
{
    static double limit;
    pthread_t thread;
    limit = timeout_s;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    if (pthread_create(&thread, NULL, guard, &limit) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, &ends, NULL);
}

static void watch_crashes(void)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; OWN_WORDS && i < sizeof crashes / sizeof *crashes; i++)
        signal(crashes[i], on_crash);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* when mpirun, our parent, is killed */
}

/* --- becoming a rank ---------------------------------------------------------------------------*/

/* The first rank of a machine makes the board, for those beside it. */
static void share_board(int world)
{
    MPI_Comm machine;
    char path[64] = "";
    int place;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &place);
    if (place == 0)
        board = heart_create(world, path);
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, machine);
    if (place > 0 && path[0])
        board = heart_open(path);
    MPI_Comm_free(&machine);
}

/* Before anything is computed: a plan for more ranks than there are would wait for one that does
 * not exist. */
static int refuse_world(int ranks, int world, char why[256])
{
    if (world > RING_MAX_RANKS)
        snprintf(why, 256, "mpirun -n: found %d, accepted are up to %d ranks", world,
                 RING_MAX_RANKS);
    else
        snprintf(why, 256, "--ranks: found %d under mpirun with %d ranks, accepted is %d, or none",
                 ranks, world, world);
    MPI_Finalize();
    return -1;
}

/* MPI_THREAD_FUNNELED: kernels may have threads, but only the main one calls MPI. */
static int join_mpi(int ranks, double timeout_s, char why[256])
{
    int world, given;
    start_guard(timeout_s);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS) {
        snprintf(why, 256, "MPI_Init failed");
        return -1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world > RING_MAX_RANKS || (ranks > 0 && ranks != world))
        return refuse_world(ranks, world, why);
    share_board(world);
    if (!board) {
        board = &own_board;
        board->ranks = world;
    }
    heart_join(board, own_rank);
    __atomic_store_n(&joined, 1, __ATOMIC_RELEASE);
    watch_crashes();
    __atomic_store_n(&end, mpi_end_open(board, timeout_s), __ATOMIC_RELEASE);
    if (!end) {
        snprintf(why, 256, "out of memory for the ends of %d channels", world);
        return -1;
    }
    return 0;
}

/* All ranks together. */
static void finalize(void)
{
    heart_end(board, own_rank);
    mpi_end_close(end);
    end = NULL;
    MPI_Finalize();
}

/* Rank 0 says that no run comes any more; the others have waited for that. */
int ring_mpi_leave(int status)
{
    if (!end)
        return status;
    const int refused = status == EXIT_USAGE || status == EXIT_RUNTIME; /* with runs left, maybe */
    mpi_go(end, own_rank == 0 && refused ? MPI_GIVES_UP : MPI_ENDS);
    finalize();
    return own_rank == 0 ? status : 0;
}

/* Others than rank 0 wait meanwhile. */
void ring_mpi_case(const Cli *cli, const CliCase *c)
{
    const int last = c == &cli->cases[cli->case_count - 1];
    own_line = c->line;
    if (board && own_rank == 0 && c->line > 0 && !heart_reported(board)[0])
        snprintf(board->told, sizeof board->told, "%.100s:%d%s: ", c->cases_file, c->line,
                 last ? "" : " (the cases after it did not run)");
}

int ring_mpi_line(void)
{
    return own_line;
}

int ring_mpi_rank(void)
{
    return own_rank;
}

/* --- which process -----------------------------------------------------------------------------*/

enum { DEFAULT_RANKS = 4 };

int ring_mpi_is_over(const CliCase *c)
{
    return c->ring.transport == CLI_MPI || (c->ring.transport == CLI_NCCL && under_mpirun());
}

/* The number of ranks for which all cases with --transport mpi ask. 0: they do not say; -1: they
 * ask for different numbers. */
static int wanted_ranks(const Cli *cli, double *timeout_s)
{
    int i, first = -1;
    for (i = 0; i < cli->case_count; i++) {
        const CliRing *r = &cli->cases[i].ring;
        if (!ring_mpi_is_over(&cli->cases[i]))
            continue;
        if (first >= 0 && (r->ranks_given != cli->cases[first].ring.ranks_given ||
                           (r->ranks_given && r->ranks != cli->cases[first].ring.ranks))) {
            cli_refuse("--cases: found different --ranks in lines %d and %d, accepted is one "
                       "number of ranks for all cases over mpi",
                       cli->cases[first].line, cli->cases[i].line);
            return -1;
        }
        first = first < 0 ? i : first;
        *timeout_s = r->timeout_s > *timeout_s ? r->timeout_s : *timeout_s;
    }
    return first >= 0 && cli->cases[first].ring.ranks_given ? (int)cli->cases[first].ring.ranks : 0;
}

/* All but rank 0: what is computed by one process only, checked, shown or written is not theirs. */
static void take_part_only(Cli *cli)
{
    int i, kept = 0;
    for (i = 0; i < cli->case_count; i++) {
        CliCase *c = &cli->cases[i];
        if (!ring_mpi_is_over(c))
            continue;
        c->check = 0;
        c->save_dir = c->ring.trace_json = NULL;
        cli->cases[kept++] = *c;
    }
    cli->case_count = kept;
    cli->quiet = 1;
    cli->json_file = NULL;
}

/* From here on this process is one of many that run the same main. */
static int become_rank(Cli *cli, int ranks, double timeout_s)
{
    char why[256];
    int i;
    if (join_mpi(ranks, timeout_s, why) != 0)
        return cli_refuse("%s", why);
    for (i = 0; i < cli->case_count; i++)
        if (ring_mpi_is_over(&cli->cases[i]))
            cli->cases[i].ring.ranks = end->world;
    if (ring_mpi_rank() > 0)
        take_part_only(cli);
    return CLI_CONTINUE;
}

/* What OpenMPI needs to know on a laptop, in a container, with more ranks than cores. What the user
 * has set stays. */
static void set_environment(void)
{
    static const char *const settings[][2] = {
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"}, /* more ranks than cores are fine, */
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_mpi_yield_when_idle", "1"},                /* but then nobody may spin, */
        {"OMP_WAIT_POLICY", "passive"},                       /* OpenMP's threads neither; */
        {"OMPI_MCA_btl_vader_single_copy_mechanism", "none"}, /* containers forbid it, noisily */
        {"OMPI_MCA_plm", "isolated"}, /* else it wants ssh; who has more machines types mpirun */
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
    if (geteuid() == 0) { /* CI runs as root in a container; twice, or OpenMPI refuses */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
}

/* Returns only where mpirun cannot start, or tells its processes no rank: then each of them would
 * start another, a chain without an end. */
static int become_mpirun(int ranks, int argc, char **argv)
{
    static char self[4096], count[16];
    const char *const front[] = {"mpirun", "-q", "-n", count, self};
    enum { FRONT = sizeof front / sizeof *front };
    const char **words = calloc((size_t)argc + FRONT, sizeof *words);
    if (getenv("RING_MPI_STARTED")) {
        cli_refuse("--transport mpi: found an mpirun that tells no process its rank, accepted is "
                   "that of OpenMPI or MPICH");
        free(words);
        return EXIT_RUNTIME;
    }
    if (words && readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
        snprintf(count, sizeof count, "%d", ranks);
        memcpy(words, front, sizeof front);
        memcpy(words + FRONT, argv + 1, (size_t)(argc - 1) * sizeof *words);
        set_environment();
        setenv("RING_MPI_STARTED", "1", 1);
        if (freopen("/dev/null", "r", stdin)) /* mpirun would read what is meant for others */
            execvp("mpirun", (char **)(uintptr_t)words);
    }
    const int error = errno;
    free(words);
    if (error != ENOENT) {
        cli_refuse("--transport mpi: mpirun does not start: %s", strerror(error));
        return EXIT_RUNTIME;
    }
    cli_refuse("--transport mpi: found no mpirun in PATH, accepted is an installed OpenMPI "
               "(Debian: openmpi-bin)");
    return EXIT_NO_DEVICE;
}

/* Whoever is under mpirun finds its rank in the environment; a program cannot ask MPI before it has
 * called MPI_Init, and the one that the user started must not call it. */
static int enter(Cli *cli, int argc, char **argv)
{
    double timeout_s = 0.0;
    int i, ranks, mpi = 0;
    for (i = 0; i < cli->case_count; i++)
        mpi += ring_mpi_is_over(&cli->cases[i]);
    if (!mpi && under_mpirun())
        return cli_refuse("--transport: found sim, the default, under mpirun, accepted is mpi or "
                          "nccl, or sim without mpirun");
    if (!mpi)
        return CLI_CONTINUE;
    if ((ranks = wanted_ranks(cli, &timeout_s)) < 0)
        return EXIT_USAGE;
    if (under_mpirun())
        return become_rank(cli, ranks, timeout_s);
    return become_mpirun(ranks > 0 ? ranks : DEFAULT_RANKS, argc, argv);
}

int ring_mpi_enter(Cli *cli, int argc, char **argv)
{
    const int status = enter(cli, argc, argv);
    if (status != CLI_CONTINUE) /* as cli_parse does */
        cli_free(cli);
    return status;
}

/* --- a run ------------------------------------------------------------------------------------*/

/* A number that differs between cases, so that no rank takes part in another case than the others:
 * FNV-1a over the plan's numbers; never 0. */
static int number_of(const RingPlan *plan)
{
    const RingSetup *s = &plan->setup;
    const int64_t all[] = {plan->shape.B,  plan->shape.H, plan->shape.Hkv, plan->shape.Nq,
                           plan->shape.Nk, plan->shape.d, plan->dtype,     plan->backward,
                           s->method,      s->layout,     s->ranks,        s->nodes,
                           s->partials,    s->fault.kind, s->fault.step,   s->verify_hops};
    uint32_t sum = 2166136261u;
    size_t i;
    for (i = 0; i < sizeof all / sizeof *all; i++)
        sum = (sum ^ (uint32_t)all[i]) * 16777619u;
    return (int)(sum >> 2) + 1;
}

/* A mistake of the program, not of the user. */
static int refuse(RingReport *report, const char *why)
{
    report->failed = 1;
    snprintf(report->failure, sizeof report->failure, "%s", why);
    return -1;
}

/* The same ring_rank_main as for threads. Around it: go (all mean the same run), settle (no message
 * is left over), and the reports of all ranks. A rank that fails ends all processes (mpi_abandon):
 * whoever comes back from these has not failed. */
int ring_world_mpi(const RingTask *task, const RingBackend *backend, RingReport *report)
{
    MpiEnd *e = end;
    RingRank r;
    int world = e ? e->world : 0;
    memset(report, 0, sizeof *report);
    memset(&r, 0, sizeof r);
    if (!e || world != task->plan->setup.ranks)
        return refuse(report, e ? "the plan is not made for as many ranks as MPI has"
                                : "MPI has not been started");
    report->ranks = world;
    r.rank = e->rank;
    r.world = world;
    r.plan = task->plan;
    r.transport = &ring_transport_mpi;
    r.backend = backend;
    r.threads = task->plan->setup.threads > world ? task->plan->setup.threads / world : 1;
    const int said = mpi_go(e, number_of(task->plan));
    if (said == MPI_GIVES_UP) { /* rank 0 has left early */
        finalize();
        exit(EXIT_OK); /* the status of the whole is rank 0's */
    }
    if (said == MPI_PASSED)
        return refuse(report, "rank 0 has passed over this case");
    mpi_begin(e, &r);
    ring_rank_main(&r, task);
    mpi_settle(&r);
    ring_report_gather(&r, report);
    ring_rank_release(&r);
    return 0;
}
