#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""simt_library.py: common/simt, a model of a GPU, as a library for steps and submissions.

It is compiled once and kept in build/learn_gpu; a newer source compiles it again. What a newer
build/simt has compiled serves, too.
As a program: compiles it now, for whom comes later.

Interface:
- missing(): what it needs and is not here, or "".
- library(): its path. link_words(): what a program is linked with. Missing: what it takes.
"""
import concurrent.futures
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMT = ROOT / "common" / "simt"
BUILT = ROOT / "build" / "simt" / "common" / "simt" / "libsimt.a.p"
FLAGS = ["-std=c++17", "-O2", "-g1", "-fPIC", "-fno-omit-frame-pointer", "-fdeclspec",
         *(["-mf16c", "-mfma"] if os.uname().machine == "x86_64" else [])]


class Missing(Exception):
    """What is not here, and how one gets it."""


def missing():
    found = [name for name in ("clang++", "llvm-symbolizer") if not shutil.which(name)]
    if not pathlib.Path("/usr/include/boost/context/detail/fcontext.hpp").exists():
        found.append("Boost.Context")
    return " and ".join(found)


def compile_file(path, out):
    ccache = ["ccache"] if shutil.which("ccache") else []
    run = subprocess.run([*ccache, "clang++", *FLAGS, "-c", path, "-o", out], capture_output=True,
                         text=True, errors="replace", check=False)
    return run.stderr if run.returncode else ""


def compile_all(sources, folder):
    print("building the model of a GPU, once: half a minute", file=sys.stderr)
    objects = [folder / (path.stem + ".o") for path in sources]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = "".join(pool.map(compile_file, sources, objects))
    if said:
        raise Missing(f"a compiler that takes common/simt: {said[:2000]}")
    return objects


def library():
    if missing():
        raise Missing(f"{missing()}; run: sudo apt-get install -y --no-install-recommends clang "
                      "llvm libboost-context-dev")
    folder = ROOT / "build" / "learn_gpu"
    made = folder / "libsimt.a"
    folder.mkdir(parents=True, exist_ok=True)
    sources = list(SIMT.glob("*.cpp"))
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in [
            *sources, *SIMT.glob("*.h"), *SIMT.glob("include/*.h"), pathlib.Path(__file__)])
        if not made.is_file() or made.stat().st_mtime < newest:
            objects = [BUILT / (path.stem + ".simt.o") for path in sources]
            if not all(path.is_file() and path.stat().st_mtime > newest for path in objects):
                objects = compile_all(sources, folder)
            new = folder / "new.a"
            new.unlink(missing_ok=True)
            subprocess.run(["ar", "rcs", new, *objects], check=True)
            os.replace(new, made)
    return made


def link_words():
    return [library(), "-l:libboost_context.a", "-lstdc++", "-lm", "-ldl", "-lpthread"]


if __name__ == "__main__":
    try:
        library()
    except Missing as why:
        sys.exit(f"simt_library: found no {why}")
