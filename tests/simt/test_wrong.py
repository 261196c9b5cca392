#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The wrong CUDA solutions of tests/wrong that are rungs of stages 02 to 05, on this CPU.

usage: test_wrong.py [--library] [PATCH...]

--library: those of the libraries of stages 03 to 05 in their place, for one dtype each, in the
stages' own programs, which must have been built. (A patch whose case is a program of tests/gpu is
none of them: these programs ask for more memory than a model has.)

Each must be rejected with small cases, by a finding or by the oracle, and which of the two is told.
What is shipped must be right in the same case, without a finding. (Some of their own cases, which
are made for a GPU, are too large for a model: other ones serve. So is the only case in which an
index passes 2^31: patch 428 is left out.)
"""
import concurrent.futures
import functools
import os
import pathlib
import re
import sys
import tempfile
import types

from programs import ROOT, build_folder, program, run, rungs
from simt import dtype_of
from tap import Tap
from test_mutants import make_changed

sys.path.insert(0, str(ROOT / "tests/wrong"))
import workshop  # noqa: E402

RUNG = re.compile(r"0[2-5]_\w+/cuda/v\w+\.cu")
TOO_LARGE = "428_cuda_index_in_32_bits"


def patches():
    for path in sorted((ROOT / "tests/wrong").glob("*_cuda_*.patch")):
        fields, hunks = workshop.read_patch(path)
        if RUNG.fullmatch(fields["file"]) and path.stem != TOO_LARGE:
            yield path.stem, fields, hunks


def library_patches():
    for path in sorted((ROOT / "tests/wrong").glob("*_cuda_*.patch")):
        fields, hunks = workshop.read_patch(path)
        if fields["file"].startswith("common/attention/") and "program" not in fields:
            yield path.stem, fields, hunks


def one_head(case):
    """One head of keys: a model's 4 multiprocessors then have more than one part of the keys."""
    heads, shared = re.search(r"-H (\d+)", case), re.search(r"--kv-heads (\d+)", case)
    group = int(heads[1]) // int(shared[1]) if heads and shared else 1
    kept = re.sub(r"-B \d+|-H \d+|--kv-heads \d+", "", case)
    return [*kept.split(), "-B", "1", "-H", str(group), "--kv-heads", "1"]


@functools.cache
def judged(command, words, seconds):
    """(rejected, right without a finding, what is said)."""
    done = run(command, words, SIMT_CHECK="1", SIMT_SECONDS=seconds)
    said = done.stdout + done.stderr
    bad = " WRONG " in said or re.search(r"[1-9]\d* finding", said)
    return (done.returncode == 1 and bool(bad), done.returncode == 0 and
            "0 findings, 0 warnings" in said and not bad, said)


def first_rejected(command_of, shipped, cases, seconds):
    """(good, what is said) of the first case in which its command is rejected; `shipped`'s must
    not."""
    all_said = ""
    for case in cases:
        rejected, _, said = judged(command_of(case), case, seconds)
        all_said += said
        if rejected:
            # `seconds` is for what may hang; one block of a right kernel may last that long
            _, right, beside = judged(shipped(case), case, "10")
            return (right, said if right else f"as it is shipped: {' '.join(case)}\n{beside}")
    return False, all_said


def judge_library(entry):
    name, fields, hunks = entry
    folder = workshop.stage_folder(fields)
    stage = folder.split("_", 1)[1].replace("_online", "")
    args = types.SimpleNamespace(build=str(build_folder()), stage=stage,
                                 program=str(build_folder() / folder / stage))
    with tempfile.TemporaryDirectory() as place:
        try:
            text = workshop.apply_hunks(workshop.changed_text(fields), hunks)
            command = workshop.Workshop(args, place, []).make(fields, text)
        except workshop.Failure as why:
            return name, False, str(why)
        portable = ["--smem-limit", "101376"]  # not Hopper's kernel
        cases = [(*one_head(c), *limit) for limit in ([], portable) for c in fields["case"]]
        return name, *first_rejected(lambda _: tuple(command), lambda _: (args.program,), cases,
                                     "5")


def number(case, flag, otherwise):
    found = [int(value) for word, value in zip(case, case[1:]) if word == flag]
    return found[-1] if found else otherwise


def pairs_of(case):
    """Of queries and keys, of all heads."""
    queries = number(case, "--seq-q", number(case, "-N", 512))
    return (number(case, "-B", 1) * number(case, "-H", 8) * queries *
            number(case, "--seq-kv", queries))


def own_cases(fields):
    """Those of the patch's cases that are small; of f16 nothing was compiled."""
    cases = [re.sub("dtype f16", "dtype bf16", case).split() for case in fields["case"]]
    return [case for case in cases if pairs_of(case) <= 2000000]


def judge(entry, itself=False):
    """itself: the wrong rung stands for the shipped one, too."""
    name, fields, hunks = entry
    changed = fields.get("header", fields["file"])
    text = workshop.apply_hunks(workshop.changed_text(fields), hunks)
    rung = pathlib.Path(fields["file"]).stem
    line = rungs.registration(ROOT / fields["file"])
    dtype, heads = dtype_of(line), rungs.head_dims(line)
    dist = ["--dist", "large"]  # a maximum that moves far
    common = ["--device", "cuda", "--variant", rung, "--dtype", dtype]
    case = ["-H", "2", "-N", "200", "-d", heads[0]]
    cases = [(*common, *more) for more in (
        *own_cases(fields), case, [*case, "--causal", "-d", heads[-1]],
        [*case, "-B", "2", "-N", "70"], case + dist, [*case, "-N", "600", *dist])]

    def d_of(case):
        return number(case, "-d", int(heads[0]))

    first = d_of(cases[0])  # another d is compiled anew; and most are rejected by a small case
    cases = sorted(cases, key=lambda case: (d_of(case) != first, pairs_of(case)))

    def shipped(_case):
        return (program(fields["file"][:2]),)

    with tempfile.TemporaryDirectory() as folder:

        @functools.cache
        def made_for(d):
            place = pathlib.Path(folder, d)
            place.mkdir()
            command, why = make_changed(fields["file"], changed, text, place, d)
            if not command:
                raise workshop.Failure(why)
            return (command,)

        def wrong(case):
            return made_for(str(d_of(case)))

        try:
            return name, *first_rejected(wrong, wrong if itself else shipped, cases, "1")
        except workshop.Failure as why:
            return name, False, str(why)


def main():
    tap = Tap()
    names = [word for word in sys.argv[1:] if word != "--library"]
    if "--library" in sys.argv:
        found, of = library_patches(), judge_library
    else:
        found, of = patches(), judge
    chosen = [p for p in found if not names or p[0][:3] in names]
    if os.environ.get("ATTN_TEST_QUICK"):
        chosen = chosen[::4]
    if "--library" not in sys.argv:
        _, good, said = judge(chosen[0], itself=True)
        tap.ok(not good and said.startswith("as it is shipped: "),
               "what fails as it is shipped rejects nothing", said[-1500:])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, good, said in pool.map(of, chosen):
            title = re.search(r"(?m)^simt: (?!\d+ finding)(.*)", said)
            tap.ok(good, f"{name}: {title[1] if title else 'the oracle'}", said[-1500:])
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
