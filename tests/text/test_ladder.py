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
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests")]
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
        self.top, self.calls, self.bin = folder / "tree", folder / "calls", folder / "bin"
        for part in ("common/tools", "common/course"):
            shutil.copytree(TOP / part, self.top / part)
        (self.top / "tests/wrong").mkdir(parents=True)
        for file in ("ladder", "tests/wrong/workshop.py"):
            shutil.copy(TOP / file, self.top / file)
        for stage in ("01_naive", "03_flash_forward"):
            (self.top / stage).mkdir()
            (self.top / stage / "main.c").touch()
        self.bin.mkdir()
        for name, text in (("meson", STAND_IN), ("ninja", STAND_IN),
                           ("nvidia-smi", "#!/bin/sh\necho 'GPU 0: a stand-in'\n")):
            (self.bin / name).write_text(text, encoding="utf-8")
            (self.bin / name).chmod(0o755)

    def run(self, *words, **environment):
        """The finished script, and the calls of meson and ninja in it."""
        self.calls.write_text("", encoding="utf-8")
        done = subprocess.run(
            [self.top / "ladder", *words], capture_output=True, text=True, timeout=60, check=False,
            env=dict(os.environ, CALLS=str(self.calls), LADDER_NO_INSTALL="1", **environment,
                     PATH=f"{self.bin}:{os.environ['PATH']}"))
        lines = self.calls.read_text(encoding="utf-8").splitlines()
        return done, [line for line in lines if "--version" not in line]


def check_sanitized(tap):
    """Programs that have a source, and one test at a time where that is said: all of the file."""
    for stage in ("flash_forward", "flash_backward", "sliding_window", "ring_burst"):
        done = subprocess.run(["sh", "-c", ". common/tools/ladder_gpu_cases.sh; "
                               f"sanitize_programs {stage}"], cwd=TOP, capture_output=True,
                              text=True, check=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        sources = {TOP / (line[0].removeprefix("build/gpu/") + ".c") for line in lines}
        named = sorted(line[2] for line in lines if len(line) > 2)
        there = [name for source in sources if named
                 for name in re.findall(r"^TEST\((\w+)\)", source.read_text("utf-8"), re.M)]
        tap.ok(lines and all(source.is_file() for source in sources) and named == sorted(there),
               f"gpu sanitize: {stage}'s own tests", done.stdout)


def check_missing_test(tap, folder):
    """A GPU test's program, on a GPU that it is told of."""
    source, made = folder / "t.c", folder / "t"
    source.write_text('#include "gpu_main.h"\nint device_count(void)\n{\n    return 1;\n}\n'
                      "TEST(test_right) { assert_true(1); }\n"
                      "TEST(test_wrong) { assert_true(0); }\n", encoding="utf-8")
    command = ["cc", "-D_GNU_SOURCE", source, "-o", made,
               *(f"-I{TOP / part}" for part in ("tests/gpu", "common", "common/attention"))]
    if subprocess.run([*command, "-lcmocka"], capture_output=True, check=False).returncode:
        subprocess.run([*command, f"-I{TOP / 'tests/unit/fallback'}"], check=True)
    for words, wanted in (((), 1), (("small",), 1), (("small", "test_right"), 0),
                          (("small", "test_wrong"), 1), (("small", "test_gone"), 1)):
        done = subprocess.run([made, *words], capture_output=True, text=True, check=False)
        tap.ok(done.returncode == wanted, f"a GPU test's program with {words}: {wanted}",
               done.stdout + done.stderr)


def check_lanes(tap, copy):
    """Tests of stage 03 that write down when they begin and end."""
    tests, noted = copy.top / "build/gpu/meson-info/intro-tests.json", copy.top / "out/done.txt"
    tests.parent.mkdir(parents=True)
    (copy.top / "build/gpu/build.ninja").touch()
    names = ["meet_1", "meet_2", "rows_large", "third", "fourth"]
    tests.write_text(json.dumps([{"name": name, "suite": ["x:03", "x:gpu"]} for name in names] +
                                [{"name": "other", "suite": ["x:03"]}]), encoding="utf-8")
    for path, text in ((".revision", "r1\n"), ("common/tools/gpu_one_test.sh", ONE_TEST)):
        (copy.top / path).write_text(text, encoding="utf-8")

    def check(**environment):
        done, calls = copy.run("gpu", "check", "03", "--out", "out", **environment)
        lines = noted.read_text(encoding="utf-8").splitlines()
        return done, calls, sorted(line.split()[-1] for line in lines)

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
    noted.unlink()
    done, calls, kept = check(LADDER_SECONDS="0")
    tap.ok(done.returncode == 4 and "time is up before '03 meet_1'" in done.stderr and
           calls == kept == [], "gpu check: time is up", (done, calls, kept))
    tests.write_text(json.dumps([{"name": "no/folder", "suite": ["x:03", "x:gpu"]}]), "utf-8")
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
    (copy.top / "common/course/quiz.py").write_text(
        "import os\nprint(os.getcwd(), os.environ['LADDER_FROM'])\n", encoding="utf-8")
    away, here = folder / "a way", folder / "here"
    away.mkdir()
    here.mkdir()
    for name, target in (("absolute", copy.top / "ladder"), ("relative", "../tree/ladder"),
                         ("chain", "../here/second"), ("../here/second", "../a way/relative"),
                         ("folder", "../tree")):
        (away / name).symlink_to(target)
    for words in (["../a way/absolute"], ["../a way/relative"], ["../a way/chain"],
                  ["../a way/folder/ladder"], [str(away / "chain")], ["./second"],
                  ["second"], ["sh", "second"], ["sh", "../tree/ladder"]):
        done = subprocess.run([*words, "quiz"], capture_output=True, text=True, cwd=here,
                              check=False, env=dict(os.environ, CDPATH="/:..",
                                                    PATH=f"{here}:{os.environ['PATH']}"))
        tap.ok(done.returncode == 0 and done.stdout == f"{copy.top.resolve()} {here.resolve()}\n",
               f"{' '.join(words)}: a link to the script", done.stdout + done.stderr)


def check_line_endings(tap, folder):
    """A clone by a git that writes CR LF into text files, as on Windows."""
    clone = folder / "clone"
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
    done = subprocess.run(["sh", clone / "ladder", "--help"], capture_output=True,
                          text=True, check=False)
    tap.ok(done.returncode == 0 and done.stdout.startswith("usage: ./ladder") and not done.stderr,
           "core.autocrlf=true: the script starts", done.stderr)


def main():
    tap = Tap()
    check_sanitized(tap)
    with tempfile.TemporaryDirectory() as name:
        check_missing_test(tap, pathlib.Path(name))
        check_line_endings(tap, pathlib.Path(name))
    with tempfile.TemporaryDirectory() as name:
        check_lanes(tap, Copy(pathlib.Path(name)))
    with tempfile.TemporaryDirectory() as name:
        check_links(tap, Copy(pathlib.Path(name)), pathlib.Path(name))
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(pathlib.Path(name))
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
        program = pathlib.Path(name, "03_flash_forward/flash_forward")
        program.parent.mkdir()
        program.symlink_to("/bin/true")
        done, calls = copy.run("lecture", "03", LADDER_PROGRAMS=name)
        tap.ok(not calls, "and none that is", (done, calls))
        commands = re.findall(r"^  ([a-z]+) ", copy.run("--help")[0].stdout, re.M)
        tap.ok({"build", "demo", "clean"} < set(commands), "the commands of --help", commands)
        kept = copy.top / "build/kept"
        kept.touch()
        for command in sorted(set(commands) - {"grade", "handout", "learn"}):
            done, calls = copy.run(command, "--help")
            tap.ok(done.returncode == 0 and done.stdout.startswith("usage: ") and not done.stderr
                   and not calls and kept.exists(), f"{command} --help: usage, nothing done",
                   (done, calls))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
