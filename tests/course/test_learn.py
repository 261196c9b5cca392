#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_learn.py: the steps of docs/learn and the commands of ./ladder learn.

usage: test_learn.py [BUILD]    with a build folder whose programs exist, traces are compared too

Of each step: its limits; its stub compiles without a warning and fails; its solution passes; each
typical wrong answer fails with its hint. Of the engine: what it writes and what not, its exit
statuses, what it says of code that crashes, hangs, prints, or writes where it must not.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "common" / "tools")]
import learn  # noqa: E402
import learn_steps  # noqa: E402
import simt_library  # noqa: E402
from tap import Tap  # noqa: E402

MAX_WORDS, MAX_HOLE, MAX_BUG, MAX_HUNT, MINUTES = 150, 20, 12, 80, range(5, 21)
LEAST_STEPS = {"01": 6, "02": 6, "03": 6, "04": 6, "05": 6, "06": 6}
MAX_FACT = 50
ASKED = re.compile(r"^(?:Predict|Write down|Think about it|Before you write|Find out|Then explain)|"
                   r"\. (?:Write down first|Find out)", re.M)
GPU_BOUNDS = ("--least-", "--most-sectors-read", "--most-sectors-written", "--most-wavefronts")
SILENT = {"say": lambda line: None}


def limits(step):
    """One sentence for each limit that a step does not keep."""
    found = []
    words = len(step.task.partition("\n")[2].split())
    if words > MAX_WORDS:
        found.append(f"task.md has {words} words, at most {MAX_WORDS}")
    if step.minutes not in MINUTES:
        found.append(f"{step.minutes} minutes, from 5 to 20 are accepted")
    if len(step.hints()) != 3:
        found.append(f"{len(step.hints())} hints, three are accepted")
    if len(step.cases) < 2:
        found.append("fewer than two cases")
    codes = [code for code, _ in step.wrong_answers()]
    least = 3 if step.on_gpu else 2
    if len(codes) < least or "-" in codes:
        found.append(f"wrong answers {codes}, {least} are wanted, each with the code of a hint")
    words = " ".join(word for case in step.cases for word in case.flags)
    if step.on_gpu:
        found += [f"no case has {bound}: what the idea needs, and what it allows, is bounded"
                  for bound in GPU_BOUNDS if bound not in words]
    asked = step.kind != "typed" and ASKED.search(step.task)
    if bool(asked) != bool(step.fact()):
        found.append("no fact.md answers the prediction that task.md asks for" if asked else
                     "fact.md answers what task.md does not ask")
    if len((step.fact() or "").split()) > MAX_FACT:
        found.append(f"fact.md has more than {MAX_FACT} words")
    if step.kind == "hole":
        found += hole_limits(step.solution())
    if step.kind == "bug":
        changed = sum(line not in step.stub().splitlines() for line in
                      step.solution().splitlines())
        if not 0 < changed <= MAX_BUG:
            found.append(f"the mending is {changed} lines, 1 to {MAX_BUG} are accepted")
        if len(step.stub().splitlines()) > MAX_HUNT:
            found.append(f"the file has more than {MAX_HUNT} lines")
    return found


def hole_limits(solution):
    """Of the stub with the solution in its hole: outside of it they cannot differ."""
    holes = learn_steps.HOLE.findall(solution)
    if len(holes) != 1:
        return [f"the stub has {len(holes)} holes"]
    lines, promised = len(holes[0][1].splitlines()), int(holes[0][0])
    return [] if 0 < lines <= promised <= MAX_HOLE else [
        f"the solution's hole has {lines} lines, it says {promised}, at most {MAX_HOLE}"]


class Examiners:
    """Object files, each compiled once for all answers that are linked with it."""

    def __init__(self, folder):
        self.folder, self.made = pathlib.Path(folder), {}

    def compile(self, step):
        objects, said = [], ""
        for source in learn_steps.examiner_sources(step):
            key = (source, step.header.get("include"), step.header.get("optimise"))
            if key not in self.made:
                self.made[key] = self.folder / f"{len(self.made)}.o"
                good, more = learn_steps.run_compiler([*learn_steps.compile_flags(step), "-c",
                                                       source, "-o", self.made[key]])
                said += "" if good and not more else more or "did not compile"
            objects.append(self.made[key])
        return objects, said


def judge_text(step, text, examiner):
    """(verdict, everything that was said)"""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, step.answer_name)
        file.write_text(text, encoding="utf-8")
        said = []
        verdict = learn_steps.judge(step, file, folder, say=said.append, examiner=examiner)
    return verdict, "\n".join(said)


def check_mistakes(tap, step):
    """Each --mistake of a typed step, typed in, is told as itself: it is not taken for right, nor
    for another one."""
    for case in step.cases if step.kind == "typed" else []:
        key = case.flags[case.flags.index("--key") + 1]
        for n, word in enumerate(case.flags):
            if word == "--mistake":
                code, typical = case.flags[n + 1:n + 3]
                verdict = learn_steps.judge_typed(case.flags, {key: typical})
                tap.ok(verdict.code == code, f"{step.name} {key} = {typical}: {code}", verdict)


def answers_of(step):
    """(name, text, code wanted; None: passes, "": fails) of everything there is to judge."""
    stub = step.stub()
    yield from [] if stub is None else [("stub", stub, "")]
    yield "solution", step.solution(), None
    yield from (("another solution", text, None) for text in step.others())
    for code, text in step.wrong_answers():
        yield f"wrong {code}", text, code


def fits(verdict, said, wanted):
    if wanted is None:
        return verdict.passed and "warning" not in said
    if wanted == "":
        return not verdict.passed and verdict.code != "compile" and "warning" not in said
    return not verdict.passed and verdict.code == wanted and bool(verdict.text or verdict.why)


def check_steps(tap, steps):
    # ./ladder test names a fast one: hundreds of small programs are linked here
    linker = [f"-fuse-ld={name}" for name in [os.environ.get("CC_LD")] if name]
    with tempfile.TemporaryDirectory() as folder:
        examiners, todo = Examiners(folder), []
        for step in steps:
            if step.on_gpu and simt_library.missing():
                tap.skip(f"{step.name} {step.title}", simt_library.missing() + " is missing")
                continue
            objects, said = ([], "") if step.kind == "typed" else examiners.compile(step)
            bad = limits(step) + ([said] if said else [])
            tap.ok(not bad, f"{step.name} {step.title}: limits", "\n".join(bad))
            check_mistakes(tap, step)
            todo += [(step, objects + linker, *answer) for answer in answers_of(step)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda item: judge_text(item[0], item[3], item[1]), todo)
            for (step, _, name, _, wanted), (verdict, said) in zip(todo, found):
                tap.ok(fits(verdict, said, wanted), f"{step.name} {name}", f"{verdict}\n{said}")


def check_stages(tap, steps):
    for stage in sorted({step.name[:2] for step in steps} | set(LEAST_STEPS)):
        of_stage = [step for step in steps if step.name[:2] == stage]
        pages = "".join(step.name[3] for step in of_stage)
        tap.ok([step.name[4] for step in of_stage] ==
               ["abcdefgh"[pages[:n].count(page)] for n, page in enumerate(pages)],
               f"stage {stage}: lettered without gaps", [step.name for step in of_stage])
        tap.ok(len(of_stage) >= LEAST_STEPS.get(stage, 1), f"stage {stage}: {len(of_stage)} steps")
        tap.ok(any(s.kind == "free" for s in of_stage), f"stage {stage}: a step without a stub")
    tap.ok({step.kind for step in steps} == {"hole", "bug", "free", "typed"}, "all kinds of steps")
    check_week(tap, steps)
    alone = [step.name for step in steps if step.name not in
             learn.lesson_of(step).read_text(encoding="utf-8").rpartition("**Next:**")[2]]
    tap.ok(not alone, "each step is named by the last line of its page", alone)
    names = {step.name for step in steps}
    left = [path.name for folder in ("solutions", "wrong") for path in
            (learn_steps.LEARN / folder).iterdir()
            if re.match(r"\d\d\.\d[a-z]", path.name)[0] not in names]
    tap.ok(not left, "every solution and wrong answer belongs to a step", left)


def check_week(tap, steps):
    """The path of a week promises that one writes everything oneself."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    week = re.search(r"\*\*A week\*\*.*?minutes: ([\d. ]+) -->", text)[1].split()
    for step in (step for step in steps if step.kind == "free"):
        number = step.name[:4]
        tap.ok(number in week or number[:2] in week,
               f"{step.name}, from an empty file, stands on a page of the week's path", number)


def check_traces(tap, build):
    for path in sorted(learn_steps.LEARN.glob("*/trace.txt")):
        command, _, printed = path.read_text(encoding="utf-8").partition("\n")
        words = command.removeprefix("$ ").split()
        programs = list(pathlib.Path(build).glob(f"*/{words[0]}")) if build else []
        if not programs:
            tap.skip(f"{path.parent.name}/trace.txt", "the program is not built")
            continue
        done = subprocess.run([str(programs[0]), *words[1:]], cwd=ROOT, capture_output=True,
                              text=True, check=False)
        tap.ok(done.returncode == 0 and done.stdout.strip() == printed.strip(),
               f"{path.parent.name}/trace.txt is what the program prints", done.stdout)


def check_mean_of_v(tap, build):
    """What step 01.5b takes for right is what the program says of the mean of V."""
    programs = list(pathlib.Path(build).glob("*/naive")) if build else []
    if not programs:
        tap.skip("01.5b and the program", "the program is not built")
        return
    answers = learn_steps.typed_answers(learn_steps.find_step("01.5b").solution())
    scale, ratio, _, causal = (learn_steps.value_of(text) for text in answers.values())
    with tempfile.TemporaryDirectory() as folder:
        made, rows = pathlib.Path(folder, "mean_of_v.so"), pathlib.Path(folder, "rows.jsonl")
        subprocess.run([*learn_steps.compiler(), "-O2", "-shared", "-fPIC", f"-I{ROOT / 'common'}",
                        f"-I{ROOT / 'common/attention'}", ROOT / "docs/examples/mean_of_v.c",
                        "-o", made, "-lm"], check=True)

        def run(*flags):
            return subprocess.run([programs[0], "--variant-so", made, "-H", "1", "-N", "64", "-d",
                                   "16", "--json", rows, *flags], capture_output=True, text=True,
                                  check=False)

        passes, fails = run("--scale", str(scale)), run("--scale", str(scale * 10))
        found = [json.loads(line)["bound_ratio"] for line in rows.read_text().split("\n")[:-1]]
        tap.ok(passes.returncode == 0 and fails.returncode == 1 and
               abs(found[0] / ratio - 1) < 0.05,
               "01.5b: the largest scale and its error / bound", (passes, fails, found))
        for flags, hint in ((("--scale", "0.001"), "the scores are ignored"),
                            (("--scale", "0.00001"), "the scores are ignored"),
                            ((), "the scores are ignored"),
                            (("--causal",), "scores and mask are ignored"),
                            (("--scale", "0.000000001", "--causal"), "without the mask")):
            said = run(*flags).stderr
            tap.ok("hint: O, lse: " in said and hint in said,
                   f"01.5b: the hint of the mean of V, {' '.join(flags)}", said)
        masked = run("--scale", "0.000000001", "--causal")
        wrong = re.search(r"O is wrong.*?(\d+) of 64 rows", masked.stderr, re.S)
        tap.ok(masked.returncode == 1 and wrong and 64 - int(wrong[1]) == causal,
               "01.5b: rows that are right under a mask", masked)


def check_limits_can_fail(tap):
    """The checks above see a bad step."""
    good = "a\n    /* YOUR CODE: 2 lines are enough */\n%s    /* END OF YOUR CODE */\nb\n"
    tap.ok(not hole_limits(good % "    x;\n"), "a good hole")
    tap.ok(hole_limits(good % "    x;\n    x;\n    x;\n"), "a hole that is too long")
    tap.ok(hole_limits("a"), "no hole")
    for text, value in (("4*64", 256), ("2**10", 1024), ("-1e3 / 4", -250), ("(1+1)*2", 4),
                        ("log(exp(2))", 2), ("2^10", 1024), ("3 * 2 ^ 2", 12), ("ln(exp(2))", 2),
                        ("sqrt(-1)", None), ("exp(1e9)", None), ("abs(1)", None),
                        ("four", None), ("2**99999", None), ("__import__('os')", None),
                        ("1/0", None), ("", None)):
        tap.ok(learn_steps.value_of(text) == value, f"typed: '{text}'",
               learn_steps.value_of(text))
    words = ["--key", "order", "--order", "B A|A B C"]
    for found, code in (("B A", ""), ("A, B, C", ""), ("A B", "-"), ("A A", "letters"),
                        ("abc", ""), ("ab", "-"), ("", "empty")):
        verdict = learn_steps.judge_typed(words, {"order": found})
        tap.ok(verdict.code == code and verdict.passed == (code == ""), f"order '{found}'", verdict)
    verdict = learn_steps.judge_typed(["--key", "order", "--order", "A B C|B A C"],
                                      {"order": "A C B"})
    tap.ok("'C' is the first letter" in verdict.text, "an order: from where it is wrong", verdict)
    for answer, found, right in (("4095", "4096", False), ("4095", "2^12 - 1", True),
                                 ("3*0.1*10", "3", True), ("2.5", "2.501", True),
                                 ("2.5", "2.51", False), ("100 --within 1%", "101", True)):
        verdict = learn_steps.judge_typed(["--key", "n", "--answer", *answer.split()], {"n": found})
        tap.ok(verdict.passed == right, f"{found} for {answer}: {right}", verdict)
    lines = "a\n  b\nc\n"
    for new in (["d", "  e"], ["    d", "      e"]):
        tap.ok(learn_steps.exchange(lines, ["b"], new, "") == "a\n  d\n    e\nc\n",
               "lines exchanged; indentation does not tell the place", new)
    try:
        learn_steps.exchange(lines + "b\n", ["b"], ["d"], "here")
        tap.ok(False, "a line that stands there twice is refused")
    except ValueError as error:
        tap.ok("2 places" in str(error), "a line that stands there twice is refused", error)


# What a learner's function may do: body of scores(), words of the verdict
BEHAVIOUR = [
    ("crash", "*(volatile float *)0 = 1.0f;", "SIGSEGV"),
    ("time", "for (volatile int i = 0; i < 2; i += 0) {}", "did not finish"),
    ("exit", "exit(0);", "before the case was judged"),
    ("input_changed", "((float *)K)[0] = 3.0f;", "changed its input K"),
    ("past_the_end", "S[Nq * Nk] = 1.0f;", "past the end of S"),
    ("compile", "this is not C;", "does not compile"),
    ("compile", "}\nint main(void)\n{\n    return 0;", "Take yours out"),
    ("compile", "score();\n}\nvoid other(void)\n{", "no function score"),
    ("-", "S[0] = 5.0f;", "found 5"),
    ("-", "S[0] = K[Nk * d] + 1.0f;", "behind the end of an array"),
]


def check_behaviour(tap):
    step = learn_steps.find_step("01.1a")
    step.header["time"] = "1"
    head = ("#include <stdio.h>\n#include <stdlib.h>\nvoid scores(const float *Q, const float *K, "
            "float *S, int Nq, int Nk, int d)\n{\n    %s\n}\n")
    for code, body, sentence in BEHAVIOUR:
        verdict, said = judge_text(step, head % body, ())
        tap.ok(verdict.code == code and sentence in verdict.text,
               f"code that does: {body.splitlines()[0]}", f"{verdict}\n{said}")
    verdict, said = judge_text(step, (head % "").replace("int Nq, int Nk", "long Nq, int Nk"), ())
    tap.ok(verdict.code == "compile" and "conflicting types" in said,
           "other arguments than the examiner gives are an error", (verdict, said))
    start = step.solution().index("{", step.solution().index("void scores(")) + 1
    verdict, said = judge_text(step, "#include <unistd.h>\n" + step.solution()[:start] +
                               "usleep(1200000);" + step.solution()[start:], ())
    tap.ok(verdict.passed, "a second is one of the processor: who waits for it has not failed",
           (verdict, said))
    sums = learn_steps.find_step("03.4b")
    for line in ('#pragma GCC optimize("O3")', '_Pragma("GCC optimize (\\"O3\\")")',
                 '_Pragma("GCC optimize \\"O3\\"")', "#pragma float_control(precise, off)",
                 '__attribute__((optimize ("associative-math")))',
                 '__attribute__((__optimize__("O3")))'):
        verdict, _ = judge_text(sums, sums.stub().replace("void query", line + "\nvoid query"), ())
        tap.ok(verdict.code == "compiler_options", f"03.4b: {line} is no answer", verdict)
    hops = learn_steps.find_step("06.6a")
    verdict, _ = judge_text(hops, hops.stub(), ())
    tap.ok(verdict.text.endswith("*down: expected 0, found 7.") and "*up is right" in verdict.text,
           "a single number has no place", verdict)
    tiles = learn_steps.find_step("03.8a")
    verdict, _ = judge_text(tiles, tiles.stub(), ())
    tap.ok("expected SKIP, found MASKED" in verdict.text, "a value has the step's name", verdict)
    ring = learn_steps.find_step("06.2a")
    verdict, _ = judge_text(ring, dict(ring.wrong_answers())["one_hop_too_many"], ())
    tap.ok("made 2 hops; G - 1 is 1." in verdict.text, "a sentence with counts", verdict)
    _, said = judge_text(step, head % 'printf("right here\\n");', ())
    tap.ok("    | right here" in said, "what it prints is shown, and is no verdict", said)
    verdict, said = judge_text(step, head % 'for (;;)\n        puts("again and again");', ())
    tap.ok(verdict.code in ("crash", "time") and len(said) < 20000,
           "a printf in an endless loop is cut", verdict)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "a.c")
        probe = pathlib.Path(folder, "p.c")
        probe.write_text("int main(void)\n{\n    return 0;\n}\n", encoding="utf-8")
        good, _ = learn_steps.run_compiler([*learn_steps.compiler(), *learn_steps.ASAN, probe, "-o",
                                            pathlib.Path(folder, "p")])
        if not good:
            tap.skip("--asan", "the compiler has no sanitizer")
            return
        for body, sentence in (
                ("float *x = malloc(4);\n    S[0] = x[Nq];\n    free(x);",
                 "behind the end of an array, which has 4 bytes\nallocated:\n  in scores, a.c:5"),
                ("S[-Nq] = K[0];", "the address is 16 bytes before S, which has 64 bytes")):
            file.write_text(head % body, encoding="utf-8")
            verdict = learn_steps.judge(step, file, folder, asan=True, **SILENT)
            tap.ok(verdict.code == "sanitizer" and "of size 4\n  in scores, a.c:" in verdict.text
                   and sentence in verdict.text, f"--asan: {sentence.splitlines()[0]}", verdict)
        tail = learn_steps.find_step("03.4a")
        file.write_text(tail.stub(), encoding="utf-8")
        verdict = learn_steps.judge(tail, file, folder, asan=True, **SILENT)
        tap.ok("in attend_tiles, a.c:" in verdict.text and "0 bytes behind the end of K," in
               verdict.text, "03.4a --asan: the line, the array, and how far behind its end",
               verdict)


def processor_seconds(do, *words):
    """What a command costs on a quiet machine; a busy one does not change it much."""
    before = os.times()
    do(*words)
    after = os.times()
    return after.children_user + after.children_system - before[2] - before[3]


class Engine:
    """./ladder learn with a folder of its own for the learner's files."""

    def __init__(self, folder):
        self.my = pathlib.Path(folder, "my")
        self.environment = dict(os.environ, LADDER_MY=str(self.my))

    def run(self, *words, cwd=ROOT):
        return subprocess.run([str(ROOT / "ladder"), "learn", *words], cwd=cwd, text=True,
                              capture_output=True, timeout=60, env=self.environment, check=False)

    def files(self):
        return {path: path.read_bytes() for path in self.my.rglob("*") if path.is_file()}


def check_work(tap, engine):
    """A learner's way through one step."""
    answer = engine.my / "01.1a" / "answer.c"
    step = learn_steps.find_step("01.1a")
    done = engine.run()
    tap.ok(done.returncode == 0 and "next: ./ladder learn 01.1a" in done.stdout and
           not engine.my.exists(), "the map, and nothing is written", done)
    seconds = processor_seconds(engine.run)
    tap.ok(seconds < 1, "it starts in less than a second", seconds)
    done = engine.run("01.1a")
    tap.ok(done.returncode == 1 and answer.read_text(encoding="utf-8") == step.stub() and
           "WRONG" in done.stdout and "gdb --args" in done.stdout, "the first call gives the stub",
           done)
    done = engine.run("solution", "01.1a")
    tap.ok(done.returncode == 1 and "sqrtf" not in done.stdout, "no solution before it is passed",
           done)
    tap.ok("sqrtf" in engine.run("solution", "01.1a", "--give-up").stdout, "--give-up shows it")
    hints = [engine.run("hint").stdout for _ in range(4)]
    tap.ok([f"hint {k} of 3" in text for k, text in zip((1, 2, 3, 3), hints)] == [True] * 4 and
           all(step.hints()[k] in " ".join(hints[k].split()) for k in range(3)),
           "one more hint each time", hints)
    wrong = step.wrong_answers()[0][1]
    answer.write_text(wrong, encoding="utf-8")
    done = engine.run("01.1a")
    tap.ok(done.returncode == 1 and answer.read_text(encoding="utf-8") == wrong and
           "without the scale" in done.stdout, "a file of the learner is never overwritten", done)
    answer.write_text(step.solution(), encoding="utf-8")
    done = engine.run("01.1a")
    tap.ok(done.returncode == 0 and "passed" in done.stdout and "sqrtf" in done.stdout,
           "passed: the solution is shown", done)
    seconds = processor_seconds(engine.run, "check", "03.3e", str(
        learn_steps.find_step("03.3e").solution_path()))
    # of the processor: 3 to 4 alone, 5.3 beside programs that fill the machine
    tap.ok(seconds < 10, "the longest check takes less than ten seconds", seconds)
    tap.ok("[x] 01.1a" in engine.run().stdout and
           json.loads((engine.my / "progress.json").read_text(encoding="utf-8"))["passed"],
           "the map knows it")
    done = engine.run("reset")
    tap.ok(done.returncode == 0 and answer.read_text(encoding="utf-8") == step.stub() and
           answer.with_name("old-1-answer.c").read_text(encoding="utf-8") == step.solution() and
           "[x] 01.1a" not in engine.run().stdout, "reset keeps the old file", done)


def check_next(tap, engine):
    """The map and a passed step send on from where the learner works."""
    step = learn_steps.find_step("04.2a")
    first = engine.run("04.2a")
    tap.ok("next: ./ladder learn 04.2a, a step of docs/04_flash_backward/2_delta.md" in
           engine.run().stdout, "what is begun and not passed is next", first)
    (engine.my / "04.2a" / "answer.c").write_text(step.solution(), encoding="utf-8")
    done = engine.run("04.2a")
    following = re.search(r"next: \./ladder learn (\S+),", done.stdout)[1]
    tap.ok(following == "04.2b", "after a step of stage 04 the next one is not in stage 01", done)
    tap.ok(f"[>] {following} " in engine.run().stdout, "the map says the same", following)
    steps = learn_steps.read_steps()
    progress = {"passed": {step.name: "" for step in steps if step.name != "01.1a"},
                "last": "06.8a"}
    tap.ok(learn.next_step(steps, progress).name == "01.1a", "behind the last one: those left out")


def check_bug(tap, engine):
    """The sentence of a bug comes with the second wrong version, or after a hint."""
    step, answer = learn_steps.find_step("02.2c"), engine.my / "02.2c" / "answer.c"
    sentence = "Only the largest part"
    first, again = engine.run("02.2c").stdout, engine.run("02.2c").stdout
    tap.ok("is wrong at" in first and sentence not in first + again and
           "What the bug is, is said" in again, "a bug: what is wrong, not why", (first, again))
    checked = engine.run("check", "02.2c", str(answer)).stdout
    tap.ok(sentence in checked and "tree_remainder" not in checked, "check says why", checked)
    program = answer.with_name("check")
    done = subprocess.run([str(program), "-N", "192"], capture_output=True, text=True, check=False)
    tap.ok("is wrong at" in done.stdout and sentence not in done.stdout and
           "tree_remainder" not in done.stdout, "by hand: neither code nor sentence", done)
    answer.write_text(step.wrong_answers()[0][1] + "\n", encoding="utf-8")
    tap.ok(sentence in engine.run("02.2c").stdout, "a second wrong version: why")
    answer.write_text(step.stub().replace("softmax_merge(waiting[level], carry)", "carry"),
                      encoding="utf-8")
    done = engine.run("02.2c").stdout
    tap.ok(f"The bug that the step began with: {sentence}" in " ".join(done.split()),
           "a second wrong version that nobody knows: the bug of the stub", done)
    for other in (s for s in learn_steps.read_steps() if s.kind == "bug"):
        tap.ok(learn.bug_of(other), f"{other.name}: the bug of the stub has a sentence")
    engine.run("reset", "02.2c")
    tap.ok(sentence not in engine.run("02.2c").stdout, "reset forgets the first one")
    engine.run("hint", "02.2c")
    tap.ok(sentence in engine.run("02.2c").stdout, "after a hint: why")
    answer.write_text(step.solution(), encoding="utf-8")
    done = engine.run("02.2c")
    tap.ok(done.returncode == 0 and done.stdout.count("\n-") == 1 and "-    /* " not in done.stdout,
           "passed: the changed line is shown", done)
    tap.ok(f"In fact: {step.fact()}" in " ".join(done.stdout.split()),
           "passed: what was to be predicted is answered", done)


def check_kernel(tap, engine):
    """What a step on the GPU leaves behind is the learner's file and the program of the case."""
    if simt_library.missing():
        tap.skip("the folder of a step on the GPU", simt_library.missing() + " is missing")
        return
    done = engine.run("02.4a")
    left = sorted(path.name for path in (engine.my / "02.4a").iterdir())
    tap.ok(left == ["answer.cu", "check"], "the folder of a step on the GPU", (left, done))


def check_trace_copy(tap, engine):
    done = engine.run("1.3c")
    copied = (engine.my / "01.3c" / "trace.txt").read_text(encoding="utf-8")
    tap.ok(copied.startswith("$ build/demo/01_naive/naive -N 4") and "my/01.3c/trace.txt" in
           done.stdout, "1.3c is 01.3c; its trace stands beside the answer", (done, copied[:80]))


def check_commands(tap, engine, folder):
    step, before = learn_steps.find_step("01.1a"), engine.files()
    good, bad = pathlib.Path(folder, "good.c"), pathlib.Path(folder, "bad.c")
    good.write_text(step.solution(), encoding="utf-8")
    bad.write_text(step.stub(), encoding="utf-8")
    for words, status, sentence in (
            (("check", "01.1a", "good.c"), 0, "passed"), (("check", "01.1a", "bad.c"), 1, "WRONG"),
            (("check", "01.1a", "none.c"), 2, "no file 'none.c'"),
            (("check", "01.1a"), 2, "takes 2"), (("hint", "01.1a", "3"), 2, "takes 0 or 1"),
            (("check", "99.1", "good.c"), 2, "unknown step '99.1'"), (("99.1",), 2, "unknown step"),
            (("--fast",), 2, "unknown option '--fast'"),
            (("01.1a", "more"), 2, "'more'"), (("01.1a", "--give-up"), 2, "--give-up belongs"),
            (("reset", "01.1a", "3"), 2, "takes 0 or 1"),
            (("doctor",), 0, "Steps can be done here"), (("--help",), 0, "./ladder learn hint")):
        done = engine.run(*words, cwd=folder)
        text = done.stderr if status == 2 else done.stdout
        tap.ok(done.returncode == status and sentence in text and
               (status < 2 or text.count("\n") == 1), f"learn {' '.join(words)}: {status}", done)
    tap.ok(engine.files() == before, "none of them wrote anything")
    fresh = Engine(pathlib.Path(folder, "fresh"))
    done = fresh.run("hint")
    tap.ok(done.returncode == 2 and "no step was begun" in done.stderr, "no step to hint at", done)
    done = subprocess.run([str(ROOT / "ladder"), "learn", "01.1a"], capture_output=True, text=True,
                          env=dict(engine.environment, LADDER_MY=str(good)), check=False)
    tap.ok(done.returncode == 2 and done.stderr.count("\n") == 1 and str(good) in done.stderr,
           "LADDER_MY is a file: one sentence", done)
    done = subprocess.run([str(ROOT / "ladder"), "learn", "doctor"], capture_output=True, text=True,
                          env=dict(engine.environment, CC="no-such-compiler"), check=False)
    tap.ok(done.returncode == 1 and "MISSING" in done.stdout, "doctor sees no compiler", done)


def check_interrupt(tap, engine):
    """watch: judges what is saved; Ctrl-C ends it and leaves the files as they are."""
    step, answer = learn_steps.find_step("01.1a"), engine.my / "01.1a" / "answer.c"
    process = subprocess.Popen([str(ROOT / "ladder"), "learn", "watch", "01.1a"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=engine.environment, start_new_session=True)
    line = ""
    for line in process.stdout:
        if "waiting for" in line:
            break
    answer.write_text(step.wrong_answers()[1][1], encoding="utf-8")
    for line in process.stdout:
        if "waiting for" in line:
            break
    before = engine.files()
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    tap.ok("waiting for" in line and process.returncode == 130 and engine.files() == before,
           "watch judges a saved file, Ctrl-C leaves all as it was", (process.returncode, said))


def main():
    tap = Tap()
    steps = learn_steps.read_steps()
    check_steps(tap, steps)
    check_stages(tap, steps)
    check_traces(tap, sys.argv[1] if len(sys.argv) > 1 else None)
    check_mean_of_v(tap, sys.argv[1] if len(sys.argv) > 1 else None)
    check_limits_can_fail(tap)
    check_behaviour(tap)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(folder)
        check_work(tap, engine)
        check_next(tap, engine)
        check_bug(tap, engine)
        check_kernel(tap, engine)
        check_trace_copy(tap, engine)
        check_commands(tap, engine, folder)
        check_interrupt(tap, engine)
    tap.ok(shutil.which("git") is None or subprocess.run(
        ["git", "-C", str(ROOT), "check-ignore", "-q", "my/x"], check=False).returncode in (0, 128),
        "git ignores my/")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
