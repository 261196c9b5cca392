#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_traffic.py: what stage 03 says about bytes and tiles.

usage: test_traffic.py FLASH_FORWARD COUNT_TRAFFIC [cpu|cuda]

- cpu: the rows' modelled bytes against the formulas written out here once more; sram_elements only
  where it has a meaning. count_traffic's rows: the laws that the figures show, in numbers.
- cuda: the model of each kernel is made of the tiles that the row names, and --smem-limit leaves
  out kernels that need more, saying so.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import npyfile  # noqa: E402
from tap import Tap  # noqa: E402

NO_DEVICE = 77
PORTABLE = {"f32": ("v0_fa1", "v1_fa2", "v2_register_tiles"),
            "bf16": ("v3_mma", "v4_ldmatrix", "v5_cp_async", "v6_exp2", "v7_full_tiles",
                     "v8_schedule")}


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300,
                          check=False)


def rows_of(program, folder, *flags):
    out = pathlib.Path(folder) / "rows.jsonl"
    out.unlink(missing_ok=True)
    done = run(program, *flags, "--json", out)
    lines = out.read_text(encoding="utf-8").split("\n")[:-1] if out.exists() else []
    return done, {row["variant"]: row for row in map(json.loads, lines)}


def up(a, b):
    return -(-a // b)


def fa1_bytes(n, d, Bc):
    Tc = up(n, Bc)
    return 4 * (2 * n * d + Tc * (2 * n * d + 2 * n) + 2 * n + (Tc + 1) * (n * d + 2 * n) + n)


def fa2_bytes(n, d, Br, element=4, splits=1):
    states = 2 * 4 * splits * (n * d + n) if splits > 1 else 0  # float32, written and read
    return element * ((splits + 1) * n * d + up(n, Br) * 2 * n * d) + 4 * n + states


def packed_bytes(n, d, Br, panel):
    channels, keys = up(d, panel) * panel, up(n, panel) * panel
    return 4 * (4 * n * d + n + (up(n, Br) + 1) * keys * (d + channels))


def test_rows(tap, program, folder):
    n, d, heads, M = 300, 40, 2, 4096
    done, rows = rows_of(program, folder, "--device", "cpu", "-H", heads, "-N", n, "-d", d,
                         "--sram", M)
    wanted = {"v0_fa1_tiles", "v1_fa2_rows", "v2_packing", "library"}
    tap.ok(done.returncode == 0 and wanted <= set(rows), "a row of each CPU variant", done.stderr)
    Bc = up(M, 4 * d)
    Br = min(Bc, d)
    v0, v1, v2 = rows["v0_fa1_tiles"], rows["v1_fa2_rows"], rows["library"]
    tap.ok([r["sram_elements"] for r in (v0, v1, v2)] == [M, M, None],
           "sram_elements is --sram where tiles are made from it, else null")
    tap.ok(all((r["tile_rows"], r["tile_keys"]) == (Br, Bc) for r in (v0, v1)),
           "tile_rows and tile_keys are the paper's")
    tap.ok(v0["hbm_bytes_model"] == heads * fa1_bytes(n, d, Bc), "v0_fa1_tiles: modelled bytes")
    tap.ok(v1["hbm_bytes_model"] == heads * fa2_bytes(n, d, Br), "v1_fa2_rows: modelled bytes")
    tap.ok(v2["hbm_bytes_model"] == heads * packed_bytes(n, d, v2["tile_rows"], v2["tile_keys"]),
           "library: modelled bytes", str(v2["hbm_bytes_model"]))
    tap.ok(all(r["compulsory_bytes_model"] == heads * 4 * (4 * n * d + n) for r in rows.values()),
           "compulsory bytes: Q K V O and lse once")


def test_words(tap, program):
    """What really has to fit: S is a quarter of M more, m and l come on top."""
    done = run(program, "--device", "cpu", "-H", "1", "-N", "300", "-d", "64", "--sram", "16384")
    tap.ok("M = 16384 " in done.stdout and " 20608 elements have to fit, 1.26 M" in done.stdout,
           "--sram says what has to fit", done.stdout)
    done = run(program, "--device", "cpu", "--trace", "--sram", "64", "--quiet")
    tap.ok("take 88 elements of fast memory: 1.38 times M" in done.stdout, "so does --trace",
           done.stdout)
    done = run(program, "--device", "cpu", "--trace", "--sram", "32768", "--quiet")
    tap.ok("M = 32768 elements" in done.stdout, "--trace takes --sram's default if it is asked for",
           done.stdout)


def test_trace(tap, program, folder):
    """Both loop orders of the trace end in the O and lse that the program computes."""
    faults = []
    for seed in range(8):
        done = run(program, "--device", "cpu", "--trace", "-N", "8", "-d", "4", "--seed", seed,
                   "--quiet", "--variant", "v1_fa2_rows", "--save", folder)
        O = npyfile.read(pathlib.Path(folder) / "o.npy")[1][-4:]
        lse = npyfile.read(pathlib.Path(folder) / "lse.npy")[1][-1]
        last = [line.split() for line in done.stdout.splitlines() if line.startswith("6..7")]
        end = re.search(r"= (\S+)    O / l =(.*)", done.stdout)
        shown = [*map(float, last[-2][-4:]), *map(float, end[2].split()), float(end[1])]
        if any(abs(a - b) > 1e-4 for a, b in zip(shown, [*O, *O, lse])):
            faults.append(f"seed {seed}: {shown} for {O} {lse}")
    tap.ok(not faults, "--trace: both loop orders end in the program's O and lse", str(faults))


def test_counts(tap, program, folder):
    out = pathlib.Path(folder) / "counted.jsonl"
    done = run(program, out, 512)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    tap.ok(done.returncode == 0 and rows and all(r["pass"] is True for r in rows),
           f"{len(rows)} counted rows are right", done.stderr)
    at = {(r["variant"], r["Nq"], r["sram_elements"]): r["traffic_bytes"] for r in rows}
    tap.ok(len(at) == len(rows), "no case is counted twice")
    four = at["standard", 512, 32768] / at["standard", 256, 32768]
    tap.ok(3.7 < four < 4.0,
           f"standard attention: twice N, nearly four times the bytes ({four:.3f})")
    halves = [at["v0_fa1_tiles", 1024, M] / at["v0_fa1_tiles", 1024, 2 * M]
              for M in (1024, 4096, 16384)]
    tap.ok(all(1.7 < h <= 2.0 for h in halves), f"FA1: twice M, half the bytes ({halves})")
    tap.ok(at["standard", 1024, 16384] == at["standard", 1024, 262144],
           "standard attention: more fast memory saves nothing from M = 4 d^2 on")
    tap.ok(all(r["fast_elements"] > r["sram_elements"] for r in rows
               if r["variant"] == "v0_fa1_tiles" and r["sram_elements"] <= 16384),
           "M is not a budget: S, m and l come on top")
    for bad in ([], [out, "12"], [out, "x"], [out, "512", "more"], [folder, "512"], ["--help"]):
        tap.ok(run(program, *bad).returncode == 2, f"refused: {' '.join(map(str, bad[1:]))}")


def test_cuda(tap, program, folder):
    for d in (32, 64, 96, 128, 200):
        for dtype, element in (("f32", 4), ("bf16", 2)):
            n = 333
            flags = ["--device", "cuda", "-H", "2", "-N", n, "-d", d, "--dtype", dtype]
            done, rows = rows_of(program, folder, *flags, "--smem-limit", "101376")
            rungs = [name for name in PORTABLE[dtype] if d in (64, 128)]
            tap.ok(done.returncode == 0 and {*rungs, "library"} <= set(rows),
                   f"{dtype} d={d}: every portable variant within 99 KiB", done.stderr)
            wrong = [name for name, r in rows.items() if r["hbm_bytes_model"] != 2 * (
                fa1_bytes(n, d, r["tile_keys"]) if name == "v0_fa1"
                else fa2_bytes(n, d, r["tile_rows"], element, r["key_splits"]))]
            tap.ok(not wrong, f"{dtype} d={d}: modelled bytes follow from the row's tiles",
                   " ".join(wrong))
    flags = ["--device", "cuda", "-N", "100", "--smem-limit", "4096"]
    done, rows = rows_of(program, folder, *flags)
    tap.ok(done.returncode == 0 and not rows and "--smem-limit is 4096" in done.stderr,
           "4 KiB: every variant is skipped with a sentence", done.stderr)
    done, rows = rows_of(program, folder, *flags, "--variant", "v1_fa2")
    tap.ok(done.returncode == 2 and "--smem-limit is 4096" in done.stderr,
           "asked for by name it is exit 2", done.stderr)


def test_counter_refuses(tap, counter, folder):
    """What cannot be written to is named, an empty name too."""
    for name, status in (("", 2), (folder, 2), ("/nowhere/x", 2), ("/dev/full", 3)):
        done = run(counter, name, "128")
        tap.ok(done.returncode == status and f"'{name}'" in done.stderr and
               done.stderr.startswith("count_traffic: ") and done.stderr.count("\n") == 1,
               f"count_traffic '{name}' names it, exit status {status}", done.stderr)


def main():
    program, counter, device = sys.argv[1:4]
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        if device == "cpu":
            test_rows(tap, program, folder)
            test_words(tap, program)
            test_trace(tap, program, folder)
            test_counts(tap, counter, folder)
            test_counter_refuses(tap, counter, folder)
        elif run(program, "--device", "cuda", "-N", "8").returncode == NO_DEVICE:
            return tap.skip_all("no cuda device here")
        else:
            test_cuda(tap, program, folder)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
