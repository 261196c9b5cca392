/* SPDX-License-Identifier: MIT
 *
 * offline_internal.h: between the two files of the offline module.
 *
 * Interface:
 * - window_check_offline: everything that a call is refused for.
 */
#ifndef SLIDING_WINDOW_OFFLINE_INTERNAL_H
#define SLIDING_WINDOW_OFFLINE_INTERNAL_H

#include "attention/window/sliding_window_module.h"

/* WINDOW_OK, or why the call cannot be computed, with one sentence in error (NULL is allowed). */
WindowStatus window_check_offline(const WindowConfig *config, const WindowCall *call, int backward,
                                  char error[WINDOW_ERROR]);

#endif
