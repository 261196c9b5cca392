# SPDX-License-Identifier: MIT
"""plot_window.py: the figures of stage 05: what a window saves, and what a step loses.

Interface:
- window_cost: time against N at a fixed window and without one, on a CPU and on a GPU.
- step_error: error of O against the number of online steps, where O is rounded at every step, and
  beside it the error of one float32 accumulator.
"""
from plot_rows import block, chip, latest, quoted, richest

FAST = "library"
SLOW = {"cpu": "v0_offline_mask", "cuda": "v0_online_block"}
# Rows from before stage 05 had a library of that name.
FORMER = {"v2_window_tiles": FAST, "v2_mma_window": FAST}
PLAIN = {"temperature": 1, "clip": [0, 1], "dropout": 0, "qk_norm": 0, "softcap": 0}


def plain(rows):
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
        mine = [r for r in plain(rows) if r.get("device") == device and r.get("ms_med")
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
    rows = [r for r in plain(rows) if r.get("o_error") and left_of(r) < 0 and r.get("block_kv")]
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
