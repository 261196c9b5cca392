/* SPDX-License-Identifier: MIT
 *
 * op_status.h: what each function of flash_attention_op.h documents, and what it was seen to
 * return.
 *
 * The lists are read from the header itself: "Statuses: A, B." in front of each prototype.
 *
 * Interface:
 * - read_header: group setup; FLASH_OP_HEADER (from Meson) is the header's path.
 * - EXPECT(STATUS, function, arguments...): calls, records, compares. functions: the record.
 * - Call, right_call, expect_create: a right call of create for a test to change.
 */
#ifndef OP_STATUS_H
#define OP_STATUS_H

#include "op_case.h"

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
static inline unsigned parse_list(const char *at)
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

static inline int read_header(void **unused)
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

static inline FlashAttentionStatus record(const char *function, FlashAttentionStatus status)
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

static inline Call right_call(FlashAttentionHandle *handle)
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

static inline void expect_create(FlashAttentionStatus expected, const Call *c)
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

#endif
