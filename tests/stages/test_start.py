#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_start.py: on a machine that refuses address space, threads or stack a program runs, or ends
with status 3 and a sentence; it never waits for what does not come.

    test_start.py PROGRAM...

Without common/harness/start.c OpenBLAS waits for ever: each of these runs has a time limit.
"""
import os
import re
import resource
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
from tap import Tap

MIB = 1 << 20
CASE = ["--device", "cpu", "--threads", "2", "-N", "300", "--no-check", "--quiet"]
# Before any code of ours: the loader maps 200 MB of NCCL, and of cuBLAS more than twice as much.
LOADER = r"error while loading shared libraries: lib(nccl|cublas)\S* failed to map segment"
TOLD = r"found room for (\d+) MiB of address space, needed are (\d+) MiB"


def run(program, flags, env=None, uid=None, **limits):
    """The finished run (None: it hung), each limit {"AS": bytes} set before it starts."""
    def before():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
    clean = {k: v for k, v in os.environ.items() if not re.match("(OMP|GOMP|OPENBLAS)_", k)}
    try:
        return subprocess.run([program, *flags], capture_output=True, text=True, timeout=60,
                              env=dict(clean, OMP_WAIT_POLICY="passive", **(env or {})),
                              preexec_fn=before, cwd="/")
    except subprocess.TimeoutExpired:
        return None


def ends(tap, name, done, accepted, sentence=None):
    good = done is not None and done.returncode in accepted and (
        done.returncode != 3 or not sentence or re.search(sentence, done.stderr))
    if done and done.returncode == 127 and 3 in accepted and sentence == TOLD:
        good = re.search(LOADER, done.stderr)
    tap.ok(good, name, "hangs" if done is None else f"{done.returncode}: {done.stderr[-300:]}")


def check(tap, program, flags, has_blas):
    name = os.path.basename(program)
    for mib in (100, 150, 280, 400, 480, 560, 700, 1000) if has_blas else ():
        done = run(program, flags, AS=mib * MIB)
        ends(tap, f"{name}: ulimit -v {mib} MiB", done, (3,) if mib < 480 else (0, 3), TOLD)
        told = re.search(TOLD, done.stderr) if done else None
        tap.ok(not told or int(told[1]) < min(mib, int(told[2])), f"{name}: less than is needed",
               told and told[0])
    if has_blas:
        ends(tap, f"{name}: ulimit -v, --version", run(program, ["--version"], AS=150 * MIB), (3,),
             TOLD)
        ends(tap, f"{name}: ulimit -d", run(program, flags, DATA=200 * MIB), (3,), TOLD)
    for word in ("OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0", "OMP_THREAD_LIMIT=1"):
        ends(tap, f"{name}: {word}", run(program, flags, dict([word.split("=")])), (0,))
    # ranks of ring_burst have one thread each
    few = (0,) if name == "ring_burst" else (3,)
    ends(tap, f"{name}: OMP_STACKSIZE=16k", run(program, flags, {"OMP_STACKSIZE": "16k"}), few,
         f"{name}: found .* could not start a thread")
    ends(tap, f"{name}: ulimit -s 512", run(program, flags, STACK=512 << 10), (0,))
    if os.getuid() == 0:
        ends(tap, f"{name}: ulimit -u 1", run(program, flags, uid=65533, NPROC=1), (3,),
             f"{name}: .*thread")


def main():
    tap = Tap()
    stages = [p for p in sys.argv[1:] if "count_traffic" not in p]
    with_blas = "OpenBLAS" in subprocess.run([stages[0], "-N", "3"], capture_output=True,
                                             text=True).stdout
    for program in stages:
        check(tap, os.path.abspath(program), CASE, with_blas)
    for program in sys.argv[1:]:
        if program not in stages and with_blas:
            with tempfile.TemporaryDirectory() as folder:
                flags = [os.path.join(folder, "rows"), "256"]
                for limit, accepted in ((150, (3,)), (330, (0, 3))):
                    ends(tap, f"{os.path.basename(program)}: ulimit -v {limit} MiB",
                         run(os.path.abspath(program), flags, AS=limit * MIB), accepted,
                         TOLD)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
