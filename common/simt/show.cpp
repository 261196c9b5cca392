/* SPDX-License-Identifier: MIT
 *
 * show.cpp: --show LINE: which lane touches which bank, or which sector, in the first request of
 * the line. (The same for a browser: trace.cpp, "requests".)
 */
#include "machine.h"

#include <algorithm>

namespace simt
{
static std::map<u32, std::string> pictures;

static std::string picture(const Log *l, int n, int size, bool shared)
{
    const uintptr_t unit = shared ? 4 : 32, first = shared ? 0
                                                           : std::min_element(
                                                                 l, l + n,
                                                                 [](const Log &a, const Log &b) {
                                                                     return a.a < b.a;
                                                                 })->a /
                                                                 unit;
    std::map<uintptr_t, std::map<uintptr_t, std::vector<int>>> rows; /* bank or sector, unit */
    for (int i = 0; i < n; i++)
        for (int b = 0; b < size; b += shared ? 4 : size) {
            const uintptr_t u = (l[i].a + (uintptr_t)b) / unit;
            rows[shared ? u % 32 : u - first][u].push_back(i);
        }
    std::string text;
    for (const auto &row : rows) {
        const size_t words = row.second.size(), most = shared ? 16 : 20;
        text += shared ? site(0, "        bank %2d: %zu word%s, of lanes", (int)row.first, words,
                              words == 1 ? "" : "s")
                             .text
                       : site(0, "        sector %4d: lanes", (int)row.first).text;
        size_t shown = 0;
        for (const auto &u : row.second)
            for (int lane : u.second)
                if (shown++ < most)
                    text += " " + std::to_string(lane);
        text += shown > most ? " ...\n" : "\n";
    }
    return text;
}

void show_request(u32 pc, const Log *l, int n)
{
    if (!flags.show.empty() && !pictures.count(pc))
        pictures[pc] = picture(l, n, l->size, l->shared);
}

void print_shown(FILE *to, const std::function<bool(u32)> &is_of_kernel)
{
    std::set<std::string> shown; /* clang may have made several accesses of one */
    for (const auto &p : pictures) {
        const std::string where = place(p.first);
        const size_t at = where.find(":" + flags.show);
        if (is_of_kernel(p.first) && at != std::string::npos &&
            !isdigit(where[at + 1 + flags.show.size()]) && shown.insert(where + p.second).second)
            fprintf(to, "    %s, the first request:\n%s", where.c_str(), p.second.c_str());
    }
}
} // namespace simt
