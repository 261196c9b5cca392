#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ladder.py: what `./ladder build` asks of meson and ninja, and what it refuses; --help; the
script through symbolic links; which tests `./ladder gpu sanitize` runs, and that one which is not
there is a failure; that `./ladder gpu check` runs each test once, two at a time, and tells one that
failed and one that did not run; and that a clone has the same line endings everywhere.

The script runs in a copy, with stand-ins for meson and ninja that write down their arguments, for
nvidia-smi, and for the tests of a GPU.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path[:0] = [os.path.join(TOP, "tests")]
from tap import Tap

STAND_IN = """#!/bin/sh
echo "${0##*/} $*" >>"$CALLS"
[ "$1" != setup ] || { mkdir -p "$2"; echo >"$2/build.ninja"; }
"""

# two tests meet: each waits until the other one has begun
ONE_TEST = """echo "begin $2" >>"$CALLS"
case $2 in meet_*) while [ "$(grep -c 'begin meet' "$CALLS")" -lt 2 ]; do sleep 0.05; done ;; esac
echo "end $2" >>"$CALLS"
[ "$2" != "${FAILS:-}" ]
"""


class Copy:
    def __init__(self, folder):
        self.top = os.path.join(folder, "tree")
        self.calls = os.path.join(folder, "calls")
        for part in ("tools", "course"):
            shutil.copytree(os.path.join(TOP, "common", part),
                            os.path.join(self.top, "common", part))
        shutil.copy(os.path.join(TOP, "ladder"), self.top)
        os.makedirs(os.path.join(self.top, "tests", "wrong"))
        shutil.copy(os.path.join(TOP, "tests", "wrong", "workshop.py"),
                    os.path.join(self.top, "tests", "wrong"))
        for stage in ("01_naive", "03_flash_forward"):
            os.mkdir(os.path.join(self.top, stage))
            open(os.path.join(self.top, stage, "main.c"), "w", encoding="utf-8").close()
        self.bin = os.path.join(folder, "bin")
        os.mkdir(self.bin)
        for name, text in (("meson", STAND_IN), ("ninja", STAND_IN),
                           ("nvidia-smi", "#!/bin/sh\necho 'GPU 0: a stand-in'\n")):
            path = os.path.join(self.bin, name)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(path, 0o755)

    def run(self, *words, **environment):
        """The finished script, and the calls of meson and ninja in it."""
        open(self.calls, "w", encoding="utf-8").close()
        done = subprocess.run(
            [os.path.join(self.top, "ladder"), *words], capture_output=True, text=True, timeout=60,
            env=dict(os.environ, CALLS=self.calls, LADDER_NO_INSTALL="1", **environment,
                     PATH=self.bin + os.pathsep + os.environ["PATH"]))
        with open(self.calls, encoding="utf-8") as f:
            return done, [line for line in f.read().splitlines() if "--version" not in line]


def check_sanitized(tap):
    """Programs that have a source, and one test at a time where that is said: all of the file."""
    for stage in ("flash_forward", "flash_backward", "sliding_window", "ring_burst"):
        done = subprocess.run(["sh", "-c", ". common/tools/ladder_gpu_cases.sh; "
                               f"sanitize_programs {stage}"], cwd=TOP, capture_output=True,
                              text=True, check=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        sources = {line[0].removeprefix("build/gpu/") + ".c" for line in lines}
        named = sorted(line[2] for line in lines if len(line) > 2)
        there = []
        for source in sources if named else ():
            with open(os.path.join(TOP, source), encoding="utf-8") as f:
                there += re.findall(r"^TEST\((\w+)\)", f.read(), re.M)
        tap.ok(lines and all(os.path.isfile(os.path.join(TOP, name)) for name in sources) and
               named == sorted(there), f"gpu sanitize: {stage}'s own tests", done.stdout)


def check_missing_test(tap, folder):
    """A GPU test's program, on a GPU that it is told of."""
    source, made = os.path.join(folder, "t.c"), os.path.join(folder, "t")
    with open(source, "w", encoding="utf-8") as f:
        f.write('#include "gpu_main.h"\nint device_count(void)\n{\n    return 1;\n}\n'
                "TEST(test_right) { assert_true(1); }\nTEST(test_wrong) { assert_true(0); }\n")
    command = ["cc", "-D_GNU_SOURCE", source, "-o", made, "-I" + os.path.join(TOP, "tests", "gpu"),
               "-I" + os.path.join(TOP, "common"), "-I" + os.path.join(TOP, "common", "attention")]
    if subprocess.run([*command, "-lcmocka"], capture_output=True, check=False).returncode:
        subprocess.run([*command, "-I" + os.path.join(TOP, "tests", "unit", "fallback")],
                       check=True)
    for words, wanted in (((), 1), (("small",), 1), (("small", "test_right"), 0),
                          (("small", "test_wrong"), 1), (("small", "test_gone"), 1)):
        done = subprocess.run([made, *words], capture_output=True, text=True, check=False)
        tap.ok(done.returncode == wanted, f"a GPU test's program with {words}: {wanted}",
               done.stdout + done.stderr)


def check_lanes(tap, copy):
    """Tests of stage 03 that write down when they begin and end."""
    info = os.path.join(copy.top, "build", "gpu", "meson-info")
    os.makedirs(info)
    open(os.path.join(copy.top, "build", "gpu", "build.ninja"), "w", encoding="utf-8").close()
    names = ["meet_1", "meet_2", "rows_large", "third", "fourth"]
    with open(os.path.join(info, "intro-tests.json"), "w", encoding="utf-8") as f:
        json.dump([{"name": name, "suite": ["x:03", "x:gpu"]} for name in names] +
                  [{"name": "other", "suite": ["x:03"]}], f)
    for path, text in ((".revision", "r1\n"), ("common/tools/gpu_one_test.sh", ONE_TEST)):
        with open(os.path.join(copy.top, path), "w", encoding="utf-8") as f:
            f.write(text)

    def check(**environment):
        done, calls = copy.run("gpu", "check", "03", "--out", "out", **environment)
        with open(os.path.join(copy.top, "out", "done.txt"), encoding="utf-8") as f:
            return done, calls, sorted(line.split()[-1] for line in f)

    done, calls, kept = check(FAILS="third")
    others = sorted(set(names) - {"third"})
    tap.ok(done.returncode == 1 and kept == others and "03 third ... FAILED" in done.stderr and
           sorted(calls) == sorted(f"{what} {name}" for what in ("begin", "end") for name in names),
           "gpu check: each test once, two at a time; one that fails is told", (done, calls, kept))
    tap.ok(calls[-2:] == ["begin rows_large", "end rows_large"],
           "gpu check: what fills the memory comes last, alone", calls)
    done, calls, kept = check()
    tap.ok(done.returncode == 0 and calls == ["begin third", "end third"] and kept == sorted(names),
           "gpu check: called again, only what did not pass", (done, calls, kept))
    os.remove(os.path.join(copy.top, "out", "done.txt"))
    done, calls, kept = check(LADDER_SECONDS="0")
    tap.ok(done.returncode == 4 and "time is up before '03 meet_1'" in done.stderr and
           calls == kept == [], "gpu check: time is up", (done, calls, kept))
    with open(os.path.join(info, "intro-tests.json"), "w", encoding="utf-8") as f:
        json.dump([{"name": "no/folder", "suite": ["x:03", "x:gpu"]}], f)
    done, calls, kept = check()
    tap.ok(done.returncode == 1 and calls == kept == [],
           "gpu check: a test that no lane begins has not passed", (done, calls, kept))


def check_refusals(tap, copy):
    """Before anything is compiled, and no folder is made."""
    before = os.listdir(copy.top)
    for words, said in ((("build", "07"), "unknown stage '07'"),
                        (("build", "0*"), "unknown stage '0*'"),
                        (("build", ""), "unknown stage ''"),
                        (("build", "01", "03"), "accepted is: ./ladder build [STAGE]"),
                        (("lecture", "0."), "unknown stage '0.'"),
                        (("bench", "cpu", "9"), "unknown stage '9'"),
                        (("bench", "cpu", ""), "unknown stage ''"),
                        (("test", ""), "test takes nothing or 'quick', found ''"),
                        (("plot", ""), " is not there"),
                        (("gpu", "check", "", "--out", "x"), "unknown flag ''"),
                        (("gpu", "build", "9", "--out", "x"), "unknown stage '9'"),
                        (("gpu", "bench", "--out", "ladder"), "ladder is no folder"),
                        (("clean", "01"), "clean takes no argument, found '01'")):
        done, calls = copy.run(*words)
        tap.ok(done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1 and
               not calls and os.listdir(copy.top) == before,
               f"{' '.join(words)} is refused", (done, calls))


def check_links(tap, copy, folder):
    """The script through symbolic links, by path and by PATH: it finds its own folder, and what it
    starts still learns where the user stands."""
    with open(os.path.join(copy.top, "common", "course", "quiz.py"), "w", encoding="utf-8") as f:
        f.write("import os\nprint(os.getcwd(), os.environ['LADDER_FROM'])\n")
    away, here = os.path.join(folder, "a way"), os.path.join(folder, "here")
    os.mkdir(away)
    os.mkdir(here)
    for name, target in (("absolute", os.path.join(copy.top, "ladder")),
                         ("relative", "../tree/ladder"), ("chain", "../here/second"),
                         ("../here/second", "../a way/relative"), ("folder", "../tree")):
        os.symlink(target, os.path.join(away, name))
    for words in (["../a way/absolute"], ["../a way/relative"], ["../a way/chain"],
                  ["../a way/folder/ladder"], [os.path.join(away, "chain")], ["./second"],
                  ["second"], ["sh", "second"], ["sh", "../tree/ladder"]):
        done = subprocess.run([*words, "quiz"], capture_output=True, text=True, cwd=here,
                              check=False, env=dict(os.environ, CDPATH="/:..",
                                                    PATH=here + os.pathsep + os.environ["PATH"]))
        tap.ok(done.returncode == 0 and
               done.stdout == f"{os.path.realpath(copy.top)} {os.path.realpath(here)}\n",
               f"{' '.join(words)}: a link to the script", done.stdout + done.stderr)


def check_line_endings(tap, folder):
    """A clone by a git that writes CR LF into text files, as on Windows."""
    clone = os.path.join(folder, "clone")
    if not shutil.which("git") or subprocess.run(
            ["git", "clone", "-q", "-c", "core.autocrlf=true", TOP, clone], capture_output=True,
            check=False).returncode:
        tap.skip("a clone with core.autocrlf=true", "no git, or this tree is no repository of it")
        return
    # i/lf w/crlf attr/text=auto eol=lf<TAB>name
    listed = subprocess.run(["git", "-C", clone, "ls-files", "--eol"], capture_output=True,
                            text=True, check=True).stdout.splitlines()
    kinds = {line.split("\t")[1]: line.split()[:3] for line in listed}
    bad = [name for name, (kept, there, attribute) in kinds.items() if kept[2:] != there[2:] or
           kept not in ("i/lf", "i/none") and (kept, attribute) != ("i/-text", "attr/-text")]
    tap.ok(len(kinds) > 1000 and not bad,
           "core.autocrlf=true: no text has a carriage return, and binaries are named as such",
           bad[:9])
    done = subprocess.run(["sh", os.path.join(clone, "ladder"), "--help"], capture_output=True,
                          text=True, check=False)
    tap.ok(done.returncode == 0 and done.stdout.startswith("usage: ./ladder") and not done.stderr,
           "core.autocrlf=true: the script starts", done.stderr)


def main():
    tap = Tap()
    check_sanitized(tap)
    with tempfile.TemporaryDirectory() as folder:
        check_missing_test(tap, folder)
        check_line_endings(tap, folder)
    with tempfile.TemporaryDirectory() as folder:
        check_lanes(tap, Copy(folder))
    with tempfile.TemporaryDirectory() as folder:
        check_links(tap, Copy(folder), folder)
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(folder)
        check_refusals(tap, copy)
        done, calls = copy.run("build", "01")
        tap.ok(done.returncode == 0 and len(calls) == 2 and
               calls[0].startswith("meson setup build/demo ") and
               calls[1] == "ninja -C build/demo 01_naive/naive",
               "build 01 configures and compiles that program", (done, calls))
        tap.ok(done.stdout == "build/demo/01_naive/naive\n", "and says where it is", done.stdout)
        done, calls = copy.run("build", "03_flash_forward")
        tap.ok(done.returncode == 0 and
               calls == ["ninja -C build/demo 03_flash_forward/flash_forward"],
               "the next one is not configured again", (done, calls))
        done, calls = copy.run("build")
        tap.ok(calls == ["ninja -C build/demo 01_naive/naive 03_flash_forward/flash_forward"],
               "without a stage: all", (done, calls))
        done, calls = copy.run("lecture", "03")
        tap.ok(calls == ["ninja -C build/demo 03_flash_forward/flash_forward"],
               "a lecture compiles a program that is not there", (done, calls))
        there = os.path.join(folder, "03_flash_forward")
        os.mkdir(there)
        os.symlink("/bin/true", os.path.join(there, "flash_forward"))
        done, calls = copy.run("lecture", "03", LADDER_PROGRAMS=folder)
        tap.ok(not calls, "and none that is", (done, calls))
        commands = re.findall(r"^  ([a-z]+) ", copy.run("--help")[0].stdout, re.M)
        tap.ok({"build", "demo", "clean"} < set(commands), "the commands of --help", commands)
        kept = os.path.join(copy.top, "build", "kept")
        open(kept, "w", encoding="utf-8").close()
        for command in sorted(set(commands) - {"grade", "handout", "learn"}):
            done, calls = copy.run(command, "--help")
            tap.ok(done.returncode == 0 and done.stdout.startswith("usage: ") and not done.stderr
                   and not calls and os.path.exists(kept), f"{command} --help: usage, nothing done",
                   (done, calls))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
