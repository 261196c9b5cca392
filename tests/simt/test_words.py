#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a student writes works, and a program that dies names the line: words.cu.

usage: test_words.py SIMT_WORDS
"""
import pathlib
import re
import subprocess
import sys
import tempfile

from programs import ROOT, run
from tap import Tap

SOURCE = (pathlib.Path(__file__).parent / "words.cu").read_text(encoding="utf-8").split("\n")
DEATHS = {"deep": "has more local variables than its stack holds",
          "aborts": "thread 7 of block 0 calls abort", "traps": "thread 7 of block 0",
          "launches": "no dynamic parallelism", "host_nowhere": "is no memory",
          "host_divides": "divides an integer by zero",
          "host_aborts": "the host's code calls abort",
          "host_asserts": "the host's code: zero == 1"}


def refused(text, *flags):
    """What the compiler says of a file that it must not take."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "x.cu"
        file.write_text(text, encoding="utf-8")
        words = [sys.executable, str(ROOT / "common/simt/compile.py"), "clang++", *flags,
                 "-c", str(file), "-o", f"{file}.o"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    return done.stdout if done.returncode else "nothing"


def main():
    tap, program = Tap(), sys.argv[1]
    done = run([program], [], SIMT_CHECK="1")
    tap.ok(done.returncode == 0 and "0 findings, 0 warnings" in done.stderr,
           "vectors, halves, templates, managed memory, streams, errors", done.stderr)
    for name, says in DEATHS.items():
        lines = [i for i, text in enumerate(SOURCE, 1) if text.endswith(f"/* {name} */")]
        done = subprocess.run([program, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, check=False, timeout=60)
        text = done.stderr
        good = done.returncode == 1 and says in text and ":0:" not in text
        tap.ok(good and any(f"words.cu:{line}:" in text for line in lines),
               f"{name}: {says}, with its line", f"{done.returncode}\n{text}")
        tap.ok(not re.search(r"without a line", text), f"{name}: no place without a line", text)
    done = run([program], ["twins"], SIMT_COUNT="1")
    written = re.findall(r"kernel twin, words\.cu:\d+: 1 launch.*\n.*\n.*written: (\d+) useful",
                         done.stdout)
    tap.ok(written == ["128", "256"], "two kernels of one name are counted apart", done.stdout)
    for header, instead in (("mma.h", "mma.sync"), ("cuda/barrier", "__syncthreads"),
                            ("cuda/pipeline", "cp.async")):
        says = refused(f"#include <{header}>\n")
        tap.ok("simt has no" in says and instead in says, f"{header}: refused, with what to write",
               says)
    kernel = "static __global__ void k(float4 *p)\n{\n    float4 v = *p;\n    %s\n    *p = v;\n}\n"
    for line in ("v[0] = 1.0f;", "v = v + v;"):
        says = refused(kernel % line, "--strict")
        tap.ok("x.cu:4:" in says and "float4" in says, f"{line} of a float4: refused", says)
    says = refused(kernel % "v.x += v.w;", "--strict")
    tap.ok(says == "nothing", "members of a float4: accepted", says)
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
