# SPDX-License-Identifier: MIT
"""tree.py: the files of this project.

Interface:
- ROOT; sources(*suffixes): tracked files with these suffixes; without git (a release archive) every
  file outside build*, out and peers.
"""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
C_LIKE = (".c", ".h", ".cpp", ".cu", ".cuh")
NOT_OURS = ("build", "out", "peers", ".git", ".")


def sources(*suffixes):
    run = subprocess.run(["git", "-C", str(ROOT), "ls-files"],
                         capture_output=True, text=True, check=False)
    if run.returncode == 0 and run.stdout:
        names = run.stdout.splitlines()
    else:
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file()]
        names = [n for n in names if not n.startswith(NOT_OURS) or n.startswith(".ci/")]
    wanted = [n for n in names if n.endswith(suffixes) and (ROOT / n).is_file()]
    return sorted(set(wanted))
