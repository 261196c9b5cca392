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

from plot_ring import gantt

PLOTS = pathlib.Path(__file__).resolve().parent.parent / "plots"


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
