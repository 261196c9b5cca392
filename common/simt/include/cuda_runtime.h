/* SPDX-License-Identifier: MIT
 *
 * Interface: none. */
#pragma once
#include "simt.h"
