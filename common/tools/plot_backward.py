# SPDX-License-Identifier: MIT
"""plot_backward.py: the figure of stage 04: what is gained by computing P again.

Interface:
- backward_wall: time and memory of the backward pass against N, with P and dS as whole matrices and
  without, on a CPU and on a GPU; where one overtakes the other and where memory ends.
"""
from plot_rows import block, chip, latest, quoted, richest, sizes_of

# (stage, variant) with whole matrices, without; device by device
PAIRS = {"cuda": [("naive", "v1_cublas"), ("flash_backward", "library")],
         "cpu": [("flash_backward", "v1_blas"), ("flash_backward", "library")]}
GPU_BYTES = {"H200": 141e9, "H100": 80e9, "A100": 80e9}  # of the card, by a part of its name


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
