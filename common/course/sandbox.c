/* SPDX-License-Identifier: MIT
 *
 * sandbox.c: see sandbox.h.
 *
 * Each part stops what the others do not. seccomp sees the numbers of a system call and no paths:
 * without Landlock a submission reads the key that draws the hidden cases, and loads a library with
 * the solution. Landlock sees paths only: without seccomp it signals and traces. Capabilities are
 * root's way around both.
 *
 * Interface: sandbox.h.
 */
#define _GNU_SOURCE /* dl_iterate_phdr, O_PATH */
#include "course/sandbox.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attn_config.h"
#ifdef HAVE_SECCOMP
#include <seccomp.h>
#endif

/* --- resource limits ---------------------------------------------------------------------------*/

static void limit(int what, rlim_t value)
{
    struct rlimit both = {value, value};
    setrlimit(what, &both);
}

static rlim_t address_space_now(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%lu", &pages) != 1)
            pages = 0;
        fclose(f);
    }
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

void sandbox_limits(double seconds, int threads, int64_t mebibytes, int strict)
{
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, strict ? 0 : (rlim_t)64 << 20);
    if (strict)
        limit(RLIMIT_NOFILE, 64);
    limit(RLIMIT_CPU, (rlim_t)(seconds * threads) + 2);
    limit(RLIMIT_AS, address_space_now() + ((rlim_t)mebibytes << 20));
}

void sandbox_die_first(void)
{
    const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return;
    if (write(file, "1000", 4) != 4)
        errno = 0; /* a machine that has none kills whom it likes */
    close(file);
}

/* --- Landlock: which files ---------------------------------------------------------------------*/

/* From the kernel's interface; <linux/landlock.h> is not everywhere where the kernel has it. */
enum { LANDLOCK_CREATE = 444, LANDLOCK_ADD, LANDLOCK_RESTRICT };
enum { LANDLOCK_EXECUTE = 1, LANDLOCK_WRITE_FILE, LANDLOCK_READ_FILE = 4, LANDLOCK_READ_DIR = 8 };
typedef struct LandlockRuleset {
    uint64_t files;
} LandlockRuleset;
typedef struct __attribute__((packed)) LandlockPath {
    uint64_t allowed;
    int32_t parent;
} LandlockPath;

static long landlock_version(void)
{
    return syscall(LANDLOCK_CREATE, NULL, (size_t)0, 1u);
}

static void landlock_allow(int rules, const char *path, uint64_t allowed)
{
    LandlockPath rule = {allowed, open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent < 0)
        return;
    syscall(LANDLOCK_ADD, rules, 1, &rule, 0u);
    close(rule.parent);
}

/* A set of rules that allows nothing, or -1. */
static int landlock_begin(uint64_t *all, char *why, size_t size)
{
    /* rights of versions 1, 2 (one more), 3 (one more), 5 (one more) */
    const long version = landlock_version();
    const int bits = version >= 5 ? 16 : version >= 3 ? 15 : version == 2 ? 14 : 13;
    const LandlockRuleset set = { *all = (UINT64_C(1) << bits) - 1};
    const int rules = version < 1 ? -1 : (int)syscall(LANDLOCK_CREATE, &set, sizeof set, 0u);
    if (rules < 0)
        snprintf(why, size, "this kernel has no Landlock (%s)", strerror(errno));
    return rules;
}

/* From here on. 1, or 0 with the reason. */
static int landlock_end(int rules, char *why, size_t size)
{
    const int entered = syscall(LANDLOCK_RESTRICT, rules, 0u) == 0;
    if (!entered)
        snprintf(why, size, "Landlock refuses (%s)", strerror(errno));
    close(rules);
    return entered;
}

/* What C code may need beside a BLAS: mathematics, OpenMP, what compiler and threads use. */
static const char *const plain_libraries[] = {
    "libc.so.6",        "libm.so.6",      "libmvec.so.1", "libgomp.so.1",    "libgcc_s.so.1",
    "libquadmath.so.0", "libatomic.so.1", "libdl.so.2",   "libpthread.so.0", "librt.so.1"};

typedef struct LandlockLibraries {
    int rules, no_blas;
} LandlockLibraries;

/* The folder of each library that this process has: the C library's, the mathematical one's,
 * OpenMP's. What a submission is linked with lies there or below. no_blas: of each folder the plain
 * libraries alone. */
static int allow_folder_of(struct dl_phdr_info *info, size_t size, void *argument)
{
    const LandlockLibraries *allow = argument;
    char path[PATH_MAX], *slash;
    (void)size;
    if (info->dlpi_name[0] != '/' || !realpath(info->dlpi_name, path) ||
        (slash = strrchr(path, '/')) == NULL || slash == path)
        return 0;
    *slash = 0;
    if (!allow->no_blas)
        landlock_allow(allow->rules, path,
                       LANDLOCK_EXECUTE | LANDLOCK_READ_FILE | LANDLOCK_READ_DIR);
    for (size_t i = 0; allow->no_blas && i < sizeof plain_libraries / sizeof *plain_libraries;
         i++) {
        snprintf(slash, sizeof path - (size_t)(slash - path), "/%s", plain_libraries[i]);
        landlock_allow(allow->rules, path, LANDLOCK_EXECUTE | LANDLOCK_READ_FILE);
    }
    return 0;
}

static int landlock_enter(int no_blas, char *why, size_t size)
{
    uint64_t all;
    const int rules = landlock_begin(&all, why, size);
    LandlockLibraries allow = {rules, no_blas};
    if (rules < 0)
        return 0;
    dl_iterate_phdr(allow_folder_of, &allow);
    landlock_allow(rules, "/etc/ld.so.cache", LANDLOCK_READ_FILE);
    return landlock_end(rules, why, size);
}

/* A kernel without Landlock: the root folder becomes the list of this process's own descriptors.
 * There is no other file, and no way out without an open folder. The libraries that submissions are
 * linked with are loaded before. OpenBLAS is not among them: it may start threads when it is
 * loaded, and those would stay outside of the sandbox. */
static int chroot_enter(char *why, size_t size)
{
    if (!dlopen("libm.so.6", RTLD_NOW))
        dlerror(); /* a C library that has it inside */
    if (!dlopen("libgomp.so.1", RTLD_NOW))
        dlerror(); /* not there: no submission uses it */
    if (chroot("/proc/self/fd") != 0 || chdir("/") != 0) {
        snprintf(why, size, "chroot is refused (%s)", strerror(errno));
        return 0;
    }
    return 1;
}

/* --- capabilities ------------------------------------------------------------------------------*/

enum { CAPABILITY_CHROOT = 18 };
typedef struct CapabilityHead {
    uint32_t version;
    int pid;
} CapabilityHead;

static int can_chroot(void)
{
    CapabilityHead head = {0x20080522, 0};
    uint32_t has[6]; /* effective, permitted, inheritable; twice */
    return syscall(SYS_capget, &head, has) == 0 && (has[0] >> CAPABILITY_CHROOT & 1);
}

static int drop_capabilities(char *why, size_t size)
{
    CapabilityHead head = {0x20080522, 0};
    const uint32_t none[6] = {0};
    int c;
    for (c = 0; c < 64; c++) /* an error: not one of this kernel's, or not root's to drop */
        prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
    if (syscall(SYS_capset, &head, none) != 0) {
        snprintf(why, size, "its capabilities cannot be dropped (%s)", strerror(errno));
        return 0;
    }
    return 1;
}

/* --- seccomp: which system calls ---------------------------------------------------------------*/

#ifdef HAVE_SECCOMP
static const char *const allowed_calls[] = {
    /* memory */
    "munmap", "mremap", "mprotect", "brk", "mincore",
    /* threads */
    "futex", "futex_waitv", "set_robust_list", "get_robust_list", "set_tid_address", "rseq",
    "sched_yield", "sched_getaffinity", "gettid", "exit", "exit_group", "restart_syscall",
    /* its own signals */
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigsuspend",
    "rt_sigtimedwait", "sigaltstack", "pause", "alarm", "setitimer", "getitimer",
    /* files that are open, and what is known of others */
    "read", "readv", "pread64", "preadv", "write", "writev", "pwrite64", "close", "close_range",
    "fstat", "newfstatat", "fstatat64", "stat", "lstat", "lseek", "_llseek", "getdents64", "access",
    "faccessat", "faccessat2", "readlink", "readlinkat", "getcwd", "dup", "dup2", "dup3", "poll",
    "ppoll", "select", "pselect6",
    /* time */
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    "times", "getrusage", "getcpu",
    /* who and where it is */
    "getpid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getpgrp", "getpgid", "getsid",
    "uname", "sysinfo", "getrandom", "getrlimit", "sched_getscheduler", "sched_getparam",
    "sched_get_priority_max", "sched_get_priority_min"};

enum { MADVISE_COLD = 20 }; /* from here on: swap, and what nobody needs */

/* What a C library, OpenMP or BLAS tries and can do without. */
static const struct {
    const char *name;
    int error;
} answered_calls[] = {{"openat2", ENOSYS},
                      {"clone3", ENOSYS},
                      {"statx", ENOSYS},
                      {"membarrier", ENOSYS},
                      {"mbind", EPERM},
                      {"set_mempolicy", EPERM},
                      {"get_mempolicy", EPERM},
                      {"sched_setaffinity", EPERM},
                      {"sched_setscheduler", EPERM},
                      {"setpriority", EPERM},
                      {"mlock", EPERM},
                      {"mlock2", EPERM},
                      {"memfd_create", EPERM},
                      {"pipe", EMFILE},
                      {"pipe2", EMFILE},
                      {"setrlimit", EPERM},
                      {"personality", EPERM},
                      {"arch_prctl", EINVAL},
                      {"ioctl", ENOTTY},
                      {"mkdir", EACCES},
                      {"mkdirat", EACCES},
                      {"unlink", EACCES},
                      {"unlinkat", EACCES},
                      {"creat", EACCES}};

/* A file is opened for reading or not at all. */
static int allow_reading(scmp_filter_ctx f, const char *name, unsigned flags)
{
    const int call = seccomp_syscall_resolve_name(name);
    const uint64_t parts[][2] = {{O_CREAT, O_CREAT},
                                 {O_TRUNC, O_TRUNC},
                                 {O_ACCMODE, O_WRONLY},
                                 {O_ACCMODE, O_RDWR},
                                 {O_ACCMODE, O_ACCMODE}};
    int failed = 0;
    if (call == __NR_SCMP_ERROR)
        return 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        failed |= seccomp_rule_add(f, SCMP_ACT_ERRNO(EACCES), call, 1,
                                   SCMP_CMP64(flags, SCMP_CMP_MASKED_EQ, parts[i][0], parts[i][1]));
    return failed | seccomp_rule_add(f, SCMP_ACT_ALLOW, call, 1,
                                     SCMP_CMP64(flags, SCMP_CMP_MASKED_EQ,
                                                O_CREAT | O_TRUNC | O_ACCMODE, O_RDONLY));
}

/* Pages of a shared mapping, huge ones that the machine keeps ready, and those that were sent to
 * swap hold data and are not among those that are counted (--require memory=N). Nor is what stands
 * in a pipe. */
static int allow_counted_memory(scmp_filter_ctx f)
{
    int failed = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1,
                                  SCMP_A3_64(SCMP_CMP_MASKED_EQ, MAP_SHARED | MAP_HUGETLB, 0));
    failed |= seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mmap), 1,
                               SCMP_A3_64(SCMP_CMP_MASKED_EQ, MAP_SHARED, MAP_SHARED));
    failed |= seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mmap), 1,
                               SCMP_A3_64(SCMP_CMP_MASKED_EQ, MAP_HUGETLB, MAP_HUGETLB));
    failed |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(madvise), 1,
                               SCMP_A2_64(SCMP_CMP_LT, MADVISE_COLD, 0));
    return failed | seccomp_rule_add(f, SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(madvise), 1,
                                     SCMP_A2_64(SCMP_CMP_GE, MADVISE_COLD, 0));
}

static int add_rules(scmp_filter_ctx f)
{
    const uint64_t self = (uint64_t)getpid();
    int call, failed = allow_counted_memory(f);
    for (size_t i = 0; i < sizeof allowed_calls / sizeof *allowed_calls; i++)
        if ((call = seccomp_syscall_resolve_name(allowed_calls[i])) != __NR_SCMP_ERROR)
            failed |= seccomp_rule_add(f, SCMP_ACT_ALLOW, call, 0);
    for (size_t i = 0; i < sizeof answered_calls / sizeof *answered_calls; i++)
        if ((call = seccomp_syscall_resolve_name(answered_calls[i].name)) != __NR_SCMP_ERROR)
            failed |=
                seccomp_rule_add(f, SCMP_ACT_ERRNO((uint32_t)answered_calls[i].error), call, 0);
    failed |= allow_reading(f, "open", 1) | allow_reading(f, "openat", 2);
    failed |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                               SCMP_A0_64(SCMP_CMP_MASKED_EQ, 0x10000, 0x10000)); /* a thread */
    failed |=
        seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0_64(SCMP_CMP_EQ, self, 0));
    failed |=
        seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(kill), 1, SCMP_A0_64(SCMP_CMP_EQ, self, 0));
    failed |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1,
                               SCMP_A2_64(SCMP_CMP_EQ, 0, 0)); /* to look, not to set */
    failed |= seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), 1,
                               SCMP_A2_64(SCMP_CMP_NE, 0, 0));
    failed |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1,
                               SCMP_A0_64(SCMP_CMP_EQ, PR_SET_NAME, 0));
    failed |= seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prctl), 1,
                               SCMP_A0_64(SCMP_CMP_NE, PR_SET_NAME, 0));
    for (int c = F_DUPFD; c <= F_SETFL; c++) /* F_GETFD, F_SETFD, F_GETFL */
        failed |= seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                                   SCMP_A1_64(SCMP_CMP_EQ, (uint64_t)c, 0));
    return failed | seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                                     SCMP_A1_64(SCMP_CMP_EQ, F_DUPFD_CLOEXEC, 0));
}

static int seccomp_enter(char *why, size_t size)
{
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_TRAP);
    /* a call by the numbers of another processor (int 0x80) ends the process, not a thread of it */
    int failed = !f ? -ENOMEM : seccomp_attr_set(f, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!failed)
        failed = add_rules(f);
    if (!failed)
        failed = seccomp_load(f);
    if (f)
        seccomp_release(f);
    if (failed)
        snprintf(why, size, "seccomp refuses the filter (%s)",
                 failed < 0 ? strerror(-failed) : "a rule");
    return !failed;
}

void sandbox_call_name(int number, char *name, size_t size)
{
    char *found = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number);
    if (found)
        snprintf(name, size, "%s", found);
    else
        snprintf(name, size, "number %d", number);
    free(found);
}
#else
static int seccomp_enter(char *why, size_t size)
{
    return sandbox_here(why, size);
}

void sandbox_call_name(int number, char *name, size_t size)
{
    snprintf(name, size, "number %d", number);
}
#endif

/* --- all of it ---------------------------------------------------------------------------------*/

int sandbox_here(char *why, size_t size)
{
    const char *missing = NULL;
#ifndef HAVE_SECCOMP
    missing = "this build has no libseccomp (Debian: libseccomp-dev)";
#endif
    if (!missing && prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
        missing = "this kernel has no seccomp";
    if (!missing && landlock_version() < 1 && !can_chroot())
        missing = "this kernel has no Landlock, and chroot needs root";
    if (missing)
        snprintf(why, size, "%s", missing);
    return missing == NULL;
}

/* The parts below are a thread's own: who has others already would keep them outside. */
static int has_one_thread(char *why, size_t size)
{
    struct stat tasks;
    if (stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink <= 3)
        return 1;
    snprintf(why, size, "it has threads before the sandbox is there");
    return 0;
}

static int no_new_privileges(char *why, size_t size)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        return 1;
    snprintf(why, size, "no_new_privs is refused (%s)", strerror(errno));
    return 0;
}

int sandbox_enter_compiler(const char *folder, char *why, size_t size)
{
    static const char *const seen[] = {"/usr", "/lib", "/lib64", "/bin"};
    uint64_t all;
    const int rules = no_new_privileges(why, size) ? landlock_begin(&all, why, size) : -1;
    if (rules < 0)
        return 0;
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        landlock_allow(rules, seen[i], LANDLOCK_EXECUTE | LANDLOCK_READ_FILE | LANDLOCK_READ_DIR);
    landlock_allow(rules, "/etc/ld.so.cache", LANDLOCK_READ_FILE);
    landlock_allow(rules, "/dev/null", LANDLOCK_READ_FILE | LANDLOCK_WRITE_FILE);
    landlock_allow(rules, folder, all);
    return landlock_end(rules, why, size) && drop_capabilities(why, size);
}

int sandbox_enter(int no_blas, char *why, size_t size)
{
    if (!sandbox_here(why, size))
        return 0;
    if (!has_one_thread(why, size) || !no_new_privileges(why, size) ||
        !(landlock_version() < 1 ? chroot_enter(why, size) : landlock_enter(no_blas, why, size)) ||
        !drop_capabilities(why, size))
        return 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* after the change of rights, which may clear it */
    return seccomp_enter(why, size);
}
