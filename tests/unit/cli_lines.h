/* SPDX-License-Identifier: MIT
 *
 * cli_lines.h: cli_parse on lines of flags, for a test that has defined its `stage` before.
 *
 * Interface:
 * - parse: the status. accepted: the one case of a line. expect_refused: exit 2, nothing kept.
 */
#ifndef CLI_LINES_H
#define CLI_LINES_H

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* Parses a line of flags; stderr and stdout go nowhere. */
static int parse(Cli *cli, const char *line)
{
    static char text[4096];
    char *argv[128] = {"unit"}, *rest = NULL;
    int argc = 1, status, saved[2], null = open("/dev/null", O_WRONLY), k;
    snprintf(text, sizeof text, "%s", line);
    for (char *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    fflush(NULL);
    for (k = 0; k < 2; k++) {
        saved[k] = dup(k + 1);
        dup2(null, k + 1);
    }
    status = cli_parse(cli, &stage, argc, argv);
    fflush(NULL);
    for (k = 0; k < 2; k++) {
        dup2(saved[k], k + 1);
        close(saved[k]);
    }
    close(null);
    return status;
}

static void expect_refused(const char *line)
{
    Cli cli;
    int status = parse(&cli, line);
    if (status != EXIT_USAGE)
        fail_msg("'%s' gave %d", line, status);
    assert_null(cli.cases); /* nothing is left to free */
    assert_null(cli.storage);
}

static CliCase accepted(const char *line)
{
    Cli cli;
    CliCase c;
    int status = parse(&cli, line);
    if (status != CLI_CONTINUE)
        fail_msg("'%s' gave %d", line, status);
    assert_int_equal(cli.case_count, 1);
    c = cli.cases[0];
    cli_free(&cli);
    return c;
}

#endif
