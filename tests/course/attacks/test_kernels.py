#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_kernels.py: CUDA submissions that compute elsewhere or hide from the model of a GPU.

    test_kernels.py BUILD

Each is a right result by the wrong way. What is refused for its text is not compiled, so that it is
checked by cuda.refused alone; one of them is graded, too.
"""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests"), str(ROOT / "common" / "course")]
import cuda
import simt_library
from tap import Tap
from test_cuda import SOLUTION, grade, written

ON_CPU = """#include <math.h>
static void on_cpu(const float *Q, const float *K, const float *V, float *O, float *lse, int N,
                   int d)
{
    for (int i = 0; i < N; i++) {
        double l = 0.0, o[128] = {};
        for (int j = 0; j < N; j++) {
            double s = 0.0;
            for (int x = 0; x < d; x++)
                s += (double)Q[i * d + x] * K[j * d + x];
            s = exp(s / sqrt((double)d));
            l += s;
            for (int x = 0; x < d; x++)
                o[x] += s * V[j * d + x];
        }
        for (int x = 0; x < d; x++)
            O[i * d + x] = (float)(o[x] / l);
        lse[i] = (float)log(l);
    }
}
"""
HEAD = '#include <cuda_runtime.h>\n#include "flash_simple.h"\n' + ON_CPU
SIGNATURE = """extern "C" int flash_simple_variant(const float *Q, const float *K, const float *V,
                                    float *O, float *lse, int N, int d, int causal)
"""
CALL = "    on_cpu(Q, K, V, O, lse, N, d);\n    return 0;\n}\n"
# name, the text, what is said
DEEDS = [
    ("no launch", HEAD + SIGNATURE + "{\n" + CALL, "it launched no kernel"),
    ("an empty launch", HEAD + "__global__ void nothing(void)\n{\n}\n" + SIGNATURE +
     "{\n    nothing<<<1, 32>>>();\n" + CALL, "read 0 sectors of 32 bytes"),
    ("a kernel that sees one tile", HEAD + "__global__ void look(const float *Q, float *to)\n"
     "{\n    *to = Q[threadIdx.x];\n}\n" + SIGNATURE +
     "{\n    float *p;\n    cudaMalloc(&p, 4096);\n    cudaMemset(p, 0, 4096);\n"
     "    look<<<1, 1>>>(p, p + 64);\n    cudaFree(p);\n" + CALL, "the result depends on"),
    ("a kernel on the host's memory", HEAD + "__global__ void look(const float *Q, float *to)\n"
     "{\n    *to = Q[threadIdx.x];\n}\n" + SIGNATURE +
     "{\n    look<<<1, 1>>>(Q, O);\n" + CALL, "cudaMalloc did not give"),
    ("a kernel that is not watched", SOLUTION.replace(
        "__global__", '__attribute__((no_sanitize("thread"))) __global__', 1), "'__attribute__'"),
]
REFUSED = [
    ("an attribute by its other spelling", '[[clang::no_sanitize("thread")]] void f();', "[["),
    ("the same in digraphs", "<:<: gnu::naked :>:> void f();", "<:<:"),
    ("a pragma", "#pragma clang optimize off", "#pragma clang optimize off"),
    ("a pragma in two lines", "#prag\\\nma clang attribute push(x, apply_to = function)",
     "#pragma clang attribute push"),
    ("a pragma as a word", '_Pragma("clang optimize off")', "_Pragma"),
    ("a word made of two", "#define A(x) __attri ## x", "##"),
    ("the model's counters", "long simt_count(const char *);", "simt_count"),
    ("the model's hooks", "void __tsan_read4(void *p) { }", "__tsan_read4"),
    ("code in assembly, by another word", '__asm("nop");', "__asm"),
]
ACCEPTED = ['#pragma unroll\nfor (int __attributes = 0; a[b[1]];) // __attribute__ [[ ##\n',
            'printf("[[ %d ## __attribute__");', "x[i] [j] = y;", SOLUTION]


def main():
    tap, build = Tap(), pathlib.Path(sys.argv[1]).resolve()
    for name, text, said in REFUSED:
        tap.ok(said in cuda.refused(text), f"refused: {name}", cuda.refused(text))
    for text in ACCEPTED:
        tap.ok(not cuda.refused(text), f"accepted: {text[:30]!r}", cuda.refused(text))
    if simt_library.missing():
        tap.skip("kernels that compute elsewhere", simt_library.missing())
        return tap.done()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        suite = folder / "one.suite"
        suite.write_text("contract=flash_cuda time=60 memory=2048\n : -N 33 -d 64\n",
                         encoding="utf-8")
        hides = "#define OPEN [\nOPEN [clang::no_sanitize(\"thread\")]] __global__"
        deeds = [*DEEDS, ("an attribute behind a macro", SOLUTION.replace("__global__", hides, 1),
                          "behind a macro"), ("assembly that is no PTX", SOLUTION.replace(
            "    if (failed)\n", '    asm("cpuid");\n    if (failed)\n', 1), "'cpuid'")]
        files = [written(folder, f"deed{number}", text, False)
                 for number, (_, text, _) in enumerate(deeds)]
        status, rows, err = grade(build, suite, files)
        tap.ok(status == 0 and len(rows) == len(deeds), "deeds are graded", err)
        for (name, _, said), row in zip(deeds, rows):
            test = row["tests"][0]
            tap.ok(row["score"] == 0 and said in test["message"], f"no points: {name}",
                   f"{test['status']} {test['message']} {row['compiler'][-600:]}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
