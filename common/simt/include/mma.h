/* SPDX-License-Identifier: MIT
 *
 * Interface: none. */
#error "simt has no nvcuda::wmma: write mma.sync as in common/units/mma.cuh"
