/* SPDX-License-Identifier: MIT
 *
 * learn.h: what the examiner of a learn step is made of.
 *
 * An examiner calls the function that a learner wrote and computes the expected result itself, in
 * double, in a few plain lines. The same lines can compute what a typical mistake would give; when
 * the learner's numbers are those, the learner hears which mistake it is. A program is linked from
 * the learner's file, one examiner and learn.c, and judges one case, given by flags: `check -N 7`.
 *
 * Interface, what an examiner defines:
 * - mistakes: {code, sentence} of each recognised mistake, ended by {NULL, NULL}.
 * - prepare: makes inputs and outputs of the case. call: runs the learner's function once.
 * - expect(mistake): fills `expected` of each output; 0 is the right answer, k is mistakes[k - 1].
 * - diagnose, if it likes: what else can be said of outputs that no mistake explains; or NULL.
 * Interface, what learn.c gives to it:
 * - number, is_word, has_flag: the case's flags.
 * - input, output: arrays; inputs must stay as they are, outputs must be written in whole.
 *   is_right: does an output equal what was expected last? first_wrong: the first element that
 *   does not, or -1. diagnose_overflow: says that lse is infinite where it should not be, or NULL.
 * - poison: fills memory that nobody may read. from_poison: was an element computed from it?
 *   is_unwritten: is this element of an output still poison?
 * - dot_in_double: of two rows of d floats.
 * - fill_normal: random numbers. normal_input: an input of them; with --hand, what stands in a
 *   lesson. hand_Q, hand_K, hand_V: its four tokens; hand_s: the scores of query 3.
 * - move_scores: with --large or --below, Q and K of large scores, or of scores far below 0.
 *   Returns the tolerance of O.
 * - case_size: a size of the case; with --hand, that of the lesson.
 * - case_memory: zeroed memory, never NULL.
 * - refuse: the case ends here, with a code and a sentence.
 */
#ifndef LEARN_H
#define LEARN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Mistake {
    const char *code, *sentence;
} Mistake;

typedef struct Output {
    const char *name;
    float *found;     /* [rows][cols], what the learner's function writes */
    double *expected; /* [rows][cols] */
    long rows, cols;
    const char *row, *col;    /* what a row and a column are called: "query", "key" */
    double tolerance;         /* |found - expected| <= tolerance * (1 + |expected|) */
    const char *const *names; /* of the values 0, 1, ..., ended by NULL; NULL: they are numbers */
} Output;

extern const Mistake mistakes[];
void prepare(void);
void call(void);
void expect(int mistake);
const Mistake *diagnose(void) __attribute__((weak));
void judge_counts(void) __attribute__((weak)); /* of a right result: what else counts */

long number(const char *flag, long otherwise);
long case_size(const char *flag, long otherwise, long by_hand);
int is_word(const char *flag, const char *word);
int has_flag(const char *flag);

float *input(const char *name, long count);
float *normal_input(const char *name, long count, unsigned seed, const float *by_hand);
void *case_memory(long count, size_t bytes);
/* cols = 1: a vector; its elements are named by `row` alone. */
Output *output(const char *name, long rows, long cols, const char *row, const char *col);
int is_right(const Output *out);
long first_wrong(const Output *out);
const Mistake *diagnose_overflow(const Output *lse);
double move_scores(float *Q, long Nq, float *K, long Nk, long d);
void poison(float *x, long count);
int from_poison(const Output *out);
int is_unwritten(const Output *out, long element);
double dot_in_double(const float *a, const float *b, long d);
void fill_normal(float *x, long count, unsigned seed);
_Noreturn void refuse(const char *code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

extern const float hand_Q[8], hand_K[8], hand_V[8], hand_dO[8]; /* [4][2] */
extern const float hand_s[4];

#endif
