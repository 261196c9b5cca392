/* SPDX-License-Identifier: MIT
 *
 * count.cpp: what a profiler counts. Accesses are kept for each lane; at the next instruction of
 * the whole warp they are put together to requests: the n-th access at one place by each lane.
 *
 *   global memory   32-byte sectors that a request touches, beside as few as its bytes could lie in
 *   shared memory   wavefronts: 32 banks of 4 bytes; of two words of one bank, one waits. As many
 *                   lanes go at a time as have 128 bytes; twice as many where lanes go in pairs
 *                   (in_pairs; cards count so: simt_limits.md)
 *   useful bytes    each byte once that a request reads or writes: what the byte model counts
 */
#include "include/simt_report.h"
#include "machine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace simt
{
struct Stat {
    char space; /* s shared, g global, t copy engine */
    bool write;
    int size;
    long requests, bytes;
    long have, ideal; /* wavefronts of shared memory, else sectors */
    long lost;        /* of its worst request: more than that one needs */
    std::vector<Log> worst;
};
struct Kernel {
    std::map<u32, Stat> at;
    long launches, blocks, kinds[KINDS], flops;
    long groups_beside; /* over all shared reads of warps: groups of copies on their way */
    long mbarriers;     /* of a block, with a phase that is over */
    int threads;
    size_t smem;
};
/* By name and launch: two kernels may have one name. */
static std::map<std::pair<std::string, u32>, Kernel> kernels;
static Kernel *now;

void count_launch(void)
{
    if (!flags.count)
        return;
    const Config &c = launch_now.config;
    now = &kernels[{launch_now.name, launch_now.pc}];
    now->launches++;
    now->blocks += (long)c.grid.x * c.grid.y * c.grid.z;
    now->threads = launch_now.threads;
    now->smem = std::max(now->smem, c.smem);
    trace_launch();
}

void count_kind(Kind kind, long warps, long flops)
{
    if (!flags.count || !now)
        return;
    /* of instructions of single lanes, lane 0's stands for its warp */
    now->kinds[kind] += warps ? warps : me && me->lane == 0;
    now->flops += flops;
}

void count_shared_read(const Fiber *f)
{
    if (f->lane == 0)
        now->groups_beside += std::count_if(f->copies.groups.begin(), f->copies.groups.end(),
                                            [](const std::vector<Copy> &g) { return !g.empty(); });
}

void count_mbarriers(const Block &b)
{
    const long used = std::count_if(b.mbarriers.begin(), b.mbarriers.end(),
                                    [](const auto &m) { return m.second.phase > 0; });
    now->mbarriers = std::max(now->mbarriers, used);
}

static Stat &stat_of(u32 pc, char space, bool write, int size)
{
    Stat &s = now->at[pc];
    s.space = space, s.write = write, s.size = size;
    s.requests++;
    return s;
}

static int unique(uintptr_t *v, int n)
{
    std::sort(v, v + n);
    return (int)(std::unique(v, v + n) - v);
}

/* Does each lane have the address of lane ^ by? */
static bool in_pairs(const Log *l, int n, int by)
{
    const Log *of[32] = {};
    for (int i = 0; i < n; i++)
        of[l[i].lane] = &l[i];
    return std::all_of(l, l + n, [&](const Log &x) {
        const Log *other = of[x.lane ^ by];
        return !other || other->a == x.a;
    });
}

static void count_shared(Stat &s, const Log *l, int n, int size)
{
    int together = 128 / std::max(size, 4);
    if (size > 4 && (in_pairs(l, n, 1) || in_pairs(l, n, 2)))
        together *= 2;
    for (int i = 0; i < n;) {
        const int turn = l[i].lane / together;
        uintptr_t words[128];
        int m = 0, bank[32] = {}, most = 0;
        for (; i < n && l[i].lane / together == turn; i++)
            for (int b = 0; b < std::max(size, 4); b += 4)
                words[m++] = (l[i].a + (uintptr_t)b) / 4;
        m = unique(words, m);
        for (int k = 0; k < m; k++)
            most = std::max(most, ++bank[words[k] % 32]);
        s.have += most;
        s.ideal += (m + 31) / 32;
    }
}

static void count_global(Stat &s, const Log *l, int n, int size)
{
    uintptr_t sectors[64], pairs[512];
    int m = 0, q = 0;
    const int step = size % 2 ? 1 : 2;
    for (int i = 0; i < n; i++) {
        for (uintptr_t a = l[i].a / 32; a <= (l[i].a + (uintptr_t)size - 1) / 32; a++)
            sectors[m++] = a;
        for (int b = 0; b < size; b += step)
            pairs[q++] = (l[i].a + (uintptr_t)b) / (uintptr_t)step;
    }
    m = unique(sectors, m);
    q = unique(pairs, q) * step;
    s.have += m;
    s.ideal += (q + 31) / 32;
    s.bytes += q;
}

long cost_of(const Log *l, int n, long *ideal)
{
    Stat s = {};
    (l->shared ? count_shared : count_global)(s, l, n, l->size);
    *ideal = s.ideal;
    return s.have;
}

/* One request: n lanes' accesses by one instruction. */
void count_access(u32 pc, const Log *l, int n)
{
    const int size = l->size;
    Stat &s = stat_of(pc, l->shared ? 's' : 'g', l->write, size);
    const long before = s.have - s.ideal;
    (l->shared ? count_shared : count_global)(s, l, n, size);
    const long lost = s.have - s.ideal - before;
    if (lost > s.lost) {
        s.lost = lost;
        s.worst.assign(l, l + n);
    }
    show_request(pc, l, n);
}

void count_engine(u32 pc, bool write, long bytes, long sectors)
{
    if (!flags.count)
        return;
    Stat &s = stat_of(pc, 't', write, 16);
    s.bytes += bytes;
    s.have += sectors;
    s.ideal += sectors;
    now->kinds[K_TMA]++;
}

Requests requests_of(Block &b, int warp)
{
    Requests requests;
    for (int i = 0; i < lanes_of(warp); i++) {
        std::unordered_map<u32, u32> visits;
        for (const Log &l : warp_of(b, warp)[i]->log)
            requests[{l.pc, visits[l.pc]++}].push_back(l);
    }
    return requests;
}

void merge_warp(Block &b, int warp)
{
    Fiber **f = warp_of(b, warp);
    const int n = lanes_of(warp);
    if (flags.trace)
        trace_merge(b, warp);
    const bool same = std::all_of(f + 1, f + n, [&](const Fiber *lane) {
        return std::equal(
            lane->log.begin(), lane->log.end(), f[0]->log.begin(), f[0]->log.end(),
            [](const Log &a, const Log &b) { return a.pc == b.pc && a.size == b.size; });
    });
    if (same) {
        Log row[32];
        for (size_t k = 0; k < f[0]->log.size(); k++) {
            for (int i = 0; i < n; i++)
                row[i] = f[i]->log[k];
            count_access(row[0].pc, row, n);
        }
    } else { /* lanes went different ways: the n-th visit of each place */
        for (const auto &r : requests_of(b, warp))
            count_access(r.first.first, r.second.data(), (int)r.second.size());
    }
    for (int i = 0; i < n; i++)
        f[i]->log.clear();
}

/* --- as text -----------------------------------------------------------------------------------*/

static const char *const kind_names[KINDS] = {
    "mma",      "wgmma", "ldmatrix", "stmatrix", "cp.async", "tiles by the engine",
    "shuffles", "exp",   "atomics",  "barriers", "mbarrier"};

static void print_lines(FILE *to, const Kernel &k)
{
    static const std::map<char, const char *> names = {
        {'s', "shared"}, {'g', "global"}, {'t', "engine"}};
    std::map<std::string, Stat> lines;
    for (const auto &[pc, t] : k.at) {
        Stat &line = lines[site(0, "%-46.46s %s %-5s %2d B", place(pc).c_str(), names.at(t.space),
                                t.write ? "write" : "read", t.size)
                               .text];
        line.space = t.space;
        line.have += t.have, line.ideal += t.ideal;
    }
    for (const auto &[line, t] : lines)
        fprintf(to, "  %s %9ld %s, ideal %ld (x %.2f)\n", line.c_str(), t.have,
                t.space == 's' ? "wavefronts" : "sectors", t.ideal,
                t.ideal ? (double)t.have / (double)t.ideal : 0.0);
}

/* Of all kernels, or of one. Of the copy engine as of global memory. */
static long sum_of(long Stat::*number, bool shared, int write, const Kernel *only = nullptr)
{
    long sum = 0;
    for (const auto &[id, k] : kernels)
        for (const auto &[pc, s] : k.at)
            if ((!only || only == &k) && (s.space == 's') == shared &&
                (write < 0 || s.write == write))
                sum += s.*number;
    return sum;
}

void print_counts(FILE *to)
{
    std::vector<u32> pcs;
    for (const auto &[id, k] : kernels) {
        pcs.push_back(id.second);
        for (const auto &a : k.at)
            pcs.push_back(a.first);
    }
    symbolize(pcs);
    for (const auto &[id, k] : kernels) {
        fprintf(to, "count: kernel %s, %s: %ld launch%s, %ld blocks of %d threads\n",
                id.first.c_str(), place(id.second).c_str(), k.launches, k.launches == 1 ? "" : "es",
                k.blocks, k.threads);
        for (int w = 0; w < 2; w++)
            fprintf(to,
                    "  global memory %s: %ld useful bytes, %ld sectors of 32 bytes, %ld "
                    "requests\n",
                    w ? "written" : "read", sum_of(&Stat::bytes, false, w, &k),
                    sum_of(&Stat::have, false, w, &k), sum_of(&Stat::requests, false, w, &k));
        fprintf(to,
                "  shared memory: %ld wavefronts, %ld without bank conflicts\n"
                "  instructions, by warps:",
                sum_of(&Stat::have, true, -1, &k), sum_of(&Stat::ideal, true, -1, &k));
        const char *comma = "";
        for (int i = 0; i < KINDS; i++)
            if (k.kinds[i]) {
                fprintf(to, "%s %ld %s", comma, k.kinds[i], kind_names[i]);
                comma = ",";
            }
        fprintf(to, "%s\n", comma[0] ? "" : " none of those that are counted");
        const long by_smem = k.smem ? 233472L / (long)(k.smem + 1024) : 32;
        const long by_threads = 2048 / std::max(k.threads, 1);
        fprintf(to,
                "  blocks a multiprocessor: %ld by shared memory (%zu bytes a block), %ld by "
                "threads; registers: only nvcc knows\n",
                std::min(by_smem, 32L), k.smem, std::min(by_threads, 32L));
        const long bytes = sum_of(&Stat::bytes, false, -1, &k);
        if (k.flops && bytes > 0)
            fprintf(to, "  roofline: %ld FLOPs of tensor cores, %.1f a useful byte\n", k.flops,
                    (double)k.flops / (double)bytes);
        if (!flags.lines.empty())
            print_lines(to, k);
        print_shown(to, [&at = k.at](u32 pc) { return at.count(pc) > 0; });
    }
}
} // namespace simt

/* --- for a program that judges kernels ---------------------------------------------------------*/

using namespace simt;

extern "C" long simt_count(const char *what)
{
    const std::string name = what;
    if (name == "sectors read" || name == "sectors written")
        return sum_of(&Stat::have, false, name == "sectors written");
    if (name == "wavefronts")
        return sum_of(&Stat::have, true, -1);
    if (name == "ideal wavefronts")
        return sum_of(&Stat::ideal, true, -1);
    if (name == "shared reads" || name == "shared writes")
        return sum_of(&Stat::requests, true, name == "shared writes");
    if (name == "global writes")
        return sum_of(&Stat::requests, false, 1);
    static const std::map<std::string, long Kernel::*> of_launches = {
        {"launches", &Kernel::launches},
        {"blocks", &Kernel::blocks},
        {"groups of copies beside reads", &Kernel::groups_beside},
        {"mbarriers in use", &Kernel::mbarriers}};
    const auto found = of_launches.find(name);
    long sum = 0;
    for (const auto &k : kernels) {
        sum += found == of_launches.end() ? 0 : k.second.*found->second;
        for (int i = 0; i < KINDS; i++)
            sum += name == kind_names[i] ? k.second.kinds[i] : 0;
    }
    return sum;
}

extern "C" const char *simt_worst(const char *what)
{
    static std::string text;
    const bool shared = !strcmp(what, "wavefronts"), write = !strcmp(what, "sectors written");
    const Stat *most = nullptr;
    u32 pc = 0;
    for (const auto &k : kernels)
        for (const auto &[at, s] : k.second.at)
            if ((s.space == 's') == shared && (shared || s.write == write) && s.lost > 0 &&
                (!most || s.have - s.ideal > most->have - most->ideal))
                most = &s, pc = at;
    if (!most)
        return nullptr;
    const std::vector<Log> &l = most->worst;
    size_t i = 0, k = l.size() > 1; /* two lanes that are in each other's way */
    for (size_t pair = 0; shared && pair < l.size() * l.size(); pair++) {
        const size_t a = pair / l.size(), b = pair % l.size();
        if (a < b && l[a].a / 4 % 32 == l[b].a / 4 % 32 && l[a].a / 4 != l[b].a / 4) {
            i = a, k = b;
            break;
        }
    }
    if (shared)
        text = site(0,
                    "%s takes %ld wavefronts, %ld would do: there lanes %zu and %zu %s different "
                    "words of bank %d.",
                    place(pc).c_str(), most->have, most->ideal, i, k,
                    most->write ? "write" : "read", (int)(l[i].a / 4 % 32))
                   .text;
    else
        text = site(0,
                    "%s touches %ld sectors for the bytes of %ld: there the addresses of lanes 0 "
                    "and %zu lie %ld bytes apart.",
                    place(pc).c_str(), most->have, most->ideal, k, labs((long)(l[k].a - l[0].a)))
                   .text;
    return text.c_str();
}
