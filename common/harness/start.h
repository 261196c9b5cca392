/* SPDX-License-Identifier: MIT
 *
 * start.h: what OpenBLAS and OpenMP need of the machine, before they wait for it for ever.
 *
 * Interface:
 * - start_threads: before the first product or parallel region of a program.
 * - start_ended: the program's own exit status follows.
 */
#ifndef ATTN_START_H
#define ATTN_START_H

/* Ends the program with status 3 and a sentence if there is no room for the buffers of so many
 * threads. From here on a library that ends the program does so with status 3 too. */
void start_threads(int threads);
void start_ended(void);

#endif
