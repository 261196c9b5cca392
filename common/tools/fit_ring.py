#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""fit_ring.py: the speeds of a machine from runs of ring_burst, and a prediction to test them.

    fit_ring.py RING_ASK ROWS.jsonl [--device cpu|cuda] [--transport T] [--only FILTER]
                [--link L] [--hold FILTER | --all] [--rates FILE]

RING_ASK is the program build/06_ring_burst/ring_ask: the cost model itself answers, nothing of it
is repeated here. Rows with the most ranks are held out; the speeds are those with which the model
comes nearest to all the others (least squares of log(predicted / measured), by Nelder and Mead).
Then the held-out rows are predicted. --all: nothing is held out. --hold "ranks=2 N>=16384": these
are, instead. --only "dist=normal": no others count. --link copy: rows of one rank, which sends
nothing, and of others those of this link. --rates FILE: writes the speeds for
ATTN_RING_RATES=FILE ring_burst.

Every row on GPUs also says what the kernel alone took (alone_ms: no mask, no ring, no message).
That is known in any case, once for each size, also of sizes that are held out.

With one GPU and two, one GPU's rows tell the kernels' speeds and nothing about links: those stay
where they start, at a rate that was measured by itself. The prediction for two GPUs is then made
without having seen any message of theirs.

Exit 2: no rows to fit, or bad usage.
"""
import argparse
import math
import pathlib
import statistics
import subprocess
import sys

import rows as recorded
import tool

NAMES = ("flops_forward", "flops_backward", "scattered", "block_s", "call_s", "pass_s", "post_s",
         "memory", "latency_inner", "bandwidth_inner", "masked_keys")
OUTER = ("latency_outer", "bandwidth_outer")
START = {"cpu": {"flops_forward": 30e9, "flops_backward": 30e9, "scattered": 1, "call_s": 1e-5,
                 "memory": 8e9, "latency_inner": 2e-5, "bandwidth_inner": 5e9,
                 "masked_keys": 16, "latency_outer": 2e-5, "bandwidth_outer": 5e9, "pass_s": 2e-5,
                 "post_s": 1e-6, "block_s": 1e-9, "places_forward": 1, "places_backward": 1},
         "cuda": {"flops_forward": 785e12, "flops_backward": 634e12, "scattered": 2.2,
                  "call_s": 8e-6, "memory": 2.5e12, "latency_inner": 15e-6,
                  "bandwidth_inner": 255e9, "masked_keys": 64, "latency_outer": 25e-6,
                  "bandwidth_outer": 50e9, "pass_s": 3e-5, "post_s": 5e-5, "block_s": 2e-5,
                  "places_forward": 132, "places_backward": 132}}  # a block each, not fitted
COPY = {"bandwidth_inner": 382e9}
PULL = 1e-4  # towards the start, for a speed that no row depends on


class Model:
    """The cost model in a process of its own."""

    def __init__(self, program):
        self.process = subprocess.Popen([str(program)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, rates, questions):
        """[(forward ms, backward ms)] for each question."""
        lines = [f"rate {name} {value:.9g}" for name, value in rates.items()] + questions
        answers = []
        try:
            self.process.stdin.write("\n".join(lines) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended and answers nothing
        for question in questions:
            line = self.process.stdout.readline()
            if not line:
                raise recorded.RowError(f"the model has no answer to: {question}")
            answers.append(tuple(float(word) for word in line.split()[:2]))
        return answers

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=10)


def question_of(row):
    if row["method"] == "alone":
        return "alone " + " ".join(str(row[key]) for key in ("Nq", "H", "Hkv", "d", "dtype"))
    window = row.get("window") or [-1, -1]
    sizes = " ".join(str(row[key]) for key in ("B", "H", "Hkv", "Nq", "Nk", "d"))
    return (f"run {row['method']} {row['layout']} {row['ranks']} {row.get('nodes') or 1} {sizes} "
            f"{window[0]} {window[1]} {row['dtype']} {int(bool(row.get('backward')))} "
            f"{int(bool(row.get('deterministic')))}")


def wanted(rows, options):
    """Checked rows of stage 06 without injected faults, one sequence, no full mask."""
    return [r for r in recorded.usable(rows) if r["stage"] == "ring_burst" and r.get("ms_med")
            and not r.get("inject") and r.get("sequences") in (None, 1)
            and r.get("mask") != "full" and r.get("mask") != "causal-upper-left"
            and r.get("device") == options.device
            and options.transport in (None, r.get("transport"))]


def alone(rows):
    """What the rows say of the kernel alone, once for each size: one GPU, no mask, no messages."""
    found = {}
    for row in rows:
        if row.get("alone_ms") and row["B"] == 1 and row["Nq"] == row["Nk"]:
            size = (row["Nq"] // row["ranks"], row["H"], row["Hkv"], row["d"], row["dtype"])
            found.setdefault(size, []).append(row)
    return [{"method": "alone", "layout": "-", "ranks": 1, "Nq": size[0], "H": size[1],
             "Hkv": size[2], "d": size[3], "dtype": size[4],
             **{to: statistics.median([t for r in same for t in r.get(key) or []] or [0])
                for to, key in (("ms_med", "alone_ms"), ("ms_backward_med", "alone_ms_backward"))}}
            for size, same in sorted(found.items())]


def split(rows, options):
    """Rows to fit, and rows to predict."""
    rows = recorded.select(rows, options.only)
    if options.link: # one rank sends nothing over any link
        rows = [r for r in rows if r["ranks"] == 1 or r.get("link") == options.link]
    kernel = alone(rows)
    if options.all:
        return kernel + rows, []
    most = max((r["ranks"] for r in rows), default=0)
    held = recorded.select(rows, options.hold or f"ranks={most}")
    return kernel + [r for r in rows if r not in held], held


def times_of(row):
    return [t for t in (row["ms_med"], row.get("ms_backward_med")) if t]


def misses(model, rates, rows):
    """log(predicted / measured) of every pass of every row."""
    found = []
    for row, told in zip(rows, model.ask(rates, [question_of(row) for row in rows])):
        found += [math.log(guess / ms) for guess, ms in zip(told, times_of(row))]
    return found


def nelder_mead(f, start, steps=500):
    """The lowest point of f near start, by a simplex that rolls downhill."""
    n = len(start)
    corners = [(f(start), list(start))]
    for i in range(n):
        moved = [x + (0.5 if i == j else 0) for j, x in enumerate(start)]
        corners.append((f(moved), moved))
    for _ in range(steps):
        corners.sort(key=lambda c: c[0])
        if corners[-1][0] - corners[0][0] < 1e-10:
            break
        worst = corners[-1][1]
        middle = [statistics.fmean(c[1][j] for c in corners[:-1]) for j in range(n)]

        def beyond(factor):
            point = [m + factor * (m - w) for m, w in zip(middle, worst)]
            return f(point), point

        turned = beyond(1)
        if turned[0] < corners[0][0]:
            corners[-1] = min(turned, beyond(2), key=lambda c: c[0])
        elif turned[0] < corners[-2][0]:
            corners[-1] = turned
        else:
            inside = beyond(-0.5 if turned[0] >= corners[-1][0] else 0.5)
            if inside[0] < min(turned[0], corners[-1][0]):
                corners[-1] = inside
            else:
                best = corners[0][1]
                corners = [corners[0]] + [
                    (f(p), p) for p in ([b + (x - b) / 2 for b, x in zip(best, c[1])]
                                        for c in corners[1:])]
    return min(corners, key=lambda c: c[0])[1]


def fit(model, rows, options):
    """Speeds by name. Each is searched for as a factor to its start."""
    start = {**START[options.device], **(COPY if options.link == "copy" else {})}
    names = NAMES + (OUTER if any(r.get("outer_bytes") for r in rows) else ())

    def rates_at(point):
        return {**start, **{name: start[name] * math.exp(x) for name, x in zip(names, point)}}

    def badness(point):
        if max(map(abs, point)) > 12:
            return 1e9
        return (statistics.fmean(m * m for m in misses(model, rates_at(point), rows))
                + PULL * statistics.fmean(x * x for x in point))

    point = [0.0] * len(names)
    for _ in range(3):  # a simplex may fall asleep: it starts anew where it is
        point = nelder_mead(badness, point)
    return rates_at(point)


def show(model, rates, rows, title):
    if not rows:
        return
    print(title)
    print(f"{'method':<13} {'layout':<10} {'ranks':>5} {'N':>8}  {'pass':<8} {'measured':>10} "
          f"{'predicted':>10}    off")
    for row, told in zip(rows, model.ask(rates, [question_of(row) for row in rows])):
        for name, ms, guess in zip(("forward", "backward"), times_of(row), told):
            print(f"{row['method']:<13} {row['layout']:<10} {row['ranks']:>5} {row['Nq']:>8}  "
                  f"{name:<8} {ms:>10.4g} {guess:>10.4g} {100 * (guess / ms - 1):>+5.1f} %")


def main():
    parser = argparse.ArgumentParser(prog="fit_ring.py")
    parser.add_argument("ring_ask")
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--transport")
    parser.add_argument("--only", default="")
    parser.add_argument("--rates")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--hold")
    parser.add_argument("--link", choices=("nccl", "copy"))
    options = parser.parse_args()
    known, held = split(wanted(recorded.load(options.rows), options), options)
    if not known or not any(row["method"] != "alone" for row in known):
        print("fit_ring.py: no rows to fit; wanted are checked rows of ring_burst with --bench, "
              "with at least two numbers of ranks", file=sys.stderr)
        return 2
    model = Model(options.ring_ask)
    rates = fit(model, known, options)
    show(model, rates, known, "fitted to:")
    show(model, rates, held, "predicted:")
    if held:
        worst = max(abs(math.expm1(m)) for m in misses(model, rates, held))
        print(f"worst prediction off by {100 * worst:.1f} %")
    model.close()
    text = "".join(f"{name} {value:.6g}\n" for name, value in rates.items())
    if options.rates:
        pathlib.Path(options.rates).write_text("# fitted by fit_ring.py\n" + text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
