# SPDX-License-Identifier: MIT
"""draw_ring.py: the drawings of stage 06. Who holds which keys and which pairs are visible is
computed here, from the positions that each layout gives to each rank; errors are recorded ones.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import math

import rows as recorded
from svg_drawing import BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Drawing

RANKS = 4
COLOURS = [BLUE, YELLOW, GREEN, PURPLE]  # of each rank's tokens


def positions(layout, rank, tokens):
    """Which tokens a rank has, of RANKS * tokens in all."""
    chunk = tokens // 2
    if layout == "striped":
        return [rank + n * RANKS for n in range(tokens)]
    if layout == "zigzag":
        late = 2 * RANKS - 1 - rank
        return [c * chunk + n for c in (rank, late) for n in range(chunk)]
    return [rank * tokens + n for n in range(tokens)]


def owner_at(rank, step):
    return (rank - step) % RANKS


# --- the ring in four pictures -------------------------------------------------------------------

def point(angle, radius, x, y):
    return x + radius * math.sin(angle), y - radius * math.cos(angle)


def bent_arrow(pic, x, y, radius, start, end):
    """Along the circle, clockwise, with a head."""
    steps = [start + (end - start) * n / 12 for n in range(13)]
    pic.curve([point(a, radius, x, y) for a in steps], GREY, 2)
    tip, back = point(end + 0.07, radius, x, y), end - 0.05
    pic.curve([point(back, radius - 6, x, y), tip, point(back, radius + 6, x, y)], GREY, 2)


def draw_steps():
    pic = Drawing(1000, 500, "A ring of four ranks in four pictures",
                  "Four steps. Each rank keeps its queries; blocks of keys go clockwise. Below, "
                  "the score matrix fills, one block in each row of blocks at every step.")
    pic.text(500, 30, "Queries stay, keys and values go round: four steps, three hops", 19)
    for step in range(RANKS):
        x, y = 130 + 247 * step, 165
        pic.text(x, 66, f"step {step}", 16, weight="bold")
        for rank in range(RANKS):
            angle = rank * math.pi / 2
            cx, cy = point(angle, 68, x, y)
            held = owner_at(rank, step)
            pic.box(cx - 29, cy - 22, 58, 44, "white", GREY, 1)
            pic.box(cx - 26, cy - 19, 24, 38, COLOURS[rank], COLOURS[rank], 0.35, 2)
            pic.box(cx + 2, cy - 19, 24, 38, COLOURS[held], COLOURS[held], 0.85, 2)
            pic.text(cx - 14, cy + 5, f"Q{rank}", 13)
            pic.text(cx + 14, cy + 5, f"K{held}", 13, fill="white")
            if step < RANKS - 1:
                bent_arrow(pic, x, y, 68, angle + 0.55, angle + math.pi / 2 - 0.6)
        draw_scores(pic, x, 300, step)
    pic.text(500, 486, "below: the score matrix, a row of blocks for each rank; strong: this step, "
             "pale: the steps before", 13, fill=GREY)
    return pic.done()


def draw_scores(pic, x, top, now):
    side = 36
    left = x - 2 * side
    for rank in range(RANKS):
        pic.text(left - 8, top + rank * side + 23, f"Q{rank}", 12, "end")
        pic.text(left + rank * side + 18, top - 6, f"K{rank}", 12)
        for step in range(RANKS):
            key = owner_at(rank, step)
            pic.box(left + key * side, top + rank * side, side, side, "#F4F4F4", "#CCCCCC", 1, 0)
            if step <= now:
                pic.box(left + key * side, top + rank * side, side, side, COLOURS[key],
                        COLOURS[key], 0.85 if step == now else 0.25, 0)


# --- the memory of one rank ----------------------------------------------------------------------

def draw_buffers():
    rank, wide, left = 2, 200, 150
    places = ("its own", "buffer 0", "buffer 1")
    pic = Drawing(1000, 470, "The memory of one rank in a ring",
                  "Four steps of rank 2. It computes with its own keys, then with those in buffer "
                  "0, buffer 1 and buffer 0; each block is sent on while the next one arrives.")
    pic.text(500, 30, f"Rank {rank} of {RANKS}: where the keys lie, step after step", 19)
    held = {places[0]: rank}
    here = places[0]
    for n, place in enumerate(places):
        pic.text(left - 14, 130 + 100 * n, place, 15, "end", weight="bold")
    for step in range(RANKS):
        x = left + wide * step + 10 * step
        pic.text(x + wide / 2, 70, f"step {step}", 16, weight="bold")
        arriving = f"buffer {step % 2}" if step < RANKS - 1 else None
        if arriving == here:
            raise ValueError("the block that arrives overwrites the one that is used")
        for n, place in enumerate(places):
            y = 84 + 100 * n
            used, comes = place == here, place == arriving
            held_here = held.get(place)
            pic.box(x, y, wide, 80, COLOURS[owner_at(rank, step)] if used else "white",
                    "#222222" if used else GREY, 0.35 if used else 1, 4, "6 4" if comes else "")
            if used:
                pic.text(x + wide / 2, y + 32, f"K{held_here} V{held_here}: compute", 15,
                         weight="bold")
                pic.text(x + wide / 2, y + 58, f"then send to rank {(rank + 1) % RANKS}"
                         if arriving else "nobody needs it now", 14)
            elif comes:
                pic.text(x + wide / 2, y + 32, f"K{owner_at(rank, step + 1)} "
                         f"V{owner_at(rank, step + 1)} arrive", 15)
                pic.text(x + wide / 2, y + 58, f"from rank {(rank - 1) % RANKS}", 14)
            elif held_here is not None and place == places[0]:
                pic.text(x + wide / 2, y + 44, f"K{held_here} V{held_here}", 15, fill=GREY)
            else:
                pic.text(x + wide / 2, y + 44, "free", 15, fill=GREY)
        if arriving:
            here = arriving
            held[here] = owner_at(rank, step + 1)
    pic.text(500, 420, "filled: the rank computes with it and sends it; dashed: the next block "
             "arrives here", 14)
    pic.text(500, 446, "the two are never the same memory", 14, fill=GREY)
    return pic.done()


# --- balance -------------------------------------------------------------------------------------

def pairs(layout, q_rank, k_rank, tokens):
    keys = positions(layout, k_rank, tokens)
    return sum(q >= k for q in positions(layout, q_rank, tokens) for k in keys)


def useful_share(layout, tokens):
    """All ranks wait for the slowest at each step."""
    steps = [[pairs(layout, r, owner_at(r, t), tokens) for r in range(RANKS)]
             for t in range(RANKS)]
    return sum(map(sum, steps)) / (RANKS * sum(map(max, steps)))


def draw_balance():
    tokens, cell, many = 4, 15, 64
    pic = Drawing(1000, 590, "Balance of three layouts under a causal mask",
                  "Above: the causal score matrix in sequence order, coloured by the rank that "
                  "owns the query. Below: how long each rank computes at each step.")
    pic.text(500, 30, "The same causal mask, dealt out in three ways over four ranks", 19)
    for column, layout in enumerate(("contiguous", "zigzag", "striped")):
        x0 = 55 + 325 * column
        pic.text(x0 + 120, 66, layout, 16, weight="bold")
        whose = {p: r for r in range(RANKS) for p in positions(layout, r, tokens)}
        for q in range(RANKS * tokens):
            for k in range(RANKS * tokens):
                seen = q >= k
                pic.box(x0 + k * cell, 82 + q * cell, cell, cell,
                        COLOURS[whose[q]] if seen else "white", "#DDDDDD", 0.75, 0)
        share = useful_share(layout, many)
        left = x0
        pic.text(x0 + 120, 352, "work of each rank, step after step", 13, fill=GREY)
        for step in range(RANKS):
            work = [pairs(layout, r, owner_at(r, step), many) for r in range(RANKS)]
            wide = 62 * max(work) / many**2  # one scale for all three
            for rank in range(RANKS):
                y = 366 + rank * 40
                pic.box(left, y, wide, 30, "none", "#BBBBBB", 1, 0, "3,3")
                pic.box(left, y, wide * work[rank] / max(work), 30, COLOURS[rank],
                        COLOURS[rank], 0.75, 0)
            left += wide + 4
        for rank in range(RANKS):
            pic.text(x0 - 6, 386 + rank * 40, str(rank), 13, "end")
        pic.text(x0 + 120, 551, f"useful, if all wait: {share:.0%}", 15,
                 fill=RED if share < 0.9 else "#222222")
    pic.text(500, 578, f"above 4 tokens a rank, below {many}; dashed: waiting for the slowest", 13,
             fill=GREY)
    return pic.done()


# --- errors against the number of ranks ----------------------------------------------------------

def draw_errors():
    pic = Drawing(1000, 430, "Errors against the number of ranks",
                  "Largest errors of O, dQ, dK and dV for 1 to 16 ranks. With float32 partials "
                  "they stay where they are, with bf16 partials they grow.")
    pic.text(500, 30, "Largest errors against the number of ranks, method ring", 19)
    rows = recorded.usable(recorded.load([recorded.ROOT / "docs/results/06_errors_cpu.jsonl"]))
    for column, dtype in enumerate(("f32", "bf16")):
        mine = [r for r in rows if r["dtype"] == dtype]
        draw_error_panel(pic, 80 + 440 * column, mine, f"tensors in {dtype}")
    for n, array in enumerate(("O", "dQ", "dK", "dV")):
        pic.line(905, 120 + 26 * n, 935, 120 + 26 * n, COLOURS[n], 3)
        pic.text(944, 125 + 26 * n, array, 15, "start")
    pic.text(500, 418, "solid: partials in float32; dashed: --partials bf16", 13, fill=GREY)
    return pic.done()


def draw_error_panel(pic, x0, rows, title):
    logs = [math.log10(r["errors"][a]) for r in rows for a in ("O", "dQ", "dK", "dV")]
    low, high = math.floor(min(logs) * 2) / 2, math.ceil(max(logs) * 2) / 2

    def place(ranks, error):
        return x0 + math.log2(ranks) * 90, 360 - 280 * (math.log10(error) - low) / (high - low)

    pic.text(x0 + 180, 66, title, 16, weight="bold")
    for ranks in (1, 2, 4, 8, 16):
        pic.text(place(ranks, 1)[0], 380, str(ranks), 13)
    pic.text(x0 + 180, 398, "ranks", 13)
    for power in range(math.ceil(low), math.floor(high) + 1):
        y = place(1, 10.0**power)[1]
        pic.line(x0, y, x0 + 360, y, "#DDDDDD", 1)
        pic.text(x0 - 8, y + 5, f"1e{power}", 13, "end")
    for n, array in enumerate(("O", "dQ", "dK", "dV")):
        for partials, dash in (("f32", ""), ("bf16", "7,5")):
            points = sorted((r["ranks"], r["errors"][array]) for r in rows
                            if r["partials"] == partials)
            pic.curve([place(*p) for p in points], COLOURS[n], 2.5, dash)


FIGURES = {"06_steps.svg": draw_steps, "06_buffers.svg": draw_buffers,
           "06_balance.svg": draw_balance, "06_errors.svg": draw_errors}
