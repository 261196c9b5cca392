# SPDX-License-Identifier: MIT
"""draw_flash.py: the drawings of stage 03. Every number in them is computed here: visiting
orders and tile counts by walking the loops, fragments and swizzle from the formulas that
common/units/mma.cuh states, schedules by handing out blocks.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import heapq

import draw_hand
from svg_drawing import BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Drawing

T = 4  # tiles of queries and of keys in the pictures


def loop_order(keys_outside):
    """Tiles (i, j) in visiting order, and how many tiles of each array cross, in and out."""
    order, crossings = [], {"K, V in": 0, "Q in": 0, "O in": 0, "O out": 0}
    for outer in range(T):
        crossings["K, V in" if keys_outside else "Q in"] += 1
        for inner in range(T):
            order.append((inner, outer) if keys_outside else (outer, inner))
            if keys_outside:
                for name in ("Q in", "O in", "O out"):
                    crossings[name] += 1
            else:
                crossings["K, V in"] += 1
        if not keys_outside:
            crossings["O out"] += 1
    return order, crossings


def draw_loop_orders():
    pic = Drawing(980, 560, "Loop orders of FlashAttention 1 and 2",
                  "Four by four tiles of scores. With keys outside, the columns are visited one "
                  "after the other and O goes in and out at each tile; with queries outside, the "
                  "rows are, and O goes out once a row.")
    pic.text(490, 32, "Which loop is outside decides what travels", 19)
    pic.text(490, 56, f"{T} x {T} tiles of scores; the number is the order of the visits", 13,
             fill=GREY)
    for keys_outside, x0 in ((True, 40), (False, 530)):
        order, crossings = loop_order(keys_outside)
        size, left, top = 62, x0 + 100, 150
        pic.text(x0 + 205, 90, "v0, FA1: keys outside" if keys_outside else
                 "v1, FA2: queries outside", 17, weight="bold")
        for t in range(T):
            pic.box(left + t * size + 4, top - 34, size - 8, 28, BLUE, BLUE, 0.25, 2)
            pic.text(left + (t + 0.5) * size, top - 14, f"K{t} V{t}", 13)
            colour = RED if keys_outside else GREEN
            pic.box(left - 82, top + t * size + 8, 76, size - 16, colour, colour, 0.25, 2)
            pic.text(left - 44, top + (t + 0.5) * size - 2, f"Q{t} O{t}", 13)
            pic.text(left - 44, top + (t + 0.5) * size + 15, f"m{t} l{t}", 13)
        for number, (i, j) in enumerate(order, 1):
            outer = j if keys_outside else i
            pic.box(left + j * size, top + i * size, size, size, YELLOW, GREY, 0.08 + 0.14 * outer,
                    0)
            pic.text(left + (j + 0.5) * size, top + (i + 0.5) * size + 6, str(number), 16)
        y = top + T * size + 34
        for name, count in crossings.items():
            often = count > T
            pic.text(left - 80, y, f"tiles of {name}", 14, "start")
            pic.text(left + 130, y, str(count), 14, "end", RED if often else "#222222",
                     "bold" if often else "normal")
            y += 22
        note = ["in and out at", "every tile"] if keys_outside else [
            "stay in fast", "memory, leave", "once"]
        for line, words in enumerate(note):
            pic.text(left + 150, top + T * size + 60 + 18 * line, words, 13, "start", GREY)
    return pic.done()


def draw_fast_memory():
    N, d, M = len(draw_hand.K), len(draw_hand.K[0]), 16
    Bc = -(-M // (4 * d))
    Br = min(Bc, d)
    pic = Drawing(980, 470, "The tiles of Algorithm 1 on four tokens",
                  "Left: the four by four scores in four tiles of two by two, in visiting order. "
                  "Right: what fast memory holds at the third tile: Q, K, V and O of two rows "
                  "each fill it, and the scores, m and l come on top.")
    pic.text(490, 32, f"Four tokens, d = {d}, fast memory M = {M}: tiles of {Br} x {Bc}", 19)
    order = [(i, j) for j in range(0, N, Bc) for i in range(0, N, Br)]
    now, cell, left, top = order[2], 66, 150, 130
    pic.text(left + 2 * cell, 84, "the scores, and the order of the tiles", 15, weight="bold")
    for n in range(N):
        pic.text(left + (n + 0.5) * cell, top - 12, f"k{n}", 14)
        pic.text(left - 14, top + (n + 0.5) * cell + 5, f"q{n}", 14, "end")
    for number, (i, j) in enumerate(order, 1):
        here = (i, j) == now
        pic.box(left + j * cell, top + i * cell, Bc * cell, Br * cell, YELLOW if here else "white",
                "#222222", 0.45 if here else 1, 0)
        pic.text(left + (j + Bc / 2) * cell, top + (i + Br / 2) * cell + 8, str(number), 22,
                 weight="bold" if here else "normal")
    pic.text(left + 2 * cell, top + N * cell + 30, "keys outside: tiles 1 and 2 share their keys",
             14)
    pic.text(735, 84, "fast memory at tile 3", 15, weight="bold")
    i, j = now
    both = f"{i} and {i + 1}", f"{j} and {j + 1}"
    y = 108
    for name, rows, numbers, counted in (
            ("Q", f"queries {both[0]}", Br * d, True), ("K", f"keys {both[1]}", Bc * d, True),
            ("V", f"keys {both[1]}", Bc * d, True), ("O", f"queries {both[0]}", Br * d, True),
            ("S", "scores of the tile", Br * Bc, False), ("m, l", f"queries {both[0]}", 2 * Br,
                                                          False)):
        y += 0 if counted or name != "S" else 30
        pic.text(546, y + 26, name, 16, "end", weight="bold")
        for n in range(numbers):
            pic.box(560 + 34 * n, y + 5, 32, 32, BLUE if counted else YELLOW, "#222222",
                    0.3 if counted else 0.45, 1)
        pic.text(712, y + 26, rows, 14, "start")
        y += 44
    sizes = [Br * d, Bc * d, Bc * d, Br * d]
    if sum(sizes) != M:
        raise ValueError("the four tiles do not fill M")
    pic.line(860, 112, 860, 278, "#222222", 2)
    pic.line(860, 318, 860, 396, "#222222", 2)
    pic.text(872, 200, f"{sum(sizes)} = M", 16, "start", weight="bold")
    pic.text(872, 362, f"{Br * Bc + 2 * Br} more", 16, "start", weight="bold")
    pic.text(490, 452, "a box is one number", 14, fill=GREY)
    return pic.done()


def draw_blocks():
    heads, N, rows, multiprocessors, wide = 16, 4096, 32, 132, 12
    pic = Drawing(980, 400, "Blocks of threads for the multiprocessors",
                  "132 multiprocessors as boxes. With one block for each head 16 of them work; "
                  "with one for each 32 rows all of them have 15 or 16 blocks.")
    pic.text(490, 32, f"{multiprocessors} multiprocessors; the number is how many blocks come to "
             "each", 19)
    for x0, name, blocks in ((30, "v0_fa1: a block for each head", heads),
                             (510, f"v1_fa2: a block for each {rows} rows", heads * N // rows)):
        pic.text(x0 + 220, 74, name, 16, weight="bold")
        each = [blocks // multiprocessors + (n < blocks % multiprocessors)
                for n in range(multiprocessors)]
        for n, count in enumerate(each):
            x, y = x0 + n % wide * 37, 92 + n // wide * 22
            pic.box(x, y, 34, 19, BLUE if count else "white", GREY, 0.35 if count else 1, 1)
            if count:
                pic.text(x + 17, y + 14, str(count), 13)
        idle = each.count(0)
        pic.text(x0 + 220, 356, f"{blocks} blocks: {multiprocessors - idle} multiprocessors work, "
                 f"{idle} are idle", 15)
    pic.text(490, 386, f"{heads} heads, N = {N}; the blocks dealt out evenly", 14, fill=GREY)
    return pic.done()


FRAGMENT = [BLUE, GREEN, YELLOW, PURPLE]  # a0 a1 a2 a3


def lane_of_a(row, k):
    """(lane, register) that holds A[row][k] of m16n8k16."""
    return row % 8 * 4 + k % 8 // 2, (row // 8) + 2 * (k // 8)


def lane_of_b(k, col):
    return col * 4 + k % 8 // 2, k // 8


def lane_of_c(row, col):
    return row % 8 * 4 + col // 2, row // 8


def draw_cells(pic, x0, y0, rows, cols, holder, register_colour):
    cell = 19
    for r in range(rows):
        for c in range(cols):
            lane, register = holder(r, c)
            pic.box(x0 + c * cell, y0 + r * cell, cell, cell, FRAGMENT[register_colour(register)],
                    "white", 0.75 if lane == 6 else 0.22, 0)
            pic.text(x0 + (c + 0.5) * cell, y0 + (r + 0.5) * cell + 4, str(lane), 10,
                     weight="bold" if lane == 6 else "normal")


def draw_fragments():
    pic = Drawing(980, 520, "Fragments of mma.m16n8k16",
                  "Which lane of a warp holds which element of A, B and C. Two C tiles side by "
                  "side have the layout of A.")
    pic.text(490, 32, "Who holds what: one mma.m16n8k16 of a warp", 19)
    pic.text(490, 56, "the number is the lane, the colour the register; lane 6 (g = 1, t = 2) is "
             "dark", 13, fill=GREY)
    y0 = 120
    pic.text(182, 92, "A [16][16]: rows of Q, or P", 15, weight="bold")
    draw_cells(pic, 30, y0, 16, 16, lane_of_a, lambda r: r)
    pic.text(182, y0 + 328, "a0: row g, k 0-7;  a2: row g, k 8-15", 13)
    pic.text(182, y0 + 348, "a1: row g + 8, k 0-7;  a3: row g + 8, k 8-15", 13)
    pic.text(452, 92, "B [16][8]: keys, or V", 15, weight="bold")
    draw_cells(pic, 376, y0, 16, 8, lane_of_b, lambda r: 2 * r)
    pic.text(452, y0 + 328, "b0: k 0-7;  b1: k 8-15", 13)
    pic.text(780, 92, "C [16][8], two column tiles: S", 15, weight="bold")
    for n in (0, 1):
        draw_cells(pic, 622 + n * 158, y0, 16, 8, lane_of_c, lambda r, n=n: r + 2 * n)
        pic.text(622 + n * 158 + 76, y0 + 328, f"tile 2n{' + 1' if n else ''}", 13)
    pic.text(780, y0 + 348, "c0 c1: row g;  c2 c3: row g + 8", 13)
    same = all(lane_of_a(r, c)[0] == lane_of_c(r, c % 8)[0] for r in range(16) for c in range(16))
    if not same:
        raise ValueError("the layouts of A and of two C tiles differ")
    pic.text(490, 505, "Two C tiles side by side are an A: P = exp(S), rounded, needs no move "
             "before P V.", 15, weight="bold")
    return pic.done()


def draw_swizzle():
    pic = Drawing(980, 470, "Swizzled shared memory",
                  "Eight rows of eight 16-byte chunks. Stored in order, chunk 2 of all rows lies "
                  "in one bank group; with XOR by the row number it lies in eight.")
    pic.text(490, 32, "Eight rows of 128 bytes (d = 64, 16-bit): where chunk 2 of each row lies",
             19)
    pic.text(490, 56, "a column is a group of four banks; one ldmatrix phase reads the marked "
             "chunks of eight rows", 13, fill=GREY)
    for xor, x0 in ((False, 70), (True, 545)):
        cell, y0 = 44, 130
        pic.text(x0 + 4 * cell, 92, "place = chunk XOR (row mod 8)" if xor else "place = chunk", 16,
                 weight="bold")
        groups = set()
        for place in range(8):
            pic.text(x0 + (place + 0.5) * cell, y0 - 10, f"{4 * place}-{4 * place + 3}", 11,
                     fill=GREY)
        for row in range(8):
            pic.text(x0 - 10, y0 + row * 34 + 22, f"row {row}", 12, "end", GREY)
            for chunk in range(8):
                place = chunk ^ row if xor else chunk
                marked = chunk == 2
                groups |= {place} if marked else set()
                pic.box(x0 + place * cell, y0 + row * 34, cell, 34, RED if marked else BLUE,
                        "white", 0.8 if marked else 0.15, 0)
                pic.text(x0 + (place + 0.5) * cell, y0 + row * 34 + 22, str(chunk), 14,
                         fill="white" if marked else "#222222")
        pic.text(x0 + 4 * cell, y0 + 8 * 34 + 32,
                 f"{len(groups)} bank group{'s' if len(groups) > 1 else ''}: the read takes "
                 f"{8 // len(groups)} turn{'s' if len(groups) == 1 else ''}", 15)
    return pic.done()


def finish_times(costs, workers):
    """Blocks handed out in order to whoever is free. [(worker, start, cost)], end."""
    free = [(0, w) for w in range(workers)]
    placed = []
    for cost in costs:
        start, worker = heapq.heappop(free)
        placed.append((worker, start, cost))
        heapq.heappush(free, (start + cost, worker))
    return placed, max(start + cost for _, start, cost in placed)


def draw_causal():
    tiles, workers = 8, 5
    pic = Drawing(980, 470, "Full, masked and skipped tiles; longest blocks first",
                  "Under a causal mask tiles are skipped, masked or full. Handing out long row "
                  "tiles first ends earlier.")
    pic.text(490, 32, "A causal mask in tiles, and the order in which blocks start", 19)
    cell, x0, y0 = 38, 90, 96
    count = {"full": 0, "masked": 0, "skipped": 0}
    for i in range(tiles):
        for j in range(tiles):
            kind = "full" if j < i else "masked" if j == i else "skipped"
            count[kind] += 1
            colour = {"full": GREEN, "masked": RED, "skipped": "white"}[kind]
            pic.box(x0 + j * cell, y0 + i * cell, cell, cell, colour, GREY,
                    {"full": 0.3, "masked": 0.6, "skipped": 1}[kind], 0)
    pic.text(x0 + tiles * cell / 2, 82, "keys", 14)
    pic.text(x0 - 14, y0 + tiles * cell / 2, "queries", 14, "end")
    pic.text(x0 + tiles * cell / 2, y0 + tiles * cell + 26,
             ", ".join(f"{n} {kind}" for kind, n in count.items()), 14)
    costs = [i + 1 for i in range(tiles) for _ in range(2)]  # two heads
    unit, left = 24, 500
    for title, order, top in (("shortest first", costs, 96), ("longest first", costs[::-1], 266)):
        placed, end = finish_times(order, workers)
        pic.text(left, top, f"{title}: {workers} SMs are done after {end} steps", 15,
                 "start", weight="bold")
        for worker, start, cost in placed:
            pic.box(left + start * unit, top + 12 + worker * 25, cost * unit - 2, 22, BLUE, BLUE,
                    0.15 + 0.08 * cost, 2)
            pic.text(left + (start + cost / 2) * unit, top + 28 + worker * 25, str(cost), 12)
        pic.line(left + end * unit, top + 6, left + end * unit, top + 16 + workers * 25, RED, 2)
    pic.text(left, 436, f"{sum(costs)} steps of work in {len(costs)} blocks: at best "
             f"{-(-sum(costs) // workers)}", 14, "start", GREY)
    return pic.done()


def draw_split_keys():
    pic = Drawing(980, 400, "Keys split among blocks, and the merge",
                  "Four blocks take a quarter of the keys each for the same queries; a second "
                  "kernel merges their O and lse.")
    pic.text(490, 32, "Few rows, many keys: blocks share a row of tiles", 19)
    pic.text(490, 56, "each part is a finished attention over its own keys; the merge is stage "
             "02's, with O along", 13, fill=GREY)
    pic.box(30, 130, 76, 60, GREEN, GREEN, 0.25)
    pic.text(68, 165, "Q_i", 16)
    colours = [BLUE, RED, YELLOW, PURPLE]
    for p, colour in enumerate(colours):
        x = 150 + p * 200
        for n in range(4):
            pic.box(x + n * 46, 130, 44, 60, colour, colour, 0.25, 1)
        pic.text(x + 92, 165, f"keys of part {p}", 14)
        pic.down(x + 92, 194, x + 92, 226)
        pic.box(x + 12, 228, 160, 44, colour, colour, 0.18, 22)
        pic.text(x + 92, 255, f"O_{p}, lse_{p}", 15)
        pic.down(x + 92, 274, 540 + (p - 1.5) * 60, 318)
    pic.box(400, 320, 280, 60, GREY, GREY, 0.12, 8)
    pic.text(540, 345, "w_p = exp(lse_p - lse)", 15)
    pic.text(540, 367, "O = sum of w_p O_p", 15)
    return pic.done()


def draw_register_tile():
    rows, vectors, lanes = 14, 2, 16
    pic = Drawing(980, 470, "A register tile of the SIMD kernel",
                  "Fourteen rows by two vectors of sums stay in registers while one column of Q "
                  "and one row of a K panel pass by.")
    pic.text(490, 32, f"A register tile: {rows} rows x {vectors} vectors of {lanes} floats", 19)
    pic.text(490, 56, "one step, channel x: two vectors of K and fourteen single numbers of Q",
             13, fill=GREY)
    left, top, cell, wide = 300, 150, 19, 210
    pic.text(150, 140, "Q, column x", 15, weight="bold")
    pic.text(left + wide, 82, "K panel, row x", 15, weight="bold")
    for v in range(vectors):
        pic.box(left + v * wide, 92, wide - 6, 30, BLUE, BLUE, 0.35, 2)
        pic.text(left + (v + 0.5) * wide - 3, 112, f"b{v}: keys {v * lanes} .. "
                 f"{(v + 1) * lanes - 1}", 13)
    for r in range(rows):
        y = top + r * cell
        pic.box(135, y, 30, cell - 3, RED, RED, 0.35, 2)
        pic.line(170, y + cell / 2, left - 8, y + cell / 2, "#DDBBAA", 1)
        for v in range(vectors):
            pic.box(left + v * wide, y, wide - 6, cell - 3, YELLOW, YELLOW, 0.35, 2)
            pic.text(left + (v + 0.5) * wide - 3, y + 13, f"acc[{r}][{v}] += a{r} b{v}", 11)
    loads, products = vectors + rows, rows * vectors
    y = top + rows * cell
    pic.text(left + wide, y + 26, f"{loads} loads for {products} multiply-adds; a dot product: 2 "
             "for 1", 15)
    pic.text(850, top + 60, f"{products} sums", 15, weight="bold")
    pic.text(850, top + 82, f"+ {vectors} vectors of K", 14)
    pic.text(850, top + 104, "+ 1 copy of a number of Q", 14)
    pic.text(850, top + 132, f"= {products + vectors + 1} of 32 registers", 14)
    return pic.done()


FIGURES = {"03_fast_memory.svg": draw_fast_memory, "03_loop_orders.svg": draw_loop_orders,
           "03_blocks.svg": draw_blocks, "03_fragments.svg": draw_fragments,
           "03_swizzle.svg": draw_swizzle,
           "03_causal_tiles.svg": draw_causal, "03_split_keys.svg": draw_split_keys,
           "03_register_tile.svg": draw_register_tile}
