#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The glossary has each term once, explained and in order, and lessons link a term where their
prose uses it first. That the links lead somewhere is docs_links; that the committed pages have
them is docs_drift."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common/tools")]
import docs_check  # noqa: E402
import glossary  # noqa: E402
from tap import Tap  # noqa: E402

WORDS = ("# Glossary\n\n### full tile\n\nAll visible.\n\n### lane\n\nOne.\n\n"
         "### tile\n\nA part.\n")
PAGES = [
    ("the first use, in the plural", "Two tiles, a tile.",
     "Two [tiles](glossary.md#tile), a tile."),
    ("the longer term first", "A full tile, a tile.",
     "A [full tile](glossary.md#full-tile), a [tile](glossary.md#tile)."),
    ("a term over two lines", "A full\ntile.", "A [full\ntile](glossary.md#full-tile)."),
    ("no part of a word, no file, no call", "tiled, tile.h, tile(x), a.tile, tile-wise",
     "tiled, tile.h, tile(x), a.tile, tile-wise"),
    ("no code, formula, heading, table or comment",
     "# A tile\n\n`tile` $tile$\n```c\ntile\n```\n| tile |\n<!-- tile -->\n",
     "# A tile\n\n`tile` $tile$\n```c\ntile\n```\n| tile |\n<!-- tile -->\n"),
    ("no indented code", "Loop:\n\n    tile = 1\n    a tile\n\nA tile.",
     "Loop:\n\n    tile = 1\n    a tile\n\nA [tile](glossary.md#tile)."),
    ("nothing that the docs tool inserts", "<!-- run: x -->\ntile\n<!-- /run --> A tile.",
     "<!-- run: x -->\ntile\n<!-- /run --> A [tile](glossary.md#tile)."),
    ("no other link", "[a tile](x.md) and a tile", "[a tile](x.md) and a [tile](glossary.md#tile)"),
    ("a link that is not at the first use any more moves", "A tile, a [tile](glossary.md#tile).",
     "A [tile](glossary.md#tile), a tile."),
    ("a bracket of a formula in front", "in $[0, 1)$ a [lane](glossary.md#lane)",
     "in $[0, 1)$ a [lane](glossary.md#lane)"),
]


def main():
    tap = Tap()
    for name, page, wanted in PAGES:
        found = glossary.link_first_uses(page, WORDS)
        tap.ok(found == wanted, f"links: {name}", found)
    found = glossary.link_first_uses("A [tile](glossary.md#tile).", WORDS, "../glossary.md")
    tap.ok(found == "A [tile](../glossary.md#tile).", "a page in a folder has its own path", found)
    for name, text, wanted in (
            ("a term twice", WORDS + "\n### Tile\n\nAgain.\n", "'tile' stands there twice"),
            ("a wrong order", WORDS + "\n### arch\n\nIt.\n", "'arch' comes behind 'tile'"),
            ("no explanation", WORDS + "\n### zone\n", "'zone' has no explanation")):
        tap.ok(wanted in glossary.problems(text), f"found: {name}", glossary.problems(text))
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    tap.ok(not glossary.problems(text), "docs/glossary.md", "\n".join(glossary.problems(text)))
    tap.ok(set(glossary.terms(text)) <= docs_check.heading_anchors(text),
           "its anchors are GitHub's")
    docs = ROOT / "docs"
    pages = [page for pattern in ("0[0-9]_*.md", "0[0-9]_*/*.md", "lab/*.md")
             for page in sorted(docs.glob(pattern))]
    linked = {a for page in pages for a in glossary.terms(text)
              if f"glossary.md#{a})" in page.read_text(encoding="utf-8")}
    stages = {page.relative_to(docs).parts[0][:2] for page in pages}
    tap.ok({f"0{n}" for n in range(7)} <= stages, "pages of all stages are looked at")
    unused = sorted(set(glossary.terms(text)) - linked)
    tap.ok(not unused, "every term is used by a lesson or a lab note", " ".join(unused))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
