#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A stage's list of rungs, read from its main.c at configure time.

usage: rungs.py header MAIN_C OUTPUT [PART...]    what main.c includes, see below
       rungs.py files MAIN_C cpu|cuda|sm90a|rows|simd [PART...]    the files of its rungs that are
           compiled; rows: those on a CPU that register a softmax of rows; simd: those that are
           compiled once more for each instruction set (EACH_ISA)

A stage's main.c names each rung once, as CPU_RUNG(stage, name) or CUDA_RUNG(stage, name), one of an
earlier stage also as CPU_RUNG_AS(stage, name, idea). The rung stands in cpu/NAME.c or cuda/NAME.cu,
whose last line registers it: RUNG(stage, NAME, ...). A rung that this build compiles is declared in
the header; of one that it does not compile (no CUDA, no OpenBLAS) the header has name, idea and
dtypes, so that --list shows every row everywhere.
PART: what this build has, of cuda sm90a blas cublas.

Interface:
- listed(main_c): [(stage, name, path)].    - registration(path): the arguments of RUNG, as text.
- is_compiled(path, parts).
"""
import pathlib
import re
import sys

import tool

LISTED = re.compile(r"\b(CPU|CUDA)_RUNG(?:_AS)?\((\w+), (\w+)[,)]")
ROWS_ARGUMENTS = ("stage", "name", "idea", "softmax", "work", "reads", "one_read_cols")
ARGUMENTS = ("stage", "name", "idea", "dtypes", "forward", "backward", "work", "tiles", "flags")


class Refused(Exception):
    """A sentence."""


def listed(main_c):
    """A stage may list a rung of an earlier one."""
    root, found = pathlib.Path(__file__).resolve().parents[2], []
    for device, stage, name in LISTED.findall(main_c.read_text(encoding="utf-8")):
        file = f"cpu/{name}.c" if device == "CPU" else f"cuda/{name}.cu"
        homes = [folder for folder in (main_c.parent, *sorted(root.glob(f"0[0-9]_{stage}")))
                 if (folder / file).is_file()]
        if not homes:
            raise Refused(f"{main_c}: found {device}_RUNG({stage}, {name}), but no {file}")
        found.append((stage, name, homes[0] / file))
    return found


def registration(path):
    """{argument: text} of the line RUNG(...) at the end of a rung's file."""
    text = path.read_text(encoding="utf-8")
    start = re.search(r"(?m)^RUNG(_ROWS)?\(", text)
    if not start:
        raise Refused(f"{path}: no line registers it: RUNG(stage, {path.stem}, ...)")
    parts, depth = [""], 0
    for token in re.findall(r'"(?:\\.|[^"\\])*"|[(),]|[^"(),]+', text[start.end():]):
        if token == ")" and depth == 0:
            break
        depth += {"(": 1, ")": -1}.get(token, 0)
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    parts = [" ".join(part.split()) for part in parts]
    names = ROWS_ARGUMENTS if start[1] else ARGUMENTS
    if len(parts) != len(names) or parts[1] != path.stem:
        raise Refused(f"{path}: found RUNG({', '.join(parts)}), accepted is "
                      f"RUNG({', '.join(names)}) with the file's name")
    on_cpu = {"dtypes": "F32", "flags": "FULL"}
    on_gpu = {"dtypes": "F32 | F16 | BF16", "flags": "FULL | ANY_D | TENSOR_CORES"}
    return {**(on_cpu if path.suffix == ".c" else on_gpu), **dict(zip(names, parts))}


def head_dims(line):
    """The head dimensions that simt and its tests ask of a CUDA rung; line: its registration."""
    return ["128"] if "E4M3" in line["dtypes"] else ["256"] if "D_256" in line["flags"] else [
        "64", "128"]


def is_compiled(path, parts):
    flags = set(registration(path)["flags"].replace("|", " ").split())
    needed = {"cuda"} if path.suffix == ".cu" else set()
    needed |= {part for part in ("sm90a", "blas", "cublas") if part.upper() in flags}
    return needed <= set(parts)


def header(main_c, parts):
    lines = [f"/* Generated from {main_c.parent.name}/main.c by common/tools/rungs.py. */",
             '#include "problem.h"']
    for stage, name, path in listed(main_c):
        if "softmax" in registration(path) and is_compiled(path, parts):
            macro = "ROWS_RUNG" if path.suffix == ".c" else "ROWS_RUNG_CUDA"
            lines.append(f"{macro}({stage}, {name}, {registration(path)['idea']});")
        elif is_compiled(path, parts):
            lines.append(f"extern const Rung rung_{stage}_{name};")
        else:
            line = registration(path)
            lines.append(f'static const Rung rung_{stage}_{name} = {{"{name}", {line["idea"]}, '
                         f'{line["dtypes"]}, {line["flags"]}, NULL, NULL, NULL, NULL}};')
    return "\n".join(lines + rows_table(main_c, parts)) + "\n"


def rows_table(main_c, parts):
    """Stage 02: what RUNG_ROWS registers, as RowsEntry (harness/rows_mode.h)."""
    externs, rows = [], []
    for _stage, name, path in listed(main_c):
        if "softmax" in registration(path):
            device, built = "ON_CPU" if path.suffix == ".c" else "ON_CUDA", is_compiled(path, parts)
            externs += [f"extern const RowsRung rows_{name}_counted;"] * built
            rung = f"&rows_{name}, &rows_{name}_counted" if built else "NULL, NULL"
            rows.append(f'    {{"{name}", {device}, {rung}}},')
    if not rows:
        return []
    return [*externs, "static const RowsEntry rows_entries[] = {", *rows, "};"]


def files(main_c, kind, parts):
    for _stage, _name, path in listed(main_c):
        is_hopper = "SM90A" in registration(path)["flags"]
        own = "cpu" if path.suffix == ".c" else "sm90a" if is_hopper else "cuda"
        is_rows = kind == "rows" and own == "cpu" and "softmax" in registration(path)
        is_simd = kind == "simd" and "EACH_ISA(" in path.read_text(encoding="utf-8")
        if ((own == kind or is_rows or is_simd) and is_compiled(path, parts) and
                main_c.parent in path.parents):
            yield path.relative_to(main_c.parent).as_posix()


def main():
    what, main_c, third, *parts = sys.argv[1:]
    main_c = pathlib.Path(main_c)
    if what == "header":
        pathlib.Path(third).write_text(header(main_c, parts), encoding="utf-8")
    else:
        print("\n".join(files(main_c, third, parts)))


if __name__ == "__main__":
    tool.end(main, Refused)
