#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_interface.py: what scripts rely on: --list, --help, --version, the table, JSON rows, --save,
--cases and exit statuses.

    test_interface.py --schema docs/json_schema.md PROGRAM...
"""
import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from tap import Tap


# Stage 06's rows are its methods, once for each device.
NAMES = {"ring_burst": r"ring-minimal|(ring|burst)(-double)?|allgather|ulysses"}


class Program:
    """One stage program and the folder that its runs write to."""

    def __init__(self, tap, path, folder):
        self.tap = tap
        self.path = os.path.abspath(path)
        self.name = os.path.basename(path)
        self.folder = folder
        self.count = 0

    def run(self, *flags, env=None):
        return subprocess.run([self.path, *map(str, flags)], capture_output=True, text=True,
                              timeout=120, errors="backslashreplace",
                              env={**os.environ, **(env or {})})

    def ok(self, condition, what, detail=""):
        return self.tap.ok(condition, f"{self.name}: {what}", detail)

    def fresh(self, ending=""):
        self.count += 1
        return os.path.join(self.folder, f"{self.count}{ending}")

    def cases(self, text):
        path = self.fresh(".txt")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path


def refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def rows_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line, parse_constant=refuse_constant) for line in f]


def documented_fields(path, heading):
    """Names in the first column of the table under a heading of docs/json_schema.md."""
    with open(path, encoding="utf-8") as f:
        part = f.read().split(heading, 1)[1].split("\n## ", 1)[0]
    return {name for line in part.splitlines() if line.startswith("| `")
            for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def hopper(p, row):
    """A build without sm_90a does not have the rungs of stage 03 from v9 on."""
    return ["(not built)"] if p.name == "flash_forward" and re.match(r"v(9|1\d)_", row[0]) else []


def check_pages(p):
    listing = p.run("--list")
    lines = [re.split(r" {2,}", line) for line in listing.stdout.splitlines()]
    p.ok(listing.returncode == 0 and len(lines) >= 2, "--list lists variants", listing.stderr)
    without = ("found a build without CUDA" in p.run("--device", "cuda", "-N", "1").stderr
               and p.name not in NAMES)  # methods of stage 06 have no functions of their own
    good = [len(row) == 6 and re.fullmatch(NAMES.get(p.name, r"v\d+_[a-z0-9_]+|library"), row[0])
            and
            row[1] in ("cpu", "cuda") and
            re.fullmatch(r"e4m3|(f32|f16|bf16)(,(f16|bf16))*", row[2]) and
            row[3] in (["(not built)"] if without and row[1] == "cuda" else
                       ["forward", "forward,backward"] + hopper(p, row))
            and row[4] in ("plain", "full", "any") and row[5]
            for row in lines]
    p.ok(all(good), "--list: name  device  dtypes  directions  cases  idea", listing.stdout)
    # the library has one name for both devices, and so have stage 06's methods
    names = {(row[0], row[1] if p.name in NAMES or row[0] == "library" else "") for row in lines}
    p.ok(len(names) == len(lines), "--list: every name once", listing.stdout)
    page = p.run("--help")
    p.ok(page.returncode == 0 and page.stdout.startswith(p.name + ": ") and "?" in
         page.stdout.splitlines()[0], "--help opens with the stage's question", page.stdout[:200])
    for heading in ("Sizes", "Attention", "Inputs", "What runs", "Output", "Examples"):
        p.ok(f"\n{heading}\n" in page.stdout, f"--help has the group {heading}")
    examples = page.stdout.split("Examples\n")[1].split("\n")
    examples = [line.split()[1:] for line in examples if line.strip()]
    p.ok(len(examples) == 2, "--help has two examples", examples)
    for words in examples:
        words = [p.fresh(".jsonl") if word.endswith(".jsonl") else word for word in words]
        few = ["--iters", "2", "--warmup", "0"] if "--bench" in words else []
        done = p.run(*words, *few, "--variant", variants(p)[0])
        p.ok(done.returncode == 0, f"the example {' '.join(words)} works", done.stderr)
    version = p.run("--version")
    p.ok(version.returncode == 0 and re.fullmatch(
        r"\w+ \(Attention Ladder\) \S+, ABI version \d+, JSON schema 1\n", version.stdout),
        "--version", version.stdout)
    page = p.run("-h")
    p.ok(page.returncode == 0 and "usage:" in page.stdout, "-h is --help")
    return [row[0] for row in lines if row[1] == "cpu"]


def takes_all(p):
    """The CPU's variants that take any case: not the rungs of the plain problem."""
    return [line.split()[0] for line in p.run("--list").stdout.splitlines()
            if re.search("^\\S+ +cpu .* (any|full)  ", line)]


def variants(p):
    return [line.split()[0] for line in p.run("--list").stdout.splitlines() if " cpu " in line]


def table_rows(p, text):
    name = re.compile("(" + NAMES.get(p.name, r"v\d+_[a-z0-9_]+|library") + ") +(cpu|cuda) ")
    return [line for line in text.splitlines() if name.match(line)]


def check_default(p, cpu):
    done = p.run("--device", "cpu")
    rows = [line.split() for line in table_rows(p, done.stdout)]
    p.ok(done.returncode == 0 and [row[0] for row in rows] == cpu and
         all(row[2] == "ok" for row in rows), "no sizes: every CPU variant runs and is right",
         done.stdout + done.stderr)
    timed = p.run("--device", "cpu", "-N", "20", "--variant", cpu[0], "--bench", "--iters", 1)
    p.ok("one cold run" in done.stdout and "one cold run" not in timed.stdout,
         "what --bench did not time says so", done.stdout + timed.stdout)
    done = p.run()
    p.ok(done.returncode == 0, "no arguments at all", done.stderr)
    done = p.run("--device", "cpu", "-N", "20", "--quiet")
    p.ok((done.returncode, done.stdout, done.stderr) == (0, "", ""), "--quiet prints nothing",
         done.stdout + done.stderr)
    done = p.run("--device", "cpu", "-N", "20", "--variant=" + cpu[-1])
    rows = table_rows(p, done.stdout)
    p.ok(done.returncode == 0 and len(rows) == 1 and rows[0].startswith(cpu[-1]),
         "--variant=NAME runs one", done.stdout)
    done = p.run("--device", "cpu", "-N", "130", "--threads", "4", env={"OMP_THREAD_LIMIT": "1"})
    p.ok(done.returncode == 0, "fewer threads than --threads: OMP_THREAD_LIMIT", done.stderr)
    done = p.run("--device", "cuda", "-N", "20")
    p.ok(done.returncode in (0, 77), "--device cuda runs or exits 77", done.stderr)
    if done.returncode == 77:
        p.ok(re.match(r"\w+: --device cuda: found .*accepted", done.stderr) and not done.stdout,
             "77 comes with a sentence", done.stderr)
    done = p.run("-N", "20", "--device", "cpu", "--no-check")
    p.ok(done.returncode == 0 and " ok " not in done.stdout, "--no-check claims nothing",
         done.stdout)


def check_json(p, cpu, schema):
    path = p.fresh(".jsonl")
    flags = ["--device", "cpu", "--json", path]
    page = p.run("--help").stdout
    flag, backward = "  --backward" in page, "  --do" in page  # or it is always on
    cpu = [name for name in cpu if name in takes_all(p)]
    if flag:
        cpu = [line.split()[0] for line in p.run("--list").stdout.splitlines()
               if re.search(" cpu .* forward,backward ", line)]
    p.run(*flags, "-B", 2, "-N", 20, "--seq-kv", 30, "-H", 4, "--kv-heads", 2, "-d", 16, "--causal",
          "--window", "9,-1", "--softcap", 5, "--scale", 0.25, "--seed", 18446744073709551615,
          "--dtype", "bf16", "--dist", "outlier", "--strides", "odd", "--threads", 1,
          *(["--backward"] if flag else []))
    p.run(*flags, "-N", 20, "--bench", "--iters", 4, "--warmup", 0, "--variant", cpu[0])
    p.run(*flags, "-N", 20, "--no-check", "--variant", cpu[0])
    p.run(*flags, "-N", 1, "--seq-kv", 1, "--variant", cpu[0])
    fixed = "  --deterministic" in page
    p.run(*flags, "-N", 1, "--seq-kv", 1, "--variant", cpu[0],
          *(["--deterministic"] if fixed else []))
    rows = rows_of(path)
    p.ok(rows[0]["deterministic"] is (False if fixed else None) and
         rows[-1]["deterministic"] is (True if fixed else None), "a row says --deterministic",
         (rows[0]["deterministic"], rows[-1]["deterministic"]))
    del rows[-1]
    p.ok(len(rows) == len(cpu) + 3, "--json appends a row a variant", len(rows))
    want = documented_fields(schema, "## Attention")
    if "  --clip" in page:
        want |= documented_fields(schema, "## Windows")
    if "  --ranks" in page:
        want |= documented_fields(schema, "## Ranks")
    p.ok(len(want) > 40 and all(set(row) == want for row in rows),
         "rows have the fields of docs/json_schema.md",
         sorted(want ^ set(rows[0])))
    said = {"schema": 1, "stage": p.name, "device": "cpu", "dtype": "bf16", "B": 2, "H": 4,
            "Hkv": 2, "Nq": 20, "Nk": 30, "d": 16, "mask": "causal-lower-right", "window": [9, 0],
            "scale": 0.25, "softcap": 5, "strides": "odd", "input": "fill",
            "seed": 18446744073709551615, "dist": "outlier", "backward": backward, "threads": 1,
            "pass": True, "nonfinite": 0, "failure": "", "ranks": 4 if "  --ranks" in page else 1,
            "line": 0}
    wrong = {key: rows[0].get(key) for key in said if rows[0].get(key) != said[key]}
    p.ok(not wrong, "a row says what was asked for", wrong)
    p.ok([row["variant"] for row in rows[:len(cpu)]] == cpu, "variants in the order of --list")
    p.ok(all(re.fullmatch("[0-9a-f]{64}", row[key]) for row in rows
             for key in ("sha256", "sources_sha256")),
         "rows carry the hashes of the variant's sources", [row["sha256"] for row in rows])
    # the causal window lets query i (at i + 10) see keys i+1 .. i+10: 10 each
    pairs = 20 * 10
    passes = 2.5 if backward and not flag else 3.5 if backward else 1  # 2.5: the backward alone
    flops = 4 * 2 * 4 * 16 * pairs * passes
    p.ok(rows[0]["flops"] == flops, f"flops are {flops:g}", rows[0]["flops"])
    counted = [row["ms_backward_med"] + (row["ms_med"] if flag else 0) if row["backward"]
               else row["ms_med"] for row in rows]
    p.ok(all(abs(row["gflops"] * ms * 1e6 / row["flops"] - 1) < 1e-6
             for row, ms in zip(rows, counted)), "gflops are flops over the time of these passes")
    p.ok(len(rows[0]["ms"]) == 1 and (len(rows[0]["ms_backward"]) == 1) == backward,
         "one sample without --bench", rows[0]["ms"])
    row = rows[len(cpu)]
    p.ok(len(row["ms"]) == 4 and sorted(row["ms"])[1] <= row["ms_med"] * 1.0001 and
         row["ms_med"] <= sorted(row["ms"])[2] * 1.0001,
         "--bench --iters 4: four samples, a median", row["ms"])
    p.ok(rows[-2]["pass"] is None and rows[-2]["bound_ratio"] is None, "--no-check: pass is null")
    p.ok(0 <= rows[-1]["bound_ratio"] <= 1, "bound_ratio of one query and one key",
         rows[-1]["bound_ratio"])


def check_judge(p):
    """--judge: what --save wrote is right for the same flags, and wrong for others."""
    backward = ["--backward"] if "  --backward" in p.run("--help").stdout else []
    flags = ["--device", "cpu", "-B", 2, "-N", 21, "-H", 4, "--kv-heads", 2, "-d", 8, *backward]
    saved, rows = p.fresh(), p.fresh(".jsonl")
    p.run(*flags, "--save", saved)
    done = p.run(*flags, "--judge", saved, "--json", rows)
    with open(rows, encoding="utf-8") as file:
        row, = (json.loads(line) for line in file)
    p.ok(done.returncode == 0 and row["pass"] is True and row["variant"] == "--judge",
         "--judge: files of --save are right", done.stderr)
    done = p.run(*flags, "--judge", saved, "--scale", "0.5")
    p.ok(done.returncode == 1 and "is wrong" in done.stderr, "--judge: and wrong for another scale",
         done.stderr)
    shape, values = npyfile.read(os.path.join(saved, "lse.npy"))
    npyfile.write(os.path.join(saved, "lse.npy"), shape, [v + 0.01 for v in values])
    done = p.run(*flags, "--judge", saved)
    p.ok(done.returncode == 1 and "lse is wrong" in done.stderr and "O is wrong" not in done.stderr,
         "--judge: a wrong lse", done.stderr)
    os.unlink(os.path.join(saved, "o.npy"))
    rows = p.fresh(".jsonl")
    for more, word in ((["--json", rows], "o.npy"), (["--bench"], "--bench"),
                       (["--no-check"], "--no-check"), (["--save", saved], "--save")):
        done = p.run(*flags, "--judge", saved, *more)
        p.ok(done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1,
             f"--judge: refused, {word}", done.stderr)
    p.ok(not os.path.exists(rows) or os.path.getsize(rows) == 0, "--judge: no row then")


def check_save(p, cpu):
    saved = os.path.join(p.fresh(), "deeper")
    done = p.run("--device", "cpu", "-B", 2, "-N", 5, "--seq-kv", 9, "-H", 4, "--kv-heads", 2, "-d",
                 8, "--strides", "bhsd", "--dtype", "bf16", "--save", saved)
    page = p.run("--help").stdout
    gradients = ["dk.npy", "dq.npy", "dv.npy"] if "  --do" in page else []
    always = gradients if "  --backward" not in page else []
    p.ok(done.returncode == 0 and sorted(os.listdir(saved)) == always + ["lse.npy", "o.npy"],
         "--save makes the folder and its files", done.stderr)
    shape, bf16 = npyfile.read(os.path.join(saved, "o.npy"))
    p.ok(tuple(shape) == (2, 5, 4, 8) and len(bf16) == 320, "o.npy is [B][Nq][H][d]", shape)
    shape, lse = npyfile.read(os.path.join(saved, "lse.npy"))
    p.ok(tuple(shape) == (2, 4, 5) and len(lse) == 40, "lse.npy is [B][H][Nq]", shape)
    again = p.fresh()
    p.run("--device", "cpu", "-B", 2, "-N", 5, "--seq-kv", 9, "-H", 4, "--kv-heads", 2, "-d", 8,
          "--save", again)
    _, f32 = npyfile.read(os.path.join(again, "o.npy"))
    p.ok(f32 != bf16 and max(abs(a - b) for a, b in zip(f32, bf16)) < 0.05,
         "f32 and another memory layout: nearly the same values in the same places")
    # files in, files out: with one key the output is V itself
    q, v = os.path.join(p.folder, "q.npy"), os.path.join(p.folder, "v.npy")
    npyfile.write(q, (1, 3, 2, 4), [0.5 * i for i in range(24)])
    npyfile.write(v, (1, 1, 2, 4), [0.25 * i - 1 for i in range(8)])
    out = p.fresh()
    done = p.run("--q", q, "--k", v, "--v", v, "--device", "cpu", "--save", out)
    p.ok(done.returncode == 0, "--q --k --v", done.stderr)
    _, values = npyfile.read(os.path.join(out, "o.npy"))
    p.ok(values == [0.25 * i - 1 for i in range(8)] * 3, "one key: O is V", values)
    # a mask of ones hides everything: zeros and -inf, never NaN
    mask = os.path.join(p.folder, "mask.npy")
    npyfile.write(mask, (3, 1), [1, 0, 1], "u1")
    done = p.run("--q", q, "--k", v, "--v", v, "--device", "cpu", "--save", out, "--mask", "full",
                 "--mask-file", mask)
    _, values = npyfile.read(os.path.join(out, "o.npy"))
    _, lse = npyfile.read(os.path.join(out, "lse.npy"))
    p.ok(done.returncode == 0 and values == [0.0] * 8 + [0.25 * i - 1 for i in range(8)] +
         [0.0] * 8 and [x == float("-inf") for x in lse] == [True, False, True] * 2,
         "--mask-file: 1 hides a key, a hidden row is 0 with lse -inf", (values, lse))
    if "v0_loops" in cpu: # its trace leaves out V of a hidden key, as it does
        npyfile.write(v, (1, 3, 2, 4), [0.25] * 16 + [float("nan")] * 4 + [0.25] * 4)
        done = p.run("--q", q, "--k", q, "--v", v, "--device", "cpu", "--causal", "--trace",
                     "--variant", "v0_loops", "--no-check")
        nan = [line.split()[0] for line in done.stdout.splitlines() if " nan" in line]
        p.ok(done.returncode == 0 and nan == ["v2", "q2"], "--trace: a hidden NaN stays out",
             done.stdout + done.stderr)
    if "  --backward" in page:
        out = p.fresh()
        done = p.run("-N", 5, "--device", "cpu", "--backward", "--save", out, "--variant", cpu[0])
        p.ok(done.returncode == 0 and sorted(os.listdir(out)) == gradients + ["lse.npy", "o.npy"],
             "--backward saves five files", done.stderr)


def check_cases(p, cpu):
    path, saved = p.fresh(".jsonl"), p.fresh()
    lines = p.cases("# a comment\n\n-N 5\n  -N 6 --causal\r\n-N 7 --dtype bf16 --mask full\n")
    done = p.run("--device", "cpu", "--variant", cpu[0], "-d", 8, "--cases", lines, "--json", path,
                 "--save", saved)
    rows = rows_of(path)
    p.ok(done.returncode == 0 and [(row["line"], row["Nq"], row["d"], row["mask"])
                                   for row in rows] ==
         [(3, 5, 8, "none"), (4, 6, 8, "causal-lower-right"), (5, 7, 8, "full")],
         "--cases: lines over the command line's flags", done.stderr)
    p.ok(sorted(os.listdir(saved)) == ["3", "4", "5"], "--save with --cases: a folder a line")
    path = p.fresh(".jsonl")  # neighbours may share a problem and its oracle, if it is the same
    lines = ["", "--seed 8", "--seed 8 --variant " + cpu[0], "--seed 8 --causal", "--seed 8", ""]
    p.run("--device", "cpu", "-N", 40, "--cases", p.cases("\n".join(f"-d 8 {x}" for x in lines)),
          "--json", path)
    worst = {row["line"]: row["bound_ratio"] for row in rows_of(path) if row["variant"] == cpu[0]}
    p.ok(len(worst) == 6 and worst[1] == worst[6] and worst[2] == worst[3] == worst[5] and
         len(set(worst.values())) == 3, "--cases: the same flags, the same errors", worst)
    lines = p.cases("-N 5\n-N 6 --q none.npy --k none.npy --v none.npy\n")
    done = p.run("--device", "cpu", "--cases", lines)
    p.ok(done.returncode == 2 and ".txt:2: " in done.stderr and "none.npy" in done.stderr,
         "a bad file in a line is exit 2 and names the line", done.stderr)
    lines = p.cases("-N 5 --variant " + cpu[0] + "\n-N 6 --device cuda\n")
    done = p.run("--cases", lines)
    p.ok(done.returncode in (0, 77), "a line without its hardware: 77 is the worst",
         done.returncode)


# What a program's variant skips, asked for by name; stage 01's take everything.
SKIPS = {"tiled_softmax": "--rows 4 --cols 5 --variant v4_fused_rows",
         "flash_forward": "-N 8 --softcap 5 --variant v5_own_heads",
         "flash_backward": "-N 8 --softcap 5 --variant v5_own_heads",
         "sliding_window": "-N 8 --variant v3_streaming",
         "ring_burst": "-N 8 -H 3 --variant ulysses"}


def check_refused_lines(p, cpu):
    """A line that is refused when its turn comes is no reason not to run the others. Twice the same
    one: what is kept from the line before must not take its number along."""
    path = p.fresh(".jsonl")
    files = "--q none.npy --k none.npy --v none.npy"
    refused = SKIPS.get(p.name, files)
    lines = p.cases(f"-N 5\n-N 6 {files}\n-N 7\n{refused}\n{refused}\n-N 9\n")
    done = p.run("--device", "cpu", "--variant", cpu[0], "--cases", lines, "--json", path)
    said = done.stderr.splitlines()
    p.ok(done.returncode == 2 and [row["line"] for row in rows_of(path)] == [1, 3, 6],
         "--cases: all lines run, and the exit status is the worst", (done.returncode, said))
    p.ok([line.split(": ")[:2] for line in said] == [[p.name, f"{lines}:{n}"] for n in (2, 4, 5)]
         and (p.name not in SKIPS or "skips" in said[1]), "each refusal names its line", said)
    done = p.run("--device", "cpu", "--cases", p.cases("-N 5\n-N x\n"))
    p.ok(done.returncode == 2 and not done.stdout, "a line that cannot be read ends it before "
         "anything runs", done.stdout)


def check_overflow(p):
    """Numbers that the dtype cannot hold are told once, whatever reads the file how often."""
    files = [os.path.join(p.folder, f"{name}.npy") for name in ("huge", "k")]
    npyfile.write(files[0], (1, 5, 3, 4), [1e300, -2e300] + [0.5] * 58, "f8")
    npyfile.write(files[1], (1, 5, 3, 4), [0.25] * 60)
    done = p.run("--q", files[0], "--k", files[1], "--v", files[1], "--no-check", "--dtype", "f32",
                 "--device", "cpu")
    p.ok(done.stderr.count("note: --q: 2 values are too large for f32 (the first is 1e+300)") == 1,
         "f8 values that overflow the dtype are told once", done.stderr)
    # just above a tie of 16 bits, by less than a float sees: rounded twice it would go down
    for dtype, bits in (("f16", 11), ("bf16", 8)):
        near, saved = 1 + 2.0 ** -bits + 2.0 ** -40, p.fresh()
        npyfile.write(files[0], (1, 1, 3, 4), [near, -near] * 6, "f8")
        done = p.run("--q", files[0], "--k", files[0], "--v", files[0], "--dtype", dtype,
                     "--device", "cpu", "--save", saved)
        _, values = npyfile.read(os.path.join(saved, "o.npy"))
        want = 1 + 2.0 ** (1 - bits)
        p.ok(done.returncode == 0 and values == [want, -want] * 6,
             f"f8 values become {dtype} in one rounding", values or done.stderr)
    # a NaN in V of the last key: the rows before it do not see it
    npyfile.write(files[0], (1, 5, 3, 4), [0.5] * 48 + [float("nan")] + [0.5] * 11)
    done = p.run("--q", files[1], "--k", files[1], "--v", files[0], "--causal", "--device", "cpu")
    p.ok(done.returncode == 0 and "wrong" not in done.stderr, "a NaN in a hidden V is no fault",
         done.stderr)
    if os.path.basename(p.path) == "naive":
        notes = [line for line in done.stderr.splitlines() if line.startswith("note: v")]
        p.ok(not any("v0_loops" in line for line in notes) and
             "note: v1_blas: 4 rows that do not see a non-finite key are not finite: 0 x NaN in a "
             "shared tile (O)" in notes, "v1_blas gives NaN there and a note says so, v0_loops "
             "leaves hidden keys out", done.stderr)


# --- outputs that nobody takes -------------------------------------------------------------------

def check_failed_save(p):
    """--save into a folder that vanishes under the hand cannot be tested without a race; a folder
    whose o.npy is itself a folder can: nothing may be half written."""
    saved = p.fresh()
    os.makedirs(os.path.join(saved, "lse.npy", "occupied"))
    done = p.run("-N", 5, "--device", "cpu", "--save", saved)
    p.ok(done.returncode == 3 and "--save: " in done.stderr and "lse.npy" in done.stderr,
         "a result that cannot be saved: exit 3", done.stderr)
    p.ok(os.listdir(saved) == ["lse.npy"], "and neither o.npy nor temporary files stay",
         os.listdir(saved))
    if os.path.exists("/dev/full"):
        done = p.run("-N", 5, "--device", "cpu", "--json", "/dev/full")
        p.ok(done.returncode == 3 and "--json" in done.stderr, "rows that a disk does not take",
             done.stderr)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([p.path, "-N", "5", "--device", "cpu"], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
        p.ok(done.returncode == 3 and "standard output" in done.stderr, "a table that nobody takes",
             done.stderr)
        for flag in ("--help", "--list", "--version"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([p.path, flag], stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=60)
            p.ok(done.returncode == 3 and "standard output" in done.stderr,
                 f"{flag} that nobody takes", done.stderr)
    rows = p.fresh(".jsonl")
    done = subprocess.run(f"exec '{p.path}' -N 5 --device cpu --json '{rows}' >&-", shell=True,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    with open(rows, encoding="utf-8") as f:
        p.ok(done.returncode == 3 and "standard output" in done.stderr and
             all(line[0] == "{" for line in f), "a closed output is not the first file's",
             done.stderr)
    done = p.run("-N", 5, "--device", "cpu", "--json", "/dev/null")
    p.ok(done.returncode == 0, "--json /dev/null", done.stderr)


def check_file_limit(p):
    """A limit on file sizes sends a signal that ends programs which do not expect it."""
    def limited(*flags):
        return subprocess.run(
            [p.path, "-N", "64", "--device", "cpu", *flags], capture_output=True, text=True,
            timeout=60, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99)))

    saved = p.fresh()
    os.mkdir(saved)
    done = limited("--save", saved)
    p.ok(done.returncode == 3 and "--save: " in done.stderr and "cannot be written" in done.stderr,
         "--save over the limit of file sizes", (done.returncode, done.stderr))
    p.ok(os.listdir(saved) == [], "and no temporary file stays", os.listdir(saved))
    rows = p.fresh(".jsonl")
    with open(rows, "w", encoding="utf-8") as f:
        f.write("{}\n")
    done = limited("--json", rows)
    p.ok(done.returncode == 3 and done.stderr.count("--json: ") == 1,
         "--json over the limit of file sizes", (done.returncode, done.stderr))
    with open(rows, encoding="utf-8") as f:
        p.ok(f.read() == "{}\n", "and no half row stays behind those that were there")


def check_beyond_float32(p):
    """Finite inputs with which float32 cannot reach the finite result: said so, and nobody is
    blamed."""
    folder = p.fresh()
    os.makedirs(folder)
    files = []
    for name in ("q", "k", "v"):
        path = os.path.join(folder, name + ".npy")
        npyfile.write(path, (1, 3, 1, 2), [1e30, 1e30, 0, -1e30, 1, 2])
        files += [f"--{name}", path]
    done = p.run(*files, "--device", "cpu")
    p.ok(done.returncode == 2 and done.stderr.count("overflows float32") == 1 and
         done.stderr.count("\n") == 1 and "wrong" not in done.stderr,
         "inputs that overflow float32 on the way", (done.returncode, done.stderr))
    if "  --do" in p.run("--help").stdout:  # gradients, asked for or always on
        flag = ["--backward"] if "  --backward" in p.run("--help").stdout else []
        done = p.run("-N", 64, "-d", 8, "--scale", "1e12", "--device", "cpu", *flag)
        p.ok(done.returncode == 2 and done.stderr.count("too large for their gradients") == 1 and
             done.stderr.count("\n") == 1, "scores too large for gradients to be judged",
             (done.returncode, done.stderr))
    if os.path.basename(p.path) != "sliding_window":
        return
    saved = p.fresh()
    done = p.run(*files, "--device", "cpu", "--qk-norm", 2, "--no-check", "--save", saved,
                 "--variant", "library")
    _, o = npyfile.read(os.path.join(saved, "o.npy"))
    p.ok(done.returncode == 0 and not all(map(math.isfinite, o)),
         "a norm that overflows gives no finite result", (o, done.stderr))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schema", required=True)
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    tap = Tap()
    for path in args.programs:
        with tempfile.TemporaryDirectory() as folder:
            p = Program(tap, path, folder)
            cpu = check_pages(p)
            check_default(p, cpu)
            check_json(p, cpu, args.schema)
            check_save(p, cpu)
            check_judge(p)
            check_cases(p, cpu)
            check_refused_lines(p, cpu)
            check_failed_save(p)
            check_file_limit(p)
            check_beyond_float32(p)
            check_overflow(p)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
