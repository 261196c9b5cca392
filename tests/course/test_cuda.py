#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_cuda.py: assignment 6: stub, right and wrong kernels, in a model of a GPU or on a real one.

usage: test_cuda.py BUILD [--gpu]

The kernels are the solution with edits. Without --gpu they are .cu files that the judge compiles
for common/simt and runs in its sandbox. With --gpu nvcc compiles them for the GPU of this machine,
and bench.cu measures: less than a minute.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE / "solutions"), str(ROOT / "common" / "tools"),
                str(ROOT / "common" / "course")]
import changes
import handout
import simt_library
import suite as suites
from tap import Tap

PLACE = ROOT / "docs" / "course" / "6_cuda_forward"
SOLUTION = (HERE / "solutions" / "6_cuda_forward.cu").read_text(encoding="utf-8")
# what is exchanged in the solution, and the code of the hint
WRONG = [("&& j + c < N &&", "&&", "padding_seen"),
         (" && (!causal || j + c <= i)", "", "no_mask"),
         ("                    O_i[x] *= alpha;", "                    ;", "o_not_rescaled"),
         ("= O_i[x] / l_i;", "= O_i[x];", "not_normalised"),
         ("        __syncthreads();\n        for", "        for", "gpu_rule_broken"),
         ("cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost", "gpu_rule_broken")]


def written(folder, name, text, gpu):
    """The file that is graded: the source, or what nvcc makes of it."""
    path = folder / f"{name}.cu"
    path.write_text(text, encoding="utf-8")
    if gpu:
        subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", "-Xcompiler", "-fPIC",
                        f"-I{ROOT / 'docs/course/include'}", "-shared", path, "-o",
                        path.with_suffix(".so")], check=True)
    return path.with_suffix(".so") if gpu else path


def sandbox_here(build):
    """off where this machine has none, which the judge is not asked: one that it broke is strict,
    and the tests fail."""
    landlock = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)  # its version
    seccomp = "#define HAVE_SECCOMP 1" in (build / "common/attn_config.h").read_text() and \
        "\nSeccomp:" in pathlib.Path("/proc/self/status").read_text()
    return "strict" if landlock >= 1 and seccomp else "off"


def grade(build, suite, files, *words):
    """Of a suite of the assignment, or of one that this test writes."""
    sandbox = "off" if "--peer" in words else sandbox_here(build)
    run = subprocess.run([sys.executable, str(ROOT / "common/course/grade.py"),
                          str(PLACE / suite), *map(str, files), "--build", str(build),
                          "--format", "json", *map(str, words), "--so-sandbox", sandbox],
                         capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
    assert {row["sandbox"] for row in rows} <= {sandbox}, rows
    return run.returncode, rows, run.stderr


def measure(tap, build, folder, files):
    """On a GPU: a right kernel has a speed, and what is wrong has none."""
    bench = folder / "bench"
    subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", "-o", str(bench),
                    str(PLACE / "bench.cu"), "-lcublas", "-ldl"], check=True)
    status, rows, err = grade(build, "speed.gpu", files, "--peer", bench)
    tests = [row["tests"][0] for row in rows]
    tap.ok(status == 0 and len(tests) == 3 and tests[1]["status"] == "right" and
           all(test["score"] == 0 and test["status"] == "wrong" for test in tests[::2]),
           "speed.gpu: the right kernel is measured, stub and wrong one are not",
           f"{err} {tests}")
    for test in tests:
        print(f"# speed: {test['status']}: {test['score']} points: {test['message']}")


# a kernel that fills its tiles and reads none
NO_TILE = SOLUTION.replace("K_j[c][x]", "K[(head + j + c) * d + x]").replace(
    "V_j[c][x]", "V[(head + j + c) * d + x]")


def check_model(tap, build, folder):
    """In the model of a GPU: results, names of mistakes, broken rules and counters."""
    texts = {"stub": (PLACE / "stub.cu").read_text(encoding="utf-8"), "right": SOLUTION,
             "no tile": NO_TILE}
    files = [written(folder, name.replace(" ", "_"), text, False) for name, text in texts.items()]
    for suite in ("public.suite", "counters.suite"):
        status, rows, err = grade(build, suite, files)
        tap.ok(status == 0 and len(rows) == 3, f"{suite}: graded", err)
        scores = [row["score"] for row in rows] or [1, 0, 0]
        most = rows[0]["max_score"] if rows else 1
        tap.ok(scores[0] == 0 and (scores[1] == most if suite == "public.suite" else
                                   0.6 * most < scores[1]),
               f"{suite}: nothing for the stub, much for the right kernel",
               f"{scores} {json.dumps(rows[1:2])[:1500]}")
        tap.ok(scores[2] == most if suite == "public.suite" else scores[2] < 0.3 * most,
               f"{suite}: a kernel without a tile is right, and has no points for it",
               f"{scores} {json.dumps(rows[2:])[:1500]}")
    small = folder / "small.suite"
    small.write_text("contract=flash_cuda time=60 memory=2048\n : -N 77 -d 64 --causal\n"
                     " : -N 77 -d 64\n", encoding="utf-8")
    wrong = [written(folder, f"wrong{number}", SOLUTION.replace(text, instead), False)
             for number, (text, instead, _) in enumerate(WRONG)]
    status, rows, err = grade(build, small, wrong)
    tap.ok(status == 0 and len(rows) == len(wrong), "wrong kernels: graded", err)
    for (text, _, code), row in zip(WRONG, rows):
        tap.ok(text in SOLUTION and row["score"] < row["max_score"] and
               code in {test["code"] for test in row["tests"]},
               f"a wrong kernel: {code}", json.dumps(row)[:1500])


def check_changes(tap, build, folder):
    """The solution of each change has all points, the plain one at most 20 %."""
    for kind in handout.kinds(PLACE):
        suite = suites.read(PLACE / f"twist_{kind}.template", b"a key")
        drawn = folder / f"twist_{kind}.suite"
        drawn.write_text(suite.text(), encoding="utf-8")
        defines = "".join(f"#define {flag[2:].replace('=', ' ')}\n"
                          for flag in changes.numbers(suite))
        files = [written(folder, kind, defines + changes.solution(6, kind), False),
                 written(folder, f"plain_{kind}", SOLUTION, False)]
        status, rows, err = grade(build, drawn, files)
        scores = [row["score"] for row in rows]
        tap.ok(status == 0 and scores[:1] == [10] and scores[1] <= 2, f"the change {kind}",
               f"{scores} {err} {json.dumps(rows[:1])[:1500]}")


def main():
    tap, gpu = Tap(), "--gpu" in sys.argv[2:]
    build = pathlib.Path(sys.argv[1]).resolve()
    os.environ.pop("LADDER_FROM", None)
    if not gpu and simt_library.missing():
        print(f"1..0 # SKIP no {simt_library.missing()}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if gpu:  # the mask that the third forgets is not asked for there
            stub = (PLACE / "stub.cu").read_text(encoding="utf-8")
            texts = (stub, SOLUTION, SOLUTION.replace(*WRONG[2][:2]))
            measure(tap, build, folder, [written(folder, f"timed{number}", text, True)
                                         for number, text in enumerate(texts)])
        else:
            check_model(tap, build, folder)
            check_changes(tap, build, folder)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
