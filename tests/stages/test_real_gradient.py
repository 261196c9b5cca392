#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_real_gradient.py: every variant of stage 04 on the gradient of a training step.

    test_real_gradient.py PROGRAM [--device cpu|cuda]

The rows of common/tools/gradient_rows.py have to say what the lab note says of them: all variants
are right in every dtype; float16 alone loses most rows of dQ although each element is within its
bound, because so small a number has no bits there; times 2^16 it does not; bfloat16 has no such
trouble.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "common", "tools")]
import gradient_rows
from tap import Tap


def test_figures(tap):
    """The figures of a row, on values that a reader can check."""
    zero, subnormal = gradient_rows.underflow([1.0, 2.0 ** -15, 2.0 ** -25, 0.0])
    tap.ok((zero, subnormal) == (0.25, 0.25), "2^-15 is subnormal, 2^-25 is lost, zero is no loss",
           (zero, subnormal))
    right = [3.0, 4.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0]
    median, lost = gradient_rows.compare([6.0, 8.0, 9.0, 9.0, 2.0, 0.0, 0.0, 5.0], right, 2, 2)
    tap.ok(median == 0.0 and lost == 1 / 3, "one row of three is a quarter too long",
           (median, lost))
    median, lost = gradient_rows.compare([0.0] * 8, right, 2, 1)
    tap.ok((median, lost) == (1.0, 1.0), "zeros are off by all of a row", (median, lost))


def test_rows(tap, program, device):
    rows = list(gradient_rows.rows(program, device))
    found = [(row["variant"], row["dtype"], row["loss_scale"]) for row in rows]
    on_gpu = [name for name, _ in gradient_rows.variants_of(program, "cuda")]
    tap.ok("v13_fused_delta" in on_gpu and "v14_cluster_pair" not in on_gpu,
           "a rung for d = 256 alone is not asked for d = 64", on_gpu)
    wanted = [(name, dtype, scale) for dtype, scale in gradient_rows.RUNS
              for name, dtypes in gradient_rows.variants_of(program, device) if dtype in dtypes]
    tap.ok(found == wanted and len(found) >= 4, f"{len(found)} runs: variants, dtypes, loss scales",
           found)
    limits = {("f32", 1): (0.0, 0.01), ("bf16", 1): (0.0, 0.1), ("f16", 1): (0.3, 1.0),
              ("f16", 2 ** 16): (0.0, 0.02)}
    for row in rows:
        low, high = limits[row["dtype"], row["loss_scale"]]
        label = f"{row['variant']} {row['dtype']} times {row['loss_scale']}"
        tap.ok(row["pass"] is True and 0 < row["bound_ratio"] < 1 and row["nonfinite"] == 0 and
               row["input"] == "bundled-causal" and row["mask"] == "causal-lower-right",
               f"{label}: right, {row['bound_ratio']:.3f} of the bound", row)
        tap.ok(low <= row["dQ_rows_lost"] <= high,
               f"{label}: {row['dQ_rows_lost']:.1%} of dQ's rows lost, {row['dO_zero']:.1%} of dO",
               (low, high))
        if row["dtype"] == "f32":
            tap.ok(max(row[f"{name}_error_median"] for name in gradient_rows.GRADIENTS) < 1e-5,
                   f"{label}: agrees with the first")
    return rows


def main():
    program = os.path.abspath(sys.argv[1])
    device = sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else "cpu"
    tap = Tap()
    test_figures(tap)
    done = subprocess.run([sys.executable, gradient_rows.__file__, "/nowhere"], capture_output=True,
                          text=True, check=False)
    tap.ok(done.returncode == 2 and done.stderr == "gradient_rows.py: /nowhere: No such file or "
           "directory\n", "no such program", done.stderr)
    tiny = [program, "--device", device, "-N", "1", "-H", "1", "-d", "1", "--quiet"]
    if subprocess.run(tiny, capture_output=True, timeout=120, check=False).returncode == 77:
        tap.skip("rows of the real gradient", f"no {device} device here")
        return tap.done()
    test_rows(tap, program, device)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
