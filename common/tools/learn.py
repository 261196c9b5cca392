#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""learn.py: ./ladder learn: one small step after the other, judged while one works.

    ./ladder learn                         the map: what is passed, what is next
    ./ladder learn STEP [--asan]           begin or check a step; your file is my/STEP/answer.c
    ./ladder learn watch [STEP] [--asan]   check it whenever the file is saved; Ctrl-C ends
    ./ladder learn hint [STEP]             one more of three hints
    ./ladder learn solution [STEP]         after the step is passed, or with --give-up
    ./ladder learn reset [STEP]            begin again; your file is kept beside the new one
    ./ladder learn check STEP FILE         judge any file, write nothing
    ./ladder learn doctor                  what this machine lacks

Everything of a learner stands in my/, which git ignores; LADDER_MY names another folder.
Exit status: 0 passed (or nothing to judge), 1 not passed, 2 bad usage or no compiler, 130 Ctrl-C.

Interface: main(words) returns the exit status. Steps are read and judged by learn_steps.py.
"""
import datetime
import difflib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

import learn_steps
import simt_library
import tool
from learn_steps import Usage

MY = pathlib.Path(os.environ.get("LADDER_MY") or learn_steps.ROOT / "my")
STAGES = {"01": "naive attention", "02": "tiled softmax", "03": "flash forward",
          "04": "flash backward", "05": "sliding window", "06": "ring and burst"}


# --- what the learner has done -------------------------------------------------------------------

def load_progress():
    progress = {"passed": {}, "hints": {}, "wrong": {}, "last": ""}
    try:
        progress.update(json.loads((MY / "progress.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        pass
    except (ValueError, TypeError):
        raise Usage(f"{MY / 'progress.json'} is damaged; delete it to begin a new one") from None
    return progress


def write_whole(path, text):
    """The file appears when it is complete, so that Ctrl-C leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def save_progress(progress):
    write_whole(MY / "progress.json", json.dumps(progress, indent=1) + "\n")


def answer_path(step):
    return MY / step.name / step.answer_name


def shown(path):
    """A path as the learner would type it from the top of the repository."""
    try:
        return str(pathlib.Path(path).relative_to(learn_steps.ROOT))
    except ValueError:
        return str(path)


FAREWELL = """\
That was the last step. You can now write exact attention and its gradient from an empty file, in
tiles, with any mask, and spread both over ranks. You know where NaN comes from, you have found bugs
that libraries were shipped with, and you can count on paper what a kernel reads. What is left: a
kernel of your own (./ladder simt runs it), and docs/lab."""


def lesson_of(step):
    """The page whose number the step carries: 03.2a belongs to page 03.2."""
    stage, page = step.name[:2], step.name[3]
    return next(learn_steps.ROOT.glob(f"docs/{stage}_*/{page}_*.md"))


# --- commands ------------------------------------------------------------------------------------

def next_step(steps, progress):
    """The first open one from where the learner works. Behind the last step come those left out."""
    here = next((n for n, step in enumerate(steps) if step.name == progress["last"]), 0)
    return next((step for step in steps[here:] + steps[:here]
                 if step.name not in progress["passed"]), None)


def way_on(following):
    if not following:
        return FAREWELL
    return f"next: ./ladder learn {following.name}, a step of {shown(lesson_of(following))}"


def show_map():
    steps, progress = learn_steps.read_steps(), load_progress()
    following = next_step(steps, progress)
    stage = ""
    for step in steps:
        if step.name[:2] != stage:
            stage = step.name[:2]
            of_stage = [s for s in steps if s.name[:2] == stage]
            done = sum(s.name in progress["passed"] for s in of_stage)
            print(f"\n{stage} {STAGES.get(stage, '')}: {done} of {len(of_stage)} passed")
        mark = ("x" if step.name in progress["passed"] else
                ">" if step is following else
                "." if (MY / step.name).is_dir() else " ")
        print(f"  [{mark}] {step.name} {step.title:48} {step.minutes:3} minutes")
    print("\n[x] passed, [.] begun, [>] next. Step 03.2a belongs to page 03.2.")
    print(way_on(following))
    return 0


def begin(step):
    """The stub in the learner's folder, unless a file is there. What the learner has to know."""
    answer, stub = answer_path(step), step.stub()
    print(step.task.strip() + "\n")
    print(f"The lesson: {shown(lesson_of(step))}\n")
    if step.trace():
        print(f"The trace: {shown(answer.with_name('trace.txt'))}\n")
    if stub is None:
        answer.parent.mkdir(parents=True, exist_ok=True)
        print(f"This step has no stub. Write {shown(answer)}, then call this again.")
        return
    write_whole(answer, stub)
    print(f"Edit {shown(answer)}, then call this again "
          f"(or ./ladder learn watch {step.name}).")
    if step.kind != "typed":
        print("A check compiles your file and a small examiner, about a second each time; nothing "
              "else is built.")
    print()


def put_trace(step):
    """The trace that a task asks to read, beside the answer."""
    place = answer_path(step).with_name("trace.txt")
    if step.trace() and not place.exists():
        write_whole(place, step.trace())


def may_say_why(step, progress, text):
    """To find a bug is the task. What the bug is, is said of a second wrong version, or after a
    hint."""
    if step.kind != "bug" or progress["hints"].get(step.name):
        return True
    now = hashlib.sha256(text).hexdigest()
    first = progress["wrong"].setdefault(step.name, now)
    save_progress(progress)
    return now != first


def bug_of(step):
    """What the examiner says of the bug that the step began with."""
    with tempfile.TemporaryDirectory() as folder:
        stub = pathlib.Path(folder, step.answer_name)
        stub.write_text(step.stub(), encoding="utf-8")
        return learn_steps.judge(step, stub, folder, say=lambda line: None).why


def explain_failure(step, verdict, program, say_why=True):
    print()
    why = verdict.why
    if step.kind == "bug" and verdict.code != "compile" and not why:
        why = f"The bug that the step began with: {bug_of(step)}"
    for line in tool.lines_of(verdict.text) + (tool.lines_of(why) if say_why else []):
        print(textwrap.fill(line, 96, initial_indent="  ", subsequent_indent="  "))
    if why and not say_why:
        print("  What the bug is, is said when your next version is wrong, too, or after a hint.")
    print(f"\n  a hint: ./ladder learn hint {step.name}")
    if program and verdict.flags:
        flags = " ".join(verdict.flags)
        print(f"  this case by hand: {program} {flags}\n"
              f"  in the debugger:   gdb --args {program} {flags}")


def check_mine(step, asan=False):
    answer = answer_path(step)
    print(f"{step.name} {step.title}: {shown(answer)}")
    verdict = learn_steps.judge(step, answer, answer.parent, asan)
    if not verdict.passed:
        say_why = may_say_why(step, load_progress(), answer.read_bytes())
        explain_failure(step, verdict, shown(answer.with_name("check")), say_why)
        return 1
    progress = load_progress()
    progress["passed"].setdefault(step.name, datetime.date.today().isoformat())
    save_progress(progress)
    print("\npassed\n")
    if step.fact():
        print(textwrap.fill(f"In fact: {step.fact()}", 96) + "\n")
    show_solution(step)
    print(way_on(next_step(learn_steps.read_steps(), progress)))
    return 0


def work_on(step, asan=False):
    progress = load_progress()
    if progress["last"] != step.name:
        progress["last"] = step.name
        save_progress(progress)
    put_trace(step)
    if not answer_path(step).exists():
        begin(step)
        if not answer_path(step).exists():
            return 1
    return check_mine(step, asan)


def last_step(words):
    name = words[0] if words else load_progress()["last"]
    if not name:
        raise Usage("no step was begun yet; ./ladder learn lists them")
    return learn_steps.find_step(name)


def watch(step, asan=False):
    answer, seen = answer_path(step), None
    work_on(step, asan)
    while True:
        now = answer.stat().st_mtime_ns if answer.exists() else None
        if seen is None:
            print(f"\nwaiting for {shown(answer)} to be saved; Ctrl-C ends", flush=True)
            seen = now or 0
        elif now and now != seen:
            print()
            if work_on(step, asan) == 0:
                return 0
            seen = None
        time.sleep(0.3)


def hint(step):
    progress, hints = load_progress(), step.hints()
    given = min(progress["hints"].get(step.name, 0) + 1, len(hints))
    progress["hints"][step.name] = given
    save_progress(progress)
    print(f"{step.name} {step.title}, hint {given} of {len(hints)}\n")
    print(textwrap.fill(hints[given - 1], 96))
    if given == len(hints):
        print(f"\nThat was the last one. ./ladder learn solution {step.name} --give-up shows the "
              "solution.")
    return 0


def hole_of(text):
    """What stands in the hole, or the text without its first comment."""
    found = learn_steps.HOLE.search(text)
    if found:
        return tool.lines_of(textwrap.dedent(found[2]).rstrip())
    return [line for line in tool.lines_of(text.rstrip()) if not line.startswith("# ")]


def show_solution(step):
    """Yours beside the suite's where the terminal is wide enough; of a bug, what was changed."""
    answer = answer_path(step)
    yours = answer.read_text(encoding="utf-8", errors="replace") if answer.is_file() else ""
    if step.kind == "bug":
        changed = difflib.unified_diff(tool.lines_of(step.stub()), tool.lines_of(step.solution()),
                                       n=1, lineterm="")
        print("the suite's mending:\n" + "\n".join(list(changed)[2:]) + "\n")
        return
    left, right = hole_of(yours), hole_of(step.solution())
    width = max([len(line) for line in left] + [10]) + 2
    if left and width + max(len(line) for line in right) < shutil.get_terminal_size().columns:
        print("yours".ljust(width) + "| the suite's")
        for row in range(max(len(left), len(right))):
            print((left[row] if row < len(left) else "").ljust(width) +
                  ("| " + right[row] if row < len(right) else "|"))
    else:
        print("\n".join(["yours:", *left, "", "the suite's:", *right]))
    print("" if step.kind == "hole" else f"\nin whole: {shown(step.solution_path())}\n")


def solution(step, give_up):
    if step.name not in load_progress()["passed"] and not give_up:
        print(f"{step.name} is not passed yet. A hint: ./ladder learn hint {step.name}. To see the "
              f"solution now: ./ladder learn solution {step.name} --give-up")
        return 1
    show_solution(step)
    return 0


def reset(step):
    answer, progress = answer_path(step), load_progress()
    if answer.exists():
        number = 1
        while answer.with_name(f"old-{number}-{answer.name}").exists():
            number += 1
        old = answer.with_name(f"old-{number}-{answer.name}")
        os.rename(answer, old)
        print(f"your file is now {shown(old)}")
    progress["hints"].pop(step.name, None)
    progress["wrong"].pop(step.name, None)
    progress["passed"].pop(step.name, None)
    save_progress(progress)
    begin(step)
    return 0


def check_file(step, name, asan=False):
    """Judges a file named from where the caller stands; writes only in a temporary folder."""
    file = pathlib.Path(os.environ.get("LADDER_FROM", "."), name)
    if not file.is_file():
        raise Usage(f"there is no file '{name}'")
    with tempfile.TemporaryDirectory() as folder:
        verdict = learn_steps.judge(step, file, folder, asan)
    if verdict.passed:
        print("passed")
        return 0
    explain_failure(step, verdict, None)
    return 1


def doctor():
    """What is here, what is missing, and what for."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "a.c")
        source.write_text("#include <math.h>\nint main(int c, char **v)\n"
                          "{\n    (void)v;\n    return exp(c) < 1.0;\n}\n", encoding="utf-8")

        def compiles(*flags):
            done = subprocess.run([*learn_steps.compiler(), *flags, str(source), "-o",
                                   str(source.with_suffix("")), "-lm"], capture_output=True,
                                  check=False)
            return done.returncode == 0 and subprocess.run(
                [str(source.with_suffix(""))], check=False, capture_output=True).returncode == 0

        try:
            checks = [("C compiler", compiles("-std=gnu11"), "every step in C", True),
                      ("AddressSanitizer", compiles(*learn_steps.ASAN), "--asan", False)]
        except Usage as error:
            checks = [("C compiler", False, f"every step in C: {error}", True)]
    MY.mkdir(parents=True, exist_ok=True)
    checks += [("gdb", shutil.which("gdb"), "looking into a case that fails", False),
               ("clang", not simt_library.missing(),
                "steps on the GPU, which need no GPU: clang, llvm, libboost-context-dev", False),
               ("meson, ninja", shutil.which("meson") and shutil.which("ninja"),
                "./ladder build: the programs of the stages, for steps that run one", False),
               (f"writing to {shown(MY)}", os.access(MY, os.W_OK), "your files", True)]
    for name, good, purpose, needed in checks:
        state = "here" if good else "MISSING" if needed else "not here"
        print(f"  {name:20} {state:9} {purpose}")
        bad |= needed and not good
    print("Something that every step needs is missing." if bad else "Steps can be done here.")
    return 1 if bad else 0


def main(words):
    words = list(words)
    asan = "--asan" in words
    give_up = "--give-up" in words
    names = [word for word in words if word not in ("--asan", "--give-up")]
    command = names.pop(0) if names else "map"
    takes = {"map": (0, 0), "check": (2, 2), "watch": (0, 1), "hint": (0, 1), "reset": (0, 1),
             "solution": (0, 1), "doctor": (0, 0)}
    if command in ("--help", "-h", "help"):
        print(__doc__.partition("\n\n")[2].partition("\n\nInterface")[0])
        return 0
    bad = [word for word in names if word.startswith("-")]
    if command.startswith("-") or bad:
        raise Usage(f"unknown option '{(bad or [command])[0]}'; accepted are --asan and --give-up")
    if give_up and command != "solution":
        raise Usage("--give-up belongs to: ./ladder learn solution STEP --give-up")
    if command not in takes:
        if names:
            raise Usage(f"'{names[0]}' behind {command}: accepted is ./ladder learn STEP [--asan]")
        return work_on(learn_steps.find_step(command), asan)
    least, most = takes[command]
    if not least <= len(names) <= most:
        raise Usage(f"{command} takes {least}{'' if least == most else f' or {most}'} "
                    f"word{'' if most == 1 else 's'}, found {len(names)}; ./ladder learn --help")
    if command in ("map", "doctor"):
        return show_map() if command == "map" else doctor()
    if command == "check":
        return check_file(learn_steps.find_step(names[0]), names[1], asan)
    step = last_step(names)
    if command == "watch":
        return watch(step, asan)
    if command == "hint":
        return hint(step)
    return reset(step) if command == "reset" else solution(step, give_up)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Usage as error:
        print(f"ladder learn: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"ladder learn: {error.filename or 'a file'}: {error.strerror}; your files stand in "
              f"{MY}, which has to be a folder that can be written", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("\nstopped; your files are as they were", file=sys.stderr)
        sys.exit(130)
