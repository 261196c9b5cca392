/* SPDX-License-Identifier: MIT
 *
 * fail_alloc.c: memory that runs short, for test_memory.py. Preloaded, it lets the allocation
 * number FAIL_AT of the program's own code fail (malloc, calloc, realloc, posix_memalign, mmap):
 * alone, or with FAIL_ON=1 that one and all later ones. Allocations of libraries go through: what
 * they do without memory is not ours. FAIL_END is where a library begins that is linked into the
 * program, behind its own code. When an allocation has failed, file descriptor FAIL_FD says so.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static long fail_at = -1, count;
static int fail_on, fail_fd;
static uintptr_t program_at, code_first, code_end;

static int find_program(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size, (void)unused;
    for (int n = 0; n < info->dlpi_phnum; n++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[n];
        if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) {
            program_at = info->dlpi_addr;
            code_first = program_at + p->p_vaddr;
            code_end = code_first + p->p_memsz;
        }
    }
    return 1; /* the first object is the program */
}

__attribute__((constructor)) static void start(void)
{
    const char *at = getenv("FAIL_AT"), *on = getenv("FAIL_ON"), *fd = getenv("FAIL_FD");
    const char *end = getenv("FAIL_END");
    dl_iterate_phdr(find_program, NULL);
    if (end)
        code_end = program_at + strtoull(end, NULL, 16);
    fail_on = on && *on == '1';
    fail_fd = fd ? atoi(fd) : -1;
    fail_at = at ? atol(at) : -1;
}

static int fails(const void *caller)
{
    const uintptr_t from = (uintptr_t)caller;
    if (fail_at < 0 || from < code_first || from >= code_end)
        return 0;
    const long number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    if (number != fail_at && !(fail_on && number > fail_at))
        return 0;
    if (number == fail_at && write(fail_fd, "f", 1) != 1)
        _exit(99);
    errno = ENOMEM;
    return 1;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, bytes);
}

int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    if (fails(__builtin_return_address(0)))
        return ENOMEM;
    *p = __libc_memalign(alignment, bytes);
    return *p ? 0 : ENOMEM;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    static void *(*real)(void *, size_t, int, int, int, off_t);
    if (fails(__builtin_return_address(0)))
        return MAP_FAILED;
    if (!real)
        real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    return real(at, bytes, protection, flags, fd, offset);
}
