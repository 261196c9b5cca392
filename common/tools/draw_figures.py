#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""draw_figures.py: the figures that are drawn from recorded rows, as SVG. The other drawings in
docs/figures never change: they are the SVG files themselves, and each says in its first lines what
it shows. gnuplot's figures have draw_plots.sh and draw_gantt.py.

    draw_figures.py OUTDIR [--check]      --check: exit 1 when a file there differs from the drawing

Interface:
- Drawing(width, height, title, description): box, text, line, mark, curve; done() gives the SVG
  text, the same bytes for the same calls.
- Rooflines: stage 03's speed against operations for each byte that the tiles of a variant move,
  which the traffic rows tell; and that of Hopper's rungs against operations for each exponential,
  which the head dimension tells. Rows that are not recorded yet are points that are not there.
- Errors of stage 06 against the number of ranks.
"""
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

import rows as recorded

BLUE, RED, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, GREY = "#E69F00", "#666666"  # all six are safe for the colour-blind
RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results"


# --- shapes ---------------------------------------------------------------------------------------

class Drawing:
    def __init__(self, width, height, title, description):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, sans-serif" '
            'font-size="15" role="img">',
            f"<title>{escape(title)}</title>", f"<desc>{escape(description)}</desc>",
            f'<rect width="{width}" height="{height}" fill="white"/>']

    def box(self, x, y, w, h, fill="none", stroke=GREY, opacity=1.0, radius=4, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}" '
                          f'fill="{fill}" fill-opacity="{opacity:g}" stroke="{stroke}"{dashed}/>')

    def text(self, x, y, text, size=15, anchor="middle", fill="#222222", weight="normal"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{fill}" font-weight="{weight}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour=GREY, width=1.5):
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
                          f'stroke="{colour}" stroke-width="{width:g}"/>')

    def mark(self, x, y, colour, hollow=False):
        """A point of a diagram."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5.5" stroke="{colour}" '
                          f'stroke-width="2" fill="{"white" if hollow else colour}"/>')

    def curve(self, points, colour=GREY, width=1.5, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                          f'stroke-width="{width:g}"{dashed}/>')

    def done(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


# --- speed against operations for each byte -------------------------------------------------------

HBM, PEAK_F32, PEAK_BF16 = 4.8, 67.0, 990.0  # TB/s and TFLOP/s: the H200's data sheet
MMA_SYNC = 132 * 2 * 1024 * 1.83e9 / 1e12    # 1024 multiply-adds a clock and multiprocessor
EXP = 132 * 16 * 1.83e9 / 1e12               # 16 exponentials a clock and multiprocessor, T/s
CASE = "N=4096 d=64 mask=none backward=false"


def recorded_rows(name):
    return recorded.select(recorded.usable(recorded.load([RESULTS / name])), CASE)


def intensities():
    """{(variant, dtype): FLOP for each byte that tiles move}, by the model in the traffic rows."""
    return {(r["variant"], r["dtype"]): r["flops"] / r["hbm_bytes_model"]
            for r in recorded_rows("03_traffic_h200.jsonl")}


def roofline_rows():
    """[(row, FLOP / byte)]: rungs of stage 03 that stand apart, and stage 01 with cuBLAS."""
    shown = ("v0_fa1", "v1_fa2", "v2_register_tiles", "v3_mma", "v5_cp_async", "v9_wgmma",
             "v14_persistent", "v1_cublas")
    x = intensities()
    rows = recorded_rows("01_naive_h200.jsonl") + recorded_rows("03_flash_forward_h200.jsonl")
    return [(r, x[r["variant"], r["dtype"]]) for r in rows
            if (r["variant"], r["dtype"]) in x and r["variant"] in shown]


def draw_roofline():
    pic = Drawing(980, 600, "Roofline of the attention kernels on an H200",
                  "Speed against operations for each byte that the tiles move, with the limits of "
                  "memory, of the float32 units and of the tensor cores.")
    pic.text(490, 32, "Roofline, one H200, N = 4096, d = 64, no mask", 19)
    pic.text(490, 56, "x: operations for each byte moved between a multiprocessor and L2 or HBM "
             "(tile model);  y: measured", 13, fill=GREY)
    left, top, width, height, low_x, low_y = 90, 90, 850, 430, 0.5, -0.6

    def place(x, y):
        return (left + (math.log10(x) - low_x) * width / 3.0,
                top + height - (math.log10(y) - low_y) * height / 3.8)

    for power in range(1, 4):
        x, _ = place(10 ** power, 1)
        pic.line(x, top, x, top + height, "#DDDDDD", 1)
        pic.text(x, top + height + 22, str(10 ** power), 13)
    for power in range(0, 4):
        _, y = place(10, 10 ** power)
        pic.line(left, y, left + width, y, "#DDDDDD", 1)
        pic.text(left - 10, y + 5, str(10 ** power), 13, "end")
    pic.box(left, top, width, height, radius=0)
    pic.text(left + width / 2, top + height + 50, "FLOP / byte", 15)
    pic.text(left - 10, top - 10, "TFLOP/s", 15)
    for peak, name, dash in ((PEAK_BF16, "tensor cores, data sheet: 990", ""),
                             (MMA_SYNC, f"at 1024 FMA a clock and SM: {MMA_SYNC:.0f}", "6 4"),
                             (PEAK_F32, "float32 units: 67", "")):
        pic.curve([place(peak / HBM, peak), place(3100, peak)], GREY, 2, dash)
        x, y = place(3000, peak)
        pic.text(x, y - 7, name, 13, "end", GREY)
    pic.curve([place(3.3, 3.3 * HBM), place(PEAK_BF16 / HBM, PEAK_BF16)], GREY, 2)
    x, y = place(5.2, 5.2 * HBM)
    pic.text(x - 4, y - 16, "HBM 4.8 TB/s", 13, "middle", GREY)
    for row, flop_per_byte in roofline_rows():
        f32 = row["dtype"] == "f32"
        x, y = place(flop_per_byte, recorded.gflops(row) / 1e3)
        pic.mark(x, y, BLUE if f32 else RED, row["stage"] == "naive")
        name = "materialised" if row["stage"] == "naive" else row["variant"]
        left_side = row["stage"] == "naive" or row["variant"] == "v3_mma"
        pic.text(x + (-11 if left_side else 11), y + 5, name, 13, "end" if left_side else "start",
                 BLUE if f32 else RED)
    pic.text(left + 14, top + height - 36, "float32", 14, "start", BLUE)
    pic.text(left + 14, top + height - 16, "bfloat16", 14, "start", RED)
    return pic.done()


# --- tensor cores and exponentials ---------------------------------------------------------------

def hopper_rows(name, first):
    """Rungs from v`first` on, and the library where it is alone, at d = 256."""
    rows = recorded.usable(recorded.load([RESULTS / name]))
    rows = recorded.select(rows, "N=16384 B=1 dtype=bf16 mask=none window=-1,-1")
    return [r for r in rows if not r.get("deterministic") and
            (int((re.match(r"v(\d+)_", r["variant"]) or [0, 0])[1]) >= first or
             (r["variant"] == "library" and r["d"] == 256))]


def matmul_rate():
    """TFLOP/s of a large product in bfloat16, measured beside the peers."""
    text = (RESULTS / "03_peers_h200.txt").read_text(encoding="utf-8")
    return float(re.search(r"matmul 8192\^3 bf16 (\d+)", text)[1])


def spread(ys, gap):
    """The same heights, sorted, moved so that neighbours are `gap` apart."""
    ys = sorted(ys)
    for _ in range(200):
        for n in range(len(ys) - 1):
            missing = gap - (ys[n + 1] - ys[n])
            if missing > 0:
                ys[n], ys[n + 1] = ys[n] - missing / 2, ys[n + 1] + missing / 2
    return ys


def draw_ceilings(way, rows, products):
    """products: of a score, 2 d operations each."""
    pic = Drawing(980, 600, "Two ceilings: tensor cores and exponentials",
                  "Speed of Hopper's rungs against operations for each exponential. Where d is "
                  "small the exponentials are the limit, then the products.")
    pic.text(490, 32, f"Two ceilings of an H200, {way}, N = 16384, bfloat16, no mask", 19)
    pic.text(490, 56, f"a score costs {2 * products} d operations of the tensor cores and one "
             "exponential of the special-function units", 13, fill=GREY)
    left, top, width, height, least, most = 80, 84, 860, 440, 300, 1050

    def place(d, y):
        return left + d * width / 290, top + height - (y - least) * height / (most - least)

    def exponentials(d):
        return 2 * products * d * EXP

    for d in (32, 64, 128, 256):
        x, _ = place(d, least)
        pic.line(x, top, x, top + height, "#DDDDDD", 1)
        pic.text(x, top + height + 22, f"{2 * products * d}  (d = {d})", 13)
    for y in range(300, 1001, 100):
        pic.line(left, place(0, y)[1], left + width, place(0, y)[1], "#DDDDDD", 1)
        pic.text(left - 10, place(0, y)[1] + 5, str(y), 13, "end")
    pic.box(left, top, width, height, radius=0)
    pic.text(left + width / 2, top + height + 52, "FLOP / exponential", 15)
    pic.text(left - 10, top - 10, "TFLOP/s", 15)
    ridge = PEAK_BF16 / exponentials(1)
    corner = place(ridge, PEAK_BF16)
    pic.curve([place(least / exponentials(1), least), corner, place(290, PEAK_BF16)], GREY, 2.5)
    pic.text(*(place(286, PEAK_BF16 + 10)), "tensor cores, data sheet: 990", 13, "end", GREY)
    pic.text(corner[0], corner[1] - 10, "left of here: 16 exponentials a clock", 13, "start", GREY)
    both = [(d, 1 / (1 / PEAK_BF16 + 1 / exponentials(d))) for d in range(10, 291)]
    both = [point for point in both if point[1] > least]
    pic.curve([place(d, y) for d, y in both], GREY, 2, "2 4")
    x, y = place(262, both[-29][1])
    pic.text(x, y + 22, "one after the other", 13, "middle", GREY)
    pic.curve([place(ridge, matmul_rate()), place(290, matmul_rate())], GREY, 2, "8 4")
    x, y = place(ridge, matmul_rate())
    pic.text(x + 6, y - 7, f"a matrix product: {matmul_rate():.0f}", 13, "start", GREY)
    for d in sorted({row["d"] for row in rows}):
        here = sorted((r for r in rows if r["d"] == d), key=recorded.gflops, reverse=True)
        points = [place(d, recorded.gflops(row) / 1e3) for row in here]
        for row, (x, y), label in zip(here, points, spread([y for _, y in points], 18)):
            pic.line(x, y, x + 22, label, RED, 1)
            pic.mark(x, y, RED)
            pic.text(x + 26, label + 5, row["variant"], 13, "start", RED)
    return pic.done()


def draw_two_ceilings():
    return draw_ceilings("forward", hopper_rows("03_flash_forward_h200.jsonl", 9), 2)


def draw_two_ceilings_backward():
    return draw_ceilings("backward", hopper_rows("04_flash_backward_h200.jsonl", 10), 5)


# --- errors against the number of ranks -----------------------------------------------------------

COLOURS = [BLUE, YELLOW, GREEN, PURPLE]  # of O, dQ, dK and dV


def draw_errors():
    pic = Drawing(1000, 430, "Errors against the number of ranks",
                  "Largest errors of O, dQ, dK and dV for 1 to 16 ranks. With float32 partials "
                  "they stay where they are, with bf16 partials they grow.")
    pic.text(500, 30, "Largest errors against the number of ranks, method ring", 19)
    rows = recorded.usable(recorded.load([RESULTS / "06_errors_cpu.jsonl"]))
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


FIGURES = {"03_roofline.svg": draw_roofline, "03_two_ceilings.svg": draw_two_ceilings,
           "04_two_ceilings.svg": draw_two_ceilings_backward,
           "06_errors.svg": draw_errors}


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
