#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""nvcc for a CPU: clang -E, translate.py, then clang with a call before every access to memory.

usage: compile.py CLANG [-I DIR] [-D NAME] [--arch=80|90a] [-MD -MF FILE -MT NAME] -c X.cu -o X.o
       compile.py CLANG ... --shared FILE -c X.cu -o X.so     linked with FILE and libsimt.a, which
                                                              lie here: what the course judges
       --strict                                               refuses what nvcc does of vectors

The calls are those of clang's thread sanitizer (-fsanitize=thread), whose library is not linked:
shadow.cpp has our own. Lines stay exact: one line of debug information for each access, and no pass
that makes one access of two lines' (it would have none).
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import translate  # noqa: E402

HOOKS = ["-fsanitize=thread", "-fsanitize=array-bounds"]
for flag in ("-tsan-instrument-func-entry-exit=0", "-tsan-instrument-read-before-write=1",
             "-tsan-distinguish-volatile=1", "-simplifycfg-hoist-common=false",
             "-simplifycfg-sink-common=false", "-enable-tail-merge=0",
             "-regalloc=basic"):  # as fast where every access is a call, and compiled in less time
    HOOKS += ["-mllvm", flag]
# no vector of several threads' or iterations' accesses; a product and a sum may fuse, as in nvcc;
# no jump in place of a last call, whose line would be lost
CODE = ["-O1", "-g", "-gline-tables-only", "-ffp-contract=fast", "-fno-vectorize",
        "-fno-slp-vectorize", "-fPIC", "-fno-exceptions", "-fno-strict-aliasing", "-fdeclspec",
        "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-math-errno",
        "-Wno-everything"]
# what FILE looks at when the submission calls it
WATCHED = ["-Wl," + ",".join("--wrap=" + name for name in (
    "cudaMemcpy", "cudaMemcpyAsync", "cudaMemcpy2D", "cudaMemcpy2DAsync", "cudaHostAlloc",
    "simtMallocManaged"))]
LIBRARIES = ["-l:libboost_context.a", "-lstdc++", "-lm", "-ldl", "-lpthread"]
# A GPU has no index for its registers, so kernels unroll their loops. Here that is several times as
# much code to compile, and no faster to run. The line stays, empty.
UNROLL = re.compile(r"(?m)^[ \t]*#[ \t]*pragma[ \t]+unroll\b.*")
KEPT = ("-I", "-isystem", "-D", "-include")


def run(*words, **more):
    done = subprocess.run(words, text=True, check=False, **more)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("compiler")
    parser.add_argument("source")
    for flag in ("-c", "-MD", "--strict"):
        parser.add_argument(flag, action="store_true")
    for flag in ("-o", "--arch", "--target", "--shared", "-MF", "-MT"):
        parser.add_argument(flag, default="80" if flag == "--arch" else None)
    for flag in KEPT:
        parser.add_argument(flag, action="append", default=[])
    words, _ = parser.parse_known_args()  # others are nvcc's
    compiler, source, out, arch = words.compiler, words.source, words.o, words.arch
    keep = [word for flag in KEPT for value in getattr(words, flag[1:]) for word in (flag, value)]
    target = ["--target=" + words.target] if words.target else []
    depfile = ["-MD", "-MF", words.MF, "-MT", words.MT] if words.MD else []
    headers = str(HERE / "include")
    machine = ["-mf16c", "-mfma"] if not target and os.uname().machine == "x86_64" else []
    feature = ["-D__CUDA_ARCH_FEAT_SM90_ALL"] if arch.endswith("a") else []
    front = [compiler, *target, "-std=c++17", "-I" + headers, "-include", headers + "/simt.h",
             *keep, "-D__CUDACC__", f"-D__CUDA_ARCH__={int(arch.rstrip('a')) * 10}", *feature]
    plain = run(*front, "-E", "-x", "c++", *machine, *depfile, source, stdout=subprocess.PIPE)
    if depfile:
        with open(words.MF, "a", encoding="utf-8") as deps:
            deps.write(f"{out}: {__file__} {translate.__file__}\n")
    try:
        text = translate.translate(plain, headers)
    except translate.Unknown as unknown:
        sys.exit(str(unknown))
    except (IndexError, ValueError, StopIteration):
        sys.exit(f"{source}: error: a bracket, <<< or asm is not closed")
    back = [compiler, *target, "-std=c++17", "-x", "c++-cpp-output", *CODE, *machine]
    if words.strict:
        run(*back, "-fsyntax-only", "-", input=plain_vectors(text))
    middle = out + ".ii"
    pathlib.Path(middle).write_text(UNROLL.sub("", text), encoding="utf-8")
    made = out + ".o" if words.shared else out
    run(*back, *HOOKS, "-c", middle, "-o", made)
    if words.shared:
        run(compiler, "-shared", "-fPIC", "-O1", "-I" + headers, str(HERE / words.shared), made,
            "-o", out, str(HERE / "libsimt.a"), *WATCHED, *LIBRARIES)


def plain_vectors(text):
    """float2 and float4 as nvcc has them, not clang's: without an index and operators."""
    return re.sub(r"typedef (\w+) (\w+)([24]) __attribute__\(\(ext_vector_type\(\d\)\)\);",
                  lambda m: f"struct alignas({m[3]} * sizeof({m[1]})) {m[2]}{m[3]} "
                            f"{{ {m[1]} {'x, y' if m[3] == '2' else 'x, y, z, w'}; }};", text)


if __name__ == "__main__":
    main()
