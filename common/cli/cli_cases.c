/* SPDX-License-Identifier: MIT
 *
 * cli_cases.c: --cases FILE, many cases in one process. All lines are read and refused before any
 * case runs, so that a typo in line 500 does not cost the first 499.
 */
#include "cli/cli_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 16 << 20, MAX_WORDS = 256 };

/* White space between words only: a path with spaces cannot stand in a cases file. */
static int split(char *line, char **words)
{
    int count = 0;
    char *rest = NULL, *word = strtok_r(line, " \t\r\n\v\f", &rest);
    while (word && count < MAX_WORDS) {
        words[count++] = word;
        word = strtok_r(NULL, " \t\r\n\v\f", &rest);
    }
    return word ? -1 : count;
}

static int add_case(Cli *cli, const CliCase *c, int *room)
{
    if (cli->case_count == *room) {
        int more = *room ? 2 * *room : 64;
        CliCase *grown = realloc(cli->cases, (size_t)more * sizeof *grown);
        if (!grown)
            return cli_no_memory("--cases");
        cli->cases = grown;
        *room = more;
    }
    cli->cases[cli->case_count++] = *c;
    return 0;
}

int cli_cases_from_text(Cli *cli, const CliCase *base, const CliGiven *given, char *text,
                        const char *name)
{
    char *words[MAX_WORDS], *line = text;
    int number = 0, room = 0, status;
    while (line && *line) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
        CliCase c = *base;
        CliGiven set = {{0}, NULL, NULL};
        int count;
        if (end)
            *end = '\0';
        number++;
        c.line = number;
        c.cases_file = name;
        cli_refuse_context(NULL, name, number);
        count = split(line, words);
        line = next;
        if (count < 0)
            return cli_refuse("found more than %d words, accepted are fewer", MAX_WORDS);
        if (count == 0 || words[0][0] == '#')
            continue;
        status = cli_read_set(cli, &c, &set, count, words, 1);
        if (status != CLI_CONTINUE)
            return status;
        set.flag[FLAG_VARIANT] |= given->flag[FLAG_VARIANT];
        status = cli_finish(cli, &c, &set);
        if (status == 0)
            status = add_case(cli, &c, &room);
        if (status != 0)
            return status;
    }
    cli_refuse_context(NULL, NULL, 0);
    if (cli->case_count == 0)
        return cli_refuse("--cases: found no case in %s, accepted is one line of flags or more",
                          name);
    return CLI_CONTINUE;
}

/* A regular file only: opening or reading a FIFO would wait for a writer that may never come. */
static FILE *open_regular(const char *path)
{
    struct stat s;
    int handle = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = NULL;
    if (handle < 0)
        return NULL;
    if (fstat(handle, &s) != 0 || S_ISREG(s.st_mode))
        f = fdopen(handle, "rb");
    else
        errno = S_ISDIR(s.st_mode) ? EISDIR : EINVAL;
    if (!f) {
        const int why = errno;
        close(handle);
        errno = why;
    }
    return f;
}

/* NULL after a sentence, and *status. */
static char *read_text(const char *path, int *status)
{
    FILE *f = open_regular(path);
    char *text = f ? malloc((size_t)MAX_BYTES + 1) : NULL;
    size_t size = text ? fread(text, 1, (size_t)MAX_BYTES + 1, f) : 0;
    int failed = !f || !text || ferror(f);
    *status = f && !text ? EXIT_RUNTIME : EXIT_USAGE;
    const char *why = f ? strerror(errno) : "";
    if (!f)
        cli_refuse("--cases: found that %s cannot be opened (%s), accepted is a regular text file",
                   path, strerror(errno));
    else if (!text)
        cli_no_memory("--cases");
    else if (failed)
        cli_refuse("--cases: found that %s cannot be read (%s), accepted is a text file", path,
                   why);
    else if (size > MAX_BYTES || memchr(text, '\0', size)) {
        cli_refuse("--cases: found %s in %s, accepted is text of up to 16 MiB",
                   size > MAX_BYTES ? "too many bytes" : "a zero byte", path);
        failed = 1;
    }
    if (f)
        fclose(f);
    if (failed) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* the mark of some editors */
        memmove(text, text + 3, size - 2);
    return text;
}

int cli_read_cases(Cli *cli, const CliCase *base, const CliGiven *given)
{
    int status;
    char *text = read_text(cli->cases_file, &status);
    if (!text)
        return status;
    cli->storage = text;
    return cli_cases_from_text(cli, base, given, text, cli->cases_file);
}
