/* SPDX-License-Identifier: MIT
 *
 * abi.h: the number that a shared object of a stage exports, ABI_OF(STAGE). The program that loads
 * it compares.
 */
#ifndef SO_ABI_H
#define SO_ABI_H

enum {
    ABI_naive = 2,
    ABI_tiled_softmax = 2,
    ABI_flash_forward = 2,
    ABI_flash_backward = 2,
    ABI_sliding_window = 2,
    ABI_ring_burst = 3
};

#define ABI_OF2(stage) ABI_##stage
#define ABI_OF(stage)  ABI_OF2(stage)

#endif
