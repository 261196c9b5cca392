/* SPDX-License-Identifier: MIT
 *
 * runner_small.c: how a runner calls the functions of the small contracts. Their prototypes are
 * those of the course's headers, so a header that changes and a call that does not cannot both
 * compile.
 *
 * Interface: runner_small.h.
 */
#include "course/runner_small.h"

#include <string.h>

#include "backward_steps.h"
#include "course/runner_trace.h"
#include "flash_simple.h"
#include "sliding_window_step.h"
#include "softmax_merge.h"
#include "softmax_rows.h"
#include "softmax_twist.h"

/* The numbers of a call; 0: they are not those of a small contract. */
static int read_numbers(const RunnerCall *call, SmallNumbers *n, void *pointer[SMALL_POINTERS])
{
    if (call->bytes != sizeof *n)
        return 0;
    memcpy(n, call->numbers, sizeof *n);
    for (int i = 0; i < SMALL_POINTERS; i++)
        pointer[i] = runner_pointer(call, n->pointer[i]);
    runner_trace_shape(n->integer[0], n->integer[1]); /* N and d where states mean something */
    return 1;
}

/* A function `call_NAME` that calls what has the prototype `of`, with p[] and n[]. dlsym gives a
 * void *, which ISO C does not let us cast to a function. */
#define CALL(name, of, ...)                                                                        \
    static int call_##name(const RunnerCall *call)                                                 \
    {                                                                                              \
        SmallNumbers numbers;                                                                      \
        void *p[SMALL_POINTERS];                                                                   \
        const int32_t *n = numbers.integer;                                                        \
        __typeof__(of) *function;                                                                  \
        memcpy(&function, &call->function, sizeof function);                                       \
        return read_numbers(call, &numbers, p) ? function(__VA_ARGS__) : -1;                       \
    }

CALL(flash_simple, flash_simple_variant, p[0], p[1], p[2], p[3], p[4], n[0], n[1], n[2])
CALL(delta, backward_delta_variant, p[0], p[1], p[2], n[0], n[1])
CALL(dv, backward_dv_variant, p[0], p[1], p[2], p[3], p[4], n[0], n[1], n[2])
CALL(dk, backward_dk_variant, p[0], p[1], p[2], p[3], p[4], p[5], p[6], n[0], n[1], n[2])
CALL(dq, backward_dq_variant, p[0], p[1], p[2], p[3], p[4], p[5], p[6], n[0], n[1], n[2])
CALL(rows, softmax_rows_variant, p[0], p[1], p[2], n[0], n[1])
CALL(twist, softmax_twist_variant, p[0], p[1], p[2], n[0], n[1], n[2])
CALL(merge, softmax_merge_variant, p[0], p[1], p[2], p[3], p[4], p[5], n[0])

static int call_step(const RunnerCall *call)
{
    SmallNumbers numbers;
    void *p[SMALL_POINTERS];
    const int32_t *n = numbers.integer;
    __typeof__(sliding_window_step_variant) *function;
    SlidingStep step;
    if (!read_numbers(call, &numbers, p))
        return -1;
    memcpy(&function, &call->function, sizeof function);
    step = (SlidingStep){.Br = n[0],
                         .Bc = n[1],
                         .d = n[2],
                         .rows_q = n[3],
                         .rows_k = n[4],
                         .position_q = n[5],
                         .position_k = n[6],
                         .left = n[7],
                         .right = n[8],
                         .first_row = n[9],
                         .Nq = n[10],
                         .scale = numbers.real,
                         .Q_i = p[0],
                         .K_j = p[1],
                         .V_j = p[2],
                         .global_o = p[3],
                         .global_lse = p[4]};
    return function(&step);
}

const RunnerContract runner_small[] = {{"flash_simple", call_flash_simple},
                                       {"delta", call_delta},
                                       {"dV", call_dv},
                                       {"dK", call_dk},
                                       {"dQ", call_dq},
                                       {"softmax_rows", call_rows},
                                       {"softmax_merge", call_merge},
                                       {"softmax_twist", call_twist},
                                       {"sliding_window_step", call_step}};
const int runner_small_count = sizeof runner_small / sizeof *runner_small;
