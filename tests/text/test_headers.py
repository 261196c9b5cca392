#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_headers.py: each header of common/, the stages and the course compiles alone as C11, and as
C++17.

usage: test_headers.py BUILD [CUDA-INCLUDES]    BUILD/common holds the generated attn_config.h

A header that leans on what its users happen to include first breaks in the next user's file.
That is seen in C. C++ reads the headers of a stage one after the other in one file, because its
<math.h> alone takes a fifth of a second, and fewer at a time where that fails: two may each have a
`smaller`. Headers that need CUDA or MPI are left out where those headers are missing; *.cuh are
nvcc's, not looked at.

And each program's sources compile in a build that has found no optional part, as they would on a
machine without CUDA, MPI or BLAS: no name there is known from a header of what is missing.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tree
from tap import Tap

LANGUAGES = [("C11", "cc", ["-x", "c", "-std=c11"], 1),
             ("C++17", "c++", ["-x", "c++", "-std=c++17"], 1000)]
COURSE = "docs/course/include/"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Werror", "-fsyntax-only"]


def compile_together(compiler, flags, includes, headers):
    """The compiler's complaints about a file that includes these headers twice and nothing else."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as source:
        source.write("".join(f'#include "{header}"\n' * 2 for header in headers))
        source.flush()
        run = subprocess.run([compiler, *flags, *WARNINGS, *includes, source.name],
                             capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else ""


def complaints(compiler, flags, includes, headers, at_once):
    """{header: what the compiler says of it}, with at most so many headers in one file."""
    if len(headers) <= at_once:
        found = compile_together(compiler, flags, includes, headers)
        if not found or len(headers) == 1:
            return {header: found for header in headers}
    half = len(headers) // 2
    return {header: found for part in (headers[:half], headers[half:])
            for header, found in complaints(compiler, flags, includes, part, at_once).items()}


def check_without_parts(tap, build, includes):
    """With the build's own configuration, but for what is optional. Files that are of a part (they
    include its headers) are not in such a build; the instruction sets are the processor's."""
    config = (build / "common" / "attn_config.h").read_text(encoding="utf-8")
    parts = re.compile(r"#define (HAVE_(?!ISA)\w+) 1")
    of_a_part = re.compile(r'#include ["<](\w+_mpi|heartbeat|mpi|cuda\w*)\.h')
    sources = [name for name in tree.sources(".c") if name[0] == "0" and
               (name.endswith("/main.c") or name.startswith("06_ring_burst/")) and
               not of_a_part.search((tree.ROOT / name).read_text(encoding="utf-8"))]
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "attn_config.h").write_text(parts.sub(r"#undef \1", config),
                                                         encoding="utf-8")
        run = subprocess.run(["cc", "-std=gnu11", "-Werror=implicit-function-declaration",
                              "-fsyntax-only", f"-I{folder}", *includes,
                              *(f"-I{stage}" for stage in build.glob("0*_*")),  # *_rungs.h
                              *(str(tree.ROOT / name) for name in sources)],
                             capture_output=True, text=True, check=False)
    tap.ok(run.returncode == 0 and len(sources) > 40,
           f"{len(sources)} sources compile without optional parts", run.stderr[:900])


def mpi_includes():
    """-isystem for each folder that mpicc looks into; nothing without mpicc."""
    if not shutil.which("mpicc"):
        return []
    run = subprocess.run(["mpicc", "-show"], capture_output=True, text=True, check=False)
    return [f"-isystem{word[2:]}" for word in run.stdout.split() if word.startswith("-I")]


def main():
    tap = Tap()
    build = pathlib.Path(sys.argv[1])
    cuda = sys.argv[2] if len(sys.argv) > 2 else ""
    headers = [n for n in tree.sources(".h") if n.startswith(("common/", "0", COURSE)) and
               not n.startswith("common/simt/")]  # C++, and instead of CUDA's own
    folders = sorted({str(tree.ROOT / n.split("/")[0]) for n in headers if n[0] != "d"} |
                     {str(build / "common"), str(tree.ROOT / "common/attention"),
                      str(tree.ROOT / COURSE)})
    includes = [f"-I{folder}" for folder in folders] + ([f"-isystem{cuda}"] if cuda else [])
    mpi = mpi_includes()
    includes += mpi
    for language, compiler, flags, at_once in LANGUAGES:
        if not shutil.which(compiler):
            tap.skip(language, f"no {compiler}")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".h") as bad:
            bad.write("int f(unknown_t x);\n")
            bad.flush()
            good = [tree.ROOT / "common" / name for name in ("attention/attn.h", "tensor.h")]
            bad_one = [good[0], bad.name, good[1]]
            found = complaints(compiler, flags, includes, bad_one, at_once)
            tap.ok([h for h in bad_one if found[h]] == [bad.name],
                   f"{language}: a header that does not stand alone is seen", str(found))
        here = {}
        for name in headers:
            text = (tree.ROOT / name).read_text(encoding="utf-8")
            needs = [part for part, sign, there in (("CUDA", "<cuda", cuda),
                                                    ("MPI", "<mpi.h>", mpi))
                     if sign in text and not there]
            if needs:
                tap.skip(f"{language}: {name}", f"needs the headers of {needs[0]}")
            else:
                here.setdefault(name.split("/")[0], []).append(tree.ROOT / name)
        for headers_of_one in here.values():
            found = complaints(compiler, flags, includes, headers_of_one, at_once)
            for path in headers_of_one:
                tap.ok(not found[path], f"{language}: {path.relative_to(tree.ROOT)}",
                       found[path][:600])
    if shutil.which("cc"):
        check_without_parts(tap, build, includes)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
