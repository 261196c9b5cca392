#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""draw_figures.py: the drawings of the lessons, as SVG.

    draw_figures.py OUTDIR [--check]      --check: exit 1 when a file there differs from the drawing

Interface:
- 01_data_movement: which arrays cross between memory and chip in materialised attention; arrow
  widths follow the bytes for N = 1024, d = 64.
- 02_what_moves: how often an element of a row crosses between memory and chip, way by way.
- 02_blocks_and_merge: a row in four blocks, each with its (m, l), merged in a tree; the numbers
  are computed here from the row that the figure shows.
- The figures of stage 03 stand in draw_flash.py, those of stage 04 in draw_backward.py
  and draw_gradient.py, those of stage 05 in draw_window.py and draw_stream.py, those of
  stage 06 in draw_ring.py and draw_travel.py; lines of time and rooflines in draw_timeline.py,
  draw_stamps.py and draw_roofline.py.
"""
import math
import pathlib
import sys

import draw_backward
import draw_flash
import draw_gradient
import draw_hand
import draw_ring
import draw_roofline
import draw_stamps
import draw_stream
import draw_timeline
import draw_travel
import draw_window
from svg_drawing import BLUE, GREEN, GREY, PURPLE, RED, Drawing

N, D = 1024, 64


def draw_data_movement():
    pic = Drawing(980, 640, "Data movement of materialised attention",
                  "Three steps on the chip; S and P, N by N each, are written to memory and read "
                  "back, and outweigh Q, K, V and O.")
    pic.text(490, 32, "Materialised attention: S and P travel twice each", 19)
    pic.text(490, 56, f"one head, N = {N}, d = {D}, float32; arrow width follows the bytes, "
             f"an N x N array is {N // D} times an N x d one", 13, fill=GREY)
    pic.box(30, 80, 330, 530, "#F4F4F4")
    pic.text(195, 106, "memory", 17, weight="bold")
    pic.box(670, 80, 280, 530, "#F4F4F4")
    pic.text(810, 106, "chip", 17, weight="bold")
    thin, wide = 2.0, 2.0 * N / D  # the true ratio

    def array(x, y, name, square, colour):
        w, h = (92, 92) if square else (8, 92)
        pic.box(x, y, w, h, colour, colour, 0.75, 1)
        pic.text(x + w / 2, y + h + 19, name, 15)
        return x + w

    def step(y, height, number, formula):
        pic.box(700, y, 220, height, "white")
        pic.text(810, y + height / 2 - 6, f"step {number}", 13, fill=GREY)
        pic.text(810, y + height / 2 + 17, formula, 17)

    # (arrow text, y, to the chip?, wide?)
    array(60, 140, "Q", False, BLUE)
    array(110, 140, "K", False, BLUE)
    array(230, 176, "S", True, RED)
    array(230, 330, "P", True, RED)
    array(60, 440, "V", False, BLUE)
    array(110, 440, "O", False, GREEN)
    step(130, 110, 1, "S = scale Q Kᵀ")
    step(275, 110, 2, "P = softmax(S)")
    step(430, 150, 3, "O = P V")
    for label, y, to_chip, big, colour in (
            ("read Q, K", 148, True, False, BLUE), ("write S", 205, False, True, RED),
            ("read S", 298, True, True, RED), ("write P", 360, False, True, RED),
            ("read P", 460, True, True, RED), ("read V", 510, True, False, BLUE),
            ("write O", 555, False, False, GREEN)):
        left, right = 370, 692
        width = wide if big else thin * (2 if "," in label else 1)
        pic.arrow(left if to_chip else right, right if to_chip else left, y, width, colour)
        size = "N x N" if big else ("2 x N x d" if "," in label else "N x d")
        pic.text(530, y - width / 2 - 8, f"{label} ({size})", 13)
    total, needed = 4 * N * N + 4 * N * D, 4 * N * D
    pic.text(195, 590, f"moved: {total * 4 / 2**20:.0f} MiB; Q, K, V, O alone: "
             f"{needed * 4 / 2**20:.0f} MiB", 14, weight="bold")
    return pic.done()


ROW = [1, 3, 2, 0, 5, 4, 1, 1, 2, 6, 3, 2]


def state(scores):
    m = max(scores)
    return m, sum(math.exp(s - m) for s in scores)


def merge(a, b):
    m = max(a[0], b[0])
    return m, a[1] * math.exp(a[0] - m) + b[1] * math.exp(b[0] - m)


def draw_blocks_and_merge():
    pic = Drawing(980, 560, "Softmax of a row in blocks",
                  "A row of twelve scores in four blocks. Each block keeps its maximum m and its "
                  "sum l; pairs are merged until one pair describes the row.")
    pic.text(490, 32, "A row in blocks: two numbers a block are enough", 19)
    pic.text(490, 57, "block: m = max s, l = sum of exp(s - m); merge: m = max(m_a, m_b), "
             "l = l_a exp(m_a - m) + l_b exp(m_b - m)", 13, fill=GREY)
    colours = [BLUE, RED, GREEN, PURPLE]
    size, cell = 3, 62
    centres, states = [], []
    pic.text(40, 112, "s", 17, weight="bold")
    for n in range(4):
        x0 = 72 + n * (size * cell + 30)
        for c in range(size):
            pic.box(x0 + c * cell, 82, cell, 46, colours[n], colours[n], 0.18, 2)
            pic.text(x0 + c * cell + cell / 2, 111, str(ROW[n * size + c]), 16)
        centres.append(x0 + size * cell / 2)
        states.append(state(ROW[n * size:(n + 1) * size]))
    y, box_w, box_h = 170, 168, 46

    def pair(x, top, value, colour, weight="normal"):
        pic.box(x - box_w / 2, top, box_w, box_h, colour, colour, 0.18, 22)
        pic.text(x, top + 29, f"m = {value[0]}, l = {value[1]:.4f}", 14, weight=weight)

    for n in range(4):
        pic.down(centres[n], 130, centres[n], y)
        pair(centres[n], y, states[n], colours[n])
    left, right = merge(states[0], states[1]), merge(states[2], states[3])
    whole = merge(left, right)
    x_left, x_right = (centres[0] + centres[1]) / 2, (centres[2] + centres[3]) / 2
    middle = (x_left + x_right) / 2
    for x, to in zip(centres, (x_left, x_left, x_right, x_right)):
        pic.down(x, y + box_h, to + (-26 if x < to else 26), 270)
    pair(x_left, 270, left, GREY)
    pair(x_right, 270, right, GREY)
    pic.down(x_left, 316, middle - 26, 370)
    pic.down(x_right, 316, middle + 26, 370)
    pair(middle, 370, whole, GREY, "bold")
    direct = state(ROW)
    pic.text(middle, 450, f"the whole row at once:  m = {direct[0]}, l = {direct[1]:.4f}", 15)
    pic.text(middle, 478, "any order and any tree gives the same pair (up to rounding)", 14,
             fill=GREY)
    pic.text(middle, 520, "second read of s: P = exp(s - m) / l, written once", 15)
    return pic.done()


# A way to compute a row's softmax: its accesses, True = from memory to the chip, and what for.
WAYS = [("three passes", "v0_three_pass", [(True, "read s: the maximum"), (True, "read s: the sum"),
                                           (True, "read s: once more"), (False, "write P")]),
        ("online", "v1_online", [(True, "read s: maximum and sum at once"),
                                 (True, "read s: once more"), (False, "write P")]),
        ("one read", "GPU v2_one_read", [(True, "read s: the row stays on the chip"),
                                         (False, "write P")]),
        ("fused", "v4_fused_rows", [])]


def draw_what_moves():
    pic = Drawing(980, 590, "What moves in a softmax",
                  "Four ways to compute the softmax of a row: four, three, two and no accesses of "
                  "slow memory for each element.")
    pic.text(490, 32, "The softmax of a row: how often each element crosses", 19)
    pic.text(490, 56, "an arrow is the whole row of scores s, or of probabilities P", 13, fill=GREY)
    pic.box(30, 76, 250, 484, "#F4F4F4")
    pic.text(155, 100, "memory", 17, weight="bold")
    pic.box(740, 76, 210, 484, "#F4F4F4")
    pic.text(845, 100, "chip", 17, weight="bold")
    y = 112
    for name, variant, accesses in WAYS:
        height = max(34 * len(accesses), 68)
        middle = y + height / 2
        pic.text(155, middle - 4, f"{name}: {len(accesses)}", 16, weight="bold")
        pic.text(155, middle + 17, variant, 13, fill=GREY)
        for n, (to_chip, what) in enumerate(accesses):
            row = middle + 34 * (n - (len(accesses) - 1) / 2)
            left, right = 292, 728
            pic.arrow(left if to_chip else right, right if to_chip else left, row + 6, 5,
                      BLUE if to_chip else GREEN)
            pic.text(510, row - 4, what, 13)
        if not accesses:
            pic.text(510, middle + 4, "s and P are never in memory: the product before", 13)
            pic.text(510, middle + 22, "and the product after use them on the chip", 13)
        pic.text(845, middle + 4, "m, l" if accesses else "s, m, l, P", 15)
        y += height + 22
        if name != "fused":
            pic.line(30, y - 11, 950, y - 11, GREY, 0.7)
    return pic.done()


FIGURES = {"01_data_movement.svg": draw_data_movement,
           "02_what_moves.svg": draw_what_moves,
           "02_blocks_and_merge.svg": draw_blocks_and_merge,
           **draw_hand.FIGURES, **draw_flash.FIGURES, **draw_roofline.FIGURES,
           **draw_timeline.FIGURES, **draw_stamps.FIGURES,
           **draw_backward.FIGURES, **draw_gradient.FIGURES,
           **draw_window.FIGURES, **draw_stream.FIGURES,
           **draw_ring.FIGURES, **draw_travel.FIGURES}


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    if len(arguments) != 1:
        print("usage: draw_figures.py OUTDIR [--check]", file=sys.stderr)
        return 2
    out = pathlib.Path(arguments[0])
    status = 0
    for name, draw in FIGURES.items():
        text, path = draw(), out / name
        if "--check" not in sys.argv:
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what draw_figures.py draws")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
