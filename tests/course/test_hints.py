#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_hints.py: is what a hint says true, and how often does it say something?

    test_hints.py BUILD [--update-page]

The named wrong solutions are asked by tests/wrong/run_wrong.py, where they are compiled anyway:
each declares the codes that are right for it, and no other mistake may be named. Here it is counted
how many of them get a name. A table of mistakes that was made from these solutions says little
about others, so held_out/ has some that were written after the table was fixed. How many of those
get a name is recorded as a floor, and none may get a wrong one. Do not change the table for them:
write new ones instead.
"""
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests"), os.path.join(ROOT, "tests/wrong")]
import test_grade
from hints import PAGE, SUITES, Hints, coverage
from tap import Tap
from workshop import Workshop, apply_hunks, changed_text, read_patch, stage_folder

STAGES = {"01_naive": "naive", "02_tiled_softmax": "tiled_softmax",
          "03_flash_forward": "flash_forward", "04_flash_backward": "flash_backward",
          "05_sliding_window_online": "sliding_window"}
SHARE = 0.89   # of the named wrong solutions that a run of cases can show
HELD_OUT = 8   # of held_out/: how many were named in the first run


def held_out(build, folder):
    """[(name, fields, answer)]"""
    hints, made = {}, []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for path in sorted(glob.glob(os.path.join(HERE, "held_out/*.patch"))):
            fields, hunks = read_patch(path)
            place = stage_folder(fields)
            if place not in hints:
                stage = STAGES[place]
                here = os.path.join(folder, stage)
                os.mkdir(here)
                args = types.SimpleNamespace(build=build, stage=stage,
                                             program=os.path.join(build, place, stage))
                hints[place] = Hints(build, stage, here), Workshop(args, here, set())
            shop = hints[place][1]
            text = apply_hunks(changed_text(fields), hunks)
            made.append((path, fields, place, pool.submit(shop.make, fields, text)))
        for path, fields, place, command in made:
            hints[place][0].collect(command.result(), fields, path)
    answers = {}
    for of, _ in hints.values():
        answers.update(of.answers())
    return [(os.path.basename(path)[:-len(".patch")], fields, answers[path])
            for path, fields, _, _ in made]


def section(found, named):
    """The end of the page."""
    rows = [f"| {name} | {fields['what']} | "
            + (f"`{answer['code']}`" if answer["code"] else "none") + " |"
            for name, fields, answer in found]
    return (f"Of {len(found)} such mistakes {named} got their name in the first run. For "
            f"{sum('hint' not in fields for _, fields, _ in found)} of them the table has none\n"
            "at all. One got a wrong name: NaN from memory that was never written was called a "
            "result that\nwas never written (17). Its code says now what both have in common, and "
            "it is not counted.\n\n| held out | what is wrong | hint |\n|---|---|---|\n"
            + "\n".join(rows) + "\n")


def judge_held_out(tap, build, update):
    with tempfile.TemporaryDirectory() as folder:
        found = held_out(build, folder)
    named = 0
    for name, fields, answer in found:
        right = fields.get("hint", "").split()
        named += answer["code"] in right and "no-hint" not in fields
        tap.ok(answer["code"] in right + [""], f"held out: {name}: {answer['code'] or 'no name'}",
               f"right are {right or 'no name'}\n{json.dumps(answer)[:1500]}")
        tap.ok(any(not case["pass"] for case in answer["cases"]), f"{name} fails a case")
    tap.ok(len(found) >= 10 and named >= HELD_OUT,
           f"{named} of {len(found)} held out are named, floor {HELD_OUT}")
    with open(PAGE, encoding="utf-8") as f:
        text = f.read()
    head = text[:text.index("\nOf ") + 1] if "\nOf " in text else text + "\n"
    if update:
        with open(PAGE, "w", encoding="utf-8") as f:
            f.write(head + section(found, named))
    else:
        tap.ok(text == head + section(found, named), "the page says so",
               "tests/course/test_hints.py BUILD --update-page")


def judge_coverage(tap):
    named, total = coverage("12456")
    tap.ok(total > 80 and named >= SHARE * total,
           f"{named} of {total} wrong solutions of stages 01 to 05 get their name",
           f"wanted are {SHARE:.0%}")


def judge_codes(tap, build):
    done = subprocess.run([os.path.join(build, "common/course/attn_judge"), "--codes"],
                          capture_output=True, text=True)
    codes = {line.split("\t")[0] for line in done.stdout.splitlines()}
    declared = set()
    for path in glob.glob(os.path.join(ROOT, "tests/wrong/*.patch")):
        declared |= set(read_patch(path)[0].get("hint", "").split())
    tap.ok(declared and declared <= codes, "every declared code is one of attn_judge --codes",
           f"{sorted(declared - codes)}")
    tap.ok(all(re.fullmatch("[a-z0-9_]+", code) for code in codes), "codes are snake_case")


def judge_orders(tap, build):
    """What attn_judge is told must be what it says: one sentence, exit 2."""
    good = "suite\tS\ncontract\tflash_simple\nlimits\t10\t1024\t1\ncase\t2\t-N\t3\n"
    for orders, said in (
            (good, ""), (good.replace("10", "ten"), "limits: found 'ten'"),
            (good.replace("1024", "1.5"), "limits: found '1.5'"),
            (good.replace("case\t2", "case\t2x"), "case: found '2x'"),
            (good + "workers\t99999999999\n", "workers: found '9"),
            (good + "total\tnan\n", "total: found 'nan'"), (good + "perf\t\n", "perf: found ''"),
            (good + "threads\t2\t0\n", "threads: found '0'"), ("case\t2\n", "no contract"),
            (good + "mode\toff\0x\n", "zero byte"),
            (good.replace("-N\t3", "-N\t20000\t-d\t64"), "more than 10^10 pair-channels"),
            # a reference that takes seconds, and is not made for --check
            (good.replace("-N\t3", "-N\t12400\t-d\t64"), "")):
        before = os.times()
        done = subprocess.run([os.path.join(build, "common/course/attn_judge"), "--check"],
                              input=orders, capture_output=True, text=True)
        tap.ok(done.returncode == (2 if said else 0) and said in done.stderr and
               done.stderr.count("\n") == bool(said) and
               os.times().children_user - before.children_user < 1, f"orders: {said or 'good'}",
               done.stderr)


def judge_right_solutions(tap, build, tool):
    """A right solution gets no name, whatever its cases are."""
    with tempfile.TemporaryDirectory() as folder:
        for suite, program, variant in (("forward", "01_naive/naive", "v0_loops"),
                                        ("backward", "01_naive/naive", "v0_loops"),
                                        ("options", "05_sliding_window_online/sliding_window",
                                         "library"),
                                        ("options_backward",
                                         "05_sliding_window_online/sliding_window",
                                         "library")):
            cases, out = os.path.join(HERE, SUITES[suite]), os.path.join(folder, suite)
            flags = ["--backward"] if suite == "backward" else []
            subprocess.run([os.path.join(build, program), "--variant", variant, "--cases", cases,
                            "--no-check", "--quiet", "--save", out] + flags, check=True)
            done = subprocess.run([tool, "--cases", cases, "--found", out] + flags,
                                  capture_output=True, text=True)
            answer = json.loads(done.stdout or "{}")
            lines = [line for line in open(cases, encoding="utf-8") if line.strip()]
            tap.ok(answer.get("code") == "" and len(answer["cases"]) == len(lines) and
                   all(case["pass"] for case in answer["cases"]),
                   f"{variant} passes {SUITES[suite]} and gets no name",
                   done.stdout[:1500] + done.stderr[-500:])
        done = subprocess.run([tool, "--cases", cases, "--found", os.path.join(folder, "forward")],
                              capture_output=True, text=True)
        tap.ok(done.returncode == 2 and "o.npy" in done.stderr,
               "outputs of other cases are refused", done.stderr[-500:])
        for words in ([], ["--found", folder], ["--found", os.path.join(folder, "none")]):
            done = subprocess.run([tool, "-N", "3", *words], capture_output=True, text=True)
            tap.ok(done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1 and
                   "--found: found no" in done.stderr, f"refused: {words}", done.stderr)
        if os.path.exists("/dev/full"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([tool, "--cases", cases, "--backward", "--found", out],
                                      stdout=full, stderr=subprocess.PIPE, text=True)
            tap.ok(done.returncode == 3 and "standard output" in done.stderr,
                   "nobody takes the answers", done.stderr)


def judge_refused(tap, build, tool):
    """Neither a line nor a folder that is refused keeps the others from being judged."""
    with tempfile.TemporaryDirectory() as folder:
        cases, good, bad = (os.path.join(folder, name) for name in ("cases", "good", "bad"))
        for line in (1, 3):
            subprocess.run([os.path.join(build, "01_naive/naive"), "-N", str(line), "--variant",
                            "v0_loops", "--quiet", "--save", os.path.join(good, str(line))],
                           check=True)
        os.makedirs(os.path.join(bad, "3"))
        with open(os.path.join(bad, "3", "o.npy"), "w", encoding="utf-8") as f:
            f.write("not an array")
        with open(cases, "w", encoding="utf-8") as f:
            f.write("-N 1\n-N 2 --q none.npy --k none.npy --v none.npy\n-N 3\n")
        done = subprocess.run([tool, "--cases", cases, "--found", good, "--found", bad, "--found",
                               good], capture_output=True, text=True)
        answers = [json.loads(line) for line in done.stdout.split("\n") if line]
        tap.ok(done.returncode == 2 and len(answers) == 2 and
               all([case["line"] for case in answer["cases"]] == [1, 3] and
                   all(case["pass"] for case in answer["cases"]) for answer in answers),
               "a refused line and a refused folder leave the others", done.stdout + done.stderr)
        said = done.stderr.splitlines()
        tap.ok(len(said) == 2 and f"{cases}:2: " in said[0] and "bad/3/o.npy" in said[1],
               "each of them is named", said)


# What is exchanged in submissions/right.c, and the code; "" is a mistake without a name.
SOFTMAX = {
    "softmax_rows": [
        ("m = fmaxf(m, S[c]);", "m = 0.0f;", "no_max_subtraction"),
        ("m = fmaxf(m, S[c]);", "{ static float last; last = fmaxf(last, S[c]); m = last; }",
         "max_not_reset"),
        ("exp_above(S[c], m) / l", "exp_above(S[c], m)", "not_normalised"),
        ("? m + logf(l)", "? logf(l)", "lse_without_max"),
        ("? m + logf(l)", "? (m + logf(l)) * 1.442695f", "lse_base_2"),
        ("? m + logf(l)", "? m + l", "lse_with_l"),
        ("? m + logf(l)", "? m", "lse_without_log_l"),
        ("P[c] = l > 0.0f ?", "P[c] = 1 ?", "nan_on_empty_row"),
        ("P[c] = l > 0.0f ?", "P[c] = l > 0.0f && c + 1 < cols ?", "one_key_dropped"),
        ("for (int c = 0; c < cols; c++)\n            l +=",
         "for (int c = 1; c < cols; c++)\n            l +=", "one_key_dropped"),
        ("for (int c = 0; c < cols; c++)\n            l +=",
         "for (int c = 0; c < cols / 8 * 8; c++)\n            l +=", "tail_tile_dropped"),
        ("float m = -INFINITY, l = 0.0f;\n        for (int c = 0; c < cols; c++)\n            m =",
         "static float l; float m = -INFINITY; if (S == 0) l = 0;\n"
         "        for (int c = 0; c < cols; c++)\n            m =", "sum_not_reset"),
        ("m = fmaxf(m, S[c]);\n        for (int c = 0; c < cols; c++)\n            l += exp_above("
         "S[c], m);", "{ m = fmaxf(m, S[c]); l += exp_above(S[c], m); }", "stale_l"),
        ("m = fmaxf(m, S[c]);\n        for (int c = 0; c < cols; c++)\n            l",
         "m = fmaxf(m, S[c - r * cols]);\n        for (int c = 0; c < cols; c++)\n            l",
         "no_max_subtraction"),
        ("l += exp_above(S[c], m);", "l += S[c] > -INFINITY ? exp2f(S[c] - m) : 0; "
         "for (int c = 0; c < cols; c++) S == P ? 0 : 0;\n#define exp_above(s, m) "
         "(s > -INFINITY ? exp2f(s - m) : 0)", "exp2_for_exp"),
        ("l += exp_above(S[c], m);", "l += 1.001f * exp_above(S[c], m);", ""),
    ],
    "softmax_merge": [
        ("m[k] = fmaxf(", "m[k] = fminf(", "smaller_maximum"),
        ("m[k] = fmaxf(m_a[k], m_b[k]);", "m[k] = m_a[k];", "max_of_one"),
        ("m[k] = fmaxf(m_a[k], m_b[k]);", "m[k] = m_b[k];", "max_of_one"),
        ("l_b[k] * exp_above(m_b[k], m[k])", "l_b[k]", "one_side_rescaled"),
        ("l_a[k] * exp_above(m_a[k], m[k]) + l_b[k] * exp_above(m_b[k], m[k])", "l_a[k] + l_b[k]",
         "merge_without_weights"),
        ("exp_above(m_a[k], m[k]) + l_b[k] * exp_above(m_b[k], m[k])",
         "exp_above(m_b[k], m[k]) + l_b[k] * exp_above(m_a[k], m[k])", "wrong_one_rescaled"),
        ("exp_above(m_a[k], m[k]) + l_b[k] * exp_above(m_b[k], m[k])",
         "expf(m[k] - m_a[k]) + l_b[k] * expf(m[k] - m_b[k])", "alpha_inverted"),
        ("return s == -INFINITY ? 0.0f : expf(s - m);", "return expf(s - m);", "nan_on_empty_row"),
        ("return s == -INFINITY ? 0.0f : expf(s - m);",
         "return s == -INFINITY ? 0.0f : exp2f(s - m);", "exp2_for_exp"),
        ("+ l_b[k]", "+ 1.001f * l_b[k]", ""),
    ]}
SOFTMAX_CASES = ["--rows 9 --cols 333", "--rows 1 --cols 3", "--rows 40 --cols 17 --dist large"]


def judge_softmax(tap, build):
    """softmax_rows and softmax_merge: the mistake's code in every wrong case, or none at all."""
    right = test_grade.RIGHT.read_text(encoding="utf-8")
    for contract, mistakes in SOFTMAX.items():
        with tempfile.TemporaryDirectory() as name:
            folder, libraries = pathlib.Path(name), []
            suite = test_grade.write_suite(folder / "one.suite", contract, SOFTMAX_CASES)
            start = right.index(f"int {contract}_variant")
            for number, (text, instead, _) in enumerate([("", "", "")] + mistakes):
                own = 0 if "return s ==" in text else start
                tap.ok(text in right[own:], f"{contract}: '{text}' is there")
                source = folder / f"{number}.c"
                source.write_text(right[:own] + (right[own:].replace(
                    text, instead, -1 if "expf" in instead else 1) if text else right[own:]),
                    encoding="utf-8")
                libraries.append(test_grade.library(source))
            rows, err = test_grade.graded(build, "off", suite, *libraries)
        tap.ok(len(rows) == len(libraries), f"{contract}: graded", err)
        for (text, instead, code), row in zip([("", "", "")] + mistakes, rows):
            wrong = [test for test in row["tests"] if test["status"] != "right"]
            codes = {error["code"] for test in wrong for error in test["errors"]}
            tap.ok(codes <= {code} and bool(wrong) == bool(text) and (not code or codes),
                   f"{contract}: {code or 'no name'}", f"{text} -> {instead}\n{codes} {row}"[:2500])


# A program's stage, what is exchanged in tests/stages/so, and the mistake that this is; "" is none
# with a name, and then both describe the symptom.
STAGE_SO = os.path.join(ROOT, "tests/stages/so")
LIBRARIES = [("01_naive", "attn_score(a, dot) :", "dot :", "no_scale"),
             ("02_tiled_softmax", "m + logf(sum)", "logf(sum)", "lse_without_max"),
             ("03_flash_forward", "h / (s->H / s->Hkv)", "h % s->Hkv", "kv_head_modulo"),
             ("03_flash_forward", "p[j] /= sum;", "p[j] /= sum + (i > 40) * 1e-3f;", ""),
             ("04_flash_backward", " - delta);", ");", "delta_missing"),
             ("05_sliding_window_online", "attn_sees(a, i, j) ?", "1 ?", "no_mask"),
             ("06_ring_burst", "attn_score(a, dot) :", "dot :", "no_scale")]


def judge_programs(tap, build):
    """--variant-so prints the hint of ./ladder grade, once, and a right library gets none."""
    flags = "-N 70 -H 4 --kv-heads 2 -d 16 --causal"
    for place, text, instead, code in LIBRARIES:
        stage, test = STAGES.get(place, "ring_burst"), {}
        name = "right_backward.c" if stage == "flash_backward" else "right.c"
        source = pathlib.Path(STAGE_SO, name).read_text(encoding="utf-8")
        said = []
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part in (instead, text):
                mine = folder / "mine.c"
                mine.write_text(source.replace(text, part), encoding="utf-8")
                so = test_grade.library(mine, flags=(f"-DSTAGE={stage}", f"-I{STAGE_SO}"))
                done = subprocess.run([os.path.join(build, place, stage), "--variant-so", so,
                                       *flags.split(), "--so-sandbox", "off"],
                                      capture_output=True, text=True)
                said.append((done.returncode, re.findall("^hint: (.*)$", done.stderr, re.M)))
                if part == instead and stage != "ring_burst":
                    suite = test_grade.write_suite(folder / "one.suite", stage, [flags])
                    rows, err = test_grade.graded(build, "off", suite, so)
                    test = rows[0]["tests"][0] if rows else {"hint": err}
        hint = said[0][1][0] if said[0][1] else ""
        tap.ok(text in source and said[0][0] == 1 and len(said[0][1]) == 1 and said[1] == (0, []),
               f"--variant-so, {stage}: one hint, and none for a right one", said)
        if stage == "ring_burst":
            tap.ok("without 1/sqrt(d)" in hint, f"--variant-so, {stage}: {code}", said)
        else:
            tap.ok(test["hint"] == hint and (test.get("code") == code or not code),
                   f"--variant-so, {stage}: {code or 'a symptom'}, as in a grade", f"{test} {said}")


def main():
    build = os.path.abspath(sys.argv[1])
    tool = os.path.join(build, "common/course/attn_hints")
    tap = Tap()
    judge_coverage(tap)
    judge_codes(tap, build)
    judge_orders(tap, build)
    judge_right_solutions(tap, build, tool)
    judge_refused(tap, build, tool)
    judge_programs(tap, build)
    judge_softmax(tap, build)
    judge_held_out(tap, build, "--update-page" in sys.argv[2:])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
