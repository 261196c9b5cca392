/* SPDX-License-Identifier: MIT
 *
 * runner_small.h: the numbers of a call by a small contract, as the judge writes them and the
 * runner reads them. Which place has which meaning follows from the prototype: pointers and numbers
 * stand in its order.
 *
 * Interface:
 * - SmallNumbers.
 * - runner_small, runner_small_count: the rows of the small contracts for runner_contracts.c.
 */
#ifndef ATTN_RUNNER_SMALL_H
#define ATTN_RUNNER_SMALL_H

#include "course/runner.h"

enum { SMALL_POINTERS = 8, SMALL_INTEGERS = 12 };

typedef struct SmallNumbers {
    RunnerPointer pointer[SMALL_POINTERS];
    int32_t integer[SMALL_INTEGERS];
    float real;
} SmallNumbers;

extern const RunnerContract runner_small[];
extern const int runner_small_count;

#endif
