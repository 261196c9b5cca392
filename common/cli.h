/* SPDX-License-Identifier: MIT
 *
 * cli.h: one command line for all programs (DESIGN.md section 4).
 *
 * Interface:
 * - cli_parse: argv -> Cli. Handles --help, --version and --list itself. With --cases FILE every
 * line of the file is a case of its own, its flags laid over those of the command line.
 * - cli_selects: does this case ask for this variant?
 * - Exit statuses: EXIT_OK ... EXIT_NO_DEVICE.
 * Every refusal is one sentence on stderr that names the flag or file, what was found and what is
 * accepted, and exit status 2.
 */
#ifndef ATTN_CLI_H
#define ATTN_CLI_H

#include "fill.h"
#include "tensor.h"
#include "variant.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EXIT_OK = 0,
    EXIT_WRONG = 1,     /* wrong answer, or a --variant-so that failed */
    EXIT_USAGE = 2,     /* bad usage or bad input */
    EXIT_RUNTIME = 3,   /* CUDA, memory, time-out, rank */
    EXIT_NO_DEVICE = 77 /* the hardware asked for is not here: Meson shows SKIP */
};

#define CLI_CONTINUE (-1) /* cli_parse: go on and run */

typedef enum CliDevice { CLI_DEVICE_AUTO, CLI_DEVICE_CPU, CLI_DEVICE_CUDA } CliDevice;
typedef enum CliBundled { CLI_NOT_BUNDLED, CLI_BUNDLED_ENCODER, CLI_BUNDLED_CAUSAL } CliBundled;

/* One case. Sizes are 0 and strings NULL where the user said nothing, so that files can decide. */
typedef struct CliCase {
    int64_t B, H, Hkv, Nq, Nk, d;
    AttnDtype dtype;
    AttnMask mask;
    int64_t window_left, window_right; /* -1 = infinite */
    int window_given;
    float scale; /* 0 = not given: 1/sqrt(d) */
    float softcap;
    uint64_t seed;
    FillDist dist;
    CliBundled bundled;
    TensorLayout layout; /* --strides bshd|sbhd|bhsd|odd: how tensors lie in memory */
    const char *q_file, *k_file, *v_file, *do_file, *mask_file;
    const char *save_dir;
    CliDevice device;
    const char *variant; /* "all" or a name */
    const char *variant_so;
    int threads;
    int check, backward, bench, trace;
    int warmup, iters;
    int64_t rows, cols; /* stage 02 */
    int line;           /* line number in --cases, 0 without */
} CliCase;

typedef struct Cli {
    const Stage *stage;
    CliCase *cases;
    int case_count;
    const char *json_file;
    int quiet;
    double so_seconds;    /* --so-time: limit of a --variant-so child */
    int64_t so_mebibytes; /* --so-memory */
    void *storage;        /* strings of the cases file */
} Cli;

/* CLI_CONTINUE, or the status to exit with. */
int cli_parse(Cli *cli, const Stage *stage, int argc, char **argv);
void cli_free(Cli *cli);
/* 1 when the case runs this variant: by name, or "all" with a matching device. */
int cli_selects(const CliCase *c, const Variant *v);
/* Prints "program: sentence" to stderr and returns EXIT_USAGE. */
int cli_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif
#endif
