# SPDX-License-Identifier: MIT
"""draw_gradient.py: how far the rows of a real gradient are apart. Everything comes from
common/data/causal_do.npy and causal_text.txt; the size of a row is the root mean square of its
channels, which can be compared with what a float16 number can hold.

Interface:
- row_sizes(): [row][head], and the values of dO. zero_share(values): what float16 makes zero.
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import math
import pathlib
import statistics
import struct

import npy_small
from svg_drawing import BLUE, GREY, RED, Drawing

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
NORMAL, SMALLEST = 2.0 ** -14, 2.0 ** -24  # float16: least normal number, least number above zero
FIRST, LINES = 59, 3  # which bytes of the text are shown: whole lines, from the one at byte 59


def row_sizes():
    (_, N, H, d), values = npy_small.read(DATA / "causal_do.npy")
    size = [[math.hypot(*values[(i * H + h) * d:(i * H + h + 1) * d]) / math.sqrt(d)
             for h in range(H)] for i in range(N)]
    return size, values


def zero_share(values):
    return sum(struct.unpack("<e", struct.pack("<e", v))[0] == 0 for v in values) / len(values)


def random_sizes(count, d, middle):
    """Root mean squares of d standard normal numbers, by quantile (Wilson and Hilferty), with the
    middle one moved to `middle`."""
    normal, spread = statistics.NormalDist(), 2 / (9 * d)
    raw = [(1 - spread + normal.inv_cdf((n + 0.5) / count) * math.sqrt(spread)) ** 1.5
           for n in range(count)]
    return [x * middle / raw[count // 2] for x in raw]


def draw_curves(pic, rows, values):
    left, right, top, bottom, low, high = 110, 930, 92, 372, -10, -4

    def place(n, value):
        return (left + (right - left) * n / (len(rows) - 1),
                bottom - (bottom - top) * (math.log10(value) - low) / (high - low))

    def height(value):
        return place(0, value)[1]

    pic.box(left, height(SMALLEST), right - left, bottom - height(SMALLEST), RED, RED, 0.10, 0)
    pic.box(left, height(NORMAL), right - left, height(SMALLEST) - height(NORMAL), RED, RED, 0.04,
            0)
    for power in range(low, high + 1):
        y = height(10.0 ** power)
        pic.line(left - 5, y, left, y)
        pic.text(left - 10, y + 5, f"1e{power}", 13, "end")
    pic.line(left, top, left, bottom)
    pic.line(left, bottom, right, bottom)
    pic.text(right - 8, height(NORMAL) + 17, "below 2^-14: float16 loses bits", 13, "end", RED)
    pic.text(right - 8, height(SMALLEST) + 17, "below 2^-24: float16 has only zero", 13, "end",
             RED)
    flat = random_sizes(len(rows), 64, rows[len(rows) // 2])
    pic.curve([place(n, v) for n, v in enumerate(flat)][::16], GREY, 2, "6 4")
    pic.curve([place(n, v) for n, v in enumerate(rows)][::4] + [place(len(rows) - 1, rows[-1])],
              BLUE, 3)
    pic.text(place(1540, 1)[0], height(flat[300]) + 26, "random numbers: the rows are alike", 13,
             fill=GREY)
    pic.text(place(1250, 1)[0], height(rows[1250]) - 12, "dO of a training step", 14, "end",
             fill=BLUE, weight="bold")
    pic.text((left + right) / 2, bottom + 24, f"{len(rows)} rows of dO, the smallest first; height:"
             " root mean square of the row's 64 channels", 13, fill=GREY)
    pic.text((left + right) / 2, bottom + 46, f"from {rows[0]:.1e} to {rows[-1]:.1e}: "
             f"{math.log10(rows[-1] / rows[0]):.1f} orders of magnitude; stored in float16, "
             f"{zero_share(values):.0%} of all values would be zero", 14, weight="bold")


def draw_text(pic, text, size):
    """A byte's colour is the size of the row that had to foresee it, the one before."""
    levels = [math.log10(max(heads)) for heads in size]
    low, high = min(levels), max(levels)
    pic.text(490, 468, "the same by place: the redder a byte, the larger the row of dO that had to "
             "foresee it", 14)
    x0, y, x, line, cell = 26, 486, 26, 0, 10.15
    for at in range(FIRST, len(text)):
        byte = chr(text[at])
        if byte == "\n":
            x, y, line = x0, y + (26 if x > x0 else 0), line + (x > x0)
            if line == LINES:
                break
            continue
        strength = (levels[at - 1] - low) / (high - low)
        pic.box(x, y, cell, 20, RED, "none", round(strength ** 2, 2), 0)
        if byte != " ":
            pic.text(round(x + cell / 2, 2), y + 15, byte, 13)
        x = round(x + cell, 2)


def draw_rows():
    size, values = row_sizes()
    rows = sorted(v for heads in size for v in heads)
    pic = Drawing(980, 580, "Rows of a real gradient",
                  "The rows of dO of a training step, sorted by size, spread over orders of "
                  "magnitude; most lie below what float16 can hold well. Below, the text of the "
                  "step, coloured by the size of the rows.")
    pic.text(490, 32, "Rows of a real gradient differ by orders of magnitude", 19)
    pic.text(490, 58, "--bundled=causal: 512 bytes of C, 4 heads; the loss is a mean over 16 384 "
             "bytes", 13, fill=GREY)
    draw_curves(pic, rows, values)
    draw_text(pic, (DATA / "causal_text.txt").read_bytes(), size)
    return pic.done()


FIGURES = {"04_gradient_rows.svg": draw_rows}
