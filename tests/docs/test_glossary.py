#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The glossary has each term once, explained and in order, and a lesson or a lab note uses it. That
the links lead somewhere is docs_links; that each stands at a first use is docs_drift."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common/tools")]
import docs_check  # noqa: E402
import glossary  # noqa: E402
from tap import Tap  # noqa: E402


def main():
    tap = Tap()
    found = glossary.problems("### lane\n\nA.\n\n### Lane\n\nB.\n\n### arch\n\nC.\n\n### zone\n")
    tap.ok(found == ["'lane' stands there twice", "'arch' comes behind 'Lane'",
                     "'zone' has no explanation"], "what is wrong with a glossary is told", found)
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
