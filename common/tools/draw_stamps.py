# SPDX-License-Identifier: MIT
"""draw_stamps.py: Hopper's rungs as lines of time, from the clocks that a block of each stamped
(common/cuda/hopper_stamps.cuh says what a line of the files means).

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import bisect
import pathlib
import statistics

import tool
from svg_drawing import BLUE, GREEN, GREY, PURPLE, YELLOW, Drawing

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results"
CASE = "d = 128, N = 4096"
LEFT, WIDTH = 128, 832  # of the lines, in a drawing of 980
SHORT = 60              # clocks: less than this between two stamps is nobody's work


class Rung:
    """What the drawing has to know of a rung, and cannot see in its stamps: how products follow
    each other. `first` products before the loop, then `turn` again and again, `rest` at the end of
    a walk of `tiles`; and the clocks of the tensor cores that a tile of the whole block takes."""

    def __init__(self, name, first, turn, rest="", tiles=0, clocks=2048):
        self.name, self.tiles, self.clocks = name, tiles, clocks
        self.first, self.turn, self.rest = first.split(), turn.split(), rest.split()

    def product(self, number):
        """The name of the product that is group `number` of a warp."""
        if self.tiles:
            number %= len(self.first) + len(self.turn) * (self.tiles - 1) + len(self.rest)
        if number < len(self.first):
            return self.first[number]
        number -= len(self.first)
        if self.tiles and number >= len(self.turn) * (self.tiles - 1):
            return self.rest[number - len(self.turn) * (self.tiles - 1)]
        return self.turn[number % len(self.turn)]


FORWARD = [Rung("v9_wgmma", "", "S PV"), Rung("v10_warp_specialised", "", "S PV"),
           Rung("v11_overlapped_softmax", "S", "S PV"), Rung("v12_lazy_rescale", "S", "S PV"),
           Rung("v13_more_warpgroups", "S", "S PV", "PV", 52, 1920),
           Rung("v14_persistent", "S", "S PV", "PV", 52, 1920)]
BACKWARD = [Rung("v10_wgmma", "", "S dP dV dQ dK", clocks=2560),
            Rung("v11_warp_specialised", "", "S dP dV dQ dK", clocks=2560),
            Rung("v12_turns", "S dP", "dQ dV dK S dP", clocks=2560),
            Rung("v13_fused_delta", "S dP", "dQ dV dK S dP", clocks=2560)]
LOADS = {"03": {2: "K", 3: "V"}, "04": {1: "Q", 3: "dO", 4: "dO"}}  # by HopperWait


def read_stamps(stage):
    """{rung: {warpgroup: [(clock, kind, tag)]}}; "# rung" stands above the stamps of a rung."""
    found, here = {}, None
    for line in tool.lines_of((RESULTS / f"{stage}_stamps_h200.txt").read_text(encoding="utf-8")):
        words = line.split()
        if line.startswith("# ") and len(words) == 2:
            here = found.setdefault(words[1], {})
        elif line and not line.startswith("#"):
            here.setdefault(int(words[0]), []).append((int(words[1]), words[2], int(words[3])))
    return found


def products(rung, stamps):
    """[(from, to, names)] of a warpgroup: products whose end the same wait sees are one. They begin
    when they are issued and those before have ended."""
    done, waiting, issued, ended = [], [], 0, 0
    for clock, kind, tag in stamps:
        if kind == "m":
            issued = clock
        elif kind == "c":
            waiting.append((issued, rung.product(tag)))
            issued = clock
        elif kind == "W" and len(waiting) > tag:
            over, waiting = waiting[:len(waiting) - tag], waiting[len(waiting) - tag:]
            done.append((max(over[0][0], ended), clock, " ".join(name for _, name in over)))
            ended = clock
    return done


def threads(rung, stamps):
    """[(from, to, what)] of a warp: what its threads do themselves, between the return of a wait
    and the next order or wait. The wait for dQ is the one before dQ is added to memory."""
    done, waiting, last = [], [], None
    for clock, kind, tag in stamps:
        if last and last[1] in "WBSF" and clock - last[0] >= SHORT:
            done.append((last[0], clock, last[2]))
        what = last[2] if last else "P"
        if kind == "c":
            waiting.append(rung.product(tag))
        elif kind == "W":
            ended = waiting[:max(len(waiting) - tag, 0)]
            waiting = waiting[len(ended):]
            what = "dQ" if ended and ended[-1] == "dQ" else "P"
        elif kind != "B":
            what = "P"
        last = (clock, kind, what)
    return done


def loads(stamps):
    """[(from, to, what, barrier)]: from the order to the first warp that sees the tile there."""
    seen = {}
    for of_warp in stamps.values():
        for clock, kind, tag in of_warp:
            if kind == "B":
                seen.setdefault(tag & 0x3ffff, []).append((clock, tag >> 18))
    done = []
    for of_warp in stamps.values():
        for clock, kind, barrier in of_warp:
            if kind == "l" and barrier in seen:
                waits = sorted(seen[barrier])
                n = bisect.bisect(waits, (clock, 99))
                if n < len(waits):
                    done.append((clock, waits[n][0], waits[n][1], barrier))
    return sorted(done)


def tile_clocks(rung, stamps):
    """Clocks from a tile's S to the next tile's, the median."""
    begins = [clock for clock, kind, tag in stamps if kind == "c" and rung.product(tag) == "S"]
    return statistics.median(b - a for a, b in zip(begins, begins[1:]))


class Panel:
    """A rung's lines of time: `clocks` of its block, from a third of its stamps on."""

    def __init__(self, stage, rung, stamps, clocks):
        self.stage, self.rung, self.stamps, self.clocks = stage, rung, stamps, clocks
        self.workers = sorted(g for g, of in stamps.items() if any(s[1] == "c" for s in of))
        first = [s[0] for s in stamps[self.workers[0]] if s[1] == "m"]
        self.start = first[len(first) // 3]
        self.loads = loads(stamps)
        self.lanes = sorted({load[2:] for load in self.loads if load[2] in LOADS[stage]})
        self.height = 28 + 9 * len(self.lanes) + 5 + 46 * len(self.workers) + 14

    def bar(self, pic, y, height, span, colour, text="", opacity=0.35):
        begin, end = max(span[0], self.start), min(span[1], self.start + self.clocks)
        if begin >= end:
            return
        x = LEFT + (begin - self.start) * WIDTH / self.clocks
        width = (end - begin) * WIDTH / self.clocks
        pic.box(round(x, 1), y, round(max(width - 1, 0.5), 1), height, colour, colour, opacity, 1)
        if text and width > 8 * len(text) + 2:
            pic.text(round(x + width / 2, 1), y + height / 2 + 4.5, text, 12)

    def draw(self, pic, top):
        rung, each = self.rung, tile_clocks(self.rung, self.stamps[self.workers[0]])
        pic.text(20, top + 14, rung.name, 15, "start", weight="bold")
        pic.text(960, top + 14, f"a tile: {each:.0f} clocks; its products alone: "
                 f"{rung.clocks}: {rung.clocks / each:.0%}", 13, "end")
        y = top + 24
        for n, (what, barrier) in enumerate(self.lanes):
            if n == 0 or self.lanes[n - 1][0] != what:
                pic.text(LEFT - 8, y + 12, f"load {LOADS[self.stage][what]}", 12, "end")
            for start, end, _, counts_on in self.loads:
                if counts_on == barrier:
                    self.bar(pic, y, 7, (start, end), GREEN)
            y += 9
        y += 5
        for n, group in enumerate(self.workers):
            pic.text(LEFT - 8, y + 14, f"{n}: products", 12, "end")
            pic.text(LEFT - 8, y + 34, "threads", 12, "end")
            for start, end, name in products(rung, self.stamps[group]):
                self.bar(pic, y, 18, (start, end), BLUE, name, 0.2 if "V" in name else 0.45)
            for start, end, what in threads(rung, self.stamps[group]):
                self.bar(pic, y + 20, 18, (start, end), PURPLE if what == "dQ" else YELLOW,
                         "add dQ" if what == "dQ" else "", 0.45)
            y += 46


def draw_rungs(stage, rungs, clocks, title, work):
    recorded = read_stamps(stage)
    panels = [Panel(stage, rung, recorded[rung.name], clocks) for rung in rungs]
    height = 76 + sum(panel.height for panel in panels)
    pic = Drawing(980, height, title, "Lines of time of a block, from stamps of the clock by its "
                  "warpgroups: which tiles are on their way, which products each warpgroup has in "
                  "flight, and what its threads do meanwhile.")
    pic.text(490, 32, title, 19)
    pic.text(490, 56, f"measured, {clocks} clocks; green: a tile, from its order until it is first "
             f"seen; blue: products; yellow: {work}", 13, fill=GREY)
    top = 76
    for panel in panels:
        panel.draw(pic, top)
        top += panel.height
    return pic.done()


def draw_two_forward():
    return draw_rungs("03", FORWARD[1:3], 9000, f"A block of v10 and of v11, {CASE}", "softmax")


def draw_all_forward():
    return draw_rungs("03", FORWARD, 9000, f"Hopper's rungs of stage 03, {CASE}", "softmax")


def draw_two_backward():
    return draw_rungs("04", BACKWARD[1:3], 9000, f"A block of v11 and of v12, {CASE}", "P, dS")


def draw_all_backward():
    return draw_rungs("04", BACKWARD[:3], 9000, f"Hopper's rungs of stage 04, {CASE}", "P, dS")


FIGURES = {"03_overlapped_softmax.svg": draw_two_forward, "03_stamps.svg": draw_all_forward,
           "04_warpgroup_turns.svg": draw_two_backward, "04_stamps.svg": draw_all_backward}
