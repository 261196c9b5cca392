/* SPDX-License-Identifier: MIT
 *
 * cli_lines.h: lines of flags, what cli_parse makes of them and the problems they describe, for
 * tests of programs. The test defines its `stage` behind this header.
 *
 * Interface:
 * - nothing: a pass that does nothing. silence(1): stdout and stderr go nowhere, silence(0): back.
 * - parse, parse_for: the status. accepted: the one case of a line. expect_refused: exit 2, nothing
 *   kept. each_line: a function of these for many lines, with '|' between them.
 * - Made, make, expect_made, drop: a line and its problem.
 * - read_text: a file as text, which is then removed. expect: a part of a text.
 * - enter_folder, leave_folder: for BETWEEN; the test removes what it puts there.
 */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <fcntl.h>
#include <unistd.h>

#include "unit.h"

#include "harness/io/inputs.h"

static const Stage stage;

static inline AttnStatus nothing(const AttnArgs *args)
{
    (void)args;
    return ATTN_OK;
}

static inline void silence(int on)
{
    static int saved[2];
    const int null = on ? open("/dev/null", O_WRONLY) : -1;
    fflush(NULL);
    for (int k = 0; k < 2; k++) {
        if (on)
            saved[k] = dup(k + 1);
        dup2(on ? null : saved[k], k + 1);
        if (!on)
            close(saved[k]);
    }
    if (on)
        close(null);
}

/* The words of a few lines stay where a Cli may point to. */
static inline int parse_for(Cli *cli, const Stage *of, const char *line)
{
    static char texts[4][4096];
    static int turn;
    char *const text = texts[turn++ % 4], *argv[128] = {"unit"}, *rest = NULL;
    int argc = 1, status;
    snprintf(text, sizeof *texts, "%s", line);
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    silence(1);
    status = cli_parse(cli, of, argc, argv);
    silence(0);
    return status;
}

static inline int parse(Cli *cli, const char *line)
{
    return parse_for(cli, &stage, line);
}

static inline void expect_refused(const char *line)
{
    Cli cli;
    const int status = parse(&cli, line);
    if (status != EXIT_USAGE)
        fail_msg("'%s' gave %d", line, status);
    assert_null(cli.cases); /* nothing is left to free */
    assert_null(cli.storage);
}

static inline void each_line(void (*expected)(const char *line), const char *lines)
{
    while (*lines) {
        char line[256];
        const size_t length = strcspn(lines, "|");
        snprintf(line, sizeof line, "%.*s", (int)length, lines);
        expected(line);
        lines += length + (lines[length] == '|');
    }
}

static inline CliCase accepted(const char *line)
{
    Cli cli;
    CliCase c;
    const int status = parse(&cli, line);
    if (status != CLI_CONTINUE)
        fail_msg("'%s' gave %d", line, status);
    assert_int_equal(cli.case_count, 1);
    c = cli.cases[0];
    cli_free(&cli);
    return c;
}

typedef struct Made {
    Cli cli;
    Inputs problem;
} Made;

/* EXIT_OK, or the status that it ended with. */
static inline int make_for(Made *m, const Stage *of, const char *line)
{
    int status = parse_for(&m->cli, of, line);
    if (status != CLI_CONTINUE)
        return status;
    silence(1);
    status = inputs_make(&m->problem, &m->cli.cases[0]);
    silence(0);
    if (status != EXIT_OK)
        cli_free(&m->cli);
    return status;
}

static inline void expect_made(Made *m, const char *line)
{
    if (make_for(m, &stage, line) != EXIT_OK)
        fail_msg("refused: %s", line);
}

static inline void drop(Made *m)
{
    inputs_free(&m->problem);
    cli_free(&m->cli);
}

static inline void expect(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("%s is not in %.500s", part, text); /* cmocka cuts at 1024 */
}

static inline const char *read_text(const char *path)
{
    static char text[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    unlink(path);
    return text;
}

static char folder[64];

static inline int enter_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s.XXXXXX", stage.name);
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

/* Fails when something was left. */
static inline int leave_folder(void **state)
{
    (void)state;
    return chdir("..") == 0 && rmdir(folder) == 0 ? 0 : -1;
}

#endif
