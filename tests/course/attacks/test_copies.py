#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_copies.py: copies of a public solution in disguise, and honest solutions.

    test_copies.py BUILD

Each disguise is compiled as ./ladder grade compiles and compared as it compares. Without the text
that the preprocessor left, or without the second containment, some of them look honest.
"""
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / path) for path in ("tests", "common/tools", "common/course")]
import grade
import similarity
from tap import Tap

SOLUTIONS = HERE.parent / "solutions"
COPY = (SOLUTIONS / "2_flash_forward.c").read_text(encoding="utf-8")
WORDS = ("for", "if", "const", "float", "int", "return", "static", "double", "void")
KEYWORDS = "".join(f"#define K{word} {word}\n" for word in WORDS)
# not in the lines of directives
DISGUISED = "\n".join(line if line.lstrip().startswith("#") else
                      re.sub(rf"\b({'|'.join(WORDS)})\b", r"K\1", line)
                      for line in COPY.split("\n"))
DEAD = "".join(f"static int unused_{n}(int a, int b) {{ return a * {n} + b % {n + 3}; }}\n"
               for n in range(200))
# name, text; each is the copy
COPIES = [
    ("as it is", COPY),
    ("renamed", re.sub(r"\b(tile|alpha|keys|rows)\b", r"my_\1", COPY)),
    ("#if 0 and #endif before it", f"#if 0\n{DEAD}#endif\n{COPY}"),
    ("270,000 semicolons before it", ";" * 270000 + "\n" + COPY),
    ("macros for keywords", KEYWORDS + DISGUISED),
    ("macros for keywords, in a file that includes itself", '#ifndef ONCE\n#define ONCE\n'
     f'#include "./mine.c"\n#else\n{KEYWORDS}{DISGUISED}\n#endif\n'),
    ("dead code in front", DEAD + COPY),
    ("dead code behind", COPY + DEAD),
]
# name, text, what the student is told
REFUSED = [
    ("4 MB of declarations before it", "extern int nothing;\n" * 200000 + COPY,
     "KiB, accepted are"),
    ("a bomb of macros",
     "#define A x x x x x x x x x x x x x x x x\n#define x B B B B B B B B B B\n"
     "#define B C C C C C C C C C C\n#define C D D D D D D D D D D\n#define D E E E E E E E E E E\n"
     "#define E F F F F F F F F F F\n#define F ;;;;;;;;;;;;;;;;\nA A\n",
     "ile size limit|did not finish"),
    ("lines that say they are a header's", f'#line 1 "/usr/include/stdio.h"\n{COPY}',
     "line directives"),
    ("the same, in disguise", f'%:/**/\\\nline 1 "/usr/include/stdio.h"\n{COPY}',
     "line directives"),
    ("the same behind a raw string",
     f'const char *a = R"(\n/*\n)";\n#line 1 "/usr/a.h"\n// */\n{COPY}',
     "raw strings"),
]
HONEST = 0.4


def main():
    tap, build = Tap(), pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        names = []
        honest = sorted(SOLUTIONS.glob("[1-9]_*.c"))
        for number, text in enumerate([text for _, text, *_ in COPIES + REFUSED]):
            names.append(str(place / f"{number}.c"))
            pathlib.Path(names[-1]).write_text(text, encoding="utf-8")
        (place / "out").mkdir()
        compiled = grade.compile_all(names, build, place / "out", 2, "strict")
        for (name, _, pattern), one in zip(REFUSED, compiled[len(COPIES):]):
            tap.ok(not one.library and not one.skipped and re.search(pattern, one.error),
                   f"refused: {name}", f"{one.error} {one.said[:300]}")
        results = [{"submission": name} for name in names]
        grade.add_similarity(results, {path: (path, one.text) for path, one in zip(names, compiled)
                                       if one.library})
        for (name, _), result, one in zip(COPIES, results, compiled):
            found = result["similarity"] or {}
            tap.ok(found and found["repository"]["share"] >= 0.9 and
                   found["repository"]["file"].endswith("2_flash_forward.c"),
                   f"a copy: {name}", f"{found} {one.error}")
        tap.ok(all(result["similarity"] is None and result["similarity_why"] == "it did not compile"
                   for result in results[len(COPIES):]), "what was not read has no number")
        stub = str(ROOT / "docs/course/6_cuda_forward/stub.cu")
        results = [{"submission": name} for name in ("a", "b")]
        grade.add_similarity(results, {name: (stub, "") for name in ("a", "b")})
        tap.ok(all(result["similarity_why"].startswith("it has 0 fingerprints of its own")
                   for result in results), "a stub counts for nobody, in CUDA either", str(results))
        # an honest solution is no copy of another assignment's, nor of the rungs
        given = [similarity.read(path) for pattern in ("include/*.h", "*/stub.*")
                 for path in (ROOT / "docs" / "course").glob(pattern)]
        known = set().union(*map(similarity.fingerprints, given))
        public = similarity.repository(ROOT, (".c", ".h"))
        for path in honest:
            own = similarity.fingerprints(similarity.read(path)) - known
            others = [(name, marks) for name, marks in public
                      if not name.startswith("tests/course/")]
            found = similarity.share([own], others)
            tap.ok(found[0] <= HONEST, f"honest: {path.name}", str(found))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
