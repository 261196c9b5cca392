/* SPDX-License-Identifier: MIT
 *
 * flush_mode.h: sets the mode in which this thread takes subnormal numbers for zero, as gcc's
 * crtfastmath.o does before main.
 *
 * Interface: set_flush_mode.
 */
#ifndef TESTS_FLUSH_MODE_H
#define TESTS_FLUSH_MODE_H

enum { FLUSH_NOTHING = 0, FLUSH_RESULTS = 1, FLUSH_OPERANDS = 2 };

/* 1, or 0 for a processor that is not known here. Arm has one bit for both. */
static inline int set_flush_mode(int mode)
{
#if defined(__x86_64__)
    const unsigned bits =
        (mode & FLUSH_RESULTS ? 0x8000u : 0) | (mode & FLUSH_OPERANDS ? 0x40u : 0);
    __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~0x8040u) | bits);
    return 1;
#elif defined(__aarch64__)
    unsigned long fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr = (fpcr & ~(1ul << 24)) | (mode ? 1ul << 24 : 0);
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
    return 1;
#else
    return mode == FLUSH_NOTHING;
#endif
}

#endif
