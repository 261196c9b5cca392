/* SPDX-License-Identifier: MIT
 *
 * cli_internal.h: what the files of the command line share; nobody else includes it.
 *
 * Interface:
 * - cli_flags: the table of flags, in the order and groups of --help.
 * - cli_find_flag: by long name or alias; cli_nearest_flag: for the suggestion after a typo.
 * - cli_read_*: strict readers of values: no trailing junk, no overflow, no NaN.
 * - cli_finish_offline: the checks between flags that stage 05 adds; cli_finish_ring,
 *   cli_finish_layout: stage 06.
 * - cli_cases_from_text: --cases from memory (the fuzzer's door).
 */
#ifndef ATTN_CLI_INTERNAL_H
#define ATTN_CLI_INTERNAL_H

#include "harness/cli/cli.h"

struct CliGiven;

enum { FLAG_COUNT = 75 }; /* rows of the table */

/* Where a value goes. What is of no plain kind has a reader of its own. */
typedef enum CliKind {
    TO_PAGE,    /* print, and the program ends */
    TO_SIZE,    /* int64_t, least .. most */
    TO_INT,     /* int, least .. most */
    TO_U64,     /* uint64_t */
    TO_NAME,    /* an enum: which of the names in CliFlag.value */
    TO_PATH,    /* const char * */
    TO_REAL,    /* float above 0 */
    TO_SECONDS, /* double, to a day */
    TO_SWITCH,  /* int, becomes least */
    TO_READER
} CliKind;

typedef struct CliFlag {
    const char *name;  /* "--seq" */
    const char *value; /* "N" in --help; NULL: takes no value; "[=X]": only after '=' */
    const char *help;  /* with the default */
    const char *alias; /* "-N" or NULL */
    unsigned feature;  /* STAGE_HAS_... or 0 for every stage */
    int per_program;   /* not allowed in a line of --cases */
    const char *group; /* heading in --help, NULL: as the flag before */
    CliKind kind;
    size_t at; /* of the field in CliCase, or with per_program in Cli */
    int64_t least, most;
    size_t also; /* of an int in CliCase that says that the flag was given; 0: none */
    int (*read)(CliCase *c, struct CliGiven *given, const struct CliFlag *f, const char *flag,
                const char *text);
    void (*print)(const Stage *stage);
} CliFlag;

extern const CliFlag cli_flags[FLAG_COUNT];

/* Which flags the set being read has given: conflicts count within a set, a line of --cases
 * overrides the command line. */
typedef struct CliGiven {
    uint8_t flag[FLAG_COUNT]; /* in the order of cli_flags: cli_given */
    const char *mask_text;    /* what --mask said */
    const CliFlag *variant;   /* --variant or --method, whichever was there; NULL: none */
} CliGiven;

#define CLI_MAX_THREADS 256
/* |q.k| of two rows of 1024 float16 numbers is below 5e12, so a score is below 5e30. In float32
 * that leaves room for log2(e), and for rows from files that are a thousand times larger. */
#define CLI_MAX_SCALE 1e18
/* Kernels multiply the cap by log2(e). */
#define CLI_MAX_SOFTCAP 1e38

const CliFlag *cli_find_flag(const char *text, size_t length);
/* names: of flags, the long ones, with blanks between. The first that the set has, or NULL. */
const char *cli_given(const CliGiven *given, const char *names);
const CliFlag *cli_nearest_flag(const Stage *stage, const char *text, size_t length);
void cli_print_help(const Stage *stage);
void cli_print_list(const Stage *stage);
void cli_print_version(const Stage *stage);

/* 0, or EXIT_USAGE with the sentence printed. `flag` is how the user wrote it. */
int cli_read_int(const char *flag, const char *text, int64_t min, int64_t max, int64_t *out);
int cli_read_u64(const char *flag, const char *text, uint64_t *out);
/* A plain decimal number: 1, or 0 when text is something else or past float32. */
int cli_parse_number(const char *text, float *out);
int cli_read_float(const char *flag, const char *text, int positive, float *out);
int cli_read_window(const char *flag, const char *text, int64_t *left, int64_t *right);
/* names: "f32|f16|bf16"; *out is the index. */
int cli_read_name(const char *flag, const char *text, const char *names, int *out);

/* Readers of flags that are of no plain kind: CliValue.read. */
#define CLI_READER(name)                                                                           \
    int cli_read_##name##_flag(CliCase *c, CliGiven *given, const CliFlag *f, const char *flag,    \
                               const char *text)
CLI_READER(seq);
CLI_READER(mask);
CLI_READER(causal);
CLI_READER(window);
CLI_READER(scale);
CLI_READER(softcap);
CLI_READER(bundled);
CLI_READER(variant);
CLI_READER(clip);
CLI_READER(dropout);
CLI_READER(partials);
CLI_READER(inject);

void cli_case_defaults(CliCase *c);
/* What only stage 05 has, and stage 06. finish_layout: once the mask
 * is known. */
int cli_finish_offline(const Cli *cli, CliCase *c, const CliGiven *given);
int cli_finish_ring(const Cli *cli, CliCase *c, const CliGiven *given);
void cli_finish_layout(CliCase *c);
int cli_check_nccl(void); /* EXIT_OK, or EXIT_NO_DEVICE with a sentence: not in this build */
/* text is cut into words in place and must outlive cli->cases; name stands in the messages. */
int cli_cases_from_text(Cli *cli, const CliCase *base, const CliGiven *given, char *text,
                        const char *name);

#endif
