#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_vocabulary.py: ./ladder learn and ./ladder grade have one word for one mistake.

usage: test_vocabulary.py BUILD

Five steps of learn are whole functions that the course's judge can run. Their typical wrong answers
are graded: the hint has the code of learn, or no name at all. Other words for a mistake that the
judge has a code for are refused by name.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "common" / "tools")]
import learn_steps
from tap import Tap

# A word that learn had for what the judge calls otherwise.
RETIRED = {"no_max": "no_max_subtraction", "masks_the_past": "query_key_swapped",
           "head_before_token": "heads_before_tokens", "scale_not_root": "scale_by_d",
           "tree_remainder_dropped": "sum_of_the_largest_tree",
           "full_too_early": "masked_tile_taken_for_full",
           "full_if_it_touches": "masked_tile_taken_for_full",
           "skipped_too_early": "masked_tiles_skipped", "left_ignored": "window_ignored",
           "alpha_is_one": "nothing_rescaled", "own_key_hidden": "window_off_by_one",
           "sums_added": "merge_without_weights"}
# One head of stage contracts through the functions of a step; data is contiguous.
FORWARD = """
#include "attention.h"
AttnStatus flash_forward_variant(const AttnArgs *a)
{
    attention(a->Q.data, a->K.data, a->V.data, a->O.data, a->lse, (int)a->shape.Nq,
              (int)a->shape.Nk, (int)a->shape.d, a->rule.right == 0);
    return ATTN_OK;
}
"""
BACKWARD = """
#include "attention.h"
AttnStatus flash_backward_variant(const AttnArgs *a)
{
    attention_backward(a->Q.data, a->K.data, a->V.data, a->O.data, a->lse, a->dO.data, a->dQ.data,
                       a->dK.data, a->dV.data, (int)a->shape.Nq, (int)a->shape.Nk,
                       (int)a->shape.d, a->rule.right == 0);
    return ATTN_OK;
}
"""
HEAD = "-B 1 -H 1 "
ROWS = ["--rows 9 --cols 333", "--rows 1 --cols 3", "--rows 40 --cols 17 --dist large"]
LOW = "-N 301 -d 64 --dist large --causal --seed 21"  # a row whose scores are far below 0
ATTENTION = [HEAD + "-N 70 -d 16 --causal", HEAD + "--seq-q 40 --seq-kv 61 -d 8 --causal"]
# step: contract, what stands behind the answer, cases
STEPS = {"02.3": ("softmax_merge", "", ROWS),
         "02.8": ("softmax_rows", "", ROWS),
         "03.10": ("flash_simple", "", ["-N 133 -d 16 --causal", "-N 77 -d 8",
                                        "-N 200 -d 64 --dist large", LOW]),
         "01.10": ("flash_forward", FORWARD, [*ATTENTION, HEAD + "-N 200 -d 64 --dist large",
                                             HEAD + LOW,
                                             HEAD + "--seq-q 61 --seq-kv 40 -d 16 --causal"]),
         "04.7": ("flash_backward", BACKWARD, ATTENTION)}
# What the judge does not see in a small case, and words that have no name there or a better one.
OWN = {"status", "no_room", "zero_for_hidden", "o_only", "p_without_max", "old_maximum"}
FLOOR = 28  # wrong answers that both name


def judge_step(tap, build, folder, name):
    """How many of its wrong answers both name."""
    contract, behind, cases = STEPS[name]
    step = learn_steps.find_step(name)
    answers = [("", step.solution()), *step.wrong_answers()]
    suite = folder / f"{name}.suite"
    suite.write_text("\n: ".join([f"contract={contract} memory=512", *cases]) + "\n",
                     encoding="utf-8")
    files = []
    for number, (_, text) in enumerate(answers):
        files.append(folder / f"{name}_{number}.so")
        source = files[-1].with_suffix(".c")
        source.write_text(text + behind, encoding="utf-8")
        subprocess.run(["cc", "-O1", "-w", "-shared", "-fPIC", f"-I{ROOT}/docs/course/include",
                        f"-I{ROOT}/common", str(source), "-o", str(files[-1]), "-lm"], check=True)
    run = subprocess.run([sys.executable, str(ROOT / "common/tools/grade.py"), str(suite),
                          "--build", str(build), "--so-sandbox", "off", "--format", "json",
                          *map(str, files)],
                         capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
    if not tap.ok(len(rows) == len(files), f"{name}: graded", run.stderr):
        return 0
    tap.ok(rows[0]["score"] == rows[0]["max_score"], f"{name}: the solution is right", rows[0])
    both = 0
    for (code, _), row in zip(answers[1:], rows[1:]):
        wrong = [test for test in row["tests"] if test["status"] != "right"]
        found = {test["code"] for test in wrong} - {"", "follows"}
        symptoms = {"scattered", "nonfinite", "worst_row", "tail_tile", "every_nth_row", "one_row",
                    "empty_rows", "from_row_on", "all_values", "one_head"}
        named = found - symptoms
        both += named == {code}
        tap.ok(code in OWN or (wrong and named <= {code} and found),
               f"{name}: {code}: the hint is {' '.join(sorted(found)) or 'none'}",
               json.dumps(row)[:1500])
    return both


def learn_codes():
    found = set()
    for path in (learn_steps.LEARN / "wrong").iterdir():
        found |= set(re.findall(r"^\[([\w-]+)\]$", path.read_text(encoding="utf-8"), re.M))
    for path in learn_steps.LEARN.glob("*/cases"):
        found |= set(re.findall(r"--mistake (\w+)", path.read_text(encoding="utf-8")))
    for path in (learn_steps.LEARN / "harness").glob("*.[ch]"):
        found |= set(re.findall(r'\{\s*"(\w+)",', path.read_text(encoding="utf-8")))
    return found


def main():
    tap = Tap()
    build = pathlib.Path(sys.argv[1]).resolve()
    os.environ.pop("LADDER_FROM", None)
    run = subprocess.run([str(build / "common/judge/attn_judge"), "--codes"], capture_output=True,
                         text=True, check=False)
    kit = {line.split("\t")[0] for line in run.stdout.splitlines()}
    learn = learn_codes()
    tap.ok(len(kit & learn) >= 45, f"{len(kit & learn)} words are in both vocabularies",
           sorted(kit & learn))
    for old, new in sorted(RETIRED.items()):
        tap.ok(old not in kit | learn and new in kit & learn, f"{old} is called {new}")
    with tempfile.TemporaryDirectory() as folder:
        both = sum(judge_step(tap, build, pathlib.Path(folder), name) for name in STEPS)
    tap.ok(both >= FLOOR, f"{both} wrong answers have one name in both, floor {FLOOR}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
