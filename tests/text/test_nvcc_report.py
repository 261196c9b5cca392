#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_nvcc_report.py: common/tools/nvcc_report.py, with a script that prints what ptxas prints.

Two kernels: one spills 84 + 128 bytes, one nothing. The report has to name both; a limit has to
hold for the kernels of its name, at the byte; and what nvcc fails at stays a failure. And which
architectures are compiled where nobody has chosen (visible-archs.sh).
"""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
from tap import Tap

REPORT = pathlib.Path(HERE, "..", "..", "common", "tools", "nvcc_report.py")
VISIBLE = pathlib.Path(HERE, "..", "..", "common", "harness", "device", "visible-archs.sh")
PTXAS = """ptxas info    : Compiling entry function 'tile_kernel' for 'sm_90'
ptxas info    : Function properties for tile_kernel
    104 bytes stack frame, 84 bytes spill stores, 128 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'store_kernel' for 'sm_90'
ptxas info    : Function properties for store_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 34 registers
"""
TOO_MANY = "error: tile_kernel spills 212 bytes on sm_90, accepted are 211"


def check_visible_archs(tap):
    """-Dgpu_archs=auto, with a pretended nvidia-smi: its answer, or that there is none."""
    for says, wanted in (("9.0", "90 90a"), ("8.6", "86"), ("9.0\n8.0\n9.0", "80 90 90a"),
                         ("[N/A]", "80"), (None, "80")):
        with tempfile.TemporaryDirectory() as folder:
            smi = pathlib.Path(folder, "nvidia-smi")
            smi.write_text("#!/bin/sh\n" + ("exit 9\n" if says is None else
                                            f"cat <<'TXT'\n{says}\nTXT\n"))
            smi.chmod(0o755)
            done = subprocess.run(["sh", VISIBLE], capture_output=True, text=True, check=False,
                                  env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]})
        tap.ok((done.returncode, " ".join(done.stdout.split())) == (0, wanted),
               f"gpu_archs=auto where nvidia-smi says {says!r}: {wanted}", done.stdout)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        def report(status, *flags, said=PTXAS):
            nvcc = pathlib.Path(folder, "nvcc.py")
            nvcc.write_text("import sys\n"
                            "bad = [a for a in sys.argv if a.startswith('--attn')]\n"
                            f"print({said!r} or sys.argv, end='')\n"
                            f"sys.exit({status} or bool(bad))\n")
            done = subprocess.run([sys.executable, REPORT, sys.executable, nvcc, *flags, "-c",
                                   "x.cu", "-o", pathlib.Path(folder, "x.o")],
                                  capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

        status, said = report(0)
        tap.ok(status == 0 and "tile_kernel  sm_90  255 registers, 1024 B shared, 212 B spilled\n"
               "store_kernel  sm_90  34 registers, 0 B shared, 0 B spilled\n" == said,
               "a line for each kernel", said)
        status, said = report(0, "--attn-spilled=tile_kernel:212", "--attn-spilled=store_kernel:0")
        tap.ok(status == 0 and "error" not in said, "spills up to the limit are accepted", said)
        status, said = report(0, "--attn-spilled=tile_kernel:211")
        tap.ok(status == 1 and TOO_MANY in said, "one byte more is not", said)
        status, said = report(0, "--attn-spilled=store:0")
        tap.ok(status == 0, "a limit is for the kernels that it names", said)
        told = [report(0, f"--attn-spilled=_kernel:{all_}", f"--attn-spilled=tile_kernel:{tile}")
                for all_, tile in ((0, 212), (212, 211))]
        tap.ok([status for status, _ in told] == [0, 1] and TOO_MANY in told[1][1],
               "of two limits the one with the longer name holds", told)
        told = [report(0, f"--attn-spilled=tile_kernel@{arch}:212", "--attn-spilled=_kernel:0")[0]
                for arch in ("sm_90", "sm_80")]
        tap.ok(told == [0, 1], "a limit of an architecture is for no other", told)
        for flag in ("--use_fast" + "_math", "-ftz=true", "--prec-div=false", "-prec-sqrt=false"):
            os.environ["NVCC_APPEND_FLAGS"] = flag
            told = [report(0)]
            del os.environ["NVCC_APPEND_FLAGS"]
            told += [report(0, flag), report(0, "-ftz=false")]
            tap.ok([status for status, _ in told] == [1, 1, 0] and "fast math" in told[0][1],
                   f"{flag} is refused, from the environment too", told)
        status, said = report(0, "--attn-spilled=211")
        tap.ok(status != 0 and "accepted is --attn-spilled=KERNEL:BYTES" in said,
               "a limit without a kernel is refused", said)
        status, said = report(2, "--attn-spilled=tile_kernel:212")
        tap.ok(status == 2, "what nvcc fails at stays a failure", said)
        slow = PTXAS + "ptxas info : wgmma.mma_async instructions are serialized\n"
        tap.ok((report(0, said=slow)[0], report(0, "--attn-strict", said=slow)[0]) == (0, 1),
               "--attn-strict: serialised wgmma is an error")
        told = ["serialized" in report(0, *more, said=slow)[1] for more in
                ((), ("--attn-lax=-x",), ("--attn-lax=-x", "--attn-strict"))]
        tap.ok(told == [True, False, True], "--attn-lax: no word of what nobody runs", told)
        lax = ("--attn-lax=-Ofc=max", "-careful")
        told = [report(0, *lax, *more, said="")[1] for more in
                ((), ("--attn-strict",), ("--attn-spilled=tile_kernel:212",))]
        tap.ok(["-Ofc=max" in said for said in told] == [True, False, False] and
               all("-careful" in said for said in told),
               "--attn-lax reaches nvcc where no limit is held", told)
    check_visible_archs(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
