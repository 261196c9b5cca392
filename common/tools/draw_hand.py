# SPDX-License-Identifier: MIT
"""draw_hand.py: the drawings of the four tokens that the lessons of stages 01 to 04 compute by
hand. Every number in them is computed here, from Q, K and V.

Interface:
- Q, K, V, dot(a, b), score(i, j), weights(i, keys, scale): the example itself.
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import math

import rows as recorded
from svg_drawing import BLUE, GREEN, GREY, PURPLE, RED, YELLOW, Drawing

Q, K = ((1, 0), (0, 1), (2, 0), (1, 1)), ((1, 0), (0, 1), (1, 1), (0, 0))
V = ((1, 0), (0, 1), (2, 2), (0, 4))
SCALE = math.sqrt(0.5)
COLOURS = [BLUE, YELLOW, GREEN, PURPLE]  # of keys 0 to 3


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def score(i, j, scale=SCALE):
    return scale * dot(Q[i], K[j])


def weights(i, keys, scale=SCALE):
    e = [math.exp(score(i, j, scale)) for j in keys]
    return [x / sum(e) for x in e]


def output(i, keys, scale=SCALE):
    return [dot(weights(i, keys, scale), [V[j][x] for j in keys]) for x in (0, 1)]


# --- who sees whom -------------------------------------------------------------------------------

def draw_mask(pic, x0, y0, cell, queries, keys, sees, word):
    """A score matrix: visible pairs are grey and have a word, hidden pairs are white."""
    for j in range(keys):
        pic.text(x0 + (j + 0.5) * cell, y0 - 9, f"k{j}", 14, fill=GREY)
    for i in range(queries):
        pic.text(x0 - 10, y0 + (i + 0.5) * cell + 5, f"q{i}", 14, "end", GREY)
        for j in range(keys):
            seen = sees(i, j)
            pic.box(x0 + j * cell, y0 + i * cell, cell, cell, BLUE if seen else "white", GREY,
                    0.25 if seen else 1, 0)
            if seen:
                pic.text(x0 + (j + 0.5) * cell, y0 + (i + 0.5) * cell + 6, word(i, j), 16)


def draw_who_sees_whom():
    pic = Drawing(980, 460, "The causal mask, and its two corners",
                  "Left: the weights of the four tokens under a causal mask, a triangle. Right: "
                  "two queries and five keys, with the triangle in the upper left corner and in "
                  "the lower right one.")
    pic.text(490, 32, "A row of the matrix is a query: white is hidden from it", 19)
    pic.text(235, 80, "four tokens, causal: the weights", 15, weight="bold")
    draw_mask(pic, 91, 122, 72, 4, 4, lambda i, j: j <= i,
              lambda i, j: f"{weights(i, range(i + 1))[j]:.4f}")
    for title, top, corner in (("upper-left: j <= i", 80, 0),
                               ("lower-right: j <= i + Nk - Nq", 276, 3)):
        pic.text(710, top, f"{title}", 15, weight="bold")
        draw_mask(pic, 560, top + 42, 60, 2, 5, lambda i, j, c=corner: j <= i + c,
                  lambda i, j: "x")
    return pic.done()


# --- error / bound -------------------------------------------------------------------------------

def bound_of(i, x, scale):
    """The judge's bound for O[i][x] in float32, where every key is visible (error_bound.md)."""
    n, d = len(K), len(K[0])
    largest = max(scale * dot(map(abs, Q[i]), map(abs, k)) for k in K)
    mass = sum(p * abs(V[j][x]) for j, p in enumerate(weights(i, range(n), scale)))
    return 4 * 2.0 ** -24 * ((1 + math.sqrt(d) / 4) * largest + math.sqrt(n) + 8) * mass


def ratio(found, i, scale=SCALE):
    right = output(i, range(len(K)), scale)
    return max(abs(f - r) / bound_of(i, x, scale) for x, (f, r) in enumerate(zip(found, right)))


def draw_error_bound():
    mean = [sum(v[x] for v in V) / len(V) for x in (0, 1)]
    right = [r["bound_ratio"] for r in recorded.usable(recorded.load(
        [recorded.ROOT / "docs/results/demo.jsonl"])) if r["stage"] == "naive"]
    wrong = [("key 3 forgotten", ratio(output(0, (0, 1, 2)), 0)),
             ("mean of V", ratio(mean, 0)), ("mean of V, scale 0.001", ratio(mean, 0, 1e-3)),
             ("mean of V, scale 1e-9", ratio(mean, 0, 1e-9))]
    pic = Drawing(980, 400, "Error divided by bound, for right and wrong programs",
                  "An axis of error / bound from 0.0001 to a million, each step a factor of ten. "
                  "Right programs lie left of 1, mistakes far to the right.")
    pic.text(490, 32, "Error / bound: right programs stop short of 1, mistakes land far away", 19)
    left, right_end, low, high, axis = 60, 930, -4, 6, 300

    def place(value):
        return left + (right_end - left) * (math.log10(value) - low) / (high - low)

    pic.box(left, 66, place(1) - left, axis - 66, GREEN, "none", 0.10, 0)
    pic.text((left + place(1)) / 2, 90, "right", 16, weight="bold")
    pic.text((place(1) + right_end) / 2, 90, "wrong", 16, weight="bold")
    pic.line(place(1), 66, place(1), axis + 8, "#222222", 3)
    pic.line(left, axis, right_end, axis, "#222222")
    for power in range(low, high + 1):
        x = place(10.0 ** power)
        pic.line(x, axis, x, axis + 7, "#222222")
        pic.text(x, axis + 26, f"{10.0 ** power:,.0f}" if power >= 0 else f"{10.0 ** power:g}", 14)
    pic.text(490, axis + 52, "error / bound, each step ten times as much", 14)
    for value in right:
        pic.mark(place(value), axis - 30, BLUE)
    pic.text(place(min(right)) - 14, axis - 25, "stage 01, recorded", 14, "end")
    for n, (name, value) in enumerate(wrong):
        y = 130 + 32 * n
        pic.mark(place(value), y, RED, True)
        far = value > 1000
        pic.text(place(value) + (-14 if far else 14), y + 5, f"{name}: {value:,.0f}" if value > 1
                 else f"{name}: {value:.4f}", 14, "end" if far else "start")
    pic.text(490, axis + 84, "hollow: mistakes, on query 0 of the four tokens. At scale 1e-9 all "
             "scores are 0, and the mean of V is right", 14, fill=GREY)
    return pic.done()


# --- the sum of a row, and how alpha corrects it -------------------------------------------------

def running(i, keys):
    """(m, l, alpha, p, a) after each key, by the loop of page 03.1."""
    m, l, a, states = -math.inf, 0.0, [0.0, 0.0], []
    for j in keys:
        m_new = max(m, score(i, j))
        alpha, p = math.exp(m - m_new), math.exp(score(i, j) - m_new)
        l, a = alpha * l + p, [alpha * x + p * v for x, v in zip(a, V[j])]
        m = m_new
        states.append((m, l, alpha, p, tuple(a)))
    return states


def draw_alpha():
    states = running(3, range(4))
    pic = Drawing(980, 460, "The running sum of a row",
                  "Four bars, one after each score. A bar is made of exp(s - m) of the scores so "
                  "far. At the third score the maximum grows, and the old parts shrink.")
    pic.text(490, 32, "Row 3: the sum l after each score", 19)
    pic.text(490, 56, "a box is the part of one score, exp(s - m), with its height", 14, fill=GREY)
    bottom, unit, wide = 350, 112, 120
    for n, (m, l, alpha, _, _) in enumerate(states):
        x, y = 90 + 220 * n, bottom
        for j in range(n + 1):
            high = math.exp(score(3, j) - m)
            pic.box(x, y - high * unit, wide, high * unit, COLOURS[j], "#222222", 0.3, 0)
            pic.text(x + wide / 2, y - high * unit / 2 + 5, f"s{j}: {high:.4g}", 14)
            y -= high * unit
        if n:  # the top of the old sum, before and after the correction
            before = bottom - states[n - 1][1] * unit
            pic.curve([(x - 220 + wide, before), (x, bottom - alpha * states[n - 1][1] * unit)],
                      "#222222", 2, "6 4")
            for line, words in enumerate(("alpha", f"{alpha:.4g}")):
                pic.text(x - 50, bottom - 32 + 20 * line, words, 14,
                         weight="bold" if alpha < 1 else "normal")
        pic.text(x + wide / 2, y - 10, f"l = {l:.4f}", 15, weight="bold")
        pic.text(x + wide / 2, bottom + 24, f"s{n} = {score(3, n):.4f}", 14)
        pic.text(x + wide / 2, bottom + 46, f"m = {m:.4f}", 14)
    pic.line(60, bottom, 920, bottom, "#222222")
    pic.text(490, 436, "dashed: what the old sum is worth now", 14, fill=GREY)
    return pic.done()


# --- the values as points ------------------------------------------------------------------------

def draw_carry_values():
    states = running(3, range(4))
    points = [tuple(x / l for x in a) for _, l, _, _, a in states]
    pic = Drawing(980, 500, "The output moves towards each new value",
                  "A plane with the four values as points. The output of query 3 starts at value "
                  "0 and moves, key after key, a part of the way to the next value.")
    pic.text(490, 32, "Query 3: each key pulls the output O = a / l towards its value", 19)
    left, bottom, unit = 110, 440, 88

    def place(point):
        return left + 2 * unit * point[0], bottom - unit * point[1]

    for t in range(5):
        pic.line(*place((0, t)), *place((2, t)), "#DDDDDD", 1)
        pic.text(left - 12, bottom - unit * t + 5, str(t), 13, "end")
    for t in range(3):
        pic.line(*place((t, 0)), *place((t, 4)), "#DDDDDD", 1)
        pic.text(left + 2 * unit * t, bottom + 20, str(t), 13)
    pic.text(left + 4 * unit + 16, bottom + 5, "channel 0", 14, "start")
    pic.text(left - 40, 74, "channel 1", 14)
    for j in range(1, 4):
        pic.curve([place(points[j]), place(V[j])], GREY, 1.5, "4 4")
    pic.curve([place(p) for p in points], "#222222", 3)
    for j, v in enumerate(V):
        x, y = place(v)
        pic.box(x - 7, y - 7, 14, 14, COLOURS[j], "#222222", 1, 0)
        pic.text(x + (14 if j != 1 else -34), y + (24 if j == 0 else 5), f"V{j}", 15, "start",
                 weight="bold")
    for j, p in enumerate(points[1:], 1):
        x, y = place(p)
        pic.mark(x, y, "#222222", True)
        right, down = ((-12, 16), (14, 16), (8, -14))[j - 1]
        pic.text(x + right, y + down, f"O after key {j}", 14, "end" if right < 0 else "start")
    for j, (_, l, _, p, _) in enumerate(states):
        y = 120 + 84 * j
        pic.box(580, y - 17, 14, 14, COLOURS[j], "#222222", 1, 0)
        pic.text(604, y - 4, f"key {j}: p / l = {p:.4f} / {l:.4f} = {p / l:.4f}", 15, "start")
        pic.text(604, y + 20, "O begins at V0" if j == 0 else f"O goes {p / l:.0%} of the way to "
                 f"V{j}: ({points[j][0]:.4f}, {points[j][1]:.4f})", 14, "start")
    pic.text(490, 486, "square: a value; circle: attention over the keys so far; dashed: the rest "
             "of the way", 14, fill=GREY)
    return pic.done()


# --- the butterfly -------------------------------------------------------------------------------

def draw_butterfly():
    lanes, distances = 4, (2, 1)
    states = [[(score(3, lane), 1.0) for lane in range(lanes)]]
    for distance in distances:
        before = states[-1]
        after = []
        for lane in range(lanes):
            (ma, la), (mb, lb) = before[lane], before[lane ^ distance]
            m = max(ma, mb)
            after.append((m, la * math.exp(ma - m) + lb * math.exp(mb - m)))
        states.append(after)
    pic = Drawing(980, 430, "Four lanes merge their pairs in two steps",
                  "Four lanes, each with a pair (m, l). In the first step lanes two apart merge, "
                  "in the second neighbours. Then every lane has the pair of the whole row.")
    pic.text(490, 32, "Two steps, and every lane has (m, l) of row 3", 19)
    wide, high = 170, 44

    def place(column, lane):
        return 130 + 300 * column, 110 + 74 * lane

    for column, title in enumerate(["at first: (score, 1)"] +
                                   [f"merged at distance {d}" for d in distances]):
        pic.text(place(column, 0)[0] + wide / 2, 84, title, 15, weight="bold")
    for column, distance in enumerate(distances):
        for lane in range(lanes):
            x, y = place(column, lane)
            for other in (lane, lane ^ distance):
                x2, y2 = place(column + 1, other)
                own = other == lane
                pic.curve([(x + wide, y + high / 2), (x2, y2 + high / 2)],
                          "#222222" if own else RED, 2, "" if own else "7 4")
    for column, pairs in enumerate(states):
        for lane, (m, l) in enumerate(pairs):
            x, y = place(column, lane)
            pic.box(x, y, wide, high, COLOURS[lane] if column == 0 else "#F4F4F4", "#222222",
                    0.25 if column == 0 else 1, 18)
            pic.text(x + wide / 2, y + 28, f"({m:.4f}, {l:.4g})" if l == 1 else
                     f"({m:.4f}, {l:.4f})", 15)
            if column == 0:
                pic.text(x - 16, y + 28, f"lane {lane}", 15, "end")
    pic.text(490, 416, "dashed: what a shuffle brings from the other lane; black: the lane's own "
             "pair", 14, fill=GREY)
    return pic.done()


FIGURES = {"01_who_sees_whom.svg": draw_who_sees_whom, "01_error_bound.svg": draw_error_bound,
           "02_alpha.svg": draw_alpha, "02_butterfly.svg": draw_butterfly,
           "03_carry_values.svg": draw_carry_values}
