#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the first page promises: it is short, its table and the demo's last lines are made from
checked rows, and no recorded command names a folder of the machine that it ran on. The source of a
README reads like the page. Rows that are older than their sources are listed: they are to be
recorded again."""
import json
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common/tools")]
import first_page  # noqa: E402
import rows as recorded  # noqa: E402
from tap import Tap  # noqa: E402

FOLDER = re.compile(r"(^|[ =])/")
DEMO = "docs/results/demo.jsonl"


def row(stage, variant, ms, **more):
    return {"stage": stage, "variant": variant, "device": "cpu", "dtype": "f32", "B": 1, "H": 8,
            "Hkv": 8, "Nq": 1024, "Nk": 1024, "d": 64, "mask": "none", "window": [-1, -1],
            "ms_med": ms, "flops": 1e9, "bound_ratio": 0.1, "peak_bytes": 1 << 20, "cpu": "CPU",
            "threads": 2, "pass": True, "input": "normal", **more}


MADE_UP = [
    row("naive", "v0_loops", 100.0, peak_bytes=64 << 20), row("naive", "v1_blas", 25.0),
    row("flash_forward", "v2_second", 9.0), row("flash_forward", "v10_last", 5.0),
    row("flash_forward", "v0_first", 20.0), row("flash_forward", "library", 4.0),
    row("flash_forward", "v11_wrong", 0.1, **{"pass": False}),
    row("flash_forward", "v12_unchecked", 0.1, **{"pass": None}),
    row("naive", "v0_loops", 1.0, input="bundled", Nq=4096, Nk=4096),
    row("flash_forward", "library", 0.9, input="bundled", Nq=4096, Nk=4096),
    row("sliding_window", "v0_offline_mask", 60.0, Nq=2048, Nk=2048, window=[256, 0]),
    row("sliding_window", "library", 5.0, Nq=2048, Nk=2048, window=[256, 0]),
    row("ring_burst", "burst", 3.0), row("ring_burst", "ring", 4.0),
    row("ring_burst", "ring-minimal", 8.0),
]


def test_made_up(tap):
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "docs/results"
        results.mkdir(parents=True)
        (results / "demo.jsonl").write_text("\n".join(map(json.dumps, MADE_UP)) + "\n")
        for _, _, _, file, *_ in first_page.STAGES:
            (results / file).write_text("")
        (results / "03_flash_forward_h200.jsonl").write_text("\n".join(json.dumps(
            row("flash_forward", name, ms, device="cuda", dtype="bf16", B=4, Nq=4096, Nk=4096,
                d=128, peer="FlashAttention-4, backward",
                peer_gflops=1e9 / ms * 1e-6)) for name, ms in (("v3", 2.0), ("v4", 1.0))))
        table = first_page.ladder_table(folder, DEMO)
    lines = table.split("\n")
    tap.ok(lines[2].startswith("| 01 naive | `v0_loops` † | 100 | 1.00 | 64.0 MiB |"),
           "the first rung of the first stage, marked: its source is not this one", table)
    tap.ok("`v0_first`" in lines[4] and "| `v10_last` † | 5.00 | 4.00 |" in lines[5],
           "first and last rung by number; the library is none", table)
    tap.ok("`v4` †: 1.00 TFLOP/s" in lines[5] and "1.00 x FlashAttention-4 |" in lines[5],
           "the fastest variant on a GPU stands beside the last rung, with its peer", table)
    tap.ok("wrong" not in table and "unchecked" not in table, "only checked rows", table)
    tap.ok("`ring-minimal`" in table and "`ring` †" in table and "burst`" not in table,
           "stage 06: the first method and the next", table)


def test_summary(tap):
    lines = first_page.summary(MADE_UP)
    text = "\n".join(lines)
    tap.ok(len(lines) == 5 and max(map(len, lines)) <= 100, "five lines of 100 columns", text)
    tap.ok("library is 25 times as fast as naive attention (1024 tokens, 4.00 ms)" in text,
           "how many times faster, in random input", text)
    tap.ok("64 times less memory (1.00 MiB for 64.0 MiB)" in text, "how much less memory", text)
    tap.ok("library is 12 times as fast" in text, "what a window saves", text)
    tap.ok("13 results checked" in text, "wrong and unchecked rows do not count", text)
    tap.ok(len(first_page.summary([])) == 1, "without rows only the way to the pictures")


def test_page(tap):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    tap.ok(page.count("\n") <= 130, "the first page has at most 130 lines")
    for readme in [ROOT / "README.md", *sorted(ROOT.glob("0[1-6]_*/README.md"))]:
        text = readme.read_text(encoding="utf-8")
        tap.ok(not re.search(r"^\|.*<!--", text, re.M),
               f"{readme.relative_to(ROOT)}: no marker in a cell, numbers stand in a block")
    rows = [line for line in page.split("\n") if re.match(r"\| .*`.*` .*\| [\d.]+ \|", line)]
    tap.ok(4 <= len(rows) <= 14, "its table has at most 14 rows", f"{len(rows)} rows")
    stale = first_page.stale_rows(ROOT, DEMO)
    for old in stale:
        tap.skip(f"{old['stage']} {old['variant']} ({old['device']}) is of today's source",
                 "to be recorded again")
    if not stale:
        older = [row for row in rows if "†" in row]
        tap.ok(not older, "no row is older than its source", "\n".join(older))


def test_commands(tap):
    files = sorted((ROOT / "docs/results").glob("*.jsonl"))
    for file in files:
        bad = [row["_where"] for row in recorded.load([file])
               if FOLDER.search(row.get("command") or "")]
        tap.ok(not bad, f"{file.name}: commands without folders", " ".join(bad[:4]))
    tap.ok(len(files) > 20, "there are recorded rows")


def main():
    tap = Tap()
    test_made_up(tap)
    test_summary(tap)
    test_page(tap)
    test_commands(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
