#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recorded rows follow sources that have changed while their machine code has not.

usage: carry_rows.py OLD_TREE [VARIANT...]

Code that moves to another header is other text and the same program. Compile both trees, compare
the machine code of every kernel and function that the rows are of, and only then give a row that
was recorded on the sources of OLD_TREE the hashes of today's. Rows that were older than those stay
as they are. VARIANT: "library cuda" or a rung's name; without names all variants are meant.

Interface:
- carried(line, old, new, variants): one line of a *.jsonl, with today's hashes where it is due.
  old, new: rows.hashes_now of two trees.
"""
import json
import pathlib
import sys

import rows
import source_hashes


def carried(line, old, new, variants=()):
    row = json.loads(line) if line.strip() else {}
    if "variant" not in row or "sha256" not in row:
        return line
    name = source_hashes.variant_key(row["variant"], row.get("device"))
    for (folder, variant), before in old.items():
        if (variant == name and folder.split("_", 1)[1].startswith(row["stage"]) and
                (folder, variant) in new and (not variants or variant in variants) and
                row.get("sources_sha256", before[1]) == before[1] and
                ("sources_sha256" in row or row["sha256"] == before[0])):
            for key, digest in zip(("sha256", "sources_sha256"), new[folder, variant]):
                line = line.replace(f'"{key}":"{row.get(key)}"', f'"{key}":"{digest}"')
    return line


def main(old_root, *variants):
    old, new = rows.hashes_now(old_root), rows.hashes_now(str(rows.ROOT))
    for path in sorted((pathlib.Path(rows.ROOT) / "docs" / "results").glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            lines = list(file)
        now = [carried(line, old, new, variants) for line in lines]
        if now != lines:
            path.write_text("".join(now), encoding="utf-8")
            print(f"{path.name}: {sum(a != b for a, b in zip(lines, now))} of {len(lines)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
