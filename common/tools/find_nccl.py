#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the folders of NCCL wheels (.../nvidia/nccl) on this Python's path, one a line."""
import pathlib
import sys

for entry in sys.path:
    folder = pathlib.Path(entry or ".") / "nvidia" / "nccl"
    if (folder / "include" / "nccl.h").is_file():
        print(folder.resolve())
