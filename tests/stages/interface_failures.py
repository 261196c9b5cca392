# SPDX-License-Identifier: MIT
"""interface_failures.py: outputs that nobody takes, for test_interface.py.

Interface: check_failed_save, check_file_limit. p is its Program.
"""
import os
import resource
import subprocess


def check_failed_save(p):
    """--save into a folder that vanishes under the hand cannot be tested without a race; a folder
    whose o.npy is itself a folder can: nothing may be half written."""
    saved = p.fresh()
    os.makedirs(os.path.join(saved, "lse.npy", "occupied"))
    done = p.run("-N", 5, "--device", "cpu", "--save", saved)
    p.ok(done.returncode == 2 and "lse.npy" in done.stderr, "a result that cannot be saved: exit 2",
         done.stderr)
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
    p.ok(done.returncode == 2 and "cannot be written" in done.stderr,
         "--save over the limit of file sizes", (done.returncode, done.stderr))
    p.ok(os.listdir(saved) == [], "and no temporary file stays", os.listdir(saved))
    done = limited("--json", p.fresh(".jsonl"))
    p.ok(done.returncode == 3 and "--json" in done.stderr, "--json over the limit of file sizes",
         (done.returncode, done.stderr))
