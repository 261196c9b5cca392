#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The main file of a small program that holds the CUDA rungs of one stage, or one file of a
student's, and nothing of the libraries: what ./ladder simt builds in seconds.

usage: programs.py list MAIN_C cuda|sm90a PART...    paths of the rungs, one a line
       programs.py stage MAIN_C OUTPUT PART...       its main file
       programs.py own OWN_TXT ROOT OUTPUT_C OUTPUT_O DEPFILE COMPILE...
           OWN_TXT holds a stage's folder and the path of a .cu file that registers itself like a
           rung; COMPILE is common/simt/compile.py with its compiler and flags

Interface: only used by Meson.
"""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import rungs  # noqa: E402
import tool  # noqa: E402

# O and lse for a stage whose rungs have a backward pass only: stage 01's loops, on the CPU. A model
# of a GPU would take longer for them than for the rung.
FORWARD = """RUNG_FN(naive, v0_loops)
static size_t bytes_of(const Tensor *t)
{
    int64_t last = 0;
    for (int n = 0; n < 4; n++)
        last += (t->shape[n] - 1) * (n < 3 ? t->stride[n] : 1);
    return (size_t)(last + 1) * dtype_size(t->dtype);
}
static AttnStatus forward(const AttnArgs *args)
{
    AttnArgs host = *args;
    Tensor *tensors[] = {&host.Q, &host.K, &host.V, &host.O};
    const size_t rows = (size_t)(args->shape.B * args->shape.H * args->shape.Nq) * sizeof(float);
    AttnStatus status = ATTN_CUDA_ERROR;
    int failed = 0;
    host.dO.data = host.dQ.data = host.dK.data = host.dV.data = NULL;
    for (int n = 0; n < 4; n++) {
        const void *from = tensors[n]->data;
        tensors[n]->data = malloc(bytes_of(tensors[n]));
        failed |= !tensors[n]->data ||
                  device_download(tensors[n]->data, from, bytes_of(tensors[n])) != 0;
    }
    host.lse = malloc(rows);
    if (!failed && host.lse)
        status = naive_v0_loops(&host);
    if (status == ATTN_OK && (device_upload(args->O.data, host.O.data, bytes_of(&host.O)) != 0 ||
                              device_upload(args->lse, host.lse, rows) != 0))
        status = ATTN_CUDA_ERROR;
    for (int n = 0; n < 4; n++)
        free(tensors[n]->data);
    free(host.lse);
    return status;
}"""


def cuda_rungs(main_c, parts):
    return [(stage, name, path) for stage, name, path in rungs.listed(main_c)
            if path.suffix == ".cu" and rungs.is_compiled(path, parts)]


def stage_text(main_c):
    """The lines of main.c that say what the stage is; they name no variant."""
    text = main_c.read_text(encoding="utf-8")
    found = re.search(r"static const Stage stage = \{.*?\};", text, re.S)
    if not found:
        raise rungs.Refused(f"{main_c}: found no 'static const Stage stage'")
    return found[0]


def write_main(output, main_c, entries):
    folder = main_c.parent
    lines = [f"/* Generated from {folder.name}/main.c by common/simt/programs/programs.py. */",
             '#include "harness/stage_main.h"', '#include "problem_rows_attention.h"',
             '#include "harness/rung.h"', '#include "harness/visits.h"', '#include "variant_so.h"']
    needs_forward = False
    for stage, rung, path in entries:
        line = rungs.registration(path)
        needs_forward |= line.get("forward") == "NULL"
        lines.append(f"ROWS_RUNG_CUDA({stage}, {rung}, {line['idea']});" if "softmax" in line else
                     f"extern const Rung rung_{stage}_{rung};")
    if needs_forward:
        lines += ['#include <stdlib.h>', '#include "harness/device/device.h"',
                  '#include "tensor.h"', FORWARD]
    begin = re.search(r"static void begin\(.*?\n\}\n", main_c.read_text(encoding="utf-8"), re.S)
    if begin:  # --block-q, --order
        lines.append(begin[0])
    lines += ["static Variant variants[] = {",
              *(f"    CUDA_RUNG({stage}, {rung})," for stage, rung, _ in entries), "};",
              stage_text(main_c), "int main(int argc, char **argv)", "{",
              "    static const StageMain all = {.variants = variants" +
              (", .begin = begin" if begin else "") +
              (", .forward = {NULL, forward}};" if needs_forward else "};"),
              "    return stage_main(&stage, &all, argc, argv);", "}"]
    pathlib.Path(output).write_text("\n".join(lines) + "\n", encoding="utf-8")


def own(own_txt, root, output_c, output_o, depfile, *compile_words):
    folder, file = pathlib.Path(own_txt).read_text(encoding="utf-8").split("\n")[:2]
    path = pathlib.Path(file)
    line = rungs.registration(path)
    write_main(output_c, pathlib.Path(root) / folder / "main.c",
               [(line["stage"], line["name"], path)])
    arch = "--arch=90a" if "SM90A" in line["flags"] else "--arch=80"
    done = subprocess.run([*compile_words, arch, "--strict", "-I" + str(path.parent), "-MD",
                           "-MF", depfile, "-MT", output_o, "-c", file, "-o", output_o],
                          check=False)
    if done.returncode:
        sys.exit(done.returncode)
    with open(depfile, "a", encoding="utf-8") as deps:
        deps.write(f"{output_o}: {own_txt}\n")


def main():
    what, first, second, *rest = sys.argv[1:]
    if what == "own":
        own(first, second, *rest)
    elif what == "stage":
        write_main(second, pathlib.Path(first), cuda_rungs(pathlib.Path(first), rest))
    else:
        for _stage, _name, path in cuda_rungs(pathlib.Path(first), rest):
            if ("SM90A" in rungs.registration(path)["flags"]) == (second == "sm90a"):
                print(path)


if __name__ == "__main__":
    tool.end(main, rungs.Refused)
