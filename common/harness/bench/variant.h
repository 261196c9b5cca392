/* SPDX-License-Identifier: MIT
 *
 * variant.h: a stage's table of variants.
 *
 * One variant = one file = one idea = one row of the table. The same name stands in the file name,
 * --list, JSON, plots and README.
 *
 * Interface:
 * - Variant: what main.c's table holds. CPU_RUNG, CUDA_RUNG, CPU_RUNG_AS: a rung's row in it,
 *   filled in by variant_of_rung. variant_has: does it have this pass in this build?
 * - Stage: name, ABI version and table of one program.
 * - ATTN_CUDA_FN(f): f in a build with CUDA, NULL without, so that the table always lists all rows.
 */
#ifndef ATTN_VARIANT_H
#define ATTN_VARIANT_H

#include "attn.h"
#include "attn_config.h"

typedef enum AttnDevice { ON_CPU, ON_CUDA } AttnDevice;

/* Which storage types a variant accepts: bits 1 << AttnDtype. */
#define DTYPES_ALL   7u
#define DTYPES_F32   1u
#define DTYPES_16BIT 6u
#define DTYPES_E4M3  8u

typedef struct Variant {
    const char *name; /* "v1_blas" */
    AttnDevice device;
    unsigned dtypes;
    AttnFn forward;          /* NULL: this build has no CUDA */
    AttnFn backward;         /* NULL: this variant has no backward */
    unsigned traits;         /* VARIANT_..., what the checker has to know */
    const char *idea;        /* one line for --list and the README */
    const struct Rung *rung; /* NULL: no rung. It computes the passes that are NULL above */
    FlashTiles (*tiles)(const AttnArgs *args); /* of the library, for the byte model; or NULL */
} Variant;

/* A line of a stage's list: naive, v0_loops stand for rung_naive_v0_loops (problem.h). */
#define CPU_RUNG(stage, name)                                                                      \
    {                                                                                              \
        .device = ON_CPU, .rung = &rung_##stage##_##name                                           \
    }
#define CUDA_RUNG(stage, name)                                                                     \
    {                                                                                              \
        .device = ON_CUDA, .rung = &rung_##stage##_##name                                          \
    }

/* A rung of an earlier stage, with what it is here. */
#define CPU_RUNG_AS(stage, name, text)                                                             \
    {                                                                                              \
        .device = ON_CPU, .idea = text, .rung = &rung_##stage##_##name                             \
    }

/* Takes name, dtypes, traits and, where none is given, idea from v->rung, where there is one. On a
 * CPU a rung computes in float32, and the harness widens and rounds for it. */
void variant_of_rung(Variant *v);
int variant_has(const Variant *v, int backward);

/* Checked with c = 16 instead of 4: tensor cores truncate their sums. */
#define VARIANT_TENSOR_CORES 1u
/* Goes through the keys in steps of --block-kv and rounds O to the dtype after each: the bound of
 * O grows by ceil(Nk / block_kv) roundings. */
#define VARIANT_ONLINE_STEPS 2u
/* A method of stage 06: several ranks run both passes. forward and backward are NULL. */
#define VARIANT_RANKS 4u
/* With more ranks than kv heads several ranks share one, and each rounds its part of dK and dV to
 * the dtype before the parts are added (ulysses). */
#define VARIANT_COPIES 8u
/* A rung: the plain problem only (rung_skips). */
#define VARIANT_PLAIN 16u

/* A rung that takes a mask from memory and a softcap as well. */
#define VARIANT_FULL 32u

typedef struct Stage {
    const char *name;     /* executable and JSON "stage": "naive" */
    const char *folder;   /* "01_naive" */
    const char *question; /* first line of the README and of --help */
    int abi_version;      /* --variant-so must export the same number as ABI_VERSION */
    unsigned features;    /* STAGE_HAS_...: which of the stage-specific flags it takes */
    const Variant *variants;
    int variant_count;
} Stage;

#define STAGE_HAS_BACKWARD   1u  /* --backward --do */
#define STAGE_HAS_ROWS_COLS  2u  /* --rows --cols */
#define STAGE_HAS_TRACE      4u  /* --trace */
#define STAGE_HAS_SRAM       8u  /* --sram */
#define STAGE_HAS_SMEM_LIMIT 16u /* --smem-limit */
/* Every run is a backward run: --do without --backward. A --variant-so is the backward pass alone,
 * fed by the forward of the table's first variant. */
#define STAGE_ALWAYS_BACKWARD   32u
#define STAGE_HAS_DETERMINISTIC 64u  /* --deterministic */
#define STAGE_HAS_VARLEN        128u /* --cu-seqlens-q --cu-seqlens-kv */
/* --tensor-layout --pack --temperature --clip --dropout --qk-norm --wq --wk --block-q --block-kv
 * --order: what only stage 05 knows. Without any flag about the case it is causal, window 16. */
#define STAGE_HAS_OFFLINE 256u
/* --ranks --transport --method --layout --nodes --link --partials --timeout --seed-schedule
 * --inject --verify-hops --trace-json: what only stage 06 knows. */
#define STAGE_HAS_RANKS 512u

#ifdef HAVE_CUDA
#define ATTN_CUDA_FN(f) f
#else
#define ATTN_CUDA_FN(f) NULL
#endif
#endif
