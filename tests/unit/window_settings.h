/* SPDX-License-Identifier: MIT
 *
 * window_settings.h: the settings of stage 05's offline module that its tests walk through, every
 * option alone and with others, one sequence and many.
 *
 * Interface: Setting, settings, SETTINGS.
 */
#ifndef WINDOW_SETTINGS_H
#define WINDOW_SETTINGS_H

#include <stdint.h>

#define MAX_SEQUENCES 14

typedef struct Setting {
    const char *name;
    int64_t H, Hkv, d;
    int causal;
    int64_t window;
    float scale, cap, temperature, low, high, dropout;
    int64_t group;
    int sequences;
    int64_t Nq[MAX_SEQUENCES], Nk[MAX_SEQUENCES];
} Setting;

/* clang-format off */
static const Setting settings[] = {
    {"plain", 1, 1, 3, 0, -1, 0, 0, 1, 0, 1, 0, 0, 1, {6}, {6}},
    {"causal", 2, 1, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 2, {5, 5}, {5, 5}},
    {"causal, more keys", 2, 2, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 1, {4}, {7}},
    {"causal, empty rows", 4, 2, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 1, {7}, {4}},
    {"window", 2, 1, 4, 0, 2, 0, 0, 1, 0, 1, 0, 0, 1, {8}, {8}},
    {"window 0", 2, 1, 4, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, {5}, {6}},
    {"causal window 1", 2, 1, 4, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, {9}, {7}},
    {"window larger than N", 2, 2, 4, 1, 1000000, 0, 0, 1, 0, 1, 0, 0, 1, {6}, {6}},
    {"scale, temperature", 1, 1, 5, 0, 3, 0.3f, 0, 2.5f, 0, 1, 0, 0, 1, {6}, {7}},
    {"cap wins", 2, 1, 4, 1, -1, 1.5f, 0.8f, 7, 0, 1, 0, 0, 1, {6}, {6}},
    {"clip", 2, 1, 4, 0, -1, 1, 0, 1, -0.1f, 1.2f, 0, 0, 1, {6}, {6}},
    {"clip below only, window", 2, 2, 4, 1, 3, 1, 0, 1, -0.2f, 1, 0, 0, 2, {7, 7}, {6, 6}},
    {"clip, cap, temperature", 4, 2, 4, 0, 2, 1, 2, 3, -0.05f, 1.6f, 0, 0, 1, {6}, {8}},
    {"dropout", 4, 2, 4, 0, -1, 0, 0, 1, 0, 1, 0.3f, 0, 2, {5, 5}, {6, 6}},
    {"dropout, causal window", 2, 1, 4, 1, 4, 0, 0, 1, 0, 1, 0.5f, 0, 1, {8}, {8}},
    {"norm", 2, 1, 6, 0, -1, 0, 0, 1, 0, 1, 0, 6, 1, {5}, {6}},
    {"norm in groups", 4, 2, 6, 1, 3, 1, 0, 1, 0, 1, 0, 2, 2, {6, 6}, {6, 6}},
    {"everything", 4, 2, 8, 1, 4, 1, 3, 2, -0.04f, 1.3f, 0.25f, 4, 1, {7}, {9}},
    {"sequences", 2, 1, 4, 1, -1, 0, 0, 1, 0, 1, 0, 0, 4, {4, 1, 0, 5}, {4, 3, 2, 2}},
    {"sequences, no keys", 2, 2, 3, 0, 2, 0, 0, 1, 0, 1, 0, 0, 3, {3, 2, 4}, {3, 0, 6}},
    {"sequences, everything", 4, 2, 4, 1, 3, 1, 0, 2, -0.1f, 1.1f, 0.2f, 2, 3,
     {5, 3, 4}, {5, 6, 0}},
    {"many sequences", 2, 1, 3, 1, -1, 0, 0, 1, 0, 1, 0, 0, 14,
     {2, 3, 2, 2, 3, 1, 2, 3, 2, 2, 0, 3, 2, 2}, {2, 3, 3, 2, 2, 2, 2, 3, 0, 2, 2, 3, 2, 3}},
    {"many sequences, clip, dropout", 2, 1, 3, 1, 2, 0, 0, 1, -0.1f, 1.2f, 0.2f, 0, 14,
     {2, 3, 2, 2, 3, 1, 2, 3, 2, 2, 0, 3, 2, 2}, {2, 3, 3, 2, 2, 2, 2, 3, 0, 2, 2, 3, 2, 3}},
};
/* clang-format on */

#define SETTINGS ((int)(sizeof settings / sizeof *settings))

#endif
