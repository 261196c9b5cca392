#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_kernel_walks.py: what no result of a kernel shows, read off its own code on a CPU.

usage: test_kernel_walks.py C++_COMPILER...

Functions are cut out of the kernels' files and compiled over stand-ins that note what is asked.

- consume_in_turns, of v12 and of the library, and consume_lap: a product reads Q or dO of its own
  tile, and the weights its stats, between the wait for it and its giving back; a dS only after a
  wait for it; the one that nobody needs reads K. Every dQ comes from the dS of its own tile. A
  place of dS is free when it is written, and then it is published, once. No place is given back
  while a product that reads it may be at work. The two warpgroups hand over as often as they wait.
  In v15 and the library blocks stay, their tiles count on from lap to lap (a turn, in the library),
  and what a lap has taken it gives back, each stage. Where a thread of its own sends dV and dK,
  each is rounded to the warpgroup's box of V once: when it has come, no product reads that box any
  more, and the sum before was asked for. (What clear_unseen_rows clears, and whether another sum
  has come when it is read, is not looked at. Nor is that thread: tests/simt has mutants of it.)
- tile_of_turn: every row tile has one turn, and no block divides by zero after its share.
- keys_of_ticket: every block of keys has one ticket, and in a section j0 never falls. (Under a
  causal mask the first keys are the longest; no mask is looked at here.)
"""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from tap import Tap

# A division by zero ends the program on every processor; no run-time library is needed for that.
FLAGS = ["-x", "c++", "-std=gnu++17", "-O0", "-w", "-fsanitize=integer-divide-by-zero",
         "-fsanitize-undefined-trap-on-error"]
HEAD = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define __device__
#define __forceinline__ inline
struct { unsigned x; } gridDim, blockIdx;
static int min(int a, int b) { return a < b ? a : b; }
static int wrong;
#define CHECK(c, ...) do { if (!(c)) { wrong = 1; printf(__VA_ARGS__); printf("\\n"); } } while (0)
struct AttnArgs { struct { int64_t B, H, Hkv, Nq; } shape; float scale; };
"""

TURNS = """
struct float2 { float x, y; };
struct Pass { float *dQ_sum; };
struct RowRange { int begin, end; };
struct Band { int Nq; };
struct RowSight { int first_row, end_row; };
struct KeyBlock { int b, j0; };
struct KeyWalk { int i0, h, count; };
enum { WAIT_Q, WAIT_K, WAIT_dO, WAIT_dS, WAIT_FREE_dS, WAIT_FREE_V };
enum { CONSUMER_THREADS = 256, TURN = 4 };
static uint32_t __cvta_generic_to_shared(const void *) { return 0; }
static int waits[2], reads[2], stores, published[2], adds, reads_of_K, looks, start, group;
static int handed, awaited;
static int products[2], weighed, added; /* tiles that S and dP were made of; ...; dV and dK, each */
static int issued, done; /* products; all up to done are over */
static int sums, box_asked, box_read, sum_made[2]; /* of V's box; the last product of dV, dK */
struct { int waits, frees, read; } at_barrier[1 << 15]; /* at 8 n; read: the last product to */
static unsigned char memory[1 << 18];
static bool asked[2]; /* for room for this dS */
static uint32_t K_now; /* K of this turn */
static float cells[16];
template <class C> static void start_sums(float (&)[C::D / 8][4], float (&)[C::D / 8][4]) {}
template <int N, int TILES> static void wgmma_wait(float (&)[TILES][4])
{
    if (done < issued - N)
        done = issued - N;
}
static void wgmma_begin() {}
static void threads_arrive(int id, int) { handed += id == TURN + 1 - group; }
static void threads_sync(int id, int) { awaited += id == TURN + group; }
struct Barriers {
    uint32_t Q_FULL, dO_FULL, Q_FREE, dO_FREE, dS_FULL, dS_FREE, KEYS_FREE, SUM_FREE;
} at;
static void report(uint32_t barrier)
{
    CHECK(at_barrier[barrier / 8].read <= done, "barrier %u: given back, but being read", barrier);
    at_barrier[barrier / 8].frees++;
}
template <class C> static void read_rows(bool dO, uint32_t rows, int tile)
{
    const int s = tile % 2, free = (dO ? C::dO_FREE : C::Q_FREE) / 8 + s;
    CHECK((int)rows == (dO ? C::dO : C::Q) + s * C::ROWS_BYTES, "tile %d lies at %u", tile, rows);
    CHECK(at_barrier[(dO ? C::dO_FULL : C::Q_FULL) / 8 + s].waits == tile / 2 + 1 &&
              at_barrier[free].frees == tile / 2, "tile %d is not there, or given back", tile);
    at_barrier[free].read = issued;
}
static RowRange rows_that_see(const Band &) { return {0, 0}; }
template <class C> static void publish_dS(uint32_t, int s)
{
    CHECK(++published[s] == (stores + 1 - s) / 2, "dS %d is published, but was not written", s);
}
template <class C> static void clear_unseen_rows(unsigned char *, RowRange, int, int) {}
template <class C> static void next_tile(KeyWalk &walk) { walk.i0 += C::Br; }
template <typename T, class C>
static void multiply_rows(float (&)[C::Br / 8][4], uint32_t keys, uint32_t rows)
{
    const uint32_t mine = K_now + group * C::BOX;
    CHECK(keys == mine || keys == mine + C::V - C::K, "a product of other keys: %u", keys);
    CHECK(at_barrier[at.KEYS_FREE / 8].frees == 0, "K is read after it was given back");
    at_barrier[at.KEYS_FREE / 8].read = ++issued;
    if (keys != mine)
        box_read = issued;
    read_rows<C>(keys != mine, rows, products[keys != mine]++);
}
template <typename T, class C>
static void add_product(float (&)[C::D / 8][4], const uint32_t (&A)[C::Br / 16][4], uint32_t rows)
{
    issued++;
    CHECK((int)A[0][0] / 2 == added++ / 2, "tile %d is added out of turn", A[0][0] / 2);
    sum_made[A[0][0] % 2] = issued;
    read_rows<C>(A[0][0] % 2 == 0, rows, A[0][0] / 2);
}
template <class C>
static void store_dS(uint32_t dS, const uint32_t (&)[C::Br / 16][4], int)
{
    CHECK(dS == C::dS + stores % 2 * C::dS_BYTES, "dS of tile %d goes to %u", stores, dS);
    CHECK(at_barrier[at.dS_FREE / 8 + stores % 2].frees == stores / 2, "dS of tile %d: not free",
          stores);
    CHECK(stores < 2 || asked[stores % 2], "dS of tile %d: nobody asked for its place", stores);
    asked[stores % 2] = false;
    stores++;
}
template <typename T, class C, class Factor, class Scores, class Sight>
static void weigh_pairs(Factor &P, Factor &dS, Scores &, Scores &, float, const Sight &, int, int,
                        const float2 *stats)
{
    CHECK((unsigned char *)stats == memory + C::STATS + weighed % 2 * C::STATS_BYTES,
          "stats of tile %d", weighed);
    read_rows<C>(false, C::Q + weighed % 2 * C::ROWS_BYTES, weighed); /* they come with Q */
    P[0][0] = 2 * weighed; /* even: for dV */
    dS[0][0] = 2 * weighed++ + 1;
    done = issued;
}
template <class C> static float *dQ_slab(float *, int, int, int i0, int)
{
    return cells + i0 / C::Br;
}
static void barrier_wait(uint32_t barrier, uint32_t parity, int)
{
    for (int s = 0; s < 2; s++) {
        if (barrier == at.dS_FULL + 8 * s) {
            looks += (int)parity != waits[s] % 2; /* at a phase that is over */
            waits[s] += (int)parity == waits[s] % 2;
            CHECK(waits[s] <= published[s], "a wait for dS %d, which is not published", s);
        } else if (barrier == at.dS_FREE + 8 * s) {
            CHECK((int)parity != at_barrier[barrier / 8].frees % 2, "dS %d never comes free", s);
            asked[s] = true;
        } else if (barrier == at.Q_FULL + 8 * s || barrier == at.dO_FULL + 8 * s) {
            CHECK((int)parity == at_barrier[barrier / 8].waits++ % 2, "%u: phase %u", barrier,
                  parity);
        }
    }
    if (barrier == at.SUM_FREE + 8 * group) {
        CHECK(parity == (sums + 1) % 2, "sum %d waits for phase %u", sums, parity);
        box_asked = sums + 1;
    }
}
static void fence_async() {}
template <typename T, class C>
static void round_keys(const float (&)[C::D / 8][4], float, unsigned char *box)
{
    CHECK(box == memory + K_now + C::V - C::K + group * C::BOX, "sum %d goes elsewhere", sums);
    CHECK(box_asked == ++sums, "sum %d: nobody asked for its place", sums - 1);
    CHECK(box_read <= done, "sum %d goes to V, which is being read", sums - 1);
    CHECK(sum_made[(sums - 1) % 2] <= done, "sum %d has not come", sums - 1);
}
template <typename T, class C>
static void multiply_dS_K(float (&dQ)[8][4], uint32_t dS, uint32_t K, int)
{
    CHECK(K == K_now && at_barrier[at.KEYS_FREE / 8].frees == 0, "not K, or it was given back");
    at_barrier[at.KEYS_FREE / 8].read = ++issued;
    dQ[0][0] = -1;
    if (dS == K_now - (@sent@ && C::D == 64 ? group * C::dS_PANEL_BYTES : 0)) {
        reads_of_K++;
        return;
    }
    const int s = (int)(dS - C::dS) / C::dS_BYTES;
    CHECK(dS == C::dS + s * C::dS_BYTES && (s == 0 || s == 1), "a dS at %u", dS);
    CHECK(++reads[s] <= waits[s], "dS %d is read %d times, after %d waits", s, reads[s], waits[s]);
    at_barrier[at.dS_FREE / 8 + s].read = issued;
    dQ[0][0] = (float)s;
}
static void add_dQ(float *to, const float (&dQ)[8][4])
{
    CHECK(to == (adds < 0 ? NULL : cells + adds), "dQ %d goes elsewhere", adds);
    CHECK(adds < 0 || dQ[0][0] == (start + adds) % 2, "dQ %d comes from dS %g", adds, dQ[0][0]);
    adds++;
}
template <class C, bool ORDERED>
static void add_dQ_in_order(float *to, const float (&dQ)[8][4], uint32_t, int, int number)
{
    CHECK(number == (adds < 0 ? -1 : start + adds), "dQ %d is added as number %d", adds, number);
    add_dQ(to, dQ);
}
@tiles@
@function@
template <int D> static void play(int count, int warpgroup, int turn)
{
    typedef @Tile@<D> C;
    float dK[D / 8][4], dV[D / 8][4];
    const int hands = count > 1 ? count - 1 : 0;
    reads_of_K = looks = handed = awaited = 0;
    adds = -1; /* the first one is nobody's */
    at = {C::Q_FULL, C::dO_FULL, C::Q_FREE, C::dO_FREE, C::dS_FULL, C::dS_FREE,
          (uint32_t)(@keys_free@), (uint32_t)(@sum_free@)};
    at_barrier[at.KEYS_FREE / 8].frees = 0;
    CHECK(!@looks@ || turn == 0 || K_now != @K@, "K goes where that of the last turn is");
    K_now = @K@;
    group = warpgroup;
    CHECK(C::K + C::dS_BYTES <= C::Q, "K and V are smaller than a dS");
    @name@<float, C@More@>(dK, dV, @arguments@ KeyWalk{0, 0, count}, memory, warpgroup@turn@);
    CHECK(adds == (count ? count : -1) && reads[0] + reads[1] == start + count &&
              reads_of_K == (count > 0) && looks == (@looks@ && count > 0) &&
              added == 2 * (start + count),
          "d = %d, turn %d, %d tiles: %d sums, %d + %d products, %d of K, %d looks", D, turn, count,
          adds, reads[0], reads[1], reads_of_K, looks);
    CHECK(handed == hands && awaited == hands, "%d tiles: %d turns taken, %d handed over", count,
          awaited, handed);
    start += count;
    CHECK(sums == @sent@ * 2 * (turn + 1) &&
              (!@sent@ || at_barrier[(@sum_full@) / 8 + group].frees == sums),
          "turn %d: %d sums are handed over", turn, sums);
    for (int s = 0; s < 2 && @looks@; s++)
        CHECK(at_barrier[C::Q_FREE / 8 + s].frees == (start + 1 - s) / 2 &&
                  at_barrier[C::dO_FREE / 8 + s].frees == (start + 1 - s) / 2 &&
                  at_barrier[at.KEYS_FREE / 8].frees == 1,
              "turn %d: Q, dO or K is not given back once", turn);
}
int main()
{
    for (int counts = 0; counts < 8 * @more_turns@; counts++)
        for (int d = 64; d <= 128; d += 64)
            for (int warpgroup = 0; warpgroup < 2; warpgroup++) {
                waits[0] = waits[1] = reads[0] = reads[1] = stores = start = 0;
                published[0] = published[1] = products[0] = products[1] = 0;
                weighed = added = issued = done = 0;
                sums = box_asked = box_read = sum_made[0] = sum_made[1] = 0;
                memset(at_barrier, 0, sizeof at_barrier);
                for (int turn = 0, left = counts; turn == 0 || left > 0; turn++, left /= 8)
                    d == 64 ? play<64>(left % 8, warpgroup, turn)
                            : play<128>(left % 8, warpgroup, turn);
            }
    return wrong;
}
"""

PLACES = """
struct QueryTile { int b, h, h_kv, i0; };
typedef QueryTile BlockWork;
struct Problem { int B, H, Hkv, Nq; };
static BlockWork work_of_head(const Problem &p, int head, int i0)
{
    return {head / p.H, head % p.H, head % p.H / (p.H / p.Hkv), i0};
}
struct Tile { static const int Br = 64, CONSUMERS = 3; };
struct HopperWork { int fold, section, missing; struct { int first, count; } heads; bool level; };
static int rows_of(const AttnArgs &a, const HopperWork &) { return (int)a.shape.Nq; }
@tile_of_turn@
int main()
{
    for (int Nq = 1; Nq < 300; Nq += 70)
        for (int heads = 2; heads <= 12; heads += 2)
            for (int section = 1; section <= heads; section++)
                for (unsigned n = 2; n <= 19; n++) {
                    const unsigned blocks = n / 2;
                    static int seen[12][8];
                    const int tiles = (Nq + 63) / 64;
                    @Args@ a = {@sizes@};
                    HopperWork work = {0, section, 0, {0, heads}, n % 2 == 1};
                    for (int n = 0; n < 12 * 8; n++)
                        seen[n / 8][n % 8] = 0;
                    gridDim.x = blocks;
                    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
                        @Place@ tile;
                        for (int turn = 0; tile_of_turn<Tile>(tile, a, @section@, turn); turn++)
                            seen[tile.b * (heads / 2) + tile.h][tile.i0 / 64]++;
                    }
                    for (int n = 0; n < heads * tiles; n++)
                        CHECK(seen[n / tiles][n % tiles] == 1, "tile %d of head %d: %d turns",
                              n % tiles, n / tiles, seen[n / tiles][n % tiles]);
                }
    return wrong;
}
"""

TICKETS = """
struct KeyBlock { int b, h_kv, j0, group; };
struct Problem { int B, H, Hkv, Nk; };
struct Tile { static const int Bc = 128; };
static int divide_up(int n, int by) { return (n + by - 1) / by; }
@Work@
@keys_of_ticket@
int main()
{
    for (int Nk = 1; Nk < 600; Nk += 127)
        for (int heads = 2; heads <= 12; heads += 2)
            for (int section = 1; section <= heads + 1; section++) {
                const int tiles = divide_up(Nk, 128), count = heads * tiles;
                const Problem p = {2, heads, heads / 2, Nk};
                const Work work = {NULL, count, section};
                int seen[12][5] = {}, in_section = 0, before = 0;
                for (int ticket = 0; ticket < count; ticket++) {
                    const KeyBlock keys = keys_of_ticket<Tile>(p, work, ticket);
                    const int head = keys.b * p.Hkv + keys.h_kv;
                    before = head / section == in_section ? before : 0;
                    CHECK(keys.j0 >= before, "j0 falls in a section");
                    in_section = head / section;
                    before = keys.j0;
                    CHECK(keys.group == 2, "%d query heads", keys.group);
                    seen[head][keys.j0 / 128]++;
                }
                for (int n = 0; n < count; n++)
                    CHECK(seen[n / tiles][n % tiles] == 1, "keys %d of head %d: %d tickets",
                          n % tiles, n / tiles, seen[n / tiles][n % tiles]);
            }
    return wrong;
}
"""

def cut(path, pattern, end):
    """The text of a file from a pattern to the first line that is `end`; it is there once."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.findall(rf"^{pattern}.*?^{end}$", text, re.M | re.S)
    assert len(found) == 1, (path, pattern, len(found))
    return found[0]


def function(path, name):
    return cut(path, rf"template <[^\n]*>\nstatic __device__ __forceinline__ \w+\s{name}\(", "}")


def run(tap, cxx, folder, name, source):
    program = folder / "program"
    made = subprocess.run([*cxx, *FLAGS, "-", "-o", str(program)], check=False,
                          input=HEAD + source, text=True, capture_output=True)
    if not tap.ok(made.returncode == 0, f"{name}: compiles", made.stderr[:2000]):
        return
    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)
    tap.ok(ran.returncode == 0, name, f"exit status {ran.returncode}\n{ran.stdout[:1000]}")


def main():
    tap, cxx = Tap(), sys.argv[1:]
    staying = "common/attention/backward/cuda/hopper_keys.cuh"
    laps = "04_flash_backward/cuda/v15_persistent.cu"
    turned = "04_flash_backward/cuda/v12_turns.cu"
    tile = cut("common/units/wgmma_keys.cuh", "template <int D_> struct WgmmaKeys {", "};")

    def words_of(path, words):
        """Of a kernel whose blocks stay."""
        tiles = [tile, cut(path, "template <int D> struct StayingKeys", "};"),
                 cut(path, r"template <class C> static [^\n]* place_of_K", "}")]
        if path == staying:
            tiles += [cut(path, "template <class C> struct SumBarriers", "};"),
                      cut("common/attention/backward/cuda/ordered_dq.cuh",
                          "template <class TILE> struct Ordered", "};"),
                      "template <int D> using Ordering = Ordered<StayingKeys<D>>;"]
        return path, {"tiles": "\n".join(tiles), "Tile": "StayingKeys", "looks": "1",
                      "K": "place_of_K<C>(turn)", "keys_free": "C::KEYS_FREE + 8 * (turn % 2)",
                      "more_turns": "64", **words}

    def sent(barriers):
        """Where a thread of its own sends dV and dK."""
        return {"sent": "1", "sum_full": f"{barriers}FULL", "sum_free": f"{barriers}FREE"}

    turns = {"Tile": "Ordering", "turn": ", turn, start, 1.0f",
             "arguments": "AttnArgs(), Pass(), RowSight(), KeyBlock(),"}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, words in (
                (turned,
                 {"tiles": tile, "Tile": "WgmmaKeys", "K": "C::K", "looks": "0", "more_turns": "1",
                  "keys_free": "0"}),
                words_of(laps, {"name": "consume_lap", "turn": ", turn, start", **sent("C::SUM_")}),
                words_of(staying, {**turns, "More": ", true, false"}),
                words_of(staying, {**turns, "More": ", false, true",
                                   **sent("SumBarriers<C>::")})):
            words = {"name": "consume_in_turns", "More": "", "turn": "", "sent": "0",
                     "sum_full": "0", "sum_free": "~0u",
                     "arguments": "Pass(), Band(), KeyBlock(), 1, 1.0f,", **words}
            words["function"] = "\n".join(function(path, name) for name in (
                *["hand_over"] * (path != turned), words["name"]))
            run(tap, cxx, folder, f"{words['name']}{words['More'].replace(', ', ' ')} of {path} "
                "reads what has been waited for, or K",
                re.sub(r"@(\w+)@", lambda word: words[word[1]], TURNS))
        rung, library = "BlockWork Problem 2,heads/2,1,Nq".split(), ("QueryTile", "AttnArgs",
                                                                     "{2, heads / 2, 1, Nq}, 1.0f")
        for path, section, words in (
                ("03_flash_forward/cuda/v14_persistent.cu", "section", rung),
                ("common/attention/forward/cuda/hopper_16bit.cuh", "work", library)):
            run(tap, cxx, folder, f"tile_of_turn of {path}: each tile once, no division by zero",
                PLACES.replace("@tile_of_turn@", function(path, "tile_of_turn"))
                .replace("@section@", section).replace("@Place@", words[0])
                .replace("@Args@", words[1]).replace("@sizes@", words[2]))
        run(tap, cxx, folder, f"keys_of_ticket of {laps}: each block of keys once, in order",
            TICKETS.replace("@Work@", cut(laps, r"struct Work \{", "};"))
            .replace("@keys_of_ticket@", function(laps, "keys_of_ticket")))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
