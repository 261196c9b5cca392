#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""draw_gantt.py: a trace of ring_burst --trace-json as a figure: who computes, sends and receives
when, as measured and, beside it, as the cost model expects it.

    draw_gantt.py TRACE.json FIGURE.svg|png [forward|backward]

Exit 2: no gnuplot, no such file, or no events in it.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from plot_data import block, quoted

PLOTS = pathlib.Path(__file__).resolve().parent.parent / "plots"
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


def refuse(sentence):
    print(f"draw_gantt.py: {sentence}", file=sys.stderr)
    return 2


def main():
    words = sys.argv[1:]
    if len(words) not in (2, 3) or (words[2:] and words[2] not in ("forward", "backward")):
        return refuse("usage: TRACE.json FIGURE.svg|png [forward|backward]")
    out = pathlib.Path(words[1])
    if out.suffix not in (".svg", ".png"):
        return refuse(f"found {out}, accepted is a name that ends in .svg or .png")
    if not shutil.which("gnuplot"):
        return refuse("gnuplot is not installed")
    try:
        trace = json.loads(pathlib.Path(words[0]).read_text(encoding="utf-8"))
        made = gantt(trace, words[2] if words[2:] else "both")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return refuse(f"{words[0]} is no trace: {error}")
    if made is None:
        return refuse(f"{words[0]} has no events")
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "06_gantt"
        data.with_suffix(".set").write_text("".join(f"{k} = {v}\n" for k, v in made[0].items()))
        data.with_suffix(".dat").write_text(made[1])
        drawn = pathlib.Path(folder) / f"out{out.suffix}"
        subprocess.run(["gnuplot", "-e", f"kind='{out.suffix[1:]}'; out='{drawn}'; data='{data}'; "
                        f"plots='{PLOTS}'", PLOTS / "06_gantt.gp"], check=True)
        if out.suffix == ".svg":
            what = re.search("^# 06_gantt: (.*)", (PLOTS / "06_gantt.gp").read_text(), re.M)[1]
            drawn.write_text(drawn.read_text().replace("<title>figure<", f"<title>{what}<", 1))
        shutil.move(drawn, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
