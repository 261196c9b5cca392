#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_fit.py: does fit_ring.py find the speeds that made-up runs were made with?

    test_ring_fit.py RING_ASK

Runs of 1, 2 and 4 ranks are told by the model with known speeds and a little noise; those of 8
must be predicted within some percent. Rows that are wrong, of another device or with faults must
not count. Then what cannot be asked. With ATTN_TEST_QUICK without the fits (the questions run the
same code).
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "common" / "tools")]
import fit_ring  # noqa: E402
from tap import Tap  # noqa: E402

SPEEDS = {"flops_forward": 500e12, "flops_backward": 350e12, "call_s": 2e-5, "memory": 3e12,
          "latency_inner": 4e-5, "bandwidth_inner": 120e9, "masked_keys": 100,
          "latency_outer": 1e-4, "bandwidth_outer": 40e9, "pass_s": 5e-5, "post_s": 2e-5,
          "block_s": 1e-5, "scattered": 1.7, "places_forward": 132,
          "places_backward": 132}
FITTED_SHAPES = ((1024, 2), (8192, 8))  # tokens of a rank, kv heads


def row_of(method, ranks, tokens, Hkv, **more):
    N = ranks * tokens
    return {"stage": "ring_burst", "variant": method, "method": method, "layout": "zigzag",
            "device": "cuda", "transport": "nccl", "ranks": ranks, "nodes": 1, "B": 1, "H": 8,
            "Hkv": Hkv, "Nq": N, "Nk": N, "d": 128, "mask": "causal-lower-right",
            "window": [-1, 0], "dtype": "bf16", "backward": True, "inject": None, "sequences": 1,
            "outer_bytes": 0, "pass": True, **more}


def made_up(model, noise):
    rows = [row_of(method, ranks, tokens, Hkv) for ranks in (1, 2, 4, 8)
            for tokens, Hkv in FITTED_SHAPES for method in ("ring", "burst", "allgather")]
    rng = random.Random(6)
    for row, told in zip(rows, model.ask(SPEEDS, [fit_ring.question_of(r) for r in rows])):
        row["ms_med"], row["ms_backward_med"] = [ms * (1 + noise * rng.uniform(-1, 1))
                                                 for ms in told]
    bad = dict(rows[0], ms_med=1e-9, ms_backward_med=1e-9)
    return rows + [dict(bad, **{"pass": False}), dict(bad, device="cpu"),
                   dict(bad, inject="drop@1:2"), dict(bad, stage="naive")]


def run(*words):
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False,
                          timeout=300)


def test_fit(tap, program, folder):
    model = fit_ring.Model(program)
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in made_up(model, 0.01)))
    model.close()
    rates = folder / "rates.txt"
    done = run(sys.executable, ROOT / "common/tools/fit_ring.py", program, rows, "--rates", rates)
    tap.ok(done.returncode == 0 and "predicted:" in done.stdout, "it runs", done.stderr)
    last = done.stdout.strip().split("\n")[-1]
    tap.ok(last.startswith("worst prediction off by") and float(last.split()[-2]) < 5,
           "8 ranks are predicted within 5 % from 1, 2 and 4", done.stdout)
    tap.ok(done.stdout.count(" backward ") == 24 and "1e-09" not in done.stdout,
           "rows that do not count do not count", done.stdout)
    found = {line.split()[0]: float(line.split()[1])
             for line in rates.read_text().split("\n") if line and line[0] != "#"}
    for name in ("flops_forward", "flops_backward", "bandwidth_inner"):
        tap.ok(abs(found[name] / SPEEDS[name] - 1) < 0.15, f"{name} is found",
               f"{found[name]:.4g}, made with {SPEEDS[name]:.4g}")
    rows.write_text("")
    done = run(sys.executable, ROOT / "common/tools/fit_ring.py", program, rows)
    tap.ok(done.returncode == 2 and "no rows to fit" in done.stderr, "nothing to fit", done.stderr)


def test_two_gpus(tap, program, folder):
    """As recorded where more GPUs cannot be had: kernels from one, links from few tokens on two."""
    model = fit_ring.Model(program)
    rows = [row_of("ring", 1, n, 8, link="nccl") for n in (4096, 8192, 16384, 32768)]
    rows += [row_of(method, 2, n, 8, link=link) for n in (2048, 4096, 8192, 32768)
             for method in ("ring", "ulysses") for link in ("nccl", "copy")]
    for row, told in zip(rows, model.ask(SPEEDS, [fit_ring.question_of(r) for r in rows])):
        slower = 3 if row["link"] == "copy" else 1
        row["ms_med"], row["ms_backward_med"] = [slower * ms for ms in told]
    model.close()
    path = folder / "two.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    tool = (sys.executable, ROOT / "common/tools/fit_ring.py", program, path)
    for words, held, limit in ((("--hold", "ranks=2 N>=16384"), 8, 5), ((), 16, 60)):
        done = run(*tool, "--only", "link=nccl", *words)
        predicted, _, worst = done.stdout.partition("predicted:")[2].partition("worst ")
        worst = worst.split()[3:]
        tap.ok(done.returncode == 0 and predicted.count("ward ") == held and worst
               and float(worst[0]) < limit, f"{held} numbers predicted within {limit} %",
               done.stdout + done.stderr)
    done = run(*tool, "--hold", "ranks=2 N>=16384")
    tap.ok(done.returncode == 0 and float(done.stdout.partition("off by ")[2].split()[0]) > 20,
           "links that are not alike do not fit one model", done.stdout)
    done = run(*tool, "--only", "speed")
    tap.ok(done.returncode == 2 and "filter 'speed'" in done.stderr, "no such filter", done.stderr)


def test_alone(tap, program, folder):
    """The kernel alone is known whatever is held out, once a size; one rank belongs to any link."""
    model = fit_ring.Model(program)
    rows = [row_of("ring", 1, 8192, 8, link="nccl"), row_of("ring", 2, 2048, 8, link="nccl"),
            row_of("ring", 2, 2048, 8, link="copy"), row_of("ring", 2, 8192, 8, link="copy")]
    asked = model.ask(SPEEDS, [fit_ring.question_of(r) for r in rows])
    kernel = model.ask(SPEEDS, [f"alone {n} 32 8 128 bf16" for n in (8192, 2048, 2048, 8192)])
    model.close()
    for row, told, alone in zip(rows, asked, kernel):
        row["ms_med"], row["ms_backward_med"] = told
        row["alone_ms"], row["alone_ms_backward"] = [alone[0]] * 3, [alone[1]] * 3
    path = folder / "alone.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    done = run(sys.executable, ROOT / "common/tools/fit_ring.py", program, path, "--link", "copy")
    known, _, held = done.stdout.partition("predicted:")
    tap.ok(done.returncode == 0 and known.count("alone ") == 4 and known.count("ring ") == 2
           and held.count("ring ") == 4,
           "two sizes alone, one rank known, two rows of the link held",
           done.stdout + done.stderr)
    tap.ok(12 < kernel[0][1] / kernel[1][1] < 16, "four times the tokens: sixteen times the pairs, "
           "less what each call and pass cost", str(kernel))


def test_lanes(tap, program):
    """Halves of 2048 tokens do not fill the GPU, and share it: but not with a fixed order."""
    model = fit_ring.Model(program)
    rows = [row_of(method, 2, 2048, 8, H=32, deterministic=fixed)
            for method in ("ring", "burst") for fixed in (False, True)]
    ring, fixed_ring, burst, fixed_burst = [
        told[1] for told in model.ask(SPEEDS, [fit_ring.question_of(r) for r in rows])]
    model.close()
    tap.ok(ring < 0.8 * fixed_ring and burst == fixed_burst,
           "halves of ring share a GPU, but with --deterministic they do not",
           f"ring {ring} and {fixed_ring}, burst {burst} and {fixed_burst}")


def test_refusals(tap, program):
    done = run(program, "--help")
    tap.ok(done.returncode == 2 and "--help" in done.stderr and done.stderr.count("\n") == 1,
           "flags are refused", done.stderr)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([program], input="alone 8 4 2 8 f32\n", stdout=full,
                                  stderr=subprocess.PIPE, text=True, check=False, timeout=60)
        tap.ok(done.returncode == 3 and "standard output" in done.stderr, "nobody takes the answer",
               done.stderr)
    good = "run ring zigzag 4 1 1 2 1 8 8 4 -1 0 f32 1 0"
    for question, why in ((good, ""), (good.replace("4 1 1", "4 3 1"), "--nodes"),
                          (good.replace(" 2 1 ", " 3 2 "), "question"),
                          (good.replace("-1", "-2"), "question"), ("rate memory nan", "question"),
                          (good.replace("8 8", f"8 {2 ** 62}"), "question"), (" ", "question"),
                          (good.replace("4 1 1", f"{2 ** 32 + 4} 1 1"), "question"),
                          (good.replace("8 8 4", " ".join([str(2 ** 26)] * 3)), "question"),
                          (good.replace("1 0", "1 2"), "question"), (good + " 0", "question"),
                          (good.replace("-1", str(2 ** 63 - 1)), "question"),
                          ("rate memory inf", "question"), ("rate memory 1 2", "question"),
                          (good[:-2], "question"), ("alone 8 4 2 8 f32", ""),
                          ("alone 8 4 2 8 f32 1", "question"),
                          ("alone 8 4 3 8 f32", "question"),
                          ("alone 0 4 2 8 f32", "question"), ("alone 8 4 2 8 f99", "question")):
        done = subprocess.run([program], input=question + "\n", capture_output=True,
                              text=True, check=False, timeout=60)
        tap.ok(done.returncode == (2 if why else 0) and why in done.stderr
               and done.stderr.count("\n") == bool(why), f"asked: {question}", done.stderr)


def test_fit_refusals(tap, program, folder):
    """A model that cannot be asked, and rows that say too little: one sentence, exit 2."""
    path, bad = folder / "few.jsonl", folder / "bad.jsonl"
    rows = [row_of("ring", ranks, 1024, 2, ms_med=1.0) for ranks in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad.write_text("".join(json.dumps({**row, "B": "x"}) + "\n" for row in rows))
    for model, file, said in (("/nowhere", path, "/nowhere: No such file"),
                              ("/bin/false", path, "the model has no answer"),
                              (program, bad, "bad.jsonl:1: B: found"),
                              (program, folder / "none", "none: No such file")):
        done = run(sys.executable, ROOT / "common/tools/fit_ring.py", model, file, "--all")
        tap.ok(done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1,
               f"fit_ring.py: {said}", done.stdout + done.stderr)


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        if not os.environ.get("ATTN_TEST_QUICK"):
            test_fit(tap, sys.argv[1], pathlib.Path(folder))
            test_two_gpus(tap, sys.argv[1], pathlib.Path(folder))
            test_alone(tap, sys.argv[1], pathlib.Path(folder))
        test_fit_refusals(tap, sys.argv[1], pathlib.Path(folder))
    test_lanes(tap, sys.argv[1])
    test_refusals(tap, sys.argv[1])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
