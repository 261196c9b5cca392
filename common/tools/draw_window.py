# SPDX-License-Identifier: MIT
"""draw_window.py: the drawings of stage 05. Every number in them is computed here: visible pairs
by asking the rule of common/attn_pairs.h pair by pair, tiles by walking them and by the lesson's
formula (they must agree). The rolling cache and the layers are in draw_stream.py.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import math

from svg_drawing import BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Drawing

INFINITE = None
COLOURS = [BLUE, YELLOW, GREEN, PURPLE, RED]


def visible(q, k, left, right):
    """q and k: (sequence, position)."""
    ahead = k[1] - q[1]
    return q[0] == k[0] and (left is INFINITE or ahead >= -left) and (
        right is INFINITE or ahead <= right)


def lower_right(queries, keys):
    """Positions of some sequences, one behind the other: (sequence, position) of each token."""
    q = [(s, i + nk - nq) for s, (nq, nk) in enumerate(zip(queries, keys)) for i in range(nq)]
    k = [(s, j) for s, nk in enumerate(keys) for j in range(nk)]
    return q, k


# --- the merge -----------------------------------------------------------------------------------

def draw_merge():
    pic = Drawing(980, 430, "The merge of two parts",
                  "Left: the shares of two parts against the difference of their lse, a logistic "
                  "curve. Right: what the smaller part adds to the larger lse.")
    pic.text(490, 32, "Two parts are joined by the difference of their lse, and nothing else", 19)
    hand = (math.log(2) + math.sqrt(0.5)) - (math.sqrt(2) + math.log1p(math.exp(-math.sqrt(2))))

    def axes(x0, title, wide, xs, ys, top):
        pic.text(x0 + wide / 2, 76, title, 15, weight="bold")
        pic.line(x0, 340, x0 + wide, 340)
        for value, x in xs:
            pic.line(x, 340, x, 345)
            pic.text(x, 361, value, 13)
        for value, y in ys:
            pic.line(x0, y, x0 + wide, y, "#DDDDDD", 1)
            pic.text(x0 - 8, y + 5, value, 13, "end")
        pic.line(x0, top, x0, 340)

    def left(x, y):
        return 80 + (x + 8) * 24, 340 - 230 * y

    axes(80, "shares of the two parts", 384,
         [(f"{v:+d}" if v else "0", left(v, 0)[0]) for v in range(-8, 9, 4)],
         [(f"{v:g}", left(0, v)[1]) for v in (0, 0.5, 1)], 100)
    steps = [n / 10 - 8 for n in range(161)]
    pic.curve([left(x, 1 / (1 + math.exp(-x))) for x in steps], BLUE, 3)
    pic.curve([left(x, 1 / (1 + math.exp(x))) for x in steps], RED, 3)
    pic.text(*left(5.4, 0.88), "c1, of O1", 14, fill=BLUE)
    pic.text(*left(5.4, 0.07), "c2, of O2", 14, fill=RED)
    pic.text(272, 385, "lse1 - lse2", 14)
    share = 1 / (1 + math.exp(-hand))
    pic.mark(*left(hand, share), BLUE)
    pic.mark(*left(hand, 1 - share), RED)
    pic.text(left(hand, 0)[0] - 24, left(0, 0.30)[1], f"by hand: {share:.4f}, {1 - share:.4f}", 13,
             "end")

    def right(x, y):
        return 570 + x * 36, 340 - 230 * y

    axes(570, "lse - max(lse1, lse2)", 360, [(f"{v}", right(v, 0)[0]) for v in range(0, 11, 2)],
         [("0", 340), ("0.5", right(0, 0.5)[1]), ("ln 2", right(0, math.log(2))[1])], 100)
    pic.curve([right(n / 10, math.log1p(math.exp(-n / 10))) for n in range(101)], GREEN, 3)
    grown = math.log1p(math.exp(-abs(hand)))
    pic.mark(*right(abs(hand), grown), GREEN)
    pic.text(right(abs(hand), 0)[0] + 14, right(0, grown)[1] + 2, f"by hand: {grown:.4f}", 13,
             "start")
    pic.text(right(5.4, 0)[0], right(0, 0.16)[1], "log1p(exp(-difference))", 14, fill=GREEN)
    pic.text(750, 385, "|lse1 - lse2|", 14)
    pic.text(490, 418, "equal parts: the mean of O1 and O2, and lse grows by ln 2; a part without "
             "keys is infinitely far to one side", 14)
    return pic.done()


# --- windows -------------------------------------------------------------------------------------

PANELS = (
    ("causal, w = 2", (8,), (8,), 2, 0, "w + 1 keys a row"),
    ("symmetric, w = 2", (8,), (8,), 2, 2, "2 w + 1 keys a row"),
    ("w = 0", (8,), (8,), 0, 0, "every query its own key"),
    ("more keys: Nq = 5, Nk = 8", (5,), (8,), 2, 0, "causal, w = 2, from the lower right"),
    ("more queries: Nq = 8, Nk = 5", (8,), (5,), 2, 0, "causal, w = 2: three rows see nothing"),
    ("varlen: 3, 1, 4 queries", (3, 1, 4), (4, 2, 3), 1, 0,
     "4, 2, 3 keys; causal, w = 1; a corner each"),
)


def draw_panel(pic, x0, y0, panel, cell):
    title, queries, keys, left, right, note = panel
    q, k = lower_right(queries, keys)
    pairs = 0
    pic.text(x0 + 4.5 * cell, y0 - 34, title, 15, weight="bold")
    pic.text(x0 + 4.5 * cell, y0 - 15, note, 12, fill=GREY)
    for i, at in enumerate(q):
        for j, key in enumerate(k):
            seen = visible(at, key, left, right)
            pairs += seen
            own = key == at
            pic.box(x0 + j * cell, y0 + i * cell, cell, cell,
                    (COLOURS[at[0]] if not own else RED) if seen else "white", "#BBBBBB",
                    0.55 if seen else 1, 0)
    for s in range(1, len(queries)):  # borders of the sequences
        row, column = sum(queries[:s]), sum(keys[:s])
        pic.line(x0, y0 + row * cell, x0 + len(k) * cell, y0 + row * cell, "#222222", 1.5)
        pic.line(x0 + column * cell, y0, x0 + column * cell, y0 + len(q) * cell, "#222222", 1.5)
    for i in range(len(q)):
        pic.text(x0 - 7, y0 + (i + 0.72) * cell, str(i), 11, "end", GREY)
    for j in range(len(k)):
        pic.text(x0 + (j + 0.5) * cell, y0 + len(q) * cell + 14, str(j), 11, fill=GREY)
    pic.text(x0 + len(k) * cell / 2, y0 + len(q) * cell + 33, f"{pairs} of {len(q) * len(k)} pairs",
             13)


def draw_windows():
    pic = Drawing(980, 700, "Windows in the score matrix",
                  "Six score matrices with their visible pairs: causal and symmetric windows, a "
                  "window of width 0, more keys than queries, more queries than keys, three "
                  "sequences in one tensor.")
    pic.text(490, 32, "What a window lets through: rows are queries, columns are keys", 19)
    pic.text(490, 55, "red: the query's own position", 13, fill=GREY)
    for n, panel in enumerate(PANELS):
        draw_panel(pic, 75 + n % 3 * 310, 128 + n // 3 * 310, panel, 25)
    return pic.done()


# --- tiles ---------------------------------------------------------------------------------------

TOKENS, TILE, WIDTH = 32, 4, 8


def walk_tile(i, j, left, right):
    """skipped, masked or full, by asking every pair."""
    seen = [visible((0, q), (0, k), left, right) for q in range(i * TILE, (i + 1) * TILE)
            for k in range(j * TILE, (j + 1) * TILE)]
    return "full" if all(seen) else "masked" if any(seen) else "skipped"


def formula_tile(i, j, left, right):
    """The same from the extreme positions, as the lesson says."""
    a, z, j0, j1 = i * TILE, (i + 1) * TILE - 1, j * TILE, (j + 1) * TILE - 1
    if not (j1 >= a - left and j0 <= z + right):
        return "skipped"
    return "full" if j0 >= z - left and j1 <= a + right else "masked"


def draw_tiles():
    pic = Drawing(980, 520, "Which tiles a window visits",
                  "Tiles of four by four pairs under a causal and a symmetric window of 8. Most "
                  "are skipped, two in each row are masked, the others full.")
    pic.text(490, 32, f"{TOKENS} tokens, w = {WIDTH}, tiles of {TILE} x {TILE}: skipped, masked, "
             "full", 19)
    pic.text(490, 55, "dots are visible pairs; green tiles are full, red ones are asked pair by "
             "pair, white ones never looked at", 13, fill=GREY)
    tiles, cell = TOKENS // TILE, 44
    for x0, title, right in ((75, "causal", 0), (555, "symmetric", WIDTH)):
        count = {"skipped": 0, "masked": 0, "full": 0}
        rows = []
        for i in range(tiles):
            row = [walk_tile(i, j, WIDTH, right) for j in range(tiles)]
            if row != [formula_tile(i, j, WIDTH, right) for j in range(tiles)]:
                raise ValueError(f"row {i} of tiles: the walk and the formula differ")
            rows.append({kind: row.count(kind) for kind in count})
            for j, kind in enumerate(row):
                count[kind] += 1
                pic.box(x0 + j * cell, 100 + i * cell, cell, cell,
                        {"full": GREEN, "masked": RED, "skipped": "white"}[kind], GREY,
                        {"full": 0.3, "masked": 0.35, "skipped": 1}[kind], 0)
                if kind != "skipped":
                    dots(pic, x0 + j * cell, 100 + i * cell, cell, i, j, right)
        middle = rows[tiles // 2]
        per_row = WIDTH // TILE * (2 if right else 1)
        if (middle["masked"], middle["full"]) != (2, per_row - 1):
            raise ValueError("a row in the middle has other tiles than the lesson says")
        pic.text(x0 + tiles * cell / 2, 90, title, 15, weight="bold")
        pic.text(x0 + tiles * cell / 2, 100 + tiles * cell + 24,
                 ", ".join(f"{n} {kind}" for kind, n in count.items()), 14)
        pic.text(x0 + tiles * cell / 2, 100 + tiles * cell + 46,
                 f"a row in the middle: {per_row + 1} visited, 2 masked, {per_row - 1} full", 14,
                 fill=GREY)
    return pic.done()


def dots(pic, x0, y0, cell, i, j, right):
    step = cell / TILE
    for r in range(TILE):
        for c in range(TILE):
            if visible((0, i * TILE + r), (0, j * TILE + c), WIDTH, right):
                pic.box(x0 + (c + 0.35) * step, y0 + (r + 0.35) * step, step * 0.3, step * 0.3,
                        "#222222", "#222222", 0.8, 1)


# --- orders --------------------------------------------------------------------------------------

def shuffled(items):
    """A fixed permutation (a linear congruential generator drives Fisher and Yates)."""
    items, state = list(items), 5
    for n in range(len(items) - 1, 0, -1):
        state = (state * 1103515245 + 12345) % 2 ** 31
        other = state // 65536 % (n + 1)
        items[n], items[other] = items[other], items[n]
    return items


def draw_orders():
    blocks, cell = 5, 38
    pic = Drawing(980, 366, "Four orders of the blocks",
                  "Five by five blocks under a causal window: by rows, by columns, by diagonals "
                  "and at random. Every order gives the same result.")
    pic.text(490, 32, "Any order will do: the number is when a block of scores is visited", 19)
    pic.text(490, 55, "white: outside the window, returns at once; the colour is a block of "
             "queries, whose rows of O and lse are updated", 13, fill=GREY)
    everything = [(i, j) for i in range(blocks) for j in range(blocks)]
    orders = (("rows", everything), ("columns", sorted(everything, key=lambda b: (b[1], b[0]))),
              ("diagonal", sorted(everything, key=lambda b: ((b[1] - b[0]) % blocks, b[0]))),
              ("random", shuffled(everything)))
    for n, (name, order) in enumerate(orders):
        x0, y0, turn = 40 + n * 237, 110, 0
        pic.text(x0 + blocks * cell / 2, 94, f"--order {name}", 15, weight="bold")
        for i, j in order:
            inside = 0 <= i - j <= 2
            turn += inside
            pic.box(x0 + j * cell, y0 + i * cell, cell, cell, COLOURS[i] if inside else "white",
                    "#BBBBBB", 0.3 if inside else 1, 0)
            if inside:
                pic.text(x0 + (j + 0.5) * cell, y0 + (i + 0.66) * cell, str(turn), 14)
    pic.text(490, 328, "rows: a block of queries is finished before the next begins; columns: "
             "every block of keys is loaded once;", 14)
    pic.text(490, 348, "diagonal: all blocks of queries advance together, the keys move on by one "
             "block: the order of a ring", 14)
    return pic.done()


FIGURES = {"05_merge.svg": draw_merge, "05_windows.svg": draw_windows, "05_tiles.svg": draw_tiles,
           "05_orders.svg": draw_orders}
