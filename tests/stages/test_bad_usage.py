#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_bad_usage.py: bad usage and bad input end with exit 2 and one sentence.

    test_bad_usage.py PROGRAM...

Every case of bad_usage.py runs on every program: exit status 2, nothing on stdout, exactly one line
on stderr that names the culprit and says what is accepted, no file or folder written or changed.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from bad_usage import (BACKWARD, DETERMINISTIC, FLAGS, OFFLINE, ONLY_OFFLINE, ONLY_RANKS, OTHERS,
                       RANKS, ROWS, TRACE)
from tap import Tap


def npy_bytes(header, data):
    text = header + " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def make_files(folder):
    """q: B=1 Nq=5 H=3 d=4; k: Nk=5 Hkv=3."""
    def path(name):
        return os.path.join(folder, name)

    for name, shape, kind in (("q", (1, 5, 3, 4), "f4"), ("k", (1, 5, 3, 4), "f8"),
                              ("d6", (1, 5, 3, 6), "f4"), ("h2", (1, 5, 2, 4), "f4"),
                              ("u1", (1, 5, 3, 4), "u1"), ("rank3", (5, 3, 4), "f4"),
                              ("mask", (5, 5), "u1"), ("zero", (1, 0, 3, 4), "f4")):
        count = 1
        for n in shape:
            count *= n
        npyfile.write(path(name + ".npy"), shape, [i % 2 for i in range(count)], kind)
    for name, starts in (("lengths", (0, 5, 5, 12)), ("falls", (0, 5, 3, 12)),
                         ("late", (1, 5, 12)), ("five", (0, 2, 4, 5, 12)),
                         ("one", (0,)), ("nobody", (0, 0, 0, 0))):
        npyfile.write(path(name + ".npy"), (len(starts),), starts, "i4")
    npyfile.write(path("huge.npy"), (2,), (0, 2 ** 63 - 1), "i8")
    npyfile.write(path("w12.npy"), (12,), [1.0] * 12)
    # k has another number of keys than q has queries, so that the two cannot be mixed up
    npyfile.write(path("k.npy"), (1, 7, 3, 4), [0.25 * (i % 9) for i in range(84)], "f8")
    with open(path("q.npy"), "rb") as f:
        whole = f.read()
    header = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 5, 3, 4), }"
    texts = {"short.npy": whole[:-3], "magic.npy": b"PK\x03\x04" + whole[4:], "empty.npy": b"",
             "fortran.npy": npy_bytes(header, bytes(240)),
             "blank.txt": b"\n# nothing\n   \n", "third.txt": b"\xef\xbb\xbf-N 5\n# -N 0\n-N 0\n",
             "json.txt": b"--json x\n", "binary.txt": b"-N 5\n\0\n",
             "cut.jsonl": b'{"schema":1}\n{"sch',
             "traces.txt": b"--method ring --trace-json t.json\n" * 2,
             "conflict.txt": b"-N 5 --causal\n-N 5 --causal --mask full\n"}
    for name, content in texts.items():
        with open(path(name), "wb") as f:
            f.write(content)
    os.mkfifo(path("fifo"))


def snapshot(folder):
    found = {}
    for where, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.join(where, name)] = None
        for name in files:
            if not os.path.isfile(os.path.join(where, name)):
                continue  # the FIFO: reading it would wait
            with open(os.path.join(where, name), "rb") as f:
                found[os.path.join(where, name)] = f.read()
    return found


def check(tap, program, flags, pattern, folder, before):
    words = [word.replace("{}", folder) for word in flags.split()]
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60,
                              cwd=folder, errors="backslashreplace")
    except subprocess.TimeoutExpired:
        tap.ok(False, f"{os.path.basename(program)} {flags}", "did not come back in 60 s")
        return
    lines = done.stderr.splitlines()
    wrong = []
    if done.returncode != 2:
        wrong.append(f"exit status {done.returncode}")
    if done.stdout:
        wrong.append(f"stdout: {done.stdout[:200]}")
    if len(lines) != 1 or not lines[0].startswith(os.path.basename(program) + ": "):
        wrong.append(f"{len(lines)} lines on stderr")
    elif not re.search(pattern, lines[0]):
        wrong.append(f"the sentence does not name {pattern}")
    elif not re.search(r"accepted|did you mean|takes a", lines[0]):
        wrong.append("the sentence does not say what is accepted")
    if snapshot(folder) != before:
        wrong.append("files were written")
    tap.ok(not wrong, f"{os.path.basename(program)} {flags}",
           "; ".join(wrong) + "\n" + done.stderr[:500])


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        make_files(folder)
        before = snapshot(folder)
        for program in map(os.path.abspath, sys.argv[1:]):
            page = subprocess.run([program, "--help"], capture_output=True, text=True,
                                  timeout=60).stdout
            cases = list(FLAGS)
            # another stage's flag, or a bad value of this stage's own
            cases.append(("--sram 0", "--sram: found '0'") if "--sram" in page
                         else ("--sram 4096", "--sram"))
            cases.append(("--smem-limit 0", "--smem-limit: found '0'") if "--smem-limit" in page
                         else ("--smem-limit 101376", "--smem-limit"))
            if "  --do" in page and "  --backward" not in page:
                # always on: --do needs nothing beside it, and --dist is for a random dO at least
                cases = [case for case in cases if not re.search("--dist large|--do ", case[0])]
                cases += [(flags.replace("--backward ", ""), pattern)
                          for flags, pattern in BACKWARD if "--backward " in flags]
            ranks = "  --ranks" in page  # whose --trace shows ranks, whatever the sizes
            for flag, more in (("--backward", BACKWARD), ("--rows", ROWS), ("--trace", TRACE),
                               ("--deterministic", DETERMINISTIC), ("--clip", OFFLINE),
                               ("--ranks", RANKS)):
                if f"  {flag}" in page:
                    cases += [] if ranks and flag == "--trace" else more
                elif flag == "--clip":
                    cases += ONLY_OFFLINE
                elif flag == "--ranks":
                    cases += ONLY_RANKS
                else:  # a flag that belongs to other stages
                    cases.append((OTHERS[flag], flag))
            for flags, pattern in cases:
                check(tap, program, flags, pattern, folder, before)
            tap.ok(len(cases) >= 40, f"{os.path.basename(program)}: {len(cases)} cases")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
