# SPDX-License-Identifier: MIT
"""plot_ring.py: the figures of stage 06: the map of methods, and who did what when.

Interface:
- ring_map: from `ring_map`'s rows, the fastest method for each number of GPUs and tokens per GPU,
  and from how many tokens per GPU each method's messages are hidden.
- gantt: spans of a Chrome trace (--trace-json) as boxes, measured and by the model, rank by rank.
"""
from plot_rows import block, latest, quoted

METHODS = ("ring", "ring-double", "burst", "burst-double", "allgather", "ulysses")
MODEL = 1000  # process numbers from here on are the model's
EQUAL = 1.03
LANES = 16  # thread numbers of a group: computes, sends, receives


def fastest(rows):
    """Times within 3 % are equal, as for the planner: then fewer bytes win, then the simpler."""
    limit = EQUAL * min(r["ms"] for r in rows)
    return min((r for r in rows if r["ms"] <= limit),
               key=lambda r: (r["sent_bytes"], METHODS.index(r["variant"])))


def ring_map(rows):
    rows = [r for r in rows if r.get("experiment") == "ring_map"]
    if not rows:
        return None
    last = rows[-1]
    same = ("H", "Hkv", "d", "dtype")
    rows = latest([r for r in rows if all(r[k] == last[k] for k in same)],
                  lambda r: (r["variant"], r["ranks"], r["tokens"]))
    ranks, tokens = sorted({r["ranks"] for r in rows}), sorted({r["tokens"] for r in rows})
    cells = []
    for x, G in enumerate(ranks):
        for y, n in enumerate(tokens):
            here = [r for r in rows if (r["ranks"], r["tokens"]) == (G, n)]
            best = fastest(here)
            share = 100 * best["compute_ms"] / best["ms"]
            cells.append(f"{x} {y} {METHODS.index(best['variant'])} {quoted(f'{share:.0f}')}")
    lines, names = [], []
    for method in METHODS:
        mine = sorted({(r["ranks"], r["free_from"]) for r in rows
                       if r["variant"] == method and r["free_from"]})
        if mine:
            lines.append(block([f"# {method}: GPUs, tokens per GPU"]
                               + [f"{G} {n}" for G, n in mine]))
            names.append(method)
    short = [f"{n // 1024}k" if n >= 1024 else str(n) for n in tokens]
    return ({"methods": quoted(" ".join(METHODS)), "names": quoted(" ".join(names)),
             "count": len(names), "columns": len(ranks), "rows": len(tokens),
             "ranks": quoted(" ".join(map(str, ranks))), "tokens": quoted(" ".join(short)),
             "case": quoted(f"{last['H']} heads, {last['Hkv']} kv heads, d = {last['d']}, "
                            f"{last['dtype']}, causal, forward and backward, 8 GPUs a node")},
            block(cells) + "".join(lines))


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


def heights(spans):
    """Where a box stands in its line: with two lanes of work one above the other; messages, which
    need not be told apart, all in the same place. {(group, lane): "shift half-height"}"""
    two = any(group == 0 and lane == 1 for _, group, _, _, lane in spans)
    return {(group, lane): f"{0.06 * (2 * lane - 1):g} 0.06" if two and group == 0 else "0 0.12"
            for _, group, _, _, lane in spans}


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
    """only: forward, backward, both. None: there are no spans. Bars have a white border, and the
    shortest would vanish behind it: they are made as wide as can be seen."""
    panels, names, ends = [], [], []
    other = trace.get("otherData", {})
    ranks = int(other.get("ranks", 0))
    for name, first in (("measured", 0), ("model", MODEL)):
        spans = spans_of(trace, first, only)
        if not spans:
            continue
        ends.append(max(span[3] for span in spans))
        share = 100 * hidden_share(spans, ranks)
        names.append(f"{name}: {ends[-1]:.3g} ms, {share:.0f} % of the messages' time hidden")
        for group in range(3):
            panels.append(block([f"# {name}, group {group}: start, end, rank, shift, height"] + [
                f"{start:.6g} {max(end, start + 0.01 * ends[-1]):.6g} {rank} "
                f"{heights(spans)[g, lane]}"
                for rank, g, start, end, lane in spans if g == group]))
    if not names:
        return None
    case = f"{other.get('method')}, {other.get('layout')}, {ranks} ranks"
    case += "" if only == "both" else f", {only} pass"
    return ({"panels": len(names), "ranks": ranks, "case": quoted(case),
             **{f"name{n}": quoted(name) for n, name in enumerate(names)},
             **{f"end{n}": f"{end:.6g}" for n, end in enumerate(ends)}}, "".join(panels))
