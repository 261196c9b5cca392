/* SPDX-License-Identifier: MIT
 *
 * learn.c: the part of a learn step's program that is the same in all of them.
 *
 * It makes the arrays, calls the learner's function, compares what was found with what the examiner
 * expects, and says what the first wrong number is. Outputs are filled with a NaN before the call,
 * so a number that nobody wrote is recognised; a few floats behind each array notice a write past
 * its end (with --asan the compiler's own check does that better).
 *
 * The verdict is "right", or "wrong CODE", lines that say what is wrong, and, when the mistake is
 * known, an empty line and its sentence. It goes to the file descriptor named by LEARN_FD, so that
 * the learner may print freely. Without LEARN_FD, as in gdb, the terminal gets what is wrong, and
 * neither code nor sentence: one who looks for a bug by hand is not told which it is.
 *
 * Interface: see learn.h.
 */
#include "learn.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef LEARN_ASAN
#define GUARD 0
#else
#define GUARD 16
#endif
#define POISON   0x7fbead00u /* a signalling NaN: no arithmetic makes one */
#define USED     0x7ffead00u /* what arithmetic makes of it */
#define MAX_OF   8
#define MAX_ALL  4000       /* characters of a verdict */
#define MAX_FILE (16 << 20) /* bytes: a printf in an endless loop must not fill the disk */

const float hand_Q[8] = {1, 0, 0, 1, 2, 0, 1, 1};
const float hand_K[8] = {1, 0, 0, 1, 1, 1, 0, 0};
const float hand_V[8] = {1, 0, 0, 1, 2, 2, 0, 4};
const float hand_dO[8] = {1, 0, 0, 1, 1, 1, 1, -1};
const float hand_s[4] = {0.70710678f, 0.70710678f, 1.41421356f, 0.0f};

typedef struct Input {
    const char *name;
    float *data, *copy;
    long count;
} Input;

static Input inputs[MAX_OF];
static Output outputs[MAX_OF];
static int n_inputs, n_outputs;
static int flag_count;
static char **flags;

static const char *flag_value(const char *flag)
{
    int i;
    for (i = 1; i < flag_count; i++)
        if (!strcmp(flags[i], flag))
            return i + 1 < flag_count ? flags[i + 1] : "";
    return NULL;
}

long number(const char *flag, long otherwise)
{
    const char *value = flag_value(flag);
    return value ? strtol(value, NULL, 10) : otherwise;
}

long case_size(const char *flag, long otherwise, long by_hand)
{
    return has_flag("--hand") ? by_hand : number(flag, otherwise);
}

int is_word(const char *flag, const char *word)
{
    const char *value = flag_value(flag);
    return value && !strcmp(value, word);
}

int has_flag(const char *flag)
{
    return flag_value(flag) != NULL;
}

/* code: NULL, the case is right. sentence: of a recognised mistake, or NULL. */
static _Noreturn void verdict(const char *code, const char *text, const char *sentence)
{
    const char *fd = getenv("LEARN_FD");
    int done;
    fflush(stdout);
    if (!code)
        done = dprintf(fd ? atoi(fd) : 1, "right\n");
    else if (!fd)
        done = dprintf(1, "wrong\n%s\n", text);
    else
        done = dprintf(atoi(fd), "wrong %s\n%s\n\n%s\n", code, text, sentence ? sentence : "");
    if (done < 0)
        exit(3);
    exit(code ? 1 : 0);
}

void refuse(const char *code, const char *format, ...)
{
    char text[MAX_ALL];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    verdict(code, text, NULL);
}

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

void poison(float *x, long count)
{
    const uint32_t pattern = POISON;
    long i;
    for (i = 0; i < count; i++)
        memcpy(x + i, &pattern, sizeof pattern);
}

int from_poison(const Output *out)
{
    long e;
    for (e = 0; e < out->rows * out->cols; e++)
        if (bits(out->found[e]) == USED)
            return 1;
    return 0;
}

int is_unwritten(const Output *out, long element)
{
    return bits(out->found[element]) == POISON;
}

void *case_memory(long count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);
    if (!memory)
        refuse("memory", "There is no memory for this case.");
    return memory;
}

/* count floats and the guard behind them, all poisoned */
static float *poisoned(long count)
{
    float *x = case_memory(count + GUARD, sizeof *x);
    poison(x, count + GUARD);
    return GUARD ? x : realloc(x, sizeof(float) * (size_t)count);
}

float *input(const char *name, long count)
{
    Input *in = &inputs[n_inputs++];
    *in = (Input){name, poisoned(count), case_memory(count, sizeof(float)), count};
    return in->data;
}

float *normal_input(const char *name, long count, unsigned seed, const float *by_hand)
{
    float *x = input(name, count);
    fill_normal(x, count, seed);
    if (by_hand && has_flag("--hand"))
        memcpy(x, by_hand, sizeof *x * (size_t)count);
    return x;
}

Output *output(const char *name, long rows, long cols, const char *row, const char *col)
{
    Output *out = &outputs[n_outputs++];
    *out = (Output){name,
                    poisoned(rows * cols),
                    case_memory(rows * cols, sizeof(double)),
                    rows,
                    cols,
                    row,
                    col,
                    1e-4,
                    NULL};
    return out;
}

double dot_in_double(const float *a, const float *b, long d)
{
    double sum = 0.0;
    long x;
    for (x = 0; x < d; x++)
        sum += (double)a[x] * b[x];
    return sum;
}

void fill_normal(float *x, long count, unsigned seed)
{
    uint32_t state = seed * 2654435769u + 12345u;
    long i;
    int k;
    for (i = 0; i < count; i++) {
        float sum = 0.0f; /* of 12 uniform numbers: mean 6, variance 1 */
        for (k = 0; k < 12; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) / 16777216.0f;
        }
        x[i] = sum - 6.0f;
    }
}

double move_scores(float *Q, long Nq, float *K, long Nk, long d)
{
    long e;
    for (e = 0; e < Nq * d && has_flag("--large"); e++)
        Q[e] *= 100.0f;
    for (e = 0; e < Nq * d && has_flag("--below"); e += d)
        Q[e] = 30.0f;
    for (e = 0; e < Nk * d && has_flag("--below"); e += d)
        K[e] = -30.0f; /* scores around -900 / sqrt(d) */
    return has_flag("--large") || has_flag("--below") ? 3e-3 : 1e-4;
}

/* The two NaN of a mistake and of the learner count as equal, but not one that nobody wrote. */
static int equal(const Output *o, long e)
{
    const double found = o->found[e], expected = o->expected[e];
    if (isnan(expected))
        return isnan(found) && !is_unwritten(o, e);
    if (isinf(expected))
        return found == expected;
    return fabs(found - expected) <= o->tolerance * (1.0 + fabs(expected));
}

#ifdef LEARN_ASAN
/* AddressSanitizer calls this before its report, which names arrays by their addresses. */
void __asan_on_error(void);

void __asan_on_error(void)
{
    int k;
    for (k = 0; k < n_inputs; k++)
        fprintf(stderr, "array %s at %p\n", inputs[k].name, (void *)inputs[k].data);
    for (k = 0; k < n_outputs; k++)
        fprintf(stderr, "array %s at %p\n", outputs[k].name, (void *)outputs[k].found);
}
#endif

static long wrong_numbers(const Output *o, long *first)
{
    long e, wrong = 0;
    for (e = 0; e < o->rows * o->cols; e++)
        if (!equal(o, e)) {
            *first = wrong++ ? *first : e;
        }
    return wrong;
}

int is_right(const Output *out)
{
    long first;
    return !wrong_numbers(out, &first);
}

long first_wrong(const Output *out)
{
    long first = -1;
    wrong_numbers(out, &first);
    return first;
}

const Mistake *diagnose_overflow(const Output *lse)
{
    static const Mistake no_max_subtraction = {
        "no_max_subtraction",
        "lse is infinite: exp(s) overflows above s = 88.72. Take the maximum out first: "
        "max + log1p(exp(min - max))."};
    long e;
    for (e = 0; e < lse->rows * lse->cols; e++)
        if (isfinite(lse->expected[e]) && isinf(lse->found[e]) && lse->found[e] > 0)
            return &no_max_subtraction;
    return NULL;
}

/* lse is no number in a row whose scores are all so low that exp(s) is 0 in float32. */
static int underflow(void)
{
    int k, found = 0;
    long e;
    for (k = 0; k < n_outputs; k++)
        for (e = 0; e < outputs[k].rows * outputs[k].cols && !strcmp(outputs[k].name, "lse"); e++)
            found |= isfinite(outputs[k].expected[e]) && outputs[k].expected[e] < -104.0 &&
                     !isfinite(outputs[k].found[e]) && !is_unwritten(&outputs[k], e);
    return found;
}

static int all_right(void)
{
    int k, right = 1;
    for (k = 0; k < n_outputs; k++)
        right &= is_right(&outputs[k]);
    return right;
}

/* A number, or the name that the step has for it. Returns its length. */
static size_t write_value(const Output *o, double value, char *text, size_t size)
{
    int k;
    for (k = 0; o->names && o->names[k]; k++)
        if (value == k)
            return (size_t)snprintf(text, size, "%s", o->names[k]);
    return (size_t)snprintf(text, size, "%.6g", value);
}

/* One sentence about an output, behind what text holds already. */
static void describe(const Output *o, char *text, size_t size)
{
    long first = 0, wrong = wrong_numbers(o, &first);
    size_t used = strlen(text);
    text += used;
    size -= used;
    if (!wrong) {
        snprintf(text, size, "%s is right.\n", o->name);
        return;
    }
    if (o->rows * o->cols == 1)
        used = (size_t)snprintf(text, size, "%s", o->name);
    else
        used =
            (size_t)snprintf(text, size, "%s is wrong at %s %ld", o->name, o->row, first / o->cols);
    if (o->cols > 1)
        used += (size_t)snprintf(text + used, size - used, ", %s %ld", o->col, first % o->cols);
    used += (size_t)snprintf(text + used, size - used, ": expected ");
    used += write_value(o, o->expected[first], text + used, size - used);
    used += (size_t)snprintf(text + used, size - used, ", found ");
    if (is_unwritten(o, first))
        used += (size_t)snprintf(text + used, size - used, "nothing (it was not written)");
    else if (bits(o->found[first]) == USED)
        used += (size_t)snprintf(text + used, size - used,
                                 "NaN (from a number that was never written, or "
                                 "from behind the end of an array; try --asan)");
    else
        used += write_value(o, (double)o->found[first], text + used, size - used);
    if (o->rows * o->cols == 1)
        snprintf(text + used, size - used, ".\n");
    else
        snprintf(text + used, size - used, "; %ld of %ld %s wrong.\n", wrong, o->rows * o->cols,
                 wrong == 1 ? "is" : "are");
}

static void check_memory(void)
{
    int k, e;
    for (k = 0; k < n_inputs; k++)
        if (memcmp(inputs[k].data, inputs[k].copy, sizeof(float) * (size_t)inputs[k].count))
            refuse("input_changed", "Your function changed its input %s.", inputs[k].name);
    for (k = 0; k < n_outputs; k++)
        for (e = 0; e < GUARD; e++)
            if (bits(outputs[k].found[outputs[k].rows * outputs[k].cols + e]) != POISON)
                refuse("past_the_end", "Your function wrote past the end of %s.", outputs[k].name);
}

int main(int argc, char **argv)
{
    const struct rlimit no_core = {0, 0}, file = {MAX_FILE, MAX_FILE};
    char text[MAX_ALL] = "";
    const Mistake *more;
    int k;
    flag_count = argc;
    flags = argv;
    setrlimit(RLIMIT_CORE, &no_core);
    setrlimit(RLIMIT_FSIZE, &file);
    prepare();
    for (k = 0; k < n_inputs; k++)
        memcpy(inputs[k].copy, inputs[k].data, sizeof(float) * (size_t)inputs[k].count);
    call();
    check_memory();
    expect(0);
    if (all_right()) {
        if (judge_counts)
            judge_counts();
        verdict(NULL, "", NULL);
    }
    for (k = 0; k < n_outputs; k++)
        describe(&outputs[k], text, sizeof text);
    if (underflow())
        verdict("m_from_zero", text,
                "The scores of a row are all far below 0, and exp(s - m) is 0 for each of them. "
                "The maximum has to begin at -inf: at 0 it is larger than any of these scores.");
    for (k = 0; mistakes[k].code; k++) {
        expect(k + 1);
        if (all_right())
            verdict(mistakes[k].code, text, mistakes[k].sentence);
    }
    expect(0);
    more = diagnose ? diagnose() : NULL;
    verdict(more ? more->code : "-", text, more ? more->sentence : NULL);
}
