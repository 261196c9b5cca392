/* SPDX-License-Identifier: MIT
 *
 * reach.cpp: what `check` has not tried: stages of a pipeline that were used less than three times,
 * and lines with an access to memory that no thread came to.
 *
 * An access is a call of a hook (shadow.cpp). So the program's own code says where all accesses
 * are, and the hooks note which of them were made. Asked are the functions that have made one.
 */
#include "machine.h"

#include <algorithm>
#include <cstring>

extern "C" char __start_simt_hooks[], __stop_simt_hooks[]; /* by the linker */

namespace simt
{
/* --- stages ------------------------------------------------------------------------------------*/

/* By kernel and place in shared memory: the line that made the mbarrier, and its most phases in a
 * block. Place 0: the most groups of cp.async that a thread waited for. */
static std::map<std::pair<std::string, u32>, std::pair<u32, u32>> stages;

static void note_stage(u32 place, u32 pc, u32 uses)
{
    auto &s = stages[{launch_now.name, place}];
    s = {pc, std::max(s.second, uses)};
}

void note_stages(const Block &b)
{
    for (const auto &m : b.mbarriers)
        note_stage(m.first, m.second.pc, m.second.phase);
    for (int i = 0; i < launch_now.threads; i++)
        if (b.fibers[i]->copies.done)
            note_stage(0, 0, b.fibers[i]->copies.done);
}

/* A mistake in a ring of stages shows when a stage is used again. */
void print_stages(FILE *to)
{
    std::map<std::pair<std::string, std::string>, std::vector<u32>> uses;
    for (const auto &[where, stage] : stages)
        if (where.second == 0)
            fprintf(to, "simt: a thread of %s waited for up to %u groups of copies\n",
                    where.first.c_str(), stage.second);
        else
            uses[{where.first, place(stage.first)}].push_back(stage.second);
    for (const auto &[where, all] : uses) {
        const long less = std::count_if(all.begin(), all.end(), [](u32 n) { return n < 3; });
        fprintf(
            to, "simt: %zu mbarriers of %s, made at %s: %ld used three times or more, %ld less\n",
            all.size(), where.first.c_str(), where.second.c_str(), (long)all.size() - less, less);
    }
}

/* --- lines -------------------------------------------------------------------------------------*/

static std::vector<bool> is_reached; /* by the place of an access in the program */

void note_reached(u32 pc)
{
    is_reached.resize(std::max(is_reached.size(), (size_t)pc + 1));
    is_reached[pc] = true;
}

/* The call that ends before `end` calls a hook. */
static bool calls_hook(const uint8_t *end)
{
    int32_t far;
    memcpy(&far, end - 4, 4);
#if defined __x86_64__
    const bool is_call = end[-5] == 0xe8;
    const uint8_t *to = end + far;
#else
    const bool is_call = (u32)far >> 26 == 0x25;
    const uint8_t *to = end - 4 + (far << 6 >> 4);
#endif
    return is_call && (const char *)to >= __start_simt_hooks &&
           (const char *)to < __stop_simt_hooks;
}

void print_lines_not_reached(FILE *to)
{
    std::vector<u32> reached, others;
    for (u32 pc = 0; pc < is_reached.size(); pc++)
        if (is_reached[pc])
            reached.push_back(pc);
    for (u32 pc = reached.empty() ? 1 : reached[0]; pc < is_reached.size(); pc++)
        if (!is_reached[pc] && calls_hook((const uint8_t *)program_lo + pc + 1))
            others.push_back(pc);
    symbolize(reached);
    symbolize(others);
    std::set<std::string> functions, lines, open;
    for (u32 pc : reached) {
        functions.insert(function_at(pc));
        lines.insert(place(pc));
    }
    for (u32 pc : others)
        if (functions.count(function_at(pc)) && !lines.count(place(pc)) && place(pc)[0] != '(')
            open.insert(place(pc));
    fprintf(to, "simt: of %zu lines with an access to memory %zu were not reached\n",
            lines.size() + open.size(), open.size());
    size_t shown = 0;
    for (const std::string &line : open)
        if (shown++ < 4)
            fprintf(to, "    %s\n", line.c_str());
    if (shown > 4)
        fprintf(to, "    ... and %zu more\n", shown - 4);
}
} // namespace simt
