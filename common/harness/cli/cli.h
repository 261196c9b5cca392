/* SPDX-License-Identifier: MIT
 *
 * cli.h: one command line for all programs.
 *
 * Interface:
 * - cli_parse: argv -> Cli. Handles --help, --version and --list itself; never calls exit() and
 *   never writes a file. With --cases FILE every line of the file is a case of its own, its flags
 *   laid over those of the command line.
 * - cli_next_variant: walks the variants that a case asks for; cli_selects: is this one of them?
 * - cli_check_shape: the sizes that this machine, this stage and these flags accept.
 * - Exit statuses: EXIT_OK ... EXIT_NO_DEVICE; exit_worst merges those of several cases.
 * Every refusal is one sentence on stderr that names the flag or file, what was found and what is
 * accepted, and exit status 2.
 */
#ifndef ATTN_CLI_H
#define ATTN_CLI_H

#include "harness/bench/variant.h"
#include "harness/io/fill.h"
#include "harness/models/model_ring.h"
#include "tensor.h"

enum {
    EXIT_OK = 0,
    EXIT_WRONG = 1,     /* wrong answer, or a --variant-so that failed */
    EXIT_USAGE = 2,     /* bad usage or bad input */
    EXIT_RUNTIME = 3,   /* CUDA, memory, time-out, rank */
    EXIT_NO_DEVICE = 77 /* the hardware asked for is not here: Meson shows SKIP */
};

#define CLI_CONTINUE   (-1) /* cli_parse: go on and run */
#define CLI_MAX_D      1024 /* channels of one head: on the CPU */
#define CLI_MAX_D_CUDA 256  /* and on a GPU */
#define CLI_MAX_RANKS  64   /* of one process or one mpirun: stage 06 */

/* The numbers are those of the operator interface (infiniop, torch_npu): 2 aligns the diagonal with
 * the upper-left corner of the score matrix, 3 with the lower-right one (FlashAttention). */
typedef enum AttnMask {
    ATTN_MASK_NONE = 0,
    ATTN_MASK_FULL = 1, /* uint8 [Nq][Nk], 1 = masked OUT (PyTorch's bool mask is the opposite) */
    ATTN_MASK_CAUSAL_UPPER_LEFT = 2,
    ATTN_MASK_CAUSAL_LOWER_RIGHT = 3
} AttnMask;

typedef enum CliDevice { CLI_DEVICE_AUTO, CLI_DEVICE_CPU, CLI_DEVICE_CUDA } CliDevice;
typedef enum CliBundled { CLI_NOT_BUNDLED, CLI_BUNDLED_ENCODER, CLI_BUNDLED_CAUSAL } CliBundled;

/* Stage 05: the shape of files and of saved tensors; THD has rank 3, all sequences in a row. */
typedef enum CliTensors { CLI_BSHD, CLI_SBHD, CLI_THD } CliTensors;
/* Which of Q, K and V lie side by side on the heads axis of one tensor. */
typedef enum CliPack { CLI_Q_K_V, CLI_Q_KV, CLI_QKV } CliPack;

/* Stage 06: what carries the messages, and over which wire on GPUs. */
typedef enum CliTransport { CLI_SIM, CLI_MPI, CLI_NCCL } CliTransport;
typedef enum CliLink { CLI_LINK_NCCL, CLI_LINK_COPY } CliLink;
/* --inject KIND@rank:step */
typedef enum CliInject {
    CLI_NO_FAULT,
    CLI_DROP,
    CLI_DUPLICATE,
    CLI_CORRUPT,
    CLI_DELAY,
    CLI_EXIT
} CliInject;

/* Stage 06: how the tokens are dealt out and what travels. In other stages ranks is 0. */
typedef struct CliRing {
    int64_t ranks;
    int ranks_given; /* by --ranks; else the transport may know better */
    CliTransport transport;
    RingLayout layout;
    int layout_given; /* else by the mask: zigzag under a causal one without a window */
    int64_t nodes;    /* 0 = not given: 1, of double rings 2 when the ranks are even */
    CliLink link;
    AttnDtype partials; /* ATTN_F32 or ATTN_BF16 */
    double timeout_s;
    int adversarial; /* --seed-schedule */
    uint64_t schedule_seed;
    CliInject inject;
    int64_t inject_rank, inject_step;
    int verify_hops;
    const char *trace_json;
} CliRing;

/* One case. Sizes are 0 and strings NULL where the user said nothing and files decide; without
 * files cli_parse puts the defaults. */
typedef struct CliCase {
    int64_t B, H, Hkv, Nq, Nk, d;
    AttnDtype dtype;
    AttnMask mask;
    int mask_given; /* by --mask or --causal; else --bundled=causal makes it causal */
    int64_t window_left, window_right; /* -1 = infinite */
    int window_given;
    float scale; /* 0 = not given: 1/sqrt(d) */
    float softcap;
    uint64_t seed;
    FillDist dist;
    CliBundled bundled;
    TensorLayout layout; /* --strides bshd|sbhd|bhsd|odd: how tensors lie in memory */
    const char *q_file, *k_file, *v_file, *do_file, *mask_file;
    const char *save_dir; /* with --cases: DIR/<line number> */
    CliDevice device;
    const char *variant;      /* "all" or a name; stage 06 also "auto": the planner names one */
    const char *variant_flag; /* by which the user chose it: --variant or --method */
    const char *variant_so;
    const char *judge_dir; /* outputs of another program, in place of any variant */
    Variant so;            /* stands for variant_so or judge_dir in loops; forward is NULL */
    int own_variants;      /* 0: only variant_so runs */
    int needs_cuda;        /* asked for a GPU, by device or by name */
    int threads;
    int check, backward, bench, trace, step;
    int deterministic; /* stages 04 and 06: gradients with the same bits on every run */
    int warmup, iters;
    int64_t rows, cols; /* stage 02 */
    int64_t sram;       /* stage 03: elements of fast memory, 0 = not given */
    int64_t smem_limit; /* stages 03 on: bytes of shared memory of a block, 0 = not given */
    /* stage 05, the flags of STAGE_HAS_OFFLINE */
    CliTensors tensors; /* --tensor-layout */
    CliPack pack;
    const char *cu_q_file, *cu_kv_file; /* --cu-seqlens-q, --cu-seqlens-kv: [n+1] */
    float temperature;                  /* 1 = none */
    float clip_low, clip_high;          /* 0, 1 = none */
    float dropout;                      /* 0 = none; its generator's key is the seed */
    int64_t norm_group;                 /* --qk-norm: channels of a group, 0 = none */
    const char *wq_file, *wk_file;
    int64_t block_q, block_kv; /* of a step of the online variants */
    int trace_blocks;          /* --trace shows blocks: stage 05 */
    int order;                 /* --order: 0 rows, 1 columns, 2 diagonal, 3 random */
    CliRing ring;              /* stage 06, the flags of STAGE_HAS_RANKS */
    const char *cases_file;    /* NULL without --cases */
    int line;                  /* its line number, 0 without */
} CliCase;

/* strict where this machine can, else off and a sentence */
#define CLI_SANDBOX_BEST   (-1)
#define CLI_SANDBOX_OFF    0
#define CLI_SANDBOX_STRICT 1

typedef struct Cli {
    const Stage *stage;
    CliCase *cases;
    int case_count;
    const char *json_file;
    const char *cases_file;
    int quiet;
    double so_seconds;    /* --so-time: limit of a --variant-so child */
    int64_t so_mebibytes; /* --so-memory */
    int so_sandbox;       /* --so-sandbox: CLI_SANDBOX_..., BEST before it is known */
    void *storage;        /* strings of the cases file */
    char command[512];    /* the command line, for the JSON rows; cut off where it is longer */
} Cli;

/* CLI_CONTINUE, or the status to exit with. */
int cli_parse(Cli *cli, const Stage *stage, int argc, char **argv);
void cli_free(Cli *cli);
/* The words of argv behind the program's name, as the rows tell them. */
void cli_keep_command(Cli *cli, const char *program, int argc, char **argv);

/* 1 when the case runs this variant of the stage: by name, or "all" and its device is asked for
 * (auto: the CPU, and a GPU that is there). */
int cli_selects(const CliCase *c, const Variant *v);
/* The variant after v (NULL: the first) that the case asks for, NULL at the end. With --variant-so
 * that is &c->so, after the stage's own ones if --variant asked for them as well. */
const Variant *cli_next_variant(const Cli *cli, const CliCase *c, const Variant *v);
/* EXIT_OK, or EXIT_USAGE with the sentence printed: sizes from flags or files. */
int cli_check_shape(const CliCase *c, const AttnShape *shape);
/* EXIT_OK, or EXIT_NO_DEVICE with a sentence when the case needs a GPU and none is there. */
int cli_check_device(const CliCase *c);

/* Usage errors outweigh run-time failures, those wrong answers, those missing hardware. */
int exit_worst(int a, int b);
/* Prints "program: sentence" to stderr and returns EXIT_USAGE. Within a line of --cases it says
 * "program: FILE:LINE: sentence". */
int cli_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for memory that runs short; what: "--trace", say. Returns EXIT_RUNTIME. */
int cli_no_memory(const char *what);
/* Which case cli_refuse speaks about; file NULL or line 0 = the command line itself. */
void cli_refuse_context(const char *program, const char *file, int line);
#endif
