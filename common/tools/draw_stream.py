# SPDX-License-Identifier: MIT
"""draw_stream.py: the drawings of stage 05 about streams: the rolling cache, and how far layers
with a window see. Weights over layers are computed here, by adding up steps.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import math

from svg_drawing import BLUE, GREEN, GREY, RED, YELLOW, Drawing


# --- the rolling cache ---------------------------------------------------------------------------

def draw_rolling_cache():
    slots, cell, first, last = 5, 70, 3, 12
    pic = Drawing(980, 560, "The rolling cache",
                  "A buffer of five slots for a causal window of 4. Each token overwrites the one "
                  "that has left the window; two segments tell the positions.")
    pic.text(490, 32, f"A causal window of {slots - 1}: {slots} slots, token t in slot t mod "
             f"{slots}", 19)
    pic.text(490, 55, "red: written in this step; the two colours are the two segments of the "
             "position map", 13, fill=GREY)
    for s in range(slots):
        pic.text(150 + (s + 0.5) * cell, 92, f"slot {s}", 13, fill=GREY)
    for n, t in enumerate(range(first, last + 1)):
        y = 104 + n * 40
        held = {u % slots: u for u in range(max(0, t - slots + 1), t + 1)}
        if sorted(held.values()) != list(range(max(0, t - slots + 1), t + 1)):
            raise ValueError("two tokens of the window share a slot")
        head = t % slots
        pic.text(138, y + 25, f"token {t}", 14, "end", weight="bold")
        for s in range(slots):
            colour = "white" if s not in held else BLUE if s <= head else YELLOW
            pic.box(150 + s * cell, y, cell, 36, colour, GREY, 0.35 if s in held else 1, 0)
            if s in held:
                pic.text(150 + (s + 0.5) * cell, y + 24, str(held[s]), 15,
                         fill=RED if s == head else "#222222",
                         weight="bold" if s == head else "normal")
        segments = [(0, head + 1, t - head)]
        older = sum(s > head for s in held)
        if older:
            segments.append((head + 1, older, t - slots + 1))
        for f, length, position in segments:
            if [held[f + u] for u in range(length)] != list(range(position, position + length)):
                raise ValueError("a segment does not tell the positions")
        pic.text(530, y + 24, "; ".join(
            f"slots {f}..{f + length - 1}: positions {position}..{position + length - 1}"
            if length > 1 else f"slot {f}: position {position}"
            for f, length, position in segments), 13, "start")
    pic.text(490, 540, "nothing is moved: the order of keys in memory does not matter to a sum, "
             "only their positions matter to a mask", 14)
    return pic.done()


# --- receptive field -----------------------------------------------------------------------------

def spread(layers, width):
    """Weights over distances 0 .. layers * width when every layer attends evenly to its window."""
    weights = [1.0]
    for _ in range(layers):
        longer = [0.0] * (len(weights) + width)
        for distance, weight in enumerate(weights):
            for step in range(width + 1):
                longer[distance + step] += weight / (width + 1)
        weights = longer
    return weights


def draw_receptive_field():
    layers, width, tokens = 4, 2, 10
    pic = Drawing(980, 460, "Receptive field over layers",
                  "Left: a token of layer 4 reaches 8 tokens back through a window of 2. Right: "
                  "with even attention the weights over distances form a bell.")
    pic.text(490, 32, "A window a layer: how far back, and how much of it", 19)
    cell, x0 = 42, 60
    for level in range(layers + 1):
        y = 370 - level * 70
        pic.text(x0 - 12, y + 6, "input" if level == 0 else f"layer {level}", 12, "end", GREY)
        for token in range(tokens):
            x = x0 + 20 + token * cell
            back = tokens - 1 - token
            inside = back <= (layers - level) * width
            if level and inside:
                for step in range(width + 1):
                    if token >= step:
                        pic.line(x, y + 7, x - step * cell, y + 63, BLUE, 1)
            pic.mark(x, y, BLUE if inside else "#BBBBBB", not inside)
    pic.text(x0 + 20 + 4.5 * cell, 66, f"w = {width}: layer n reaches n w tokens back", 15,
             weight="bold")
    pic.text(x0 + 20 + 4.5 * cell, 410, "tokens", 13, fill=GREY)
    left, bottom, wide, high, window = 560, 370, 370, 260, 16
    pic.text(left + wide / 2, 66, f"w = {window}: share of each distance, even attention", 15,
             weight="bold")
    pic.line(left, bottom, left + wide, bottom)
    reach = 12 * window
    for distance in range(0, reach + 1, 48):
        x = left + wide * distance / reach
        pic.line(x, bottom, x, bottom + 5)
        pic.text(x, bottom + 21, str(distance), 12)
    top = 1 / (window + 1)
    for colour, count in ((RED, 1), (YELLOW, 3), (GREEN, 6), (BLUE, 12)):
        weights = spread(count, window)
        mean = sum(d * w for d, w in enumerate(weights))
        width_of = math.sqrt(sum((d - mean) ** 2 * w for d, w in enumerate(weights)))
        if abs(mean - count * window / 2) > 1e-9:
            raise ValueError("the mean distance is not n w / 2")
        if abs(width_of / (window * math.sqrt(count / 12)) - 1) > 0.07:
            raise ValueError("the width is not about w sqrt(n / 12)")
        points = [(left + wide * d / reach, bottom - high * w / top)
                  for d, w in enumerate(weights)]
        if count == 1:
            points = [points[0], *points[1:], (points[-1][0], bottom)]
        pic.curve(points, colour, 2.5)
        peak = max(weights)
        pic.text(left + wide * mean / reach + {1: 6, 3: 26}.get(count, 0),
                 bottom - high * peak / top - 8,
                 f"{count} layer{'s' if count > 1 else ''}", 13, fill=colour)
    pic.text(left + wide / 2, 410, "distance back, in tokens", 13, fill=GREY)
    pic.text(490, 446, "the reach grows with n w, the middle with n w / 2, the width only with "
             "the square root of n", 14)
    return pic.done()


FIGURES = {"05_rolling_cache.svg": draw_rolling_cache,
           "05_receptive_field.svg": draw_receptive_field}
