/* SPDX-License-Identifier: MIT
 *
 * flush.c: a library for LD_PRELOAD that sets the mode MODE (flush_mode.h) before main.
 *
 * Interface: none.
 */
#include "../../unit/flush_mode.h"

static void __attribute__((constructor)) set_mode(void)
{
    set_flush_mode(MODE);
}
