# SPDX-License-Identifier: MIT
"""workshop.py: reads a patch of this folder and makes something that runs of a changed source.

Interface:
- read_patch, changed_text, apply_hunks: the header, the hunks, the text before and after them.
- stage_folder: the stage that a patch belongs to.
- needs_gpu: does what a patch changes run on a GPU? asks_for_f16: in which dtypes?
- Workshop(args, folder, programs).make(fields, text): the command that runs the changed code.
- Failure: a sentence for the test's output. run: a command with its output.
"""
import glob
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "common", "tools"))
from source_hashes import LIBRARY

KEYS = ("file", "function", "rung", "variant", "program", "seed", "what", "caught-by",
        "case", "passes", "shows", "hint", "no-hint")
CHECKS = ("O", "lse", "dQ", "dK", "dV", "inputs", "storage", "crash", "leak",
          "bytes", "memory", "flight", "streams", "deadlock", "access")


class Failure(Exception):
    """A sentence for the test's output."""


def read_patch(path):
    """Header fields (case, passes: lists) and hunks [(old lines, new lines)]."""
    fields, hunks = {"case": [], "passes": []}, []
    with open(path, encoding="utf-8") as f:
        for line in f.read().split("\n"):
            key, colon, value = line.partition(":")
            if hunks and line[:1] in (" ", "-", "+"):
                old, new = hunks[-1]
                if line[0] != "+":
                    old.append(line[1:])
                if line[0] != "-":
                    new.append(line[1:])
            elif line.startswith("@@"):
                hunks.append(([], []))
            elif not hunks and line.startswith("+++ b/"):
                path = line[len("+++ b/"):]
                fields["file" if path.endswith((".c", ".cu")) else "header"] = path
            elif not hunks and colon and key in KEYS:
                if key in ("case", "passes"):
                    fields[key].append(value.strip())
                else:
                    fields[key] = value.strip()
    wanted = {"file", "what", "caught-by"} - set(fields)
    if wanted or not hunks or bool(fields["case"]) == ("program" in fields):
        raise Failure(f"the header lacks {sorted(wanted) or 'a case, a program or a hunk'}")
    if not fields["file"].endswith((".c", ".cu")):  # neither device would run it
        raise Failure(f"{fields['file']} is compiled by nobody: file: names who includes it")
    fields["caught-by"] = set(fields["caught-by"].split())
    if "program" not in fields and not fields["caught-by"] <= set(CHECKS):
        raise Failure(f"caught-by knows {' '.join(CHECKS)}")
    return fields, hunks


def stage_folder(fields):
    """The stage whose program shows the mistake: parts of the library belong to stages 03 to 05."""
    return next((stage for stage, part in LIBRARY.items() if fields["file"].startswith(part + "/")),
                fields["file"].split("/")[0])


def changed_text(fields):
    """The text that the hunks are for: the source, or the header that it includes."""
    with open(os.path.join(ROOT, fields.get("header", fields["file"])), encoding="utf-8") as f:
        return f.read()


def needs_gpu(fields):
    """Programs of tests/unit have no kernel: a .cu file runs there over a GPU that is pretended."""
    return (fields["file"].endswith(".cu") and
            not fields.get("program", "").startswith("tests/unit/"))


def asks_for_f16(fields):
    """Kernels for f16 are half of a compiler's work. Cases without it need none of them; what a
    test program asks for is not known."""
    lines = fields["case"] + fields["passes"]
    return "program" in fields or any("f16" in line.split() for line in lines)


def apply_hunks(source, hunks):
    """Each hunk's old lines must stand exactly once in the file. Line numbers are not looked at:
    they change whenever somebody edits a comment further up."""
    lines = source.split("\n")
    for old, new in hunks:
        places = [n for n in range(len(lines) - len(old) + 1) if lines[n:n + len(old)] == old]
        if len(places) != 1:
            raise Failure(f"does not apply: {len(places)} places match\n" + "\n".join(old))
        if old == new:
            raise Failure("changes nothing")
        lines[places[0]:places[0] + len(old)] = new
    return "\n".join(lines)


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, errors="backslashreplace",
                          timeout=300, **options)


def commands_of(build, targets):
    """Compile and link commands of the programs, as word lists, to be run in the build folder."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        words = [shlex.split(entry["command"]) for entry in json.load(f)]
    listed = run([os.environ.get("NINJA", "ninja"), "-C", build, "-t", "commands"] + targets)
    return words + [shlex.split(line) for line in listed.stdout.splitlines() if line]


def for_this_gpu(command):
    """nvcc's command for the architecture of this machine alone, spills allowed: a mistake need not
    be fast. Hopper's own instructions are no part of what nvcc calls native."""
    refused = ("-gencode", "--attn-strict", "--attn-spilled", "-Xptxas=-warn-spills")
    hopper = [word for word in command if word.endswith("code=sm_90a")]
    return [word for word in command if not word.startswith(refused)] + (hopper or ["-arch=native"])


def retarget(command, source, made, old_source):
    """The command with another input and output and without a dependency file."""
    out, words = [], iter(command)
    for word in words:
        if word in ("-MF", "-MQ", "-MT"):
            next(words)
        elif word == "-o":
            next(words)
            out += ["-o", made]
        elif word in ("-MD", "-MMD"):
            continue
        elif word == old_source:
            out.append(source)
        else:
            out.append(word)
    return out


class Workshop:
    """Compiles one source file of a stage, changed or not, into something that can be run. Its
    methods may run at the same time."""

    def __init__(self, args, folder, programs):
        self.args, self.folder = args, folder
        self.target = os.path.relpath(args.program, args.build)
        self.commands = commands_of(args.build, sorted({self.target} | set(programs)))
        self.numbers = itertools.count(1)
        # A mistake need not be fast, nor need what it is compared with. Only the loops of stage 01,
        # all pairs of all cases, take longer than the compiler.
        self.level = "-O1" if args.stage == "naive" else "-O0"

    def place_source(self, fields, text):
        """A folder of its own with the source. A changed header lies beside it, with all headers
        of the original folder, since quotes look beside the including file first."""
        folder = os.path.join(self.folder, str(next(self.numbers)))
        original = os.path.join(ROOT, fields["file"])
        os.mkdir(folder)
        if "header" in fields:  # it may also be included by its path in the stage's folder
            beside = os.path.join(folder, os.path.dirname(fields["header"].split("/", 1)[1]))
            os.makedirs(beside)
            for name in glob.glob(os.path.join(os.path.dirname(original), "*.*h")) + [original]:
                shutil.copy(name, folder)
            for name in glob.glob(os.path.join(ROOT, os.path.dirname(fields["header"]), "*.*h")):
                shutil.copy(name, beside)
            with open(os.path.join(beside, os.path.basename(fields["header"])), "w",
                      encoding="utf-8") as f:
                f.write(text)
        changed = os.path.basename(fields.get("header", fields["file"]))
        with open(os.path.join(folder, changed), "w", encoding="utf-8") as f:
            f.write(text)
        return os.path.join(folder, os.path.basename(original))

    def commands_for(self, fields):
        """[(the build's command, the file's name in it)]: several for a file that is compiled once
        for each instruction set."""
        absolute, found = os.path.join(ROOT, fields["file"]), {}
        for command in self.commands:
            named = [w for w in command if w.endswith((".c", ".cu")) and
                     os.path.realpath(os.path.join(self.args.build, w)) ==
                     os.path.realpath(absolute)]
            host_only = fields["file"].endswith(".cu") and "c++" in command  # -x c++, not nvcc
            if ("-c" in command and named and "-DCOUNT_ACCESSES" not in command and
                    host_only == (fields["file"].endswith(".cu") and not needs_gpu(fields))):
                isa = next((w for w in command if w.startswith("-DFLASH_ISA=")), "")
                found.setdefault(isa, (command, named[0]))
        if not found:
            raise Failure(f"the build has no command for {fields['file']}")
        return list(found.values())

    def compile_file(self, fields, text, extra, which):
        command, named = which
        absolute = os.path.join(ROOT, fields["file"])
        source = self.place_source(fields, text)
        made = source + ".o"
        line = retarget(command, source, made, named)
        if needs_gpu(fields):
            line = for_this_gpu(line)
            line += [] if asks_for_f16(fields) else ["-DATTN_NO_CUDA_F16"]
        at = next(n for n, word in enumerate(line) if word.startswith("-I"))
        # The changed header, also for a unit that includes it; then headers beside the original.
        line[at:at] = ["-I" + os.path.dirname(source), "-I" + os.path.dirname(absolute)]
        line += extra
        done = run(line, cwd=self.args.build)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-1500:]
            raise Failure(f"does not compile: {shlex.join(line)}\n{said}")
        # The compiler may be two words, as in "ccache cc". The stage's header needs the folders of
        # the stages that it builds on.
        headers = ["-I" + os.path.join(self.args.build, word[2:]) for word in line
                   if word.startswith("-I")]
        return list(itertools.takewhile(lambda word: word[0] != "-", line)), made, headers

    def shared_object(self, fields, text):
        """Linked with what the program is linked with, and by the same linker, except stage 06,
        whose program runs the object itself. The changed file comes first and wins over a library's
        of the same name."""
        compiler, made, headers = self.compile_file(fields, text, [self.level, "-fPIC"],
                                                    self.commands_for(fields)[0])
        stage = self.args.stage
        shim = made[:-2] + ".shim.c"
        with open(os.path.join(ROOT, fields["file"]), encoding="utf-8") as f:
            original = f.read()
        if "rung" in fields:  # STAGE NAME, as in RUNG(STAGE, NAME, ...)
            home, name = fields["rung"].split()
            function, alone = f"{home}_{name}", stage == "flash_backward"
            lines = ['#include "harness/rung.h"', f"RUNG_FN({home}, {name})"]
            if "\nRUNG_ROWS(" in original:  # a softmax; the products are around it
                lines = ['#include "harness/rung.h"', '#include "problem_rows_attention.h"',
                         f'ROWS_RUNG({home}, {name}, "");', f"RUNG_CALLS(ON_CPU, {home}, {name})"]
            passes = {"variant": function + "_backward" * alone}
            if "void backward(" in original and not alone:
                passes["variant_backward"] = function + "_backward"
        else:
            function, lines = fields["function"], []
            passes = {"variant": function}
            if f"{function}_backward(" in original:
                passes["variant_backward"] = function + "_backward"
        lines += ['#include "runtime/simulate.h"' if stage == "ring_burst" else
                  '#include "variant_so.h"',
                  f"int {stage}_abi_version = {stage.upper()}_ABI_VERSION;"]
        for export, call in passes.items():
            lines += [f"AttnStatus {stage}_{export}(const AttnArgs *args);",
                      f"AttnStatus {stage}_{export}(const AttnArgs *args)",
                      f"{{ return {call}(args); }}"]
        with open(shim, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        library = made[:-2] + ".so"
        folder = os.path.join(ROOT, os.path.basename(os.path.dirname(self.args.program)))
        line = compiler + ["-shared", "-fPIC", "-o", library, shim, made, "-I" + folder]
        line += headers + (["-Wl,-Bsymbolic"] if stage == "ring_burst" else self.libraries())
        done = run(line + ["-lm"], cwd=self.args.build)
        if done.returncode != 0:
            raise Failure(f"does not link: {done.stderr[-1500:]}")
        return [self.args.program, "--device", "cpu", "--variant-so", library]

    def libraries(self):
        """What the program is linked with, as words for another link."""
        link = next(c for c in self.commands if "-c" not in c and "-o" in c and
                    c[c.index("-o") + 1] == self.target)
        kept = [w for w in link if w.endswith((".a", ".so")) or
                w.startswith(("-l", "-Wl,-rpath", "-fuse-ld=", "-fopenmp"))]
        return ["-Wl,--allow-multiple-definition", "-Wl,--start-group", *kept, "-Wl,--end-group"]

    def relinked_program(self, fields, text):
        """A program with the changed objects in front of the libraries: the first one wins."""
        extra = [] if needs_gpu(fields) else [self.level]
        made = [self.compile_file(fields, text, extra, which)[1]
                for which in self.commands_for(fields)]
        target = fields.get("program", self.target)
        link = [c for c in self.commands if "-c" not in c and "-o" in c and
                c[c.index("-o") + 1] == target]
        if not link:
            raise Failure(f"the build has no link command for {target}")
        program = made[0][:-2] + ".program"
        line = [program if word == target else word for word in link[-1]]
        at = line.index("-o") + 2
        line[at:at] = [*made, "-Wl,--allow-multiple-definition"]
        done = run(line, cwd=self.args.build)
        if done.returncode != 0:
            raise Failure(f"does not link: {done.stderr[-1500:]}")
        if "program" in fields:
            return [program]
        device = "cuda" if fields["file"].endswith(".cu") else "cpu"
        return [program, "--device", device, "--variant", fields["variant"]]

    def make(self, fields, text):
        as_object = "program" not in fields and "variant" not in fields
        return (self.shared_object if as_object else self.relinked_program)(fields, text)
