#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""figures.py: the figures of speed and memory, drawn from recorded rows as SVG. The other drawings
in docs/figures never change (what was counted, and errors, are among them): they are the SVG files
themselves, and each says in its first lines what it shows.

    figures.py OUTDIR FILE.jsonl...        what the rows have data for; bars of speed as text
    figures.py OUTDIR [--check]            those of the docs, from docs/results; --check: exit 1
                                           when a file there differs from the drawing
    figures.py --trace TRACE.json FIGURE.svg [forward|backward]
                                           a trace of ring_burst --trace-json: who computes, sends
                                           and receives when, as measured and by the cost model

The same rows give the same SVG, byte for byte. Only rows with pass:true reach a figure.

Interface:
- Drawing(width, height, title, description): box, text, line, mark, curve; done() gives the text.
- Panel, chart: lines over two axes, side by side, their names below.
- FIGURES: name -> function from rows to the text of a figure, or None where no row serves it.
- gantt(trace, only): the figure of a trace, or None.
"""
import json
import math
import pathlib
import re
import sys
from xml.sax.saxutils import escape

import columns
import rows as recorded
import tool

# Okabe and Ito: readers with any common colour blindness can tell them apart.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]
BLUE, RED, GREEN, PURPLE, YELLOW = COLOURS[:5]
GREY, LIGHT = "#666666", "#DDDDDD"
RESULTS = recorded.ROOT / "docs" / "results"


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

    def mark(self, x, y, colour):
        """A point of a diagram."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5.5" stroke="{colour}" '
                          f'stroke-width="2" fill="{colour}"/>')

    def curve(self, points, colour=GREY, width=1.5, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                          f'stroke-width="{width:g}"{dashed}/>')

    def done(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


# --- lines over two axes --------------------------------------------------------------------------

def short(value):
    """256, 1k, 64k, 1M; 0.01; 1e-9."""
    for size, unit in ((1 << 20, "M"), (1024, "k")):
        if value >= size and math.log2(value).is_integer():
            return f"{value // size:g}{unit}"
    return f"{value:g}" if 1e-3 <= abs(value) < 1e5 or not value else f"{value:.0e}"


def ticks(low, high, base):
    """Where an axis has its numbers; base 0: it is linear."""
    if not base:
        step = 10 ** math.floor(math.log10(high - low))
        step = next(s for s in (step / 5, step / 2, step) if (high - low) / s <= 8)
        return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    return [base ** n for n in range(first, last + 1, max(1, (last - first + 7) // 8))]


class Panel:
    """series: [(name or "", points, dash)]; levels: [(y, text)] lines across, without a name.
    bases: of the axes' logarithms, 0: linear, from zero on. spots: [(x, y, text, colour)], those
    of one x side by side."""

    def __init__(self, title, xlabel, ylabel, series, levels=(), bases=(2, 10), spots=()):
        self.title, self.xlabel, self.ylabel, self.bases = title, xlabel, ylabel, bases
        self.series, self.levels, self.spots = series, levels, spots
        points = [p for _, line, *_ in series for p in line] + [spot[:2] for spot in spots]
        self.low, self.high = [], []
        for axis, base in enumerate(bases):
            values = [p[axis] for p in points] + ([y for y, _ in levels] if axis else [])
            low, high = min(values), max(values)
            self.low.append(low / 1.3 if base else 0)
            self.high.append(high * 1.3 if base else high * 1.1)

    def place(self, x, y):
        found = []
        for axis, value in enumerate((x, y)):
            base, low, high = self.bases[axis], self.low[axis], self.high[axis]
            found.append(math.log(value / low) / math.log(high / low) if base else
                         (value - low) / (high - low))
        return (round(self.left + found[0] * self.width, 1),
                round(self.top + self.height - found[1] * self.height, 1))

    def draw(self, pic, left, top, width, height):
        self.left, self.top, self.width, self.height = left, top, width, height
        pic.text(left + width / 2, top - 14, self.title, 15)
        for x in ticks(self.low[0], self.high[0], self.bases[0]):
            at = self.place(x, self.high[1])[0]
            pic.line(at, top, at, top + height, LIGHT, 1)
            pic.text(at, top + height + 18, short(x), 12)
        for y in ticks(self.low[1], self.high[1], self.bases[1]):
            at = self.place(self.high[0], y)[1]
            pic.line(left, at, left + width, at, LIGHT, 1)
            pic.text(left - 7, at + 4, short(y), 12, "end")
        pic.box(left, top, width, height, radius=0)
        pic.text(left + width / 2, top + height + 38, self.xlabel, 13)
        pic.text(left - 40, top - 32, self.ylabel, 13, "start")
        for y, text in self.levels:
            at = self.place(self.high[0], y)[1]
            pic.line(left, at, left + width, at, GREY, 1.5)
            pic.text(left + 8, at - 6, text, 12, "start", GREY)
        below, colours = top + height + 62, {}
        for name, points, dash in self.series:
            colour = colours.setdefault(name.split("|")[0], COLOURS[len(colours) % 8])
            pic.curve([self.place(*p) for p in points], colour, 1.5 if dash else 2.5, dash)
            for p in points if not dash else ():
                pic.mark(*self.place(*p), colour)
            if "|" not in name:  # what is behind a bar shares the colour of what is before it
                pic.line(left, below - 4, left + 26, below - 4, colour, 3)
                pic.text(left + 34, below, name, 13, "start")
                below += 19
        for x in sorted({spot[0] for spot in self.spots}):
            here = sorted((self.place(x, spot[1])[1], *spot[2:]) for spot in self.spots
                          if spot[0] == x)
            at, last = self.place(x, self.high[1])[0], -math.inf
            for y, text, colour in here:
                last = max(y, last + 16)  # names that are too near move down
                pic.line(at, y, at + 10, last, colour, 1)
                pic.mark(at, y, colour)
                pic.text(at + 13, last + 5, text, 12, "start", colour)


def chart(title, under, panels, shows, size=(470, 310)):
    names = max(sum("|" not in name for name, *_ in panel.series) for panel in panels)
    each = size[0] + 90
    width = max(780, each * len(panels) + 20)
    pic = Drawing(width, size[1] + 190 + 19 * names, title, shows)
    pic.text(width / 2, 28, title, 18)
    pic.text(width / 2, 50, under, 13, fill=GREY)
    for n, panel in enumerate(panels):
        panel.draw(pic, width / 2 - each * len(panels) / 2 + 70 + each * n, 110, *size)
    return pic.done()


# --- rows -----------------------------------------------------------------------------------------

def chip(row):
    return str(row.get("cpu") if row.get("device") == "cpu" else row.get("gpu"))


def by_variant(rows):
    found = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    return dict(sorted(found.items()))


def richest(rows, key, count):
    """The group of rows (same key) with the most different values of count; ties: the last."""
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return max(groups.values(), key=lambda g: len({count(r) for r in g}), default=[])


def latest(rows, key):
    """One row a key: a later line of the file replaces an earlier one."""
    return list({key(row): row for row in rows}.values())


def sizes_of(row):
    chip_of = "cpu" if row.get("device") == "cpu" else "gpu"  # times of two chips do not compare
    return tuple(str(row.get(k)) for k in ("device", "dtype", "B", "H", "Hkv", "d", "mask",
                                           "window", "threads", "machine", chip_of))


def square(rows):
    """Rows with as many queries as keys and no mask."""
    return [r for r in rows if r.get("Nq") == r.get("Nk") and not r.get("backward")
            and r.get("mask") in (None, "none") and r.get("window") in (None, [-1, -1])]


def lines(rows, x, y, order=()):
    """[(variant, its rows' points by x)], in this order or by name."""
    found = by_variant(rows)
    return [(name, sorted((r[x], y(r)) for r in found[name]))
            for name in [n for n in order if n in found] or found]


# --- figures of lines -----------------------------------------------------------------------------

GPU_BYTES = {"H200": 141e9, "H100": 80e9, "A100": 80e9}  # of the card, by a part of its name


def beyond(points, most):
    """A line that grows as N squared, from its last point until it passes `most`; or nothing."""
    N, value = points[-1]
    end = N * math.sqrt(2 * most / value)
    return [(N, value), (end, 2 * most)] if end > N else []


def wall(rows):
    """Time and memory against N, and where the N x N scores no longer fit."""
    rows = [r for r in square(rows) if r["stage"] == "naive" and r.get("peak_bytes")
            and r.get("ms_med")]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in ("device", "dtype", "B", "H", "d",
                                                                 "threads", "machine")),
                   lambda r: r["Nq"])
    rows = latest(rows, lambda r: (r["variant"], r["Nq"]))
    if len({r["Nq"] for r in rows}) < 3:
        return None
    first = rows[0]
    memory = lines(rows, "Nq", lambda r: r["peak_bytes"])
    levels = [(80e9, "an 80 GB GPU ends")]
    if first.get("ram_bytes"):
        levels.append((first["ram_bytes"], "this machine's memory ends"))
    return chart(
        "Materialised attention: both costs grow as N squared",
        f"H={first['H']} d={first['d']} {first['dtype']}, {first['threads']} threads; "
        + chip(first),
        [Panel("Time", "sequence length N", "forward pass (ms)",
               [(n, p, "") for n, p in lines(rows, "Nq", recorded.time_ms)]),
         Panel("Memory beside the inputs and outputs", "sequence length N",
               "peak workspace (bytes); dashed: continued as N squared",
               [(n, p, "") for n, p in memory] +
               [(n + "|", beyond(p, 80e9), "6 4") for n, p in memory], levels)],
        "Time and memory of materialised attention against N, and where memory ends.")


def speedup_points(rows, standard, clock):
    """(case text, [(N, speed-up, variant)]): stage 01 over the fastest of stage 03, same case."""
    found = {}
    for row in rows:
        if row.get(clock):
            found.setdefault(sizes_of(row), []).append(row)
    for group in found.values():
        points = []
        for N in sorted({r["Nq"] for r in group}):
            base = [r[clock] for r in group if r["Nq"] == N and r["stage"] == "naive"
                    and r["variant"] == standard]
            flash = [(r[clock], r["variant"]) for r in group if r["Nq"] == N
                     and r["stage"] == "flash_forward"]
            if base and flash:
                fastest, name = min(flash)
                points.append((N, base[-1] / fastest, name))
        if len(points) >= 3:
            yield group[-1], points


def speedup(rows):
    """How many times faster flash attention is than standard attention, against N. On the GPU by
    the kernels' own time (ncu)."""
    rows, series = square(rows), []
    for device, standard, clock in (("cpu", "v1_blas", "ms_med"), ("cuda", "v1_cublas", "ncu_ms")):
        mine = [r for r in rows if r.get("device") == device and r.get("d") == 64]
        for last, points in speedup_points(mine, standard, clock):
            where = f"{last['threads']} threads" if device == "cpu" else chip(last)
            series.append((f"{points[-1][2]} over {standard}, {last['dtype']}, {where}",
                           [point[:2] for point in points], ""))
    return series and chart("Flash over standard attention, d = 64, no mask", "",
                            [Panel("", "sequence length N", "times faster", series, bases=(2, 0))],
                            "How many times faster flash attention is, against N.") or None


# (stage, variant) with whole matrices, without; device by device
PAIRS = {"cuda": [("naive", "v1_cublas"), ("flash_backward", "library")],
         "cpu": [("flash_backward", "v1_blas"), ("flash_backward", "library")]}


def pair_of(rows, device):
    """[rows of the one with matrices, rows of the other], each by N, of one and the same case."""
    mine = [r for r in rows if r.get("device") == device and r.get("backward")
            and (r["stage"], r["variant"]) in PAIRS[device] and r.get("Nq") == r.get("Nk")
            and r.get("mask") in (None, "none") and r.get("window") in (None, [-1, -1])
            and not r.get("deterministic") and r.get("ms_backward_med") and r.get("peak_bytes")]
    mine = richest(mine, sizes_of, lambda r: (r["variant"], r["Nq"]))
    mine = latest(mine, lambda r: (r["variant"], r["Nq"]))
    found = [sorted((r for r in mine if r["variant"] == variant), key=lambda r: r["Nq"])
             for _, variant in PAIRS[device]]
    return found if all(len(r) >= 3 for r in found) else None


def crossover(whole, tiles):
    """The first N from which on the one without matrices is faster, 0: it never is."""
    slower = {r["Nq"]: r["ms_backward_med"] for r in whole}
    first = 0
    for row in reversed([r for r in tiles if r["Nq"] in slower]):
        if row["ms_backward_med"] >= slower[row["Nq"]]:
            break
        first = row["Nq"]
    return first


def memory_of(row):
    if row["device"] == "cpu":
        return row.get("ram_bytes") or 0
    return next((size for name, size in GPU_BYTES.items() if name in str(row.get("gpu"))), 0)


def backward_wall(rows):
    """Stage 04: what is gained by computing P again."""
    pairs = [pair for pair in (pair_of(rows, device) for device in PAIRS) if pair]
    if not pairs:
        return None
    time, memory, dashed, levels, notes = [], [], [], {}, []
    for whole, tiles in pairs:
        last, home = whole[-1], "GPU" if whole[-1]["device"] == "cuda" else "CPU"
        where = chip(last) if home == "GPU" else f"{last['threads']} CPU threads"
        first = crossover(whole, tiles)
        notes.append(f"{where}: H={last['H']} d={last['d']} {last['dtype']}, tiles are " +
                     (f"faster from N = {first} on" if first else "not yet faster"))
        if memory_of(last):
            levels[memory_of(last)] = f"the memory of the {home}"
        for mine in (whole, tiles):
            name = f"{mine[0]['variant']} ({home})"
            time.append((name, [(r["Nq"], r["ms_backward_med"]) for r in mine], ""))
            memory.append((name, [(r["Nq"], r["peak_bytes"]) for r in mine], ""))
            if mine is whole and memory_of(last):
                dashed.append((name + "|", beyond(memory[-1][1], memory_of(last)), "6 4"))
    return chart("Backward pass: P and dS as whole matrices, or tile by tile", "; ".join(notes),
                 [Panel("Time", "sequence length N", "backward pass (ms)", time),
                  Panel("Memory beside inputs and outputs", "sequence length N",
                        "peak workspace (bytes); dashed: continued as N squared",
                        memory + dashed, list(levels.items()))],
                 "Time and memory of the backward pass against N, with whole matrices and without.")


FAST = "library"
SLOW = {"cpu": "v0_offline_mask", "cuda": "v0_online_block"}
PLAIN = {"temperature": 1, "clip": [0, 1], "dropout": 0, "qk_norm": 0, "softcap": 0}


def windowed(rows):
    """Forward rows of stage 05 with as many queries as keys and no option but the window."""
    rows = [r for r in rows
            if r["stage"] == "sliding_window"]
    return [r for r in rows if not r.get("backward")
            and r.get("Nq") == r.get("Nk") and r.get("sequences") in (None, 1)
            and all(r.get(k) in (None, v) for k, v in PLAIN.items())]


def left_of(row):
    return (row.get("window") or [-1])[0]


def lines_of(rows, device):
    """[(variant, window's left end, rows by N)]: the fast variant with each window and without,
    the slow one with the smallest window."""
    windows = sorted({left_of(r) for r in rows if left_of(r) >= 0}, reverse=True)
    wanted = [(FAST, left) for left in [-1, *windows]]
    if windows:
        wanted.insert(0, (SLOW[device], windows[-1]))
    found = []
    for variant, left in wanted:
        mine = latest([r for r in rows if r["variant"] == variant and left_of(r) == left],
                      lambda r: r["Nq"])
        if len(mine) >= 3:
            found.append((variant, left, sorted(mine, key=lambda r: r["Nq"])))
    return found


def window_cost(rows):
    """Stage 05: time against N at a fixed window and without one."""
    panels = []
    for device in ("cpu", "cuda"):
        mine = [r for r in windowed(rows) if r.get("device") == device and r.get("ms_med")
                and "causal" in str(r.get("mask")) and r["variant"] in (FAST, SLOW[device])]
        mine = richest(mine, lambda r: tuple(str(r.get(k)) for k in (
            "dtype", "B", "H", "Hkv", "d", "threads", "machine", "gpu")),
            lambda r: (r["variant"], left_of(r), r["Nq"]))
        found = lines_of(mine, device)
        if len(found) < 2:
            continue
        last = found[-1][2][-1]
        where = chip(last) if device == "cuda" else f"{last['threads']} CPU threads"
        panels.append(Panel(f"{where}: H={last['H']} d={last['d']} {last['dtype']}",
                            "sequence length N", "forward pass (ms)",
                            [(f"{variant}, {'no window' if left < 0 else f'w = {left}'}",
                              [(r["Nq"], r["ms_med"]) for r in points], "")
                             for variant, left, points in found]))
    return chart("Causal attention without a window, and with one of w keys", "", panels,
                 "Time against N, without a window and with some.") if panels else None


# --- bars -----------------------------------------------------------------------------------------

def accesses(rows):
    """Stage 02: element accesses and time per element of each softmax."""
    rows = [r for r in rows if r["stage"] == "tiled_softmax" and r.get("rows") and r.get("cols")
            and r.get("accesses") and r.get("ms_med")]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in ("device", "rows", "cols",
                                                                 "threads", "machine")),
                   lambda r: r["variant"])
    rows = sorted(latest(rows, lambda r: r["variant"]), key=lambda r: r["variant"])
    if len(rows) < 2:
        return None
    first = rows[0]
    pic = Drawing(1000, 110 + 34 * len(rows), "Softmax: fewer passes over the row",
                  "Reads and writes per element of each softmax, and how long it takes.")
    pic.text(500, 28, f"Softmax: {first['rows']} rows of {first['cols']} f32; {chip(first)}", 18)
    for left, title, value in ((200, "reads and writes per element, counted",
                                lambda r: r["accesses"]),
                               (610, "ns per element",
                                lambda r: r["ms_med"] * 1e6 / (r["rows"] * r["cols"]))):
        most = max(map(value, rows))
        pic.text(left, 66, title, 14, "start")
        for n, row in enumerate(rows):
            y, width = 80 + 34 * n, round(300 * value(row) / most, 1)
            pic.box(left, y, width, 24, COLOURS[n % 8], COLOURS[n % 8], 0.8, 0)
            pic.text(left + width + 8, y + 17, f"{value(row):.3g}", 13, "start")
            if left == 200:
                pic.text(left - 8, y + 17, row["variant"], 13, "end")
    return pic.done()


def speed_rows(rows):
    """One row a variant, stage by stage and rung by rung, of the case that the most variants ran;
    CPU and GPU stand apart. Stage 04 shows its backward pass, the others their forward pass."""
    rows = [r for r in rows if r.get("flops") and recorded.time_ms(r)
            and (r["stage"] == "flash_backward" or not r.get("backward"))]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in (
        "B", "H", "Hkv", "Nq", "Nk", "d", "mask", "window", "softcap", "dtype", "input")),
        lambda r: (r["stage"], r["variant"], r["device"]))
    rows = latest(rows, lambda r: (r["stage"], r["variant"], r["device"]))
    rows.sort(key=lambda r: (r["device"], *recorded.ladder_order(r)))
    recorded.add_speedups(rows)
    return rows


def lengths(rows, most):
    """Of the bars, on a logarithmic scale: the ladder climbs by factors."""
    rates = [recorded.gflops(r) for r in rows]
    low = min(rates) / 3
    return [most * math.log(rate / low) / math.log(max(rates) / low) for rate in rates]


def speed_note(row):
    gain = f", {columns.cell(row, 'speed')}" if row["_speed"] else ""
    return f"{columns.cell(row, 'gflops')} GFLOP/s{gain}"


def speed(rows):
    rows = speed_rows(rows)
    if not rows:
        return None
    stages = list(dict.fromkeys((r["device"], r["stage"]) for r in rows))
    pic = Drawing(960, 110 + 30 * len(rows), "Speed of every variant",
                  "GFLOP/s of every variant, one bar each, on a logarithmic scale.")
    pic.text(480, 28, "Speed of every variant", 18)
    pic.text(480, 50, f"{columns.case_text(rows[0])}; {', '.join(sorted(set(map(chip, rows))))}; "
             "logarithmic scale", 13, fill=GREY)
    sgemm = max((r.get("sgemm_gflops") or 0 for r in rows if r["device"] == "cpu"), default=0)
    if sgemm:
        pic.text(480, 70, f"OpenBLAS' sgemm on this CPU: {sgemm:.0f} GFLOP/s", 13, fill=GREY)
    for n, (row, width) in enumerate(zip(rows, lengths(rows, 440))):
        y, colour = 84 + 30 * n, COLOURS[stages.index((row["device"], row["stage"])) % 8]
        pic.box(290, y, round(width, 1), 22, colour, colour, 0.8, 0)
        pic.text(282, y + 16, f"{row['stage']} {row['variant']}", 13, "end")
        pic.text(298 + round(width, 1), y + 16, speed_note(row), 12, "start")
    return pic.done()


def speed_text(rows):
    """The same bars with letters, in 100 columns."""
    rows = speed_rows(rows)
    return "".join(f"{row['stage'] + ' ' + row['variant']:>36} {'#' * max(1, round(width))} "
                   f"{speed_note(row)}\n" for row, width in zip(rows, lengths(rows, 32) if rows
                                                                else ()))


# --- rooflines ------------------------------------------------------------------------------------

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
    """Stage 03's speed against operations for each byte that the tiles of a variant move, which the
    traffic rows tell. Rows that are not recorded yet are points that are not there."""
    roofs = [(name, [(peak / HBM, peak), (3100, peak)], dash) for peak, name, dash in (
        (PEAK_BF16, "tensor cores, data sheet: 990", "1 0"),
        (MMA_SYNC, f"at 1024 FMA a clock and SM: {MMA_SYNC:.0f}", "6 4"),
        (PEAK_F32, "float32 units: 67", "2 3"))]
    roofs.append(("HBM 4.8 TB/s", [(3.3, 3.3 * HBM), (PEAK_BF16 / HBM, PEAK_BF16)], "1 0"))
    spots = [(x, recorded.gflops(row) / 1e3,
              "materialised" if row["stage"] == "naive" else row["variant"],
              BLUE if row["dtype"] == "f32" else RED) for row, x in roofline_rows()]
    return chart("Roofline, one H200, N = 4096, d = 64, no mask",
                 "operations for each byte moved between a multiprocessor and L2 or HBM (tile "
                 "model); blue: float32, red: bfloat16",
                 [Panel("", "FLOP / byte", "TFLOP/s, measured", roofs, bases=(10, 10),
                        spots=spots)],
                 "Speed against operations for each byte that the tiles move, with the limits of "
                 "memory, of the float32 units and of the tensor cores.", (720, 420))


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


def draw_ceilings(way, rows, products):
    """Hopper's rungs against operations for each exponential. products: of a score, 2 d operations
    each."""
    x = [2 * products * d for d in range(16, 291, 2)]
    both = [(n, 1 / (1 / PEAK_BF16 + 1 / (n * EXP))) for n in x]
    ridge, peak = PEAK_BF16 / EXP, matmul_rate()
    roofs = [("tensor cores, data sheet: 990; left of the corner 16 exponentials a clock",
              [(n, min(n * EXP, PEAK_BF16)) for n in x], "1 0"),
             ("one after the other", both, "2 4"),
             (f"a matrix product: {peak:.0f}", [(ridge, peak), (x[-1], peak)], "8 4")]
    spots = [(2 * products * row["d"], recorded.gflops(row) / 1e3, row["variant"], RED)
             for row in sorted(rows, key=recorded.gflops)]
    return chart(f"Two ceilings of an H200, {way}, N = 16384, bfloat16, no mask",
                 f"a score costs {2 * products} d operations of the tensor cores and one "
                 "exponential of the special-function units",
                 [Panel("", "FLOP / exponential", "TFLOP/s", roofs, bases=(2, 0), spots=spots)],
                 "Speed of Hopper's rungs against operations for each exponential. Where d is "
                 "small the exponentials are the limit, then the products.", (720, 420))


def draw_two_ceilings():
    return draw_ceilings("forward", hopper_rows("03_flash_forward_h200.jsonl", 9), 2)


def draw_two_ceilings_backward():
    return draw_ceilings("backward", hopper_rows("04_flash_backward_h200.jsonl", 10), 5)


# --- a trace -------------------------------------------------------------------------------------

MODEL = 1000  # process numbers from here on are the model's
LANES = 16  # thread numbers of a group: computes, sends, receives


def spans_of(trace, first, only):
    """Boxes of one group of processes: rank, group (0 computes, 1 sends, 2 receives), ms, lane."""
    found = []
    for event in trace["traceEvents"]:
        process = event["pid"] - first
        if event["ph"] != "X" or not 0 <= process < MODEL or only not in ("both", event["cat"]):
            continue
        start = event["ts"] / 1e3
        found.append((process, event["tid"] // LANES, start, start + event["dur"] / 1e3,
                      event["tid"] % LANES))
    begin = min((span[2] for span in found), default=0)
    return [(rank, group, start - begin, end - begin, lane)
            for rank, group, start, end, lane in found]


def hidden_share(spans, ranks):
    """Mean over the ranks of the share of their messages' time in which they compute."""
    shares = []
    for rank in range(ranks):
        times = sorted({t for r, _, start, end, _ in spans if r == rank for t in (start, end)})
        covered = total = 0.0
        for start, end in zip(times, times[1:]):
            middle = (start + end) / 2
            busy = [group > 0 for r, group, a, b, _ in spans if r == rank and a <= middle < b]
            total += (end - start) * any(busy)
            covered += (end - start) * (any(busy) and not all(busy))
        shares.append(covered / total if total else 1.0)
    return sum(shares) / len(shares) if shares else 1.0


def gantt(trace, only="both"):
    """only: forward, backward, both. None: there are no spans. The shortest bars are made as wide
    as can be seen."""
    other = trace.get("otherData", {})
    ranks = int(other.get("ranks", 0))
    panels = [(name, spans_of(trace, first, only)) for name, first in (("measured", 0),
                                                                       ("model", MODEL))]
    panels = [(name, spans) for name, spans in panels if spans]
    if not panels:
        return None
    pic = Drawing(100 + 620 * len(panels), 130 + 46 * ranks, "What each rank did when",
                  "It computes, sends and receives: three lines a rank, from above.")
    pic.text(50 + 310 * len(panels), 26, f"{other.get('method')}, {other.get('layout')}, {ranks} "
             f"ranks" + ("" if only == "both" else f", {only} pass"), 18)
    for n, (name, spans) in enumerate(panels):
        left, end = 80 + 620 * n, max(span[3] for span in spans)
        pic.text(left + 280, 54, f"{name}: {end:.3g} ms, {100 * hidden_share(spans, ranks):.0f} % "
                 "of the messages' time hidden", 14)
        lanes = 1 + max(lane for _, group, _, _, lane in spans if group == 0)
        for rank, group, start, stop, lane in spans:
            height = 12 / lanes if group == 0 else 12
            pic.box(round(left + 560 * start / end, 1),
                    round(66 + 46 * rank + 14 * group + (height * lane if group == 0 else 0), 1),
                    round(max(560 * (stop - start) / end, 1.5), 1), round(height - 1, 1),
                    COLOURS[group], "white", 0.85, 0)
        for rank in range(ranks if n == 0 else 0):
            pic.text(left - 10, 90 + 46 * rank, f"rank {rank}", 13, "end")
        pic.text(left + 280, 84 + 46 * ranks, "ms", 13)
    for group, word in enumerate(("computes", "sends", "receives")):
        pic.box(80 + 130 * group, 98 + 46 * ranks, 14, 14, COLOURS[group], COLOURS[group], 0.85, 0)
        pic.text(100 + 130 * group, 110 + 46 * ranks, word, 13, "start")
    return pic.done()


# --- all of them ----------------------------------------------------------------------------------

FIGURES = {"01_wall": wall, "02_accesses": accesses, "03_speedup": speedup,
           "04_wall": backward_wall, "05_window": window_cost, "speed": speed}
FIXED = {"03_roofline": draw_roofline, "03_two_ceilings": draw_two_ceilings,
         "04_two_ceilings": draw_two_ceilings_backward}


def drawn(files):
    """{name: text} of what the rows of these files have data for."""
    good = recorded.usable(recorded.load(files))
    made = {name: draw(good) for name, draw in FIGURES.items()}
    return {name: text for name, text in made.items() if text}


def of_docs():
    """The bars are those of the demo; all else is from the other rows."""
    demo = RESULTS / "demo.jsonl"
    made = drawn([f for f in sorted(RESULTS.glob("*.jsonl")) if f != demo])
    made["speed"] = drawn([demo])["speed"]
    return {**made, **{name: draw() for name, draw in FIXED.items()}}


def draw_trace(source, target, only="both"):
    try:
        text = gantt(json.loads(pathlib.Path(source).read_text(encoding="utf-8")), only)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"figures.py: {source} is no trace: {error}", file=sys.stderr)
        return 2
    if text is None:
        print(f"figures.py: {source} has no events", file=sys.stderr)
        return 2
    pathlib.Path(target).write_text(text, encoding="utf-8")
    return 0


def main():
    words = [a for a in sys.argv[1:] if a != "--check"]
    if words[:1] == ["--trace"] and len(words) in (3, 4) and words[3:] in (
            [], ["forward"], ["backward"]):
        return draw_trace(*words[1:])
    if not words or words[0].startswith("-"):
        print("usage: figures.py OUTDIR [FILE.jsonl...] [--check]\n"
              "       figures.py --trace TRACE.json FIGURE.svg [forward|backward]", file=sys.stderr)
        return 2
    out, status = pathlib.Path(words[0]), 0
    for name, text in (drawn(words[1:]) if words[1:] else of_docs()).items():
        path = out / (name + ".svg")
        if "--check" not in sys.argv:
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path, file=sys.stderr)
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is not what figures.py draws")
            status = 1
    if words[1:]:
        print(speed_text(recorded.usable(recorded.load(words[1:]))), end="")
    return status


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
