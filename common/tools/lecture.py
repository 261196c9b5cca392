#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""lecture.py: a stage in three minutes on a terminal of 80 x 24, without a GPU and a network.

    lecture.py STAGE PROGRAM          STAGE: 01 to 06; PROGRAM: the stage's program

First the question, then the stage's trace page by page (--trace --step), then what each variant
reached: recorded rows of one CPU case and one GPU case. Enter goes on, b goes back inside the
trace, q ends a part.

Interface:
- question(root, folder): the first line of the stage's README, without its marks.
- recorded_rows(root, number): the two tables as text, each with the machine that it is from.
"""
import pathlib
import subprocess
import sys
import textwrap

import first_page
import rows as recorded
import table
import tool

ROOT = pathlib.Path(__file__).resolve().parents[2]


def four_tokens(**files):
    return [f"--{flag}={ROOT}/docs/examples/hand_{name}.npy" for flag, name in files.items()]


# The case that shows the stage's idea, on pages of 80 x 24; as far as 04 that of the lessons.
STEPS = {"01": [*four_tokens(q="q", k="k", v="v"), "--variant", "v0_loops"],
         "02": [*four_tokens(q="q", k="k", v="v"), "--variant", "v1_online"],
         "03": [*four_tokens(q="q", k="k_turned", v="v_turned"), "--variant", "v0_fa1_tiles"],
         "04": [*four_tokens(q="q", k="k", v="v", do="do"), "--variant", "v0_fa1_backward"],
         "05": ["-N", "32", "--block-q", "8", "--block-kv", "8", "--causal", "--window", "8,0",
                "--variant", "v1_online_block"],
         "06": ["--causal", "--backward", "--method", "ring"]}
COLUMNS = ["variant", "ms_med", "gflops", "peak_bytes"]
GPU_COLUMNS = {"02": ["variant", "ms_med", "gbytes_per_s", "share_of_copy"],
               "05": ["variant", "forward_tflops", "of_peer"],
               "06": ["variant", "link", "ranks", "rank_tflops", "efficiency_both"]}


def question(root, folder):
    return (root / folder / "README.md").read_text().split("\n")[0].strip("* ")


def machine(rows):
    return ", ".join(sorted({r.get("gpu") if r.get("device") == "cuda" else r.get("cpu", "?")
                             for r in rows if r}))


def of_today(found, root):
    """The newest row of each variant and link; of an old source only where all are."""
    newest = {}
    for row in sorted(found, key=lambda r: r.get("date", "")):
        newest[row["variant"], row.get("link"), row.get("ranks")] = row
    fresh = [row for row in newest.values() if not recorded.is_stale(row, root)]
    return fresh or list(newest.values())


def recorded_rows(root, number):
    """The CPU's rows and the GPU's, in the ladder's order."""
    text = []
    for stage_number, stage, case, file, gpu_case, *_ in first_page.STAGES:
        if stage_number != number:
            continue
        for name, where, columns in (
                ("docs/results/demo.jsonl", f"stage={stage} {case}", COLUMNS),
                ("docs/results/" + file, gpu_case,
                 GPU_COLUMNS.get(number, ["variant", "ms_med", "tflops", "of_peer"]))):
            found = of_today(first_page.load(root, name, where), root)
            found.sort(key=lambda r: recorded.rung_order(r["variant"]))
            if found:
                text.append(f"Recorded on {machine(found)}:\n  {where}\n\n"
                            + table.terminal(found, columns, root, gaps=False))
    return text


def wait():
    """For Enter, where somebody can press it. 0: go on."""
    if not sys.stdin.isatty():
        return
    try:
        input("\n-- Enter goes on ")
    except EOFError:
        print()


def show(text):
    if sys.stdout.isatty():
        print("\033[H\033[2J", end="")
    print(text, flush=True)
    wait()


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in STEPS:
        print(f"lecture.py: found {' '.join(sys.argv[1:]) or 'nothing'}, accepted is a stage, "
              "01 to 06, and its program", file=sys.stderr)
        return 2
    number, program = sys.argv[1:]
    folder = next(p.name for p in sorted(ROOT.glob(number + "_*")))
    show("\n\n" + textwrap.fill(f"{number}  {question(ROOT, folder)}", 76,
                                subsequent_indent="    ")
         + "\n\n    Write down what you expect, then press Enter.")
    done = subprocess.run([program, "--device", "cpu", "--trace", "--step",
                           *STEPS[number]], check=False)
    if done.returncode != 0:
        return done.returncode
    for text in recorded_rows(ROOT, number):
        show(text)
    print(f"Pictures: docs/figures/{number}_*.svg. The lesson: docs/{folder}")
    return 0


if __name__ == "__main__":
    try:
        tool.end(main)
    except KeyboardInterrupt:
        sys.exit(130)
