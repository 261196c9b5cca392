# SPDX-License-Identifier: MIT
"""draw_backward.py: the drawings of stage 04. Every number in them is computed here: the row of
the hand example from its Q, K, V and dO, crossings by walking the loops, fragments from the
formulas that common/units/mma.cuh states.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
from draw_flash import draw_cells, lane_of_a, lane_of_c
from draw_hand import K, V, dot, weights
from svg_drawing import BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Drawing

DO3 = (1, -1)  # of query 3


def hand_row():
    """P, dP, delta and dS of query 3."""
    P = weights(3, range(len(K)))
    dP = [dot(DO3, v) for v in V]
    delta = dot(P, dP)
    return P, dP, delta, [p * (x - delta) for p, x in zip(P, dP)]


def draw_delta():
    P, dP, delta, dS = hand_row()
    O = [dot(P, column) for column in zip(*V)]
    if abs(delta - dot(DO3, O)) > 1e-12 or abs(sum(dS)) > 1e-12:
        raise ValueError("delta is not rowsum(dO * O), or dS does not sum to zero")
    pic = Drawing(980, 470, "What delta is",
                  "Four keys as bars: as wide as P, as high as dP. delta is the mean height; "
                  "dS is the signed area between a bar and that mean.")
    pic.text(490, 32, "delta is the mean of dP under P; dS is the area between dP and that mean",
             19)
    pic.text(490, 56, "query 3 of the hand example: each bar is as wide as P and as high as dP", 13,
             fill=GREY)
    left, zero, unit, width = 70, 190, 46, 430
    pic.line(left - 20, zero, left + width + 20, zero, "#222222", 1)
    pic.text(left - 28, zero + 5, "0", 13, "end")
    level = zero - delta * unit
    x = left
    for j, (p, height) in enumerate(zip(P, dP)):
        w, top = p * width, zero - height * unit
        up = height > delta
        pic.box(x, min(top, level), w - 3, abs(top - level), GREEN if up else RED,
                GREEN if up else RED, 0.35, 1)
        pic.line(x, top, x + w - 3, top, "#222222", 3)
        pic.text(x + w / 2, 88, f"key {j}", 14, weight="bold")
        pic.text(x + w / 2, 107, f"P {p:.4f}", 12, fill=GREY)
        pic.text(x + w / 2, top + (-8 if up else 20), f"dP {height}", 13)
        x += w
    pic.line(left - 20, level, left + width + 20, level, BLUE, 2.5)
    pic.text(left + width + 28, level + 5, f"delta = {delta:.4f}", 15, "start", BLUE, "bold")
    for j, area in enumerate(dS):
        y = 262 + 28 * j
        pic.text(600, y, f"dS of key {j} = {P[j]:.4f} ({dP[j]:g} - {delta:.4f})".replace(
            "- -", "+ "), 14, "start")
        pic.text(930, y, f"{area:+.4f}", 14, "end", GREEN if area > 0 else RED, "bold")
    pic.text(930, 262 + 28 * 4, f"sum {abs(sum(dS)):.4f}", 14, "end", weight="bold")
    pic.text(490, 440, "green: the loss grows with this score; red: it falls. The areas cancel: "
             "adding the same to all scores of a row changes nothing", 13)
    return pic.done()


def draw_five_products():
    pic = Drawing(980, 480, "Five products of a tile",
                  "S and dP are computed from the inputs; P and dS from these and two numbers a "
                  "row; dV, dK and dQ gain a product each.")
    pic.text(490, 32, "One tile: five products, two lines of arithmetic between them", 19)
    pic.text(490, 56, "keys outside: green stays in fast memory, blue is loaded for each tile, "
             "yellow is never stored, red goes back to slow memory", 13, fill=GREY)

    def node(x, y, w, h, text, colour, note="", weight="normal"):
        pic.box(x, y, w, h, colour, colour, 0.25, 5)
        pic.text(x + w / 2, y + h / 2 + (5 if not note else -3), text, 16, weight=weight)
        if note:
            pic.text(x + w / 2, y + h / 2 + 17, note, 12, fill="#444444")

    rows = (("Q_i", BLUE, 96), ("K_j", GREEN, 152), ("V_j", GREEN, 268), ("dO_i", BLUE, 324))
    for name, colour, y in rows:
        node(40, y, 90, 42, name, colour)
    node(220, 108, 180, 74, "S = scale Q_i K_jᵀ", YELLOW, "1: computed again")
    node(220, 280, 180, 74, "dP = dO_i V_jᵀ", YELLOW, "2")
    node(470, 108, 180, 74, "P = exp(S - lse_i)", YELLOW, "lse_i from the forward")
    node(470, 280, 180, 74, "dS = P (dP - delta_i)", YELLOW, "delta_i = dO_i . O_i")
    node(740, 96, 210, 62, "dV_j += Pᵀ dO_i", GREEN, "3")
    node(740, 252, 210, 62, "dK_j += scale dSᵀ Q_i", GREEN, "4")
    node(740, 332, 210, 62, "dQ_i += scale dS K_j", RED, "5", "bold")

    def link(x1, y1, x2, y2):
        pic.line(x1, y1, x2 - 8, y2)
        pic.curve([(x2 - 12, y2 - 5), (x2 - 2, y2), (x2 - 12, y2 + 5)], GREY, 2)

    link(132, 117, 218, 138)
    link(132, 173, 218, 152)
    link(132, 289, 218, 310)
    link(132, 345, 218, 324)
    link(402, 145, 468, 145)
    link(402, 317, 468, 317)
    pic.down(560, 184, 560, 278)
    link(652, 145, 738, 130)
    link(652, 312, 738, 286)
    link(652, 322, 738, 360)
    pic.text(490, 432, "forward: 2 products, 4 N² d operations a head; backward: 5, 10 N² d; with "
             "P kept in memory it would be 4, 8 N² d", 14)
    pic.text(490, 458, "with the loops exchanged dQ_i stays, and dK_j and dV_j go back: two arrays "
             "instead of one", 14, fill=GREY)
    return pic.done()


T = 4  # tiles of queries and of keys in the pictures


def crossings(way):
    """Tiles that cross between fast and slow memory, by walking the loops; and products."""
    count = {"Q, dO in": 0, "K, V in": 0, "dQ added": 0, "dQ out": 0, "dK, dV out": 0}
    products = 0
    if way in ("atomics", "turns"):
        for _ in range(T):
            count["K, V in"] += 1
            for _ in range(T):
                count["Q, dO in"] += 1
                count["dQ added"] += 1
                products += 5
            count["dK, dV out"] += 1
    else:
        for _ in range(T):  # the kernel for dQ: queries outside, S, dP, dQ
            count["Q, dO in"] += 1
            for _ in range(T):
                count["K, V in"] += 1
                products += 3
            count["dQ out"] += 1
        for _ in range(T):  # the kernel for dK and dV: keys outside, S, dP, dV, dK
            count["K, V in"] += 1
            for _ in range(T):
                count["Q, dO in"] += 1
                products += 4
            count["dK, dV out"] += 1
    return count, products


def draw_three_ways():
    pic = Drawing(980, 540, "Three ways to accumulate dQ",
                  "Blocks of keys add to the same dQ atomically; or two kernels, each of which "
                  "owns what it sums; or the blocks add in turns.")
    pic.text(490, 32, "Three ways to add up dQ", 19)
    pic.text(490, 56, f"{T} x {T} tiles; a colour is a block: it owns its column (or row) and "
             "nobody else writes there", 13, fill=GREY)
    colours, cell = [BLUE, YELLOW, GREEN, PURPLE], 34

    def grid(x0, y0, by_row, numbers=None):
        for i in range(T):
            for j in range(T):
                pic.box(x0 + j * cell, y0 + i * cell, cell, cell, colours[i if by_row else j],
                        "white", 0.4, 0)
                if numbers:
                    pic.text(x0 + (j + 0.5) * cell, y0 + (i + 0.5) * cell + 5, numbers(i, j), 13)

    tops = {"atomics": 40, "two kernels": 340, "turns": 680}
    for way, x0 in tops.items():
        pic.text(x0 + (143 if way == "two kernels" else 98), 92, way, 17, weight="bold")
        if way == "two kernels":
            pic.text(x0 + 60, 118, "dQ: rows", 13)
            grid(x0 - 8, 130, True)
            pic.text(x0 + 226, 118, "dK, dV: columns", 13)
            grid(x0 + 158, 130, False)
        else:
            grid(x0 + 30, 130, False, (lambda i, j: str(j)) if way == "turns" else
                 (lambda i, j: "?"))
            for i in range(T):
                y = 130 + (i + 0.5) * cell
                pic.arrow(x0 + 30 + T * cell + 4, x0 + 30 + T * cell + 40, y, 5, RED)
                pic.text(x0 + 30 + T * cell + 62, y + 5, f"dQ{i}", 14, fill=RED)
        count, products = crossings(way)
        y = 316
        for name, number in [*count.items(), ("products", products)]:
            often = number > T and name in ("dQ added", "products") and (
                name != "products" or products > 5 * T * T)
            pic.text(x0 + 10, y, name if name == "products" else f"tiles of {name}", 14, "start")
            pic.text(x0 + 210, y, str(number), 14, "end", RED if often else "#222222",
                     "bold" if often else "normal")
            y += 23
    notes = {"atomics": ("whoever comes adds:", "another order, other last bits"),
             "two kernels": ("S and dP twice,", "nothing shared: same bits"),
             "turns": ("block 0 adds, then 1, ...:", "same bits, and some waiting")}
    for way, x0 in tops.items():
        for n, line in enumerate(notes[way]):
            pic.text(x0 + 110, 482 + 22 * n, line, 14, fill="#222222" if n else GREY)
    return pic.done()


def draw_transposed():
    pic = Drawing(980, 520, "Why the scores are transposed",
                  "S transposed, keys by queries, in accumulator layout has the layout of the left "
                  "factor of the next product, P transposed times dO.")
    same = all(lane_of_a(r, c)[0] == lane_of_c(r, c % 8)[0] and
               lane_of_a(r, c)[1] == lane_of_c(r, c % 8)[1] + 2 * (c // 8)
               for r in range(16) for c in range(16))
    if not same:
        raise ValueError("an accumulator of S transposed is not a left factor")
    pic.text(490, 32, "Keys by queries: Pᵀ and dSᵀ are left factors where they were computed", 19)
    pic.text(490, 56, "the number is the lane, the colour the register; lane 6 is dark", 13,
             fill=GREY)
    y0 = 120
    pic.text(182, 92, "Sᵀ = K Qᵀ: two accumulators", 15, weight="bold")
    draw_cells(pic, 30, y0, 16, 16, lambda r, c: (lane_of_c(r, c % 8)[0],
                                                  lane_of_c(r, c % 8)[1] + 2 * (c // 8)),
               lambda r: r)
    pic.text(30, y0 + 322, "rows: keys", 13, "start", GREY)
    pic.text(192, y0 - 8, "queries", 13, fill=GREY)
    pic.arrow(342, 418, y0 + 152, 8, GREEN)
    pic.text(380, y0 + 130, "exp, round", 13)
    pic.text(380, y0 + 186, "no move", 13, fill=GREEN, weight="bold")
    pic.text(580, 92, "left factor of Pᵀ dO and dSᵀ Q", 15, weight="bold")
    draw_cells(pic, 428, y0, 16, 16, lane_of_a, lambda r: r)
    pic.text(580, y0 - 8, "queries: what the product sums over", 13, fill=GREY)
    table = (("product", "sums over", "left", "right"),
             ("Sᵀ = K Qᵀ", "channels", "K", "Q"), ("dPᵀ = V dOᵀ", "channels", "V", "dO"),
             ("dV += Pᵀ dO", "queries", "registers", "dO, turned"),
             ("dK += dSᵀ Q", "queries", "registers", "Q, turned"),
             ("dQ += dS K", "keys", "dSᵀ, turned", "K, turned"))
    for n, (product, over, a, b) in enumerate(table):
        y = 132 + 40 * n
        weight = "normal" if n else "bold"
        pic.text(752, y, product, 14, "start", weight=weight)
        pic.text(752, y + 16, over if n == 0 else f"over {over}: {a} | {b}", 11, "start",
                 RED if n == 5 else GREY)
    pic.text(490, 462, "dQ sums over keys, that is over warps: dSᵀ goes to shared memory, and "
             "ldmatrix turns it on the way back", 14)
    pic.text(490, 492, "Of the three products that need P or dS, two have it in registers; with S, "
             "queries by keys, only dQ would", 15, weight="bold")
    return pic.done()


BLOCKS, ADD = 6, 0.25  # blocks of keys; the part of a tile's time that the addition to dQ takes


def take_turns(causal, descending):
    """When each block adds to each row, if it may only after the one before it has: {(block, row):
    (start of the tile, start of the addition, end)}. Block j walks its rows from the first up."""
    done, at, left = {}, [0.0] * BLOCKS, [list(range(j if causal else 0, BLOCKS))
                                          for j in range(BLOCKS)]
    while any(left):
        for j in range(BLOCKS):
            if not left[j]:
                continue
            i = left[j][0]
            before = j + 1 if descending else j - 1
            waits = 0 <= before <= (i if causal else BLOCKS - 1)
            if waits and (before, i) not in done:
                continue
            ready = at[j] + 1 - ADD
            add = max(ready, done[before, i][2]) if waits else ready
            done[j, i] = (at[j], add, add + ADD)
            at[j] = add + ADD
            left[j].pop(0)
    return done


def draw_turns():
    pic = Drawing(980, 640, "Turns",
                  "Six blocks of keys add to the rows of dQ in turns. With a causal mask the order "
                  "from the last block to the first lets nobody wait.")
    pic.text(490, 32, "Turns: who waits depends on the order", 19)
    pic.text(490, 56, "a line is a block of keys, a box a tile of queries with its number; dark: "
             "its addition to dQ; white: waiting for one's turn", 13, fill=GREY)
    unit, left = 78, 130
    cases = (("no mask, block 0 first", False, False), ("causal, block 0 first", True, False),
             ("causal, the last block first", True, True))
    for n, (title, causal, descending) in enumerate(cases):
        done, top = take_turns(causal, descending), 84 + n * 184
        end = max(t[2] for t in done.values())
        alone = max((BLOCKS - j if causal else BLOCKS) for j in range(BLOCKS))
        pic.text(left, top + 10, f"{title}: done after {end:g}; without turns {alone}", 15,
                 "start", weight="bold")
        for (j, i), (start, add, stop) in done.items():
            y, work = top + 22 + j * 24, start + 1 - ADD
            x = left + start * unit
            pic.box(x, y, (work - start) * unit, 20, BLUE, BLUE, 0.25, 1)
            if add > work:
                pic.box(left + work * unit, y + 4, (add - work) * unit, 12, "white", RED, 1, 1)
            pic.box(left + add * unit, y, ADD * unit - 2, 20, BLUE, BLUE, 0.8, 1)
            pic.text(x + (work - start) * unit / 2, y + 15, str(i), 12)
        for j in range(BLOCKS):
            pic.text(left - 14, top + 37 + j * 24, f"block {j}", 12, "end", GREY)
        pic.line(left + end * unit, top + 18, left + end * unit, top + 168, RED, 2)
    return pic.done()


FIGURES = {"04_delta.svg": draw_delta, "04_five_products.svg": draw_five_products,
           "04_three_ways.svg": draw_three_ways, "04_transposed.svg": draw_transposed,
           "04_turns.svg": draw_turns}
