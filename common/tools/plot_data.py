#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""plot_data.py: turns recorded runs into what gnuplot reads, one pair of files a figure.

    plot_data.py OUTDIR FILE.jsonl...      prints the names of the figures that have data

Interface:
- Each figure function returns (variables, data): OUTDIR/<figure>.set holds the variables as
  gnuplot assignments, OUTDIR/<figure>.dat the data. It returns None when no row serves it.
- Only rows with pass:true reach a figure.
"""
import math
import pathlib
import sys

import npy_small
import rows as recorded

MAP_HEAD = 4
MAP_ZOOM = (1, 25)  # tokens of the enlarged part: the title and the first sentence
GPU_BYTES = 80e9


def block(lines):
    return "\n".join(lines) + "\n\n\n"


def quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def chip(row):
    """The processor's name, safe in gnuplot's enhanced text, where @ _ ^ { } & are commands."""
    name = str(row.get("cpu") if row.get("device") == "cpu" else row.get("gpu"))
    return "".join("\\" + c if c in "@_^{}&~" else c for c in name)


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


def wall(rows):
    """Time and memory against N, and where the N x N scores no longer fit."""
    rows = [r for r in rows if r["stage"] == "naive" and r.get("Nq") == r.get("Nk")
            and not r.get("backward") and r.get("mask") in (None, "none")
            and r.get("window") in (None, [-1, -1]) and r.get("peak_bytes") and r.get("ms_med")]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in ("device", "dtype", "B", "H", "d",
                                                                 "threads", "machine")),
                   lambda r: r["Nq"])
    rows = latest(rows, lambda r: (r["variant"], r["Nq"]))
    if len({r["Nq"] for r in rows}) < 3:
        return None
    first = rows[0]
    data, names, walls = [], [], []
    for name, mine in by_variant(rows).items():
        mine.sort(key=lambda r: r["Nq"])
        data.append(block([f"# {name}: N, ms, bytes"] +
                          [f"{r['Nq']} {r['ms_med']:.6g} {r['peak_bytes']}" for r in mine]))
        names.append(name)
        # What the largest measured run used, continued as N squared.
        walls.append(mine[-1]["peak_bytes"] / mine[-1]["Nq"] ** 2)
    ram = first.get("ram_bytes") or 0
    variables = {"names": quoted(" ".join(names)), "count": len(names),
                 "gpu_bytes": f"{GPU_BYTES:.0f}",
                 "ram_bytes": f"{ram:.0f}", "walls": quoted(" ".join(f"{w:.6g}" for w in walls)),
                 "n_last": max(r["Nq"] for r in rows), "n_first": min(r["Nq"] for r in rows),
                 "case": quoted(f"H={first['H']} d={first['d']} {first.get('dtype')}, "
                                f"{first.get('threads')} threads"), "chip": quoted(chip(first))}
    return variables, "".join(data)


def attention_map(_rows):
    folder = recorded.ROOT / "common" / "data"
    if not (folder / "encoder_q.npy").exists():
        return None
    P = npy_small.attention_map(folder, MAP_HEAD)
    tokens = (folder / "tokens.txt").read_text(encoding="utf-8").split("\n")
    lo, hi = MAP_ZOOM
    whole = block([" ".join(f"{max(p, 1e-5):.4g}" for p in row) for row in P])
    zoom = block([f"{j - lo} {i - lo} {P[i][j]:.4g}" for i in range(lo, hi) for j in range(lo, hi)])
    labels = block([f'{t - lo} {quoted(tokens[t])}' for t in range(lo, hi)])
    entropy = -sum(p * math.log2(p) for row in P for p in row if p > 0) / len(P)
    return ({"n": len(P), "zoom": hi - lo, "head": MAP_HEAD, "bits": f"{entropy:.2f}"},
            whole + zoom + labels)


def accesses(rows):
    """Stage 02: element accesses and time per element of each softmax."""
    rows = [r for r in rows if r["stage"] == "tiled_softmax" and r.get("rows") and r.get("cols")
            and r.get("accesses") and r.get("ms_med")]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in ("device", "rows", "cols",
                                                                 "threads", "machine")),
                   lambda r: r["variant"])
    rows = latest(rows, lambda r: r["variant"])
    if len(rows) < 2:
        return None
    rows.sort(key=lambda r: r["variant"])
    first = rows[0]
    lines = [f"{n} {quoted(r['variant'])} {r['accesses']:.6g} "
             f"{r['ms_med'] * 1e6 / (r['rows'] * r['cols']):.6g}" for n, r in enumerate(rows)]
    return ({"count": len(rows), "case": quoted(f"{first['rows']} rows of {first['cols']} f32"),
             "chip": quoted(chip(first))}, block(lines))


def unsafe_exp(rows):
    """Worst relative error of P against the size of the scores, with and without the maximum
    subtracted. Where rows came out infinite or NaN a mark stands on a line above the axis."""
    names = ("v0_three_pass", "v1_online", "unsafe_no_max")
    rows = latest(recorded.experiment(rows, "score_range"),
                  lambda r: (r["variant"], r["score_max"]))
    rows.sort(key=lambda r: r["score_max"])
    data = []
    for name in names:
        points = [r for r in rows if r["variant"] == name]
        if len(points) < 3:
            return None
        lines = [f"# {name}: largest score, error, mark of non-finite rows"]
        for r in points:
            error = "NaN" if r["error"] is None else max(r["error"], 1e-9)
            lines.append(f"{r['score_max']:.6g} {error} {1e2 if r['nonfinite'] else 'NaN'}")
        data.append(block(lines))
    return ({"names": quoted(" ".join(names)), "count": len(names),
             "case": quoted(f"{rows[0]['rows']} rows of {rows[0]['cols']} f32 scores")},
            "".join(data))


def speed(rows):
    """One bar a variant, for the case that the most variants ran; CPU and GPU stand apart."""
    rows = [r for r in rows if r.get("flops") and r.get("ms_med") and not r.get("backward")]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in (
        "B", "H", "Hkv", "Nq", "Nk", "d", "mask", "window", "softcap", "dtype", "input")),
        lambda r: (r["stage"], r["variant"], r["device"]))
    rows = latest(rows, lambda r: (r["stage"], r["variant"], r["device"]))
    if not rows:
        return None
    rows.sort(key=lambda r: (r["device"], r["stage"], r["variant"]))
    stages = sorted({(r["device"], r["stage"]) for r in rows})
    recorded.add_speedups(rows)
    lines = []
    for n, r in enumerate(rows):
        gain = f", {recorded.cell(r, 'speed')}" if r["_speed"] else ""
        note = f"{recorded.cell(r, 'gflops')} GFLOP/s{gain}"
        lines.append(f"{n} {recorded.gflops(r):.6g} {stages.index((r['device'], r['stage']))} "
                     f"{quoted(r['stage'] + ' ' + r['variant'])} {quoted(note)}")
    first = rows[0]
    cpu = [r.get("sgemm_gflops") or 0 for r in rows if r["device"] == "cpu"]
    chips = sorted({chip(r) for r in rows})
    return ({"count": len(rows), "case": quoted(recorded.case_text(first)),
             "chip": quoted(", ".join(chips)), "sgemm": f"{max(cpu, default=0):.6g}",
             "top": f"{max(recorded.gflops(r) for r in rows):.6g}",
             "low": f"{min(recorded.gflops(r) for r in rows):.6g}"}, block(lines))


FIGURES = {"01_wall": wall, "attention_map": attention_map, "02_accesses": accesses,
           "02_unsafe_exp": unsafe_exp, "speed": speed}


def main():
    if len(sys.argv) < 3:
        print("usage: plot_data.py OUTDIR FILE.jsonl...", file=sys.stderr)
        return 2
    out = pathlib.Path(sys.argv[1])
    try:
        rows = recorded.load(sys.argv[2:])
    except recorded.RowError as error:
        print(f"plot_data.py: {error}", file=sys.stderr)
        return 2
    good = recorded.usable(rows)
    for name, figure in FIGURES.items():
        made = figure(rows if figure is unsafe_exp else good)
        if made is None:
            continue
        variables, data = made
        (out / f"{name}.set").write_text("".join(f"{k} = {v}\n" for k, v in variables.items()))
        (out / f"{name}.dat").write_text(data)
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
