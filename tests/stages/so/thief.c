/* SPDX-License-Identifier: MIT
 *
 * thief.c: computes next to nothing, and looks through all memory that it can read for the outputs
 * that its judge expects. It knows an array by its first and last four numbers, which it computes,
 * and copies it, whether of double or float, in the order [H][N][d] or [N][H][d].
 *
 * The sandbox shows no /proc/self/maps. So it asks mincore for each page near the heap, the mapped
 * files and arrays, the program and the stack, and touches it.
 *
 * Beside that it prints the descriptors and the environment that it has got.
 *
 * -DSTAGE=naive as in right.c; -DBACKWARD for a stage whose outputs are dQ, dK and dV. -DPLANTED:
 * the arrays do lie in its memory, and they must be found.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"
#include "tensor.h"

#define JOIN2(a, b) a##_##b
#define JOIN(a, b)  JOIN2(a, b)
#define EXPORT(x)   JOIN(STAGE, x)
#define PAGE        ((uintptr_t)4096)

enum { EDGE = 4, MOST_D = 64, MOST_RANGES = 4096 };
enum { OF_O, OF_LSE, OF_DQ, OF_DK, OF_DV };
static const char *const names[] = {"O", "lse", "dQ", "dK", "dV"};

int EXPORT(abi_version) = ABI_OF(STAGE);

/* --- the numbers by which an array is known: attention of one batch without a mask ------------ */

static double product(const Tensor *s, int64_t i, const Tensor *t, int64_t j, int64_t h)
{
    float x[MOST_D], y[MOST_D];
    double sum = 0.0;
    tensor_read_row(s, 0, i, h, x);
    tensor_read_row(t, 0, j, h, y);
    for (int64_t c = 0; c < s->shape[3]; c++)
        sum += (double)x[c] * y[c];
    return sum;
}

static double lse_of(const AttnArgs *a, int64_t h, int64_t i)
{
    double m = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < a->shape.Nk; j++)
        m = fmax(m, a->scale * product(&a->Q, i, &a->K, j, h));
    for (int64_t j = 0; j < a->shape.Nk; j++)
        sum += exp(a->scale * product(&a->Q, i, &a->K, j, h) - m);
    return m + log(sum);
}

static double element(const Tensor *t, int64_t n, int64_t h, int64_t x)
{
    float row[MOST_D];
    tensor_read_row(t, 0, n, h, row);
    return row[x];
}

static double weight(const AttnArgs *a, int64_t h, int64_t i, int64_t j)
{
    return exp(a->scale * product(&a->Q, i, &a->K, j, h) - lse_of(a, h, i));
}

/* dS of query i and key j */
static double slope(const AttnArgs *a, int64_t h, int64_t i, int64_t j)
{
    const double lse = lse_of(a, h, i);
    double delta = 0.0;
    for (int64_t k = 0; k < a->shape.Nk; k++)
        delta +=
            exp(a->scale * product(&a->Q, i, &a->K, k, h) - lse) * product(&a->dO, i, &a->V, k, h);
    return weight(a, h, i, j) * (product(&a->dO, i, &a->V, j, h) - delta);
}

static double value(const AttnArgs *a, int what, int64_t h, int64_t n, int64_t x)
{
    double sum = 0.0;
    if (what == OF_LSE)
        return lse_of(a, h, n);
    for (int64_t m = 0; m < a->shape.Nk; m++) /* as many queries as keys */
        sum += what == OF_O    ? weight(a, h, n, m) * element(&a->V, m, h, x)
               : what == OF_DV ? weight(a, h, m, n) * element(&a->dO, m, h, x)
               : what == OF_DQ ? a->scale * slope(a, h, n, m) * element(&a->K, m, h, x)
                               : a->scale * slope(a, h, m, n) * element(&a->Q, m, h, x);
    return sum;
}

/* --- memory ---------------------------------------------------------------------------------- */

static struct {
    const unsigned char *from, *to;
} ranges[MOST_RANGES];
static int range_count;
static size_t page_count;
static sigjmp_buf unreadable;

static void on_fault(int number)
{
    siglongjmp(unreadable, number);
}

static int can_read(uintptr_t page)
{
    unsigned char there;
    if (mincore((void *)page, PAGE, &there) != 0 || sigsetjmp(unreadable, 0) != 0)
        return 0;
    (void)*(volatile unsigned char *)page;
    return 1;
}

static void add_range(uintptr_t from, uintptr_t to)
{
    for (uintptr_t page = from & ~(PAGE - 1); page < to; page += PAGE) {
        if (!can_read(page))
            continue;
        page_count++;
        if (range_count > 0 && (uintptr_t)ranges[range_count - 1].to == page)
            ranges[range_count - 1].to += PAGE;
        else if (range_count < MOST_RANGES) {
            ranges[range_count].from = (const unsigned char *)page;
            ranges[range_count++].to = (const unsigned char *)page + PAGE;
        }
    }
}

static void find_ranges(void)
{
    struct sigaction mine = {.sa_handler = on_fault, .sa_flags = SA_NODEFER}, segv, bus;
    const uintptr_t heap = (uintptr_t)sbrk(0), stack = (uintptr_t)&mine,
                    program = (uintptr_t)getauxval(AT_PHDR);
    void *mapped = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    range_count = 0;
    page_count = 0;
    sigaction(SIGSEGV, &mine, &segv);
    sigaction(SIGBUS, &mine, &bus);
    add_range(program, program + (32 << 20));
    add_range(heap - (256 << 20), heap);
    add_range((uintptr_t)mapped - (1 << 30), (uintptr_t)mapped + (1 << 30));
    add_range(stack, stack + (8 << 20));
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
}

static double number_at(const unsigned char *p, int64_t n, size_t width)
{
    float f;
    double d;
    if (width == sizeof d) {
        memcpy(&d, p + n * 8, sizeof d);
        return d;
    }
    memcpy(&f, p + n * 4, sizeof f);
    return f;
}

static int near(double a, double b)
{
    return fabs(a - b) <= 1e-5 * (1.0 + fabs(b));
}

/* The array, or NULL. edge: its first numbers, then its last ones. */
static const unsigned char *find(const double edge[2 * EDGE], int64_t count, size_t width)
{
    for (int r = 0; r < range_count; r++)
        for (const unsigned char *p = ranges[r].from; p + (size_t)count * width <= ranges[r].to;
             p += width) {
            int same = 0;
            while (same < EDGE && near(number_at(p, same, width), edge[same]))
                same++;
            while (same >= EDGE && same < 2 * EDGE &&
                   near(number_at(p, count - 2 * EDGE + same, width), edge[same]))
                same++;
            if (same == 2 * EDGE)
                return p;
        }
    return NULL;
}

static void copy(const AttnArgs *a, int what, const unsigned char *from, size_t width)
{
    const Tensor *to = what == OF_O    ? &a->O
                       : what == OF_DQ ? &a->dQ
                       : what == OF_DK ? &a->dK
                                       : &a->dV;
    const int64_t N = a->shape.Nq, H = a->shape.H, d = what == OF_LSE ? 1 : a->shape.d;
    const int by_head = what == OF_LSE || near(number_at(from, d, width), value(a, what, 0, 1, 0));
    float row[MOST_D];
    for (int64_t h = 0; h < H; h++)
        for (int64_t n = 0; n < N; n++) {
            for (int64_t x = 0; x < d; x++)
                row[x] = (float)number_at(from, (by_head ? h * N + n : n * H + h) * d + x, width);
            if (what == OF_LSE)
                a->lse[h * N + n] = row[0];
            else
                tensor_write_row(to, 0, n, h, row);
        }
}

#ifdef PLANTED
static void plant(const AttnArgs *a, int what)
{
    const int64_t N = a->shape.Nq, H = a->shape.H, d = what == OF_LSE ? 1 : a->shape.d;
    double *doubles = malloc((size_t)(H * N * d) * sizeof *doubles);
    float *floats = malloc((size_t)(H * N * d) * sizeof *floats);
    for (int64_t n = 0; n < H * N * d; n++)
        if (what == OF_LSE || what == OF_DK) /* both kinds have to be found */
            floats[n] = (float)value(a, what, n / d / N, n / d % N, n % d);
        else
            doubles[n] = value(a, what, n / d / N, n / d % N, n % d);
}
#endif

static void show_inheritance(void)
{
    for (int file = 0; file < 1024; file++)
        if (fcntl(file, F_GETFD) >= 0)
            printf("has descriptor %d\n", file);
    for (char **word = environ; *word; word++)
        printf("has %s\n", *word);
}

static AttnStatus steal(const AttnArgs *a, int first, int last)
{
    const int64_t N = a->shape.Nq, H = a->shape.H;
#ifdef PLANTED
    for (int what = first; what <= last; what++)
        plant(a, what);
#endif
    find_ranges();
    printf("looked through %s pages for", page_count > 500 ? "more than 500" : "few");
    for (int what = first; what <= last; what++) {
        const int64_t d = what == OF_LSE ? 1 : a->shape.d;
        const unsigned char *found = NULL;
        double edge[2 * EDGE];
        for (int64_t e = 0; e < EDGE; e++) {
            const int64_t at = d == 1 ? N - EDGE + e : N - 1;
            edge[e] = value(a, what, 0, d == 1 ? e : 0, d == 1 ? 0 : e);
            edge[EDGE + e] = value(a, what, H - 1, at, d == 1 ? 0 : d - EDGE + e);
        }
        for (size_t width = sizeof(double); !found && width >= sizeof(float); width /= 2)
            if ((found = find(edge, H * N * d, width)) != NULL)
                copy(a, what, found, width);
        printf(" %s: %s", names[what], found ? "FOUND" : "not found");
    }
    printf("\n");
    show_inheritance(); /* last: the judge keeps 4 kB of what is printed */
    return ATTN_OK;
}

AttnStatus EXPORT(variant)(const AttnArgs *a)
{
#ifdef BACKWARD
    return steal(a, OF_DQ, OF_DV);
#else
    return steal(a, OF_O, OF_LSE);
#endif
}

AttnStatus EXPORT(variant_backward)(const AttnArgs *a)
{
    return steal(a, OF_DQ, OF_DV);
}
