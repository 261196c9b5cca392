#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every CUDA rung, checked on this CPU: right by the oracle, and no finding.

usage: test_rungs.py [--all] [--library] [STAGE...]

Each rung has five cases of ./ladder simt fuzz; those of stage 03 also one of N = 700, so that each
stage of a pipeline is used three times. There is no list of exceptions.
--all: instead all pairs of dtype, d, N, mask, heads that share keys, and schedule (copies and
products at the last moment, at the first, or by seed; warps and blocks in three orders), and
N = 700 for each dtype of 03 and 04.
--library: the rows `library` of 03 to 05 in their place, both passes, and few queries (clusters of
several blocks), in the programs of these stages, which must have been built.
"""
import concurrent.futures
import os
import random
import sys

from programs import STAGES, build_folder, pairs, program, rungs, run, stage_rungs
from simt import fuzz_case
from tap import Tap

LIBRARIES = {"03": "flash_forward", "04": "flash_backward", "05": "sliding_window"}
MASKS = {"none": [], "causal": ["--causal"], "window": ["--window", "50,0"]}


def rows():
    if "--library" in sys.argv:
        return [(stage, "library", None, ["f32", "f16", "bf16"]) for stage in LIBRARIES]
    return list(stage_rungs())


def words_of(case):
    """Flags, and the schedule's name."""
    queries = case.get("queries", case["N"])
    words = ["--dtype", case["dtype"], "-d", case["d"], "--seq-q", queries, "--seq-kv", case["N"],
             "-H", "2", *MASKS[case["mask"]]]
    return words + (["--kv-heads", "1"] if case["heads"] == "shared" else []), case["schedule"]


def cases_of(stage, path, dtypes):
    heads = rungs.head_dims(rungs.registration(path)) if path else ["64", "128", "8", "200"]
    table = {"dtype": dtypes, "d": heads, "N": ["64", "160", "256"], "mask": list(MASKS),
             "heads": ["own", "shared"], "schedule": ["late", "early", "random"]}
    cases = pairs(table)
    long = [{"dtype": dtype, "d": heads[0], "N": "700", "mask": "none", "heads": "shared",
             "schedule": "late"} for dtype in dtypes if stage in ("03", "04")]
    if stage == "03" and "--library" in sys.argv:
        long += [{**case, "d": d, "queries": "3", "schedule": schedule} for case in long
                 for d, schedule in (("64", "early"), ("128", "random"))]
    if stage == "04" and "--library" in sys.argv:  # more queries than a short turn has
        long += [{**long[-1], "d": d, "queries": "2112", "N": "160", "schedule": schedule}
                 for d, schedule in (("64", "random"), ("128", "early"))]
    if "--all" in sys.argv or path is None:
        return [words_of(case) for case in cases + long]
    dice, line = random.Random(f"{stage} {path.name}"), rungs.registration(path)
    few = rungs.head_dims(line) == ["256"]  # each takes as long as four of the others
    return ([fuzz_case(dice, line) for _ in range(2 if few else 5)] +
            [words_of(case) for case in long[:1] if stage == "03"])


def judge(stage, name, case):
    """schedule: a name of SCHEDULES, or an environment."""
    words, schedule = ["--device", "cuda", "--variant", name, *case[0]], case[1]
    if stage == "01" or (stage == "05" and name == "library"):
        words += ["--backward"]  # checks O and lse, too
    command = program(stage)
    if name == "library":
        command = build_folder() / STAGES[stage] / LIBRARIES[stage]
    named, more = (schedule, {}) if isinstance(schedule, str) else ("late", schedule)
    more = {**more, "SIMT_CHECK": "1"}
    done = run([command], words, named, **more)
    good = (done.returncode == 0 and "0 findings, 0 warnings" in done.stderr
            and f"{name} " in done.stdout)
    return good, " ".join(words), f"{done.returncode}\n{done.stdout}{done.stderr}"


def main():
    tap = Tap()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        chosen = [word for word in sys.argv[1:] if word not in ("--all", "--library")]
        for stage, name, path, dtypes in rows():
            if chosen and stage not in chosen:
                continue
            cases = cases_of(stage, path, dtypes)
            results = list(pool.map(lambda case: judge(stage, name, case), cases))
            bad = [f"{words}\n{text}" for good, words, text in results if not good]
            tap.ok(not bad, f"{stage} {name}: {len(cases)} cases right, without a finding",
                   "\n".join(bad[:2]))
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
