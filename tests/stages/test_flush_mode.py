#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_flush_mode.py: a processor that takes subnormal numbers for zero is found at start.

usage: test_flush_mode.py BUILD ATTEND COMPILER...    the build folder, the operator's example

The mode comes from a library of somebody else (LD_PRELOAD), for results (FTZ) or for operands
(DAZ), and from a link with fast math where the compiler has a start-up file for it. A program says
one sentence and ends with exit status 3; its help does not depend on it. The operator has a status
and a sentence.
"""
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tap import Tap

# programs that compare with the oracle, and how each is asked for something
PROGRAMS = {"01_naive/naive": ["-N", "8"], "02_tiled_softmax/tiled_softmax": ["-N", "8"],
            "03_flash_forward/flash_forward": ["-N", "8"],
            "04_flash_backward/flash_backward": ["-N", "8"],
            "05_sliding_window_online/sliding_window": ["-N", "8", "--window", "4,0", "--causal"],
            "06_ring_burst/ring_burst": ["-N", "8"],
            "03_flash_forward/count_traffic": ["/dev/null", "128"],
            "common/course/attn_hints": ["-N", "8", "--found", "."]}
SENTENCE = "takes numbers below 2^-126 for zero"


def run(command, preload=None):
    env = dict(os.environ, **({"LD_PRELOAD": str(preload)} if preload else {}))
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                          timeout=120, env=env)


def check_linked(tap, compiler, folder, build):
    """The operator in a program of somebody who links with fast math; it is compiled without."""
    source, made = pathlib.Path(folder, "user.c"), pathlib.Path(folder, "user")
    source.write_text('#include "flash_attention_op.h"\n#include <stdio.h>\nint main(void)\n{\n'
                      "    volatile float least = 0x1p-126f;\n"
                      "    const int64_t shape[] = {2, 1, 8};\n    FlashAttentionHandle *h;\n"
                      "    FlashAttentionTensor t;\n    FlashAttention *op;\n"
                      "    int bad = flash_attention_create_handle(&h, FLASH_ATTENTION_CPU, 0);\n"
                      "    bad += flash_attention_describe(&t, FLASH_ATTENTION_F16, 3, shape, 0);\n"
                      "    bad += 100 * flash_attention_create(h, &op, &t, &t, &t, &t, 0, 0, 0);\n"
                      '    printf("%d %d\\n", least * 0.5f == 0.0f, bad);\n    return 0;\n}\n')
    library = build / "common/attention/op"
    run([*compiler, "-c", source, "-o", f"{made}.o", f"-I{HERE.parents[1]}/common/attention/op",
         f"-I{HERE.parents[1]}/common"])
    run([*compiler, "-ffast" + "-math", f"{made}.o", "-o", made, f"-L{library}",
         "-lattention_ladder_flash", f"-Wl,-rpath,{library}"])
    done = run([made])
    if done.stdout.startswith("0 "):
        tap.skip("a link with fast math", "this compiler has no start-up file that sets the mode")
    else:
        tap.ok(done.stdout == "1 200\n" and done.stderr.count("\n") == 1 and
               SENTENCE in done.stderr, "a link with fast math: the operator's status and sentence",
               done.stdout + done.stderr)


def main():
    tap = Tap()
    if platform.machine() not in ("x86_64", "aarch64"):
        return tap.skip_all("how this processor's mode is set is not known here")
    build, attend, compiler = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        modes = {"results": 1, "operands": 2}
        for name, mode in modes.items():
            made = pathlib.Path(folder, name + ".so")
            subprocess.run([*compiler, "-shared", "-fPIC", f"-DMODE={mode}", "-o", str(made),
                            str(HERE / "so" / "flush.c")], check=True)
            for program, flags in PROGRAMS.items():
                done = run([build / program, *flags], made)
                if done.returncode == 77:
                    tap.skip(f"{name}: {program}", done.stderr.strip())
                    continue
                tap.ok(done.returncode == 3 and SENTENCE in done.stderr and
                       done.stderr.count("\n") == 1, f"{name}: {program} says so, exit status 3",
                       f"{done.returncode} {done.stderr}")
            done = run([attend], made)
            tap.ok(done.returncode == 1 and SENTENCE in done.stderr and
                   "not implemented" in done.stderr, f"{name}: the operator says so", done.stderr)
            done = run([build / "01_naive/naive", "--help"], made)
            tap.ok(done.returncode == 0 and done.stdout and not done.stderr,
                   f"{name}: --help all the same", done.stderr)
        tap.ok(run([attend]).returncode == 0 and run([build / "01_naive/naive", "-N", "8"]
                                                     ).returncode == 0, "without it: no word")
        check_linked(tap, compiler, folder, build)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
