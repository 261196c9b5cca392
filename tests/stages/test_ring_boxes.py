#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_boxes.py: the boxes of the to-do list that stage 06 began with, each ticked by a test.

    test_ring_boxes.py PROGRAM FLASH_FORWARD FLASH_BACKWARD

The list (a README of 2024) asks for: functions that split a sequence evenly among ranks; ranks 1
and 4 with equal output; a causal mask derived from rank and chunk sizes; intermediates out of flash
attention, and a backward pass by recomputation and ring passes; striped attention; messages in one
batch; cross attention. Its own test has 31 tokens, which no number of ranks but 31 divides, and a
model of 8 channels: two heads of 4.

Results are compared as --save writes them: all methods, layouts and ranks against one rank, and one
rank against the kernels of stages 03 and 04.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from tap import Tap

METHODS = ("ring-minimal", "ring", "burst", "allgather", "ulysses", "ring-double", "burst-double")
LAYOUTS = ("contiguous", "zigzag", "striped")
MODEL = "-H 2 -d 4 -B 2 --seed 31"  # 8 channels
GRADIENTS = ("dq", "dk", "dv")
LIMIT = 2e-6  # of float32, beside values of order 1


class Lab:
    def __init__(self, tap, program, folder):
        self.tap, self.program, self.folder, self.count = tap, os.path.abspath(program), folder, 0

    def fresh(self):
        self.count += 1
        return os.path.join(self.folder, str(self.count))

    def runs(self, lines, program=None):
        """What --save wrote for each line, {name: flat values}, all in one process."""
        cases, saved = self.fresh(), self.fresh()
        with open(cases, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        command = [program or self.program, "--quiet", "--device", "cpu", "--cases", cases,
                   "--save", saved]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{command}: exit status {done.returncode}: {done.stderr[-800:]}")
        return [{name[:-4]: npyfile.read(os.path.join(saved, str(n + 1), name))[1]
                 for name in os.listdir(os.path.join(saved, str(n + 1)))}
                for n in range(len(lines))]


def distance(a, b):
    """Largest difference over all tensors; what one side does not have is infinitely far away."""
    if set(a) != set(b) or any(len(a[t]) != len(b[t]) or not a[t] for t in a):
        return float("inf")
    return max(0.0 if x == y else abs(x - y) if abs(x - y) >= 0 else float("inf")
               for t in a for x, y in zip(a[t], b[t]))


def compare(lab, box, flags, choices):
    """Every choice of ranks, layout and method against one rank; the first line is that."""
    lines = [f"{flags} {MODEL} --ranks 1 --method ring"]
    lines += [f"{flags} {MODEL} {choice}" for choice in choices]
    one, *others = lab.runs(lines)
    worst = max(range(len(others)), key=lambda n: distance(one, others[n]))
    lab.tap.ok(distance(one, others[worst]) <= LIMIT, f"{box}: {len(others)} ways, one answer",
               f"{choices[worst]}: {distance(one, others[worst]):g}")
    return one


def split_evenly(lab):
    """A causal window of one key hands every token its own value: each must be somewhere, once."""
    lines = [f"-N 31 {MODEL} --causal --window 0,0 --ranks {ranks} --layout {layout} --method ring"
             for ranks in (1, 2, 3, 4, 8, 16, 31, 40) for layout in LAYOUTS]
    first, *others = [run["o"] for run in lab.runs(lines)]
    lab.tap.ok(len(set(first)) > 0.9 * len(first) and all(o == first for o in others),
               f"split evenly: 31 tokens over 1 to 40 ranks in {len(lines)} ways, none is lost")


def ranks_1_and_4(lab, forward, backward):
    one = compare(lab, "ranks 1 and 4", "-N 31 --backward",
                  [f"--ranks 4 --layout {layout} --method {method}" for layout in LAYOUTS
                   for method in METHODS if method != "ulysses"] +
                  [f"--ranks 2 --layout {layout} --method {method}" for layout in LAYOUTS
                   for method in METHODS])
    for name, program, wanted in (("stage 03", forward, ("o", "lse")),
                                  ("stage 04", backward, ("o", "lse") + GRADIENTS)):
        kernel, = lab.runs([f"-N 31 {MODEL} --variant library"], os.path.abspath(program))
        same = [t for t in wanted if one[t] == kernel[t]]
        # stage 04's own pass adds up delta in another order, and dQ and dK follow delta
        lab.tap.ok(set(same) >= set(wanted) - {"dq", "dk"} and
                   distance({t: one[t] for t in wanted}, {t: kernel[t] for t in wanted}) <= LIMIT,
                   f"one rank is {name}'s kernel, bit by bit in {', '.join(same)}")


def batched_messages(lab):
    """A group of messages has no order of its own: any order of delivery gives the same bits."""
    lines = [f"-N 31 {MODEL} --causal --backward --ranks 4 --method {method} {schedule}"
             for method in METHODS if method != "ulysses"
             for schedule in ("", "", "--seed-schedule 1", "--seed-schedule 2",
                              "--seed-schedule 3")]
    found = lab.runs(lines)
    same = [found[n] == found[n - n % 5] for n in range(len(lines))]
    lab.tap.ok(all(same), f"batched messages: {len(lines)} runs in other orders, the same bits",
               [line for line, good in zip(lines, same) if not good][:2])


def starts_before_computing(lab):
    """And they are under way when the computation of their step begins."""
    path = lab.fresh()
    subprocess.run([lab.program, "--quiet", "-N", "64", "--ranks", "4", "--method", "ring",
                    "--trace-json", path], check=True, timeout=60)
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    ranks = {e["pid"] for e in events if "measured" in e.get("args", {}).get("name", "")}
    begun, computed = {}, {}
    for e in events:
        if e["ph"] == "X" and e["pid"] in ranks:
            times = begun if "bytes" in e["args"] else computed
            times.setdefault((e["pid"], e["args"]["step"]), []).append(e["ts"])
    late = [at for at in begun if max(begun[at]) > min(computed[at])]
    lab.tap.ok(len(ranks) == 4 and len(begun) == 4 * 3 and len(computed) == 4 * 4 and not late,
               "batched messages: all of a step have started before its computation",
               (len(ranks), len(begun), len(computed), late))


def main():
    program, forward, backward = sys.argv[1:4]
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(tap, program, folder)
        split_evenly(lab)
        ranks_1_and_4(lab, forward, backward)
        masks = [f"--ranks {ranks} --layout {layout} --method {method}" for ranks in (3, 4)
                 for layout in LAYOUTS for method in ("ring", "burst", "allgather")]
        compare(lab, "derived causal mask", "-N 31 --causal --backward", masks)
        compare(lab, "causal from the upper left", "--seq-q 31 --seq-kv 20 --backward --mask "
                "causal-upper-left", masks)
        compare(lab, "backward by ring passes", "-N 31 --causal --backward --kv-heads 1",
                [f"--ranks {ranks} --method {method}" for ranks in (2, 3, 4, 5, 8)
                 for method in METHODS if method != "ulysses"])
        compare(lab, "striped attention", "-N 31 --causal --backward",
                [f"--ranks {ranks} --layout striped --method {method}" for ranks in (2, 4, 31)
                 for method in METHODS if method != "ulysses"])
        batched_messages(lab)
        starts_before_computing(lab)
        compare(lab, "cross attention", "--seq-q 31 --seq-kv 57 --backward", masks)
        compare(lab, "cross attention, fewer keys than ranks", "--seq-q 31 --seq-kv 3 --backward",
                masks)
        compare(lab, "a window, keys to both sides", "-N 31 --window 6,4 --backward", masks)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
