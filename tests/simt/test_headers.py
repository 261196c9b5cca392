#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every C file of this build that calls CUDA's runtime compiles with simt's headers; and a change
of what writes the programs' main files configures the build again.

usage: test_headers.py

./ladder test builds the small programs of simt only; ninja -C build/simt must build the rest too.
"""
import json
import shlex
import subprocess
import sys

from programs import build_folder
from tap import Tap


def main():
    tap, seen = Tap(), set()
    commands = json.loads((build_folder() / "compile_commands.json").read_text(encoding="utf-8"))
    for entry in commands:
        path = (build_folder() / entry["file"]).resolve()
        if path in seen or path.suffix != ".c" or not path.is_file():
            continue
        if "include <cuda" not in path.read_text("utf-8") or "pretend_cuda" in entry["command"]:
            continue  # the latter has headers of its own
        words = shlex.split(entry["command"])
        seen.add(path)
        words = [word for word in words if word not in ("-c", "ccache")]
        words[words.index("-o"):words.index("-o") + 2] = ["-fsyntax-only", "-Werror"]
        done = subprocess.run(words, cwd=entry["directory"], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, check=False)
        tap.ok(done.returncode == 0, f"{entry['file']} compiles", done.stdout)
    tap.ok(len(seen) > 2, f"{len(seen)} files call CUDA's runtime")
    files = (build_folder() / "meson-info/intro-buildsystem_files.json").read_text("utf-8")
    tap.ok("simt/programs/programs.py" in files and "tools/rungs.py" in files,
           "a change of programs.py or rungs.py configures again", files)
    sys.exit(tap.done())


if __name__ == "__main__":
    main()
