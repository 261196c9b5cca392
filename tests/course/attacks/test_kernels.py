#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_kernels.py: CUDA submissions that compute elsewhere or hide from the model of a GPU.

    test_kernels.py BUILD

Each is a right result by the wrong way. What is refused for its text is not compiled, so that it is
checked by cuda.refused alone; one of them is graded, too.
"""
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parent), str(ROOT / "tests"), str(ROOT / "common" / "course")]
import cuda
import grade as grade_tool
import similarity
import simt_library
import suite as suites
from tap import Tap
from test_cuda import SOLUTION, grade, sandbox_here, written

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
NOTHING = "    return 0;\n}\n"
CALL = "    on_cpu(Q, K, V, O, lse, N, d);\n    return 0;\n}\n"
# reads all inputs and writes all outputs, as a kernel has to
MOVER = HEAD.replace("%", "%%") + """#include <stdlib.h>
__global__ void move(const float *in, const float *done, float *to, int n, int all)
{
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n && in[i] + in[n + i] + in[2 * n + i] == 12345.0f)
        to[i] = 0.0f;
    if (i < all)
        to[i] = done[i];
}
""" + SIGNATURE + """{
    size_t n = (size_t)N * d, b = n * sizeof(float), all = b + N * sizeof(float);
    float *p, *h = (float *)malloc(all);
    cudaMalloc(&p, 3 * b + 2 * all);
    cudaMemcpy(p, Q, b, cudaMemcpyHostToDevice);
    cudaMemcpy(p + n, K, b, cudaMemcpyHostToDevice);
    cudaMemcpy(p + 2 * n, V, b, cudaMemcpyHostToDevice);
    %s
    float *done = p + 3 * n, *to = done + n + N;
    cudaMemcpy(done, h, all, cudaMemcpyHostToDevice);
    move<<<(n + N + 127) / 128, 128>>>(p, done, to, n, n + N);
    cudaMemcpy(O, to, b, cudaMemcpyDeviceToHost);
    cudaMemcpy(lse, to + n, N * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(p);
    free(h);
    return 0;
}
"""
# name, the text, what is said
DEEDS = [
    ("no launch", HEAD + SIGNATURE + "{\n" + NOTHING, "it launched no kernel"),
    ("no launch, and the host computes", HEAD + SIGNATURE + "{\n" + CALL,
     "the host copies Q, K and V, and only kernels read them"),
    ("an empty launch", HEAD + "__global__ void nothing(void)\n{\n}\n" + SIGNATURE +
     "{\n    nothing<<<1, 32>>>();\n" + NOTHING, "read 0 sectors of 32 bytes"),
    ("a kernel that sees one tile", HEAD + "__global__ void look(const float *Q, float *to)\n"
     "{\n    *to = Q[threadIdx.x];\n}\n" + SIGNATURE +
     "{\n    float *p;\n    cudaMalloc(&p, 4096);\n    cudaMemset(p, 0, 4096);\n"
     "    look<<<1, 1>>>(p, p + 64);\n    cudaFree(p);\n" + NOTHING, "the result depends on"),
    ("a kernel on the host's memory", HEAD + "__global__ void look(const float *Q, float *to)\n"
     "{\n    *to = Q[threadIdx.x];\n}\n" + SIGNATURE +
     "{\n    look<<<1, 1>>>(Q, O);\n" + CALL, "cudaMalloc did not give"),
    ("kernels that move what the host computed", MOVER % "on_cpu(Q, K, V, h, h + n, N, d);",
     "the host copies Q, K and V, and only kernels read them"),
    ("the same with inputs that came back from the device", MOVER % """
    float *in = (float *)malloc(3 * b);
    cudaMemcpy(in, p, 3 * b, cudaMemcpyDeviceToHost);
    on_cpu(in, in + n, in + 2 * n, h, h + n, N, d);
    free(in);""", "bytes came back to the host"),
    ("the same with inputs in memory that both share", MOVER % """
    float *in;
    cudaMallocManaged(&in, 3 * b);
    cudaMemcpy(in, p, 3 * b, cudaMemcpyDefault);
    on_cpu(in, in + n, in + 2 * n, h, h + n, N, d);
    cudaFree(in);""", "bytes came back to the host"),
    ("the same with inputs that a kernel left in a variable", MOVER.replace(
        "__global__", "__device__ float left[3 * 64 * 128];\n__global__ void keep(const float *in)"
        "\n{\n    left[blockIdx.x * 64 + threadIdx.x] = in[blockIdx.x * 64 + threadIdx.x];\n}\n"
        "__global__", 1) % """
    keep<<<3 * N, 64>>>(p);
    on_cpu(left, left + n, left + 2 * n, h, h + n, N, d);""", "bytes came back to the host"),
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
    ("a raw string that opens a comment",
     'const char *a = R"(\n/*\n)"; SIMT_QUIET void f(); // */', 'R"'),
    ("a comment that a directive opens", "#define A /*\n' */ SIMT_QUIET void f(); // '",
     "SIMT_QUIET"),
    ("a number with a quote", "int a = 1'0; char c = '/*'; SIMT_QUIET void f(); // */", "1'"),
    ("a header's name with a comment's start",
     "#if __has_include(</*>)\n#endif\nSIMT_QUIET void f(); // */", "__has_include"),
    ("a raw string of another kind", 'const char8_t *a = u8R"(/*)";', 'u8R"'),
]
# after the preprocessor and translate.py
QUIET = 'no_sanitize("thread")'
HIDDEN = [
    ("a second name in a list", f"struct __attribute__((aligned(16), {QUIET})) A {{}};"),
    ("a second list", f"__attribute__((noinline)) __attribute__((aligned(8) , {QUIET})) void f();"),
    ("an attribute in an argument",
     f"struct __attribute__((aligned(sizeof([] __attribute__(({QUIET})) {{ }})))) A {{}};"),
    ("a pragma of a macro", "int a;\n#pragma clang optimize off\nint b;"),
]
SHOWN = ("inline __attribute__((always_inline)) void f(struct __attribute__((aligned(sizeof(int) "
         "* 4), noinline)) A a);\n#pragma unroll\n__attribute__((aligned(16))) float a[4];\n")
ACCEPTED = ['printf("R\\""); float R = 1.0f; // R"(',
            "#define N 64 // the 1'st, don't\n#define S \"/*\"\nwchar_t c = L'1', d = u8'2';",
            '#pragma unroll\nfor (int __attributes = 0; a[b[1]];) // __attribute__ [[ ##\n',
            'printf("[[ %d ## __attribute__");', "x[i] [j] = y;", SOLUTION]


def check_counts(tap, build):
    """The counts come from the submission's memory: library code can write any there."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        path = folder / "one.suite"
        path.write_text("contract=flash_cuda\n : -N 3 -d 64\n", encoding="utf-8")
        for name in ("mine.c", "mine.so", "folder"):
            (folder / name).mkdir() if name == "folder" else (folder / name).write_text("")
            status, rows, err = grade(build, path, [folder / name])
            tap.ok(status == 2 and not rows and "found no .cu file" in err,
                   f"flash_cuda: {name} is refused", err)
        odd = [*((n, "NAN") for n in range(7)), (3, "INFINITY"), (0, "-1"), (4, "9e9")]
        for at, value in odd:
            (folder / "counts.c").write_text(
                "#include <math.h>\nint flash_cuda_variant(const float *Q, const float *K, const "
                "float *V, float *O, float *lse, int N, int d, int causal, double *counts)\n{\n"
                "    for (int n = 0; n < 7; n++)\n        counts[n] = 1e9;\n"
                f"    counts[{at}] = {value};\n    return 0;\n}}\n", encoding="utf-8")
            subprocess.run(["cc", "-shared", "-fPIC", "counts.c", "-o", "counts.so"], cwd=folder,
                           check=True)
            options = grade_tool.parse([str(path), "counts.so", "--build", str(build),
                                        "--so-sandbox", sandbox_here(build)])
            rows, why = grade_tool.ask_judge(suites.read(str(path)), [folder / "counts.so"], [0],
                                             options)
            tap.ok(rows.get((0, 0), {}).get("status") == "refused" and
                   "overwrote the counts" in rows[0, 0]["message"],
                   f"counts that no kernel has: {at} is {value}", f"{rows} {why}")


def main():
    tap, build = Tap(), pathlib.Path(sys.argv[1]).resolve()
    for name, text, said in REFUSED:
        tap.ok(said in cuda.refused(text), f"refused: {name}", cuda.refused(text))
    for name, text in HIDDEN:
        tap.ok("behind a macro" in cuda.hidden_attribute(text), f"found: {name}")
    tap.ok(not cuda.hidden_attribute(SHOWN), "CUDA's own attributes", cuda.hidden_attribute(SHOWN))
    for path in ("./mine.cu", "../source/mine.cu", "/proc/self/cwd/mine.cu", "part.h"):
        tap.ok(similarity.own_text(f'# 1 "../include0/a.h"\nint no;\n# 1 "{path}"\nint a;',
                                   {"mine.cu"}) == "int a;", f"own by the path {path}")
    for text in ACCEPTED:
        tap.ok(not cuda.refused(text), f"accepted: {text[:30]!r}", cuda.refused(text))
    check_counts(tap, build)
    if simt_library.missing():
        tap.skip("kernels that compute elsewhere", simt_library.missing())
        return tap.done()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        suite = folder / "one.suite"
        suite.write_text("contract=flash_cuda time=60 memory=2048\n : -N 33 -d 64\n",
                         encoding="utf-8")
        hides = "#define OPEN [\nOPEN [clang::no_sanitize(\"thread\")]] __global__"
        behind = SOLUTION.replace("__global__", hides, 1)
        quiet = f"#define Q16 16), {QUIET[:-1]}\n__align__(Q16) __global__"
        deeds = [*DEEDS, ("an attribute behind a macro", behind, "behind a macro"),
                 ("the same in a file that includes itself", '#ifndef ONCE\n#define ONCE\n'
                  f'#include "./mine.cu"\n#else\n{behind}#endif\n', "behind a macro"),
                 ("a macro that adds to a list of attributes",
                  SOLUTION.replace("__global__", quiet, 1), "behind a macro"),
                 ("assembly that is no PTX", SOLUTION.replace(
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
