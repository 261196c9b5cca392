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
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <functional>
#include <link.h>
#include <tuple>
#include <ucontext.h>
#include <unistd.h>

namespace simt
{
uintptr_t program_lo, program_hi;

static std::string word(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

static int number(const char *name, int otherwise = 0)
{
    return word(name).empty() ? otherwise : atoi(getenv(name));
}

const Flags flags = {number("SIMT_CHECK") != 0, number("SIMT_COUNT") || number("SIMT_TRACE"),
                     number("SIMT_EARLY"),      number("SIMT_SEED"),
                     number("SIMT_BLOCKS"),     number("SIMT_SECONDS", 10),
                     word("SIMT_LINES"),        word("SIMT_SHOW"),
                     number("SIMT_TRACE") != 0, number("SIMT_BLOCK"),
                     word("SIMT_JSON"),         number("SIMT_STAGES") != 0};

/* --- the rules ---------------------------------------------------------------------------------*/

static const struct {
    const char *title, *rule;
} rules[] = {
#define RULE(NAME, TITLE, TEXT) {TITLE, TEXT},
    SIMT_RULES(RULE)
#undef RULE
};

/* --- lines -------------------------------------------------------------------------------------*/

struct Frame {
    std::string function, path, file; /* file: without its folder */
    int line;
};
static std::map<u32, std::vector<Frame>> frames;

static bool is_own(const std::string &path)
{
    return path.find("/common/simt/") != std::string::npos || path.find("/usr/") == 0 ||
           path.find("/include/c++/") != std::string::npos;
}

/* A name, and file:line:column, as llvm-symbolizer prints them */
static Frame parse_frame(const std::string &function, const std::string &text)
{
    const size_t column = text.rfind(':'), line = text.rfind(':', column - 1);
    const std::string path = text.substr(0, line);
    return {function, path, path.substr(path.rfind('/') + 1), atoi(text.c_str() + line + 1)};
}

/* none: in a sandbox no process can be started, and somebody else makes lines of the addresses. */
static const std::string symbolizer = word("SIMT_SYMBOLIZER");

void symbolize(const std::vector<u32> &pcs)
{
    char asked[] = "/tmp/simt-XXXXXX";
    std::vector<u32> open;
    for (u32 pc : pcs)
        if (pc && frames.insert({pc, {}}).second)
            open.push_back(pc);
    const int fd = open.empty() || symbolizer == "none" ? -1 : mkstemp(asked);
    if (fd < 0)
        return;
    for (u32 pc : open)
        dprintf(fd, "0x%x\n", pc);
    close(fd);
    const std::string command = (symbolizer.empty() ? "llvm-symbolizer" : symbolizer) +
                                " --obj=/proc/" + std::to_string(getpid()) +
                                "/exe --functions=linkage --inlines <" + asked + " 2>/dev/null";
    FILE *answers = popen(command.c_str(), "r");
    static char text[1 << 14];
    std::string function; /* a frame is two lines; an empty one ends those of a place */
    for (size_t i = 0; answers && i < open.size() && fgets(text, sizeof text, answers);) {
        text[strcspn(text, "\n")] = 0;
        if (!text[0]) {
            i++;
        } else if (function.empty()) {
            function = text;
        } else {
            frames[open[i]].push_back(parse_frame(function, text));
            function = "";
        }
    }
    if (answers)
        pclose(answers);
    unlink(asked);
}

std::string place(u32 pc)
{
    if (!pc || symbolizer == "none")
        return pc ? site(0, "0x%x", pc).text : "";
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

std::string function_at(u32 pc)
{
    symbolize({pc});
    return frames[pc].empty() ? "" : frames[pc].back().function;
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
    std::vector<Site> sites;
    std::string kernel;
    long count;
    bool is_warning(void) const
    {
        return rule == R_SAME_VALUE;
    }
    u32 pc(size_t i) const
    {
        return i < sites.size() ? sites[i].pc : 0;
    }
    std::string text(const char *indent) const
    {
        std::string all;
        for (const Site &s : sites)
            all += indent + (s.pc ? place(s.pc) + ": " : "") + s.text + "\n";
        return all;
    }
};
static std::vector<Finding> findings;
static std::map<std::tuple<Rule, u32, u32>, size_t> finding_at;

static Site said(u32 pc, const std::string &who, const char *format, va_list list)
{
    char text[500];
    vsnprintf(text, sizeof text, format, list);
    return {pc, who + text};
}

#define SIMT_SAID(PC, WHO, RESULT)                                                                 \
    va_list list;                                                                                  \
    va_start(list, format);                                                                        \
    const Site made = said(PC, WHO, format, list);                                                 \
    va_end(list);                                                                                  \
    return RESULT

Site site(u32 pc, const char *format, ...)
{
    SIMT_SAID(pc, "", made);
}

static std::string who(int thread, u32 block)
{
    return thread == ENGINE ? site(0, "the copy engine, in block %u", block).text
                            : site(0, "thread %d of block %u", thread, block).text;
}

static std::string who(const Fiber *f)
{
    return f ? who(f->tid, f->block->number) : "the host's code";
}

Site by(const Fiber *f, u32 pc, const char *format, ...)
{
    SIMT_SAID(pc, who(f), made);
}

Site by(const Access &a, const char *format, ...)
{
    SIMT_SAID(a.pc, who(a.thread, a.block), made);
}

void finding(Rule rule, const Fiber *f, u32 pc, const char *format, ...)
{
    SIMT_SAID(pc, who(f), finding(rule, {made}));
}

void finding(Rule rule, u32 pc, const char *format, ...)
{
    SIMT_SAID(pc, "", finding(rule, {made}));
}

void finding(Rule rule, const std::vector<Site> &sites)
{
    const u32 second = sites.size() > 1 ? sites[1].pc : 0;
    const auto known = finding_at.insert({{rule, sites[0].pc, second}, findings.size()});
    if (known.second)
        findings.push_back({rule, sites, launch_now.body ? launch_now.name : "", 0});
    findings[known.first->second].count++;
}

bool has_findings(void)
{
    return !std::all_of(findings.begin(), findings.end(), std::mem_fn(&Finding::is_warning));
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
    std::vector<u32> pcs;
    for (const Finding &f : findings)
        for (const Site &s : f.sites)
            pcs.push_back(s.pc);
    symbolize(pcs);
    std::vector<Finding> out;
    std::map<std::tuple<Rule, std::string, std::string>, size_t> known;
    for (const Finding &f : findings) {
        const auto at = known.insert({{f.rule, place(f.pc(0)), place(f.pc(1))}, out.size()});
        if (at.second)
            out.push_back(f);
        else
            out[at.first->second].count += f.count;
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
    const std::vector<Finding> all = merged();
    const size_t most = 8;
    for (size_t i = 0; i < all.size() && i < most; i++) {
        const Finding &f = all[i];
        fprintf(stderr, "simt: %s\n%s    %ld time%s%s%s\n", rules[f.rule].title,
                f.text("    ").c_str(), f.count, s_of(f.count),
                f.kernel.empty() ? "" : ", first in kernel ", f.kernel.c_str());
        print_rule(rules[f.rule].rule);
    }
    if (all.size() > most)
        fprintf(stderr, "simt: ... and %zu more\n", all.size() - most);
    const long warnings = std::count_if(all.begin(), all.end(), std::mem_fn(&Finding::is_warning));
    const long real = (long)all.size() - warnings;
    if (flags.check || !all.empty())
        fprintf(stderr, "simt: %ld finding%s, %ld warning%s\n", real, s_of(real), warnings,
                s_of(warnings));
    if (flags.stages)
        print_stages(stderr);
    if (flags.stages && flags.check && symbolizer != "none")
        print_lines_not_reached(stderr);
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
    const bool is_memory = signal == SIGSEGV || signal == SIGBUS;
    const bool is_device = is_memory && !f && memory_of(a);
    me = nullptr;
    finding(is_device ? R_HOST_MEMORY : R_CRASH, f, pc, "%s",
            signal == SIGFPE                      ? " divides an integer by zero"
            : signal == SIGABRT                   ? " aborts"
            : signal == SIGILL                    ? " comes to a place that no program may come to"
            : is_device                           ? " reads or writes memory of the device"
            : f && a - (uintptr_t)f->stack < 4096 ? " has more local variables than its stack holds"
                                                  : " uses an address that is no memory");
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
    finding(R_ASSERT, me, SIMT_PC, " comes to __trap()");
    stop(1);
}

void device_assert(const char *expression, const char *, int)
{
    finding(R_ASSERT, me, SIMT_PC, ": %s", expression);
    stop(1);
}
} // namespace simt

/* In place of the C library's, from which no way leads back to the line. */
extern "C" void abort(void)
{
    using namespace simt;
    finding(R_CRASH, me, SIMT_PC, " calls abort()");
    stop(1);
}

/* --- for a program that judges kernels ---------------------------------------------------------*/

void (*simt_at_stop)(void);

extern "C" const char *simt_finding(const char **title)
{
    using namespace simt;
    static std::string text;
    for (const Finding &f : merged())
        if (!f.is_warning()) {
            text = f.text("");
            *title = rules[f.rule].title;
            return text.c_str();
        }
    return nullptr;
}

extern "C" void simt_no_report(void)
{
    simt::is_done = true;
}
