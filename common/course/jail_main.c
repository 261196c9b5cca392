/* SPDX-License-Identifier: MIT
 *
 * attn_jail: compiles a submission where the compiler can read nothing that it should not.
 *
 * Compiling is a part of the attack: `.incbin "teacher.key"` or `#include` of a solution puts a
 * file into the shared object, and the best sandbox at run time comes too late. So the command is
 * fixed (no Makefile of a submission's), the submission and the course's headers are copied to one
 * folder, and the compiler sees /usr and that folder:
 *
 *     attn_jail --out DIR [--include DIR]... [--flag WORD]... [--so-sandbox strict|off] SUBMISSION
 *
 * SUBMISSION is a .c or .cu file, or a folder with .c and .h files. Its files with a dot in front
 * are left out: editors and the archives of macOS (`._mine.c`) leave some. A symbolic link is
 * refused: it would be followed outside of the jail. DIR must be empty or not exist; afterwards it
 * holds submission.so, and in DIR/source the text that was compiled, as the preprocessor left it
 * (*.i): what a person or a program compares is what ran, whatever macros and conditions stood
 * around it.
 * 10 seconds of processor time, 1 GiB, and 16 MiB a file: a bomb of macros does not compile.
 *
 * A .cu file is compiled by DIR/simt/compile.py, which the caller puts there, for a model of a GPU.
 *
 * stdout: what the compiler says. Exit status 0 compiled, 1 it does not compile or is refused, 2
 * bad usage, 3 this machine cannot.
 *
 * Interface: none.
 */
#define _GNU_SOURCE /* pipe2 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "course/sandbox.h"

enum { SECONDS = 10, MOST_SECONDS = 100, MEBIBYTES = 1024 };
enum { WORDS = 64, FILES = 64, FILE_BYTES = 4 << 20 };
enum { SAID_BYTES = 64 << 10, FILE_MEBIBYTES = 16 };
enum { COMPILED, REFUSED, USAGE, BROKEN };

typedef struct Jail {
    const char *out, *submission, *includes[WORDS], *flags[WORDS];
    int include_count, flag_count, strict;
    char *sources[FILES]; /* of the copies, as the compiler gets them: names only */
    int source_count, file_count;
} Jail;

static int say(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int say(int status, const char *format, ...)
{
    va_list values;
    char text[PATH_MAX + 256];
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    for (char *c = text; *c; c++) /* a file's name may be the submission's */
        *c = (unsigned char)*c < 32 || *c == 127 ? '?' : *c;
    fflush(stdout);
    fprintf(stderr, "attn_jail: %s\n", text);
    return status;
}

/* --- the copies --------------------------------------------------------------------------------*/

static int copy_file(int folder, const char *name, const char *shown, int to_folder)
{
    char piece[1 << 16];
    struct stat about;
    off_t bytes = 0;
    ssize_t got = 0;
    int to, status = COMPILED;
    const int from = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (from < 0 && errno == ELOOP)
        return say(REFUSED, "%s is a symbolic link; accepted are files", shown);
    if (from < 0)
        return say(REFUSED, "%s cannot be read (%s)", shown, strerror(errno));
    if (fstat(from, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(from);
        return say(REFUSED, "%s is no regular file; accepted are .c and .h files", shown);
    }
    to = openat(to_folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (to < 0)
        status = errno == EEXIST ? say(REFUSED, "%s: a file of this name is there twice", shown)
                                 : say(BROKEN, "%s cannot be copied (%s)", shown, strerror(errno));
    while (status == COMPILED && (got = read(from, piece, sizeof piece)) > 0)
        if ((bytes += got) > FILE_BYTES)
            status = say(REFUSED, "%s has more than %d MiB", shown, FILE_BYTES >> 20);
        else if (write(to, piece, (size_t)got) != got)
            status = say(BROKEN, "%s cannot be copied (%s)", shown, strerror(errno));
    if (status == COMPILED && got < 0)
        status = say(REFUSED, "%s cannot be read (%s)", shown, strerror(errno));
    close(from);
    if (to >= 0 && close(to) != 0 && status == COMPILED)
        status = say(BROKEN, "%s cannot be copied (%s)", shown, strerror(errno));
    return status;
}

static int ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name), wanted = strlen(end);
    return length > wanted && strcmp(name + length - wanted, end) == 0;
}

/* A name that the compiler does not take for a flag, and that fits into a line. Blanks and quotes
 * are signs like others: no shell reads the command. */
static int name_is_plain(const char *name)
{
    const char *c;
    for (c = name; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            return 0;
    return name[0] != '-' && name[0] != '@' && name[0] != '.';
}

/* One of the submission's or of a folder of headers. */
static int take_file(Jail *j, int folder, const char *name, const char *shown, int to_folder,
                     int is_source)
{
    int status;
    if (!name_is_plain(name))
        return say(REFUSED,
                   "%s: found a name with a control character, or with - @ or . in front; "
                   "accepted are others",
                   shown);
    if (j->file_count++ == FILES)
        return say(REFUSED, "%s has more than %d files", j->submission, FILES);
    status = copy_file(folder, name, shown, to_folder);
    if (status == COMPILED && is_source)
        j->sources[j->source_count++] = strdup(name);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The .c (unless these are headers of ours) and .h files of a folder, without hidden ones, and none
 * of a folder below. */
static int take_folder(Jail *j, const char *path, int to_folder, int sources)
{
    DIR *folder;
    const struct dirent *entry;
    int status = COMPILED, from = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0 || !(folder = fdopendir(from)))
        return say(sources ? REFUSED : USAGE, "%s cannot be read (%s)", path, strerror(errno));
    while (status == COMPILED && (entry = readdir(folder)) != NULL) {
        char shown[PATH_MAX];
        struct stat about;
        const int is_source = ends_in(entry->d_name, ".c");
        if (entry->d_name[0] == '.')
            continue;
        snprintf(shown, sizeof shown, "%s/%s", path, entry->d_name);
        if (sources && fstatat(from, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(about.st_mode))
            status = say(REFUSED, "%s is a symbolic link; accepted are files", shown);
        else if ((is_source && sources) || ends_in(entry->d_name, ".h"))
            status = take_file(j, from, entry->d_name, shown, to_folder, is_source);
    }
    closedir(folder);
    qsort(j->sources, (size_t)j->source_count, sizeof *j->sources, by_name);
    if (status == COMPILED && sources && j->source_count == 0)
        status = say(REFUSED, "%s has no .c file", path);
    return status;
}

static int is_cuda(const Jail *j)
{
    return ends_in(j->submission, ".cu");
}

static int take_submission(Jail *j, int to_folder)
{
    struct stat about;
    const char *slash = strrchr(j->submission, '/');
    if (lstat(j->submission, &about) != 0)
        return say(REFUSED, "%s cannot be read (%s)", j->submission, strerror(errno));
    if (S_ISLNK(about.st_mode))
        return say(REFUSED, "%s is a symbolic link; accepted are files", j->submission);
    if (S_ISDIR(about.st_mode))
        return take_folder(j, j->submission, to_folder, 1);
    if (!ends_in(j->submission, ".c") && !is_cuda(j))
        return say(REFUSED, "%s is no .c or .cu file and no folder", j->submission);
    if (!slash)
        return take_file(j, AT_FDCWD, j->submission, j->submission, to_folder, 1);
    {
        char folder[PATH_MAX];
        int from, status;
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - j->submission + 1), j->submission);
        from = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = from < 0 ? say(REFUSED, "%s cannot be read (%s)", folder, strerror(errno))
                          : take_file(j, from, slash + 1, j->submission, to_folder, 1);
        if (from >= 0)
            close(from);
        return status;
    }
}

/* DIR/source and DIR/include/0, 1, ... */
static int make_copies(Jail *j)
{
    char name[64];
    const char *const folders[] = {"source", "tmp"};
    int out, source, status = COMPILED;
    if (mkdir(j->out, 0755) != 0 && errno != EEXIST)
        return say(BROKEN, "--out: '%s' cannot be made (%s)", j->out, strerror(errno));
    out = open(j->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < 2 && out >= 0; i++)
        if (mkdirat(out, folders[i], 0755) != 0)
            return say(USAGE, "--out: found %s/%s, accepted is an empty folder", j->out,
                       folders[i]);
    source = out < 0 ? -1 : openat(out, "source", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (source < 0)
        return say(BROKEN, "--out: '%s' cannot be written to (%s)", j->out, strerror(errno));
    for (int i = 0; status == COMPILED && i < j->include_count; i++) {
        int to;
        snprintf(name, sizeof name, "include%d", i);
        j->file_count = 0;
        if (mkdirat(out, name, 0755) != 0 ||
            (to = openat(out, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
            return say(BROKEN, "--out: '%s' cannot be written to (%s)", j->out, strerror(errno));
        status = take_folder(j, j->includes[i], to, 0);
        close(to);
    }
    j->file_count = 0;
    if (status == COMPILED)
        status = take_submission(j, source);
    close(source);
    close(out);
    return status;
}

/* --- the compiler ------------------------------------------------------------------------------*/

static int make_command(const Jail *j, char *command[], size_t room)
{
    static char includes[WORDS][32];
    static const char *const c[] = {"cc",    "-std=gnu11",      "-shared",
                                    "-fPIC", "-save-temps=cwd", NULL};
    static const char *const cuda[] = {"python3",
                                       "../simt/compile.py",
                                       "clang++",
                                       "--arch=90a",
                                       "--shared",
                                       "gpu_shell.cpp",
                                       "-Dflash_simple_variant=submitted_variant",
                                       "-c",
                                       NULL};
    static const char *const last[] = {"-lm", "-o", "../submission.so"};
    size_t n = 0;
    if (sizeof cuda / sizeof *cuda + sizeof last / sizeof *last + (size_t)j->flag_count +
            (size_t)j->include_count + (size_t)j->source_count >=
        room)
        return -1;
    for (const char *const *word = is_cuda(j) ? cuda : c; *word; word++)
        command[n++] = (char *)*word;
    for (int i = 0; i < j->flag_count && !is_cuda(j); i++)
        if (strncmp(j->flags[i], "-l", 2) != 0)
            command[n++] = (char *)j->flags[i];
    for (int i = 0; i < j->include_count; i++) {
        snprintf(includes[i], sizeof includes[i], "-I../include%d", i);
        command[n++] = includes[i];
    }
    for (int i = 0; i < j->source_count; i++)
        command[n++] = j->sources[i];
    for (int i = 0; i < j->flag_count && !is_cuda(j);
         i++) /* what a library is for stands in front of it */
        if (strncmp(j->flags[i], "-l", 2) == 0)
            command[n++] = (char *)j->flags[i];
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        command[n++] = (char *)last[i];
    command[n] = NULL;
    return 0;
}

static void limit(int what, rlim_t value)
{
    const struct rlimit both = {value, value};
    setrlimit(what, &both);
}

static _Noreturn void compile(const Jail *j, char *const command[], int output)
{
    char why[256], tmp[PATH_MAX], here[PATH_MAX], program[64];
    char *const environment[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", tmp, NULL};
    const int empty = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    sandbox_die_first();
    dup2(empty, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_CPU, SECONDS);
    limit(RLIMIT_FSIZE, (rlim_t)FILE_MEBIBYTES << 20);
    limit(RLIMIT_AS, (rlim_t)MEBIBYTES << 20);
    if (chdir(j->out) != 0 || !getcwd(here, sizeof here - 8) || chdir("source") != 0) {
        dprintf(STDERR_FILENO, "%s: %s\n", j->out, strerror(errno));
        _exit(126);
    }
    snprintf(tmp, sizeof tmp, "TMPDIR=%.*s/tmp", (int)sizeof tmp - 16, here);
    if (j->strict && !sandbox_enter_compiler("..", why, sizeof why)) {
        dprintf(STDERR_FILENO, "%s\n", why);
        _exit(126);
    }
    snprintf(program, sizeof program, "/usr/bin/%s", command[0]);
    execve(program, command, environment);
    dprintf(STDERR_FILENO, "%s: %s\n", program, strerror(errno));
    _exit(126);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Shows what it says until it ends: 1, or 0 when its time is over. */
static int relay(int output)
{
    const double end = now_s() + MOST_SECONDS; /* others may have the processors */
    size_t shown = 0;
    char text[4096];
    double left;
    while ((left = end - now_s()) > 0.0) {
        struct pollfd ready = {output, POLLIN, 0};
        ssize_t got, i;
        if (poll(&ready, 1, (int)(left * 1e3) + 1) <= 0)
            continue;
        got = read(output, text, sizeof text);
        if (got == 0)
            return 1;
        for (i = 0; i < got && shown < SAID_BYTES; i++, shown++) {
            const unsigned char c = (unsigned char)text[i];
            putchar((c < 32 && c != '\n' && c != '\t') || c == 127 ? '?' : c);
        }
    }
    return 0;
}

static int run_compiler(const Jail *j)
{
    char *command[4 * WORDS];
    int ends[2], how, in_time;
    struct rusage used;
    pid_t pid;
    if (make_command(j, command, sizeof command / sizeof *command) != 0)
        return say(USAGE, "the command has more than %d words", 4 * WORDS);
    if (pipe2(ends, O_CLOEXEC) != 0 || (pid = fork()) < 0)
        return say(BROKEN, "found no pipe or process (%s)", strerror(errno));
    if (pid == 0)
        compile(j, command, ends[1]);
    close(ends[1]);
    setpgid(pid, pid);
    in_time = relay(ends[0]);
    kill(-pid, SIGKILL); /* nothing of it is left, or it is late */
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    fflush(stdout);
    getrusage(RUSAGE_CHILDREN, &used); /* those of cc, too */
    if (!in_time || (how != 0 && used.ru_utime.tv_sec + used.ru_stime.tv_sec + 1 >= SECONDS))
        return say(REFUSED, "the compiler did not finish within %d s and was killed", SECONDS);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 126)
        return say(BROKEN, "the compiler cannot be run");
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
        return REFUSED; /* it has said why */
    return COMPILED;
}

/* --- the command line --------------------------------------------------------------------------*/

static int take_flag(Jail *j, const char *flag, const char *value)
{
    if (strcmp(flag, "--out") == 0)
        j->out = value;
    else if (strcmp(flag, "--include") == 0 && j->include_count < WORDS)
        j->includes[j->include_count++] = value;
    else if (strcmp(flag, "--flag") == 0 && value[0] == '-' && j->flag_count < WORDS)
        j->flags[j->flag_count++] = value;
    else if (strcmp(flag, "--so-sandbox") == 0 &&
             (strcmp(value, "strict") == 0 || strcmp(value, "off") == 0))
        j->strict = strcmp(value, "strict") == 0;
    else
        return say(USAGE,
                   "found %s %s, accepted are --out DIR, --include DIR, --flag -WORD and "
                   "--so-sandbox strict|off",
                   flag, value);
    return COMPILED;
}

int main(int argc, char **argv)
{
    Jail j = {.strict = 1};
    int i, status = COMPILED;
    for (i = 1; status == COMPILED && i + 1 < argc && argv[i][0] == '-'; i += 2)
        status = take_flag(&j, argv[i], argv[i + 1]);
    if (status != COMPILED)
        return status;
    if (i != argc - 1 || !j.out)
        return say(USAGE,
                   "found %d arguments, accepted is attn_jail --out DIR [--include DIR]... "
                   "[--flag WORD]... [--so-sandbox strict|off] SUBMISSION",
                   argc - 1);
    j.submission = argv[i];
    status = make_copies(&j);
    if (status == COMPILED)
        status = run_compiler(&j);
    while (j.source_count > 0)
        free(j.sources[--j.source_count]);
    return status;
}
