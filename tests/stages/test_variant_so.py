#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_variant_so.py: --variant-so with a right implementation and with all that goes wrong.

    test_variant_so.py --cc CC --include DIR --include DIR PROGRAM...

Whatever the loaded code does, the program must live, print nothing of it on stdout, exit 1 and say
in one sentence what happened. The implementations are so/right.c and so/misbehaving.c; stage 04
loads backward passes, so/right_backward.c.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
from tap import Tap

SMALL = ["-N", "33", "-H", "2", "-d", "8", "--threads", "2"]
BACKWARD = ("flash_backward",)  # what these load is a backward pass
OFF = ["--so-sandbox", "off"]
# name, its number in so/misbehaving.c, more flags, exit status, what stderr must say; {O} is the
# first output
MISBEHAVIOURS = [
    ("crash", 1, [], 1, r"crashed with SIGSEGV .*address 0x8"),
    ("hang", 2, ["--so-time", "1"], 1, r"did not finish within 1 s \(--so-time\)"),
    ("overrun of the first output", 3, [], 1, r"crashed with SIGSEGV .*behind the end of {O}"),
    ("write before the second output", 4, [], 1, r"memory outside the outputs was written to"),
    ("write to an input", 5, [], 1, r"crashed with SIGSEGV .*wrote to its input K"),
    ("read past K", 6, [], 1, r"crashed with SIGSEGV .*behind the end of K"),
    ("huge malloc", 7, ["--so-memory", "256"], 1,
     r"allocation that more than 256 MiB would need \(--so-memory\)"),
    ("exit(0) early", 8, [], 1, r"exit\(0\) instead of returning"),
    ("abort", 9, [], 1, r"crashed with SIGABRT"),
    ("wrong ABI version", 10, [], 1, r"_abi_version is 999, accepted is [23]"),
    ("no ABI version", 11, [], 1, r": {O} is wrong"),
    ("missing symbol", 12, [], 1, r"exports no function \w+_variant"),
    ("error status", 13, [], 1, r"returned status 2"),
    ("skip", 14, [], 2, r"--variant-so: found a case that \S+ skips: it answers ATTN_SKIP; "
     r"accepted is a library"),
    ("does nothing", 15, [], 1, r": {O} is wrong"),
    ("deep recursion", 16, [], 1, r"crashed with SIGSEGV"),
    ("prints", 17, [], 1, r"hello from the student"),
    ("starts a process", 18, [], 1, r"tried the system call clone, which a submission may not"),
    ("leaves a child", 18, OFF, 1, r": {O} is wrong"),
    ("writes stride gaps", 19, ["--strides", "odd"], 1,
     r"memory outside the outputs was written to"),
    ("leaks workspace", 20, [], 1, r"1000 bytes of workspace"),
    ("constant output", 21, [], 1, r": {O} is wrong"),
    ("closes the judge's socket", 22, [], 1, r"closed the descriptor of its judge's socket"),
    ("forges its report", 23, [], 1, r": {O} is wrong|exit\(0\) instead of returning"),
    ("writes to open files", 24, [], 1, r"it wrote to its judge's socket"),
    ("leaves a session", 25, OFF, 1, r": {O} is wrong"),
    ("prints much", 26, [], 1, r"\?\[2Jmuch\n[^\0]*the rest of its output is left out"),
    ("signals its judge", 27, [], 1, r"tried the system call kill"),
    ("kills its parent", 27, OFF, 1, r"crashed with SIGKILL"),
]


def compile_so(args, stage, source, target, *flags):
    command = args.cc + ["-std=gnu11", "-O1", "-fPIC", "-shared", f"-DSTAGE={stage}", *flags]
    command += ["-DBACKWARD"] if stage in BACKWARD else []
    command += [f"-I{folder}" for folder in args.include]
    return subprocess.run(command + [os.path.join(HERE, "so", source), "-o", target, "-lm"],
                          capture_output=True, text=True)


def run(program, so, *flags, seconds=60, **more):
    start = time.monotonic()
    done = subprocess.run([program, "--variant-so", so, *SMALL, *flags], capture_output=True,
                          text=True, timeout=seconds, errors="backslashreplace", **more)
    return done, time.monotonic() - start


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:  # gone in the meantime
        return ""


def check_right(tap, args, program, stage, folder):
    so = os.path.join(folder, "right.so")
    source = "right_backward.c" if stage in BACKWARD else "right.c"
    built = compile_so(args, stage, source, so, "-fopenmp")
    if built.returncode != 0:  # a compiler without OpenMP: the pragma is ignored
        built = compile_so(args, stage, source, so)
    if not tap.ok(built.returncode == 0, f"{stage}: {source} compiles", built.stderr):
        return
    report = os.path.join(folder, "report.jsonl")
    for flags in ([], ["--causal", "--seq-kv", "20", "--dtype", "bf16"],
                  ["--mask", "full", "--strides", "odd", "--kv-heads", "1", "--dtype", "f16"],
                  ["--window", "5,3", "--softcap", "2", "--scale", "-0.7", "--batch", "2"],
                  ["--bench", "--iters", "3", "--warmup", "1"]):
        done, _ = run(program, so, *flags, "--json", report)
        tap.ok(done.returncode == 0 and " ok " in done.stdout,
               f"{stage}: right.so {' '.join(flags)} is right", done.stdout + done.stderr)
    with open(report, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    tap.ok(len(rows) == 5 and all(row["pass"] is True and row["variant"] == "right.so"
                                  for row in rows) and
           len(rows[4]["ms_backward" if stage in BACKWARD else "ms"]) == 3,
           f"{stage}: its rows say pass, with three samples for --iters 3", rows)
    tap.ok(all(row["peak_bytes"] > 0 for row in rows), f"{stage}: its workspace is counted", rows)
    saved = os.path.join(folder, "saved")
    done, _ = run(program, so, "--save", saved)
    names = (["dk.npy", "dq.npy", "dv.npy"] if stage in BACKWARD else []) + ["lse.npy", "o.npy"]
    tap.ok(done.returncode == 0 and sorted(os.listdir(saved)) == names,
           f"{stage}: its output is saved", done.stderr)
    done, _ = run(program, so, "--variant", "all")
    rows = [line.split()[0] for line in done.stdout.splitlines() if line[:1] != "#"]
    tap.ok(done.returncode == 0 and "right.so" in rows and len(rows) > 2,
           f"{stage}: with --variant all it stands below the stage's own", done.stdout)
    done = subprocess.run([program, "--variant-so", so, *SMALL], capture_output=True, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
                          timeout=60)
    tap.ok(done.returncode == 0, f"{stage}: right where the starter ignores its children's ends",
           done.stderr)
    lines = os.path.join(folder, "cases")
    with open(lines, "w", encoding="utf-8") as f:
        f.write("-N 5\n-N 6 --causal\n--variant-so /nowhere.so\n")
    done, _ = run(program, so, "--cases", lines)
    tap.ok(done.returncode == 2 and "cases:3: --variant-so: found that /nowhere.so" in done.stderr,
           f"{stage}: a line that names no file is refused", done.stderr)


def check_changed_o(tap, args, program, stage, folder):
    """A backward pass that writes to O, which is an input: all its gradients would be right."""
    so = os.path.join(folder, "changed_o.so")
    built = compile_so(args, stage, "right_backward.c", so, "-DWRITES_O")
    if not tap.ok(built.returncode == 0, f"{stage}: compiles with -DWRITES_O", built.stderr):
        return
    done, _ = run(program, so)
    tap.ok(done.returncode == 1 and "it wrote to its input O" in done.stderr,
           f"{stage}: changes O: status 1, said so", done.stderr)


def check_thief(tap, args, program, stage, folder):
    """A library that copies what its judge expects, if it is anywhere in its memory. It gets no
    descriptor of the program's, and in the sandbox none of its environment."""
    outputs = ["dQ", "dK", "dV"] if stage in BACKWARD else ["O", "lse"]
    more = [["--backward"]] if stage in ("naive", "sliding_window", "ring_burst") else []
    for planted in (False, True):
        so = os.path.join(folder, f"thief{planted}.so")
        built = compile_so(args, stage, "thief.c", so, *(["-DPLANTED"] if planted else []))
        if not tap.ok(built.returncode == 0, f"{stage}: thief.c compiles", built.stderr):
            return
        for flags in ([], OFF, ["--variant", "all"], *more):
            with open(os.devnull, "rb") as secret:
                done, _ = run(program, so, *flags, pass_fds=[secret.fileno()],
                              env={**os.environ, "SECRET": "seed", "OMP_WAIT_POLICY": "passive",
                                   "LD_LIBRARY_PATH": "/nowhere"})
            wanted = outputs + (["dQ", "dK", "dV"] if "--backward" in flags else [])
            found = re.findall(r" (\w+): FOUND", done.stderr)
            not_found = re.findall(r" (\w+): not found", done.stderr)
            tap.ok(done.returncode == (0 if planted else 1) and "few pages" not in done.stderr and
                   (found, not_found) == ((wanted, []) if planted else ([], wanted)),
                   f"{stage}: a thief {' '.join(flags)} " +
                   ("finds what lies in its memory" if planted else "finds no reference there"),
                   f"{done.returncode}\n{done.stdout}{done.stderr}")
            has = set(re.findall(r"(?m)^  \| has (.*)", done.stderr))
            files = {f"descriptor {n}" for n in range(4)}
            threads = 1 if stage == "ring_burst" else 2  # its runner is linked with OpenBLAS
            strict = {"OMP_NUM_THREADS=2", f"OPENBLAS_NUM_THREADS={threads}",
                      "OMP_WAIT_POLICY=passive"}
            strict |= {"LD_LIBRARY_PATH=/nowhere"} if stage == "ring_burst" else set()
            tap.ok({item for item in has if item.startswith("descriptor")} == files and
                   (flags == OFF or has == files | strict),
                   f"{stage}: a thief {' '.join(flags)} inherits four descriptors, no more", has)


def check_misbehaving(tap, args, program, stage, folder, case):
    name, number, flags, status, pattern = case
    so = os.path.join(folder, f"{number}.so")
    built = compile_so(args, stage, "misbehaving.c", so, f"-DMISBEHAVE={number}")
    if built.returncode != 0:
        tap.ok(False, f"{stage}: misbehaving.c {number} compiles", built.stderr)
        return
    report = os.path.join(folder, f"{name}.jsonl")
    try:
        done, seconds = run(program, so, *flags, "--json", report, seconds=120)
    except subprocess.TimeoutExpired:
        tap.ok(False, f"{stage}: {name}", "the program itself did not come back")
        return
    said = done.stderr
    pattern = pattern.replace("{O}", "dQ" if stage in BACKWARD else "O")
    tap.ok(done.returncode == status and re.search(pattern, said) and seconds < 60,
           f"{stage}: {name}: status {status}, said so", f"{done.returncode} {seconds} s\n{said}")
    tap.ok("hello" not in done.stdout and " ok " not in done.stdout,
           f"{stage}: {name}: nothing of it on stdout", done.stdout)
    if status == 1:
        with open(report, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        tap.ok(len(rows) == 1 and rows[0]["pass"] is False and
               rows[0]["so_sandbox"] == ("off" if flags == OFF else "strict"),
               f"{stage}: {name}: pass is false, and the row says how it ran", rows)
    if name == "prints much":
        tap.ok(len(said) < 8000, f"{stage}: {name}: not all of it is shown", len(said))
    if name in ("leaves a child", "leaves a session"):
        tap.ok(not processes_of(so), f"{stage}: {name}: it was killed", processes_of(so))


def processes_of(so):
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and so in command_line(pid)]


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def check_interrupted(tap, args, program, stage, folder):
    """Whatever ends the program ends what the library started, with a time limit far away: a
    process that ignores signals, and without a sandbox one in a session of its own."""
    for number, flags, count in ((28, OFF, 3), (29, [], 1)):
        so = os.path.join(folder, f"interrupted{number}.so")
        built = compile_so(args, stage, "misbehaving.c", so, f"-DMISBEHAVE={number}")
        tap.ok(built.returncode == 0, f"{stage}: misbehaving.c {number} compiles", built.stderr)
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            interrupt(tap, [program, "--variant-so", so, *SMALL, "--so-time", "100", *flags], so,
                      count, sent, f"{stage}: {sent.name} {' '.join(flags)}")


def as_from_a_terminal():
    """What nohup, or a shell's &, makes a program ignore is heard again."""
    for sent in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sent, signal.SIG_DFL)


def interrupt(tap, command, so, count, sent, name):
    """count: processes beside the program that then have the library's path as an argument."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          preexec_fn=as_from_a_terminal) as program_there:
        started = wait_until(lambda: len(processes_of(so)) > count, 30)
        time.sleep(0.3)  # from the process's start to the library's code
        program_there.send_signal(sent)
        program_there.wait()
    gone = wait_until(lambda: not processes_of(so), 10)
    tap.ok(started and gone, f"{name}: nothing is left", processes_of(so))
    for pid in processes_of(so):
        os.kill(int(pid), signal.SIGKILL)


def check_no_object(tap, program, stage, folder):
    text, stub, fifo = (os.path.join(folder, name) for name in ("text.so", "stub.so", "fifo.so"))
    with open(text, "w", encoding="utf-8") as f:
        f.write("not a shared object\n")
    with open(stub, "wb") as f:
        f.write(b"\x7fELF and no more of it\n")
    os.mkfifo(fifo)
    for path, why in ((text, "is no ELF file"), (os.devnull, "is no regular file"),
                      (fifo, "is no regular file"), (folder, "is no regular file")):
        done, _ = run(program, path)
        tap.ok(done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1
               and not done.stdout, f"{stage}: {os.path.basename(path)} {why}: status 2",
               f"{done.returncode}\n{done.stderr}")
    done, _ = run(program, stub)
    tap.ok(done.returncode == 1 and "cannot be loaded" in done.stderr,
           f"{stage}: a file that only begins as one", done.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cc", required=True, type=str.split)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    tap = Tap()
    for program in args.programs:
        stage = os.path.basename(program)
        with tempfile.TemporaryDirectory() as folder:
            check_right(tap, args, program, stage, folder)
            for case in MISBEHAVIOURS:
                check_misbehaving(tap, args, program, stage, folder, case)
            check_interrupted(tap, args, program, stage, folder)
            check_no_object(tap, program, stage, folder)
            check_thief(tap, args, program, stage, folder)
            if stage in BACKWARD:
                check_changed_o(tap, args, program, stage, folder)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
