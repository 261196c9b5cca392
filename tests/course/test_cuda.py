#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_cuda.py: assignment 6: stub, right and wrong kernels, on a pretended GPU or a real one.

usage: test_cuda.py BUILD [--gpu]

The kernels are the stub with a body. Without --gpu they are compiled as C++ with
pretend/cuda_runtime.h, where one thread of the CPU plays those of a block in turn. With --gpu nvcc
compiles them for the GPU of this machine, and bench.cu measures, too: less than a minute in all.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from tap import Tap

PLACE = ROOT / "docs" / "course" / "6_cuda_forward"
BODY = """{
    enum { BR = 128, BC = 32, MOST = 128 };
    __shared__ float K_j[BC][MOST], V_j[BC][MOST];
    const size_t head = (size_t)blockIdx.y * (size_t)N;
    const int i = (int)(blockIdx.x * BR + threadIdx.x);
    float q[MOST], O_i[MOST], m_i = -INFINITY, l_i = 0.0f;
    for (int x = 0; x < d; x++) {
        q[x] = i < N ? Q[(head + i) * d + x] : 0.0f;
        O_i[x] = 0.0f;
    }
    for (int j = 0; j < N; j += BC) {
        for (int e = (int)threadIdx.x; e < BC * d; e += BR) {
            const int key = j + e / d;
            K_j[e / d][e % d] = key < N ? K[(head + key) * d + e % d] : 0.0f;
            V_j[e / d][e % d] = key < N ? V[(head + key) * d + e % d] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < BC && j + c < N && (!causal || j + c <= i); c++) {
            float s = 0.0f, sums[16] = {}, p;
            for (int x = 0; x < d; x += 16) // d is a multiple of 16: a vector of the CPU
                for (int e = 0; e < 16; e++)
                    sums[e] += q[x + e] * K_j[c][x + e];
            for (int e = 0; e < 16; e++)
                s += sums[e];
            s *= 1.0f / sqrtf((float)d);
            if (s > m_i) {
                const float alpha = expf(m_i - s);
                l_i *= alpha;
                for (int x = 0; x < d; x++)
                    O_i[x] *= alpha;
                m_i = s;
            }
            p = expf(s - m_i);
            l_i += p;
            for (int x = 0; x < d; x++)
                O_i[x] += p * V_j[c][x];
        }
        __syncthreads();
    }
    for (int x = 0; i < N && x < d; x++)
        O[(head + i) * d + x] = O_i[x] / l_i;
    if (i < N)
        lse[head + i] = m_i + logf(l_i);
}
"""
# what is exchanged in the body, and the code of the hint
WRONG = [("&& j + c < N &&", "&&", "padding_seen"),
         (" && (!causal || j + c <= i)", "", "no_mask"),
         ("                    O_i[x] *= alpha;", "                    ;", "o_not_rescaled"),
         ("= O_i[x] / l_i;", "= O_i[x];", "not_normalised")]


def source(body):
    text = (PLACE / "stub.cu").read_text(encoding="utf-8")
    whole = text.replace("\n{\n}\n", "\n" + body, 1)
    return whole.replace("dim3 grid(1,", "dim3 grid((unsigned)(N + 127) / 128,", 1)


def compiled(tap, folder, name, text, gpu):
    path, made = folder / f"{name}.cu", folder / f"{name}.so"
    include = f"-I{ROOT / 'docs/course/include'}"
    if gpu:
        command = ["nvcc", "-O3", "-std=c++17", "-arch=native", "-Xcompiler", "-fPIC", include]
    else:
        text, launches = re.subn(r"(\w+)<<<(\w+), (\w+), 0, stream>>>\((.*?)\);",
                                 r"pretend_launch(\2, \3, [&] { \1(\4); });", text)
        tap.ok(launches == 1, f"{name}: one launch")
        command = [*os.environ.get("CXX", "c++").split(), "-x", "c++", "-std=c++17", "-O3",
                   "-march=native", "-fPIC", f"-I{HERE / 'pretend'}", include]
    path.write_text(text, encoding="utf-8")
    run = subprocess.run([*command, "-shared", str(path), "-o", str(made)], capture_output=True,
                         text=True, check=False)
    tap.ok(run.returncode == 0, f"{name} compiles", run.stderr[-1500:])
    return made


def grade(build, suite, files, *words):
    run = subprocess.run([sys.executable, str(ROOT / "common/course/grade.py"), str(PLACE / suite),
                          *map(str, files), "--build", str(build), "--so-sandbox", "off",
                          "--format", "json", "--jobs", "1", *map(str, words)],
                         capture_output=True, text=True, check=False)
    return run.returncode, [json.loads(line) for line in run.stdout.split("\n")[:-1]], run.stderr


def measure(tap, build, folder, files):
    """On a GPU: a right kernel has a speed, and what is wrong has none."""
    bench = folder / "bench"
    subprocess.run(["nvcc", "-O3", "-std=c++17", "-arch=native", "-o", str(bench),
                    str(PLACE / "bench.cu"), "-lcublas", "-ldl"], check=True)
    status, rows, err = grade(build, "speed.suite", files, "--peer", bench)
    tests = [row["tests"][0] for row in rows]
    tap.ok(status == 0 and len(tests) == 3 and tests[1]["status"] == "right" and
           all(test["score"] == 0 and test["status"] == "wrong" for test in tests[::2]),
           "speed.suite: the right kernel is measured, stub and wrong one are not",
           f"{err} {tests}")
    for test in tests:
        print(f"# speed: {test['status']}: {test['score']} points: {test['message']}")


def main():
    tap, gpu = Tap(), "--gpu" in sys.argv[2:]
    build = pathlib.Path(sys.argv[1]).resolve()
    os.environ.pop("LADDER_FROM", None)
    if not gpu and not shutil.which(os.environ.get("CXX", "c++").split()[0]):
        print("1..0 # SKIP no C++ compiler")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = [compiled(tap, folder, "stub", (PLACE / "stub.cu").read_text(encoding="utf-8"),
                          gpu), compiled(tap, folder, "right", source(BODY), gpu)]
        for number, (text, instead, _) in enumerate(WRONG):
            tap.ok(text in BODY, f"'{text.strip()}' is there")
            files.append(compiled(tap, folder, f"wrong{number}",
                                  source(BODY.replace(text, instead)), gpu))
        status, rows, err = grade(build, "public.suite", files)
        tap.ok(status == 0 and len(rows) == len(files), "graded", err)
        scores = [row["score"] for row in rows]
        tap.ok(scores and scores[0] == 0, "the stub has no points", scores)
        tap.ok(len(rows) > 1 and scores[1] == rows[1]["max_score"], "the right kernel has all",
               json.dumps(rows[1:2])[:1500])
        for (_, _, code), row in zip(WRONG, rows[2:]):
            wrong = {test["code"] for test in row["tests"] if test["status"] != "right"}
            tap.ok(wrong == {code} and row["score"] < row["max_score"], f"a wrong one: {code}",
                   json.dumps(row)[:1500])
        if gpu:
            # the mask that the third forgets is not asked for in speed.suite
            measure(tap, build, folder, [files[0], files[1], files[4]])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
