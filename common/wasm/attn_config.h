/* SPDX-License-Identifier: MIT
 *
 * attn_config.h: what Meson writes for a processor; in a browser there is one path and one thread.
 *
 * Interface: none of its names is defined.
 */
