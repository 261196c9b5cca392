/* SPDX-License-Identifier: MIT
 *
 * report.cpp: findings as text. One finding is what was seen at a pair of lines, however often; it
 * names the rule that it breaks. A line is where the kernel's file stands, and behind '>' the line
 * of the unit that it calls. llvm-symbolizer makes lines of addresses, all of them in one call.
 *
 * A crash of the program (an address that is none, a division by zero) is a finding as well.
 */
#include "include/simt_report.h"
#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

namespace simt
{
uintptr_t program_lo, program_hi;

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

static std::string word(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

const Flags flags = {number("SIMT_CHECK", 0) != 0,
                     number("SIMT_COUNT", 0) || number("SIMT_TRACE", 0),
                     number("SIMT_EARLY", 0),
                     number("SIMT_SEED", 0),
                     number("SIMT_BLOCKS", 0),
                     number("SIMT_SECONDS", 10),
                     word("SIMT_LINES"),
                     word("SIMT_SHOW"),
                     number("SIMT_TRACE", 0) != 0,
                     number("SIMT_BLOCK", 0),
                     word("SIMT_JSON"),
                     number("SIMT_STAGES", 0) != 0};

/* --- the rules ---------------------------------------------------------------------------------*/

static const struct {
    const char *title, *rule;
} rules[RULES] = {
    {"race: written, then read, and nothing orders the two",
     "PTX ISA, Memory Consistency Model, Causality Order: a barrier, or a fence and a flag, must "
     "stand between"},
    {"race: read, then written, and nothing orders the two",
     "PTX ISA, Memory Consistency Model, Causality Order: who overwrites must wait for who reads"},
    {"race: written twice, and nothing orders the two",
     "PTX ISA, Memory Consistency Model, Data-races: which value stays is undefined"},
    {"warning: the same value written twice, and nothing orders the two",
     "PTX ISA, Memory Consistency Model, Data-races: harmless as long as the values are equal"},
    {"read of memory that nobody wrote",
     "CUDA C++ Programming Guide, Memory: shared and device memory begin undefined"},
    {"out of bounds of shared memory",
     "PTX ISA, State Spaces, Shared: a block has what its launch asked for"},
    {"out of bounds of global memory",
     "PTX ISA, State Spaces, Global: an address must lie in what was allocated"},
    {"out of bounds of an array", "C++, expr.add: an index must lie in the array"},
    {"a tile that its tensor map does not have",
     "PTX ISA, Tensors: the coordinates of a copy have the rank of its map"},
    {"a kernel reads or writes memory of the host, or the host that of the device",
     "CUDA C++ Programming Guide, Device Memory: each sees its own; cudaMemcpy lies between"},
    {"use of bytes of a copy that is still on its way",
     "PTX ISA, Asynchronous operations: only a wait makes what was copied visible"},
    {"a thread ends before its asynchronous work",
     "PTX ISA, Asynchronous operations: a block's memory must live until all has arrived"},
    {"no fence.proxy.async between a thread's write and the async proxy",
     "PTX ISA, Memory Consistency Model, Proxies: the copy engine and wgmma see generic writes "
     "only after fence.proxy.async"},
    {"wgmma without wgmma.fence",
     "PTX ISA, wgmma.fence: before the first wgmma, and whenever registers of A or C have changed"},
    {"use of an accumulator before wgmma.wait_group",
     "PTX ISA, wgmma.mma_async: its registers must not be used before the wait"},
    {"misaligned access", "PTX ISA, Addresses as Operands: an address is a multiple of its size"},
    {"a barrier in a branch: threads of a block wait at two lines",
     "CUDA C++ Programming Guide, Synchronization Functions: all threads must come to the same "
     "__syncthreads"},
    {"a barrier that some threads never come to",
     "CUDA C++ Programming Guide, Synchronization Functions: all threads of the block must come"},
    {"wrong count of a named barrier",
     "PTX ISA, bar: the count is a multiple of 32, and the same for all who come"},
    {"wrong use of an mbarrier",
     "PTX ISA, mbarrier: it is initialised once, and as often arrived at as it counts"},
    {"wrong phase of an mbarrier", "PTX ISA, mbarrier: parity names the phase that is waited for"},
    {"a lane is missing in a shuffle or vote",
     "PTX ISA, shfl.sync: every lane of the mask must come, and only those may be read"},
    {"deadlock", "all threads wait, and no one is left who could end that"},
    {"no progress", "nothing but a loop ran; a value that it waits for never came"},
    {"more than the machine has",
     "CUDA C++ Programming Guide, Compute Capabilities: threads and shared memory a block"},
    {"crash", "the program cannot go on behind this line"},
    {"assertion failed", "assert in a kernel"},
};

/* --- lines -------------------------------------------------------------------------------------*/

struct Frame {
    std::string file; /* without its folder */
    std::string path;
    int line;
};
static std::map<u32, std::vector<Frame>> frames;

static bool is_own(const std::string &path)
{
    return path.find("/common/simt/") != std::string::npos || path.find("/usr/") == 0 ||
           path.find("/include/c++/") != std::string::npos;
}

/* file:line:column, of one frame, as llvm-symbolizer prints it */
static Frame parse_frame(const std::string &text)
{
    const size_t column = text.rfind(':'), line = text.rfind(':', column - 1);
    Frame f;
    f.path = text.substr(0, line);
    f.file = f.path.substr(f.path.rfind('/') + 1);
    f.line = atoi(text.c_str() + line + 1);
    return f;
}

/* SIMT_SYMBOLIZER=none: in a sandbox no process can be started, and somebody else makes lines of
 * the addresses. */
static bool has_symbolizer(void)
{
    static const bool has = word("SIMT_SYMBOLIZER") != "none";
    return has;
}

void symbolize(const std::vector<u32> &pcs)
{
    if (!has_symbolizer())
        return;
    char asked[] = "/tmp/simt-XXXXXX";
    const int fd = mkstemp(asked);
    FILE *list = fd >= 0 ? fdopen(fd, "w") : nullptr;
    std::vector<u32> open;
    for (u32 pc : pcs)
        if (pc && !frames.count(pc)) {
            open.push_back(pc);
            frames[pc];
            if (list)
                fprintf(list, "0x%x\n", pc);
        }
    if (!list)
        return;
    fclose(list);
    if (!open.empty()) {
        char command[300];
        const char *tool = getenv("SIMT_SYMBOLIZER");
        snprintf(command, sizeof command,
                 "%s --obj=/proc/%d/exe --functions=none --inlines <%s 2>/dev/null",
                 tool ? tool : "llvm-symbolizer", (int)getpid(), asked);
        FILE *answers = popen(command, "r");
        char text[2048];
        size_t at = 0;
        while (answers && at < open.size() && fgets(text, sizeof text, answers)) {
            text[strcspn(text, "\n")] = 0;
            if (!text[0])
                at++;
            else
                frames[open[at]].push_back(parse_frame(text));
        }
        if (answers)
            pclose(answers);
    }
    unlink(asked);
}

std::string place(u32 pc)
{
    char address[16];
    snprintf(address, sizeof address, "0x%x", pc);
    if (!pc || !has_symbolizer())
        return pc ? address : "";
    symbolize({pc});
    std::string inner, rung;
    for (const Frame &f : frames[pc]) {
        if (is_own(f.path) || f.line == 0)
            continue;
        const std::string text = f.file + ":" + std::to_string(f.line);
        const bool is_kernel = f.file.size() > 3 && f.file.substr(f.file.size() - 3) == ".cu";
        if (inner.empty())
            inner = text;
        else if (is_kernel && rung.empty() && inner.find(".cu:") == std::string::npos)
            rung = text;
    }
    if (inner.empty())
        return "(a place without a line)";
    return rung.empty() ? inner : rung + " > " + inner;
}

/* Outwards from where a signal came to the first frame that is not the runtime's own. */
u32 kernel_line(const Fiber *f, void *where)
{
    const ucontext_t *c = (const ucontext_t *)where;
#if defined __x86_64__
    uintptr_t pc = (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
    uintptr_t *frame = (uintptr_t *)c->uc_mcontext.gregs[REG_RBP];
#else
    uintptr_t pc = (uintptr_t)c->uc_mcontext.pc;
    uintptr_t *frame = (uintptr_t *)c->uc_mcontext.regs[29];
#endif
    std::vector<u32> all;
    void *host[24];
    const int calls = f ? 0 : backtrace(host, 24);
    for (int i = 0; i < calls; i++)
        if ((uintptr_t)host[i] >= program_lo && (uintptr_t)host[i] < program_hi)
            all.push_back((u32)((uintptr_t)host[i] - program_lo) - 1);
    for (int depth = 0; f && depth < 24; depth++) {
        if (pc >= program_lo && pc < program_hi)
            all.push_back((u32)(pc - program_lo) - (depth > 0));
        if ((uintptr_t)frame - (uintptr_t)f->stack >= STACK - 16)
            break;
        pc = frame[1];
        frame = (uintptr_t *)frame[0];
    }
    symbolize(all);
    for (u32 p : all)
        if (place(p)[0] != '(')
            return p;
    return f ? f->last_pc : 0;
}

/* --- findings ----------------------------------------------------------------------------------*/

struct Finding {
    Rule rule;
    Site first, second;
    std::vector<Site> more;
    std::string kernel;
    long count;
};
static std::vector<Finding> findings;
static std::map<std::pair<int, u64>, size_t> finding_at;

void report_finding(Rule rule, const Site &first, const Site &second, const std::vector<Site> &more)
{
    const std::pair<int, u64> key = {rule, (u64)first.pc << 32 | second.pc};
    const auto at = finding_at.find(key);
    if (at != finding_at.end()) {
        findings[at->second].count++;
        return;
    }
    finding_at[key] = findings.size();
    findings.push_back({rule, first, second, more, launch_now.body ? launch_now.name : "", 1});
}

static bool is_warning(const Finding &f)
{
    return f.rule == R_SAME_VALUE;
}

bool has_findings(void)
{
    return std::any_of(findings.begin(), findings.end(),
                       [](const Finding &f) { return !is_warning(f); });
}

static void print_site(const Site &s)
{
    if (s.pc)
        fprintf(stderr, "    %s: %s\n", place(s.pc).c_str(), s.text.c_str());
    else if (!s.text.empty())
        fprintf(stderr, "    %s\n", s.text.c_str());
}

/* In lines of 96 columns. */
static void print_rule(std::string text)
{
    const char *head = "rule: ";
    while (!text.empty()) {
        const size_t end = text.size() <= 86 ? text.size() : text.rfind(' ', 86);
        fprintf(stderr, "    %s%s\n", head, text.substr(0, end).c_str());
        text = end < text.size() ? text.substr(end + 1) : "";
        head = "      ";
    }
}

/* The same lines seen by different code (a template's instances) are one finding. */
static std::vector<Finding> merged(void)
{
    std::vector<Finding> out;
    std::map<std::string, size_t> at;
    for (const Finding &f : findings) {
        const std::string key =
            std::to_string(f.rule) + "|" + place(f.first.pc) + "|" + place(f.second.pc);
        if (at.count(key)) {
            out[at[key]].count += f.count;
        } else {
            at[key] = out.size();
            out.push_back(f);
        }
    }
    return out;
}

static bool is_done; /* the report */

void print_report(void)
{
    if (is_done)
        return;
    is_done = true;
    fflush(stdout);
    std::vector<u32> pcs;
    for (const Finding &f : findings) {
        pcs.push_back(f.first.pc);
        pcs.push_back(f.second.pc);
        for (const Site &s : f.more)
            pcs.push_back(s.pc);
    }
    symbolize(pcs);
    const std::vector<Finding> all = merged();
    const size_t most = 8;
    int real = 0, warnings = 0;
    for (const Finding &f : all)
        (is_warning(f) ? warnings : real)++;
    for (size_t i = 0; i < all.size() && i < most; i++) {
        const Finding &f = all[i];
        fprintf(stderr, "simt: %s\n", rules[f.rule].title);
        print_site(f.first);
        print_site(f.second);
        for (const Site &s : f.more)
            print_site(s);
        fprintf(stderr, "    %ld time%s%s%s\n", f.count, f.count == 1 ? "" : "s",
                f.kernel.empty() ? "" : ", first in kernel ", f.kernel.c_str());
        print_rule(rules[f.rule].rule);
    }
    if (all.size() > most)
        fprintf(stderr, "simt: ... and %zu more\n", all.size() - most);
    if (flags.check || !all.empty())
        fprintf(stderr, "simt: %d finding%s, %d warning%s\n", real, real == 1 ? "" : "s", warnings,
                warnings == 1 ? "" : "s");
    if (flags.stages)
        print_stages(stderr);
    if (flags.trace)
        print_trace(stdout);
    else if (flags.count)
        print_counts(stdout);
    fflush(stdout);
}

void stop(int status)
{
    if (simt_at_stop)
        simt_at_stop();
    print_report();
    _exit(status);
}

/* A finding is a failure, whatever the program itself says. */
static void at_exit(int status, void *)
{
    print_report();
    if (status == 0 && has_findings())
        _exit(1);
}

/* --- crashes -----------------------------------------------------------------------------------*/

static void crash(int signal, siginfo_t *info, void *where)
{
    static bool again;
    if (again)
        _exit(3);
    again = true;
    Fiber *f = me;
    const u32 pc = kernel_line(f, where);
    const uintptr_t a = (uintptr_t)info->si_addr;
    std::string text = f ? who(f) : "the host's code";
    me = nullptr;
    Rule rule = R_CRASH;
    if (signal == SIGFPE) {
        text += " divides an integer by zero";
    } else if (signal == SIGABRT) {
        text += " aborts";
    } else if (signal == SIGILL) {
        text += " comes to a place that no program may come to";
    } else if (!f && memory_of(a)) {
        rule = R_HOST_MEMORY;
        text += " reads or writes memory of the device";
    } else if (f && a - (uintptr_t)f->stack < 4096) {
        text += " has more local variables than its stack holds";
    } else {
        text += " uses an address that is no memory";
    }
    report_finding(rule, {pc, text});
    stop(1);
}

/* The program or shared object that this is a part of. */
static int find_program(struct dl_phdr_info *info, size_t, void *)
{
    uintptr_t end = info->dlpi_addr;
    for (int k = 0; k < info->dlpi_phnum; k++)
        if (info->dlpi_phdr[k].p_type == PT_LOAD)
            end = std::max(end, (uintptr_t)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr +
                                            info->dlpi_phdr[k].p_memsz));
    if ((uintptr_t)find_program < info->dlpi_addr || (uintptr_t)find_program >= end)
        return 0;
    program_lo = info->dlpi_addr;
    program_hi = end;
    return 1;
}

__attribute__((constructor)) static void begin(void)
{
    dl_iterate_phdr(find_program, nullptr);
    static char stack[1 << 18];
    const stack_t alternative = {stack, 0, sizeof stack};
    sigaltstack(&alternative, nullptr);
    struct sigaction act = {};
    act.sa_sigaction = crash;
    act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
        sigaction(s, &act, nullptr);
}

/* Not earlier: what is registered last runs first, while this file's lists are still there. */
void report_at_exit(void)
{
    static const int registered = on_exit(at_exit, nullptr);
    (void)registered;
}

void trap(void)
{
    report_finding(R_ASSERT, {SIMT_PC, (me ? who(me) : "the host") + " comes to __trap()"});
    stop(1);
}

[[noreturn]] static void aborts(u32 pc)
{
    report_finding(R_CRASH, {pc, (me ? who(me) : "the host's code") + " calls abort()"});
    stop(1);
}

void device_assert(const char *expression, const char *, int)
{
    report_finding(R_ASSERT, {SIMT_PC, (me ? who(me) : "the host") + ": " + expression});
    stop(1);
}
} // namespace simt

/* In place of the C library's, from which no way leads back to the line. */
extern "C" void abort(void)
{
    simt::aborts(SIMT_PC);
}

/* --- for a program that judges kernels ---------------------------------------------------------*/

void (*simt_at_stop)(void);

extern "C" const char *simt_finding(const char **title)
{
    using namespace simt;
    static std::string text;
    for (const Finding &f : merged()) {
        if (is_warning(f))
            continue;
        text = "";
        std::vector<Site> sites = {f.first, f.second};
        sites.insert(sites.end(), f.more.begin(), f.more.end());
        for (const Site &s : sites)
            if (s.pc)
                text += place(s.pc) + ": " + s.text + "\n";
            else if (!s.text.empty())
                text += s.text + "\n";
        *title = rules[f.rule].title;
        return text.c_str();
    }
    return nullptr;
}

extern "C" void simt_no_report(void)
{
    simt::is_done = true;
}
