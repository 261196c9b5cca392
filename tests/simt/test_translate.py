#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The text step of simt: launches, shared memory and asm become C++; lines stay lines; what is not
modelled is an error with its line, never a guess.

usage: test_translate.py
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "common/simt")]
import translate  # noqa: E402
from tap import Tap  # noqa: E402

HEAD = '# 1 "kernel.cu"\n'


def asm(text, operands=""):
    return translate.translate(f'{HEAD}\n\nasm volatile("{text}"{operands});\n', "/none")


def refused(text, operands=""):
    try:
        return "not refused: " + asm(text, operands)
    except translate.Unknown as why:
        return str(why)


COPY = ' ::"r"(to), "l"(from)'
SENT = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
SENT_TO = ' ::"r"(to), "f"(a), "f"(b), "r"(bar)'
POLICY = ' : "=l"(policy)'
REFUSED = [
    ("another size", "cp.async.cg.shared.global [%0], [%1], 8;", COPY),
    ("an unknown modifier", "cp.async.cg.shared.global.L2::evict_first [%0], [%1], 16;", COPY),
    ("an operand too many", "cp.async.cg.shared.global [%0], [%1], 16, %7;", COPY),
    ("another shape", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0},{%1},{%2},{%3};", ""),
    ("two instructions", "cp.async.commit_group; cp.async.wait_group 0;", ""),
    ("an unknown instruction", "vabsdiff.u32.u32.u32 %0, %1, %2, %3;", ""),
    ("a scope", "ld.acquire.sys.global.s32 %0, [%1];", ' : "=r"(v) : "l"(p)'),
    ("a predicate", "@p bar.sync 1, 128;", ""),
    ("a store that counts, of another type", SENT.replace("f32", "b64"), SENT_TO),
    ("a store that counts, of one number", SENT.replace(".v2", ""), SENT_TO),
    ("another cache policy", "createpolicy.fractional.L2::evict_last.b64 %0, 1.0;", POLICY),
    ("a part of a cache policy", "createpolicy.fractional.L2::evict_first.b64 %0, 0.5;", POLICY),
    ("what is no operand", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group "
     "[%0, {%1, 1%2}], [%3];", ' ::"l"(map), "r"(x), "r"(y), "r"(from)'),
]
TAKEN = [
    ("bar.sync 1, 128;", "", "named_barrier(1,128,true)"),
    ("bar.sync %0, %1;", ' ::"r"(id), "r"(n)', "named_barrier((id),(n),true)"),
    ("cp.async.ca.shared.global [%0], [%1], 4;", COPY, "cp_async((to),(from),4,4)"),
    ("cp.async.ca.shared.global [%0], [%1], 8, %2;", ' ::"r"(to), "l"(from), "r"(n)',
     "cp_async((to),(from),8,(n))"),
    ("cp.async.wait_group %0;", ' ::"n"(N)', "cp_wait((N))"),
    ("mov.u32 %0, %%ctaid.y;", ' : "=r"(b)', "mov((b),blockIdx.y)"),
    ("cp.async.bulk.wait_group.read 1;", "", "bulk_wait(1)"),
    (SENT, SENT_TO, "st_async<2>((to),(bar),(a), (b))"),
    ("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;", POLICY,
     "policy_evict_first((policy))"),
    ("barrier.cluster.arrive.relaxed.aligned;", "", "cluster_arrive(true)"),
    ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
     "[%0], [%1, {%2, %3}], [%4], %5;",
     ' ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar), "l"(policy)',
     "tma_load_hinted<2>((to),(map),(bar),(policy),(x), (y))"),
]


def main():
    tap = Tap()
    for what, text, operands in REFUSED:
        said = refused(text, operands)
        tap.ok(said.startswith("kernel.cu:3: error: simt has no model"), f"refused: {what}", said)
    for text, operands, call in TAKEN:
        said = asm(text, operands)
        tap.ok(call in said, f"taken: {text}", said)
    text = f"{HEAD}void f() {{\n  k<float, 2>\n    <<<g(1, 2), 3>>>(a,\n  b);\n}} int x;\n"
    said = translate.translate(text, "/none")
    tap.ok('simt::launch(simt::Config(g(1, 2), 3), "k<float, 2>"' in said, "a launch", said)
    text = f"{HEAD}  __simt_shared float a[4][N], b;\n  next;\n"
    said = translate.translate(text, "/none")
    tap.ok("auto &a = " in said and "auto &b = " in said and said.count("\n") == text.count("\n"),
           "static shared memory", said)
    for line in ("float a[2] = {};", "float a{};", "int a = 5, b;", ";"):
        try:
            said = translate.translate(f"{HEAD}\n__simt_shared {line}\n", "/none")
        except translate.Unknown as why:
            said = str(why)
        tap.ok(said.startswith("kernel.cu:") and "without an initialiser" in said,
               f"refused: __shared__ {line}", said)
    said = translate.translate(f"{HEAD} __simt_shared float a[N == 2 ? 1 : M];\n", "/none")
    tap.ok("auto &a = " in said, "a comparison is no initialiser", said)
    said = translate.translate(f"{HEAD} extern __simt_shared float s[];\n", "/none")
    tap.ok("float *const s = (float *)simt::dynamic_smem();" in said, "dynamic shared memory", said)
    system = f'# 1 "/usr/include/x.h" 1 3\nasm("nop");\n{HEAD}int y;\n'
    tap.ok('asm("nop")' in translate.translate(system, "/none"), "a system header stays", "")
    made = re.findall(r"= executable\('(\w+)'", (HERE / "meson.build").read_text(encoding="utf-8"))
    built = (ROOT / "common/tools/ladder_test.sh").read_text(encoding="utf-8").split()
    tap.ok(made and set(made) <= set(built), "./ladder test builds what these tests run", str(made))
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
