#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_trace.py: what --trace-json writes is what happened.

    test_ring_trace.py PROGRAM

For every method: the file is JSON with a process for each rank, measured and by the model; spans of
one line do not overlap; the bytes of all sends are those of the JSON row, and what is sent is
received; what each rank computed with whom, and when, is what the model says. The figure drawn from
it is the same each time.
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from tap import Tap  # noqa: E402

CASES = (("ring-minimal", "--ranks 3 --layout zigzag --causal"),
         ("ring", "--ranks 4 --layout zigzag --causal"),
         ("burst", "--ranks 3 --layout striped --causal --kv-heads 2"),
         ("allgather", "--ranks 4 --layout contiguous"),
         ("ulysses", "--ranks 2 --layout contiguous --causal"),
         ("ring-double", "--ranks 4 --nodes 2 --layout zigzag --causal"),
         ("burst-double", "--ranks 6 --nodes 3 --layout contiguous"),
         ("ring", "--ranks 4 --layout contiguous --window 9,5 -B 2"))
MODEL, LANES = 1000, 16


def run(*words, rates=None):
    env = {**os.environ, **({"ATTN_RING_RATES": str(rates)} if rates else {})}
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False,
                          timeout=120, env=env)


def overlaps(spans):
    """Spans of one line that begin before the one before ends (clocks are printed in ns)."""
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans)
    return [pair for pair in zip(spans, spans[1:]) if pair[1][0] < pair[0][1] - 0.002]


def check_ends(tap, name, spans):
    """A message has two ends, and both tell the same of it."""
    ends, misnamed = {1: [], 2: []}, []
    for event in spans:
        kind, rank, told = event["tid"] // LANES, event["pid"] % MODEL, event["args"]
        if kind > 0:
            word, way = (("to", (rank, told["peer"])), ("from", (told["peer"], rank)))[kind - 1]
            if event["name"] != f"{told['tensor']} {word} rank {told['peer']}":
                misnamed.append(event)
            ends[kind].append((event["cat"], told["step"], way, told["tensor"], told["bytes"]))
    tap.ok(sorted(ends[1]) == sorted(ends[2]) and not misnamed,
           f"{name}: what one rank sends another receives",
           misnamed[:2] or sorted(set(ends[1]) ^ set(ends[2]))[:4])


def union(spans):
    """Times in which at least one of these events is under way, in order."""
    merged = []
    for start, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return merged


def hidden(spans):
    """The share of the messages' time in which something is computed too, of one rank."""
    work = union([e for e in spans if e["tid"] // LANES == 0])
    messages = union([e for e in spans if e["tid"] // LANES > 0])
    total = sum(end - start for start, end in messages)
    both = sum(max(0, min(end, w_end) - max(start, w_start))
               for start, end in messages for w_start, w_end in work)
    return both / total if total > 0 else 1


def check_told(tap, name, spans, row):
    """What the row says of the whole run is what the events of all ranks say."""
    ranks, place = row["ranks"], row["ranks"] // row["nodes"]
    outer = sum(e["args"]["bytes"] for e in spans if e["tid"] // LANES == 1
                and e["pid"] // place != e["args"]["peer"] // place)
    tap.ok(outer == row["outer_bytes"], f"{name}: bytes between nodes",
           f"{outer}, the row says {row['outer_bytes']}")
    for cat, told in (("forward", row["hidden"]), ("backward", row["hidden_backward"])):
        mine = [e for e in spans if e["cat"] == cat]
        mean = sum(hidden([e for e in mine if e["pid"] == r]) for r in range(ranks)) / ranks
        tap.ok(abs(mean - told) < 0.02, f"{name}, {cat}: what is hidden",
               f"{mean:.4f}, the row says {told}")


def check_side(tap, name, spans, row, ranks):
    lines = {}
    for event in spans:
        lines.setdefault((event["pid"], event["tid"]), []).append(event)
    tap.ok(all(not overlaps(line) for line in lines.values()), f"{name}: no line has two at once")
    for cat, sent in (("forward", row["sent_bytes"]), ("backward", row["sent_bytes_backward"])):
        found, taken = [0] * ranks, 0
        for event in spans:
            if event["cat"] == cat and event["tid"] // LANES == 1:
                found[event["pid"] % MODEL] += event["args"]["bytes"]
            if event["cat"] == cat and event["tid"] // LANES == 2:
                taken += event["args"]["bytes"]
        tap.ok(found == sent and taken == sum(sent), f"{name}, {cat}: bytes of the row",
               f"{found}, received {taken}, the row says {sent}")


def check_started(tap, name, spans):
    """All messages of a step have started before its computation: that hides them."""
    begun, computed = {}, {}
    for event in spans:
        times = begun if event["tid"] // LANES else computed
        times.setdefault((event["pid"], event["args"]["step"]), []).append(event["ts"])
    tap.ok(begun and all(max(begun[at]) <= min(computed[at]) for at in begun),
           f"{name}: messages start before their step is computed", (begun, computed))


def check_case(tap, program, folder, method, flags):
    name = f"{method} {flags}"
    trace, rows = folder / "trace.json", folder / "rows.jsonl"
    rows.unlink(missing_ok=True)
    trace.write_text("something older")
    done = run(program, "--method", method, *flags.split(), "-H", 4, "-N", 50, "-d", 8,
               "--backward", "--trace-json", trace, "--json", rows)
    if not tap.ok(done.returncode == 0, f"{name}: it runs", done.stderr):
        return
    row = json.loads(rows.read_text())
    told = json.loads(trace.read_text())
    ranks = row["ranks"]
    tap.ok(told["otherData"] == {"method": method, "layout": row["layout"], "ranks": ranks,
                                 "nodes": row["nodes"]}, f"{name}: what was run")
    names = {e["pid"]: e["args"]["name"] for e in told["traceEvents"]
             if e["name"] == "process_name"}
    tap.ok(names == {**{r: f"rank {r}, measured" for r in range(ranks)},
                     **{MODEL + r: f"rank {r}, model" for r in range(ranks)}},
           f"{name}: a process for each rank", names)
    spans = [e for e in told["traceEvents"] if e["ph"] == "X"]
    tap.ok(all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans), f"{name}: time goes forward")
    check_told(tap, name, [e for e in spans if e["pid"] < MODEL], row)
    if method == "ring" and "window" not in flags:
        check_started(tap, name, [e for e in spans if e["pid"] < MODEL and e["cat"] == "forward"])
    done, told = ({(e["pid"] % MODEL, e["cat"], e["args"]["step"], e["args"]["peer"])
                   for e in spans if e["tid"] // LANES == 0 and e["pid"] // MODEL == side
                   and e["name"] != "sums and copies"} for side in (0, 1))
    tap.ok(done == told and len(done) >= 2 * ranks, f"{name}: who computes with whom, and when",
           sorted(done ^ told)[:4])
    for side, first in (("measured", 0), ("model", MODEL)):
        mine = [e for e in spans if first <= e["pid"] < first + MODEL]
        check_side(tap, f"{name}, {side}", mine, row, ranks)
        check_ends(tap, f"{name}, {side}", mine)
        tap.ok(min(e["ts"] for e in mine) == 0, f"{name}, {side}: it begins at 0")


def check_full_disk(tap, program, folder):
    """A trace that does not fit: status 3, one sentence, and no half of it stays. Nor is there one
    of a run that is refused."""
    trace = folder / "full.json"
    done = run(program, *"-N 9 -H 4 --ranks 3 --method ulysses --trace-json".split(), trace)
    tap.ok(done.returncode == 2 and not trace.exists(), "no trace of a refused run", done.stderr)
    flags = ["--method", "ring", "-N", "40", "-d", "8", "--quiet", "--trace-json"]
    done = subprocess.run([program, *flags, str(trace)], capture_output=True, text=True,
                          check=False, timeout=120, preexec_fn=lambda: resource.setrlimit(
                              resource.RLIMIT_FSIZE, (5000, 5000)))
    tap.ok(done.returncode == 3 and "--trace-json" in done.stderr
           and done.stderr.count("ring_burst: ") == 1 and not trace.exists(),
           "half a trace does not stay", f"{done.returncode} {done.stderr}")
    if os.path.exists("/dev/full"):
        done = run(program, *flags, "/dev/full")
        tap.ok(done.returncode == 3 and "--trace-json" in done.stderr
               and os.path.exists("/dev/full"), "a full disk", done.stderr)


def model_end(path):
    """When the model's run is over, in ms."""
    events = json.loads(path.read_text())["traceEvents"]
    return max(e["ts"] + e["dur"] for e in events if e["ph"] == "X" and e["pid"] >= MODEL) / 1e3


def check_rates(tap, program, folder):
    """Measured speeds, named by the environment, are what planner and model reckon with."""
    rates, trace = folder / "rates.txt", folder / "rated.json"
    flags = "--method auto --causal --ranks 2 -H 2 -N 64 -d 8 --backward".split()
    words, ends = [], []
    for speed in ("1e3", "1e12"):
        rates.write_text(f"bandwidth_inner {speed}\n")
        done = run(program, *flags, "--trace-json", trace, rates=rates)
        tap.ok(done.returncode == 0, f"links of {speed} bytes/s", done.stderr)
        words.append([line for line in done.stdout.split("\n") if line.startswith("# ring ")])
        ends.append(model_end(trace))
    tap.ok(ends[0] > 1000 * ends[1], "slow links make the model's run long", ends)
    tap.ok(words[0] != words[1] and all(words), "the planner says other times", words)
    done = run(program, *flags, rates=folder)
    tap.ok(done.returncode == 2 and "ATTN_RING_RATES" in done.stderr, "a folder holds no rates",
           done.stderr)
    for text in ("bandwidth 5\n", "bandwidth_inner 0\n"):
        rates.write_text(text)
        done = run(program, *flags, rates=rates)
        tap.ok(done.returncode == 2 and "ATTN_RING_RATES" in done.stderr
               and "line 1" in done.stderr, f"{text.strip()} is refused", done.stderr)


def check_figure(tap, folder):
    tool = (sys.executable, ROOT / "common/tools/figures.py", "--trace")
    for name, only in (("a", ()), ("b", ()), ("c", ("forward",))):
        done = run(*tool, folder / "trace.json", folder / f"{name}.svg", *only)
        tap.ok(done.returncode == 0 and not done.stderr, f"figure {name}", done.stderr)
    first, again, part = [(folder / f"{n}.svg").read_text() for n in "abc"]
    tap.ok(first == again and first != part and "rank 3" in first and "model" in first,
           "the same trace gives the same figure")
    (folder / "empty.json").write_text('{"traceEvents":[]}')
    (folder / "broken.json").write_text("{")
    for name in ("empty", "broken", "no such"):
        done = run(*tool, folder / f"{name}.json", folder / "d.svg")
        tap.ok(done.returncode == 2 and done.stderr.startswith("figures.py: "),
               f"{name}: one sentence", done.stderr)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for method, flags in CASES:
            check_case(tap, sys.argv[1], folder, method, flags)
        check_full_disk(tap, sys.argv[1], folder)
        check_rates(tap, sys.argv[1], folder)
        check_figure(tap, folder)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
