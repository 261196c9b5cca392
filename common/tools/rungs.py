#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A stage's list of rungs, read from its main.c at configure time.

usage: rungs.py header MAIN_C OUTPUT [PART...]    what main.c includes, see below
       rungs.py files MAIN_C cpu|cuda|sm90a [PART...]    the files of its rungs that are compiled

A stage's main.c names each rung once, as CPU_RUNG(stage, name) or CUDA_RUNG(stage, name). The rung
stands in cpu/NAME.c or cuda/NAME.cu, whose last line registers it: RUNG(stage, NAME, ...). A rung
that this build compiles is declared in the header; of one that it does not compile (no CUDA, no
OpenBLAS) the header has name, idea and dtypes, so that --list shows every row everywhere.
PART: what this build has, of cuda sm90a blas cublas.

Interface:
- listed(main_c): [(stage, name, path)].    - registration(path): the arguments of RUNG, as text.
- is_compiled(path, parts).
"""
import pathlib
import re
import sys

import tool

LISTED = re.compile(r"\b(CPU|CUDA)_RUNG\((\w+), (\w+)\)")
ARGUMENTS = ("stage", "name", "idea", "dtypes", "forward", "backward", "work", "tiles", "flags")


def listed(main_c):
    folder = main_c.parent
    return [(stage, name, folder / ("cpu/" + name + ".c" if device == "CPU" else
                                    "cuda/" + name + ".cu"))
            for device, stage, name in LISTED.findall(main_c.read_text(encoding="utf-8"))]


def registration(path):
    """{argument: text} of the line RUNG(...) at the end of a rung's file."""
    text = path.read_text(encoding="utf-8")
    start = re.search(r"(?m)^RUNG(?:_\w+)?\(", text)
    if not start:
        raise tool.Refusal(f"{path}: no line registers it: RUNG(stage, {path.stem}, ...)")
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
    if len(parts) != len(ARGUMENTS) or parts[1] != path.stem:
        raise tool.Refusal(f"{path}: found RUNG({', '.join(parts)}), accepted is "
                           f"RUNG({', '.join(ARGUMENTS)}) with the file's name")
    return dict(zip(ARGUMENTS, parts))


def is_compiled(path, parts):
    flags = set(registration(path)["flags"].replace("|", " ").split())
    needed = {"cuda"} if path.suffix == ".cu" else set()
    needed |= {part for part in ("sm90a", "blas", "cublas") if part.upper() in flags}
    return needed <= set(parts)


def header(main_c, parts):
    lines = [f"/* Generated from {main_c.parent.name}/main.c by common/tools/rungs.py. */"]
    for stage, name, path in listed(main_c):
        if is_compiled(path, parts):
            lines.append(f"extern const Rung rung_{stage}_{name};")
        else:
            line = registration(path)
            lines.append(f'static const Rung rung_{stage}_{name} = {{"{name}", {line["idea"]}, '
                         f'{line["dtypes"]}, {line["flags"]}, NULL, NULL, NULL, NULL}};')
    return "\n".join(lines) + "\n"


def files(main_c, kind, parts):
    for _stage, _name, path in listed(main_c):
        is_hopper = "SM90A" in registration(path)["flags"]
        own = "cpu" if path.suffix == ".c" else "sm90a" if is_hopper else "cuda"
        if own == kind and is_compiled(path, parts):
            yield path.relative_to(main_c.parent).as_posix()


def main():
    what, main_c, third, *parts = sys.argv[1:]
    main_c = pathlib.Path(main_c)
    if what == "header":
        pathlib.Path(third).write_text(header(main_c, parts), encoding="utf-8")
    else:
        print("\n".join(files(main_c, third, parts)))


if __name__ == "__main__":
    tool.end(main)
