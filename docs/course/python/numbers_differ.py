# SPDX-License-Identifier: MIT
"""numbers_differ.py: the numbers of docs/numbers_differ.md, recorded.

usage: numbers_differ.py BUILD > docs/results/numbers_differ_cpu.txt      needs torch and numpy

Runs judge_torch.py and v1_blas on the same inputs, compares what they give, and asks the judge
about each. BUILD: a build folder with the programs.
"""
import datetime
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAIVE = pathlib.Path(sys.argv[1]).resolve() / "01_naive" / "naive"


def made(folder, name, library, *flags):
    """The outputs of judge_torch.py, and the flags with which the program reads the same inputs."""
    place = pathlib.Path(folder, name)
    said = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("judge_torch.py"),
                           library, place, *flags], capture_output=True, text=True, check=True)
    words = said.stdout.split()
    return place, words[1:words.index("--judge")]


def judged(place, inputs):
    """(error / bound of the worst number, what the judge says of a wrong one)"""
    done = subprocess.run([NAIVE, *inputs, "--judge", place], capture_output=True, text=True,
                          check=False)
    row = re.search(r"^--judge +cpu +\S+ +(\S+)", done.stdout, re.M)
    return float(row[1]), done.stderr.replace(f"{place}/", "")


def ours(folder, name, inputs):
    place = pathlib.Path(folder, name)
    subprocess.run([NAIVE, *inputs, "--device", "cpu", "--variant", "v1_blas", "--save", place],
                   capture_output=True, check=True)
    return place


def compare(what, a, b):
    a, b = (np.load(place / "o.npy").ravel() for place in (a, b))
    far = np.abs(a - b)
    relative = (far / np.maximum(np.abs(b), 1e-30)).max()
    print(f"{what:<36}{far.max():>12.1e}{np.count_nonzero(far):>10,} of {a.size:,}"
          f"{100 * relative:>13,.0f} %")


def compare_all(folder):
    print("compared, N = 512, 4 heads, d = 64    largest     numbers that       largest, of\n"
          "                                   difference           differ        the number")
    for dtype, words in (("f32", ()), ("bf16", ("--dtype", "bf16"))):
        sdpa, inputs = made(folder, f"sdpa-{dtype}", "sdpa", *words)
        flex, _ = made(folder, f"flex-{dtype}", "flex", *words)
        compare(f"{dtype}: PyTorch's SDPA and v1_blas", sdpa,
                ours(folder, f"blas-{dtype}", inputs))
        compare(f"{dtype}: SDPA and flex_attention", sdpa, flex)


def judge_all(folder):
    print(f"\n{'error / bound of the worst number':<36}" + "".join(
        f"{name:>14}" for name in ("f32", "f32, causal", "bf16", "bf16, causal")))
    for title, library, more in (("SDPA", "sdpa", ()), ("flex_attention", "flex", ()),
                                 ("SDPA, the last key dropped", "sdpa", ("--drop-key",))):
        found = [judged(*made(folder, "judged", library, *dtype, *mask, *more))[0]
                 for dtype in ((), ("--dtype", "bf16")) for mask in ((), ("--causal",))]
        print(f"{title:<36}" + "".join(f"{ratio:>14.2g}" if ratio < 1 else f"{ratio:>14.0f}"
                                       for ratio in found))


def guess(folder):
    words = ("--dtype", "bf16", "-N", "4096", "-H", "1")
    whole, _ = made(folder, "whole", "sdpa", *words)
    less, inputs = made(folder, "less", "sdpa", *words, "--drop-key")
    a, b = (np.load(place / "o.npy") for place in (whole, less))
    print("\nbf16, N = 4096, 1 head, the last key dropped: allclose finds")
    for bar in (1e-2, 2e-2):
        print(f"    {np.count_nonzero(~np.isclose(b, a, atol=bar, rtol=bar)):,} of {a.size:,} "
              f"numbers at atol = rtol = {bar:g}")
    print("and the judge\n" + judged(less, inputs)[1].rstrip())


def main():
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    print(f"# {cpu}, {torch.get_num_threads()} threads; PyTorch {torch.__version__} on the CPU, "
          f"inputs of seed 0; {datetime.date.today()}.\n"
          "# Command: python3 docs/course/python/numbers_differ.py build/demo\n")
    with tempfile.TemporaryDirectory() as folder:
        compare_all(folder)
        judge_all(folder)
        print("\nSDPA, bf16, the last key dropped; the judge says\n" +
              judged(*made(folder, "dropped", "sdpa", "--dtype", "bf16", "--drop-key"))[1].rstrip())
        guess(folder)


if __name__ == "__main__":
    main()
