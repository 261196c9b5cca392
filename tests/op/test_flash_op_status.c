/* SPDX-License-Identifier: MIT
 *
 * test_flash_op_status.c: each status that a function documents can be had, and no other comes.
 *
 * Each call in here is recorded; a status that is not in its function's list fails at once, and the
 * last test asks whether every listed one was seen. The lists are read from the header itself:
 * "Statuses: A, B." in front of each prototype. The GPU is pretended, so that all of it fails on
 * demand.
 */
#include <math.h>

#include "../unit/flush_mode.h"
#include "op_case.h"
#include "pretend_device.h"

#define MOST_FUNCTIONS 16
#define MOST_STATUS    14

static const char *const status_names[MOST_STATUS] = {"SUCCESS",
                                                      "INTERNAL_ERROR",
                                                      "NOT_IMPLEMENTED",
                                                      "BAD_PARAM",
                                                      "NULL_POINTER",
                                                      "DEVICE_TYPE_NOT_SUPPORTED",
                                                      "DEVICE_NOT_FOUND",
                                                      "DEVICE_NOT_INITIALIZED",
                                                      "DEVICE_ARCHITECTURE_NOT_SUPPORTED",
                                                      NULL,
                                                      "BAD_TENSOR_DTYPE",
                                                      "BAD_TENSOR_SHAPE",
                                                      "BAD_TENSOR_STRIDES",
                                                      "INSUFFICIENT_WORKSPACE"};

static struct Function {
    char name[48];
    unsigned documented, seen; /* bit n: status n */
} functions[MOST_FUNCTIONS];
static int function_count;

/* The words of "SUCCESS, BAD_PARAM." as bits. */
static unsigned parse_list(const char *at)
{
    unsigned bits = 0;
    for (;;) {
        size_t length;
        int found = 0;
        at += strspn(at, " *\n,");
        length = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        for (int n = 0; n < MOST_STATUS && length; n++)
            if (status_names[n] && strlen(status_names[n]) == length &&
                strncmp(at, status_names[n], length) == 0) {
                bits |= 1u << n;
                found = 1;
            }
        assert_true(found); /* the header names something that is no status */
        at += length;
        if (*at == '.')
            return bits;
    }
}

static int read_header(void **unused)
{
    static const char start[] = "\nFlashAttentionStatus flash_attention_";
    char text[32768];
    FILE *file = fopen(FLASH_OP_HEADER, "r");
    (void)unused;
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (char *at = strstr(text, start); at; at = strstr(at, start)) {
        struct Function *f = &functions[function_count++];
        char *list = NULL;
        *at = '\0'; /* what stands in front of this prototype */
        for (char *p = strstr(text, "Statuses:"); p; p = strstr(p + 1, "Statuses:"))
            list = p;
        assert_non_null(list);
        f->documented = parse_list(list + strlen("Statuses:"));
        *list = '#'; /* it belongs to one function only */
        *at = '\n';
        at += strlen(start);
        snprintf(f->name, sizeof f->name, "%.*s", (int)strcspn(at, "("), at);
    }
    return 0;
}

static FlashAttentionStatus record(const char *function, FlashAttentionStatus status)
{
    for (int n = 0; n < function_count; n++)
        if (strcmp(functions[n].name, function) == 0) {
            if (!(functions[n].documented >> status & 1))
                print_error("%s returns %s, which it does not document\n", function,
                            flash_attention_status_string(status));
            assert_true(functions[n].documented >> status & 1);
            functions[n].seen |= 1u << status;
            return status;
        }
    fail_msg("the header has no function %s", function);
    return status;
}

#define EXPECT(status, function, ...)                                                              \
    assert_int_equal(FLASH_ATTENTION_##status,                                                     \
                     record(#function, flash_attention_##function(__VA_ARGS__)))

/* --- what a right call looks like --------------------------------------------------------------*/

/* Descriptions of out, q, k, v and mask, each of which a test changes. */
typedef struct Call {
    FlashAttentionHandle *handle;
    FlashAttentionTensor out, q, k, v, mask;
    FlashAttentionMask mask_type;
    float scale;
} Call;

static Call right_call(FlashAttentionHandle *handle)
{
    const int64_t q[] = {2, 6, 4, 8}, k[] = {2, 9, 2, 8}, mask[] = {6, 9};
    Call c = {.handle = handle, .mask_type = FLASH_ATTENTION_MASK_FULL, .scale = 0.5f};
    EXPECT(SUCCESS, describe, &c.q, FLASH_ATTENTION_F16, 4, q, NULL);
    EXPECT(SUCCESS, describe, &c.k, FLASH_ATTENTION_F16, 4, k, NULL);
    EXPECT(SUCCESS, describe, &c.mask, FLASH_ATTENTION_BOOL, 2, mask, NULL);
    c.out = c.q;
    c.v = c.k;
    return c;
}

static void expect_create(FlashAttentionStatus expected, const Call *c)
{
    FlashAttention *op = (FlashAttention *)(uintptr_t)1;
    const FlashAttentionStatus status =
        record("create", flash_attention_create(c->handle, &op, &c->out, &c->q, &c->k, &c->v,
                                                &c->mask, c->mask_type, &c->scale));
    if (status != expected)
        print_error("found: %s\n", flash_attention_status_string(status));
    assert_int_equal(expected, status);
    assert_true((op != NULL) == (status == SUCCESS));
    if (op)
        EXPECT(SUCCESS, destroy, op);
}

static FlashAttentionHandle *handle_of(FlashAttentionDevice device)
{
    FlashAttentionHandle *handle;
    pretend_reset();
    EXPECT(SUCCESS, create_handle, &handle, device, 0);
    return handle;
}

/* --- tests -------------------------------------------------------------------------------------*/

TEST(test_handle)
{
    FlashAttentionHandle *cpu = handle_of(FLASH_ATTENTION_CPU), *gpu, *none;
    EXPECT(SUCCESS, create_handle, &gpu, FLASH_ATTENTION_CUDA, 0);
    EXPECT(NULL_POINTER, create_handle, NULL, FLASH_ATTENTION_CPU, 0);
    EXPECT(DEVICE_TYPE_NOT_SUPPORTED, create_handle, &none, (FlashAttentionDevice)2, 0);
    assert_null(none);
    EXPECT(DEVICE_NOT_FOUND, create_handle, &none, FLASH_ATTENTION_CPU, 1);
    EXPECT(DEVICE_NOT_FOUND, create_handle, &none, FLASH_ATTENTION_CUDA, 1);
    EXPECT(DEVICE_NOT_FOUND, create_handle, &none, FLASH_ATTENTION_CUDA, -1);
    pretend.count = 0;
    EXPECT(DEVICE_NOT_FOUND, create_handle, &none, FLASH_ATTENTION_CUDA, 0);
    pretend.count = -1;
    EXPECT(DEVICE_TYPE_NOT_SUPPORTED, create_handle, &none, FLASH_ATTENTION_CUDA, 0);
    pretend_reset();
    pretend.arch = 75;
    EXPECT(DEVICE_ARCHITECTURE_NOT_SUPPORTED, create_handle, &none, FLASH_ATTENTION_CUDA, 0);
    pretend_reset();
    pretend.fail_host_alloc = 1;
    EXPECT(INTERNAL_ERROR, create_handle, &none, FLASH_ATTENTION_CPU, 0);
    assert_null(none);

    EXPECT(SUCCESS, set_threads, cpu, 1024);
    EXPECT(BAD_PARAM, set_threads, cpu, 0);
    EXPECT(BAD_PARAM, set_threads, cpu, 1025);
    EXPECT(NULL_POINTER, set_threads, NULL, 1);
    EXPECT(DEVICE_TYPE_NOT_SUPPORTED, set_threads, gpu, 1);
    EXPECT(SUCCESS, destroy_handle, cpu);
    EXPECT(SUCCESS, destroy_handle, gpu);
    EXPECT(SUCCESS, destroy_handle, NULL);
}

TEST(test_describe)
{
    const int64_t shape[] = {2, 3, 4, 5}, zero[] = {2, 0, 4, 5}, negative[] = {2, -3, 4, 5};
    const int64_t huge[] = {INT64_C(1) << 33, 1, 1, INT64_C(1) << 33}, edge[] = {INT64_C(1) << 44};
    const int64_t far[] = {INT64_MAX, 1, 1, 1}, least[] = {INT64_MIN, 1, 1, 1};
    const int64_t both[] = {INT64_C(1) << 60, 1, -1, 1}, past[] = {edge[0] + 1};
    const int64_t one[] = {1, 1, 1, 1}, back[] = {-60, 20, -5, 1};
    FlashAttentionTensor t = {.ndim = 77}, contiguous;
    EXPECT(NULL_POINTER, describe, NULL, FLASH_ATTENTION_F32, 4, shape, NULL);
    EXPECT(NULL_POINTER, describe, &t, FLASH_ATTENTION_F32, 4, NULL, NULL);
    EXPECT(BAD_TENSOR_DTYPE, describe, &t, (FlashAttentionDtype)5, 4, shape, NULL);
    EXPECT(BAD_TENSOR_DTYPE, describe, &t, (FlashAttentionDtype)-1, 4, shape, NULL);
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_F32, 0, shape, NULL);
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_F32, 5, shape, NULL);
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_F32, -1, shape, NULL);
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_F32, 4, zero, NULL);
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_F32, 4, negative, NULL);
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_F32, 4, huge, NULL); /* 2^66 = 4 */
    EXPECT(BAD_TENSOR_SHAPE, describe, &t, FLASH_ATTENTION_U8, 1, past, NULL);
    EXPECT(BAD_TENSOR_STRIDES, describe, &t, FLASH_ATTENTION_F32, 4, shape, far);
    EXPECT(BAD_TENSOR_STRIDES, describe, &t, FLASH_ATTENTION_F32, 4, shape, least);
    EXPECT(BAD_TENSOR_STRIDES, describe, &t, FLASH_ATTENTION_F32, 4, shape, both);
    EXPECT(BAD_TENSOR_STRIDES, describe, &t, FLASH_ATTENTION_U8, 4, shape, least);
    assert_int_equal(77, t.ndim); /* failures leave it alone */
    EXPECT(SUCCESS, describe, &t, FLASH_ATTENTION_U8, 1, edge, NULL);
    EXPECT(SUCCESS, describe, &t, FLASH_ATTENTION_F32, 4, one, far); /* stride of size 1 */
    EXPECT(SUCCESS, describe, &t, FLASH_ATTENTION_F32, 4, one, least);
    EXPECT(SUCCESS, describe, &t, FLASH_ATTENTION_F32, 4, shape, back);
    assert_int_equal(-60, t.strides[0]);
    EXPECT(SUCCESS, describe, &contiguous, FLASH_ATTENTION_BF16, 3, shape + 1, NULL);
    assert_true(contiguous.strides[0] == 20 && contiguous.strides[1] == 5 &&
                contiguous.strides[2] == 1 && contiguous.ndim == 3);
}

TEST(test_create_pointers_and_parameters)
{
    FlashAttentionHandle *handle = handle_of(FLASH_ATTENTION_CPU);
    Call c = right_call(handle);
    const FlashAttentionTensor *const t[] = {&c.out, &c.q, &c.k, &c.v, &c.mask};
    FlashAttention *op;
    expect_create(SUCCESS, &c);
    for (int n = 0; n < 5; n++) {
        const FlashAttentionTensor *u[5];
        for (int m = 0; m < 5; m++)
            u[m] = m == n ? NULL : t[m];
        EXPECT(NULL_POINTER, create, handle, &op, u[0], u[1], u[2], u[3], u[4],
               FLASH_ATTENTION_MASK_FULL, NULL);
        assert_null(op);
    }
    EXPECT(NULL_POINTER, create, NULL, &op, t[0], t[1], t[2], t[3], t[4], c.mask_type, NULL);
    EXPECT(NULL_POINTER, create, handle, NULL, t[0], t[1], t[2], t[3], t[4], c.mask_type, NULL);
    EXPECT(SUCCESS, create, handle, &op, t[0], t[1], t[2], t[3], NULL,
           FLASH_ATTENTION_MASK_CAUSAL_UPPER_LEFT, NULL);
    EXPECT(SUCCESS, destroy, op);
    c.mask_type = (FlashAttentionMask)4;
    expect_create(FLASH_ATTENTION_BAD_PARAM, &c);
    c.mask_type = (FlashAttentionMask)-1;
    expect_create(FLASH_ATTENTION_BAD_PARAM, &c);
    c = right_call(handle);
    c.scale = NAN;
    expect_create(FLASH_ATTENTION_BAD_PARAM, &c);
    c.scale = -INFINITY;
    expect_create(FLASH_ATTENTION_BAD_PARAM, &c);
    c.scale = 0;
    expect_create(SUCCESS, &c);
    /* a description that nobody asks for may be nonsense */
    c = right_call(handle);
    c.mask.ndim = -9;
    c.mask_type = FLASH_ATTENTION_MASK_NONE;
    expect_create(SUCCESS, &c);
    pretend.fail_host_alloc = 1;
    expect_create(FLASH_ATTENTION_INTERNAL_ERROR, &c);
    EXPECT(SUCCESS, destroy_handle, handle);
}

/* Each line changes one thing of a right call. */
#define CHANGED(status, ...)                                                                       \
    do {                                                                                           \
        Call c = right_call(handle);                                                               \
        __VA_ARGS__;                                                                               \
        expect_create(FLASH_ATTENTION_##status, &c);                                               \
    } while (0)

TEST(test_create_tensors)
{
    FlashAttentionHandle *handle = handle_of(FLASH_ATTENTION_CPU);
    CHANGED(BAD_TENSOR_DTYPE, c.out.dtype = FLASH_ATTENTION_BF16);
    CHANGED(BAD_TENSOR_DTYPE, c.k.dtype = FLASH_ATTENTION_F32);
    CHANGED(BAD_TENSOR_DTYPE, c.v.dtype = FLASH_ATTENTION_F32);
    CHANGED(BAD_TENSOR_DTYPE, c.q.dtype = (FlashAttentionDtype)9);
    CHANGED(BAD_TENSOR_DTYPE, c.out.dtype = c.q.dtype = c.k.dtype = c.v.dtype = FLASH_ATTENTION_U8);
    CHANGED(BAD_TENSOR_DTYPE, c.mask.dtype = FLASH_ATTENTION_F32);
    CHANGED(BAD_TENSOR_DTYPE, c.q.dtype = (FlashAttentionDtype)9, c.q.ndim = 9); /* dtype first */

    CHANGED(BAD_TENSOR_SHAPE, c.q.ndim = c.out.ndim = 3);
    CHANGED(BAD_TENSOR_SHAPE, c.q.ndim = c.out.ndim = c.k.ndim = c.v.ndim = 2);
    CHANGED(BAD_TENSOR_SHAPE, c.v.ndim = 5);
    CHANGED(BAD_TENSOR_SHAPE, c.out.shape[1] = 5);
    CHANGED(BAD_TENSOR_SHAPE, c.v.shape[1] = 8);
    CHANGED(BAD_TENSOR_SHAPE, c.k.shape[0] = c.v.shape[0] = 1);
    CHANGED(BAD_TENSOR_SHAPE, c.k.shape[3] = c.v.shape[3] = 4);
    CHANGED(BAD_TENSOR_SHAPE, c.k.shape[2] = c.v.shape[2] = 3); /* 4 heads on 3 */
    CHANGED(BAD_TENSOR_SHAPE, c.k.shape[2] = c.v.shape[2] = 8); /* 4 heads on 8 */
    CHANGED(BAD_TENSOR_SHAPE, c.k.shape[1] = 0);
    CHANGED(BAD_TENSOR_SHAPE, c.q.shape[1] = c.out.shape[1] = INT64_MAX);
    CHANGED(BAD_TENSOR_SHAPE, c.mask.ndim = 1);
    CHANGED(BAD_TENSOR_SHAPE, c.mask.shape[0] = 7);
    CHANGED(BAD_TENSOR_SHAPE, c.mask.shape[1] = 6);
    CHANGED(BAD_TENSOR_SHAPE, c.v.shape[1] = 8, c.q.strides[3] = 2); /* shape first */

    CHANGED(BAD_TENSOR_STRIDES, c.q.strides[3] = 2);
    CHANGED(BAD_TENSOR_STRIDES, c.v.strides[3] = -1);
    CHANGED(BAD_TENSOR_STRIDES, c.mask.strides[1] = 0);
    CHANGED(BAD_TENSOR_STRIDES, c.k.strides[0] = INT64_MAX);
    CHANGED(BAD_TENSOR_STRIDES, c.out.strides[0] = 0);
    CHANGED(BAD_TENSOR_STRIDES, c.out.strides[1] = 31); /* a row is 4 * 8 wide */
    CHANGED(BAD_TENSOR_STRIDES, c.out.strides[2] = -7);
    CHANGED(BAD_TENSOR_STRIDES, c.mask.strides[0] = 8);
    CHANGED(BAD_TENSOR_STRIDES, c.mask.strides[0] = -9);
    CHANGED(BAD_TENSOR_STRIDES, c.mask.strides[0] = INT64_C(1) << 31);

    CHANGED(SUCCESS, c.out.strides[1] = 8, c.out.strides[2] = 48); /* BHSD */
    CHANGED(SUCCESS, c.out.strides[0] = 200, c.out.strides[1] = -33, c.out.strides[2] = -8);
    CHANGED(SUCCESS, c.q.strides[0] = 0, c.k.strides[1] = -16, c.v.strides[2] = 0);
    CHANGED(SUCCESS, c.mask.strides[0] = 0);
    CHANGED(SUCCESS, c.mask.strides[0] = INT32_MAX);
    CHANGED(SUCCESS, c.mask.dtype = FLASH_ATTENTION_U8);

    CHANGED(NOT_IMPLEMENTED, c.q.shape[3] = c.out.shape[3] = c.k.shape[3] = c.v.shape[3] = 1025,
            c.out.strides[2] = 1025, c.out.strides[1] = 4100, c.out.strides[0] = 24600);
    EXPECT(SUCCESS, destroy_handle, handle);
}

TEST(test_create_on_a_gpu)
{
    FlashAttentionHandle *handle = handle_of(FLASH_ATTENTION_CUDA);
    CHANGED(SUCCESS, (void)c);
    CHANGED(NOT_IMPLEMENTED, c.q.shape[3] = c.out.shape[3] = c.k.shape[3] = c.v.shape[3] = 257,
            c.out.strides[2] = 257, c.out.strides[1] = 1028, c.out.strides[0] = 6168);
    /* more keys than 32 bits count: 2^31 rows of 8, all the same one */
    CHANGED(NOT_IMPLEMENTED, c.mask_type = FLASH_ATTENTION_MASK_NONE,
            c.k.shape[1] = c.v.shape[1] = INT64_C(1) << 31, c.k.strides[1] = c.v.strides[1] = 0);
    /* more blocks than a grid has */
    CHANGED(NOT_IMPLEMENTED, c.mask_type = FLASH_ATTENTION_MASK_NONE,
            c.q.shape[0] = c.out.shape[0] = c.k.shape[0] = c.v.shape[0] = INT64_C(1) << 30);
    CHANGED(NOT_IMPLEMENTED, c.mask_type = FLASH_ATTENTION_MASK_NONE,
            c.q.shape[0] = c.out.shape[0] = c.k.shape[0] = c.v.shape[0] = INT64_C(1) << 28,
            c.q.shape[1] = c.out.shape[1] = 48, c.out.strides[0] = 48 * 32);
    CHANGED(INTERNAL_ERROR, pretend.fail_host_alloc = 1);
    CHANGED(INTERNAL_ERROR, pretend.fail_upload = 1);
    EXPECT(SUCCESS, destroy_handle, handle);

    pretend.oldest_arch = pretend.arch = 75; /* kernels for sm_75: float32 only */
    EXPECT(SUCCESS, create_handle, &handle, FLASH_ATTENTION_CUDA, 0);
    CHANGED(DEVICE_ARCHITECTURE_NOT_SUPPORTED, (void)c);
    CHANGED(SUCCESS, c.out.dtype = c.q.dtype = c.k.dtype = c.v.dtype = FLASH_ATTENTION_F32);
    EXPECT(SUCCESS, destroy_handle, handle);
    pretend_reset();
}

TEST(test_run)
{
    for (int device = 0; device < 2; device++) {
        FlashAttentionHandle *handle = handle_of((FlashAttentionDevice)device);
        const Call c = right_call(handle);
        static _Alignas(256) unsigned char workspace[1 << 20];
        static uint16_t out[2 * 6 * 4 * 8], q[2 * 6 * 4 * 8], k[2 * 9 * 2 * 8], v[2 * 9 * 2 * 8];
        static unsigned char mask[6 * 9];
        static float lse[2 * 4 * 6];
        const size_t room = sizeof workspace;
        FlashAttention *op;
        size_t bytes;
        EXPECT(SUCCESS, create, handle, &op, &c.out, &c.q, &c.k, &c.v, &c.mask, c.mask_type, NULL);
        EXPECT(SUCCESS, workspace_size, op, &bytes);
        assert_true(bytes > 0 && bytes + 512 <= room);
        EXPECT(NULL_POINTER, workspace_size, NULL, &bytes);
        EXPECT(NULL_POINTER, workspace_size, op, NULL);
        EXPECT(SUCCESS, run, op, workspace, bytes, out, q, k, v, mask, lse, NULL);
        EXPECT(SUCCESS, run, op, workspace, room, out, q, k, v, mask, NULL, NULL);
        EXPECT(INSUFFICIENT_WORKSPACE, run, op, workspace, bytes - 1, out, q, k, v, mask, lse,
               NULL);
        EXPECT(INSUFFICIENT_WORKSPACE, run, op, workspace, 0, out, q, k, v, mask, lse, NULL);
        for (size_t skip = 0; skip < 256; skip++) { /* any address, and no byte past the last */
            memset(workspace + skip + bytes, 0xA5, 256);
            EXPECT(SUCCESS, run, op, workspace + skip, bytes, out, q, k, v, mask, NULL, NULL);
            for (size_t n = 0; n < 256; n++)
                assert_int_equal(0xA5, workspace[skip + bytes + n]);
        }
        EXPECT(NULL_POINTER, run, NULL, workspace, bytes, out, q, k, v, mask, lse, NULL);
        EXPECT(NULL_POINTER, run, op, NULL, bytes, out, q, k, v, mask, lse, NULL);
        EXPECT(NULL_POINTER, run, op, workspace, bytes, NULL, q, k, v, mask, lse, NULL);
        EXPECT(NULL_POINTER, run, op, workspace, bytes, out, NULL, k, v, mask, lse, NULL);
        EXPECT(NULL_POINTER, run, op, workspace, bytes, out, q, NULL, v, mask, lse, NULL);
        EXPECT(NULL_POINTER, run, op, workspace, bytes, out, q, k, NULL, mask, lse, NULL);
        EXPECT(NULL_POINTER, run, op, workspace, bytes, out, q, k, v, NULL, lse, NULL);
        EXPECT(BAD_PARAM, run, op, workspace, bytes, out, (char *)q + 1, k, v, mask, lse, NULL);
        EXPECT(BAD_PARAM, run, op, workspace, bytes, out, q, (char *)k + 1, v, mask, lse, NULL);
        EXPECT(BAD_PARAM, run, op, workspace, bytes, out, q, k, (char *)v + 1, mask, lse, NULL);
        EXPECT(BAD_PARAM, run, op, workspace, bytes, (char *)out + 1, q, k, v, mask, lse, NULL);
        EXPECT(BAD_PARAM, run, op, workspace, bytes, out, q, k, v, mask,
               (float *)(void *)((char *)lse + 2), NULL);
        const void *const pointers[] = {workspace, out, q, k, v, mask, lse};
        for (int n = 0; device == FLASH_ATTENTION_CUDA && n < 7; n++) {
            pretend.foreign = pointers[n];
            EXPECT(BAD_PARAM, run, op, workspace, bytes, out, q, k, v, mask, lse, NULL);
        }
        pretend_reset();
        if (device == FLASH_ATTENTION_CUDA) {
            pretend.fail_run = 1;
            EXPECT(INTERNAL_ERROR, run, op, workspace, bytes, out, q, k, v, mask, lse, NULL);
            pretend.fail_release = 1;
            EXPECT(INTERNAL_ERROR, destroy, op);
        } else {
            EXPECT(SUCCESS, destroy, op);
        }
        EXPECT(SUCCESS, destroy, NULL);
        EXPECT(SUCCESS, destroy_handle, handle);
    }
}

/* Numbers below 2^-126 taken for zero by this thread: of results, then of operands. */
TEST(test_flush_mode)
{
    for (int device = 0; device < 2; device++) {
        FlashAttentionHandle *handle = handle_of((FlashAttentionDevice)device);
        const Call c = right_call(handle);
        const FlashAttentionStatus wanted = device == FLASH_ATTENTION_CPU
                                                ? FLASH_ATTENTION_NOT_IMPLEMENTED
                                                : FLASH_ATTENTION_SUCCESS;
        static unsigned char workspace[1 << 20], mask[6 * 9];
        static uint16_t out[2 * 6 * 4 * 8], q[2 * 6 * 4 * 8], k[2 * 9 * 2 * 8];
        const size_t room = sizeof workspace;
        FlashAttention *op, *other;
        EXPECT(SUCCESS, create, handle, &op, &c.out, &c.q, &c.k, &c.v, &c.mask, c.mask_type, NULL);
        for (int mode = FLUSH_RESULTS; mode <= FLUSH_OPERANDS && set_flush_mode(mode); mode++) {
            const FlashAttentionStatus made =
                record("create", flash_attention_create(handle, &other, &c.out, &c.q, &c.k, &c.v,
                                                        &c.mask, c.mask_type, NULL));
            const FlashAttentionStatus ran = record(
                "run", flash_attention_run(op, workspace, room, out, q, k, k, mask, NULL, NULL));
            set_flush_mode(FLUSH_NOTHING);
            assert_true(made == wanted && ran == wanted && (other == NULL) == (made != SUCCESS));
            EXPECT(SUCCESS, destroy, other);
            EXPECT(SUCCESS, run, op, workspace, room, out, q, k, k, mask, NULL, NULL);
        }
        EXPECT(SUCCESS, destroy, op);
        EXPECT(SUCCESS, destroy_handle, handle);
    }
}

TEST(test_status_strings)
{
    for (int n = 0; n < MOST_STATUS; n++) {
        const char *text = flash_attention_status_string((FlashAttentionStatus)n);
        assert_true(text && *text);
        assert_true((strcmp(text, "unknown status") == 0) == (status_names[n] == NULL));
        for (int m = 0; m < n; m++)
            assert_string_not_equal(text, flash_attention_status_string((FlashAttentionStatus)m));
    }
    assert_string_equal("unknown status", flash_attention_status_string((FlashAttentionStatus)-1));
    assert_string_equal("unknown status", flash_attention_status_string((FlashAttentionStatus)14));
}

/* Runs last. */
TEST(test_every_documented_status_was_seen)
{
    int missing = 0;
    assert_int_equal(8, function_count);
    for (int f = 0; f < function_count; f++)
        for (int n = 0; n < MOST_STATUS; n++)
            if (status_names[n] && (functions[f].documented & ~functions[f].seen) >> n & 1) {
                print_error("%s documents %s, which nothing reached\n", functions[f].name,
                            status_names[n]);
                missing++;
            }
    assert_int_equal(0, missing);
    assert_int_equal(0, pretend.host_blocks);
    assert_int_equal(0, pretend.device_blocks);
}

BETWEEN(read_header, NULL)
