#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_grade.py: ./ladder grade: points, statuses, messages, formats, and what it refuses.

usage: test_grade.py BUILD

A right submission for the small contracts is graded on a suite of each, and copies of it with one
mistake. Where this machine has no sandbox the tests run with --so-sandbox off and say so.
"""
import contextlib
import csv
import io
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "common" / "course"))
import grade as grade_tool
import grade_formats
import suite as suites
from tap import Tap

TOOL = HERE.parents[1] / "common" / "course" / "grade.py"
HEADERS = HERE.parents[1] / "docs" / "course" / "include"
COMMON = HERE.parents[1] / "common"
RIGHT = HERE / "submissions" / "right.c"
VISIBILITIES = ("hidden", "after_due_date", "after_published", "visible")

# contract: cases, mistakes (name, text in right.c, what stands there instead; those of softmax_rows
# and softmax_merge are in test_hints.py)
CONTRACTS = {
    "softmax_merge": (["--rows 333 --cols 40", "--rows 1 --cols 3",
                       "--rows 1001 --cols 7 --dist large"], []),
    "softmax_rows": (["--rows 1 --cols 3", "--rows 5 --cols 1", "--rows 9 --cols 333 --dist large"],
                     []),
    "softmax_twist": (["--rows 7 --cols 55 --twist sliding=7",
                       "--rows 4 --cols 301 --twist sliding=71",
                       "--rows 3 --cols 50 --twist sliding=500"],
                      [("one column too many", "c + 1 - width", "c - width"),
                       ("the whole row", "c + 1 > width ?", "0 ?")]),
    "flash_simple": (["-N 3 -d 2", "-N 1 -d 8", "-N 333 -d 64 --causal",
                      "-N 301 -d 32 --dist large",
                      "-N 1024 -d 16 --require memory=N"],
                     [("no scale", "1.0f / sqrtf((float)d);\n    for", "1.0f;\n    for"),
                      ("O not rescaled", "O_i[x] = alpha * O_i[x]", "O_i[x] = O_i[x]"),
                      ("no mask", "for (int j = 0; j < (causal ? i + 1 : N); j++) {\n            "
                       "const float s = scale", "for (int j = 0; j < N; j++) {\n            "
                       "const float s = scale"),
                      ("lse without m", "lse[i] = m + logf(l)", "lse[i] = logf(l)")]),
    "backward_steps": (["--part delta -N 333 -d 64", "--part dV -N 101 -d 32 --causal",
                        "--part dK -N 133 -d 32", "--part dQ -N 101 -d 32 --causal"],
                       [("delta missing", "(dP - delta[i])", "dP"),
                        ("no scale", "/ sqrtf((float)d);\n            for", ";\n            for"),
                        ("lse not used", "sqrtf((float)d) - lse[i]", "sqrtf((float)d)"),
                        ("delta of O alone", "dot(O + i * d, dO + i * d, d)",
                         "dot(O + i * d, O + i * d, d)")]),
    "sliding_window_step": (["-N 3 -d 2 --block-q 4 --block-kv 4",
                             "-N 133 -d 16 --causal --order random",
                             "--seq-q 101 --seq-kv 333 -d 8 --causal --window 50,0 --order columns",
                             "-N 133 -d 16 --window 40,20 --block-q 32 --order diagonal"],
                            [("window one short", "ahead >= -t->left", "ahead > -t->left"),
                             ("padding seen", "c < t->rows_k", "c < t->Bc"),
                             ("first block's rows", "(t->first_row + r) * d", "r * d"),
                             ("lse not lifted", "*lse = both;", "*lse = s;")]),
}
GRADED = """contract=flash_simple time=2 memory=256 all=pair,rest
points=2 name="tiny" : -N 3 -d 2
points=3 group=pair name="causal & \\"long\\"" : -N 133 -d 64 --causal
points=3 group=pair visibility=hidden name="hidden" : -N 120 -d 64
points=1.5 group=rest visibility=after_due_date name="clean" : -N 60 -d 8 --require no-blas
points=0.5 group=rest name="fast" perf=0.001 of=sgemm : -N 512 -d 64
""".replace('\\"', "'")
# Deeds: source of a submission, the statuses of the five cases
HEAD = "".join(f"#include {name}\n" for name in (
    '"flash_simple.h"', "<errno.h>", "<stdio.h>", "<stdlib.h>", "<signal.h>", "<unistd.h>"))
SIGNATURE = ("int flash_simple_variant(const float *Q, const float *K, const float *V, float *O, "
             "float *lse, int N, int d, int causal)\n")
DEEDS = [
    ("does nothing", "{ return 0; }", ["wrong"] * 5, "values are off"),
    ("says no", "{ return 7; }", ["wrong"] * 5, "it returned 7"),
    ("says that memory was short", "{ errno = ENOMEM; return 7; }", ["memory"] * 5,
     "it returned with errno = ENOMEM"),
    ("crashes", "{ raise(SIGSEGV); return 0; }", ["crashed"] * 5, "SIGSEGV"),
    ("follows a wild pointer", "{ *(volatile int *)0x5d77e9fe7900 = 1; return 0; }",
     ["crashed"] * 5, "an access to memory that is not its own"),
    ("exits", "{ exit(0); }", ["crashed"] * 5, "exit"),
    ("hangs", "{ if (N > 100 && !causal) for (;;) sleep(1); return 0; }",
     ["wrong", "wrong", "time", "wrong", "time"], "within 2 s"),
    ("allocates", "{ size_t n = (size_t)1 << 30; char *p = calloc(n, 1); if (!p) return 2; "
     "for (size_t i = 0; i < n; i += 4096) p[i] = 1; O[0] = p[9]; return 0; }", ["memory"] * 5,
     "256 MiB"),
    ("does not compile", "{ return nothing; }", ["refused"] * 5, "nothing"),
    ("has another name", "{ return 0; }\n#define flash_simple_variant", ["refused"] * 5,
     "flash_simple_variant"),
]


def grade(build, sandbox, *arguments, how=grade_tool.grade):
    """(exit status, stdout, stderr) of the program, which this process runs: to start Python for
    each call would take as long as to judge."""
    words = ["--build", str(build), "--so-sandbox", sandbox, *map(str, arguments)]
    with contextlib.redirect_stdout(io.StringIO()) as out, \
            contextlib.redirect_stderr(io.StringIO()) as err:
        status = grade_tool.run(words, how)
    return status, out.getvalue(), err.getvalue()


def graded(build, sandbox, *arguments):
    """Results by --format json; [] with the message when it did not work."""
    status, out, err = grade(build, sandbox, *arguments, "--format", "json")
    return [json.loads(line) for line in out.split("\n")[:-1]] if status == 0 else [], err


def write_suite(path, contract, cases, time=5):
    path.write_text(f"contract={contract} time={time} memory=256\n" +
                    "".join(f"points=1 : {case}\n" for case in cases), encoding="utf-8")
    return path


def fake_build(build, fake, *without):
    """A build folder of links, without some programs, whose places are in the course's folder."""
    course = fake / "common" / "course"
    course.mkdir(parents=True)
    (fake / "common/attn_config.h").symlink_to(build.resolve() / "common/attn_config.h")
    for name in {"attn_jail", "attn_judge", "attn_runner"} - set(without):
        (course / name).symlink_to(build.resolve() / "common/course" / name)
    return course


def executable(path, text):
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def check_contracts(tap, build, sandbox, folder):
    right, source = library(RIGHT, folder / "right.so"), RIGHT.read_text(encoding="utf-8")
    for contract, (cases, mistakes) in CONTRACTS.items():
        suite = write_suite(folder / f"{contract}.suite", contract, cases)
        files = [right]
        for number, (name, text, instead) in enumerate(mistakes):
            if not tap.ok(text in source, f"{contract}: '{name}' can be made"):
                continue
            path = folder / f"{contract}{number}.c"
            path.write_text(source.replace(text, instead), encoding="utf-8")
            files.append(library(path))
        results, err = graded(build, sandbox, suite, *files)
        if not tap.ok(len(results) == len(files), f"{contract}: graded", err):
            continue
        tap.ok(results[0]["score"] == results[0]["max_score"] == len(cases),
               f"{contract}: the right submission gets all points", results[0])
        for (name, _, _), result in zip(mistakes, results[1:]):
            wrong = [test for test in result["tests"] if test["status"] == "wrong"]
            tap.ok(wrong and result["score"] < len(cases) and
                   all(test["errors"] and test["message"] for test in wrong),
                   f"{contract}: '{name}' is wrong", result)


RING = """contract=ring_method time=5 memory=256
name=alone : --ranks 1 -H 2 -N 21 -d 8
name=three : --ranks 3 -H 4 --kv-heads 2 -N 67 -d 8 --causal
name=zigzag : --ranks 4 -H 2 -N 67 -d 8 --causal --layout zigzag
name=window : --ranks 2 -H 2 -N 40 -d 8 --window 5,3 --layout striped
name=backward : --ranks 3 -H 4 --kv-heads 2 -N 67 -d 8 --causal --backward
name=ring : --ranks 4 -H 2 -N 67 -d 8 --require ring
"""
# what stands before a right ring method, the status, a word of the message
RING_DEEDS = [
    ("waits first", "char c; p->receive(p, (p->rank + 1) % p->world, &c, 1);", "wrong",
     "rank 1 waits for a message of rank 2"),
    ("ends early", "if (p->rank == 1) return 0;", "wrong", "rank 1 has ended"),
    ("sends short messages", "char c = 1; p->send(p, (p->rank + 1) % p->world, &c, 1);", "wrong",
     "whose next message has 1"),
    ("sends to nobody", "char c = 1; p->send(p, p->world, &c, 1);", "wrong", "sends to rank"),
    ("crashes on rank 1", "if (p->rank == 1) abort();", "crashed", "rank 1: it crashed"),
    ("hangs on rank 1", "if (p->rank == 1) for (;;) sleep(1);", "time",
     "rank 0 waits for a message of rank 1, rank 1 is at work"),
    # the signal of the processor's time: the end of a rank whose time is over before the others'
    ("is late before those that wait", "if (p->rank == 1) sleep(1), raise(SIGXCPU);", "time",
     "rank 0 waits for a message of rank 1, rank 1 is at work"),
    ("floods", "static char m[1 << 19]; for (;;) p->send(p, (p->rank + 1) % p->world, m, 1 << 19);",
     "wrong", "64 MiB of messages"),
]


def check_ring(tap, build, sandbox, folder):
    suite = folder / "ring.suite"
    suite.write_text(RING, encoding="utf-8")
    source = (HERE / "submissions" / "ring_all_to_all.c").read_text(encoding="utf-8")
    start = "int ring_method_variant(const RingPart *p)\n{\n"
    tap.ok(start in source, "ring: a deed can be put in front")
    (folder / "all.c").write_text(source, encoding="utf-8")
    results, err = graded(build, sandbox, suite, library(folder / "all.c"))
    if not tap.ok(len(results) == 1, "ring: graded", err):
        return
    found = [test["status"] for test in results[0]["tests"]]
    tap.ok(found == ["right"] * 5 + ["refused"] and
           "neighbours" in results[0]["tests"][5]["message"],
           "ring: a right method that is no ring, both passes", results[0])
    deeds = write_suite(folder / "deeds.suite", "ring_method", ["--ranks 3 -N 67 -d 8"], 4)
    files = []
    for number, (_, deed, _, _) in enumerate(RING_DEEDS):
        path = folder / f"ring{number}.c"
        path.write_text("#include <signal.h>\n#include <unistd.h>\n" +
                        source.replace(start, f"{start}    {deed}\n"), encoding="utf-8")
        files.append(library(path))
    results, err = graded(build, sandbox, deeds, *files)
    tap.ok(len(results) == len(files), "ring: deeds are graded", err)
    for (name, _, status, word), result in zip(RING_DEEDS, results):
        test = result["tests"][0]
        tap.ok(test["status"] == status and word in test["message"], f"a ring method that {name}",
               test)
    idle = folder / "idle.c"
    idle.write_text('#include "ring_method.h"\nint ring_method_variant(const RingPart *p)\n'
                    "{ (void)p; return 0; }\n", encoding="utf-8")
    results, err = graded(build, sandbox, suite, library(idle))
    tests = results[0]["tests"] if results else [{}] * 6
    tap.ok(tests[1].get("status") == "wrong" and tests[4].get("status") == "refused" and
           "ring_method_variant_backward" in tests[4]["message"] and
           "no rank sent a message" in tests[5]["message"], "a ring method that does nothing",
           err or results)
    more = folder / "more.c"
    more.write_text((HERE / "solutions" / "5_ring_attention.c").read_text(encoding="utf-8").replace(
        "if (step + 1 < p->world)\n            p->send", "p->send"), encoding="utf-8")
    results, err = graded(build, sandbox, suite, library(more))
    test = results[0]["tests"][5] if results else {}
    tap.ok(test.get("status") == "refused" and "never received" in test["message"],
           "a ring method that sends once too often", err or results)


def check_slow_ring(tap, build, sandbox, folder):
    """A rank may wait as long as the case has time, to parts of a second."""
    suite = write_suite(folder / "slow.suite", "ring_method",
                        ["--ranks 2 -N 7 -d 2", "--ranks 2 -N 9 -d 2"], 2)
    source = (HERE / "submissions" / "ring_all_to_all.c").read_text(encoding="utf-8")
    start = "int ring_method_variant(const RingPart *p)\n{\n"
    (folder / "slow.c").write_text("#include <unistd.h>\n" + source.replace(
        start, f"{start}    if (p->rank == 1)\n        usleep(1500000);\n"), encoding="utf-8")
    results, err = graded(build, sandbox, suite, library(folder / "slow.c"))
    tap.ok(results and [test["status"] for test in results[0]["tests"]] == ["right"] * 2,
           "ring: a rank waits for 1.5 of 2 seconds", err or results)


def check_busy(tap, build, sandbox, folder):
    """A limit of time is the submission's own: others on its processor cannot use it up."""
    suite = write_suite(folder / "busy.suite", "flash_simple", ["-N 3 -d 2"], 0.6)
    right = RIGHT.read_text(encoding="utf-8")
    at = right.index("{", right.index("int flash_simple_variant(")) + 1
    (folder / "busy.c").write_text("#include <time.h>\n" + right[:at] +
                                   "\n    while (clock() < 0.4 * CLOCKS_PER_SEC)\n        ;\n" +
                                   right[at:], encoding="utf-8")
    made = library(folder / "busy.c")
    mine = os.sched_getaffinity(0)
    others = []
    try:
        os.sched_setaffinity(0, {min(mine)})
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"],
                                   start_new_session=True) for _ in range(3)]
        results, err = graded(build, sandbox, suite, made)
    finally:
        os.sched_setaffinity(0, mine)
        for other in others:
            other.kill()
            other.wait()
    tap.ok(results and results[0]["tests"][0]["status"] == "right",
           "0.4 of 0.6 seconds, on a processor with three others", err or results)


def check_hog(tap, build, sandbox, folder):
    """Who starts many threads takes no time from the others."""
    if len(os.sched_getaffinity(0)) < 2:
        tap.skip("a submission of many threads beside another", "one processor")
        return
    suite = write_suite(folder / "hog.suite", "flash_simple", ["-N 850 -d 64"], 1)
    (folder / "hog.c").write_text(
        "#include <pthread.h>\n" + HEAD + "static void *spin(void *nothing)\n{\n    for (volatile "
        "unsigned n = 0;; n++)\n        ;\n    return nothing;\n}\n" + SIGNATURE +
        "{\n    pthread_t t;\n    for (int n = 0; n < 64; n++)\n"
        "        pthread_create(&t, NULL, spin, NULL);\n    spin(NULL);\n    return 0;\n}\n",
        encoding="utf-8")
    shutil.copy(RIGHT, folder / "beside.c")
    results, err = graded(build, sandbox, suite, folder / "hog.c", folder / "beside.c", "--jobs", 2)
    tap.ok([result["tests"][0]["status"] for result in results] == ["time", "right"],
           "a submission of many threads takes no time from the one beside it", err or results)


def check_processor_time(tap, build, sandbox, folder):
    """Timed cases: threads beyond those of the case are paid for."""
    source = RIGHT.read_text(encoding="utf-8")
    start = "float *lse,\n                         int N, int d, int causal)\n{\n"
    (folder / "many.c").write_text(
        "#include <pthread.h>\n#include <time.h>\nstatic void *spin(void *nothing)\n"
        "{\n    struct timespec t = {0, 0};\n    while (t.tv_sec == 0 && t.tv_nsec < 40000000)\n"
        "        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);\n    return nothing;\n}\n" +
        source.replace(start, f"{start}    pthread_t t[8];\n    for (int n = 0; n < 8; n++)\n"
                       "        pthread_create(&t[n], NULL, spin, NULL);\n"
                       "    for (int n = 0; n < 8; n++)\n"
                       "        pthread_join(t[n], NULL);\n"), encoding="utf-8")
    tap.ok(start in source, "right.c has its flash_simple_variant where it is looked for")
    suite = suites.read(write_suite(folder / "many.suite", "flash_simple", ["-N 33 -d 8"]))
    options = grade_tool.parse(["S", "x.so", "--build", str(build), "--so-sandbox", sandbox])
    row = grade_tool.judge(suite, [library(folder / "many.c")], options)[0, 0]
    tap.ok(row["status"] == "right" and row["processor_ms"] >= 320,
           "processor time: of all threads", row)


# contract: cases; what becomes of each right value, and the codes that may be named
UNNAMED = {
    "flash_simple": (["-N 3 -d 2", "-N 133 -d 16 --causal", "-N 70 -d 8 --dist large"],
                     [("NAN", {"nonfinite", "one_row"}), ("-INFINITY", {"nonfinite", "one_row"}),
                      ("x[n] * 1e30f", {"all_values", "scattered", "worst_row", "one_row"})]),
    "softmax_rows": (["--rows 9 --cols 33", "--rows 20 --cols 50 --dist large"],
                     [("NAN", {""}), ("INFINITY", {""}), ("x[n] * 1.00003f", {""})])}
SPOILED = {"flash_simple": "(const float *Q, const float *K, const float *V, float *O, float *lse,"
                           " int N, int d, int causal)\n{\n"
                           "    right(Q, K, V, O, lse, N, d, causal);\n"
                           "    spoil(O, N * d), spoil(lse, N);",
           "softmax_rows": "(const float *S, float *P, float *lse, int rows, int cols)\n{\n"
                           "    right(S, P, lse, rows, cols);\n    spoil(P, rows * cols), "
                           "spoil(lse, rows);"}


def check_unnamed(tap, build, sandbox, folder):
    """What no mistake explains gets no name: values that are all NaN fit many a tile."""
    for contract, (cases, changes) in UNNAMED.items():
        suite = write_suite(folder / f"{contract}.suite", contract, cases)
        source = RIGHT.read_text(encoding="utf-8").replace(f"int {contract}_variant(",
                                                           "static int right(")
        for number, (change, codes) in enumerate(changes):
            path = folder / f"spoiled_{contract}{number}.c"
            path.write_text(f"{source}\nstatic void spoil(float *x, int count)\n{{\n    for (int n "
                            f"= 0; n < count; n++)\n        x[n] = {change};\n}}\nint {contract}"
                            f"_variant{SPOILED[contract]}\n    return 0;\n}}\n", encoding="utf-8")
            results, err = graded(build, sandbox, suite, library(path))
            found = {test["code"] for test in results[0]["tests"]} if results else err
            tap.ok(results and found <= codes, f"{contract}: no mistake is named for {change}",
                   found)


def elf(count, entries, name):
    """A file with so many tables of so many undefined symbols, of one name."""
    tables = 64 + 64 * (count + 2)
    heads = [(0, 11, 0, 0, tables, 24 * entries, count, 0, 0, 24)] * count
    heads += [(0, 3, 0, 0, tables + 24 * entries, len(name), 0, 0, 0, 0),
              (0, 6, 0, 0, tables, 0, count, 0, 0, 16)]
    start = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", 64)
    return start.ljust(58, b"\0") + struct.pack("<HHH", 64, count + 2, 0) + \
        b"".join(struct.pack("<IIQQQQIIQQ", *head) for head in heads) + \
        struct.pack("<IBBHQQ", 1, 0, 0, 0, 0, 0) * entries + name


def check_libraries(tap, folder):
    """What is looked for in a library takes no longer, whatever its headers say."""
    path = folder / "crafted.so"
    for count, entries, name, found in ((1, 9, b"\0sgemm_\0", "sgemm_"),
                                        (1, 9, b"\0other\0", ""),
                                        (9000, 60000, b"\0other\0", "cannot be looked at"),
                                        (1, 2000000, b"\0other\0", "cannot be looked at"),
                                        (1, 60000, b"\0" + b"x" * (1 << 24),
                                         "cannot be looked at")):
        path.write_bytes(elf(count, entries, name))
        begun = time.process_time()
        said = grade_tool.blas_found(path)
        tap.ok((found in said if found else not said) and time.process_time() - begun < 2,
               f"no-blas: {count} tables of {entries} symbols of {len(name)} bytes", said)


def check_deeds(tap, build, sandbox, folder):
    suite = folder / "graded.suite"
    suite.write_text(GRADED, encoding="utf-8")
    files = []
    for number, (_, body, _, _) in enumerate(DEEDS):
        files.append(folder / f"deed{number}.c")
        renamed = "another" in DEEDS[number][0]
        before = "#define flash_simple_variant my_variant\n" if renamed else ""
        files[-1].write_text(before + HEAD + SIGNATURE + body + "\n", encoding="utf-8")
    link = folder / "link.c"
    link.symlink_to(RIGHT)
    (folder / "empty").mkdir()
    large = folder / "large.so"
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    begun = time.monotonic()
    results, err = graded(build, sandbox, suite, *files, link, folder / "empty", large, RIGHT,
                          "--jobs", "2")
    took = time.monotonic() - begun
    if not tap.ok(len(results) == len(files) + 4, "deeds are graded", err):
        return
    for result, word in zip(results[-4:-1], ("symbolic link", "no .c file", "more than 64 MiB")):
        tap.ok(all(test["status"] == "refused" and word in test["message"]
                   for test in result["tests"]), f"refused: {word}", result)
    for (name, _, statuses, word), result in zip(DEEDS, results):
        found = [test["status"] for test in result["tests"]]
        said = " ".join(test["message"] for test in result["tests"])
        tap.ok(found == statuses and word in said and result["score"] == 0,
               f"a submission that {name}", f"{found} {said}")
    tap.ok([result["submission"] for result in results] == 
           [str(file) for file in [*files, link, folder / "empty", large, RIGHT]],
           "submissions have the names and the order of the command line")
    refused = {name: result["similarity_why"] for (name, *_), result in zip(DEEDS, results)}
    tap.ok(refused["does not compile"] == "it did not compile" and
           "fingerprints" in refused["says no"] and results[-1]["similarity"],
           "what does not compile, or is too short, is compared with nothing", refused)
    tap.ok(results[-1]["score"] == 10, "the right one gets all points", results[-1])
    tap.ok(all(result["sandbox"] == sandbox for result in results), "each row names the sandbox")
    hidden = [test for result in results for test in result["tests"] if test["name"] == "hidden"]
    shown = [test for result in results for test in result["tests"] if test["name"] == "tiny"]
    tap.ok(any(test["errors"] for test in hidden) and
           not any("expected" in error or "found" in error for test in hidden
                   for error in test["errors"]), "a hidden case shows no values")
    tap.ok(any("expected" in error for test in shown for error in test["errors"]),
           "a visible one does")
    tap.ok(took < 60, f"deeds took {took:.0f} s")


def library(source, to=None, flags=()):
    """A shared object, beside the source: for what is not about compiling."""
    to = to or source.with_suffix(".so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-fopenmp", f"-I{HEADERS}", f"-I{COMMON}",
                    f"-I{COMMON / 'attention'}", *flags, source, "-o", to, "-lm"], check=True)
    return to


# dlopen without its name among the symbols: the C library's table of symbols has it.
OPEN = """
#define _GNU_SOURCE
#include <link.h>
#include <string.h>
#include <stdio.h>
static int look(struct dl_phdr_info *info, size_t size, void *to)
{
    const ElfW(Sym) *symbol = NULL;
    const char *names = NULL;
    if (!strstr(info->dlpi_name, "/libc.so"))
        return 0;
    for (int n = 0; n < info->dlpi_phnum; n++)
        if (info->dlpi_phdr[n].p_type == PT_DYNAMIC)
            for (const ElfW(Dyn) *d = (void *)(info->dlpi_addr + info->dlpi_phdr[n].p_vaddr);
                 d->d_tag; d++)
                if (d->d_tag == DT_SYMTAB)
                    symbol = (void *)d->d_un.d_ptr;
                else if (d->d_tag == DT_STRTAB)
                    names = (void *)d->d_un.d_ptr;
    while ((const char *)++symbol < names)
        if (symbol->st_shndx && strcmp(names + symbol->st_name, "dlopen") == 0)
            *(void **)to = (void *)(info->dlpi_addr + symbol->st_value);
    return 1;
}
static void open_them(void)
{
    void *(*open)(const char *, int) = NULL;
    dl_iterate_phdr(look, &open);
    printf("%s %s\\n", open && open("libgcc_s.so.1", 2) ? "plain" : "",
           open && open("libresolv.so.2", 2) ? "another" : "");
}
"""


def check_hidden_blas(tap, build, sandbox, folder):
    """A submission that finds dlopen by itself opens no library but the compiler's. libresolv
    stands for a BLAS: it is on every machine, beside the C library."""
    if sandbox != "strict":
        return
    source = RIGHT.read_text(encoding="utf-8").replace(
        "const float scale = ", "open_them();\n    const float scale = ", 1)
    opens = folder / "opens.c"
    opens.write_text(OPEN + source, encoding="utf-8")
    suite = write_suite(folder / "opens.suite", "flash_simple",
                        ["-N 8 -d 4 --require no-blas", "-N 8 -d 4"])
    results, err = graded(build, sandbox, suite, opens)
    said = [test["output"] for test in results[0]["tests"]] if results else err
    without_landlock = [" \n", " \n"]  # there is no file at all
    tap.ok(said in (["plain \n", "plain another\n"], without_landlock),
           "--require no-blas: other libraries cannot be opened either", results or err)


def check_points(tap, build, sandbox, folder):
    suite = folder / "graded.suite"
    source = RIGHT.read_text(encoding="utf-8").replace("(causal ? i + 1 : N); j++) {\n            "
                                                       "const float s = scale",
                                                       "N; j++) {\n            "
                                                       "const float s = scale")
    (folder / "nomask.c").write_text(source, encoding="utf-8")
    wrong = library(folder / "nomask.c")
    results, err = graded(build, sandbox, suite, wrong)
    scores = [test["score"] for test in results[0]["tests"]] if results else []
    tap.ok(scores == [2, 0, 0, 1.5, 0.5] and results[0]["tests"][2]["status"] == "right" and
           "all or nothing" in results[0]["tests"][2]["message"],
           "a group's points are all or nothing", err or results)
    without_times = [json.dumps([{**test, "ms": 0, "message": ""} if test["name"] == "fast" else
                                 {**test, "ms": 0} for test in result["tests"]])
                     for result in results + graded(build, sandbox, suite, wrong)[0]]
    tap.ok(len(without_times) == 2 and without_times[0] == without_times[1],
           "the same again but for times", "\n".join(without_times))
    blas = folder / "blas.c"
    blas.write_text("void cblas_sgemm();\nvoid (*keep)() = cblas_sgemm;\n" + source,
                    encoding="utf-8")
    results, err = graded(build, sandbox, suite, blas)
    tap.ok(results and results[0]["tests"][3]["status"] == "refused" and
           "cblas_sgemm" in results[0]["tests"][3]["message"], "--require no-blas", err or results)
    check_hidden_blas(tap, build, sandbox, folder)
    results, err = graded(build, sandbox, suite, folder / "right.so", "--total-time", "0.0001")
    statuses = [test["status"] for test in results[0]["tests"]] if results else err
    tap.ok(statuses[1:] == ["time"] * 4 and "--total-time" in results[0]["tests"][4]["message"],
           "--total-time is of a submission", statuses)
    late = write_suite(folder / "late.suite", "flash_simple", ["-N 3 -d 2"])
    (folder / "late.c").write_text(HEAD + SIGNATURE + "{ for (;;); }\n", encoding="utf-8")
    results, err = graded(build, sandbox, late, folder / "late.c", "--total-time", "0.30041")
    tap.ok(results and "within 0.3 s" in results[0]["tests"][0]["message"],
           "what is left of the time is rounded", err or results)
    matrix = folder / "matrix.c"
    matrix.write_text(source.replace("const float scale = ", "float *S = malloc(sizeof *S * "
                                     "(size_t)N * (size_t)N);\n    for (long n = 0; n < (long)N * "
                                     "N; n += 512)\n        S[n] = 1.0f;\n    O[0] = S[N];\n"
                                     "    const float scale = "), encoding="utf-8")
    memory = write_suite(folder / "memory.suite", "flash_simple",
                         ["-N 1024 -d 16 --require memory=N", "-N 1024 -d 16"])
    results, err = graded(build, sandbox, memory, library(matrix))
    tap.ok(results and [test["status"] for test in results[0]["tests"]] == ["memory", "right"] and
           "matrix" in results[0]["tests"][0]["message"], "--require memory=N", err or results)
    # grows by nothing from N to 2N, and holds every matrix of the suite
    constant = folder / "constant.c"
    constant.write_text(RIGHT.read_text(encoding="utf-8").replace(
        "const float scale = ", "static float S[2700][2700];\n    memset(S, 1, sizeof S);\n    "
        "O[0] = S[N][3];\n    const float scale = ") + "\n", encoding="utf-8")
    results, err = graded(build, sandbox, memory, library(constant))
    tap.ok(results and [test["status"] for test in results[0]["tests"]] == ["memory", "right"] and
           "accepted are 5.3 MiB: 4 MiB, 0.25 MiB" in results[0]["tests"][0]["message"],
           "--require memory=N: a matrix of constant size", err or results)


def valid_gradescope(text, score, count):
    data = json.loads(text)
    tests = data["tests"]
    return (data["score"] == score and len(tests) == count and
            set(data) <= {"score", "execution_time", "output", "output_format", "visibility",
                          "stdout_visibility", "extra_data", "tests", "leaderboard"} and
            all(set(test) <= {"score", "max_score", "status", "name", "name_format", "number",
                              "output", "output_format", "tags", "visibility", "extra_data"} and
                test["visibility"] in VISIBILITIES and test["status"] in ("passed", "failed") and
                0 <= test["score"] <= test["max_score"] and isinstance(test["output"], str)
                for test in tests))


def valid_otter(text, score, most):
    data = json.loads(text)
    file, = data["test_file_results"]
    cases = file["test_case_results"]
    fields = {"name", "points", "hidden", "success_message", "failure_message"}
    points = [(case["test_case"]["points"], case["passed"]) for case in cases]
    return (set(data) == {"test_file_results"} and
            set(file) == {"filename", "test_case_results"} and
            all(set(case) == {"passed", "error", "test_case"} and
                set(case["test_case"]) == fields and
                case["passed"] == (case["error"] is None) for case in cases) and
            abs(sum(value for value, _ in points) - most) < 1e-9 and
            abs(sum(value for value, passed in points if passed) - score) < 1e-9)


def check_formats(tap, build, sandbox, folder):
    """Judged once; each format has the whole program around it."""
    suite, right, wrong = (folder / name for name in ("graded.suite", "right.so", "nomask.so"))
    judged = {files: grade_tool.grade(grade_tool.parse(
        [str(suite), *map(str, files), "--build", str(build), "--so-sandbox", sandbox]))
              for files in ((wrong,), (right, wrong))}

    def written(*files_and_words):
        files = tuple(word for word in files_and_words if word in (right, wrong))
        return grade(build, sandbox, suite, *files_and_words, how=lambda options: judged[files])

    for form, check in (("gradescope", lambda text: valid_gradescope(text, 4, 5)),
                        ("otter", lambda text: valid_otter(text, 4, 10))):
        status, out, err = written(wrong, "--format", form)
        tap.ok(status == 0 and check(out), f"--format {form}", out + err)
    out_dir = folder / "out" / "deep"
    status, out, err = written(right, wrong, "--format", "gradescope", "--out", out_dir)
    names = sorted(path.name for path in out_dir.iterdir()) if out_dir.is_dir() else []
    tap.ok(status == 0 and not out and names == ["001_right.so.json", "002_nomask.so.json"] and
           [grade_formats.file_name({"submission": name}, 3) for name in
            ("class/ann/mine.c", "class/bob.c", "ann/", "mine.c")] ==
           ["003_ann.json", "003_bob.c.json", "003_ann.json", "003_mine.c.json"],
           "--out has a file for each submission", f"{names} {err}")
    status, out, err = written(right, wrong, "--format", "junit")
    root = xml.fromstring(out) if status == 0 else None
    tap.ok(root is not None and [(s.get("tests"), s.get("failures")) for s in root] ==
           [("5", "0"), ("5", "1")] and root[1][1].find("failure") is not None,
           "--format junit", out + err)
    status, out, err = written(right, wrong, "--format", "csv")
    rows = list(csv.reader(io.StringIO(out)))
    tap.ok(status == 0 and rows[0][:3] == ["submission", "score", "max_score"] and
           [row[1] for row in rows[1:]] == ["10", "4"] and len({len(row) for row in rows}) == 1
           and rows[1][3:5] == ["right", ""] and rows[2][3] == "wrong" and
           "values are off" in rows[2][4],
           "--format csv", out + err)
    status, out, err = written(right, wrong)
    tap.ok(status == 0 and f"{wrong}: 4 of 10" in out and "right        2 of 2     tiny" in out,
           "a table", out + err)


def check_where(tap, build, sandbox, folder):
    """Hints that stand where no mistake has a name."""
    suite = write_suite(folder / "where.suite", "backward_steps", [
        "--part delta -N 33 -d 8", "--part dK -N 33 -d 32", "--part dQ -N 1024 -d 8"])
    text = RIGHT.parent.parent.joinpath("solutions/3_flash_backward.c").read_text(encoding="utf-8")
    for old, new in (("dK + k, score", "dK + k, 0.17677669f * score"),
                     ("dQ + q, score", "dQ + q, 2.8f * score"),
                     ("int N, int d)\n{\n", "int N, int d)\n{\n    return 0;\n")):
        tap.ok(text.count(old) == 1, f"where: '{new}' can be made")
        text = text.replace(old, new)
    (folder / "where.c").write_text(text, encoding="utf-8")
    results, err = graded(build, sandbox, suite, folder / "where.c")
    tap.ok(results and results[0]["tests"][0]["hint"].endswith("nothing was written"),
           "where: an array that was not written", err or results)
    tap.ok(results and results[0]["tests"][2]["hint"].endswith("nearly every value is off"),
           "where: nearly every value", err or results)


def check_names(tap, build, sandbox, folder):
    """A student may give a file any name: it costs no points and spoils no format."""
    suite = write_suite(folder / "names.suite", "flash_simple", ["-N 3 -d 2"])
    place = os.fsencode(folder / "names")
    os.mkdir(place)
    plain = [b"mine (1).c", b"-o.c", b"@mine.c", b"=1+1.c", b"\xc3\xa4.c"]
    names = [*plain, b"caf\xe9.c", b"two\nlines\x01.c"]
    shown = [*(name.decode() for name in plain), "caf\\xe9.c", "two\\nlines\\x01.c"]
    for name in names:
        with open(os.path.join(place, name), "wb") as file:
            file.write(RIGHT.read_bytes())
    for name in (b"\xe9.txt", b"\xe9.so"):
        with open(os.path.join(place, name), "wb"):
            pass

    def run(form, *files):
        run = subprocess.run([sys.executable, str(TOOL), "--build", str(build), "--so-sandbox",
                              sandbox, "--format", form, str(suite), "--", *files], cwd=place,
                             capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
        return run.returncode, run.stdout.decode(), run.stderr.decode()

    status, out, err = run("json", *names)
    rows = [json.loads(line) for line in out.split("\n") if line]
    tap.ok(status == 0 and [(row["submission"], row["score"]) for row in rows] ==
           [(name, 1) for name in shown], "names: all points, whatever the name", out + err)
    if len(rows) != len(names):
        return
    cases = suites.read(str(suite))
    found = list(csv.reader(io.StringIO(grade_formats.csv_rows(rows, cases))))
    tap.ok([row[0] for row in found[1:]] ==
           ["'" + name if name[0] in "-@=" else name for name in shown] and
           found[0][-1] == "'-N 3 -d 2", "names: csv has no formula", found)
    for name in ("mine_twist.c", "mine.c", "other.c"):
        (folder / name).write_text("int broken\n", encoding="utf-8")
    found, err = graded(build, sandbox, suite, *(folder / name for name in
                                                 ("mine_twist.c", "mine.c", "other.c")))
    tap.ok([one["tests"][0]["message"].split(": ")[1].split(":")[0] for one in found] ==
           ["mine_twist.c", "mine.c", "mine.c"], "names: the compiler's words name the file",
           err or found)
    rows[0]["tests"][0]["name"] = rows[0]["tests"][0]["group"] = "a\x01b"
    root = xml.fromstring(grade_formats.junit(rows, cases))
    tap.ok([part.get("name") for part in root] == shown and
           root[0][0].get("name") == root[0][0].get("classname") == "a?b", "names: junit")
    status, out, err = run("table", names[-1])
    tap.ok(status == 0 and f"{shown[-1]}: 1 of 1\n" in out, "names: table", out + err)
    status, out, err = run("json", b"\xe9.so")
    tap.ok(status == 0 and "\\xe9.so" in out, "names: a shared object", out + err)
    status, out, err = run("json", b"\xe9.txt")
    tap.ok(status == 2 and not out and err.count("\n") == 1 and "\\xe9.txt" in err,
           "names: a refusal", out + err)


def check_folder_names(tap, build, sandbox, folder):
    """Files of a submitted folder may have blanks, quotes and brackets in their names."""
    suite = write_suite(folder / "names.suite", "flash_simple", ["-N 3 -d 2"])
    mine = folder / "my folder"
    mine.mkdir()
    (mine / "it's (1) my.h").write_text("#define FOUND 1\n", encoding="utf-8")
    (mine / "my solution;.c").write_text(f'#include "it\'s (1) my.h"\n#if FOUND\n'
                                         f'{RIGHT.read_text(encoding="utf-8")}\n#endif\n',
                                         encoding="utf-8")
    (mine / "$(touch here) & 2.c").write_text("int second;\n", encoding="utf-8")
    results, err = graded(build, sandbox, suite, mine)
    tap.ok(results and results[0]["score"] == 1 and not (mine / "here").exists(),
           "a folder of names with blanks", err or results)
    (mine / "._my solution;.c").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        ")
    (mine / ".#emacs.c").symlink_to("student@host.1234")
    (mine / "__MACOSX").mkdir()
    (mine / "__MACOSX" / "._mine.c").write_bytes(b"\0")
    (folder / "__MACOSX").mkdir()
    results, err = graded(build, sandbox, suite, mine, folder / "__MACOSX")
    tap.ok([result["score"] for result in results] == [1],
           "what editors and macOS leave in a folder or an archive is left out", err or results)
    results, err = graded(build, sandbox, suite, folder / "__MACOSX")
    tap.ok(not results and err.count("\n") == 1 and "accepted" in err, "and alone is refused", err)
    (mine / "two\nlines.c").write_text("int third;\n", encoding="utf-8")
    results, err = graded(build, sandbox, suite, mine)
    tap.ok(results and results[0]["tests"][0]["status"] == "refused" and
           "control character" in results[0]["tests"][0]["message"], "but no control characters",
           err or results)


def check_rest(tap, build, sandbox, folder):
    """A compiler that was killed leaves nothing behind: the class shares one disk."""
    mine, place = folder / "large", folder / "compiled"
    mine.mkdir()
    place.mkdir()
    for number in range(40):
        (mine / f"{number}.c").write_text(f"char c{number}[40 << 20] = {{1}};\n", encoding="utf-8")
    done = grade_tool.compile_one(str(mine), pathlib.Path(build).resolve(), place / "0", sandbox)
    bytes_left = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    tap.ok(done.library is None and bytes_left == 0, "what a late compiler wrote is removed",
           f"{bytes_left} {done}")


def check_output(tap, build, sandbox, folder):
    """What it prints stays on its line: no control signs of 8 bits, no change of direction."""
    suite = write_suite(folder / "output.suite", "flash_simple", ["-N 3 -d 2"])
    (folder / "signs.c").write_text(HEAD + SIGNATURE + '{ puts("a\\xc2\\x9b" "2J\\xe2\\x80\\xae" '
                                    '"b \\xc3\\xa4"); return 0; }\n', encoding="utf-8")
    results, err = graded(build, sandbox, suite, folder / "signs.c")
    tap.ok(results and results[0]["tests"][0]["output"] == "a?2J?b \u00e4\n",
           "output without signs that steer a terminal", err or results)
    # what Python takes for the end of a line and JSON does not, on stdout and in a compiler's words
    ends = folder / "ends.c"
    ends.write_text(HEAD + SIGNATURE + '{ puts("a\\xe2\\x80\\xa8" "b\\xe2\\x80\\xa9" "c\\xc2\\x85" '
                    '"d\\x1c\\x0b\\x0c\\r"); return 0; }\n', encoding="utf-8")
    words = folder / "words.c"
    words.write_text(HEAD + SIGNATURE + "{ return nothing; } // x\u2028error: y\u0085z\n",
                     encoding="utf-8")
    results, err = graded(build, sandbox, suite, ends, RIGHT, words)
    tap.ok([result["score"] for result in results] == [0, 1, 0] and
           results[0]["tests"][0]["output"] == "a?b?c?d????\n" and
           results[2]["tests"][0]["message"].count("nothing") == 1,
           "U+2028 and others in output: the others have points", err or results)
    shown = grade_formats.write("table", results, suites.read(suite))["table.txt"]
    tap.ok("  | a?b?c?d????\n" in shown, "and it is shown on its line", shown)


def check_machine(tap, build, sandbox, folder):
    """What this machine cannot compile is skipped, and the others are graded."""
    fake = folder / "fake"
    jail = executable(fake_build(build, fake, "attn_jail") / "attn_jail",
                      '#!/bin/sh\ncase "$2" in */1) echo "attn_jail: x.c cannot be copied (No '
                      'space left on device)" >&2; exit 3;; esac\n'
                      f'exec {build.resolve()}/common/course/attn_jail "$@"\n')
    suite = write_suite(folder / "machine.suite", "flash_simple", ["-N 3 -d 2", "-N 5 -d 2"])
    again = folder / "again.c"
    again.write_bytes(RIGHT.read_bytes())
    to = folder / "skipped"
    status, out, err = grade(fake, sandbox, suite, RIGHT, again, RIGHT, "--format", "json", "--out",
                             to)
    rows = [json.loads(line) for line in (to / "results.jsonl").read_text().split("\n")[:-1]] \
        if (to / "results.jsonl").is_file() else []
    tap.ok(status == 3 and not out and err.count("\n") == 1 and "1 of 3" in err and
           "No space left" in err, "a machine that fails once: exit 3", f"{status} {err}")
    tap.ok([row["score"] for row in rows] == [2, 0, 2] and
           {test["status"] for test in rows[1]["tests"]} == {"skipped"} and
           "No space left" in rows[1]["tests"][0]["message"], "but the others are graded", rows)
    judged = grade_tool.grade(grade_tool.parse(
        [*map(str, (suite, RIGHT, again)), "--build", str(fake), "--so-sandbox", sandbox]))
    for form in ("table", "junit", "csv", "gradescope", "otter"):
        status, _, err = grade(fake, sandbox, suite, RIGHT, again, "--format", form, "--out", to,
                               how=lambda options: judged)
        tap.ok(status == 3 and err.count("\n") == 1, f"and written: {form}", err)
    rows = list(csv.reader((to / "results.csv").open(encoding="utf-8")))
    tap.ok([row[3] for row in rows] == ["status", "right", "skipped"] and
           "No space left" in rows[2][4], "csv says why a row has no points", rows)
    jail.write_text("#!/bin/sh\necho attn_jail: full >&2\nexit 3\n", encoding="utf-8")
    status, out, err = grade(fake, sandbox, suite, RIGHT, again)
    tap.ok(status == 3 and not out and err == "grade: it could not be compiled here: full\n",
           "nothing at all can be graded: one sentence", out + err)


# Stands before attn_judge. A library that ends in "bad" makes it do what the file beside it says.
JUDGE = r"""#!/usr/bin/env python3
import json, os, pathlib, re, signal, subprocess, sys
here, text = pathlib.Path(__file__).parent, sys.stdin.read()
what = (here / "what").read_text()
run = subprocess.run([here / "real_judge", *sys.argv[1:]], input=text, capture_output=True,
                     text=True)
found = re.findall(r"^so\t(.*)$", text, re.M)
bad = [n for n, so in enumerate(found) if pathlib.Path(so).read_bytes().endswith(b"bad")]
out = run.stdout.split("\n")[:-1]
of_bad = [n for n, line in enumerate(out) if json.loads(line)["so"] in bad]
if bad and what == "a number":
    out[of_bad[0]] = "7"
if bad and what == "nested":
    out[of_bad[0]] = "[" * 100000
if bad and what == "torn":
    out[of_bad[0]] = out[of_bad[0]][:25]
if bad and what in ("killed", "worker"):
    out = out[:of_bad[0]]
sys.stdout.write("".join(line + "\n" for line in out))
sys.stdout.flush()
if bad and what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if bad and what == "worker":
    sys.exit("grade: found that a worker ended before its work did")
sys.exit(run.returncode)
"""


def check_judge(tap, build, sandbox, folder):
    """A judge that breaks over one submission: its cases are skipped, all others have points."""
    fake = folder / "broken"
    course = fake_build(build, fake, "attn_judge")
    (course / "real_judge").symlink_to(build.resolve() / "common/course/attn_judge")
    executable(course / "attn_judge", JUDGE)
    suite = write_suite(folder / "judge.suite", "flash_simple", ["-N 3 -d 2", "-N 5 -d 2"])
    suite.write_text(suite.read_text(encoding="utf-8") +
                     "points=1 perf=0.001 of=sgemm : -N 256 -d 64\n", encoding="utf-8")
    made = library(RIGHT, folder / "judged.so").read_bytes()
    files = [folder / name for name in ("a.so", "b.so", "c.so", "d.so")]
    for file in files:
        file.write_bytes(made + (b"bad" if file.name == "b.so" else b""))
    for what, points, reason in (("torn", [1, 1], "printed no result"), ("a number", [1, 1], ""),
                                 ("nested", [1, 1], ""),
                                 ("killed", [], "attn_judge ended with -9"),
                                 ("worker", [], "a worker ended")):
        (course / "what").write_text(what, encoding="utf-8")
        to = folder / f"judged {what}"
        status, out, err = grade(fake, sandbox, suite, *files, "--jobs", "1", "--format", "json",
                                 "--out", to)
        rows = [json.loads(line) for line in
                (to / "results.jsonl").read_text(encoding="utf-8").split("\n")[:-1]] \
            if (to / "results.jsonl").is_file() else []
        statuses = [test["status"] for test in rows[1]["tests"]] if rows else []
        tap.ok(status == 3 and not out and err.count("\n") == 1 and "1 of 4" in err and
               [row["score"] for row in rows] == [3, sum(points), 3, 3] and
               statuses == ["skipped"] * (3 - len(points)) + ["right"] * len(points) and
               reason in rows[1]["tests"][0]["message"],
               f"attn_judge, one row: {what}: the others are graded", f"{status} {err} {rows}")
    status, out, err = grade(fake, sandbox, suite, files[1])
    tap.ok(status == 3 and not out and err.count("\n") == 1 and "a worker ended" in err,
           "nothing at all can be judged: one sentence", f"{status} {out} {err}")


def children(parent):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = pathlib.Path("/proc", pid, "status").read_text(encoding="utf-8")
            found += [pid] if f"\nPPid:\t{parent}\n" in status else []
        except OSError:  # it has ended
            pass
    return found


def check_killed_worker(tap, build, sandbox, folder):
    """attn_judge itself, one of whose two workers is killed while its submission hangs."""
    hang = folder / "hang.c"
    hang.write_text(HEAD + SIGNATURE + "{ for (;;) ; return 0; }\n", encoding="utf-8")
    libraries = [library(hang), *[library(RIGHT, folder / "working.so")] * 3]
    suite = suites.read(write_suite(folder / "worker.suite", "flash_simple", ["-N 3 -d 2"]))
    options = grade_tool.parse(["x", "y", "--jobs", "2", "--so-sandbox", sandbox])
    suite.time = 60
    with subprocess.Popen([build / "common/course/attn_judge"], stdin=subprocess.PIPE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as judge:
        judge.stdin.write(grade_tool.orders(suite, libraries, options))
        judge.stdin.close()
        lines = [judge.stdout.readline() for _ in range(3)]  # of the others
        hanging = [worker for worker in children(judge.pid) if children(worker)]
        for worker in hanging:
            os.kill(int(worker), signal.SIGKILL)
        lines += judge.stdout.read().split("\n")[:-1]
        said = judge.stderr.read()
    rows = [json.loads(line) for line in lines]
    tap.ok(len(hanging) == 1 and judge.returncode == 3 and
           "a worker ended before its work did" in said and
           sorted((row["so"], row["status"]) for row in rows) == [(n, "right") for n in (1, 2, 3)],
           "a killed worker: the rows of the others are printed", f"{hanging} {said} {rows}")


def check_unreadable(tap, build, sandbox, folder):
    """A folder that its teacher may not open is skipped, and says why; the others are not."""
    closed = folder / "closed"
    names = [str(closed / "mine.c"), str(library(RIGHT, folder / "open.so"))]
    closed.mkdir()
    (closed / "mine.c").write_bytes(RIGHT.read_bytes())
    place = pathlib.Path(tempfile.mkdtemp(dir=folder))
    for path, mode in ((folder, 0o755), (place, 0o777), (closed, 0)):
        path.chmod(mode)
    user = os.geteuid()
    grade_tool.compile_all([], build, place, 1, sandbox)  # Python reads what it needs for that
    if user == 0:
        os.seteuid(65534)  # root opens everything
    try:
        for name in names:
            grade_tool.check_name(name)
        found = grade_tool.compile_all(names, build.resolve(), place, 1, sandbox)
    except OSError as why:
        found = [why] * 2
    finally:
        os.seteuid(user)
        closed.chmod(0o755)
    tap.ok(getattr(found[0], "skipped", False) and "Permission denied" in found[0].error and
           getattr(found[1], "library", None), "an unreadable folder leaves the others", found)


def check_full_disk(tap, build, sandbox, folder):
    """What fits is written; of what does not fit nothing is left, and the old file stays."""
    texts = {"1.json": "a" * 1000, "2.json": "b" * 50000, "3.json": "c" * 2000}
    options = grade_tool.parse(["x", "y", "--out", str(folder / "written")])
    options.out.mkdir()
    (options.out / "2.json").write_text("old", encoding="utf-8")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        grade_tool.write_out(options, texts)
        said = ""
    except grade_tool.CannotGrade as why:
        said = str(why)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = {path.name: path.read_text(encoding="utf-8") for path in options.out.iterdir()}
    tap.ok("1 of 3 files cannot be written (File too large)" in said and
           found == {**texts, "2.json": "old"}, "a file that does not fit leaves the others",
           f"{said} { {name: len(text) for name, text in found.items()} }")
    # a folder for temporary files that is too small for the first submission
    place, temporary = folder / "small", tempfile.gettempdir()
    place.mkdir()
    suite = write_suite(folder / "disk.suite", "flash_simple", ["-N 3 -d 2"])
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none",
                                           place], capture_output=True).returncode != 0:
        print("# no small tmpfs here (it takes root's rights)")
        return
    try:
        tempfile.tempdir = str(place)
        large = folder / "large.c"
        large.write_text(RIGHT.read_text(encoding="utf-8") + "/*" + "x" * 3000000 + "*/\n",
                         encoding="utf-8")
        status, out, err = grade(build, sandbox, suite, large, RIGHT, "--format", "json", "--jobs",
                                 "1", "--out", folder / "disk")
    finally:
        tempfile.tempdir = temporary
        subprocess.run(["umount", place], check=True)
    rows = [json.loads(line) for line in
            (folder / "disk/results.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]
    tap.ok(status == 3 and [row["score"] for row in rows] == [0, 1] and
           "No space left" in rows[0]["tests"][0]["message"],
           "a full disk: what still fits is graded", f"{status} {out} {err} {rows}")


# A program that pretends to measure. It notes its calls, and what it says depends on the library.
PEER = """#!/usr/bin/env python3
import pathlib, sys, time
name, flags = pathlib.Path(sys.argv[1]), sys.argv[2:]
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(f"{name.read_bytes()[-4:].decode()} {' '.join(flags)}\\n")
what = name.read_bytes()[-4:].decode()
count = (here / "calls").read_text().count(what)
if what == "slow":
    time.sleep(30)
if what == "lies":
    print("bench: a wrong row", file=sys.stderr)
    sys.exit(1)
if what == "none":
    print("bench: found no GPU", file=sys.stderr)
    sys.exit(77)
rate = [0.01, 0.06, 0.07, 0.04, 0.9][count - 1] if what == "some" else 0.3
print(f"  mine 1.0 ms\\n  speed {rate} of the two products")
"""


def check_peer(tap, build, _, folder):
    """perf of=cublas: a program measures, in interleaved rounds, what is right, and nothing else
    runs."""
    place = folder / "peer"
    place.mkdir()
    program = executable(place / "measure", PEER)
    suite = place / "speed.suite"
    suite.write_text("contract=flash_simple time=3\npoints=10 perf=0.02,0.05,0.1,0.25,0.5 "
                     "of=cublas name=speed : -N 3 -d 2\npoints=4 name=plain : -N 5 -d 2\n",
                     encoding="utf-8")
    made = library(RIGHT, place / "right.so").read_bytes()
    (place / "none.c").write_text(HEAD + SIGNATURE + "{ return 1; }\n", encoding="utf-8")
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        status, out, err = grade(build, "off", suite, library(place / "none.c"), "--so-sandbox",
                                 "off", "--format", "json")
        test = json.loads(out)["tests"][0] if out else {}
        tap.ok(status == 3 and test.get("status") == "skipped" and "no GPU" in test["message"],
               "of=cublas: without a GPU nothing is wrong that was not run", err + out)
        (place / "short.c").write_text(HEAD + SIGNATURE + "{ errno = ENOMEM; return 1; }\n",
                                       encoding="utf-8")
        status, out, err = grade(build, "off", suite, library(place / "short.c"), "--so-sandbox",
                                 "off", "--format", "json")
        test = json.loads(out)["tests"][0] if out else {}
        tap.ok(status == 0 and test.get("status") == "memory",
               "of=cublas: without a GPU a lack of memory stays one", err + out)
    files = []
    for name in ("fast", "some", "lies", "slow"):
        files.append(place / f"{name}.so")
        files[-1].write_bytes(made + name.encode())
    off = ("--so-sandbox", "off", "--peer", program)
    status, out, err = grade(build, "off", suite, *files, *off, "--format", "json")
    rows = [json.loads(line) for line in out.split("\n")[:-1]]
    found = [(test["status"], test["score"]) for row in rows for test in row["tests"][:1]]
    tap.ok(status == 0 and found == [("right", 8), ("right", 4), ("wrong", 0), ("time", 0)] and
           all(row["tests"][1]["score"] == 4 for row in rows),
           "of=cublas: each step that the median reaches has its share", f"{found} {err}")
    tap.ok(rows and "0.06 of the rate of cublas" in rows[1]["tests"][0]["message"] and
           "a wrong row" in rows[2]["tests"][0]["message"] and
           "within 3 s" in rows[3]["tests"][0]["message"], "of=cublas: what is said", out)
    calls = (place / "calls").read_text(encoding="utf-8").splitlines()
    tap.ok(calls == [f"{name} -N 3 -d 2" for name in
                     ["fast", "some", "lies", "slow"] + 4 * ["fast", "some"]],
           "of=cublas: all submissions once, then all again", calls)
    (place / "none.so").write_bytes(made + b"none")
    status, out, err = grade(build, "off", suite, place / "none.so", *off)
    tap.ok(status == 3 and "skipped" in out and
           "cannot measure here: bench: found no GPU" in out and
           "right        4 of 4     plain" in out, "of=cublas without a GPU: skipped", out + err)
    status, out, err = grade(build, "off", suite, files[0], "--so-sandbox", "off")
    tap.ok(status == 3 and "found no --peer PROGRAM" in out and "4 of 14" in out,
           "of=cublas without a program: skipped", out + err)
    (place / "calls").unlink()
    does_nothing = place / "nothing.c"
    does_nothing.write_text(HEAD + SIGNATURE + "{ return 0; }\n", encoding="utf-8")
    status, out, err = grade(build, "off", suite, library(does_nothing), *off)
    tap.ok(status == 0 and not (place / "calls").exists(), "of=cublas: what is wrong is not timed",
           out + err)
    for words, text in ((["--so-sandbox", "strict", "--peer", program], "of=cublas with"),
                        (["--so-sandbox", "off", "--peer", place], "--peer")):
        status, out, err = grade(build, "off", suite, files[0], *words)
        tap.ok(status == 2 and text in err and err.count("\n") == 1, f"refused: {text}", err)


BROKEN = [
    ("int twice(void) { return 1; }", "int twice(void) { return 2; }", "multiple definition"),
    ('__asm__("no_such_instruction");', "", "Error: "),
    ('__attribute__((visibility("hidden"))) int nowhere(void);\n'
     'int call(void) { return nowhere(); }',
     "", "undefined reference"),
]


def check_compiler_words(tap, build, sandbox, folder):
    """What linker and assembler say names temporary files: the same again, and no such names."""
    suite = write_suite(folder / "words.suite", "flash_simple", ["-N 3 -d 2"])
    for number, (one, two, word) in enumerate(BROKEN):
        mine = folder / f"broken{number}"
        mine.mkdir()
        (mine / "a.c").write_text(RIGHT.read_text(encoding="utf-8") + one, encoding="utf-8")
        (mine / "b.c").write_text(two + "\n", encoding="utf-8")
        again = [graded(build, sandbox, suite, mine)[0] for _ in range(2)]
        result = again[0][0] if again[0] else {"compiler": "", "tests": [{"message": ""}]}
        said = result["compiler"] + result["tests"][0]["message"]
        tap.ok(again[0] == again[1] and "/grade" not in said and
               not re.search("/cc[^/]{6}[.]", said) and word in result["tests"][0]["message"],
               f"compiler: {word}", said)
    cause = "as: File size limit exceeded"
    first = grade_tool.first_error(f"cc: note\ncollect2: fatal error: x\n{cause}")
    tap.ok(first == cause, "compiler: a cause before collect2's line", first)


def check_whole_words(tap, folder):
    """./ladder passes words on as they are: a name that holds ' -h ' asks for no help."""
    (folder / "python3").write_text('#!/bin/sh\nfor word; do printf "<%s>" "$word"; done\n')
    (folder / "python3").chmod(0o755)
    script = HERE.parents[1] / "common" / "course" / "ladder_course.sh"
    for words, wanted in ((["S", "a -h b/mine.c"], "<S><a -h b/mine.c>"),
                          (["S", "-h"], "<--help>"), (["--help"], "<--help>")):
        run = subprocess.run(["sh", "-euc", f'cd .; . "{script}"; build_programs() {{ :; }}; '
                              'ladder_grade "$@"', "sh", *words], cwd=folder, check=False,
                             capture_output=True, text=True,
                             env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        tap.ok(run.stdout.endswith(wanted) and ("--help" in run.stdout) == ("--help" in wanted),
               f"./ladder grade {' '.join(words)}", run.stdout + run.stderr)


def check_refusals(tap, build, sandbox, folder):
    suite, plain, right = (folder / name for name in ("graded.suite", "flash_simple.suite",
                                                      "right.so"))
    bad = write_suite(folder / "bad.suite", "flash_simple", ["-N 3 --window 3,3"])
    (folder / "text.txt").write_text("x", encoding="utf-8")
    for arguments, words in [
            ([suite], "SUBMISSION"), ([folder / "none.suite", right], "none.suite"),
            ([bad, right], "bad.suite:2: --window"), 
            ([suite, folder / "no.c"], "no such file"),
            ([suite, folder / "text.txt"], ".txt"), ([suite, right, "--jobs", "0"], "--jobs"),
            ([suite, right, "--total-time", "x"], "--total-time"),
            ([suite, right, ""], "SUBMISSION: found no such file"),
            ([suite, right, "--out", ""], "--out"), ([suite, right, "--key", ""], "--key"),
            ([suite, right, "--format", "pdf"], "pdf"), ([plain, right, "--key", "/none"], "--key"),
            ([suite, right, right, "--format", "otter"], "--out"),
            ([suite, right, "--frobnicate"], "--frobnicate")]:
        status, out, err = grade(build, sandbox, *arguments)
        tap.ok(status == 2 and words in err and not out and err.count("\n") == 1,
               f"refused: {' '.join(pathlib.Path(a).name for a in arguments[1:])}: {words}",
               f"{status}: {err}")
    status, _, err = grade(folder, sandbox, suite, right)
    tap.ok(status == 3 and "attn_judge" in err and err.count("\n") == 1, "no build: exit 3", err)
    status, _, err = grade(build, sandbox, suite, right, "--out", "/dev/null/x")
    tap.ok(status == 3 and "--out" in err, "no folder: exit 3", err)


def main():
    tap = Tap()
    build = pathlib.Path(sys.argv[1])
    os.environ.pop("LADDER_FROM", None)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        probe = write_suite(folder / "probe.suite", "flash_simple", ["-N 3 -d 2"])
        status, _, err = grade(build, "strict", probe, RIGHT)
        sandbox = "strict" if status == 0 else "off"
        if sandbox == "off":
            tap.ok(status == 3 and err.count("\n") == 1, "no sandbox: one sentence, exit 3", err)
        for check in (check_contracts, check_deeds, check_ring, check_slow_ring, check_busy,
                      check_hog, check_output, check_rest, check_processor_time, check_unnamed,
                      check_where, check_names, check_folder_names, check_machine, check_judge,
                      check_killed_worker, check_unreadable, check_full_disk, check_peer,
                      check_compiler_words, check_points, check_formats, check_refusals):
            check(tap, build, sandbox, folder)
        check_libraries(tap, folder)
        check_whole_words(tap, folder)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
