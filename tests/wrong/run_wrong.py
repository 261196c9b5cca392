#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""run_wrong.py: does the checker catch the mistakes that people really make?

    run_wrong.py --build DIR --stage NAME --program FILE [--device cpu|cuda] [patch ...]

Each .patch in this folder is one mistake, as a few changed lines of a real variant, with lines
around them only where the changed ones stand at several places. Lines above the diff say what it
is:

    file: 01_naive/cpu/v0_loops.c       the source that is compiled, when the diff changes a header
                                        (else it is the file that the diff names)
    rung: naive v0_loops                the rung that it registers: RUNG(naive, v0_loops, ...)
    function: sliding_window_v3_streaming    or what it exports; <function>_backward too
    seed: 8                             its number in docs/lab/burst_pseudo_code.md (optional)
    what: one sentence, for the reader of a failure
    caught-by: O lse                    exactly the checks that must object, of
                                        O lse dQ dK dV inputs storage crash, and of
                                        several ranks leak bytes memory flight streams
                                        deadlock; of a GPU access: its own report
    case: -N 17 -d 32                   one line each, the flags that show it
    passes: -N 16 -d 32                 those that do not: here the wrong one passes (optional)
    shows: why a case shows it, and which does not: for the answers of ./ladder quiz (its patches)
    hint: no_scale                      codes of hints that name it (stages 01 to 05, CPU)
    no-hint: why                        none of them does yet

CPU: the patched file is compiled into a shared object and run with --variant-so, the way a
student's solution is graded. The program must exit with 1 and blame exactly the named checks. The
unpatched file goes the same way over the same cases and must pass. A patch that does not apply is a
failure. With `variant:` instead of those, for a file that a variant calls, the patched file
is linked in front of the stage's own library, and the variant is run. So are those of CUDA, which
need a GPU (`./ladder gpu check` runs these), and the methods of stage 06. There a method may also
send other bytes than the model says, hold other memory, touch what is in flight or what its other
stream uses, or wait for a message that nobody sends. The last three, and an illegal access on a
GPU, end a run before it has a result: exit status 3, not 1.
`--mask-file {local}` in a case is a mask of four blocks of eight tokens on its diagonal: attention
that four ranks could do alone.

What no variant does, but a function of the library (resuming, say), a test program judges:

    program: tests/unit/test_flash_resume   instead of case:, the patched file is linked into it
    caught-by: test_single_keys         exactly the tests of that program that must fail

A .cu file in a program of tests/unit is one without kernels, compiled for a GPU that is pretended
(tests/unit/pretend_cuda): it is judged with those of the CPU.
"""
import argparse
import concurrent.futures
import glob
import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from hints import Hints, update_page
from tap import Tap
from workshop import (Failure, Workshop, apply_hunks, asks_for_f16, changed_text, needs_gpu,
                      read_patch, run, stage_folder)


SENTENCES = (("inputs", "an input was written to|it wrote to its input"),
             ("storage", "memory outside the outputs was written to"),
             ("crash", "crashed with SIG.*: an access behind the end of"),
             ("leak", r"\d+ bytes of workspace were not freed"),
             ("bytes", r"rank \d+ sent \d+ bytes .*, the model says"),
             ("memory", r"rank \d+ held \d+ bytes, the model says"),
             ("flight", "(reads|writes) memory in flight"),
             ("streams", r"in stream \d (reads|writes) memory that stream \d (reads|writes)"),
             ("deadlock", "deadlock; rank"),
             ("access", "kernel: an illegal memory access"))
NO_RESULT = {"flight", "streams", "deadlock", "access"}


def local_mask(folder):
    """[32][32] uint8 as .npy, 1 = masked out: token i sees token j of the same eight."""
    path = os.path.join(folder, "local.npy")
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (32, 32), }"
    header += " " * (117 - len(header)) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        f.write(bytes(i // 8 != j // 8 for i in range(32) for j in range(32)))
    return path


def run_cases(command, lines):
    """Exit status, the set of checks that objected, and everything said."""
    with tempfile.TemporaryDirectory() as folder:
        case_file, text = os.path.join(folder, "cases"), "\n".join(lines) + "\n"
        if "{local}" in text:
            text = text.replace("{local}", local_mask(folder))
        with open(case_file, "w", encoding="utf-8") as f:
            f.write(text)
        rows = os.path.join(folder, "rows.jsonl")
        done = run(command + ["--quiet", "--cases", case_file, "--json", rows])
        with open(rows, encoding="utf-8") as f:
            failed = [line for line in f if '"pass":true' not in line]
    blamed = set(re.findall(r": (\w+) is wrong: (?:\d+ of \d+ values are off|in one head)",
                            done.stderr))
    blamed |= {check for check, sentence in SENTENCES if re.search(sentence, done.stderr)}
    if bool(failed) != (done.returncode != 0):
        raise Failure(f"exit status {done.returncode}, and {len(failed)} rows without pass:true\n"
                      f"{done.stderr[-1000:]}")
    return done.returncode, blamed, done.stderr


def run_tests(command):
    """The same of a test program: the checks are the names of its tests."""
    done = run(command, env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", ATTN_TEST_QUICK="1"))
    if not re.search(r"^(not )?ok \d+ - ", done.stdout, re.MULTILINE):
        raise Failure(f"{command[0]} ran no test\n{done.stdout[-500:]}{done.stderr[-1000:]}")
    failed = re.findall(r"^not ok \d+ - (\w+)", done.stdout, re.MULTILINE)
    return int(done.returncode != 0), set(failed), done.stdout + done.stderr


def must_pass(status, said):
    if status != 0:
        raise Failure(f"the unpatched file must pass, exit status {status}\n{said[-1500:]}")


def make_right(shop, fields, text):
    """The command of the unpatched file. A test program asks the same of it for each patch: once is
    enough."""
    command = shop.make(fields, text)
    if "program" in fields:
        status, _, said = run_tests(command)
        must_pass(status, said)
    return command


def prepare(pool, shop, passed, path):
    """Starts to make the right and the wrong one. (fields, right, wrong) or the failure."""
    try:
        fields, hunks = read_patch(path)
        text = changed_text(fields)
        wrong = apply_hunks(text, hunks)
    except (Failure, OSError) as why:
        return why
    key = (*(fields.get(name) for name in ("file", "function", "rung", "program", "variant")),
           asks_for_f16(fields))
    if key not in passed:
        plain = {name: value for name, value in fields.items() if name != "header"}
        passed[key] = pool.submit(make_right, shop, plain, changed_text(plain))
    return fields, passed[key], pool.submit(shop.make, fields, wrong)


def judge_patch(path, prepared, hints):
    """What Tap.ok takes."""
    name = os.path.basename(path)
    try:
        if isinstance(prepared, Exception):
            raise prepared
        fields, right, wrong = prepared
        right, wrong = right.result(), wrong.result()
        if "program" in fields:
            status, blamed, said = run_tests(wrong)
        else:
            status, _, said = run_cases(right, fields["case"] + fields["passes"])
            must_pass(status, said)
            status, blamed, said = run_cases(wrong, fields["case"])
        blind, _, told = run_cases(wrong, fields["passes"]) if fields["passes"] else (0, 0, "")
        if blind != 0:
            raise Failure(f"a case that it must pass: exit status {blind}\n{told[-1500:]}")
        if hints:
            hints.collect(wrong, fields, path)
        return (status == (3 if blamed & NO_RESULT else 1) and blamed == fields["caught-by"],
                f"{name}: {fields['what']}: caught by {' '.join(sorted(fields['caught-by']))}",
                f"exit status {status}, blamed {sorted(blamed)}\n{said[-1500:]}")
    except (Failure, OSError, subprocess.TimeoutExpired) as why:
        return False, name, str(why)


def blind_to_ds(tap, paths):
    """dV = P^T dO knows nothing of dS: a check of dV alone, the gradient that looks most like the
    forward pass, passes whatever goes wrong behind P. That each of these is blamed for dQ and dK
    and not for dV was seen above, since `caught-by` is compared exactly; that dV was looked at is
    seen by those that are blamed for it."""
    blamed = {os.path.basename(path): read_patch(path)[0]["caught-by"] for path in paths}
    passing = sorted(name.split("_")[0] for name, gradients in blamed.items()
                     if gradients == {"dQ", "dK"})
    tap.ok(passing and any("dV" in gradients for gradients in blamed.values()),
           f"wrong in dQ and dK, and a check of dV alone would pass them: {' '.join(passing)}")


def all_errors_of_the_seed(tap):
    """A lab note numbers what is wrong in public pseudo-code and names the patches that switch each
    error on. The last one is what the code says nothing about: nothing to be switched on."""
    patches, told = {}, {}
    for path in glob.glob(os.path.join(HERE, "*.patch")):
        number = read_patch(path)[0].get("seed")
        if number:
            patches.setdefault(int(number), set()).add(os.path.basename(path)[:3])
    page = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs/lab/burst_pseudo_code.md")
    with open(page, encoding="utf-8") as f:
        section = f.read()
    for number, last in re.findall(r"^\| (\d+) \| .* \| ([^|]*) \|$", section, re.MULTILINE):
        told[int(number)] = set(re.findall(r"\b\d{3}\b", last))
    tap.ok(sorted(told) == list(range(1, 20)) and told.pop(19) == set() and told == patches,
           "every error of the pseudo-code is a patch, and the lab note names it",
           f"{patches}\n{told}")


def applier_refuses(tap):
    for label, hunks in (("a missing line", [(["b", "x"], ["b"])]),
                         ("two places", [(["a"], ["z"])]), ("an empty change", [(["b"], ["b"])])):
        try:
            tap.ok(False, f"the applier refuses {label}", apply_hunks("a\nb\na\n", hunks))
        except Failure:
            tap.ok(True, f"the applier refuses {label}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--stage", required=True, help="prefix of the exported names: naive")
    parser.add_argument("--program", required=True)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--update-page", action="store_true",
                        help="write the rows of docs/course/hints.md, judge no hint")
    parser.add_argument("patches", nargs="*", help="default: all of the stage and the device")
    args = parser.parse_args()
    args.build, args.program = os.path.abspath(args.build), os.path.abspath(args.program)
    # 01_naive/naive in the build folder: the sources are in the folder of the same name.
    folder_of_stage = os.path.basename(os.path.dirname(args.program))
    tap, mine = Tap(), []
    tiny = [args.program, "--device", args.device, "-N", "1", "-H", "1", "-d", "1", "--quiet"]
    if run(tiny).returncode == 77:
        return tap.skip_all(f"no {args.device} device here")
    applier_refuses(tap)
    programs, others = set(), 0
    for path in args.patches or sorted(glob.glob(os.path.join(HERE, "*.patch"))):
        try:
            fields, hunks = read_patch(path)
            if stage_folder(fields) != folder_of_stage:
                continue
            pretended = fields["file"].endswith(".cu") and not needs_gpu(fields)
            here = (os.path.exists(os.path.join(args.build, fields["program"])) if pretended
                    else True)  # where there is no C++ compiler it is not
            if here and needs_gpu(fields) == (args.device == "cuda"):
                mine.append(path)
                programs |= {fields["program"]} if "program" in fields else set()
            else:  # of the other device, or in a program that this build lacks; it applies, though
                apply_hunks(changed_text(fields), hunks)
                others += 1
        except (Failure, OSError) as why:
            tap.ok(False, os.path.basename(path), str(why))
    tap.ok(mine, f"{len(mine)} wrong solutions for {folder_of_stage} on {args.device}; "
           f"{others} others apply")
    workers = min(16, os.cpu_count() or 1)
    # A judged program has threads of its own, so fewer of them than compilers run at a time. (The
    # few controls of test programs run among the compilers.)
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(workers) as pool, \
            concurrent.futures.ThreadPoolExecutor(max(1, workers // 4)) as judges:
        shop, passed = Workshop(args, folder, programs), {}
        prepared = [prepare(pool, shop, passed, path) for path in mine]
        hints = (Hints(args.build, args.stage, folder)
                 if args.device == "cpu" and args.stage != "ring_burst" else None)
        for result in judges.map(judge_patch, mine, prepared, [hints] * len(mine)):
            tap.ok(*result)
        if hints and args.update_page:
            update_page(hints)
        elif hints:
            hints.judge(tap)
    if args.stage == "flash_backward" and args.device == "cpu" and not args.patches:
        blind_to_ds(tap, mine)
    if args.stage == "ring_burst" and args.device == "cpu" and not args.patches:
        all_errors_of_the_seed(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
