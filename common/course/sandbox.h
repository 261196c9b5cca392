/* SPDX-License-Identifier: MIT
 *
 * sandbox.h: what a process gives up before it runs code that nobody trusts. Nothing of it can be
 * taken back, and threads that it starts inherit all of it.
 *
 *     no_new_privs, no capabilities     root is a user like others, and no file makes it more
 *     Landlock                          it opens the files of the C library's folders, no others;
 *                                       root on a kernel without it: chroot to an empty place
 *     seccomp                           it has threads, memory of its own, time and reading; no
 *                                       processes, no signals to others, no sockets, no ptrace, no
 *                                       exec
 *     resource limits                   address space, processor time, files of size 0
 *
 * A system call that an honest program makes in passing is answered with an error. Any other that
 * is not allowed is a SIGSYS, of which the runner tells the name.
 *
 * Interface:
 * - sandbox_here: can this machine and this build do it?
 * - sandbox_limits: resource limits; right without a sandbox, too.
 * - sandbox_die_first: where memory is short this process is killed, and not its judge.
 * - sandbox_enter: all the rest.
 * - sandbox_enter_compiler: for a compiler, which starts processes and writes files, but only reads
 *   what a submission may include.
 * - sandbox_call_name: the name of a system call.
 */
#ifndef ATTN_SANDBOX_H
#define ATTN_SANDBOX_H

#include <stddef.h>
#include <stdint.h>

/* Both: 1, or 0 with the reason in `why`. no_blas: 1, it opens the C library's own files and those
 * of the compiler, and no other library. */
int sandbox_here(char *why, size_t size);
int sandbox_enter(int no_blas, char *why, size_t size);

/* It reads /usr and the C library's folders, and has `folder` for itself. As sandbox_enter. */
int sandbox_enter_compiler(const char *folder, char *why, size_t size);

/* mebibytes: beside the address space that is in use now. strict: it has no files to write to. */
void sandbox_limits(double seconds, int threads, int64_t mebibytes, int strict);

void sandbox_die_first(void);

void sandbox_call_name(int number, char *name, size_t size);

#endif
