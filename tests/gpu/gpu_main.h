/* SPDX-License-Identifier: MIT
 *
 * gpu_main.h: the main of a program whose tests (unit.h) need a GPU.
 *
 *     PROGRAM [small [TEST]]
 *
 * Exit status: 0 right, 77 no device, else wrong.
 *
 * Interface: small: 1 when few of the cases are wanted, for compute-sanitizer; else all run.
 */
#ifndef GPU_MAIN_H
#define GPU_MAIN_H

#include "../unit/unit.h"

#include "cuda/device.h"

static int small;

int main(int argc, char **argv)
{
    if (device_count() == 0) {
        printf("no CUDA device\n");
        return 77;
    }
    small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return unit_tests() ? 1 : 0;
}

#endif
