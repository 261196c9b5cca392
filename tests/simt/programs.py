# SPDX-License-Identifier: MIT
"""programs.py: what the tests of simt share: its programs, rungs and schedules.

Interface:
- ROOT, build_folder(): the folder of the build that runs the tests.
- stage_rungs(): (stage number, name, path, dtypes, takes any case).
- run(command, words, schedule, **environment): the finished process. SCHEDULES.
- pairs(table): cases in which each pair of values of two columns meets once at least.
"""
import itertools
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "common/tools")]
import rungs  # noqa: E402

STAGES = {"01": "01_naive", "02": "02_tiled_softmax", "03": "03_flash_forward",
          "04": "04_flash_backward", "05": "05_sliding_window_online"}
SCHEDULES = {
    "late": {},
    "early": {"SIMT_EARLY": "1", "SIMT_SEED": "-1", "SIMT_BLOCKS": "1"},
    "random": {"SIMT_EARLY": "2", "SIMT_SEED": "7", "SIMT_BLOCKS": "2"},
}


def build_folder():
    return pathlib.Path(os.environ.get("SIMT_BUILD", ROOT / "build/simt"))


def program(stage):
    return build_folder() / f"common/simt/programs/simt_{stage}"


def stage_rungs():
    for stage, folder in STAGES.items():
        for _, name, path in rungs.listed(ROOT / folder / "main.c"):
            if path.suffix == ".cu" and rungs.is_compiled(path, ["cuda", "sm90a"]):
                line = rungs.registration(path)
                dtypes = [word.strip().lower()
                          for word in line.get("dtypes", "F32 | F16 | BF16").split("|")]
                yield stage, name, path, dtypes


def run(command, words, schedule="late", **environment):
    return subprocess.run([*map(str, command), *words], check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=1500,
                          env={**os.environ, **SCHEDULES[schedule], **environment})


def pairs(table):
    """table: {column: values}. Greedy: the next case is one that has the most open pairs."""
    columns = list(table)
    open_pairs = {((a, x), (b, y)) for a, b in itertools.combinations(columns, 2)
                  for x in table[a] for y in table[b]}
    cases = []
    while open_pairs:
        best, most = None, -1
        for values in itertools.product(*table.values()):
            case = list(zip(columns, values))
            met = sum(pair in open_pairs for pair in itertools.combinations(case, 2))
            if met > most:
                best, most = case, met
        open_pairs -= set(itertools.combinations(best, 2))
        cases.append(dict(best))
    return cases
