#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""CUDA rungs on a CPU, for people: ./ladder simt.

usage: ./ladder simt STAGE RUNG [check|count|trace] [flags]
       ./ladder simt STAGE FILE.cu ...      a file of one's own that registers itself like a rung
       ./ladder simt fuzz [--cases N] [--seed S] [--minutes M] [STAGE]

  (nothing)  runs the rung on a small case: right or wrong, with the worst element
  check      also races, barriers, copies and fences, bounds, memory that nobody wrote; the case is
             so long that each stage of a pipeline is used three times
  count      bytes, sectors, wavefronts and instructions; --lines: for each line; --show LINE: which
             lane touches which bank or sector
  trace      one block in model ticks: which warp waits, copies, multiplies; --block N; --json FILE
             for ui.perfetto.dev
  fuzz       N random cases and schedules of every rung: each must be right and without a finding;
             the rungs go in turns, and after M minutes it ends and says how many cases each had

STAGE is a folder name or its number. Other flags go to the program: -N 200 -d 128 --causal ...
The schedule: --early (copies and products at the first moment), --random (by chance, the same one
each time).
Exit status: 0 good, 1 wrong or a finding, 2 bad usage.

Interface: only used by ./ladder and tests/simt.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/simt"
sys.path.insert(0, str(ROOT / "common/tools"))
import rungs  # noqa: E402

STAGES = {"01": "01_naive", "02": "02_tiled_softmax", "03": "03_flash_forward",
          "04": "04_flash_backward", "05": "05_sliding_window_online"}
NEXT = {
    "right": "next: ./ladder simt {stage} {name} check",
    "clean": "next: ./ladder simt {stage} {name} count --lines; what this cannot see: "
             "docs/simt_limits.md",
    "found": "read: docs/gpu_on_paper.md shows how to read a finding",
    "traced": "next: the same of another rung, to compare; docs/simt_limits.md says what a tick is",
    "counted": "next: docs/gpu_on_paper.md says what the numbers mean",
}


def refuse(text):
    print(f"simt: {text}", file=sys.stderr)
    sys.exit(2)


def stage_of(word):
    folder = STAGES.get(word[:2])
    if not folder or word not in (word[:2], folder):
        refuse(f"found stage '{word}', accepted are {' '.join(STAGES)}")
    return folder


def build(target, quiet=False):
    """Through ninja; the output only when it fails."""
    done = subprocess.run(["ninja", "-C", str(BUILD), f"common/simt/programs/{target}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = done.stdout[max(done.stdout.rfind("\nFAILED"), 0):]
        lines = [line for line in said.split("\n")
                 if not line.startswith(("[", "ninja", "FAILED")) and "compile.py" not in line]
        print("\n".join(lines[:40]), file=sys.stderr)
        sys.exit(2)
    return BUILD / "common/simt/programs" / target


def from_here(file):
    """Of the folder that ./ladder was called from."""
    return pathlib.Path(os.environ.get("LADDER_FROM", "."), file).resolve()


def choose(folder, what):
    """(program, name, registration) of a rung's name or of a file."""
    if what.endswith(".cu"):
        path = from_here(what)
        if not path.is_file():
            refuse(f"found no file {path}")
        line = rungs.registration(path)
        own = BUILD / "own.txt"
        text = f"{folder}\n{path}\n"
        if not own.is_file() or own.read_text(encoding="utf-8") != text:
            own.write_text(text, encoding="utf-8")
        return build("simt_own"), line["name"], line
    parts = ["cuda", "sm90a"]
    known = {name: path for _, name, path in rungs.listed(ROOT / folder / "main.c")
             if path.suffix == ".cu" and rungs.is_compiled(path, parts)}
    if what not in known:
        refuse(f"found rung '{what}', accepted are {' '.join(known)} or a file.cu")
    return build(f"simt_{folder[:2]}"), what, rungs.registration(known[what])


def dtype_of(line):
    dtypes = line.get("dtypes", "F32 | F16 | BF16")
    return "f32" if "F32" in dtypes else "e4m3" if "E4M3" in dtypes else "bf16"


def case(mode, line, words):
    """Sizes for what is not given. In `check` each stage of a pipeline is used three times: tiles
    of 16 bits have up to 128 keys, those of float32 32, and none has more than three stages."""
    add = []
    dtype = dtype_of(line)
    length = {"check": "200" if dtype == "f32" else "900", "trace": "256"}.get(mode, "128")
    for flags, value in ((("-B", "--batch"), "1"), (("-H", "--heads"), "2" if mode == "" else "1"),
                         (("-N", "--seq", "--seq-q"), length),
                         (("-d", "--head-dim"), rungs.head_dims(line)[0]), (("--dtype",), dtype)):
        if not any(word.split("=")[0] in flags for word in words):
            add += [flags[0], value]
    return add


def run(program, name, mode, line, words, environment):
    command = [str(program), "--device", "cuda", "--variant", name, *case(mode, line, words),
               *words]
    return subprocess.run(command, env={**os.environ, **environment}, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def shown(text):
    """The table without what a model has no number for, and without the CPU's description."""
    keep = [line for line in text.split("\n")
            if not line.startswith(("# CPU", "# ms and speed"))]
    return "\n".join(line.rstrip()[:100] for line in keep)


def student(words):
    stage, what, *rest = words
    mode = rest.pop(0) if rest and rest[0] in ("check", "count", "trace") else ""
    environment = {f"SIMT_{mode.upper()}": "1", "SIMT_STAGES": "1"} if mode else {}
    flags = []
    while rest:
        word = rest.pop(0)
        if word == "--lines":
            environment["SIMT_LINES"] = "1"
        elif word == "--show" and rest:
            environment["SIMT_SHOW"] = rest.pop(0)
        elif word == "--json" and mode == "trace" and rest:
            environment["SIMT_JSON"] = str(from_here(rest.pop(0)))
        elif word == "--block" and mode == "trace" and rest:
            environment["SIMT_BLOCK"] = rest.pop(0)
        elif word == "--early":
            environment["SIMT_EARLY"] = "1"
        elif word == "--random":
            environment.update({"SIMT_EARLY": "2", "SIMT_BLOCKS": "2", "SIMT_SEED": "1"})
        else:
            flags.append(word)
    folder = stage_of(stage)
    program, name, line = choose(folder, what)
    done = run(program, name, mode, line, flags, environment)
    print(shown(done.stdout))
    sys.stderr.write(done.stderr)
    if done.returncode > 1:
        return done.returncode
    key = "found" if done.returncode else {
        "": "right", "check": "clean", "count": "counted", "trace": "traced"}[mode]
    print(NEXT[key].format(stage=stage, name=what))
    return done.returncode if done.returncode in (0, 1, 2) else 1


def fuzz_case(dice, line):
    dtype = dice.choice([t.lower() for t in ("F32", "F16", "BF16", "E4M3")
                         if t in line.get("dtypes", "F32 | F16 | BF16").split(" | ")])
    words = ["--dtype", dtype, "-d", dice.choice(rungs.head_dims(line)), "-H", "2",
             "-N", str(dice.choice([1, 2, 31, 64, 65, 100, 129, 160, 200, 257]))]
    words += dice.choice([[], [], ["--causal"], ["--window", f"{dice.randrange(80)},0"],
                          ["--seq-kv", str(dice.randrange(1, 200))]])
    words += dice.choice([[], ["--kv-heads", "1"]])
    words += ["--seed", str(dice.randrange(1000))]
    environment = {"SIMT_CHECK": "1", "SIMT_EARLY": str(dice.randrange(3)),
                   "SIMT_SEED": str(dice.randrange(-1, 50)), "SIMT_BLOCKS": str(dice.randrange(3))}
    return words, environment


def fuzz(words):
    parser = argparse.ArgumentParser(prog="./ladder simt fuzz")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("stage", nargs="?")
    options = parser.parse_args(words)
    all_rungs = []
    for folder in [stage_of(options.stage)] if options.stage else STAGES.values():
        program = build(f"simt_{folder[:2]}")
        all_rungs += [
            (f"{folder[:2]} {name}", name, program, rungs.registration(path),
             random.Random(f"{options.seed} {folder} {name}"))
            for _, name, path in rungs.listed(ROOT / folder / "main.c")
            if path.suffix == ".cu" and rungs.is_compiled(path, ["cuda", "sm90a"])]
    cases, bad = dict.fromkeys((entry[0] for entry in all_rungs), 0), 0
    end = time.monotonic() + 60 * options.minutes
    # a case of each, then the next of each: where time ends it, all have had as many
    for title, name, program, line, dice in all_rungs * options.cases:
        if time.monotonic() > end:
            break
        flags, environment = fuzz_case(dice, line)
        done = run(program, name, "fuzz", line, flags, environment)
        cases[title] += 1
        if done.returncode:
            bad += 1
            print(f"{title} {' '.join(flags)} {environment}\n"
                  f"{done.stdout[-300:]}{done.stderr[:1500]}", flush=True)
    for title, number in cases.items():
        print(f"{title}: {number} cases")
    if not sum(cases.values()):
        raise rungs.Refused("simt fuzz: found no case, accepted are --cases and --minutes above 0")
    print(f"simt fuzz: {sum(cases.values())} cases, {bad} with a wrong answer or a finding")
    return 1 if bad else 0


def main():
    words = sys.argv[1:]
    if words and words[0] == "fuzz":
        sys.exit(fuzz(words[1:]))
    if len(words) < 2 or "--help" in words:
        print(__doc__[__doc__.index("usage:"):__doc__.index("Interface:")].rstrip())
        sys.exit(0 if "--help" in words else 2)
    try:
        sys.exit(student(words))
    except rungs.Refused as why:
        refuse(str(why))


if __name__ == "__main__":
    main()
