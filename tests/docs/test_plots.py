#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Do the figure and table tools show what was checked and nothing else? On made-up rows in a
temporary folder: wrong and unchecked rows are in no figure and no table, the same rows give the
same SVG byte for byte, every figure under docs/figures is well formed and says in its first lines
what it shows, those that are drawn from recorded rows are what their script draws, and the bundled
input is what common/data/README.md says."""
import hashlib
import json
import math
import pathlib
import re
import shutil
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

FIGURES = ["01_wall", "attention_map", "02_accesses", "02_unsafe_exp", "03_traffic_n",
           "03_traffic_m", "03_speedup", "04_wall", "05_window", "05_steps", "speed"]


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
    for variant, accesses in (("v0_three_pass", 4), ("v1_online", 3)):
        rows.append(row("tiled_softmax", variant, rows=8, cols=64, accesses=accesses, flops=None))
    rows.append(row("tiled_softmax", "v7_wrong", False, rows=8, cols=64, accesses=1))
    for factor in (1, 10, 100):
        for variant in ("v0_three_pass", "v1_online", "unsafe_no_max"):
            unsafe = variant == "unsafe_no_max"
            bad = unsafe and factor > 50
            rows.append({"stage": "tiled_softmax", "experiment": "score_range", "rows": 64,
                         "variant": variant, "cols": 1024, "score_max": 4.0 * factor,
                         "error": None if bad else 1e-7, "nonfinite": 64 * bad,
                         "pass": None if unsafe else True})
    return rows + traffic_rows() + backward_rows() + window_rows()


def traffic_rows():
    """Stage 03's counted rows, over N and over M, and what ncu saw on a GPU."""
    rows = []
    for N, M in [(70, 512), (140, 512), (280, 128), (280, 256), (280, 512)]:
        for variant in ("standard", "v0_fa1_tiles", "v1_fa2_rows"):
            rows.append(row("flash_forward", variant, Nq=N, Nk=N, sram_elements=M,
                            traffic_bytes=N * N * 1e5 / M, ms_med=None, flops=None))
    for N in (512, 1024, 2048):
        for stage, variant in (("naive", "v1_cublas"), ("flash_forward", "v0_fa1"),
                               ("flash_forward", "v1_fa2"), ("flash_forward", "v7_wrong")):
            rows.append(row(stage, variant, variant != "v7_wrong", device="cuda", gpu="GPU @ 1",
                            Nq=N, Nk=N, d=64, tile_keys=32, ms_med=None, ncu_ms=N / 100, flops=None,
                            l2_request_bytes=N * N * 100, dram_bytes=N * 1000))
    return rows


def backward_rows():
    """Stage 04's pairs with and without whole matrices. The GPU's cross at 2048, the CPU's never
    do. A row with --deterministic and a masked one are other cases."""
    rows = []
    for N in (512, 1024, 2048, 4096):
        gpu = {"device": "cuda", "gpu": "NVIDIA H200", "Nq": N, "Nk": N, "d": 64, "backward": True,
               "flops": None}
        rows += [row("naive", "v1_cublas", ms_backward_med=N * N / 1e6, peak_bytes=8 * N * N,
                     **gpu),
                 row("flash_backward", "library", ms_backward_med=1 + N / 1e3,
                     peak_bytes=N * 8, deterministic=False, **gpu),
                 row("flash_backward", "library", ms_backward_med=1e-6, peak_bytes=N,
                     **{**gpu, "deterministic": True}),
                 row("flash_backward", "library", False, ms_backward_med=1e-7, peak_bytes=N,
                     **gpu)]
        cpu = {"Nq": N, "Nk": N, "backward": True, "flops": None, "ram_bytes": 24e9}
        rows += [row("flash_backward", "v1_blas", ms_backward_med=N, peak_bytes=8 * N * N, **cpu),
                 row("flash_backward", "library", ms_backward_med=2 * N, peak_bytes=8 * N, **cpu)]
    return rows


def window_rows():
    """Stage 05: the same window at several lengths and the whole matrix, on both devices; errors
    of the online step. Options, gradients and wrong rows are other cases."""
    rows = []
    for N in (512, 1024, 2048):
        for device, fast, slow in (("cpu", "library", "v0_offline_mask"),
                                   ("cuda", "v2_mma_window", "v0_online_block")):
            case = {"device": device, "gpu": "GPU @ 1", "Nq": N, "Nk": N, "d": 64, "flops": None,
                    "mask": "causal-lower-right", "dropout": 0, "clip": [0, 1]}
            rows += [row("sliding_window", fast, ms_med=N / 1e3, window=[256, 0], **case),
                     row("sliding_window", fast, ms_med=N * N / 1e6, window=[-1, 0], **case),
                     row("sliding_window", slow, ms_med=N * N / 1e5, window=[256, 0], **case),
                     row("sliding_window", fast, False, ms_med=7e-7, window=[256, 0], **case),
                     row("sliding_window", fast, ms_med=7e-8, window=[256, 0],
                         **{**case, "dropout": 0.5})]
    for dtype, u in (("bf16", 2.0 ** -9), ("f32", 2.0 ** -24)):
        for keys in (192, 48, 12):
            rows.append(row("sliding_window", "v1_online_block", dtype=dtype, block_kv=keys, Nq=192,
                            Nk=192, o_error=u * 192 / keys, ms_med=None, flops=None))
    rows.append(row("sliding_window", "library", dtype="bf16", block_kv=64, Nq=192, Nk=192,
                    o_error=2.0 ** -9, ms_med=None, flops=None))
    return rows


def test_window(tap, folder):
    """Which lines there are, in which order, and nothing of another case."""
    text, data = (folder / "05_window.set").read_text(), (folder / "05_window.dat").read_text()
    tap.ok('names = "v0_offline_mask:256 library:full library:256 '
           'v0_online_block:256 library:full library:256"' in text
           and 'counts = "3 3"' in text, "05_window: the lines of both devices", text)
    tap.ok("7e-07" not in data and "7e-08" not in data and len(data.split("\n\n\n")) == 7,
           "05_window: six lines, nothing wrong, no options", data)
    text, data = (folder / "05_steps.set").read_text(), (folder / "05_steps.dat").read_text()
    tap.ok('names = "bf16 f32"' in text and 'levels = "0.00195312 0"' in text
           and data.startswith("# bf16: steps, error of O\n1 0.00195312\n4 0.0078125\n16 0.03125"),
           "05_steps: error against steps, one accumulator beside", text + data)


def test_wall(tap, folder):
    """Reads what gnuplot gets: the crossing, the memory, no row of another case."""
    text, data = (folder / "04_wall.set").read_text(), (folder / "04_wall.dat").read_text()
    tap.ok("is faster from N = 2048 on" in text and "library is not yet faster" in text,
           "04_wall: where one overtakes the other", text)
    tap.ok('ends = "141000000000 24000000000"' in text and 'walls = "8 0 8 0"' in text,
           "04_wall: where memory ends", text)
    tap.ok("1e-06" not in data and "1e-07" not in data and len(data.split("\n\n\n")) == 5,
           "04_wall: four lines, nothing deterministic, nothing wrong", data)


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)


def test_data(tap, rows_file, folder):
    done = run(sys.executable, TOOLS / "plot_data.py", folder, rows_file)
    tap.ok(done.stdout.split() == FIGURES, "rows for every figure give every figure",
           done.stdout + done.stderr)
    text = "".join(p.read_text() for p in folder.glob("*.*t"))
    tap.ok("v1_blas" in text and "v7_wrong" not in text and "v8_unchecked" not in text,
           "wrong and unchecked rows reach no figure")
    test_wall(tap, folder)
    test_window(tap, folder)
    empty = folder / "none.jsonl"
    empty.write_text(json.dumps(row("naive", "v7_wrong", False)) + "\n")
    done = run(sys.executable, TOOLS / "plot_data.py", folder, empty)
    tap.ok(done.stdout.split() == ["attention_map"], "no checked row, no figure of rows",
           done.stdout)
    # what is wrong with a row, and what each of the tools says of it
    for text, said in ((b"{broken", ":1: not JSON"), (b"[" * 100000, ":1: not JSON"),
                       (b"\xff", ": not UTF-8"), (b"[]", ":1: not a row"),
                       (good(variant=None), ":1: not a row"),
                       (good(variant=["v"]), ":1: variant: "),
                       (good(Nq="64"), ':1: Nq: found "64", accepted is a number'),
                       (good(window=4), ":1: window: "), (good(errors=[]), ":1: errors: ")):
        empty.write_bytes(text + b"\n")
        for words in (("plot_data.py", folder), ("table.py",), ("first_page.py",)):
            done = run(sys.executable, TOOLS / words[0], *words[1:], empty)
            tap.ok(done.returncode == 2 and f"none.jsonl{said}" in done.stderr and not done.stdout
                   and done.stderr.count("\n") == 1, f"{words[0]} refuses {text[:60]}", done.stderr)


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
    done = run(sys.executable, TOOLS / "table.py", "--stale", "--filter", "variant=v0_loops",
               rows_file)
    tap.ok(done.returncode == 1 and done.stdout.count("source has changed") == 3,
           "rows without today's source hash are listed", done.stdout)
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


def test_figures(tap, rows_file, folder):
    if not shutil.which("gnuplot"):
        tap.skip("figures are drawn", "gnuplot is not installed")
        return
    first = run("sh", TOOLS / "draw_plots.sh", rows_file, folder / "a")
    run("sh", TOOLS / "draw_plots.sh", rows_file, folder / "b")
    tap.ok(first.returncode == 0 and "warning" not in first.stderr, "gnuplot has no complaint",
           first.stderr)
    for name in FIGURES:
        svg, png = folder / f"a/{name}.svg", folder / f"a/{name}.png"
        good = svg.is_file() and svg.read_text().rstrip().endswith("</svg>")
        tap.ok(good and len(what_it_shows(svg.read_text()).split()) > 5,
               f"{name}: says what it shows")
        tap.ok(good and png.is_file() and png.read_bytes()[:4] == b"\x89PNG",
               f"{name}: SVG and PNG")
        tap.ok(good and svg.read_bytes() == (folder / f"b/{name}.svg").read_bytes(),
               f"{name}: the same rows give the same SVG")
    tap.ok("naive v1_blas" in first.stdout and "####" in first.stdout, "the terminal shows bars",
           first.stdout)
    done = run("sh", TOOLS / "draw_plots.sh", rows_file, folder / "c", "no_such_figure")
    tap.ok(done.returncode == 2, "an unknown figure is refused")


def what_it_shows(text):
    """The sentence of its title, or of its description. An error if it is no well-formed SVG."""
    words = [e.text or "" for e in list(ElementTree.fromstring(text))[:2]
             if e.tag.endswith(("}title", "}desc")) and "GNUPLOT" not in (e.text or "")]
    return max(words, key=len, default="")


def test_drawings(tap):
    folder = ROOT / "docs" / "figures"
    found = run(sys.executable, TOOLS / "draw_figures.py", folder, "--check")
    tap.ok(found.returncode == 0, "figures of recorded rows are what their script draws",
           found.stdout)
    short = [f.name for f in sorted(folder.glob("*.svg"))
             if len(what_it_shows(f.read_text(encoding="utf-8")).split()) < 6]
    tap.ok(not short, "each figure says in its first lines what it shows", short)
    text = (folder / "03_pipeline.svg").read_text(encoding="utf-8")
    tap.ok(not what_it_shows(text.replace("<title>", "<g>", 1).replace("</title>", "</g>", 1)
                             .replace("<desc>", "<g>", 1).replace("</desc>", "</g>", 1)),
           "a figure without words is noticed")
    try:
        what_it_shows(text.replace("</desc>", "", 1))
        tap.ok(False, "a figure that is not well formed is noticed")
    except ElementTree.ParseError:
        tap.ok(True, "a figure that is not well formed is noticed")


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
        test_figures(tap, rows_file, folder)
    test_drawings(tap)
    test_bundled(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
