#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the figure and table tools show what was checked and nothing else? Wrong and unchecked rows,
made up here, are in no figure and no table, and the same rows give the same SVG byte for byte;
every figure under docs/figures is well formed and says in its first lines what it shows, those that
are drawn from recorded rows are what their script draws, and the bundled input is what
common/data/README.md says."""
import hashlib
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
TOOLS = ROOT / "common" / "tools"
sys.path[:0] = [str(HERE.parents[1]), str(TOOLS)]
from tap import Tap  # noqa: E402
import npy_small  # noqa: E402


def row(stage, variant, good=True, **more):
    return {"stage": stage, "variant": variant, "device": "cpu", "dtype": "f32", "B": 1, "H": 2,
            "Hkv": 2, "Nq": 64, "Nk": 64, "d": 8, "mask": "none", "threads": 2, "cpu": "CPU @ 1",
            "ms_med": 2.0, "flops": 1e7, "hbm_bytes_model": 1e6, "peak_bytes": 16384,
            "bound_ratio": 0.25, "sgemm_gflops": 50.0, "pass": good, **more}


def good(**more):
    return json.dumps({**row("naive", "v0_loops"), **more}).encode()


def made_up_rows():
    rows = []
    for N in (64, 128, 256):
        for variant, ms in (("v0_loops", 2.0), ("v1_blas", 0.5)):
            rows.append(row("naive", variant, Nq=N, Nk=N, ms_med=ms * N * N / 4096,
                            peak_bytes=4 * N * N, ram_bytes=24e9))
    rows.append(row("naive", "v7_wrong", False, ms_med=1e-4))
    rows.append(row("naive", "v8_unchecked", None, ms_med=1e-4))
    return rows


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)


def test_data(tap, rows_file, folder):
    done = run(sys.executable, TOOLS / "figures.py", folder, rows_file)
    tap.ok(done.returncode == 0 and "naive v1_blas #####" in done.stdout, "rows become figures",
           done.stdout + done.stderr)
    first = {p.name: p.read_text() for p in folder.glob("*.svg")}
    run(sys.executable, TOOLS / "figures.py", folder, rows_file)
    tap.ok(len(first) == 2 and first == {p.name: p.read_text() for p in folder.glob("*.svg")},
           "the same rows give the same SVG", " ".join(first))
    text = "".join(first.values())
    tap.ok("v1_blas" in text and "v7_wrong" not in text and "v8_unchecked" not in text,
           "wrong and unchecked rows reach no figure")
    empty = folder / "none.jsonl"
    empty.write_text(json.dumps(row("naive", "v0_loops", device="simt")) + "\n")
    done = run(sys.executable, TOOLS / "figures.py", folder / "no", empty)
    table = run(sys.executable, TOOLS / "table.py", empty)
    tap.ok(done.returncode == 0 and not (folder / "no").exists() and "v0_loops" not in table.stdout,
           "a model's times reach no figure and no table", done.stdout + table.stdout)
    empty.write_text(json.dumps(row("naive", "v7_wrong", False)) + "\n")
    done = run(sys.executable, TOOLS / "figures.py", folder / "no", empty)
    tap.ok(done.returncode == 0 and not (folder / "no").exists(), "no checked row, no figure",
           done.stdout)
    # what is wrong with a row, and what each of the tools says of it
    for text, said in ((b"{broken", ":1: not JSON"), (b"[" * 100000, ":1: not JSON"),
                       (b"\xff", ": not UTF-8"), (b"[]", ":1: not a row"),
                       (good(variant=None), ":1: not a row"),
                       (good(variant=["v"]), ":1: variant: "),
                       (good(Nq="64"), ':1: Nq: found "64", accepted is a number'),
                       (good(window=4), ":1: window: "), (good(errors=[]), ":1: errors: ")):
        empty.write_bytes(text + b"\n")
        for words in (("figures.py", folder), ("table.py",), ("first_page.py",)):
            done = run(sys.executable, TOOLS / words[0], *words[1:], empty)
            tap.ok(done.returncode == 2 and f"none.jsonl{said}" in done.stderr and not done.stdout
                   and done.stderr.count("\n") == 1, f"{words[0]} refuses {text[:60]}", done.stderr)


def test_two_machines(tap, folder):
    """Rows of another CPU, ten times as fast, have no standard of their own, so no speed-up."""
    lines = [{**row(stage, variant, Nq=N, Nk=N, d=64, ms_med=ms * N), "cpu": cpu}
             for N in (64, 128, 256) for stage, variant, ms, cpu in
             (("naive", "v1_blas", 2.0, "one"), ("flash_forward", "library", 1.0, "one"),
              ("flash_forward", "library", 0.1, "another"))]
    drawn = []
    for count in (9, 6):  # with the rows of the other CPU, without
        file, out = folder / f"{count}.jsonl", folder / str(count)
        out.mkdir()
        file.write_text("".join(json.dumps(line) + "\n" for line in lines
                                if count == 9 or line["cpu"] == "one"))
        run(sys.executable, TOOLS / "figures.py", out, file)
        drawn.append((out / "03_speedup.svg").read_text())
    tap.ok(drawn[0] == drawn[1], "no speed-up over another machine's standard")


def test_table(tap, rows_file):
    done = run(sys.executable, TOOLS / "table.py", "--demo", rows_file)
    lines = done.stdout.split("\n")
    first = lines.index("naive  B=1 H=2 N=64 d=8  cpu")
    mine = lines[first + 1:first + 3]
    tap.ok("2.00  " in mine[0] and "1.00x" in mine[0] and "4.00x" in mine[1]
           and "5.00" in mine[0] and "10%" in mine[0] and "40%" in mine[1],
           "time, GFLOP/s, share of sgemm and speed against v0 below their case", done.stdout)
    tap.ok(max(len(line) for line in lines) <= 100, "the table fits 100 columns", done.stdout)
    tap.ok(done.returncode == 1 and "WRONG: naive v7_wrong" in done.stderr
           and "v7_wrong" not in done.stdout,
           "a wrong row is reported and is an error", done.stderr)
    tap.ok("1 rows left out: not checked" in done.stderr, "unchecked rows are counted", done.stderr)
    done = run(sys.executable, TOOLS / "table.py", "--columns", "N,colour", rows_file)
    tap.ok(done.returncode == 2 and "no column 'colour'" in done.stderr,
           "an unknown column is named")
    odd = rows_file.with_name("odd.jsonl")
    odd.write_bytes(good(tiles={"clean": 1}, window=[-1, -1]))
    for words, said in ((("--filter", "N>=many"), "'many'"),
                        (("--columns", "tiles"), "KeyError: 'skipped'")):
        done = run(sys.executable, TOOLS / "table.py", *words, odd)
        tap.ok(done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1,
               f"table.py {' '.join(words)}", done.stderr)
    if pathlib.Path("/dev/full").exists():
        for name, word in (("table.py", odd), ("first_page.py", odd), ("testsum.py", odd),
                           ("reading.py", "01")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([sys.executable, TOOLS / name, word], stdout=full,
                                      stderr=subprocess.PIPE, text=True, check=False)
            tap.ok(done.returncode == 3 and "not taken" in done.stderr and
                   done.stderr.count("\n") == 1, f"{name}, and nobody takes it", done.stderr)


def what_it_shows(text):
    """The sentence of its title, or of its description. An error if it is no well-formed SVG."""
    words = [e.text or "" for e in list(ElementTree.fromstring(text))[:2]
             if e.tag.endswith(("}title", "}desc")) and "GNUPLOT" not in (e.text or "")]
    return max(words, key=len, default="")


def test_drawings(tap):
    folder = ROOT / "docs" / "figures"
    found = run(sys.executable, TOOLS / "figures.py", folder, "--check")
    tap.ok(found.returncode == 0, "figures of recorded rows are what their script draws",
           found.stdout)
    short = [f.name for f in sorted(folder.glob("*.svg"))
             if len(what_it_shows(f.read_text(encoding="utf-8")).split()) < 6]
    tap.ok(not short, "each figure says in its first lines what it shows", short)


def test_bundled(tap):
    data = ROOT / "common" / "data"
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", (data / "README.md").read_text(), re.M)
    for digest, name in sums:
        found = hashlib.sha256((data / name).read_bytes()).hexdigest()
        tap.ok(found == digest, f"{name} has the sum that its README states")
    tap.ok(len(sums) == 10, "ten files have a sum in the README")
    total = 0
    shapes = {f"encoder_{letter}": (1, 384, 12, 32) for letter in "qkv"}
    shapes.update(causal_q=(1, 512, 4, 64), causal_k=(1, 512, 2, 64), causal_v=(1, 512, 2, 64),
                  causal_do=(1, 512, 4, 64))
    for name, expected in shapes.items():
        shape, values = npy_small.read(data / f"{name}.npy")
        tap.ok(shape == expected and all(math.isfinite(v) for v in values),
               f"{name}: {list(expected)}, finite", shape)
        total += (data / f"{name}.npy").stat().st_size
    tap.ok(total <= 2e6, "the arrays stay below 2 MB")
    text = (data / "causal_text.txt").read_bytes()
    tap.ok(len(text) == 513 and max(text) < 128, "causal_text: 512 bytes and the one to foresee")


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows_file = folder / "rows.jsonl"
        rows_file.write_text("".join(json.dumps(r) + "\n" for r in made_up_rows()))
        (folder / "data").mkdir()
        test_data(tap, rows_file, folder / "data")
        test_table(tap, rows_file)
        test_two_machines(tap, folder)
    test_drawings(tap)
    test_bundled(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
