#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""first_page.py: the ladder in few lines, from recorded runs.

    first_page.py FILE.jsonl...      the five lines with which ./ladder demo ends

Interface:
- ladder_table(root, demo_file): the table of the first page: for each stage the first and the last
  rung on a CPU, from the demo's rows, and beside the last one the fastest variant on a GPU.
- summary(rows): the five lines: right, fast, small, a window, where the rest stands.
- stale_rows(root, demo_file): the rows of that table whose source has changed since.
"""
import pathlib
import re
import sys

import columns
import rows as recorded
import tool

# Stage -> the case of its CPU rows in the demo, and what its last row says of a GPU: file, case,
# column of the rate with its unit, column of the share with what it is a share of ('': the peer).
CASE = "device=cpu N=1024 H=8 Hkv=8 mask=none"
STAGES = [
    ("01", "naive", CASE, "01_naive_h200.jsonl", "dtype=f32 N=4096 mask=none backward=false",
     "tflops", "TFLOP/s", "", ""),
    ("02", "tiled_softmax", CASE, "02_softmax_rows_h200.jsonl", "rows=16384 cols=16384",
     "gbytes_per_s", "GB/s", "share_of_copy", "of a copy"),
    ("03", "flash_forward", CASE, "03_flash_forward_h200.jsonl",
     "dtype=bf16 B=4 N=4096 d=128 mask=none", "tflops", "TFLOP/s", "of_peer", ""),
    ("04", "flash_backward", CASE, "04_flash_backward_h200.jsonl",
     "dtype=bf16 B=4 N=4096 d=128 mask=none deterministic=false", "tflops", "TFLOP/s", "of_peer",
     ""),
    ("05", "sliding_window", "device=cpu N=2048 window=256,0",
     "05_sliding_window_online_h200.jsonl",
     "device=cuda dtype=bf16 N=16384 d=64 window=1024,0 backward=true", "forward_tflops",
     "TFLOP/s", "of_peer", ""),
    ("06", "ring_burst", CASE, "06_ring_two_h200.jsonl",
     "transport=nccl ranks=2 N=65536 layout=zigzag", "rank_tflops",
     "TFLOP/s a GPU", "efficiency_both", "of its kernels alone"),
]


def ends(rows):
    """The first and the last rung. Stage 06's methods have no order: what a reader meets first and
    the next one. A library is no rung, but in stage 05, where it is what skips tiles."""
    rungs = sorted((r for r in rows
                    if r["variant"] != "library" or r["stage"] == "sliding_window"),
                   key=lambda r: recorded.rung_order(r["variant"]))
    if rungs and rungs[0]["stage"] == "ring_burst":
        rungs = [r for name in ("ring-minimal", "ring") for r in rungs if r["variant"] == name]
    return rungs[:1] + rungs[-1:] if len(rungs) > 1 else rungs


def load(root, name, where):
    found = recorded.usable(recorded.load([pathlib.Path(root) / name]))
    return recorded.select(found, where)


def gpu_row(root, file, where):
    """The fastest variant of a case, of those whose source is today's if there are any."""
    found = load(root, "docs/results/" + file, where)
    found = [row for row in found if not recorded.is_stale(row, root)] or found
    return min(found, key=recorded.time_ms) if found else None


def mark(row, root):
    return " †" if recorded.is_stale(row, root) else ""


def ladder_rows(root, demo_file):
    """[(stage number, program, CPU row, the first of its stage, GPU row or None, its columns)]"""
    found = []
    for number, stage, case, file, gpu_case, *rate in STAGES:
        pair = ends(load(root, demo_file, f"stage={stage} {case}"))
        for row in pair:
            gpu = gpu_row(root, file, gpu_case) if row is pair[-1] else None
            found.append((number, stage, row, pair[0], gpu, rate))
    return found


def ladder_table(root, demo_file):
    lines = ["| stage | rung | on a CPU, ms | times as fast | memory | fastest on a GPU |",
             "|---|---|--:|--:|--:|---|"]
    stale = False
    for number, stage, row, first, gpu, rate in ladder_rows(root, demo_file):
        cells = [f"{number} {stage}" if row is first else "",
                 f"`{row['variant']}`{mark(row, root)}",
                 columns.cell(row, "ms_med"),
                 columns.number(recorded.time_ms(first) / recorded.time_ms(row)),
                 columns.cell(row, "peak_bytes"), ""]
        if gpu:
            of = rate[3] or "x " + re.split(" of |,", gpu.get("peer", ""))[0]
            share = f", {columns.cell(gpu, rate[2])} {of}" if rate[2] else ""
            cells[-1] = (f"`{gpu['variant']}`{mark(gpu, root)}: {columns.cell(gpu, rate[0])} "
                         f"{rate[1]}{share}")
        stale = stale or "†" in "".join(cells)
        lines.append("| " + " | ".join(cells) + " |")
    machines, _ = recorded.facts([row for _, _, row, *_ in ladder_rows(root, demo_file)])
    note = "† recorded with an older source. " if stale else ""
    return "\n".join(lines) + f"\n\n{note}CPU: {machines[0]}.\n"


def stale_rows(root, demo_file):
    found = ladder_rows(root, demo_file)
    rows = [row for _, _, row, *_ in found]
    rows += [gpu for *_, gpu, _ in found if gpu]
    return [row for row in rows if recorded.is_stale(row, root)]


def longest_pair(rows, stage, other):
    """In the longest case on a CPU that both ran: the row of the stage's fastest variant, and that
    of `other` (stage, variant). None: there is no such case."""
    cases = {}
    for row in rows:
        bundled = str(row.get("input")).startswith("bundled")
        asked = row["device"] == "cpu" and row["stage"] in (stage, other[0])
        if asked and not bundled and recorded.time_ms(row):
            where = (row["Nq"], row["H"], row["d"], row["mask"], str(row["window"]))
            cases.setdefault(where, {})[row["stage"], row["variant"]] = row
    for _, found in sorted(cases.items(), reverse=True):
        mine = [row for key, row in found.items() if key[0] == stage and key != other]
        if mine and other in found:
            return min(mine, key=recorded.time_ms), found[other]
    return None


def summary(rows):
    """At most five lines of at most 100 columns; a line whose rows are missing is left out."""
    checked = [r for r in recorded.usable(rows) if r.get("bound_ratio") is not None]
    lines = []
    if checked:
        worst = max(r["bound_ratio"] for r in checked)
        lines.append(f"right   {len(checked)} results checked, the worst at "
                     f"{columns.percent(worst)} of its error bound")
    if pair := longest_pair(checked, "flash_forward", ("naive", "v0_loops")):
        mine, ms = pair[0], list(map(recorded.time_ms, pair))
        lines.append(f"fast    {mine['variant']} is {ms[1] / ms[0]:.0f} times as fast as naive "
                     f"attention ({mine['Nq']} tokens, {columns.number(ms[0])} ms)")
        if mine.get("peak_bytes") and pair[1].get("peak_bytes"):
            cells = [columns.cell(row, "peak_bytes") for row in pair]
            lines.append(f"small   it works in {pair[1]['peak_bytes'] / mine['peak_bytes']:.0f} "
                         f"times less memory ({cells[0]} for {cells[1]})")
    windowed = [r for r in checked if r.get("window") not in (None, [-1, -1], [-1, 0])]
    if pair := longest_pair(windowed, "sliding_window", ("sliding_window", "v0_offline_mask")):
        mine, ms = pair[0], list(map(recorded.time_ms, pair))
        lines.append(f"window  {mine['variant']} is {ms[1] / ms[0]:.0f} times as fast as all "
                     f"scores with a mask ({mine['Nq']} tokens, window {mine['window'][0]})")
    lines.append("look    out/plots/*.svg has the pictures, docs/README.md says where to read on")
    return lines


def main():
    print("\n".join(summary(recorded.load(sys.argv[1:]))))


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
