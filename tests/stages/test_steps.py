#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_steps.py: --trace --step and the lecture.

    test_steps.py FOLDER/PROGRAM...

Pages fit 80 x 24; Enter, b and q do what the prompt says; without keys all pages come; a terminal
shows in reverse exactly what changed. The last page has the numbers that --trace ends with, and the
results that a variant saved for the same case.
"""
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common" / "tools")]
from tap import Tap  # noqa: E402
import lecture  # noqa: E402
import npyfile  # noqa: E402

# the largest case that --step accepts: the fullest pages; then one that it refuses
LARGEST = {"01": "-N 6 -d 4", "02": "-N 6 -d 4", "03": "-N 6 -d 4", "04": "-N 6 -d 4",
           "05": "-N 64 --block-q 8 --block-kv 8 --order random",
           "06": "--ranks 8 -H 8 --method burst-double --nodes 2 --causal --backward"}
REFUSED = {"01": "-N 7", "02": "-N 7 -d 5", "03": "-d 5", "04": "-N 8",
           "05": "-N 72 --block-q 8 --block-kv 8", "06": "--ranks 9"}


def run(program, flags, keys=""):
    one = lecture.STEPS[pathlib.Path(program).parent.name[:2]][-2:]
    return subprocess.run([program, "--trace", "--quiet", *one, *flags], input=keys,
                          capture_output=True, text=True, check=False)


def pages_of(text):
    """[(lines, number)]"""
    parts = re.split(r"-- page (\d+) of \d+\n", text)
    return [(part.splitlines(), int(number)) for part, number in zip(parts[::2], parts[1::2])]


def numbers(text):
    return re.findall(r"-?\d+\.\d{4}", text)


def saved_rows(program, flags, names):
    """The results of a variant for the same case, as pages print them."""
    with tempfile.TemporaryDirectory() as folder:
        run(program, [*flags, "--save", folder])
        found = []
        for name in names:
            values = npyfile.read(os.path.join(folder, name + ".npy"))[1]
            found += [f"{value + 0.0:.4f}" for value in values]
    return found


def on_a_terminal(command, keys):
    """What a terminal gets to see."""
    main, other = pty.openpty()
    os.write(main, keys)
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=subprocess.DEVNULL) as child:
        os.close(other)
        seen = b""
        try:
            while chunk := os.read(main, 65536):
                seen += chunk
        except OSError:  # the last one closed it
            pass
        child.wait()
    os.close(main)
    return seen.decode().replace("\r", "")


def test_stage(tap, program):
    number = pathlib.Path(program).parent.name[:2]
    flags = ["--step", *(lecture.STEPS[number][:-2])]
    done = run(program, flags)
    pages = pages_of(done.stdout)
    tap.ok(done.returncode == 0 and len(pages) > 1
           and [n for _, n in pages] == list(range(1, len(pages) + 1)),
           f"{number}: without keys all pages, in order", done.stdout[-300:] + done.stderr)
    loud = subprocess.run([program, "--trace", "--step", *lecture.STEPS[number]], text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)
    tap.ok(loud.returncode == 0 and loud.stdout == done.stdout and not loud.stderr,
           f"{number}: no table behind the last page", loud.stdout[-300:] + loud.stderr)
    keyed = run(program, flags, "\nb\nq")
    tap.ok([n for _, n in pages_of(keyed.stdout)] == [1, 2, 1, 2],
           f"{number}: Enter goes on, b goes back, q ends", keyed.stdout)
    full = run(program, ["--step", *LARGEST[number].split()])
    too_large = [line for lines, _ in pages_of(full.stdout) if len(lines) > 23 for line in lines]
    too_large += [line for line in full.stdout.splitlines()
                  if len(re.sub(r" \*$", "", line)) > 80]
    tap.ok(full.returncode == 0 and len(pages_of(full.stdout)) > 2 and not too_large,
           f"{number}: the largest case fits 80 x 24", "\n".join(too_large) + full.stderr)
    refused = run(program, ["--step", *REFUSED[number].split()])
    if number != "02":  # one row: any trace fits
        tap.ok(refused.returncode == 2 and refused.stderr.startswith(pathlib.Path(program).name)
               and "--step: found" in refused.stderr and not refused.stdout,
               f"{number}: a larger one is refused", refused.stderr)
    if number not in ("05", "06"):
        whole = run(program, [f for f in flags if f != "--step"])
        # 02 and 03: what is true at the end; a page has the tile's own numbers, too
        kept = {"02": r"  lse|  {10}", "03": r"  q\d"}.get(number, "")
        last = numbers("\n".join(line for line in pages[-1][0] if re.match(kept, line)))
        tap.ok(set(last) <= set(numbers(whole.stdout)) and len(last) > 3,
               f"{number}: the last page has --trace's numbers",
               str(set(last) - set(numbers(whole.stdout))))


def test_results(tap, program):
    """What the last page says must be what a variant computes: not zeros, not something else."""
    number = pathlib.Path(program).parent.name[:2]
    names = {"01": ["o"], "03": ["o"], "04": ["dq", "dk", "dv"]}.get(number)
    if not names:
        return
    flags = lecture.STEPS[number][:-2]
    page = "\n".join(pages_of(run(program, ["--step", *flags]).stdout)[-1][0])
    expected = saved_rows(program, flags, names)
    near = {f"{float(n) + d:.4f}" for n in numbers(page) for d in (-1e-4, 0, 1e-4)}
    missing = [value for value in expected if value not in near]
    tap.ok(len(set(expected)) >= 8 and not missing,
           f"{number}: the last page has the results of a variant", str(missing))


def test_terminal(tap, program):
    """Of the second page, what differs from the first is in reverse, nothing else."""
    number = pathlib.Path(program).parent.name[:2]
    flags = ["--trace", "--step", "--quiet", *lecture.STEPS[number]]
    seen = on_a_terminal([program, *flags], b"\nq")
    screens = seen.split("\033[H\033[2J")[1:]
    marked = re.findall(r"\033\[7m(.*?)\033\[0m", screens[1]) if len(screens) == 2 else []
    tap.ok(len(screens) == 2 and "\033[7m" not in screens[0],
           f"{number}: a terminal: one page at a time", seen)
    tap.ok(0 < len(marked) < 60, f"{number}: a terminal: what changed is in reverse", repr(marked))
    if number == "02":
        tap.ok(marked[:2] == ["k2", "k3"] and "scores" not in marked and "alpha" not in marked
               and 5 < len(marked) < 40, "02: ... the keys and the numbers, no name", repr(marked))


def test_lecture(tap, program):
    number = pathlib.Path(program).parent.name[:2]
    done = subprocess.run([sys.executable, ROOT / "common/tools/lecture.py", number, program],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wide = [line for line in done.stdout.splitlines() if len(line) > 80]
    high = [text for text in lecture.recorded_rows(ROOT, number) if text.count("\n") > 21]
    tap.ok(done.returncode == 0 and "-- page 2 of" in done.stdout
           and "Recorded on NVIDIA" in done.stdout and not wide and not high,
           f"{number}: the lecture plays, in 80 x 24", done.stdout[-300:] + done.stderr +
           str(wide + high))
    tables = done.stdout.partition("Recorded on")[2]
    rows = re.findall(r"^([a-z].*\S)\n", tables, re.M)
    tap.ok(not re.search(r"^[a-z].*\n\n[a-z]", tables, re.M) and len(set(rows)) == len(rows) > 3,
           f"{number}: rows without gaps, no two alike", tables)


def main():
    tap = Tap()
    for program in sys.argv[1:]:
        test_stage(tap, program)
        test_lecture(tap, program)
        test_results(tap, program)
        test_terminal(tap, program)
    alone = subprocess.run([sys.argv[1], "--step"], capture_output=True, text=True, check=False)
    tap.ok(alone.returncode == 2 and "--step: found without --trace" in alone.stderr,
           "--step needs --trace", alone.stderr)
    wrong = subprocess.run([sys.executable, ROOT / "common/tools/lecture.py", "07", "x"],
                           capture_output=True, text=True, check=False)
    tap.ok(wrong.returncode == 2 and "accepted is a stage" in wrong.stderr, "lecture 07 is refused",
           wrong.stderr)
    if pathlib.Path("/dev/full").exists():
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([sys.executable, ROOT / "common/tools/lecture.py", "01", "x"],
                                  stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                                  text=True, check=False)
        tap.ok(done.returncode == 3 and done.stderr.count("\n") == 1,
               "a lecture that nobody takes", done.stderr)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
