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
import columns
import rows as recorded
import tool

MAP_HEAD = 4
MAP_ZOOM = (0, 24)  # tokens of the enlarged part: the mark, the title, the first sentence
GPU_BYTES = 80e9
TRAFFIC_TWINS = [("naive", "v1_cublas"), ("flash_forward", "v0_fa1"), ("flash_forward", "v1_fa2")]


# --- rows and blocks -----------------------------------------------------------------------------

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


def sizes_of(row):
    return tuple(str(row.get(k)) for k in ("device", "dtype", "B", "H", "Hkv", "d", "mask",
                                           "window", "threads", "machine", "gpu"))


def square(rows):
    """Rows with as many queries as keys and no mask."""
    return [r for r in rows if r.get("Nq") == r.get("Nk") and not r.get("backward")
            and r.get("mask") in (None, "none") and r.get("window") in (None, [-1, -1])]


def per_head(row, key):
    return f"{row[key] / (row['B'] * row['H']):.6g}" if row.get(key) else "NaN"


def curves(rows, x, columns, order=()):
    """One block a variant, sorted by x; and the variants' names, in this order or by name."""
    data, names = [], []
    found = by_variant(rows)
    for name in [n for n in order if n in found] or found:
        mine = found[name]
        mine.sort(key=lambda r: r[x])
        data.append(block([f"# {name}: {x}, {', '.join(columns)}"] +
                          [" ".join([str(r[x])] + [per_head(r, c) for c in columns])
                           for r in mine]))
        names.append(name)
    return data, names


# --- figures --------------------------------------------------------------------------------------

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


def counted(rows):
    return latest([r for r in rows if r["stage"] == "flash_forward" and r.get("traffic_bytes")],
                  lambda r: (r["variant"], r["Nq"], r["sram_elements"], r["d"]))


def traffic_n(rows):
    """Bytes of a head against N. Left, counted on the CPU with one size of fast memory; right, what
    ncu saw of the same algorithms on a GPU: requests to the L2, and HBM."""
    left = richest(counted(rows), lambda r: (r["sram_elements"], r["d"]), lambda r: r["Nq"])
    right = [r for r in square(rows) if r.get("l2_request_bytes") and r.get("dram_bytes")
             and (r["stage"], r["variant"]) in TRAFFIC_TWINS and r.get("dtype") == "f32"]
    right = latest(richest(right, sizes_of, lambda r: r["Nq"]), lambda r: (r["variant"], r["Nq"]))
    if len({r["Nq"] for r in left}) < 3:
        return None
    M, d = left[0]["sram_elements"], left[0]["d"]
    data, names = curves(left, "Nq", ["traffic_bytes"])
    gpu, gpu_names = curves(right, "Nq", ["l2_request_bytes", "dram_bytes", "hbm_bytes_model"],
                            [name for _, name in TRAFFIC_TWINS])
    return ({"names": quoted(" ".join(names)), "count": len(names), "M": M, "d": d,
             "gpu_names": quoted(" ".join(gpu_names)), "gpu_count": len(gpu_names),
             "n_first": min(r["Nq"] for r in left), "n_last": max(r["Nq"] for r in left),
             "chip": quoted(chip(right[0]) if right else "")}, "".join(data + gpu))


def traffic_m(rows):
    """Bytes of a head against the size of fast memory, counted; beside them what v0_fa1 asked of
    the L2 of a GPU, at the M that its tiles stand for."""
    everything = square(rows)
    rows = richest(counted(rows), lambda r: (r["Nq"], r["d"]), lambda r: r["sram_elements"])
    if len({r["sram_elements"] for r in rows}) < 3:
        return None
    N, d = rows[0]["Nq"], rows[0]["d"]
    data, names = curves(rows, "sram_elements", ["traffic_bytes"])
    M = [r["sram_elements"] for r in rows]
    points = [f"{4 * d * r['tile_keys']} {per_head(r, 'l2_request_bytes')}" for r in everything
              if r.get("l2_request_bytes") and r["variant"] == "v0_fa1" and r.get("tile_keys")
              and (r["Nq"], r["d"]) == (N, d)]
    return ({"names": quoted(" ".join(names)), "count": len(names), "N": N, "d": d,
             "m_first": min(M), "m_last": max(M), "points": len(points[-1:])},
            "".join(data) + block(points[-1:]))


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
    rows = square(rows)
    lines, names, seconds = [], [], []
    for device, standard, clock in (("cpu", "v1_blas", "ms_med"), ("cuda", "v1_cublas", "ncu_ms")):
        mine = [r for r in rows if r.get("device") == device and r.get("d") == 64]
        for last, points in speedup_points(mine, standard, clock):
            variant = points[-1][2]
            where = f"{last['threads']} threads" if device == "cpu" else chip(last)
            names.append(f"{variant} over {standard}, {last['dtype']}, {where}")
            lines.append(block([f"# {names[-1]}"] + [f"{N} {gain:.6g}" for N, gain, _ in points]))
            seconds.append(chip(last))
    if not lines:
        return None
    return ({"count": len(lines), **{f"name{n}": quoted(name) for n, name in enumerate(names)},
             "chip": quoted(", ".join(sorted(set(seconds))))}, "".join(lines))


# Stage 04: what is gained by computing P again.
# (stage, variant) with whole matrices, without; device by device
PAIRS = {"cuda": [("naive", "v1_cublas"), ("flash_backward", "library")],
         "cpu": [("flash_backward", "v1_blas"), ("flash_backward", "library")]}
CARDS = {"H200": 141e9, "H100": 80e9, "A100": 80e9}  # bytes of memory, by a part of the name


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
    return next((size for name, size in CARDS.items() if name in str(row.get("gpu"))), 0)


def backward_wall(rows):
    pairs = [pair for pair in (pair_of(rows, device) for device in PAIRS) if pair]
    if not pairs:
        return None
    data, names, walls, lasts, cases, notes, ends, homes = [], [], [], [], [], [], [], []
    for pair in pairs:
        for n, mine in enumerate(pair):
            data.append(block([f"# {mine[0]['variant']}: N, ms, bytes"] +
                              [f"{r['Nq']} {r['ms_backward_med']:.6g} {r['peak_bytes']}"
                               for r in mine]))
            names.append(mine[0]["variant"])
            # What the largest measured run used, continued as N squared; nothing for the tiles.
            lasts.append(mine[-1]["Nq"])
            walls.append(0 if n else mine[-1]["peak_bytes"] / mine[-1]["Nq"] ** 2)
        last = pair[0][-1]
        where = chip(last) if last["device"] == "cuda" else f"{last['threads']} CPU threads"
        cases.append(f"{where}: H={last['H']} d={last['d']} {last['dtype']}")
        first = crossover(*pair)
        name = pair[1][0]["variant"].replace("_", "\\_")  # in enhanced text a command
        notes.append(f"{name} is faster from N = {first} on" if first
                     else f"{name} is not yet faster")
        ends.append(memory_of(last))
        homes.append("GPU" if last["device"] == "cuda" else "CPU")
    sizes = [r["Nq"] for pair in pairs for mine in pair for r in mine]
    return ({"names": quoted(" ".join(names)), "count": len(names),
             "walls": quoted(" ".join(f"{w:.6g}" for w in walls)),
             "lasts": quoted(" ".join(map(str, lasts))), "homes": quoted(" ".join(homes)),
             "ends": quoted(" ".join(f"{e:.0f}" for e in ends)), "pairs": len(pairs),
             "cases": quoted("; ".join(cases)), "notes": quoted("; ".join(notes)),
             "n_first": min(sizes), "n_last": max(sizes)}, "".join(data))


# Stage 05: what a window saves, and what a step loses.
FAST = "library"
SLOW = {"cpu": "v0_offline_mask", "cuda": "v0_online_block"}
# Rows from before stage 05 had a library of that name.
FORMER = {"v2_window_tiles": FAST, "v2_mma_window": FAST}
PLAIN = {"temperature": 1, "clip": [0, 1], "dropout": 0, "qk_norm": 0, "softcap": 0}


def windowed(rows):
    """Forward rows of stage 05 with as many queries as keys and no option but the window."""
    rows = [dict(r, variant=FORMER.get(r["variant"], r["variant"])) for r in rows
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
    data, names, counts, cases = [], [], [], []
    sizes = []
    for device in ("cpu", "cuda"):
        mine = [r for r in windowed(rows) if r.get("device") == device and r.get("ms_med")
                and "causal" in str(r.get("mask")) and r["variant"] in (FAST, SLOW[device])]
        mine = richest(mine, lambda r: tuple(str(r.get(k)) for k in (
            "dtype", "B", "H", "Hkv", "d", "threads", "machine", "gpu")),
            lambda r: (r["variant"], left_of(r), r["Nq"]))
        found = lines_of(mine, device)
        if len(found) < 2:
            continue
        for variant, left, points in found:
            data.append(block([f"# {variant}, window {left}: N, ms"] +
                              [f"{r['Nq']} {r['ms_med']:.6g}" for r in points]))
            names.append(f"{variant}:{'full' if left < 0 else left}")
            sizes += [r["Nq"] for r in points]
        last = found[-1][2][-1]
        where = chip(last) if device == "cuda" else f"{last['threads']} CPU threads"
        counts.append(len(found))
        cases.append(f"{where}: H={last['H']} d={last['d']} {last['dtype']}")
    if not counts:
        return None
    return ({"names": quoted(" ".join(names)), "panels": len(counts),
             "counts": quoted(" ".join(map(str, counts))), "first_case": quoted(cases[0]),
             "last_case": quoted(cases[-1]), "n_first": min(sizes), "n_last": max(sizes)},
            "".join(data))


def step_error(rows):
    rows = [r for r in windowed(rows) if r.get("o_error") and left_of(r) < 0 and r.get("block_kv")]
    stepped = [r for r in rows if r["variant"] == "v1_online_block"]
    stepped = richest(stepped, lambda r: (r["device"], r["B"], r["H"], r["Nq"], r["d"], r["mask"]),
                      lambda r: (r["dtype"], r["block_kv"]))
    if not stepped:
        return None
    first = stepped[0]
    data, names, levels = [], [], []
    for dtype in ("bf16", "f16", "f32"):
        mine = latest([r for r in stepped if r["dtype"] == dtype], lambda r: r["block_kv"])
        if len(mine) < 3:
            continue
        points = sorted((-(-r["Nk"] // r["block_kv"]), r["o_error"]) for r in mine)
        once = [r["o_error"] for r in rows if r["variant"] == FAST
                and r["dtype"] == dtype
                and all(r[k] == first[k] for k in ("B", "H", "Nq", "d", "mask"))]
        data.append(block([f"# {dtype}: steps, error of O"] + [f"{n} {e:.6g}" for n, e in points]))
        names.append(dtype)
        levels.append(f"{once[-1]:.6g}" if once else "0")
    if not names:
        return None
    return ({"names": quoted(" ".join(names)), "count": len(names),
             "levels": quoted(" ".join(levels)), "once": quoted(FAST),
             "N": first["Nq"], "d": first["d"]}, "".join(data))


def speed(rows):
    """One bar a variant, stage by stage and rung by rung, for the case that the most variants ran;
    CPU and GPU stand apart. Stage 04 shows its backward pass, the others their forward pass."""
    rows = [r for r in rows if r.get("flops") and recorded.time_ms(r)
            and (r["stage"] == "flash_backward" or not r.get("backward"))]
    rows = richest(rows, lambda r: tuple(str(r.get(k)) for k in (
        "B", "H", "Hkv", "Nq", "Nk", "d", "mask", "window", "softcap", "dtype", "input")),
        lambda r: (r["stage"], r["variant"], r["device"]))
    rows = latest(rows, lambda r: (r["stage"], r["variant"], r["device"]))
    if not rows:
        return None
    rows.sort(key=lambda r: (r["device"], *recorded.ladder_order(r)))
    stages = list(dict.fromkeys((r["device"], r["stage"]) for r in rows))
    recorded.add_speedups(rows)
    lines = []
    for n, r in enumerate(rows):
        gain = f", {columns.cell(r, 'speed')}" if r["_speed"] else ""
        note = f"{columns.cell(r, 'gflops')} GFLOP/s{gain}"
        lines.append(f"{n} {recorded.gflops(r):.6g} {stages.index((r['device'], r['stage']))} "
                     f"{quoted(r['stage'] + ' ' + r['variant'])} {quoted(note)}")
    first = rows[0]
    cpu = [r.get("sgemm_gflops") or 0 for r in rows if r["device"] == "cpu"]
    chips = sorted({chip(r) for r in rows})
    return ({"count": len(rows), "case": quoted(columns.case_text(first)),
             "chip": quoted(", ".join(chips)), "sgemm": f"{max(cpu, default=0):.6g}",
             "top": f"{max(recorded.gflops(r) for r in rows):.6g}",
             "low": f"{min(recorded.gflops(r) for r in rows):.6g}"}, block(lines))


FIGURES = {"01_wall": wall, "attention_map": attention_map, "02_accesses": accesses,
           "02_unsafe_exp": unsafe_exp, "03_traffic_n": traffic_n, "03_traffic_m": traffic_m,
           "03_speedup": speedup, "04_wall": backward_wall, "05_window": window_cost,
           "05_steps": step_error, "speed": speed}


def main():
    if len(sys.argv) < 3:
        print("usage: plot_data.py OUTDIR FILE.jsonl...", file=sys.stderr)
        return 2
    out = pathlib.Path(sys.argv[1])
    rows = recorded.load(sys.argv[2:])
    good = recorded.usable(rows)
    figures = {name: figure(rows if figure is unsafe_exp else good)
               for name, figure in FIGURES.items()}
    for name, made in figures.items():
        if made is None:
            continue
        variables, data = made
        (out / f"{name}.set").write_text("".join(f"{k} = {v}\n" for k, v in variables.items()))
        (out / f"{name}.dat").write_text(data)
        print(name)
    return 0


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
