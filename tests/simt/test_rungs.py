#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every CUDA rung, checked on this CPU: right by the oracle, and no finding.

usage: test_rungs.py [--all] [--library] [STAGE...]

--all: all pairs of dtype, d, N, mask, heads that share keys, and schedule (copies and products at
the last moment, at the first, or by seed; warps and blocks in three orders). N = 700 once for each
rung and dtype of 03 and 04, so that each stage of a pipeline is used three times. Otherwise four of
these cases and one of N = 700; two of stages 04 and 05. There is no list of exceptions.
--library: the rows `library` of 03 to 05 in their place, both passes, and few queries (clusters of
several blocks), in the programs of these stages, which must have been built.
"""
import concurrent.futures
import os
import sys

from programs import STAGES, build_folder, pairs, program, run, stage_rungs
from tap import Tap

LIBRARIES = {"03": "flash_forward", "04": "flash_backward", "05": "sliding_window"}
MASKS = {"none": [], "causal": ["--causal"], "window": ["--window", "50,0"]}


def rows():
    if "--library" in sys.argv:
        return [(stage, "library", None, ["f32", "f16", "bf16"]) for stage in LIBRARIES]
    return list(stage_rungs())


def words_of(name, case):
    queries = case.get("queries", case["N"])
    words = ["--device", "cuda", "--variant", name, "--dtype", case["dtype"], "-d", case["d"],
             "--seq-q", queries, "--seq-kv", case["N"], "-H", "2", *MASKS[case["mask"]]]
    return words + (["--kv-heads", "1"] if case["heads"] == "shared" else [])


def cases_of(stage, dtypes):
    heads = ["128"] if dtypes == ["e4m3"] else ["64", "128"]
    table = {"dtype": dtypes, "d": heads, "N": ["64", "160", "256"], "mask": list(MASKS),
             "heads": ["own", "shared"], "schedule": ["late", "early", "random"]}
    cases = pairs(table)
    long = [{"dtype": dtype, "d": heads[0], "N": "700", "mask": "none", "heads": "shared",
             "schedule": "late"} for dtype in dtypes if stage in ("03", "04")]
    if stage == "03" and "--library" in sys.argv:
        long += [{**case, "d": d, "queries": "3", "schedule": schedule} for case in long
                 for d, schedule in (("64", "early"), ("128", "random"))]
    if "--all" in sys.argv:
        return cases + long
    return cases[:2] if stage in ("04", "05") else cases[:4] + long[:1]


def judge(stage, name, case):
    words = words_of(name, case)
    command = program(stage)
    if name == "library":
        command = build_folder() / STAGES[stage] / LIBRARIES[stage]
    done = run([command], words, case["schedule"], SIMT_CHECK="1")
    good = (done.returncode == 0 and "0 findings, 0 warnings" in done.stderr
            and f"{name} " in done.stdout)
    if (stage == "01" and case["N"] != "64") or (stage == "05" and name == "library"):
        words += ["--backward"]
        back = run([command], words, case["schedule"], SIMT_CHECK="1")
        good = good and back.returncode == 0 and "0 findings, 0 warnings" in back.stderr
    return good, " ".join(words), f"{done.returncode}\n{done.stdout}{done.stderr}"


def main():
    tap = Tap()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        chosen = [word for word in sys.argv[1:] if word not in ("--all", "--library")]
        for stage, name, _path, dtypes in rows():
            if chosen and stage not in chosen:
                continue
            cases = cases_of(stage, dtypes)
            results = list(pool.map(lambda case: judge(stage, name, case), cases))
            bad = [f"{words}\n{text}" for good, words, text in results if not good]
            tap.ok(not bad, f"{stage} {name}: {len(cases)} cases right, without a finding",
                   "\n".join(bad[:2]))
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
