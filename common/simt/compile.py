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


def main():
    compiler, *words = sys.argv[1:]
    keep, depfile, target, out, source, arch, shared = [], [], [], None, None, "80", None
    is_strict = "--strict" in words
    it = iter(words)
    for word in it:
        if word.startswith("--arch="):
            arch = word[7:]
        elif word == "-o":
            out = next(it)
        elif word == "--shared":
            shared = str(HERE / next(it))
        elif word in ("-MF", "-MT"):
            depfile += [word, next(it)]
        elif word == "-MD":
            depfile.append(word)
        elif word in ("-I", "-isystem", "-D", "-include"):
            keep += [word, next(it)]
        elif word.startswith(("-I", "-D")):
            keep.append(word)
        elif word.startswith("--target="):
            target = [word]
        elif word.endswith(".cu"):
            source = word
    headers = str(HERE / "include")
    machine = ["-mf16c", "-mfma"] if not target and os.uname().machine == "x86_64" else []
    feature = ["-D__CUDA_ARCH_FEAT_SM90_ALL"] if arch.endswith("a") else []
    front = [compiler, *target, "-std=c++17", "-I" + headers, "-include", headers + "/simt.h",
             *keep, "-D__CUDACC__", f"-D__CUDA_ARCH__={int(arch.rstrip('a')) * 10}", *feature]
    plain = subprocess.run([*front, "-E", "-x", "c++", *machine, *depfile, source],
                           stdout=subprocess.PIPE, text=True, check=False)
    if plain.returncode:
        sys.exit(plain.returncode)
    if depfile:
        with open(depfile[depfile.index("-MF") + 1], "a", encoding="utf-8") as deps:
            deps.write(f"{out}: {__file__} {translate.__file__}\n")
    try:
        text = translate.translate(plain.stdout, headers)
    except translate.Unknown as unknown:
        sys.exit(str(unknown))
    except (IndexError, ValueError, StopIteration):
        sys.exit(f"{source}: error: a bracket, <<< or asm is not closed")
    if is_strict:
        done = subprocess.run([compiler, *target, "-std=c++17", "-fsyntax-only", "-x",
                               "c++-cpp-output", *CODE, *machine, "-"], input=plain_vectors(text),
                              text=True, check=False)
        if done.returncode:
            sys.exit(done.returncode)
    middle = out + ".ii"
    pathlib.Path(middle).write_text(text, encoding="utf-8")
    made = out + ".o" if shared else out
    done = subprocess.run([compiler, *target, "-std=c++17", "-c", "-x", "c++-cpp-output", *CODE,
                           *machine, *HOOKS, middle, "-o", made], check=False)
    if shared and done.returncode == 0:
        done = subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-I" + headers, shared, made,
                               "-o", out, str(HERE / "libsimt.a"), *WATCHED, *LIBRARIES],
                              check=False)
    sys.exit(done.returncode)


def plain_vectors(text):
    """float2 and float4 as nvcc has them, not clang's: without an index and operators."""
    return re.sub(r"typedef (\w+) (\w+)([24]) __attribute__\(\(ext_vector_type\(\d\)\)\);",
                  lambda m: f"struct alignas({m[3]} * sizeof({m[1]})) {m[2]}{m[3]} "
                            f"{{ {m[1]} {'x, y' if m[3] == '2' else 'x, y, z, w'}; }};", text)


if __name__ == "__main__":
    main()
