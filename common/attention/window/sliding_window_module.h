/* SPDX-License-Identifier: MIT
 *
 * sliding_window_module.h: the two modules of the coursework task as a library: offline (a whole
 * attention call) and online (one block of it a step, in place, in any order).
 *
 * Interface:
 * - WindowConfig: what a module is made with. WindowStatus, sliding_window_status_text.
 * - sliding_window_offline, sliding_window_offline_backward.
 * - sliding_window_online_create, _step, _destroy.
 * - WindowStream, window_stream_*: tokens one at a time against a rolling cache of window + 1 keys.
 * Every refusal has a status and one sentence in `error` that names the field, what was found and
 * what is accepted; nothing is written then. A tensor with all heads of Q, K and V side by side may
 * have 2^44 elements; so may a block of the online module.
 */
#ifndef SLIDING_WINDOW_MODULE_H
#define SLIDING_WINDOW_MODULE_H

#include "attn.h"
#include "attn_options.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum WindowStatus {
    WINDOW_OK = 0,
    WINDOW_BAD_CONFIG = 1, /* options that exclude each other, or a value out of range */
    WINDOW_BAD_TENSOR = 2, /* a shape, dtype, NULL pointer or cu_seqlens that does not fit */
    WINDOW_BAD_INDEX = 3,  /* a block index outside [0, ceil(s / b)) */
    WINDOW_NO_MEMORY = 4,
    WINDOW_NOT_SUPPORTED = 5, /* the device or build cannot do it */
    WINDOW_FAILED = 6         /* a CUDA call failed; the message is on stderr */
} WindowStatus;
const char *sliding_window_status_text(WindowStatus status);

typedef enum WindowLayout { WINDOW_BSHD, WINDOW_SBHD, WINDOW_THD } WindowLayout;
typedef enum WindowPack { WINDOW_Q_K_V, WINDOW_Q_KV, WINDOW_QKV } WindowPack;

#define WINDOW_INFINITE (-1)
#define WINDOW_ERROR    256

/* WINDOW_CONFIG_DEFAULT is causal = 0, no window, and none of the options. */
typedef struct WindowConfig {
    WindowLayout layout;
    WindowPack pack;
    AttnDtype dtype;
    int64_t heads_q, heads_kv, head_dim;
    int causal;     /* lower-right */
    int64_t window; /* keys i-w .. i (causal) or i-w .. i+w; WINDOW_INFINITE */
    float scale;    /* 0 = 1/sqrt(head_dim) */
    float cap;      /* 0 = none; wins over temperature */
    AttnOptions options;
    int threads; /* 1 .. 1024 */
} WindowConfig;
#define WINDOW_CONFIG_DEFAULT                                                                      \
    {                                                                                              \
        WINDOW_BSHD, WINDOW_Q_K_V, ATTN_F32, 0, 0, 0, 0, WINDOW_INFINITE, 0.0f, 0.0f,              \
            {1.0f, 0.0f, 1.0f, 0.0f, 0, 0, 1e-5f, NULL, NULL, NULL, NULL}, 1                       \
    }

/* Contiguous host tensors in the config's layout: [b][s][h][d], [s][b][h][d] or [t][h][d] with
 * cu_seqlens [batch+1] (0 ... total, never falling). Q_KV: K holds K and V side by side on the
 * heads axis, V is NULL; QKV: Q holds all three (heads_q, heads_kv, heads_kv), K and V are NULL,
 * and the query and key lengths are equal. The gradients are packed like the tensors. */
typedef struct WindowCall {
    int64_t batch, seqlen_q, seqlen_kv;          /* THD: batch sequences; seqlen_* are the totals */
    const int32_t *cu_seqlens_q, *cu_seqlens_kv; /* THD only, else NULL */
    const void *Q, *K, *V;
    void *O;        /* like Q alone, in its layout and dtype */
    float *lse;     /* [b][hq][sq], THD: [hq][total_q]; may be NULL in a forward call */
    const void *dO; /* backward: like O; O and lse are inputs then */
    void *dQ, *dK, *dV;
} WindowCall;

WindowStatus sliding_window_offline(const WindowConfig *config, const WindowCall *call,
                                    char error[WINDOW_ERROR]);
WindowStatus sliding_window_offline_backward(const WindowConfig *config, const WindowCall *call,
                                             char error[WINDOW_ERROR]);

/* --- online ------------------------------------------------------------------------------------*/

typedef struct WindowOnlineConfig {
    WindowConfig base; /* BSHD, Q_K_V; no clip, no dropout */
    int64_t batch, seqlen_q, seqlen_kv, block_size_q, block_size_kv;
    const uint8_t *mask; /* [seqlen_q][seqlen_kv], 1 = masked out, ANDed with the window; or NULL.
                            Must live as long as the object. */
    int on_cuda;         /* 1: the tensors of step() are device pointers */
    void *stream;        /* cudaStream_t */
} WindowOnlineConfig;

typedef struct SlidingWindowOnline SlidingWindowOnline; /* opaque */

WindowStatus sliding_window_online_create(SlidingWindowOnline **out,
                                          const WindowOnlineConfig *config,
                                          char error[WINDOW_ERROR]);
/* q_block [b][bq][hq][d], k_block and v_block [b][bkv][hkv][d]: whole blocks, the last ones padded
 * (with zeros by the contract; the padding is never read). global_o [b][sq][hq][d] in the dtype and
 * global_lse [b][hq][sq] float32 are updated in place, the block's valid rows only; 0 and -inf at
 * first, or any partial state. A block outside the window returns at once. */
WindowStatus sliding_window_online_step(SlidingWindowOnline *w, const void *q_block,
                                        const void *k_block, const void *v_block, void *global_o,
                                        float *global_lse, int64_t block_idx_q,
                                        int64_t block_idx_kv, char error[WINDOW_ERROR]);
void sliding_window_online_destroy(SlidingWindowOnline *w); /* NULL is allowed */

/* --- streaming ---------------------------------------------------------------------------------*/

/* A rolling cache: token t's key and value lie in slot t % (window + 1). */
typedef struct WindowStream WindowStream;

/* config: causal with a finite window, no clip, no dropout. */
WindowStatus window_stream_create(WindowStream **out, const WindowConfig *config, int64_t batch,
                                  char error[WINDOW_ERROR]);
/* The next token: q [b][hq][d], k and v [b][hkv][d] in the config's dtype -> o like q, lse
 * [b][hq]. */
WindowStatus window_stream_step(WindowStream *s, const void *q, const void *k, const void *v,
                                void *o, float *lse);
int64_t window_stream_bytes(const WindowStream *s); /* memory of the object: constant */
void window_stream_destroy(WindowStream *s);

#ifdef __cplusplus
}
#endif
#endif
