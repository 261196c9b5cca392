#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""./ladder simt as a student types it: one screen, a file of one's own, what is refused.

usage: test_command.py
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from programs import ROOT, program, run
from tap import Tap

OWN = (ROOT / "03_flash_forward/cuda/v1_fa2.cu").read_text(encoding="utf-8").replace(
    "RUNG(flash_forward, v1_fa2,", "RUNG(flash_forward, my_kernel,")
ASKED = "    float m_i[C::ROWS]"
NEVER = "    if (p.Nq == 1)\n        p.lse[0] = 0.0f; /* never */\n"


def simt(*words):
    return subprocess.run([sys.executable, str(ROOT / "common/tools/simt.py"), *words], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


def main():
    tap = Tap()
    for mode in ([], ["check"], ["count"], ["trace"]):
        done = simt("03", "v5_cp_async", *mode)
        lines = (done.stdout + done.stderr).rstrip().split("\n")
        tap.ok(done.returncode == 0 and len(lines) <= 40 and max(map(len, lines)) <= 100
               and done.stdout.rstrip().split("\n")[-1].startswith(("next:", "read:")),
               f"{mode or 'run'}: one screen of 100 columns, and what to read next",
               done.stdout + done.stderr)
    again = simt("03", "v5_cp_async", "trace")
    tap.ok(again.stdout == done.stdout, "the same bytes again", again.stdout)
    with tempfile.TemporaryDirectory() as folder:
        own = pathlib.Path(folder) / "my_kernel.cu"
        text = OWN.replace(ASKED, NEVER + ASKED, 1)
        line = text.count("\n", 0, text.index("/* never */")) + 1
        own.write_text(text, encoding="utf-8")
        done = simt("03", str(own), "check")
        tap.ok(done.returncode == 0 and "0 findings" in done.stderr, "a copy of v1_fa2.cu",
               done.stdout + done.stderr)
        tap.ok(f" 1 were not reached\n    my_kernel.cu:{line}\n" in done.stderr,
               "the line that no thread came to is named, and no other", done.stderr)
        own.write_text(OWN.replace("__syncthreads();", "syncall();", 1), encoding="utf-8")
        done = simt("03", str(own))
        tap.ok(done.returncode == 2 and "my_kernel.cu:" in done.stderr, "a copy that is no C++",
               done.stdout + done.stderr)
    words = ["--device", "cuda", "--variant", "v1_fa2", "--dtype", "f32", "-N", "64", "-H", "1"]
    done = run([program("03")], [*words, "--bench"])
    tap.ok(done.returncode == 2 and "--bench: found on simt" in done.stderr
           and done.stdout == "", "--bench is refused", done.stdout + done.stderr)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rows.jsonl"
        done = run([program("03")], [*words, "--json", str(file)])
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    tap.ok(rows and all(row["device"] == "simt" and not row.get("ms") for row in rows),
           "a row says simt, and no time", done.stdout + done.stderr)
    for words, says in (([], "usage"), (["07", "v1_fa2"], "found stage"),
                        (["03", "v99"], "found rung"), (["03", "none.cu"], "found no file"),
                        (["03", "v1_fa2", "check", "--dtype", "f8"], "--dtype")):
        done = simt(*words)
        tap.ok(done.returncode == 2 and says in done.stdout + done.stderr,
               f"refused: {' '.join(words) or 'nothing'}", done.stdout + done.stderr)
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
