#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""grade.py: ./ladder grade: compiles submissions, has them judged on a suite, counts the points.

    ./ladder grade N FOLDER... --key FILE   a class by all suites of an assignment: grade_class.py
    ./ladder grade SUITE SUBMISSION... [--key FILE] [--format table|json|gradescope|otter|junit|csv]
                   [--out DIR] [--jobs N] [--total-time S] [--so-sandbox strict|off]
                   [--peer PROGRAM]

A submission is a C file, a folder of C files, a CUDA file (cuda.py), or a shared object. attn_jail
compiles them, with one command for all (no Makefile of theirs runs), where the compiler sees /usr,
the course's headers and the submission. attn_judge runs them, each case in a process of its own.

--key      the teacher's key file: draws the choices of a template and the seeds of the inputs
--format   json: one object a submission, a line each. gradescope and otter: one file a submission
--out      write files into this folder instead of the standard output
--jobs     submissions at a time (the number of processors)
--total-time  seconds of one submission for all cases of a suite; cases behind are `time` (120)
--so-sandbox  strict: no sandbox, no grading. off: another process and no more, which each row says
--peer   the program that measures cases with of=cublas (peer_speed.py)

Where two or more C submissions compile, a result has the field `similarity` (similarity.py), in
json and csv. Where it is null, `similarity_why` has the reason: what was not read has no number.

A submission that this machine could not compile or run (a full disk, no memory, a judge that was
killed) has status skipped with the reason, and the others are graded all the same.

Exit: 0 graded, whatever the scores; 2 bad usage; 3 it could not be done, or not for all.

Interface:
- main(arguments): the program. grade(options) -> suite, results (a list of JSON objects).
- run(arguments, how): the program with another `grade`. parse(arguments) -> options.
- Compiled: what became of a submission's source.
- compile_all, judge, score: its three steps. Kept: options.kept, what several suites share.
- check_some_graded(results): CannotGrade.
- missing(path): is there no such file?
"""
import argparse
import concurrent.futures
import contextlib
import errno
import json
import multiprocessing
import os
import pathlib
import platform
import re
import resource
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import typing

import cuda
import grade_formats
import lms
import similarity
import suite as suites
import peer_speed
import tool

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = (ROOT / "docs" / "course" / "include", ROOT / "common", ROOT / "common" / "attention")
FLAGS = ("-O3", "-march=native", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fopenmp")
MOST_SAID = 4096
SUBJECT_CAP = 0.4
MOST_SOURCE, MOST_LIBRARY = 4 << 20, 64 << 20
MOST_ENTRIES, MOST_NAME = 1 << 16, 1 << 12  # of a library's table of symbols; a name's bytes
LEAST_DISK = 8 << 20  # with less a compiler's failure is not the submission's
SIMILARITY_SECONDS, SIMILARITY_BYTES = 60, 2 << 30
BLAS = ("cblas_", "sgemm", "dgemm", "sgemv", "dgemv", "openblas", "mkl_", "dlopen", "dlsym",
        "dlmopen")
BLAS_LIBRARIES = ("blas", "mkl", "atlas", "lapack", "blis")


class UsageError(Exception):
    """One sentence: exit 2."""


class CannotGrade(Exception):
    """One sentence: exit 3."""


class Compiled(typing.NamedTuple):
    library: typing.Optional[pathlib.Path]
    said: str             # the compiler's words
    error: str            # the first of them that counts, without a library
    skipped: bool = False  # the error is this machine's
    text: str = ""         # what was compiled, after the preprocessor, without headers


# --- submissions ---------------------------------------------------------------------------------

def printable(name):
    """A file name as formats show it: bytes that are no UTF-8 and control signs as escapes."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode()
                   for sign in text)


def missing(path):
    """No such file, not even a broken link. What cannot be looked at is there, and is skipped."""
    try:
        os.lstat(path)
    except OSError as why:
        return why.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def check_name(name):
    """UsageError: what no teacher meant to grade. The submission's own faults come later."""
    path = pathlib.Path(name)
    shown = printable(name)
    if not name or missing(path):
        raise UsageError(f"{shown or 'SUBMISSION'}: found no such file, accepted is a C file, a "
                         "folder or a shared object")
    if not os.path.isdir(path) and path.suffix not in (".c", ".cu", ".so"):
        raise UsageError(f"{shown}: found the ending '{printable(path.suffix)}', accepted are .c, "
                         ".cu, .so and folders")


def without_archive(names):
    """The submissions, without what an archive of macOS holds beside its files."""
    kept = [name for name in names if pathlib.Path(name).name != "__MACOSX"]
    if not kept:
        raise UsageError("found __MACOSX alone, accepted is a C file, a folder or a shared object")
    return kept


def first_error(said):
    lines = tool.lines_of(said)
    marks = (" error: ", " fatal error: ", " Error: ", "undefined reference",
             "multiple definition", "file size limit", "attn_jail: ")
    found = [line for line in lines if any(mark.lower() in line.lower() for mark in marks)]
    # collect2 only says that the linker failed
    found.sort(key=lambda line: line.startswith("collect2: "))
    return next(iter(found + lines), "the compiler failed").removeprefix("attn_jail: ")


def fixed_words(said, folder):
    """What a compiler said, without what is another at the next time: the folder and the names of
    its temporary files."""
    for place in {str(folder), str(folder.resolve())}:
        said = re.sub(re.escape(place) + r"(\.in|/tmp|/source)?/", "", said)
    return re.sub(r"\bcc[A-Za-z0-9]{6}(?=\.(?:o|s|res|le|ltrans|cdtor)\b)", "temporary", said)


def plain_file(path, most):
    """Why a file is not to be copied; "" if it is."""
    if path.is_symlink():
        return "is a symbolic link, accepted is a file"
    if not path.is_file():
        return "is no plain file"
    return f"has more than {most >> 20} MiB" if path.stat().st_size > most else ""


def compiled_text(folder, source):
    """(the submission's own text after the preprocessor, why it is refused)."""
    path = pathlib.Path(source)
    names = {file.name for file in path.iterdir()} if path.is_dir() else {path.name}
    text = "".join(similarity.own_text(made.read_text(errors="replace"), names)
                   for made in sorted([*folder.glob("*.i"), *folder.parent.glob("*.ii")]))
    if len(text) > similarity.MOST_TEXT:
        return "", (f"its text after the preprocessor has {len(text) >> 10} KiB, accepted are "
                    f"{similarity.MOST_TEXT >> 10}")
    hidden = cuda.hidden_attribute(text) if path.suffix == ".cu" else ""
    if hidden:
        return "", hidden
    forged = next(filter(None, map(similarity.forged_origin, raw_texts(source))), "")
    return text, (f"found '{forged[:40]}', accepted is code without line directives and raw "
                  "strings") * bool(forged)


def compile_one(name, build, folder, sandbox):
    """Compiled, or what the machine lacked for it."""
    path, source = pathlib.Path(name), name
    if not path.is_dir():
        most = MOST_LIBRARY if path.suffix == ".so" else MOST_SOURCE
        error = plain_file(path, most)
        if error:
            return Compiled(None, "", f"{printable(path.name)} {error}")
        try:
            data = path.read_bytes()
        except OSError as why:
            return Compiled(None, "", f"{printable(path.name)} cannot be read ({why.strerror})")
        # every name of a file is accepted: the compiler sees one of the two that students know
        stem = path.stem if path.stem == "mine_twist" else "mine"
        source = folder.with_suffix(".in") / (stem + path.suffix)
        try:
            source.parent.mkdir()
            source.write_bytes(data)
        except OSError as why:
            shutil.rmtree(source.parent, ignore_errors=True)  # the others share the disk
            return Compiled(None, "", f"{source.parent} cannot be written ({why.strerror})", True)
        if path.suffix == ".so":
            return Compiled(source, "", "")
        if path.suffix == ".cu":
            why = cuda.refused(data.decode(errors="replace"))
            if why:
                return Compiled(None, "", why)
            try:
                cuda.put_tools(folder)
            except cuda.NoModel as why:
                return Compiled(None, "", f"CUDA without a GPU needs {why}", True)
    blas = "#define HAVE_OPENBLAS 1" in (build / "common" / "attn_config.h").read_text()
    words = [build / "common" / "course" / "attn_jail", "--out", folder, "--so-sandbox", sandbox]
    for header in HEADERS:
        words += ["--include", header]
    for flag in [*FLAGS, *(["-lopenblas"] if blas else [])]:
        words += ["--flag", flag]
    run = subprocess.run([*map(str, words), str(source)], capture_output=True, text=True,
                         check=False, errors="replace", stdin=subprocess.DEVNULL)
    if run.returncode not in (0, 1):
        return Compiled(None, "", run.stderr.strip().removeprefix("attn_jail: ") or
                        f"attn_jail ended with {run.returncode}", True)
    said = plain(fixed_words((run.stderr + run.stdout).strip(), folder))
    text = error = ""
    free = shutil.disk_usage(folder).free
    if run.returncode == 0:
        text, error = compiled_text(folder / "source", source)
        run.returncode = 1 if error else 0
    for path in folder.iterdir():  # copies, and what a killed compiler left, which may be large
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif run.returncode != 0:
            path.unlink()
    if run.returncode == 1 and free < LEAST_DISK:
        return Compiled(None, said[:MOST_SAID], f"{folder.parent} has {free >> 10} KiB left", True)
    if run.returncode == 0:
        return Compiled(folder / "submission.so", said[:MOST_SAID], "", text=text)
    return Compiled(None, said[:MOST_SAID], error or first_error(said))


def compile_all(names, build, folder, workers, sandbox):
    """A Compiled for each submission, in their order."""
    def one(n):
        try:
            return compile_one(names[n], build, folder / str(n), sandbox)
        except (OSError, MemoryError, *tool.MALFORMED) as why:  # one, and not the class
            return Compiled(None, "", f"{type(why).__name__}: {why}", True)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(names))))


class Kept:
    """What the suites of one assignment share: a file is compiled, and compared, for the first of
    them. place: a folder that lives as long."""

    def __init__(self, place):
        self.place, self.found, self.runs = pathlib.Path(place), {}, 0

    def compile(self, options):
        """(A Compiled for each submission, whether any is new)."""
        new = [name for name in dict.fromkeys(options.submissions) if name not in self.found]
        self.runs += 1
        folder = self.place / f"run{self.runs}"
        folder.mkdir()
        made = dict(zip(new, compile_all(new, options.build, folder, options.jobs,
                                         options.so_sandbox)))
        self.found.update((name, one) for name, one in made.items() if not one.skipped)
        return [made.get(name) or self.found[name] for name in options.submissions], bool(new)


def needs(path):
    """(undefined symbols, needed libraries) of a 64-bit little-endian ELF file; ValueError."""
    data = pathlib.Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit ELF file")
    try:
        at, = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        heads = [struct.unpack_from("<IIQQQQIIQQ", data, at + n * size) for n in range(count)]

        def text(table, offset):
            start = heads[table][4] + offset
            return data[start:data.index(b"\0", start, start + MOST_NAME)].decode(errors="replace")

        def entries(kind, width):
            """(section, offset) of each; a linker writes one section of the kind."""
            (head,) = [head for head in heads if head[1] == kind]
            if head[5] // width > MOST_ENTRIES:
                raise ValueError
            return [(head, place) for place in range(head[4], head[4] + head[5], width)]

        symbols, libraries = [], []
        for head, place in entries(11, 24):  # SHT_DYNSYM
            name, _, _, section = struct.unpack_from("<IBBH", data, place)
            symbols += [text(head[6], name)] if section == 0 and name else []
        for head, place in entries(6, 16):  # SHT_DYNAMIC
            tag, value = struct.unpack_from("<QQ", data, place)
            libraries += [text(head[6], value)] if tag == 1 else []
    except (struct.error, IndexError, ValueError):
        raise ValueError("its section headers cannot be read") from None
    return symbols, libraries


def blas_found(path):
    """The name that a library takes from a BLAS, or by which it could load one; "" if none."""
    try:
        symbols, libraries = needs(path)
    except (OSError, ValueError) as why:
        return f"what cannot be looked at: {why}"
    for name in symbols:
        if name.startswith(BLAS) or name.rstrip("_").startswith(BLAS):
            return name
    return next((name for name in libraries if any(b in name for b in BLAS_LIBRARIES)), "")


# --- judging -------------------------------------------------------------------------------------

def orders(suite, libraries, options):
    lines = [("suite", suite.path), ("contract", suite.contract), ("mode", options.so_sandbox),
             ("limits", suite.time, suite.memory, suite.threads), ("workers", options.jobs),
             ("total", options.total_time)]
    lines += [("case", case.line, *case.flags) for case in suite.cases]
    lines += [("perf", case.line) for case in suite.cases if case.of == "sgemm"]
    lines += [("threads", case.line, case.threads) for case in suite.cases if case.threads]
    lines += [("so", library) for library in libraries]
    return "".join("\t".join(map(str, line)) + "\n" for line in lines)


def run_judge(build, arguments, text):
    """(standard output of attn_judge, "" or why it ended early); UsageError, CannotGrade."""
    program = build / "common" / "course" / "attn_judge"
    try:
        run = subprocess.run([str(program), *arguments], input=text, capture_output=True, text=True,
                             errors="replace", check=False)
    except OSError as why:
        if why.errno == errno.ENOEXEC:
            raise CannotGrade(f"found a machine of the kind {platform.machine()}, accepted is one "
                              "for which the judge was built: make docker, where the handout has a "
                              "Dockerfile") from None
        raise CannotGrade(f"found that {program} does not run ({why.strerror}), accepted is a "
                          "build (./ladder grade makes one)") from None
    said = run.stderr.strip()
    if run.returncode == 2:
        raise UsageError(said.removeprefix("grade: "))
    why = said.removeprefix("grade: ") or f"attn_judge ended with {run.returncode}"
    return run.stdout, why if run.returncode != 0 else ""


def ask_judge(suite, libraries, numbers, options):
    """({(library, case): row of attn_judge} of the libraries with these numbers, why some may be
    missing). A line that is no row counts as missing, and a row without the rate that it needs."""
    text, why = run_judge(options.build, [],
                          orders(suite, [libraries[n] for n in numbers], options))
    rows = {}
    for line in tool.lines_of(text):
        try:
            row = json.loads(line)
            rows.setdefault((numbers[row["so"]], row["case"]), {}).update(row)
        except tool.MALFORMED:
            pass
    return {(n, c): row for (n, c), row in rows.items() if "status" in row and
            (row["status"] != "right" or suite.cases[c].of != "sgemm" or "perf" in row)}, why


def judge(suite, libraries, options):
    """{(library, case): row of attn_judge}. Who has not all rows is judged once more, alone, so
    that what ends the judge ends it for one; what is missing then is skipped."""
    wanted = [(n, c) for n in range(len(libraries)) for c in range(len(suite.cases))]
    rows, _ = ask_judge(suite, libraries, range(len(libraries)), options)
    for late in sorted({n for n, c in wanted if (n, c) not in rows}):
        again, why = ask_judge(suite, libraries, [late], options)
        rows.update(again)
        for key in (key for key in wanted if key[0] == late and key not in rows):
            rows[key] = {"status": "skipped", "output": "", "ms": 0.0,
                         "message": why or "attn_judge printed no result"}
    return rows


def measure(suite, libraries, rows, options):
    """Adds `perf` to the rows of right cases that a peer program measures, or why there is none."""
    has_gpu = any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg")))
    for c, case in enumerate(suite.cases):
        for n in range(len(libraries) if case.of == "cublas" and not has_gpu else 0):
            if rows[n, c].get("code") == "returned_an_error":  # its kernel had no place to run
                rows[n, c].update(status="skipped", message="it was not run: found no GPU here; "
                                  "counters.suite grades speed without")
        right = [n for n in range(len(libraries)) if rows[n, c]["status"] == "right"]
        if case.of != "cublas" or not right:
            continue
        if options.peer is None:
            found = {n: (None, "skipped", "its speed was not measured: found no --peer "
                         "PROGRAM, accepted is the bench of assignment 6 (make bench)")
                     for n in right}
        else:
            timed = peer_speed.measure(options.peer.resolve(), case, [libraries[n] for n in right],
                                      suite.time)
            found = {n: timed[libraries[n]] for n in right}
        for n, (rate, status, sentence) in found.items():
            rows[n, c].update(status=status, message=sentence, **({"perf": rate} if rate else {}))


# --- points ---------------------------------------------------------------------------

def plain(text):
    """Text of a submission, without signs that steer a terminal or turn a line around."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)


def test_of(case, row, refusal, status="refused"):
    """refusal: why nothing was run, which `status` counts as."""
    hidden = case.visibility == "hidden"
    errors = [dict(error) for error in row.get("errors", ())]
    for error in errors if hidden else ():
        for field in ("expected", "found"):
            error.pop(field)
    test = {"name": case.name, "score": 0.0, "max_score": case.points,
            "status": status if refusal else row["status"],
            "message": plain(refusal or row["message"]),
            "hint": "" if refusal else row.get("hint", ""),
            "code": "" if refusal else row.get("code", ""),
            "trace": "" if refusal or hidden else row.get("trace", ""),
            "inputs": "" if refusal or hidden else row.get("inputs", ""),
            "flags": "" if hidden else shlex.join(case.flags), "group": case.group,
            "visibility": case.visibility, "errors": [] if refusal else errors,
            "output": "" if refusal or hidden else plain(row["output"]),
            "ms": 0.0 if refusal else row["ms"]}
    if test["output"] and row.get("cut"):
        test["output"] += "\n[the rest is left out]"
    if test["status"] == "right":
        test["score"] = case.points
        if case.perf:
            reached = row.get(case.of if case.of in suites.COUNTED else "perf", 0.0)
            steps = sum(reached >= step for step in case.perf)
            share = steps / len(case.perf) if case.perf[1:] else min(1.0, reached / case.perf[0])
            test["score"] = round(case.points * share, 2)
            what = suites.COUNTED.get(case.of, f"the rate of {case.of}")
            test["message"] = f"{reached:.2f} of {what}; all points are for {case.perf[-1]:g}"
    return test


def cap_subject(suite, tests):
    """Right numbers without what the assignment is about: at most SUBJECT_CAP of the points."""
    lost = [test for test in tests if test["group"] == suite.subject and test["status"] != "right"]
    most, have = SUBJECT_CAP * suite.max_score, sum(test["score"] for test in tests)
    if suite.subject and lost and have > most:
        for test in tests:
            if test["score"]:
                test["score"] = int(100 * test["score"] * most / have) / 100
                test["message"] = (f"right, but without '{lost[0]['name']}' all cases together "
                                   f"have at most {100 * SUBJECT_CAP:.0f} %")


def score(suite, name, rows, compiled, sandbox):
    """The result of one submission. rows: of its cases; None: it did not compile."""
    library, said, error, skipped, _ = compiled
    asked = any("no-blas" in case.flags for case in suite.cases)
    blas = blas_found(library) if library and asked else ""
    tests = []
    for n, case in enumerate(suite.cases):
        cannot = "could not be compiled here" if skipped else "does not compile"
        refusal = "" if library else f"it {cannot}: {error}"
        if not refusal and blas and "no-blas" in case.flags:
            refusal = f"it uses {blas}, accepted is code of your own (--require no-blas)"
        tests.append(test_of(case, rows[n] if rows else {}, refusal,
                             "skipped" if skipped else "refused"))
        tests[-1]["replay"] = "" if case.visibility == "hidden" else suite.replay(case)
    for group in suite.all:
        members = [test for test in tests if test["group"] == group]
        if any(test["status"] != "right" for test in members):
            for test in members:
                if test["status"] == "right":
                    test["score"] = 0.0
                    test["message"] = f"right, but the points of '{group}' are all or nothing"
    cap_subject(suite, tests)
    return {"submission": name, "score": round(sum(test["score"] for test in tests), 2),
            "max_score": suite.max_score, "sandbox": sandbox, "compiler": said, "tests": tests}


def raw_texts(name):
    """The C sources of a submission; none of a shared object or what cannot be read."""
    path = pathlib.Path(name)
    files = sorted(path.glob("[!.]*")) if path.is_dir() else [path]
    return [similarity.read(file) for file in files if file.suffix in similarity.SOURCES and
            file.is_file() and not file.is_symlink()]


def compare(sources, to):
    """In a process of its own: sends the fields of {name: (path, compiled text)}, {} if fewer than
    two are sources, None if it cannot be done."""
    found = None
    try:
        resource.setrlimit(resource.RLIMIT_AS, (SIMILARITY_BYTES, SIMILARITY_BYTES))
        texts = {name: ["\n".join(raw_texts(path)), text] for name, (path, text) in sources.items()}
        # what the course's headers and stubs hold counts for nobody
        given = [similarity.read(path) for path in (*HEADERS[0].glob("*.h"),
                                                    *HEADERS[0].parent.glob("*/stub.*"))]
        enough = sum(any(both) for both in texts.values()) >= 2
        found = similarity.fields(texts, ROOT, given) if enough else {}
    except Exception:  # whatever a submission did to it: the points are worth more
        pass
    to.send(found)


def add_similarity(results, sources):
    """Compares sources, {name: (path, compiled text)}. The points stand already: a comparison that
    fails, or is not done in SIMILARITY_SECONDS, leaves null."""
    if len(sources) < 2:
        return
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=compare, args=(sources, there), daemon=True)
    child.start()
    there.close()
    late = f"the comparison failed or took more than {SIMILARITY_SECONDS} s"
    try:
        found = here.recv() if here.poll(SIMILARITY_SECONDS) else None
    except EOFError:  # it was killed
        found = None
    child.kill()
    child.join()
    if found == {}:
        return
    for result in results:
        own = result["submission"] in sources
        what = (found or {}).get(result["submission"], late if own else "it did not compile")
        result["similarity"] = None if isinstance(what, str) else what
        if isinstance(what, str):
            result["similarity_why"] = what


def check_change(options, key):
    """UsageError: the suite of a change that the students of this key were not given."""
    path = pathlib.Path(options.suite)
    if not key or path.suffix != ".template" or not path.name.startswith("twist_"):
        return
    import handout  # not among a student's files, which hold no template either
    kind = options.change or handout.chosen(path.resolve().parent, key)
    if path.stem != f"twist_{kind}":
        raise UsageError(f"{path.name}: found a key that chose another change, accepted is "
                         f"twist_{kind}.template with it")


def grade(options):
    key = suites.key_bytes(options.key) if options.key else None
    suite = suites.read(options.suite, key)
    check_change(options, key)
    options.submissions = without_archive(options.submissions)
    for name in options.submissions:
        check_name(name)
        if suite.contract == "flash_cuda" and pathlib.Path(name).suffix != ".cu":
            raise UsageError(f"{printable(name)}: found no .cu file, accepted is one where the "
                             "contract is flash_cuda, whose kernels are counted")
    if options.so_sandbox == "strict" and any(case.of == "cublas" for case in suite.cases):
        raise UsageError(f"{suite.path}: found of=cublas with --so-sandbox strict, accepted is "
                         "off, in a container: the sandbox has no GPU")
    if options.peer and not (options.peer.is_file() and
                                  os.access(options.peer, os.X_OK)):
        raise UsageError(f"--peer {options.peer}: found no program, accepted is one")
    _, why = run_judge(options.build, ["--check"], orders(suite, [], options))
    if why:
        raise CannotGrade(why)
    with tempfile.TemporaryDirectory(prefix="grade") as folder:
        compiled, are_new = (options.kept or Kept(folder)).compile(options)
        good = [n for n, one in enumerate(compiled) if one.library]
        libraries = [compiled[n].library for n in good]
        rows = judge(suite, libraries, options) if good else {}
        cuda.add_lines(rows, libraries)
        measure(suite, libraries, rows, options)
        place = {n: at for at, n in enumerate(good)}
        results = [
            score(suite, printable(name), [rows[place[n], c] for c in range(len(suite.cases))]
                  if n in place else None, compiled[n], options.so_sandbox)
            for n, name in enumerate(options.submissions)]
    if are_new:  # what was compiled before was compared before
        add_similarity(results, {results[n]["submission"]: (options.submissions[n],
                                                            compiled[n].text) for n in good})
    return suite, results


def reasons(result):
    """Why this machine could not do some of its cases."""
    return [test["message"] for test in result["tests"] if test["status"] == "skipped"]


def check_some_graded(results):
    """CannotGrade: this machine could do nothing at all."""
    if all(test["status"] == "skipped" for result in results for test in result["tests"]):
        raise CannotGrade(results[0]["tests"][0]["message"])


# --- the program ---------------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message}; accepted is what --help shows")


def not_empty(text):
    if not text:
        raise argparse.ArgumentTypeError("found '', accepted is a path")
    return pathlib.Path(text)


def seconds(text):
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"found {text}, accepted are seconds up to a day")
    return value


def count(text):
    value = int(text)
    if not 1 <= value <= 256:
        raise argparse.ArgumentTypeError(f"found {text}, accepted is 1 to 256")
    return value


def parse(arguments):
    parser = Parser(prog="./ladder grade", allow_abbrev=False,
                    description="grade submissions on a suite; see common/course/grade.py")
    parser.add_argument("suite", metavar="SUITE", help="a suite or template, or the number of an "
                        "assignment: all its suites, with a folder for each student")
    parser.add_argument("submissions", metavar="SUBMISSION", nargs="+",
                        help="a C file, a folder of C files or a shared object")
    parser.add_argument("--key", metavar="FILE", type=not_empty,
                        help="the teacher's key: draws the hidden cases")
    parser.add_argument("--format", choices=sorted(grade_formats.FORMATS), default="table",
                        help="gradescope and otter: a file for each submission")
    parser.add_argument("--out", metavar="DIR", type=not_empty,
                        help="write files there, not to the terminal")
    parser.add_argument("--lock", metavar="FILE", type=not_empty, help="with a number: writes the "
                        "cases with their seeds, or grades by them where the file is there "
                        "(DIR/cases.lock)")
    parser.add_argument("--change", metavar="NAME", help="with a number: the change that the "
                        "handout was made with, where the key did not choose it")
    parser.add_argument("--talk", metavar="FILE", type=not_empty, help="with a number: a CSV of "
                        "names and points, which points.csv adds")
    parser.add_argument("--due", metavar="DATE", type=lms.when, help="with a number: days late in "
                        "points.csv, by the files' times: 2026-11-30T23:59")
    parser.add_argument("--jobs", metavar="N", type=count, default=len(os.sched_getaffinity(0)),
                        help="submissions at a time (the number of processors)")
    parser.add_argument("--total-time", metavar="S", type=seconds, default=120.0,
                        help="seconds of one submission for all cases of a suite (120)")
    parser.add_argument("--so-sandbox", choices=("strict", "off"), default="strict",
                        help="off: run what is submitted without a sandbox, where there is none")
    parser.add_argument("--peer", metavar="PROGRAM", type=not_empty,
                        help="measures the cases of assignment 6 that are timed")
    parser.add_argument("--build", metavar="DIR", type=pathlib.Path,
                        default=ROOT / "build" / "demo", help="the build folder with attn_judge")
    here = os.environ.get("LADDER_FROM", ".")  # a student's folder may have the name of a flag
    options = parser.parse_args([f"./{word}" if word[:1] == "-" and
                                 os.path.isdir(os.path.join(here, word)) else word
                                 for word in arguments])
    options.files, options.kept = {}, None
    if grade_formats.FORMATS[options.format] is None and len(options.submissions) > 1 and \
            not options.out:
        raise UsageError(f"--format {options.format}: found {len(options.submissions)} submissions "
                         "without --out, accepted is --out DIR, which gets a file for each")
    return options


def write_out(options, texts):
    if not options.out:
        for text in texts.values():
            sys.stdout.write(text)
        return
    failed = []
    for name, text in texts.items():  # a file that does not fit leaves the others
        new = options.out / f"{name}.new"
        try:
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text, encoding="utf-8", errors="backslashreplace")
            os.replace(new, options.out / name)
        except OSError as why:
            failed.append(why.strerror)
            with contextlib.suppress(OSError):
                new.unlink()
    if failed:
        raise CannotGrade(f"--out {options.out}: found that {len(failed)} of {len(texts)} files "
                          f"cannot be written ({failed[0]}), accepted is a folder with room")


def run(arguments, how):
    try:
        options = parse(arguments)
        options.build = options.build.resolve()
        if os.environ.get("LADDER_FROM"):  # where the user of ./ladder stands
            os.chdir(os.environ["LADDER_FROM"])
        suite, results = how(options)
        check_some_graded(results)
        write_out(options, {**grade_formats.write(options.format, results, suite),
                            **(options.files if options.out else {})})
        skipped = [reasons(result) for result in results if reasons(result)]
        if skipped:
            raise CannotGrade(f"found that {len(skipped)} of {len(results)} submissions could not "
                              f"be graded as a whole ({skipped[0][0]}); their cases are 'skipped'")
    except (UsageError, suites.SuiteError) as why:
        print(f"grade: {why}", file=sys.stderr)
        return 2
    except CannotGrade as why:
        print(f"grade: {why}", file=sys.stderr)
        return 3
    return 0


def main(arguments):
    return run(arguments, grade)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # whatever LANG says
    tool.end(lambda: main(sys.argv[1:]))
