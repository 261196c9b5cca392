/* SPDX-License-Identifier: MIT
 *
 * test_window_ends: both ends of every integer that the modules of stage 05 take, and what lies one
 * beyond, and the ends of its type.
 *
 * What is inside is not refused; what is outside is, with a sentence that begins with its name. A
 * call that would be right reads no tensor: it has no Q. So sizes that no machine has can be tried.
 */
#include <limits.h>

#include "alloc.h"
#include "attention/window/sliding_window_module.h"
#include "unit.h"

#define ELEMENTS (INT64_C(1) << 44)

/* A struct of everything that a test may set. */
typedef struct Made {
    WindowConfig config;
    WindowCall call;
    WindowOnlineConfig online;
    int64_t stream_batch, i, j;
    int32_t cu[3];
} Made;

static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static float rows[64];
static uint8_t mask[1];

static Made right(void)
{
    Made m = {.config = WINDOW_CONFIG_DEFAULT, .stream_batch = 1, .cu = {0, 1, 2}};
    m.config.heads_q = m.config.heads_kv = m.config.head_dim = 1;
    m.config.options.wq = m.config.options.wk = ones;
    m.call = (WindowCall){.batch = 1, .seqlen_q = 1, .seqlen_kv = 1, .K = rows, .V = rows};
    m.call.O = rows;
    m.online = (WindowOnlineConfig){.batch = 1, .seqlen_q = 1, .seqlen_kv = 1};
    m.online.block_size_q = m.online.block_size_kv = 1;
    return m;
}

/* What is said to a call without Q, or to an object that is made. "": nothing. */
typedef WindowStatus Ask(Made *m, char error[WINDOW_ERROR]);

static WindowStatus ask_offline(Made *m, char error[WINDOW_ERROR])
{
    char backward[WINDOW_ERROR] = "";
    const WindowStatus status = sliding_window_offline(&m->config, &m->call, error);
    assert_int_not_equal(WINDOW_OK, status);
    assert_int_equal(status, sliding_window_offline_backward(&m->config, &m->call, backward));
    assert_string_equal(error, backward);
    return status;
}

static WindowStatus ask_online(Made *m, char error[WINDOW_ERROR])
{
    SlidingWindowOnline *w;
    m->online.base = m->config;
    const WindowStatus status = sliding_window_online_create(&w, &m->online, error);
    assert_true((status == WINDOW_OK) == (w != NULL));
    sliding_window_online_destroy(w);
    return status;
}

static WindowStatus ask_stream(Made *m, char error[WINDOW_ERROR])
{
    WindowStream *s;
    m->config.causal = 1;
    m->config.window = m->config.window == WINDOW_INFINITE ? 0 : m->config.window;
    const WindowStatus status = window_stream_create(&s, &m->config, m->stream_batch, error);
    assert_true((status == WINDOW_OK) == (s != NULL));
    window_stream_destroy(s);
    return status;
}

/* An object of 3 x 2 blocks. */
static WindowStatus ask_step(Made *m, char error[WINDOW_ERROR])
{
    SlidingWindowOnline *w;
    m->online.base = m->config;
    m->online.seqlen_q = 3, m->online.seqlen_kv = 2;
    assert_int_equal(WINDOW_OK, sliding_window_online_create(&w, &m->online, error));
    const WindowStatus status =
        sliding_window_online_step(w, rows, rows, rows, rows, rows, m->i, m->j, error);
    sliding_window_online_destroy(w);
    return status;
}

/* `low` to `high` are inside, what an integer of `bits` holds beyond is outside: the sentence names
 * `said` then, and its status is `refused` (WINDOW_OK: any). Inside it begins with `inside`; "":
 * there is nothing to say, unless memory is short. */
static void try(Ask *ask, void (*set)(Made *m, int64_t value), int bits, int64_t low, int64_t high,
                const char *said, const char *inside, WindowStatus refused)
{
    const int64_t least = bits == 64 ? INT64_MIN : INT32_MIN;
    const int64_t most = bits == 64 ? INT64_MAX : INT32_MAX;
    const int64_t values[] = {least, low > least ? low - 1 : low,   low,
                              high,  high < most ? high + 1 : high, most};
    for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
        const int within = values[n] >= low && values[n] <= high;
        Made m = right();
        char error[WINDOW_ERROR] = "";
        set(&m, values[n]);
        const WindowStatus status = ask(&m, error);
        const int fits = status == WINDOW_OK || status == WINDOW_NO_MEMORY;
        if (within ? (*inside ? strstr(error, inside) != error : !fits)
                   : fits || !strstr(error, said) || !strstr(error, "accepted") ||
                         (refused != WINDOW_OK && status != refused))
            fail_msg("%s of %lld: '%s'", said, (long long)values[n], error);
        assert_int_equal(0, workspace_live());
    }
}

#define SETTER(name, ...)                                                                          \
    static void set_##name(Made *m, int64_t value)                                                 \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

SETTER(
    layout, m->config.layout = (WindowLayout)value;
    if (value == WINDOW_THD) { m->call.cu_seqlens_q = m->call.cu_seqlens_kv = m->cu; })
SETTER(pack, m->config.pack = (WindowPack)value; if (value == WINDOW_QKV) m->call.K = NULL)
SETTER(dtype, m->config.dtype = (AttnDtype)value)
SETTER(heads_q, m->config.heads_q = value)
SETTER(heads_kv, m->config.heads_q = 6; m->config.heads_kv = value)
SETTER(head_dim, m->config.head_dim = value)
SETTER(causal, m->config.causal = (int)value)
SETTER(window, m->config.window = value)
SETTER(threads, m->config.threads = (int)value)
SETTER(norm_group, m->config.head_dim = 4; m->config.options.norm_group = value)
SETTER(batch, m->call.batch = m->online.batch = value)
SETTER(sequences, m->config.layout = WINDOW_THD; m->call.batch = value)
SETTER(seqlen_q, m->call.seqlen_q = m->online.seqlen_q = value)
SETTER(seqlen_kv, m->call.seqlen_kv = m->online.seqlen_kv = value)
SETTER(cu_q, set_layout(m, WINDOW_THD); m->call.batch = 2; m->call.seqlen_q = m->call.seqlen_kv = 2;
       static int32_t cu[3]; cu[1] = (int32_t)value; cu[2] = 2; m->call.cu_seqlens_q = cu)
SETTER(cu_kv, set_cu_q(m, value); m->call.cu_seqlens_kv = m->call.cu_seqlens_q;
       m->call.cu_seqlens_q = m->cu)
SETTER(block_q, m->online.block_size_q = value)
SETTER(block_kv, m->online.block_size_kv = value)
SETTER(both_q, m->online.block_size_q = m->online.seqlen_q = value)
SETTER(both_kv, m->online.block_size_kv = m->online.seqlen_kv = value)
SETTER(all, set_both_q(m, value); set_both_kv(m, value))
SETTER(masked, m->online.mask = mask; m->online.seqlen_q = 1 << 20; m->online.seqlen_kv = value)
SETTER(stream_batch, m->stream_batch = value)
SETTER(block_i, m->i = value)
SETTER(block_j, m->j = value)

/* Q, K and V of one head and one channel side by side. */
#define MOST (ELEMENTS / 3)

TEST(test_configs)
{
    static const struct {
        Ask *ask;
        const char *inside;
    } modules[] = {{ask_offline, "Q: found NULL"}, {ask_online, ""}, {ask_stream, ""}};
    for (int n = 0; n < 3; n++) {
        Ask *const ask = modules[n].ask;
        const char *const inside = modules[n].inside;
        try(ask, set_dtype, 32, ATTN_F32, ATTN_BF16, "dtype: ", inside, WINDOW_BAD_CONFIG);
        try(ask, set_head_dim, 64, 1, 1024, "head_dim: ", inside, WINDOW_BAD_CONFIG);
        try(ask, set_threads, 32, 1, 1024, "threads: ", inside, WINDOW_BAD_CONFIG);
        try(ask, set_causal, 32, INT_MIN, INT_MAX, "none", inside, WINDOW_BAD_CONFIG);
        try(ask, set_norm_group, 64, 0, 4, "norm_group: ", inside, WINDOW_BAD_CONFIG);
        try(ask, set_window, 64, -1, INT64_MAX, "window: ", ask == ask_stream ? "" : inside,
            WINDOW_BAD_CONFIG); /* a stream may have no memory for it */
        /* 6 heads of queries on 1, 2, 3 or 6 */
        try(ask, set_heads_kv, 64, 1, 6, "heads_kv: ", inside, WINDOW_BAD_CONFIG);
        /* below 1 it is the field itself, above it is what the sizes have to do with each other */
        try(ask, set_heads_q, 64, 1, ELEMENTS - 2, "heads", inside, WINDOW_OK);
    }
    try(ask_offline, set_layout, 32, 0, WINDOW_THD, "layout: ", "Q: found", WINDOW_BAD_CONFIG);
    try(ask_offline, set_pack, 32, 0, WINDOW_QKV, "pack: ", "Q: found NULL", WINDOW_BAD_CONFIG);
}

TEST(test_calls)
{
    static const char none[] = "Q: found NULL";
    try(ask_offline, set_batch, 64, 1, MOST, "batch", none, WINDOW_BAD_TENSOR);
    try(ask_offline, set_sequences, 64, 1, INT32_MAX, "batch: ", "cu_seqlens_q: found NULL",
        WINDOW_BAD_TENSOR);
    try(ask_offline, set_seqlen_q, 64, 1, MOST, "seqlen", none, WINDOW_BAD_TENSOR);
    try(ask_offline, set_seqlen_kv, 64, 1, MOST, "seqlen", none, WINDOW_BAD_TENSOR);
    try(ask_offline, set_cu_q, 32, 0, 2, "cu_seqlens_q[", none, WINDOW_BAD_TENSOR);
    try(ask_offline, set_cu_kv, 32, 0, 2, "cu_seqlens_kv[", none, WINDOW_BAD_TENSOR);
}

/* An object of many small blocks is made, one of a huge block is too large for any memory: what is
 * asked for is a number in either case, and not what is left of one that 64 bits do not hold. */
TEST(test_online)
{
    try(ask_online, set_batch, 64, 1, MOST, "batch", "", WINDOW_BAD_CONFIG);
    try(ask_online, set_seqlen_q, 64, 1, MOST, "seqlen_q", "", WINDOW_BAD_CONFIG);
    try(ask_online, set_seqlen_kv, 64, 1, MOST, "seqlen_kv", "", WINDOW_BAD_CONFIG);
    try(ask_online, set_block_q, 64, 1, MOST, "block_size_q", "", WINDOW_BAD_CONFIG);
    try(ask_online, set_block_kv, 64, 1, MOST, "block_size_kv", "", WINDOW_BAD_CONFIG);
    try(ask_online, set_both_q, 64, 1, MOST, "seqlen_q", "", WINDOW_OK);
    try(ask_online, set_both_kv, 64, 1, MOST, "seqlen_kv", "", WINDOW_OK);
    try(ask_online, set_all, 64, 1, MOST, "seqlen_q", "", WINDOW_OK);
    try(ask_online, set_masked, 64, 1, ELEMENTS >> 20, "found", "", WINDOW_OK);
    try(ask_step, set_block_i, 64, 0, 2, "block_idx_q: ", "", WINDOW_BAD_INDEX);
    try(ask_step, set_block_j, 64, 0, 1, "block_idx_kv: ", "", WINDOW_BAD_INDEX);
    static const int on_cuda[] = {1, INT_MIN, INT_MAX}; /* all the same: not 0 */
    WindowStatus answer[3];
    for (int n = 0; n < 3; n++) {
        Made m = right();
        char error[WINDOW_ERROR] = "";
        m.online.on_cuda = on_cuda[n];
        answer[n] = ask_online(&m, error);
        assert_int_equal(answer[0], answer[n]);
        assert_true(answer[n] == WINDOW_OK || strstr(error, "on_cuda: ") == error);
    }
}

TEST(test_streams)
{
    try(ask_stream, set_stream_batch, 64, 1, MOST, "batch: ", "", WINDOW_BAD_CONFIG);
}

/* One query of four keys. */
static void attend(int threads, uint64_t seed, float O[4])
{
    const float q[4] = {1, 2, 3, 4}, k[16] = {1, 0, 2, 0, 3, 1, 0, 2, 0, 1, 1, 1, 2, 2, 0, 1};
    Made m = right();
    char error[WINDOW_ERROR];
    m.config.head_dim = 4, m.config.threads = threads;
    m.config.options.dropout = 0.5f, m.config.options.dropout_seed = seed;
    m.call = (WindowCall){.batch = 1, .seqlen_q = 1, .seqlen_kv = 4, .Q = q, .K = k, .V = k};
    m.call.O = O;
    assert_int_equal(WINDOW_OK, sliding_window_offline(&m.config, &m.call, error));
}

TEST(test_threads_and_seeds)
{
    float first[4], O[4];
    attend(1, UINT64_MAX, first);
    attend(1024, UINT64_MAX, O);
    assert_memory_equal(first, O, sizeof O);
    attend(1, 0, O);
    assert_memory_not_equal(first, O, sizeof O);
}

TEST(test_status_text)
{
    const int outside[] = {INT_MIN, WINDOW_OK - 1, WINDOW_FAILED + 1, INT_MAX};
    for (int n = 0; n < 4; n++)
        assert_string_equal("unknown status", sliding_window_status_text((WindowStatus)outside[n]));
    for (int a = WINDOW_OK; a <= WINDOW_FAILED; a++)
        for (int b = WINDOW_OK - 1; b < a; b++) /* -1: no status */
            assert_string_not_equal(sliding_window_status_text((WindowStatus)b),
                                    sliding_window_status_text((WindowStatus)a));
}
