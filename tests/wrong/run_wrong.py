#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""run_wrong.py: does the checker catch the mistakes that people really make?

    run_wrong.py --build DIR --stage NAME --program FILE [--device cpu|cuda] [patch ...]

Each .patch in this folder is one mistake, as a few changed lines of a real variant. Lines above
the diff say what it is:

    file: 01_naive/cpu/v0_loops.c       the variant's source
    function: naive_v0_loops            what it exports; <function>_backward too when it has one
    what: one sentence, for the reader of a failure
    caught-by: O lse                    exactly the checks that must object, of
                                        O lse dQ dK dV inputs storage crash
    case: -N 17 -d 32                   one line each, the flags that show it

CPU: the patched file is compiled into a shared object and run with --variant-so, the way a
student's solution is graded. The program must exit with 1 and blame exactly the named checks. The
unpatched file goes the same way over the same cases and must pass. A patch that does not apply is a
failure. CUDA: the patched file is linked in front of the stage's own library (`variant:` names the
row); needs a GPU, so `./ladder gpu check` runs these.

What no variant does, but a function of the library (resuming, say), a test program judges:

    program: tests/unit/test_flash_resume   instead of case:, the patched file is linked into it
    caught-by: test_single_keys         exactly the tests of that program that must fail
"""
import argparse
import concurrent.futures
import glob
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
from tap import Tap

KEYS = ("file", "function", "variant", "program", "what", "caught-by", "case")
CHECKS = ("O", "lse", "dQ", "dK", "dV", "inputs", "storage", "crash")


class Failure(Exception):
    """A sentence for the test's output."""


def read_patch(path):
    """Header fields (case: a list) and hunks [(old lines, new lines)]."""
    fields, hunks = {"case": []}, []
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
            elif not hunks and colon and key in KEYS:
                if key == "case":
                    fields["case"].append(value.strip())
                else:
                    fields[key] = value.strip()
    wanted = {"file", "what", "caught-by"} - set(fields)
    if wanted or not hunks or bool(fields["case"]) == ("program" in fields):
        raise Failure(f"the header lacks {sorted(wanted) or 'a case, a program or a hunk'}")
    fields["caught-by"] = set(fields["caught-by"].split())
    if "program" not in fields and not fields["caught-by"] <= set(CHECKS):
        raise Failure(f"caught-by knows {' '.join(CHECKS)}")
    return fields, hunks


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
    be fast."""
    refused = ("-gencode", "--attn-strict", "-Xptxas=-warn-spills")
    return [word for word in command if not word.startswith(refused)] + ["-arch=native"]


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

    def compile_file(self, file, text, extra):
        absolute = os.path.join(ROOT, file)
        for command in self.commands:
            named = [w for w in command if w.endswith((".c", ".cu")) and
                     os.path.realpath(os.path.join(self.args.build, w)) ==
                     os.path.realpath(absolute)]
            if "-c" in command and named and "-DCOUNT_ACCESSES" not in command:
                break
        else:
            raise Failure(f"the build has no command for {file}")
        source = os.path.join(self.folder, f"{next(self.numbers)}_{os.path.basename(file)}")
        made = source + ".o"
        with open(source, "w", encoding="utf-8") as f:
            f.write(text)
        line = retarget(command, source, made, named[0])
        if file.endswith(".cu"):
            line = for_this_gpu(line)
        line += ["-I" + os.path.dirname(absolute)] + extra  # headers beside the original
        done = run(line, cwd=self.args.build)
        if done.returncode != 0:
            raise Failure(f"does not compile: {shlex.join(line)}\n{done.stderr[-1500:]}")
        # The compiler may be two words, as in "ccache cc".
        return list(itertools.takewhile(lambda word: word[0] != "-", line)), made

    def shared_object(self, fields, text):
        """-Bsymbolic: the object's own functions win over the program's of the same name."""
        compiler, made = self.compile_file(fields["file"], text, ["-O1", "-fPIC"])
        stage, function = self.args.stage, fields["function"]
        shim = made[:-2] + ".shim.c"
        exported = [f"int {stage}_abi_version = {stage.upper()}_ABI_VERSION;",
                    f"AttnStatus {stage}_variant(const AttnArgs *args);",
                    f"AttnStatus {stage}_variant(const AttnArgs *args)",
                    f"{{ return {function}(args); }}"]
        if f"{function}_backward(" in text:
            exported += [f"AttnStatus {stage}_variant_backward(const AttnArgs *args);",
                         f"AttnStatus {stage}_variant_backward(const AttnArgs *args)",
                         f"{{ return {function}_backward(args); }}"]
        with open(shim, "w", encoding="utf-8") as f:
            f.write(f'#include "{stage}.h"\n' + "\n".join(exported) + "\n")
        library = made[:-2] + ".so"
        folder = os.path.join(ROOT, fields["file"].split("/")[0])
        line = compiler + ["-shared", "-fPIC", "-O1", "-Wl,-Bsymbolic", "-o", library, shim, made]
        line += ["-I" + folder, "-I" + os.path.join(ROOT, "common"),
                 "-I" + os.path.join(self.args.build, "common"), "-lm"]
        done = run(line)
        if done.returncode != 0:
            raise Failure(f"does not link: {done.stderr[-1500:]}")
        return [self.args.program, "--device", "cpu", "--variant-so", library]

    def relinked_program(self, fields, text):
        """A program with the changed object in front of the libraries: the first one wins."""
        _, made = self.compile_file(fields["file"], text, [])
        target = fields.get("program", self.target)
        link = [c for c in self.commands if "-c" not in c and "-o" in c and
                c[c.index("-o") + 1] == target]
        if not link:
            raise Failure(f"the build has no link command for {target}")
        program = made[:-2]
        line = [program if word == target else word for word in link[-1]]
        at = line.index("-o") + 2
        line[at:at] = [made, "-Wl,--allow-multiple-definition"]
        done = run(line, cwd=self.args.build)
        if done.returncode != 0:
            raise Failure(f"does not link: {done.stderr[-1500:]}")
        if "program" in fields:
            return [program]
        return [program, "--device", "cuda", "--variant", fields["variant"]]

    def make(self, fields, text):
        as_object = "program" not in fields and not fields["file"].endswith(".cu")
        return (self.shared_object if as_object else self.relinked_program)(fields, text)


def run_cases(command, folder, lines):
    """Exit status, the set of checks that objected, and everything said."""
    case_file = os.path.join(folder, "cases")
    with open(case_file, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    done = run(command + ["--quiet", "--cases", case_file])
    blamed = set(re.findall(r": (\w+) is wrong: \d+ of \d+ values are off", done.stderr))
    for check, sentence in (("inputs", "an input was written to|it wrote to its input"),
                            ("storage", "memory outside the outputs was written to"),
                            ("crash", "crashed with SIG.*: an access behind the end of")):
        if re.search(sentence, done.stderr):
            blamed.add(check)
    return done.returncode, blamed, done.stderr


def run_tests(command):
    """The same of a test program: the checks are the names of its tests."""
    done = run(command, env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP"))
    if not re.search(r"^(not )?ok \d+ - ", done.stdout, re.MULTILINE):
        raise Failure(f"{command[0]} ran no test\n{done.stdout[-500:]}{done.stderr[-1000:]}")
    failed = re.findall(r"^not ok \d+ - (\w+)", done.stdout, re.MULTILINE)
    return int(done.returncode != 0), set(failed), done.stdout + done.stderr


def prepare(pool, shop, passed, path):
    """Starts to make the right and the wrong one. (fields, right, wrong) or the failure."""
    try:
        fields, hunks = read_patch(path)
        with open(os.path.join(ROOT, fields["file"]), encoding="utf-8") as f:
            text = f.read()
        wrong = apply_hunks(text, hunks)
    except (Failure, OSError) as why:
        return why
    key = (fields["file"], fields.get("function"), fields.get("program"))
    if key not in passed:
        passed[key] = pool.submit(shop.make, fields, text)
    return fields, passed[key], pool.submit(shop.make, fields, wrong)


def judge_patch(tap, shop, path, prepared):
    name = os.path.basename(path)
    try:
        if isinstance(prepared, Exception):
            raise prepared
        fields, right, wrong = prepared

        def judge(command):
            if "program" in fields:
                return run_tests(command)
            return run_cases(command, shop.folder, fields["case"])

        status, _, said = judge(right.result())
        if status != 0:
            raise Failure(f"the unpatched file must pass, exit status {status}\n{said[-1500:]}")
        status, blamed, said = judge(wrong.result())
        tap.ok(status == 1 and blamed == fields["caught-by"],
               f"{name}: {fields['what']}: caught by {' '.join(sorted(fields['caught-by']))}",
               f"exit status {status}, blamed {sorted(blamed)}\n{said[-1500:]}")
    except (Failure, OSError, subprocess.TimeoutExpired) as why:
        tap.ok(False, name, str(why))


def self_test(tap):
    """The applier must refuse what does not fit."""
    for label, hunks in (("a missing line", [(["b", "x"], ["b"])]),
                         ("an ambiguous place", [(["a"], ["z"])]),
                         ("an empty change", [(["b"], ["b"])])):
        try:
            apply_hunks("a\nb\na\n", hunks)
            tap.ok(False, f"the applier refuses {label}")
        except Failure:
            tap.ok(True, f"the applier refuses {label}")
    tap.ok(apply_hunks("a\nb\na\n", [(["b", "a"], ["c", "a"])]) == "a\nc\na\n", "and applies")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--stage", required=True, help="prefix of the exported names: naive")
    parser.add_argument("--program", required=True)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("patches", nargs="*", help="default: all of the stage and the device")
    args = parser.parse_args()
    args.build, args.program = os.path.abspath(args.build), os.path.abspath(args.program)
    # 01_naive/naive in the build folder: the sources are in the folder of the same name.
    folder_of_stage = os.path.basename(os.path.dirname(args.program))
    ending = ".cu" if args.device == "cuda" else ".c"
    tap, mine = Tap(), []
    tiny = [args.program, "--device", args.device, "-N", "1", "-H", "1", "-d", "1", "--quiet"]
    if run(tiny).returncode == 77:
        return tap.skip_all(f"no {args.device} device here")
    self_test(tap)
    programs = set()
    for path in args.patches or sorted(glob.glob(os.path.join(HERE, "*.patch"))):
        try:
            fields = read_patch(path)[0]
        except Failure as why:
            tap.ok(False, os.path.basename(path), str(why))
            continue
        if fields["file"].startswith(folder_of_stage + "/") and fields["file"].endswith(ending):
            mine.append(path)
            programs |= {fields["program"]} if "program" in fields else set()
    tap.ok(mine, f"{len(mine)} wrong solutions for {folder_of_stage} on {args.device}")
    workers = min(16, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(workers) as pool:
        shop, passed = Workshop(args, folder, programs), {}
        prepared = [prepare(pool, shop, passed, path) for path in mine]
        for path, made in zip(mine, prepared):
            judge_patch(tap, shop, path, made)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
