#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the first page promises: it is short, the demo's last lines are made from checked rows (that
its table is, shows docs_drift), and no recorded command names a folder of the machine that it ran
on. The source of a README reads like the page. Rows that are older than their sources are listed:
they are to be recorded again."""
import pathlib
import re
import sys

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
    row("naive", "v0_loops", 100.0, peak_bytes=64 << 20),
    row("flash_forward", "v10_last", 5.0), row("flash_forward", "library", 4.0),
    row("flash_forward", "v11_wrong", 0.1, **{"pass": False}),
    row("flash_forward", "v12_unchecked", 0.1, **{"pass": None}),
    row("naive", "v0_loops", 1.0, input="bundled", Nq=4096, Nk=4096),
    row("flash_forward", "library", 0.9, input="bundled", Nq=4096, Nk=4096),
    row("sliding_window", "v0_offline_mask", 60.0, Nq=2048, Nk=2048, window=[256, 0]),
    row("sliding_window", "library", 5.0, Nq=2048, Nk=2048, window=[256, 0]),
]


def test_summary(tap):
    lines = first_page.summary(MADE_UP)
    text = "\n".join(lines)
    tap.ok(len(lines) == 5 and max(map(len, lines)) <= 100, "five lines of 100 columns", text)
    tap.ok("library is 25 times as fast as naive attention (1024 tokens, 4.00 ms)" in text,
           "how many times faster, in random input", text)
    tap.ok("64 times less memory (1.00 MiB for 64.0 MiB)" in text, "how much less memory", text)
    tap.ok("library is 12 times as fast" in text, "what a window saves", text)
    tap.ok("7 results checked" in text, "wrong and unchecked rows do not count", text)
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
    test_summary(tap)
    test_page(tap)
    test_commands(tap)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
