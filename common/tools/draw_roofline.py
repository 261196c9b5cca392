# SPDX-License-Identifier: MIT
"""draw_roofline.py: stage 03's roofline from recorded rows: speed against operations for each
byte that the tiles of a variant move, which the traffic rows tell.

Interface:
- draw_roofline(): the SVG. Rows that are not recorded yet are points that are not there.
"""
import math
import pathlib

import rows as recorded
from svg_drawing import BLUE, GREY, RED, Drawing

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "results"
HBM, PEAK_F32, PEAK_BF16 = 4.8, 67.0, 990.0  # TB/s and TFLOP/s: the H200's data sheet
MMA_SYNC = 132 * 2 * 1024 * 1.83e9 / 1e12    # 1024 multiply-adds a clock and multiprocessor
CASE = "N=4096 d=64 mask=none backward=false"


def recorded_rows(name):
    return recorded.select(recorded.usable(recorded.load([RESULTS / name])), CASE)


def intensities():
    """{(variant, dtype): FLOP for each byte that tiles move}, by the model in the traffic rows."""
    return {(r["variant"], r["dtype"]): r["flops"] / r["hbm_bytes_model"]
            for r in recorded_rows("03_traffic_h200.jsonl")}


def roofline_rows():
    """[(row, FLOP / byte)]: stage 03, and stage 01 with cuBLAS."""
    x = intensities()
    rows = recorded_rows("01_naive_h200.jsonl") + recorded_rows("03_flash_forward_h200.jsonl")
    return [(r, x[r["variant"], r["dtype"]]) for r in rows
            if (r["variant"], r["dtype"]) in x and r["variant"] != "v0_thread_per_score"]


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
