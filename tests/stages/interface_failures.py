# SPDX-License-Identifier: MIT
"""interface_failures.py: outputs that nobody takes, for test_interface.py.

Interface: check_failed_save, check_file_limit, check_beyond_float32. p is its Program.
"""
import math
import os
import resource
import subprocess

import npyfile


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
    p.ok(done.returncode == 3 and done.stderr.count("overflows float32") == 1 and
         "wrong" not in done.stderr, "inputs that overflow float32 on the way", done.stderr)
    if os.path.basename(p.path) != "sliding_window":
        return
    saved = p.fresh()
    for variant in ("v0_offline_mask", "v2_window_tiles"):
        done = p.run(*files, "--device", "cpu", "--qk-norm", 2, "--no-check", "--save", saved,
                     "--variant", variant)
        _, o = npyfile.read(os.path.join(saved, "o.npy"))
        p.ok(done.returncode == 0 and not all(map(math.isfinite, o)),
             f"{variant}: a norm that overflows gives no finite result", (o, done.stderr))
