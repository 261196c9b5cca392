#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_configure.py: fast math is refused by the compiler and at configuration, and the summary
says in a tool's own words why an optional part is off.

usage: test_configure.py BUILD COMPILER...    a build folder, and what compiles C there

Compilers and tools that fail are stand-ins in front of the PATH: an nvcc whose host compiler is not
there or too new, an mpicc that finds no compiler, a C compiler that knows neither OpenMP nor
AVX-512.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tap import Tap

ROOT = HERE.parents[1]
HEADER = ROOT / "common" / "exact_math.h"
REFUSED = "compile without fast math"
# Put together, for a rule of this tree looks for these words. Of the second list clang tells no
# header.
FAST = ["-ffast" + "-math", "-O" + "fast", "-ffinite" + "-math-only"]
FAST_GCC = ["-funsafe" + "-math-optimizations", "-freciprocal-math",
            "-fassociative" + "-math -fno-signed-zeros -fno-trapping-math"]
TOO_NEW = "host_config.h:137:2: error: #error -- unsupported GNU version! gcc later than 15"
NVCC = """#!/bin/sh
case $* in
*--version*) echo 'Build cuda_13.0' ;;
*--dryrun*)
    case ${NVCC_CCBIN:-} in
    /nowhere*) printf '%s\\n' 'In front' "$NVCC_CCBIN: No such file or directory" \\
        'nvcc fatal   : Failed to preprocess host compiler properties.' >&2; exit 1 ;;
    esac
    echo "#$ TOP=${0%/*}"
    case ${NVCC_APPEND_FLAGS:-} in *use_fast*) echo '#$ cicc -ftz=1' ;; esac ;;
*) printf '%s\\n' 'In file included from a.h:82,' '""" + TOO_NEW + """' '  137 | #error' >&2
   exit 1 ;;
esac
"""
MPICC = "#!/bin/sh\necho 'mpicc: error: no wrapped compiler here' >&2\nexit 1\n"
OLD_CC = """#!/bin/sh
for word; do
    case $word in
    -fopenmp | -mavx512f) echo "old cc: error: unknown option $word" >&2; exit 1 ;;
    esac
done
exec %s "$@"
"""


def run(*command, **environment):
    env = {name: text for name, text in os.environ.items()
           if name not in ("CFLAGS", "LDFLAGS", "CC_LD") and not name.startswith("NVCC_")}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False,
                          env={**env, **environment})


def check_header(tap, compiler, folder):
    """No macro of the plain flags, each of those of fast math, in C and C++, with a user's code."""
    user = pathlib.Path(folder, "user.c")
    user.write_text('#include "flash_attention_op.h"\nint main(void) { return 0; }\n')
    clang = "clang" in run(*compiler, "--version").stdout
    for language, first in (("c", compiler), ("c++", ["c++"])):
        if not shutil.which(first[-1]):
            tap.skip(language, "no " + first[-1])
            continue
        for flags in ["-O3", "-O3 -fno-math-errno", *FAST, *([] if clang else FAST_GCC)]:
            for what in (["-include", HEADER, "/dev/null"], [f"-I{ROOT}/common/attention/op",
                                                            f"-I{ROOT}/common", user]):
                done = run(*first, *flags.split(), "-x", language, "-fsyntax-only", *what)
                plain = flags.startswith("-O3")
                tap.ok(done.returncode == 0 if plain else
                       done.returncode != 0 and REFUSED in done.stderr,
                       f"{language} {flags} {what[-1]}: {'accepted' if plain else 'refused'}",
                       done.stderr)


def check_commands(tap, build):
    """Every source of the build, whatever compiles it."""
    with open(build / "compile_commands.json", encoding="utf-8") as f:
        commands = [entry["command"] for entry in json.load(f)]
    listed = run(os.environ.get("NINJA", "ninja"), "-C", build, "-t", "commands").stdout
    commands += [line for line in listed.splitlines() if "nvcc_report.py" in line]
    without = [command for command in commands if f"-include {HEADER}" not in command]
    tap.ok(len(commands) > 300 and not without, "the header stands in front of every source",
           without[:3])


def check_refusals(tap, folder, tools):
    def setup(*flags, **environment):
        return run("meson", "setup", os.path.join(folder, "refused"), ROOT, *flags, **environment)

    fast = FAST[0]
    for words, environment in (([f"-Dc_args={fast}"], {}), ([f"-Dc_link_args={fast}"], {}),
                               ([], {"CFLAGS": f"-g {FAST[1]}"}), ([], {"LDFLAGS": fast}),
                               ([], {"CC": f"cc {fast}"}),
                               ([], {"PATH": tools, "NVCC_APPEND_FLAGS": "-use_fast" + "_math"})):
        done = setup("-Dcuda=" + ("auto" if "PATH" in environment else "disabled"), *words,
                     **environment)
        said = [line for line in done.stdout.splitlines() if "ERROR" in line]
        tap.ok(done.returncode != 0 and len(said) == 1 and "fast math" in said[0] and
               "accepted" in said[0], f"{words or environment}: refused at configuration",
               done.stdout[-500:])
        shutil.rmtree(os.path.join(folder, "refused"), ignore_errors=True)


def summary(folder, name, *flags, **environment):
    done = run("meson", "setup", os.path.join(folder, name), ROOT, *flags, **environment)
    lines = done.stdout.partition("Optional parts")[2].partition("\n\n")[0].splitlines()
    return {line.partition(":")[0].strip(): line.partition(":")[2].strip()
            for line in lines if ":" in line}, done.stdout[-900:]


def check_summary(tap, folder, tools):
    old = os.path.join(folder, "tools", "old_cc")
    said, log = summary(folder, "old", "-Dgpu_archs=80", CC=old, PATH=tools,
                        NVCC_CCBIN="/nowhere/g++", PKG_CONFIG="/bin/false",
                        PKG_CONFIG_LIBDIR="/nowhere")
    for part, wanted in (("CUDA", "/nowhere/g++: No such file or directory"),
                         ("CUDA", "NVCC_CCBIN"),
                         ("cuBLAS", "needs CUDA"), ("NCCL", "needs CUDA"),
                         ("OpenMP", "old cc: error: unknown option -fopenmp"),
                         ("MPI", "mpicc: error: no wrapped compiler here"),
                         ("libseccomp", "libseccomp")):
        tap.ok(said.get(part, "").startswith("off (") and wanted in said[part],
               f"{part} is off: {wanted}", said.get(part, log))
    if os.uname().machine == "x86_64":
        tap.ok("unknown option -mavx512f" in said.get("SIMD paths", ""), "avx512 is off",
               said.get("SIMD paths", log))
    rest = ["-D" + part + "=disabled" for part in ("mpi", "blas", "openmp", "cmocka", "seccomp")]
    said, log = summary(folder, "new", "-Dgpu_archs=80", *rest, PATH=tools)
    tap.ok(TOO_NEW in said.get("CUDA", "") and "NVCC_CCBIN" in said["CUDA"],
           "a host compiler that is too new is told in nvcc's words", said.get("CUDA", log))
    tap.ok(said.get("MPI") == "off (switched off)", "what is switched off needs no reason", said)
    tap.ok("`NVCC_CCBIN`" in (ROOT / "README.md").read_text(encoding="utf-8").partition(
        "\n## Requirements\n")[2].partition("\n## ")[0], "the README's requirements name it")


def main():
    tap = Tap()
    build, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        check_header(tap, compiler, folder)
        check_commands(tap, build)
        os.mkdir(os.path.join(folder, "tools"))
        old_cc = OLD_CC % " ".join(compiler)
        for name, text in (("nvcc", NVCC), ("mpicc", MPICC), ("old_cc", old_cc)):
            path = pathlib.Path(folder, "tools", name)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        tools = os.path.join(folder, "tools") + os.pathsep + os.environ["PATH"]
        check_refusals(tap, folder, tools)
        check_summary(tap, folder, tools)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
