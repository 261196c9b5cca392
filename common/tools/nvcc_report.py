#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs nvcc and turns `ptxas -v` into one line per kernel.

usage: nvcc_report.py NVCC ARGS...   (ARGS end in: -c INPUT -o OUTPUT)

Prints `kernel  sm_90  40 registers, 4096 B shared, 0 B spilled` to stdout and into
OUTPUT.kernels.txt, and keeps what nvcc said in OUTPUT.ptxas.txt. With --attn-strict among ARGS
(nvcc does not see it) it fails when ptxas says that wgmma was serialised or setmaxnreg ignored:
such a kernel is right but slow, whatever its numbers. With --attn-spilled=KERNEL:BYTES it fails
when a kernel whose name contains KERNEL spills more (stores and loads of a thread together), with
KERNEL@sm_80:BYTES on that architecture only; of several limits that fit a kernel the one with the
longest name holds.
It refuses fast math, of which the compiled code knows nothing.
--attn-lax=FLAG is for a build that nobody runs: where neither of the two is asked nvcc gets FLAG,
and what would be an error with --attn-strict is not printed.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import tool

NOISE = re.compile(r"^ptxas info\s*: (Overriding|\d+ bytes gmem|Function properties|Compile time)")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
LAX = "--attn-lax="
LIMIT = re.compile(r"--attn-spilled=(\w+?)(?:@(sm_\w+))?:(\d+)")
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
FAST = re.compile(r"use_fast_math|-ftz[= ]true|-prec-(div|sqrt)[= ]false")
STRICT = re.compile(r"wgmma\.mma_async.*serialized|setmaxnreg.*ignored", re.I)


def demangle(names):
    """Readable kernel names, or the names as they are without c++filt."""
    program = shutil.which("c++filt")
    if not program or not names:
        return {name: name for name in names}
    run = subprocess.run([program, "-p", *names], capture_output=True, text=True, check=False)
    return dict(zip(names, tool.lines_of(run.stdout)))


def kernels(text):
    """(mangled name, architecture, registers, shared bytes, spilled bytes) of each kernel."""
    rows, name, arch, spilled = [], None, "", 0
    for line in tool.lines_of(text):
        if m := ENTRY.search(line):
            name, arch, spilled = m[1], m[2], 0
        elif m := SPILL.search(line):
            spilled = int(m[1]) + int(m[2])
        elif name and (m := USED.search(line)):
            rows.append((name, arch, int(m[1]), int(m[2] or 0), spilled))
            name = None
    return rows


def main():
    strict = "--attn-strict" in sys.argv
    limits = [LIMIT.fullmatch(a) for a in sys.argv[1:] if a.startswith("--attn-spilled")]
    if not all(limits):
        sys.exit("error: accepted is --attn-spilled=KERNEL:BYTES or KERNEL@sm_80:BYTES")
    lax = [] if strict or limits else [a[len(LAX):] for a in sys.argv[1:] if a.startswith(LAX)]
    command = [a for a in sys.argv[1:] if not a.startswith("--attn-")] + lax
    given = " ".join([*command, *map(os.environ.get, FLAGS, ("", ""))])
    if asked := FAST.search(given):
        sys.exit(f"error: found {asked[0]}, accepted is no fast math: NaN shall stay NaN")
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         errors="replace", check=False)
    rows = kernels(run.stdout)
    names = demangle([row[0] for row in rows])
    summary = "".join(f"{names[name]}  {arch}  {registers} registers, {shared} B shared, "
                      f"{spilled} B spilled\n" for name, arch, registers, shared, spilled in rows)
    print(summary, end="")
    if "-o" in command:
        output = pathlib.Path(command[command.index("-o") + 1])
        output.with_name(output.name + ".ptxas.txt").write_text(run.stdout, encoding="utf-8")
        output.with_name(output.name + ".kernels.txt").write_text(summary, encoding="utf-8")
    for line in tool.lines_of(run.stdout):
        known = ENTRY.search(line) or USED.search(line) or SPILL.search(line) or NOISE.match(line)
        if run.returncode or not (known or (lax and STRICT.search(line))):
            print(line)
    if strict and STRICT.search(run.stdout):
        print("error: a kernel meant to be fast is not (see the line above)")
        return 1
    over = []
    for name, arch, _, _, spilled in rows:
        fits = [limit for limit in limits if limit[1] in name and limit[2] in (None, arch)]
        most = max(fits, key=lambda m: len(m[1]), default=None)
        if most and spilled > int(most[3]):
            over.append((name, arch, spilled, most[3]))
    for name, arch, spilled, most in over:
        print(f"error: {names[name]} spills {spilled} bytes on {arch}, accepted are {most}")
    return run.returncode or int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
