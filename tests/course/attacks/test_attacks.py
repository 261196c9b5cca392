#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_attacks.py: submissions that attack their judge, each with what must come of it.

    test_attacks.py --cc CC --include COMMON... --build DIR

As root (when this is root) and as a plain user. The program is `naive` in strict mode; attn_judge
runs submissions by the same functions. What attacks the compiler goes to attn_jail.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import shutil

import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(os.path.dirname(HERE))]
from tap import Tap

NOBODY = 65534
WRONG = r": O is wrong"
OK = r"^(?![\s\S]*GOT)"  # it is right, and it got nothing
DENIED = r"tried the system call {}, which a submission may not make"
NO_ACCESS = r"{}: Permission denied[\s\S]*"
# name in attacks.c, more flags, exit status (None: 0 or 1), what stderr must say
ATTACKS = [
    ("RIGHT", [], 0, OK),
    ("READ_JUDGE", [], 0, NO_ACCESS.format("judge")),
    ("WRITE_JUDGE", [], 0, NO_ACCESS.format("judge")),
    ("READ_JUDGE_BY_CALL", [], 1, DENIED.format("process_vm_readv")),
    ("TRACE_JUDGE", [], 1, DENIED.format("ptrace")),
    ("KILL_JUDGE", [], 1, DENIED.format("kill")),
    ("READ_KEY", [], 0, NO_ACCESS.format("key")),
    ("LOAD_SOLUTION", [], 1, r"solution\.so: cannot open[\s\S]*" + WRONG),
    ("READ_ITSELF", [], 0,
     NO_ACCESS.format("runner") + NO_ACCESS.format("maps") + NO_ACCESS.format("passwords")),
    ("FORK", [], 1, DENIED.format("clone")),
    ("FORK_BOMB_OF_VFORKS", [], 1, DENIED.format("vfork")),
    ("OWN_SESSION", [], 1, DENIED.format("setsid")),
    ("EXECUTE", [], 1, DENIED.format("execve")),
    ("SHELL", [], 1, r"tried a system call .* as system\(\) does"),
    ("SOCKET", [], 1, DENIED.format("socket")),
    ("IO_URING", [], 1, DENIED.format("io_uring_setup")),
    ("NAMESPACE", [], 1, DENIED.format("unshare")),
    ("HUNDRED_GIGABYTES", [], 1, r"errno = ENOMEM, as after an allocation that more than \d+ MiB"),
    ("TOUCH_MEMORY", ["--so-memory", "300"], 1, r"used more than 300 MiB: an allocation was ref"),
    ("RAISE_LIMITS", [], 0, r"limits: Operation not permitted"),
    ("WRITE_INPUT", [], 1, r"crashed with SIGSEGV .*wrote to its input K"),
    ("UNLOCK_INPUT", [], 1, r"input: Permission denied[\s\S]*wrote to its input K"),
    ("REPLACE_INPUT", [], 1, WRONG),
    ("UNMAP_OUTPUT", [], 1, WRONG),
    ("JUMP_OVER_THE_CANARY", [], 1, r"crashed with SIGSEGV|outside the outputs was written to"),
    ("WRITE_BEFORE_OUTPUT", [], 1, r"memory outside the outputs was written to"),
    ("EXIT", [], 1, r"ended the process with exit\(0\) instead of returning"),
    ("HIDE_A_CRASH", [], 1, r"ended the process with exit\(0\) instead of returning"),
    ("HIDE_A_DENIAL", [], 1, r"went on[\s\S]*" + WRONG),
    ("JUMP_OUT_OF_A_CRASH", [], 1, r"went on[\s\S]*" + WRONG),
    ("LEAVE_THREADS", ["--so-time", "20"], 0, r"all threads"),
    ("BOMB_OF_THREADS", ["--so-time", "2", "--so-memory", "200"], 1,
     r"not all threads|did not finish within 2 s"),
    ("CLOSE_EVERYTHING", [], 1, r"closed the descriptor of its judge's socket"),
    ("OPEN_EVERYTHING", [], 0, r"descriptors: Too many open files"),
    ("WRITE_EVERYWHERE", [], 1, r"wrote to its judge's socket"),
    ("WRITE_A_FILE", [], 0, NO_ACCESS.format("file")),
    ("SHOW_WHAT_IT_HAS", [], 0, OK),
    ("FLOOD", [], 0, r"attacks\.so printed:\n  \| \?\[2J[\s\S]*rest of its output is left out"),
    ("FORGE_A_BROKEN_JUDGE", [], 1, r"wrote to its judge's socket"),
    ("FORGE_AN_END", [], 1, WRONG),
    ("FLOOD_THE_JUDGE", ["--so-time", "0.5"], 1, r"did not finish within 0\.5 s"),
    ("SEND_TO_NOBODY", [], 1, r"message"),
    ("OLD_CALL", [], 1, r"by another processor's number|system call"),
    ("TRUNCATE", [], 1, DENIED.format("truncate")),
    ("STOP_ITSELF", ["--so-time", "0.5"], 1, r"did not finish within 0\.5 s"),
    ("HANG", ["--so-time", "0.5"], 1, r"did not finish within 0\.5 s"),
    ("SLEEP", ["--so-time", "0.5"], 1, r"did not finish within 0\.5 s"),
    ("GUESS_THE_SEED", ["--seed", "7"], 0, OK),
    ("SHARE_MEMORY", [], 0, r"hidden: Operation not permitted"),
    ("SEND_TO_SWAP", [], 0, r"hidden: Invalid argument"),
    ("HUGE_PAGES", [], 0, r"hidden: Operation not permitted"),
    ("FILL_PIPES", [], 0, r"pipe: Too many open files"),
    ("COPY_OF_INPUT", [], 0, NO_ACCESS.format("input")),
    ("END_FIRST_THREAD", [], 1, r"ended its first thread, without which its memory cannot be"),
    # the judge writes outputs between calls: the more heads, the longer
    ("WORK_BETWEEN_CALLS", ["-H", "8000", "--bench", "--warmup", "1", "--iters", "2"], 1, WRONG),
    ("NEVER_STAND_STILL", [], None, r"^$|do not stop when it has answered"),
    ("BOMB_OF_CLONES", ["--so-time", "5"], 1, r"it started more than 1024 threads"),
    ("FLOOD_AND_CLONE", ["--so-time", "5"], 1, r"it started more than 1024 threads"),
    ("CALL_OF_X32", [], 1, r"by another processor's number|system call"),
    ("USER_FAULTS", [], 1, DENIED.format("userfaultfd")),
    ("SECRET_MEMORY", [], 1, DENIED.format("memfd_secret|number 447")),
]
# where a chroot stands in for Landlock
NO_FILE = r"{}: No such file or directory[\s\S]*"
CHROOT = [("RIGHT", 0, OK), ("READ_KEY", 0, NO_FILE.format("key")),
          ("READ_JUDGE", 0, NO_FILE.format("judge")),
          ("LOAD_SOLUTION", 1, r"solution\.so: cannot open[\s\S]*" + WRONG),
          ("READ_ITSELF", 0, "".join(map(NO_FILE.format, ("runner", "maps", "passwords")))),
          ("WRITE_A_FILE", 0, NO_ACCESS.format("file")), ("FORK", 1, DENIED.format("clone"))]
CONSTRUCTORS = [("KILL_JUDGE", [], DENIED.format("kill")), ("FORK", [], DENIED.format("clone")),
                ("HANG", ["--so-time", "0.5"], r"did not finish within 0\.5 s"),
                ("HIDE_A_CRASH", [], r"exit\(0\) instead of returning"),
                ("TOUCH_MEMORY", ["--so-memory", "300"], r"used more than 300 MiB"),
                ("CLOSE_EVERYTHING", [], r"closed the descriptor of its judge's socket")]


def numbers():
    """{name: number} of the enum in attacks.c."""
    with open(os.path.join(HERE, "attacks.c"), encoding="utf-8") as f:
        text = re.search(r"enum \{\n    RIGHT = 1,\n([^}]*)\}", f.read()).group(1)
    return {name: n for n, name in enumerate(["RIGHT", *re.findall(r"\w+", text)], 1)}


class Court:
    """Program, runner and submissions in a folder that a plain user can read, too."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        os.chmod(folder, 0o755)
        for name in ("01_naive/naive", "common/course/attn_runner", "common/course/attn_jail",
                     "common/course/attn_course.so"):
            shutil.copy(os.path.join(args.build, name), folder)
        os.mkdir(os.path.join(folder, "include"))
        for name in ("attention/attn.h", "attention/attn_pairs.h", "tensor.h"):
            shutil.copy(os.path.join(args.include[0], name), os.path.join(folder, "include"))
        with open(os.path.join(folder, "teacher.key"), "w", encoding="utf-8") as f:
            f.write("the key\n")  # everybody may read it: the sandbox must not
        self.user, self.before = None, []

    def compile(self, tap, name, *flags):
        so = os.path.join(self.folder, name)
        done = subprocess.run(
            [*self.args.cc, "-std=gnu11", "-O1", "-fPIC", "-shared", "-fopenmp",
             f'-DFOLDER="{self.folder}"', *flags, *(f"-I{path}" for path in self.args.include),
             os.path.join(HERE, "attacks.c"), "-o", so, "-lm"], capture_output=True, text=True)
        tap.ok(done.returncode == 0, f"attacks.c compiles: {name}", done.stderr)
        return so

    def as_user(self):
        """Words in front of a command: who runs it."""
        user = [] if self.user is None else ["setpriv", f"--reuid={self.user}",
                                             f"--regid={self.user}", "--clear-groups"]
        return user + self.before

    def judge(self, so, n, *flags):
        """Status, stderr, rows, seconds."""
        rows = os.path.join(self.folder, f"rows{self.user or 0}", "rows")
        os.makedirs(os.path.dirname(rows), exist_ok=True)
        os.chmod(os.path.dirname(rows), 0o777)
        if os.path.exists(rows):
            os.remove(rows)
        start = time.monotonic()
        done = subprocess.run(
            [*self.as_user(), os.path.join(self.folder, "naive"), "--variant-so", so,
             "--so-sandbox", "strict", "-N", str(n), "-H", "2", "-d", "8", "--threads", "2",
             "--json", rows, *flags], capture_output=True, text=True, timeout=60,
            errors="backslashreplace", cwd="/", env={**os.environ, "SECRET": "seed"})
        seconds = time.monotonic() - start
        with open(rows, encoding="utf-8") as f:
            return done.returncode, done.stderr, [json.loads(line) for line in f], seconds

    def check(self, tap, so, name, n, flags, status, pattern):
        who = "root" if self.user is None else "a plain user"
        got, said, rows, seconds = self.judge(so, n, *flags)
        status = rows[0]["pass"] is not True if status is None and rows else status
        fits = (got == status and re.search(pattern, said) and "GOT" not in said and
                len(rows) == 1 and rows[0]["pass"] is (status == 0) and
                rows[0]["so_sandbox"] == "strict" and seconds < 10 and len(said) < 8000)
        tap.ok(fits, f"{who}: {name}: status {status}, one row, said so",
               f"{got} {seconds:.1f} s\n{said[:2000]}\n{rows}")
        return said


def left_over(folder):
    """Runners that are alive with a library of this folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                if "attn_runner" in (words := f.read()) and folder in words:
                    found.append(pid)
        except OSError:
            pass
    return found


def killed_first(court):
    """What the kernel is told of each runner: 1000 means that it is killed before all others."""
    found = []
    for pid in left_over(court.folder):
        try:
            found.append(pathlib.Path("/proc", pid, "oom_score_adj").read_text("ascii").strip())
        except OSError:  # it ended in between
            pass
    return found


def check_memory_hidden(tap, court, so, n):
    """While a submission runs, a process of the same user cannot look into the judge."""
    with subprocess.Popen([*court.as_user(), os.path.join(court.folder, "naive"), "--variant-so",
                           so, "--so-time", "60", "-N", str(n)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, cwd="/") as program:
        end = time.monotonic() + 50  # a slow machine starts a runner late
        while killed_first(court) != ["1000"] and time.monotonic() < end:
            time.sleep(0.05)
        runners = killed_first(court)
        done = subprocess.run([*court.as_user(), "head", "-c", "1", f"/proc/{program.pid}/environ"],
                              capture_output=True, text=True)
        alive = program.poll() is None
        program.terminate()
    tap.ok(runners == ["1000"], "where memory is short the runner is killed, not its judge",
           runners)
    tap.ok(alive and done.returncode != 0 and "Permission denied" in done.stderr,
           "a plain user: the judge's memory is closed to its own user", f"{alive} {done}")


def check_programs(tap, court, known, attacks, constructors, borrows):
    for name, flags, status, pattern in ATTACKS:
        said = court.check(tap, attacks, name, known[name], flags, status, pattern)
        if name == "SHOW_WHAT_IT_HAS":
            has = re.findall(r"has (.*)", said)
            fine = [re.match(r"(OMP_NUM_THREADS=2|OPENBLAS_NUM_THREADS=2|OMP_WAIT_POLICY=passive|"
                             r"descriptor [0-3])$", item) for item in has]
            tap.ok(has and all(fine), f"{name}: thread counts and four descriptors, no more", has)
    for name, flags, pattern in CONSTRUCTORS:
        court.check(tap, constructors[name], f"{name} while it is loaded", 1, flags, 1, pattern)
    early = constructors["INPUTS_AT_LOAD"]
    court.check(tap, early, "looks for inputs while it is loaded", known["RIGHT"], [], 0, OK)
    court.check(tap, borrows, "calls the stage's own function", 1, [], 1,
                r"cannot be loaded: undefined symbol: naive_v0_loops")
    tap.ok(not left_over(court.folder), "nothing is left of all these", left_over(court.folder))
    tap.ok(not os.path.exists(os.path.join(court.folder, "written")), "and no file was written")


def check_threads(tap, args, folder):
    """What has threads already cannot be put into the sandbox: they would stay outside."""
    root = args.include[0]
    helper = os.path.join(folder, "two_threads")
    built = subprocess.run(
        [*args.cc, "-std=gnu11", f"-I{root}", f"-I{os.path.join(args.build, 'common')}",
         os.path.join(HERE, "two_threads.c"), os.path.join(root, "course", "sandbox.c"), "-o",
         helper, "-lseccomp", "-ldl", "-lpthread"], capture_output=True, text=True)
    said = [subprocess.run([helper, *more], capture_output=True, text=True).stdout.rstrip("\0")
            for more in ([], ["alone"])] if built.returncode == 0 else []
    tap.ok(said == ["it has threads before the sandbox is there", "entered"],
           "the sandbox takes a process of one thread, no other", f"{built.stderr}{said}")


def check_without_landlock(tap, court, known, attacks):
    """On an older kernel root gets a chroot; a plain user is told that there is no sandbox."""
    helper = os.path.join(court.folder, "no_landlock")
    built = subprocess.run([*court.args.cc, os.path.join(HERE, "no_landlock.c"), "-o", helper],
                           capture_output=True, text=True)
    tap.ok(built.returncode == 0, "no_landlock.c compiles", built.stderr)
    court.before = [helper]
    if court.user is None and os.getuid() == 0:
        for name, status, pattern in CHROOT:
            court.check(tap, attacks, f"{name} in a chroot", known[name], [], status, pattern)
    else:
        plain = [*court.as_user(), os.path.join(court.folder, "naive"), "--variant-so", attacks,
                 "-N", "1", "-d", "8"]
        done = subprocess.run([*plain, "--so-sandbox", "strict"], capture_output=True, text=True)
        tap.ok(done.returncode == 2 and "found strict, but this kernel has no Landlock" in
               done.stderr and done.stderr.count("\n") == 1, "strict is refused in one sentence",
               done.stderr)
        done = subprocess.run(plain, capture_output=True, text=True)
        tap.ok(done.returncode == 0 and "runs without a sandbox: this kernel" in done.stderr,
               "without the flag it runs, and the program says how", done.stderr)
    court.before = []


# file name, its text, exit status, what must be said
SOURCES = [
    ("fine.c", "int f(void) { return 1; }\n", 0, r"^$"),
    ("key.c", '__asm__(".incbin \\"{}/teacher.key\\"");\n', 1, r"teacher\.key"),
    ("solution.c", '#include "{}/attacks.so"\n', 1, r"Permission denied"),
    ("environment.c", '#include "/proc/self/environ"\n', 1, r"Permission denied"),
    ("passwords.c", '__asm__(".incbin \\"/etc/passwd\\"");\n', 1, r"passwd"),
    ("large.c", "char large[3000000000] = {1};\n", 1, r"\S"),
    ("itself.c", '#include "itself.c"\n', 1, r"include nested depth"),
    ("-fplugin=x.c", "int x;\n", 1, r"with - @ or \. in front"),
    ("Makefile", "all:\n\ttouch written\n", 1, r"is no \.c or \.cu file"),
]


def check_jail(tap, court):
    who = "root" if court.user is None else "a plain user"
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)

        def jail(path, *flags):
            done = subprocess.run(
                [*court.as_user(), os.path.join(court.folder, "attn_jail"), "--out",
                 os.path.join(folder, f"out{len(os.listdir(folder))}"), *flags, path],
                capture_output=True, text=True, cwd=folder, timeout=60)
            return done.returncode, done.stdout + done.stderr

        for name, text, status, pattern in SOURCES:
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text.replace("{}", court.folder))
            got, said = jail(path)
            tap.ok(got == status and re.search(pattern, said) and "the key" not in said,
                   f"{who}: {name}: the compiler says {status}", f"{got}\n{said[:2000]}")
        link = os.path.join(folder, "link.c")
        os.symlink(os.path.join(folder, "fine.c"), link)
        tree = os.path.join(folder, "tree")
        os.mkdir(tree)
        os.symlink(os.path.join(court.folder, "teacher.key"), os.path.join(tree, "key.txt"))
        shutil.copy(os.path.join(folder, "fine.c"), tree)
        os.mkfifo(os.path.join(folder, "fifo.c"))
        for path, pattern in ((link, "is a symbolic link"), (tree, r"key\.txt is a symbolic link"),
                              (os.path.join(folder, "fifo.c"), "is no regular file")):
            got, said = jail(path)
            tap.ok(got == 1 and re.search(pattern, said),
                   f"{who}: {os.path.basename(path)}: refused", f"{got}\n{said}")
        os.remove(os.path.join(tree, "key.txt"))
        with open(os.path.join(tree, "other.c"), "w", encoding="utf-8") as f:
            f.write('#include <math.h>\n#include <omp.h>\n#include "tensor.h"\n'
                    "static int h;\n#ifdef _OPENMP\nint f(void);\n"
                    "float g(float x) { return sinf(x) + (float)(omp_get_num_threads() + f()); }\n"
                    "#endif\n")
        got, said = jail(tree, "--include", os.path.join(court.folder, "include"), "--flag",
                         "-fopenmp", "--flag", "-Wall")
        made = subprocess.run(["nm", *pathlib.Path(folder).glob("*/submission.so")],
                              capture_output=True, text=True).stdout
        tap.ok(got == 0 and "'h' defined but not used" in said and
               re.search(r"T f\n.*T g\n", made, re.S),
               f"{who}: a folder of two files with the headers of the course",
               f"{got}\n{said}{made}")


THIEF = os.path.join(os.path.dirname(os.path.dirname(HERE)), "stages", "so", "thief.c")
STAGES = ("naive", "tiled_softmax", "flash_forward", "flash_backward", "sliding_window")


def check_thief(tap, args, folder):
    """so/thief.c copies what the course's judge expects, if it lies anywhere in its memory."""
    for stage, planted in itertools.product(STAGES, (False, True)):
        so = os.path.join(folder, f"thief_{stage}{planted}.so")
        flags = ["-DPLANTED"] if planted else []
        flags += ["-DBACKWARD"] if stage == "flash_backward" else []
        built = subprocess.run(
            [*args.cc, "-std=gnu11", "-O1", "-fPIC", "-shared", f"-DSTAGE={stage}", *flags,
             *(f"-I{path}" for path in args.include), THIEF, "-o", so, "-lm"],
            capture_output=True, text=True)
        orders = ["contract\t" + stage, "mode\tstrict", "workers\t2", "limits\t20\t1024\t1",
                  "case\t1\t-N\t33\t-H\t2\t-d\t8", "case\t2\t-N\t20\t-d\t16", f"so\t{so}"]
        done = subprocess.run([os.path.join(args.build, "common", "course", "attn_judge")],
                              input="\n".join(orders) + "\n", capture_output=True, text=True)
        rows = [json.loads(line) for line in done.stdout.split("\n") if line]
        said = "".join(row["output"] for row in rows)
        wanted = len(rows) * (3 if stage == "flash_backward" else 2)
        tap.ok(built.returncode == done.returncode == 0 and
               [row["status"] for row in rows] == ["right" if planted else "wrong"] * 2 and
               said.count(": FOUND" if planted else ": not found") == wanted and
               "few pages" not in said, f"attn_judge: {stage}: a thief " +
               ("finds what lies in its memory" if planted else "finds no reference there"),
               f"{built.stderr}{done.stderr}\n{rows}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", required=True, type=str.split)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--build", required=True)
    args = parser.parse_args()
    tap, known = Tap(), numbers()
    with tempfile.TemporaryDirectory() as folder:
        court = Court(args, folder)
        probe = subprocess.run([os.path.join(folder, "naive"), "--variant-so", sys.executable,
                                "--so-sandbox", "strict"], capture_output=True, text=True)
        if probe.returncode == 2 and "found strict" in probe.stderr:
            print(f"1..0 # SKIP {probe.stderr.strip()}")
            return 0
        attacks = court.compile(tap, "attacks.so")
        court.compile(tap, "solution.so", f"-DCONSTRUCTOR={known['RIGHT']}")
        borrows = court.compile(tap, "borrows.so", "-DBORROWS")
        constructors = {name: court.compile(tap, f"{name}.so", f"-DCONSTRUCTOR={known[name]}")
                        for name in (*[name for name, *_ in CONSTRUCTORS], "INPUTS_AT_LOAD")}
        tap.ok([*(name for name, *_ in ATTACKS), "INPUTS_AT_LOAD"] == list(known),
               "each attack has its verdict", set(known) ^ {name for name, *_ in ATTACKS})
        for user in ([None, NOBODY] if os.getuid() == 0 and shutil.which("setpriv") else [None]):
            court.user = user
            if user is None:
                check_thief(tap, args, folder)
                check_threads(tap, args, folder)
            check_programs(tap, court, known, attacks, constructors, borrows)
            check_jail(tap, court)
            check_without_landlock(tap, court, known, attacks)
            if user is not None or os.getuid() != 0:
                check_memory_hidden(tap, court, attacks, known["SLEEP"])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
