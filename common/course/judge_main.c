/* SPDX-License-Identifier: MIT
 *
 * attn_judge: judges submissions on the cases of a suite. ./ladder grade starts it; what it reads
 * and prints is made for programs.
 *
 * Standard input, one order a line, words with tabs between them:
 *
 *     suite PATH          named in messages        mode strict|off
 *     contract NAME                                workers N
 *     limits SECONDS MEBIBYTES THREADS             total SECONDS      of one submission
 *     case LINE FLAG...   once for each case       perf LINE          this case is timed, too
 *     so PATH             once for each submission     threads LINE N     of one case
 *
 * Standard output: one JSON object for each submission and case, in the order in which submissions
 * end: so, case (numbers from 0), status, message, ms, processor_ms, memory, output, sectors and
 * banks (of flash_cuda, contract.h), errors, hint, code, trace (the first wrong state of
 * attn_trace.h), inputs (of a wrong case that fits on paper).
 * A timed case has another object behind all those: so, case, perf (rate over that of sgemm).
 *
 * The references of all cases are computed first. Then `workers` processes take one submission
 * after the other. A submission that ran out of time in a case, or took longer than that with its
 * states recorded, is put aside, and its other cases come when the worker has nothing else to do:
 * who hangs makes nobody wait. Timed cases run at the end and alone, in rounds: every submission
 * once, then every submission again, so that a noisy minute does not fall on one of them.
 *
 * With --codes it prints the code and the sentence of every hint.
 *
 * Interface: none. Exit 0: judged. 2: an order or a flag that is wrong. 3: it could not be done.
 */
#define _GNU_SOURCE /* memfd_create, sched_setaffinity */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "course/contract_softmax.h"
#include "course/judge.h"

enum { PERF_ROUNDS = 5, SGEMM_SIZE = 512, MAX_WORDS = 128 };
enum { MOST_TRACED = 3 }; /* cases of a submission that are run again for their states */

typedef struct Judge {
    const char *suite;
    const Contract *contract;
    JudgeLimits limits;
    double total_s;
    int workers, worker; /* how many; of a worker: which it is */
    JudgeCase *cases;
    int *perf; /* by case */
    int case_count;
    char **libraries;
    int library_count;
    /* shared by the workers */
    int *next;     /* the next submission */
    int8_t *right; /* [library][case] */
    int lock;      /* whose output it is */
} Judge;

/* A submission that a worker has begun. */
typedef struct Work {
    int library;
    int done, traced; /* cases */
    double spent_s;
    JudgeRun *runs; /* [case_count] */
} Work;

/* --- orders ------------------------------------------------------------------------------------*/

static int cut(char *line, char **words)
{
    int n = 0;
    line[strcspn(line, "\n")] = 0;
    for (char *at = line; at && n < MAX_WORDS; n++) {
        words[n] = at;
        at = strchr(at, '\t');
        if (at)
            *at++ = 0;
    }
    return n;
}

static int grow(void **array, int count, size_t size)
{
    void *more = realloc(*array, (size_t)(count + 1) * size);
    if (!more)
        return cli_no_memory("the suite");
    memset((char *)more + (size_t)count * size, 0, size);
    *array = more;
    return EXIT_OK;
}

/* The number that this word of an order is; -1 with a message: none from least to most. */
static double number(const char *what, const char *text, const char *signs, int least, int most)
{
    char *end;
    const double value = strtod(text, &end);
    if (text[0] && strspn(text, signs) == strlen(text) && !*end && least <= value && value <= most)
        return value;
    cli_refuse("%s: found '%s', accepted is a number from %d to %d", what, text, least, most);
    return -1;
}

static double seconds(const char *what, const char *text)
{
    return number(what, text, "0123456789.e+-", 0, 1000000);
}

static int whole(const char *what, const char *text)
{
    return (int)number(what, text, "0123456789", 1, INT_MAX);
}

/* The flags' words stay: a copy of the line is never freed. */
static int add_case(Judge *j, int count, char **words)
{
    const int line = whole("case", words[1]);
    char **own = malloc((size_t)count * sizeof *own);
    int status = line < 0 ? EXIT_USAGE : own ? EXIT_OK : EXIT_RUNTIME;
    if (status == EXIT_OK && !j->contract)
        status = cli_refuse("case: found no contract before it, accepted is one");
    for (int i = 0; status == EXIT_OK && i < count; i++)
        status = (own[i] = strdup(words[i])) ? EXIT_OK : EXIT_RUNTIME;
    if (status == EXIT_OK)
        status = grow((void **)&j->cases, j->case_count, sizeof *j->cases);
    if (status == EXIT_OK)
        status = grow((void **)&j->perf, j->case_count, sizeof *j->perf);
    if (status != EXIT_OK)
        return status;
    return case_read(&j->cases[j->case_count++], j->contract, j->suite, line, count - 2, own + 2);
}

/* The number of the case in this line, -1 with a message: none. */
static int case_at(const Judge *j, const char *what, int line)
{
    for (int i = 0; i < j->case_count; i++)
        if (j->cases[i].line == line)
            return i;
    cli_refuse("%s: found line %d, accepted is that of a case", what, line);
    return -1;
}

static int obey(Judge *j, int count, char **words)
{
    const char *what = words[0];
    if (strcmp(what, "case") == 0 && count >= 2)
        return add_case(j, count, words);
    if (count == 2 && strcmp(what, "suite") == 0)
        return (j->suite = strdup(words[1])) ? EXIT_OK : EXIT_RUNTIME;
    if (count == 2 && strcmp(what, "contract") == 0) {
        j->contract = contract_find(words[1]);
        return j->contract ? EXIT_OK
                           : cli_refuse("contract: found '%s', accepted is one of %s", words[1],
                                        contract_names());
    }
    if (count == 2 && strcmp(what, "mode") == 0)
        j->limits.mode = strcmp(words[1], "off") == 0 ? ISOLATE_OFF : ISOLATE_STRICT;
    else if (count == 2 && strcmp(what, "workers") == 0)
        return (j->workers = whole(what, words[1])) < 0 ? EXIT_USAGE : EXIT_OK;
    else if (count == 2 && strcmp(what, "total") == 0)
        return (j->total_s = seconds(what, words[1])) < 0 ? EXIT_USAGE : EXIT_OK;
    else if ((count == 2 && strcmp(what, "perf") == 0) ||
             (count == 3 && strcmp(what, "threads") == 0)) {
        const int line = whole(what, words[1]), n = line < 0 ? -1 : case_at(j, what, line);
        if (n < 0)
            return EXIT_USAGE;
        if (count == 2)
            j->perf[n] = 1;
        else
            return (j->cases[n].threads = whole(what, words[2])) < 0 ? EXIT_USAGE : EXIT_OK;
    } else if (count == 4 && strcmp(what, "limits") == 0) {
        return (j->limits.seconds = seconds(what, words[1])) >= 0 &&
                       (j->limits.mebibytes = whole(what, words[2])) >= 0 &&
                       (j->limits.threads = whole(what, words[3])) >= 0
                   ? EXIT_OK
                   : EXIT_USAGE;
    } else if (count == 2 && strcmp(what, "so") == 0) {
        if (grow((void **)&j->libraries, j->library_count, sizeof *j->libraries) != EXIT_OK)
            return EXIT_RUNTIME;
        j->libraries[j->library_count] = strdup(words[1]);
        return j->libraries[j->library_count++] ? EXIT_OK : EXIT_RUNTIME;
    } else
        return cli_refuse("found the order '%s', accepted are those at the head of judge_main.c",
                          what);
    return EXIT_OK;
}

static int read_orders(Judge *j)
{
    char *line = NULL, *words[MAX_WORDS];
    size_t size = 0;
    ssize_t length;
    int status = EXIT_OK;
    while (status == EXIT_OK && (length = getline(&line, &size, stdin)) > 0)
        status = strlen(line) == (size_t)length
                     ? obey(j, cut(line, words), words)
                     : cli_refuse("found a zero byte in an order, accepted is text");
    free(line);
    if (status == EXIT_OK && j->case_count == 0)
        return cli_refuse("found no case, accepted is at least one");
    return status;
}

/* --- what it prints ----------------------------------------------------------------------------*/

/* Each of these puts a key behind others. */
static void put_text(FILE *to, const char *key, const char *text)
{
    fprintf(to, ", \"%s\": \"", key);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            fprintf(to, "\\u%04x", (unsigned char)*text);
        else
            putc(*text, to);
    putc('"', to);
}

/* JSON has no NaN and no infinity: those are texts. */
static void put_number(FILE *to, const char *key, double value)
{
    if (isfinite(value))
        fprintf(to, ", \"%s\": %.9g", key, value);
    else
        fprintf(to, ", \"%s\": \"%s\"", key, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static void put_place(FILE *to, const JudgeCase *c, const JudgeRun *run, int which)
{
    const CheckArray *a = &run->check.array[which];
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return;
    if (run->has_hint_data) {
        fprintf(f, "worst at (b=%" PRId64 ", h=%" PRId64 ", i=%" PRId64 ", x=%" PRId64 "); ", a->b,
                a->h, a->i, a->x);
        check_place(a, which, &c->truth.shape, f);
    } else
        fprintf(
            f, "worst at (%" PRId64 ", %" PRId64 "); %" PRId64 " rows (%" PRId64 " .. %" PRId64 ")",
            a->i, a->x, a->off_rows, a->first_off_row, a->last_off_row);
    fclose(f);
    put_text(to, "where", text);
    free(text);
}

static void put_errors(FILE *to, const JudgeCase *c, int number, const JudgeRun *run,
                       const HintVerdict *verdict)
{
    HintSymptom first = {"", ""};
    int n = 0;
    fprintf(to, ", \"errors\": [");
    for (int which = 0; run->status == JUDGE_WRONG && which < CHECK_COUNT; which++) {
        const CheckArray *a = &run->check.array[which];
        HintSymptom hint;
        if (!a->checked || a->off == 0)
            continue;
        judge_hints_say(&hint, verdict, number, run, which);
        first = n ? first : hint;
        fprintf(to,
                "%s{\"array\": \"%s\", \"off\": %" PRId64 ", \"of\": %" PRId64
                ", \"first\": %" PRId64,
                n++ ? ", " : "", a->name, a->off, a->compared, a->first_off_row);
        put_place(to, c, run, which);
        put_number(to, "expected", a->expected);
        put_number(to, "found", a->found);
        put_text(to, "hint", hint.sentence);
        put_text(to, "code", hint.code);
        fprintf(to, "}");
    }
    fprintf(to, "]");
    put_text(to, "hint", first.sentence);
    put_text(to, "code", run->code ? run->code : first.code);
}

/* Q, K and V of a case that one can compute by hand. */
static void put_inputs(FILE *to, const JudgeCase *c, const JudgeRun *run)
{
    const AttnArgs *in = &c->problem.args;
    const Tensor *all[] = {&in->Q, &in->K, &in->V};
    char text[512] = "";
    size_t used = 0;
    const int64_t *n = in->Q.shape;
    for (int t = 0; run->status == JUDGE_WRONG && run->has_hint_data && t < 3; t++) {
        if (n[0] * n[2] != 1 || n[1] > 3 || in->K.shape[1] > 3 || n[3] > 2)
            break;
        used += (size_t)snprintf(text + used, sizeof text - used, "%c =", "QKV"[t]);
        for (int64_t e = 0; e < all[t]->shape[1] * n[3]; e++)
            used += (size_t)snprintf(
                text + used, sizeof text - used, "%s %.6g", e && e % n[3] == 0 ? ";" : "",
                tensor_get(all[t], tensor_offset(all[t], 0, e / n[3], 0) + e % n[3]));
        used += (size_t)snprintf(text + used, sizeof text - used, "\n");
    }
    put_text(to, "inputs", text);
}

static void put_run(const Judge *j, int library, int n, const JudgeRun *run,
                    const HintVerdict *verdict, FILE *to)
{
    fprintf(to, "{\"so\": %d, \"case\": %d", library, n);
    put_text(to, "status", judge_status_names[run->status]);
    put_text(to, "message", run->message);
    fprintf(to, ", \"ms\": %.3f, \"processor_ms\": %.3f, \"memory\": %zu", run->ms,
            run->end.processor_ms, run->end.peak_bytes);
    put_text(to, "output", run->end.output);
    fprintf(to, ", \"cut\": %s", run->end.output_cut ? "true" : "false");
    put_number(to, "sectors", run->sectors);
    put_number(to, "banks", run->banks);
    put_errors(to, &j->cases[n], n, run, verdict);
    put_text(to, "trace", run->trace);
    put_inputs(to, &j->cases[n], run);
    fprintf(to, "}\n");
}

/* Lines of two workers do not mix: a lock on a file that only they have. */
static void lock_output(const Judge *j, int lock)
{
    struct flock whole = {.l_type = (short)(lock ? F_WRLCK : F_UNLCK), .l_whence = SEEK_SET};
    while (fcntl(j->lock, F_SETLKW, &whole) != 0 && errno == EINTR)
        ;
}

/* --- work --------------------------------------------------------------------------------------*/

static JudgeLimits limits_of(const Judge *j, int n)
{
    JudgeLimits limits = j->limits;
    if (j->cases[n].threads)
        limits.threads = j->cases[n].threads;
    limits.no_blas = j->cases[n].no_blas;
    return limits;
}

/* Each worker has processors of its own, as many as a case has threads, and a submission cannot
 * leave them: who starts a hundred threads takes no time from the others. */
static void take_processors(const Judge *j, int threads)
{
    static cpu_set_t all;
    static int count;
    cpu_set_t mine;
    int at = 0;
    if (count == 0)
        count = sched_getaffinity(0, sizeof all, &all) == 0 ? CPU_COUNT(&all) : -1;
    if (count <= 0)
        return;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        /* are we among those that follow j->worker * threads, counted in a circle? */
        if ((at - j->worker * threads % count + count) % count < threads)
            CPU_SET(cpu, &mine);
        at++;
    }
    sched_setaffinity(0, sizeof mine, &mine);
}

static int threads_of(const JudgeCase *c, const JudgeLimits *limits)
{
    const int processes = c->contract == &contract_ring_method ? (int)c->flags->ring.ranks : 1;
    return limits->threads * processes;
}

/* Cases of one submission, up to the end or, with `once`, to the first that takes too long. */
static void do_cases(const Judge *j, Work *w, int once)
{
    while (w->done < j->case_count) {
        const int n = w->done++;
        JudgeRun *run = &w->runs[n];
        JudgeLimits limits = limits_of(j, n);
        const double left = j->total_s - w->spent_s, begun = bench_now_ms();
        if (left <= 0.0) {
            run->status = JUDGE_TIME;
            snprintf(run->message, sizeof run->message,
                     "it was not run: the %g s of this submission were over (--total-time)",
                     j->total_s);
            continue;
        }
        limits.seconds = limits.seconds < left ? limits.seconds : left;
        take_processors(j, threads_of(&j->cases[n], &limits));
        case_run(&j->cases[n], &limits, j->libraries[w->library], run);
        w->spent_s += (bench_now_ms() - begun - run->end.waited_ms) / 1e3;
        if (w->traced < MOST_TRACED) /* in time that is not the submission's */
            w->traced += trace_case(&j->cases[n], &limits, j->libraries[w->library], run);
        j->right[w->library * j->case_count + n] = run->status == JUDGE_RIGHT;
        if (once && (run->status == JUDGE_TIME || bench_now_ms() - begun > 1e3 * limits.seconds))
            return;
    }
}

static void conclude(const Judge *j, Work *w)
{
    HintVerdict verdict;
    judge_hints_find(&verdict, j->cases, w->runs, j->case_count);
    lock_output(j, 1);
    for (int n = 0; n < j->case_count; n++)
        put_run(j, w->library, n, &w->runs[n], &verdict, stdout);
    fflush(stdout);
    lock_output(j, 0);
    for (int n = 0; n < j->case_count; n++)
        run_free(&w->runs[n]);
    free(w->runs);
}

static int work(const Judge *j)
{
    Work *aside = calloc((size_t)j->library_count, sizeof *aside);
    int waiting = 0, library;
    if (!aside)
        return cli_no_memory("the submissions");
    while ((library = __atomic_fetch_add(j->next, 1, __ATOMIC_SEQ_CST)) < j->library_count) {
        Work w = {library, 0, 0, 0.0, calloc((size_t)j->case_count, sizeof *w.runs)};
        if (!w.runs)
            return cli_no_memory("the submissions");
        do_cases(j, &w, 1);
        if (w.done < j->case_count)
            aside[waiting++] = w;
        else
            conclude(j, &w);
    }
    for (int i = 0; i < waiting; i++) {
        do_cases(j, &aside[i], 0);
        conclude(j, &aside[i]);
    }
    free(aside);
    return EXIT_OK;
}

static int work_together(Judge *j)
{
    int status = EXIT_OK, how;
    for (int i = 0; i < j->workers; i++) {
        const pid_t judge = getpid(), pid = fork();
        j->worker = i;
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            _exit(getppid() == judge ? work(j) : EXIT_RUNTIME);
        }
        if (pid < 0 && i == 0)
            return work(j);
    }
    while (wait(&how) > 0)
        if (!WIFEXITED(how) || WEXITSTATUS(how) != EXIT_OK)
            status = EXIT_RUNTIME;
    if (status != EXIT_OK)
        cli_refuse("found that a worker ended before its work did; what it had begun is missing");
    return status;
}

/* --- timed cases -------------------------------------------------------------------------------*/

/* What a call took. More threads than the case has are paid for. */
static double paid_ms(const JudgeRun *run, int threads)
{
    return fmax(run->ms, run->end.processor_ms / threads);
}

static void time_case(const Judge *j, int n)
{
    Samples *all = calloc((size_t)j->library_count, sizeof *all);
    const JudgeLimits limits = limits_of(j, n);
    for (int round = 0; all && round < PERF_ROUNDS; round++)
        for (int library = 0; library < j->library_count; library++) {
            double before, after, paid;
            JudgeRun run;
            if (!j->right[library * j->case_count + n])
                continue;
            before = bench_sgemm_gflops(SGEMM_SIZE, 1, limits.threads);
            case_run(&j->cases[n], &limits, j->libraries[library], &run);
            after = bench_sgemm_gflops(SGEMM_SIZE, 1, limits.threads);
            paid = paid_ms(&run, limits.threads);
            if (run.status != JUDGE_SKIPPED && before + after > 0.0) /* a wrong one counts, too */
                all[library].ms[all[library].count++] =
                    run.status == JUDGE_RIGHT && paid > 0.0
                        ? case_flops(&j->cases[n]) / (paid * 1e6) / (0.5 * (before + after))
                        : 0.0;
            run_free(&run);
        }
    for (int library = 0; all && library < j->library_count; library++)
        if (all[library].count > 0)
            printf("{\"so\": %d, \"case\": %d, \"perf\": %.4f}\n", library, n,
                   samples_median(&all[library]));
    fflush(stdout);
    free(all);
}

/* --- the whole ---------------------------------------------------------------------------------*/

static int print_codes(void)
{
    const char *sentence;
    for (int n = 0; hint_code(n, &sentence); n++)
        printf("%s\t%s\n", hint_code(n, &sentence), sentence);
    for (int n = 0; softmax_hint_code(n, &sentence); n++)
        printf("%s\t%s\n", softmax_hint_code(n, &sentence), sentence);
    for (int n = 0; ring_hint_code(n, &sentence); n++)
        printf("%s\t%s\n", ring_hint_code(n, &sentence), sentence);
    return EXIT_OK;
}

static int make_case(const Judge *j, int n, int check_only)
{
    const int status = case_make(&j->cases[n], check_only);
    if (status == EXIT_OK && j->perf[n] && !(case_flops(&j->cases[n]) > 0.0))
        return cli_refuse("perf: found a case that counts no floating-point operations, accepted "
                          "is attention");
    return status;
}

static int share_memory(Judge *j)
{
    const size_t verdicts = (size_t)j->library_count * (size_t)j->case_count;
    void *shared = mmap(NULL, sizeof *j->next + verdicts, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    j->lock = memfd_create("attn_judge", MFD_CLOEXEC);
    if (shared == MAP_FAILED || j->lock < 0)
        return cli_no_memory("the submissions");
    j->next = shared;
    j->right = (int8_t *)(j->next + 1);
    return EXIT_OK;
}

int main(int argc, char **argv)
{
    static Judge j = {
        .limits = {10.0, 1024, 1, ISOLATE_STRICT, 0}, .total_s = INFINITY, .workers = 1};
    const int check_only = argc == 2 && strcmp(argv[1], "--check") == 0;
    int status;
    cli_refuse_context("grade", NULL, 0);
    if (argc == 2 && strcmp(argv[1], "--codes") == 0)
        return print_codes();
    if (argc > 1 + check_only)
        return cli_refuse(
            "'%s': found an argument, accepted are --check and --codes; orders come on "
            "the standard input",
            argv[1]);
    status = read_orders(&j);
    for (int i = 0; status == EXIT_OK && i < j.case_count; i++)
        status = make_case(&j, i, check_only);
    if (check_only || status != EXIT_OK)
        return status;
    bench_set_threads(1);
    status = share_memory(&j);
    if (status == EXIT_OK)
        status = work_together(&j);
    for (int n = 0; status == EXIT_OK && n < j.case_count; n++)
        if (j.perf[n])
            time_case(&j, n);
    return status;
}
