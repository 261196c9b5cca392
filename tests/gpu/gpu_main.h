/* SPDX-License-Identifier: MIT
 *
 * gpu_main.h: the main of a program whose tests (unit.h) need a GPU; with GPU_ARCH in front of it
 * one of this architecture alone, and without code for one the program has no tests.
 *
 *     PROGRAM [small [TEST]]
 *
 * Exit status: 0 right, 77 no device, else wrong; so is a TEST that is not there.
 *
 * Interface: small: 1 when few of the cases are wanted, for compute-sanitizer; else all run.
 */
#ifndef GPU_MAIN_H
#define GPU_MAIN_H

#include "../unit/unit.h"

#include "harness/device/device.h"

#ifndef GPU_ARCH
#define GPU_ARCH 0
#endif

static int small;

/* Of all tests only this one. cmocka's filter would call it right that no test has the name. */
static void keep_test(const char *name)
{
    size_t kept = 0;
    for (size_t t = 0; t < unit_count; t++)
        if (strcmp(unit_list[t].name, name) == 0)
            unit_list[kept++] = unit_list[t];
    unit_count = kept;
}

int main(int argc, char **argv)
{
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    if (GPU_ARCH && (device_arch() != GPU_ARCH || unit_count == 0)) {
        printf("no GPU with sm_%d, or no code for one\n", GPU_ARCH);
        return 77;
    }
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (argc > 2)
        keep_test(argv[2]);
    return unit_tests() ? 1 : 0;
}

#endif
