#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""handout.py: what the students of an assignment get, and what Gradescope gets.

    ./ladder handout N --out DIR [--key FILE [--change NAME]] [--gradescope ZIP] [--docker]
                     [--build DIR]

N is the assignment, 1 to 6 (docs/course/N_*). DIR is written whole or not at all and holds

    handout.md stub.c *.suite   the assignment; with a key this year's change, too (twists.md)
    debug.c                     in C: make debug and make asan run a case by hand
    include/                    the headers that the stub needs, and those that they include
    Makefile                    make, make grade
    python/                     for students of Python, where the text speaks of it
    judge/                      the judge: programs from --build (build/demo) and Python tools, in
                                the places that they have in this repository
    LICENSE REVISION            its terms, and of which revision it is
    Dockerfile                  with --docker: for macOS and Windows, make docker

The key, the teacher's file of random bytes, chooses the change and draws its numbers and the hidden
cases; nobody can guess them without it. ZIP is Gradescope's autograder: the judge, setup.sh,
run_autograder, the public suites, and all suites as the key draws them: until the due date only
what students can see is run and counted, a regrade afterwards runs the rest. It holds answers'
sizes and seeds, so it stays with the teacher. No solution is in either: the judge's programs link
none, and tests/course/test_handout.py compares the texts.

Interface:
- assignment(number) -> folder. kinds(folder) -> names of its changes. chosen(folder, key, change).
- drawn_suites(folder, key) -> {file name: text}: the hidden suites and the change's.
- final_suites(folder, key): all of them, with seeds that nobody knows. revision().
- Target(program): for which machine a judge is.
- student_files(folder, key, docker, target) -> {path: text or pathlib.Path}: without the judge.
- judge_files(build) -> {path: pathlib.Path, or the bytes of a program}.
- gradescope_files(folder, key).
"""
import argparse
import dataclasses
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import suite as suites
import tool

ROOT = pathlib.Path(__file__).resolve().parents[2]
COURSE = ROOT / "docs" / "course"
NEEDS_TORCH = ("judge_torch.py", "numbers_differ.py")
INCLUDE = (COURSE / "include", ROOT / "common", ROOT / "common" / "attention")
TOOLS = (*("course/" + name for name in (
    "autograder.py", "cuda.py", "grade.py", "grade_formats.py", "lms.py", "similarity.py",
    "suite.py", "peer_speed.py")), "tools/tool.py", "tools/simt_library.py")
GPU_PACKAGES = " clang llvm libboost-context-dev"  # of the model of a GPU
PROGRAMS = ("attn_jail", "attn_judge", "attn_runner")
INCLUDED = re.compile(r'^#include "([^"]+)"', re.M)

MAKEFILE = """# SPDX-License-Identifier: MIT
# make: compile with all warnings. make grade: the public suites, or the one case of a command that
# a report shows (SUITE, CASE); SANDBOX=off where the judge says that it has no sandbox here.
# make docker: the same in a container, for macOS, and for Windows in WSL;
# make docker SANDBOX=off where Docker emulates the processor; make docker DO=asan CASE="...".
SANDBOX = strict
DO = grade
CFLAGS = -std=gnu11 -O2 -Wall -Wextra -fopenmp -fPIC -Iinclude
MINE = $(wildcard mine.c mine_twist.c)

all: $(MINE:.c=.o)
	@test -n "$(MINE)" || echo "There is no mine.c yet: cp stub.c mine.c"
%.o: %.c $(wildcard include/*.h)
	$(CC) $(CFLAGS) -c $< -o $@
test: grade
grade:
	@python3 judge/common/course/autograder.py --so-sandbox $(SANDBOX) --suites . \\
	    $(if $(SUITE),--suite "$(SUITE)" --case "$(CASE)") .
docker:
	docker build --platform @PLATFORM@ -t attention-course .
	docker run --rm --platform @PLATFORM@ -v "$(CURDIR)":/work attention-course \\
	    make $(DO) SANDBOX=$(SANDBOX) CASE="$(CASE)"
clean:
	rm -f *.o called
.PHONY: all test grade docker clean
"""
# where the assignment has a debug.c, which calls the student's code on the inputs of a case
DEBUG = """
CASE =
CODE = mine.c
CALLS = -DCODE='"$(CODE)"' debug.c $(CODE) -o called -lm
debug:
	$(CC) $(CFLAGS) -O0 -g $(CALLS)
	gdb -q --args ./called $(CASE)
asan:
	$(CC) $(CFLAGS) -O1 -g -fsanitize=address,undefined $(CALLS)
	./called $(CASE)
.PHONY: debug asan
"""
DOCKERFILE = """# SPDX-License-Identifier: MIT
# The judge is a program for one kind of processor. Docker emulates it on others.
FROM --platform=@PLATFORM@ @BASE@
RUN apt-get update && apt-get install -y --no-install-recommends \\
    gcc libc6-dev libgomp1 libopenblas-dev libseccomp2 make python3@GPU@ \\
    && rm -rf /var/lib/apt/lists/*
WORKDIR /work
CMD ["make", "grade"]
"""
# for which the judge was built: the machine of an ELF file, and its C library (2.N)
PLATFORMS = {0x3E: "linux/amd64", 0xB7: "linux/arm64"}
BASES = {36: "debian:12-slim", 41: "debian:13-slim"}
GRADESCOPE_LIBRARY = 35  # of Ubuntu 22.04
SETUP = """#!/bin/sh
# SPDX-License-Identifier: MIT
# Gradescope runs this once, when it builds the image.
set -eu
apt-get update
apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 libopenblas-dev \\
    libseccomp2 python3@GPU@
"""
RUN_AUTOGRADER = """#!/bin/sh
# SPDX-License-Identifier: MIT
# Gradescope runs this for each submission.
set -eu
mkdir -p /autograder/results
exec python3 /autograder/source/judge/common/course/autograder.py \\
    --visible /autograder/source/visible --metadata /autograder/submission_metadata.json \\
    --suites /autograder/source/suites --results /autograder/results/results.json \\
    /autograder/submission
"""


class HandoutError(Exception):
    """One sentence: the flag or file, what was found, what is accepted."""


def assignment(number):
    found = sorted(COURSE.glob(f"{number}_*")) if re.fullmatch(r"[1-9]", str(number)) else []
    if not found:
        names = ", ".join(path.name for path in sorted(COURSE.glob("[1-9]_*")))
        raise HandoutError(f"found the assignment '{number}', accepted are the numbers of {names}")
    return found[0]


def in_cuda(folder):
    return (folder / "stub.cu").is_file()


def kinds(folder):
    return sorted(path.stem[len("twist_"):] for path in folder.glob("twist_*.template"))


def chosen(folder, key, change=None):
    """The change that the teacher names or the key decides on; None: the assignment has none."""
    names = kinds(folder)
    if change and change not in names:
        raise HandoutError(f"--change: found '{change}', accepted are {', '.join(names)}")
    if change:
        return change
    place = int.from_bytes(hashlib.sha256(key + b"\0" + folder.name.encode()).digest()[:8], "big")
    return names[place % len(names)] if names else None


def twist_text(folder, kind, key):
    """The section of twists.md, with its numbers drawn."""
    page = (COURSE / "twists.md").read_text(encoding="utf-8")
    head = f"## {folder.name[0]} {kind}\n"
    if head not in page:
        raise HandoutError(f"{COURSE / 'twists.md'}: found no section '{head.strip()}', accepted "
                           f"is one for each twist_*.template of {folder.name}")
    section = page.split(head, 1)[1].split("\n## ", 1)[0].strip()
    return suites.draw(section, key)


def drawn_suites(folder, key, change=None):
    """Hidden suites and that of the change, as the key draws them."""
    wanted = sorted(folder.glob("hidden*.template"))
    kind = chosen(folder, key, change)
    wanted += [folder / f"twist_{kind}.template"] if kind else []
    return {("twist" if path.stem.startswith("twist_") else path.stem) + ".suite":
            suites.read(path, key).text() for path in wanted}


def final_suites(folder, key, change=None):
    """{file name: text} of all suites, with every seed from the key."""
    public = {path.name: suites.read(path, key, final=True).text()
              for path in sorted(folder.glob("*.suite"))}
    return {**public, **drawn_suites(folder, key, change)}


def revision():
    """Of this repository, for those who compare two results; "unknown" without git."""
    try:
        run = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"],
                             capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return run.stdout.strip() or "unknown"


def origin():
    """Under which terms and from which revision a folder or zip was made."""
    return {"LICENSE": ROOT / "LICENSE", "REVISION": revision() + "\n"}


def visible_part(text, name):
    """The cases of a drawn suite that students may see, or None. Without their seeds: the final run
    has those, and a table of outputs would fit."""
    drawn = suites.parse(text, name)
    drawn.cases = [dataclasses.replace(case, flags=suites.without_seed(case.flags))
                   for case in drawn.cases if case.visibility == "visible"]
    groups = {case.group for case in drawn.cases}
    drawn.subject = drawn.subject if drawn.subject in groups else ""
    return drawn.text() if drawn.cases else None


def needed_headers(texts):
    """{include/NAME: path}: what the texts include, and what that includes."""
    found, left = {}, [name for text in texts for name in INCLUDED.findall(text)]
    while left:
        name = left.pop()
        path = next((folder / name for folder in INCLUDE if (folder / name).is_file()), None)
        if path is None:
            raise HandoutError(f"found the header '{name}', accepted are those of "
                               f"{' and '.join(map(str, INCLUDE))}")
        if f"include/{name}" not in found:
            found[f"include/{name}"] = path
            left += INCLUDED.findall(path.read_text(encoding="utf-8"))
    return found


def without_cap(files):
    """Headers without the formula of a cap, which is a change that students find themselves."""
    return {name: re.sub(r"a->softcap > 0\.0f \?.*tanhf.*: s;| {8}then, with a cap:.*tanh.*",
                         lambda found: "s;" if found[0][0] == "a" else "",
                         path.read_text(encoding="utf-8")) for name, path in files.items()}


class Target:
    """The machine that a judge was built for. Without a program: that of most students."""

    def __init__(self, program=b""):
        machine = int.from_bytes(program[18:20], "little")
        self.platform = PLATFORMS.get(machine, PLATFORMS[0x3E])
        self.library = max(map(int, re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", program)), default=0)
        self.base = next((name for library, name in BASES.items() if library >= self.library),
                         [*BASES.values()][-1])

    def fill(self, text):
        return text.replace("@PLATFORM@", self.platform).replace("@BASE@", self.base)


def with_packages(text, folder):
    """What the model of a GPU is compiled with, where the assignment is in CUDA."""
    return text.replace("@GPU@", GPU_PACKAGES if in_cuda(folder) else "")


def student_files(folder, key, docker, target=Target(), change=None):
    text = (folder / "handout.md").read_text(encoding="utf-8")
    files = {path.name: path for pattern in ("stub.*", "bench.*", "debug.c", "*.suite", "*.gpu")
             for path in sorted(folder.glob(pattern))}
    stubs = [path.read_text(encoding="utf-8") for pattern in ("stub.*", "debug.c")
             for path in sorted(folder.glob(pattern))]
    if key and kinds(folder):
        kind = chosen(folder, key, change)
        section = twist_text(folder, kind, key)
        text += f"\n## This year's change: {kind}\n\n{section}\n"
        stubs += [f'#include "{name}"' for name in re.findall(r"`include/(\w+\.h)`", section)]
        visible = visible_part(drawn_suites(folder, key, change)["twist.suite"], "twist.suite")
        files.update({"twist.suite": visible} if visible else {})
    if "`python/`" in text:
        files.update({f"python/{path.name}": path for path in sorted((COURSE / "python").iterdir())
                      if path.is_file() and path.name not in NEEDS_TORCH})
    own = folder / "Makefile"
    made = MAKEFILE + (DEBUG if "debug.c" in files else "")
    made = own.read_text(encoding="utf-8") if own.is_file() else made
    files.update({"handout.md": text, "Makefile": target.fill(made)})
    files.update(without_cap(needed_headers(stubs)))
    container = with_packages(DOCKERFILE, folder)
    files.update({"Dockerfile": target.fill(container)} if docker else {})
    return {**files, **origin()}


def without_paths(data, build):
    """No path of the teacher's machine; strings of a program keep their length."""
    for path in map(os.fsencode, (build.resolve(), ROOT)):
        data = data.replace(path, b"." + b"/" * (len(path) - 1))
    return data


def stripped(path):
    """The program without its names of functions, which tell how it judges. As it is, when there
    is no `strip` or the file is no program."""
    data = path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        fresh = pathlib.Path(folder) / path.name
        try:
            done = subprocess.run(["strip", "-o", fresh, path], capture_output=True, check=False)
        except FileNotFoundError:
            return data
        return fresh.read_bytes() if done.returncode == 0 and fresh.is_file() else data


def judge_files(build, gpu=False):
    """The judge in the places of this repository, so that its tools find each other. gpu: the model
    of one, too."""
    names = [*TOOLS, *(["course/gpu_shell.cpp"] if gpu else [])]
    files = {f"judge/common/{name}": ROOT / "common" / name for name in names}
    for path in sorted((ROOT / "common" / "simt").rglob("*")) if gpu else ():
        if path.suffix in (".cpp", ".h", ".py", "") and path.is_file():
            files[f"judge/{path.relative_to(ROOT)}"] = path
    for name in PROGRAMS:
        path = build / "common" / "course" / name
        if not path.is_file():
            raise HandoutError(f"--build {build}: found no common/course/{name}, accepted is a "
                               "folder in which the suite was built (./ladder build)")
        files[f"judge/build/demo/common/course/{name}"] = without_paths(stripped(path), build)
    config = (build / "common" / "attn_config.h").read_bytes()
    files["judge/build/demo/common/attn_config.h"] = without_paths(config, build)
    for folder, place in zip(INCLUDE, ("docs/course/include", "common", "common/attention")):
        files.update({f"judge/{place}/{path.name}": path for path in sorted(folder.glob("*.h"))
                      if place[0] == "d" or path.name in ("attn.h", "attn_pairs.h", "tensor.h")})
    return files


def gradescope_files(folder, key, change=None):
    files = {f"suites/{name}": text for name, text in final_suites(folder, key, change).items()}
    files.update({f"visible/{path.name}": path for path in sorted(folder.glob("*.suite"))})
    twist = drawn_suites(folder, key, change).get("twist.suite")
    visible = visible_part(twist, "twist.suite") if twist else None
    files.update({"visible/twist.suite": visible} if visible else {})
    setup = with_packages(SETUP, folder)
    if in_cuda(folder):
        setup += "python3 /autograder/source/judge/common/tools/simt_library.py\n"
    return {**files, **origin(), "setup.sh": setup, "run_autograder": RUN_AUTOGRADER}


def content(what):
    if isinstance(what, bytes):
        return what
    return what.read_bytes() if isinstance(what, pathlib.Path) else what.encode("utf-8")


def executable(name):
    return pathlib.PurePath(name).name in (*PROGRAMS, "setup.sh", "run_autograder")


def write_folder(files, out):
    """All files, in a folder that did not exist before or was empty."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as fresh:
        new = pathlib.Path(fresh) / "handout"
        for name, what in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(what))
            path.chmod(0o755 if executable(name) else 0o644)
        new.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        os.replace(new, out)


def write_zip(files, out):
    """The same input gives the same bytes: all files carry one date."""
    fresh = out.with_name(out.name + ".new")
    try:
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(files):
                entry = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
                entry.external_attr = (0o755 if executable(name) else 0o644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content(files[name]))
        os.replace(fresh, out)
    finally:
        fresh.unlink(missing_ok=True)


def make(options):
    folder = assignment(options.number)
    key = suites.key_bytes(options.key) if options.key else None
    if not options.out:
        raise HandoutError("--out: found '', accepted is a new or empty folder")
    out = pathlib.Path(options.out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise HandoutError(f"--out {out}: found something there, accepted is a new or empty folder")
    if options.change and not key:
        raise HandoutError("--change: found no --key FILE, accepted is both: the key draws its "
                           "numbers")
    if options.gradescope and not key:
        raise HandoutError("--gradescope: found no --key FILE, accepted is both: the key draws "
                           "the hidden cases")
    judge = judge_files(options.build, in_cuda(folder))
    target = Target(judge["judge/build/demo/common/course/attn_judge"])
    student = {**student_files(folder, key, options.docker, target, options.change), **judge}
    if options.gradescope:
        write_zip({**gradescope_files(folder, key, options.change), **judge},
                  pathlib.Path(options.gradescope))
    write_folder(student, out)
    change = f"this year's change is '{chosen(folder, key, options.change)}'" if key else \
        "there is no change"
    print(f"wrote {out}: {folder.name} for students; {change}")
    if options.gradescope:
        print(f"wrote {options.gradescope}: Gradescope's autograder, which holds the hidden cases")
        if target.library > GRADESCOPE_LIBRARY or target.platform != PLATFORMS[0x3E]:
            print(f"note: this judge is for {target.platform} and glibc 2.{target.library}; choose "
                  "an image of Gradescope that has them, or build where they are older")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise HandoutError(f"{message}; accepted is what ./ladder handout --help shows")


def main():
    parser = Parser(prog="ladder handout", allow_abbrev=False,
                    description="write the folder that students get")
    parser.add_argument("number", metavar="N", help="the assignment, 1 to 6")
    parser.add_argument("--out", required=True, metavar="DIR", help="the students' folder")
    parser.add_argument("--key", metavar="FILE", help="the teacher's key")
    parser.add_argument("--change", metavar="NAME", help="this year's change (the key's choice)")
    parser.add_argument("--gradescope", metavar="ZIP", help="write Gradescope's autograder, too")
    parser.add_argument("--docker", action="store_true", help="add a Dockerfile")
    parser.add_argument("--build", metavar="DIR", default=str(ROOT / "build" / "demo"),
                        help="where the judge was built (build/demo)")
    try:
        options = parser.parse_args()
        options.build = pathlib.Path(options.build).resolve()
        if os.environ.get("LADDER_FROM"):  # where the user of ./ladder stands
            os.chdir(os.environ["LADDER_FROM"])
        make(options)
    except (HandoutError, suites.SuiteError) as why:
        print(f"ladder handout: {why}", file=sys.stderr)
        return 2
    except OSError as why:
        print(f"ladder handout: {why.filename}: {why.strerror}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    tool.end(main)
