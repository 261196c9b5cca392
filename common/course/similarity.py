#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""similarity.py: how much of a submission stands elsewhere: in this repository, in the class.

    similarity.py [--handout DIR] FILE...          a JSON object a file, a line each

A source is read as tokens: comments, blanks, #include, #if and #pragma lines are dropped, every
name that is no keyword of C is the same token, so are all numbers and all strings. Renaming and new
comments change nothing. Each run of RUN tokens is hashed; of each WINDOW neighbouring hashes the
least is kept (winnowing: Schleimer, Wilkerson and Aiken, SIGMOD 2003), so that texts that share
WINDOW + RUN - 1 tokens share a fingerprint, wherever it stands. What the handout gives to everybody
(stubs, headers) counts for nobody.

The share is that of the submission's own fingerprints. Two honest solutions of a short function
share much: look at the texts before you say anything.

Whoever wrote the text may want this program to take hours. So each kind of token is found in linear
time, a string or a comment without its end too, and no more than MOST_BYTES of a file and
MOST_TOKENS of a text are read.

Interface:
- tokens(text), exact_tokens(text): with and without names made equal.
- fingerprints(text) -> set; runs(words, length) -> set of tuples.
- repository(root, suffixes) -> {path: fingerprints} of all solutions of the repository.
- fields(submissions, root, handout) -> {name: {"repository": {"share", "file"},
  "class": {"share", "with"}}}; submissions: {name: text}; handout: texts that everybody has.
"""
import argparse
import collections
import itertools
import json
import pathlib
import re
import sys
import zlib

RUN, WINDOW = 20, 8
MOST_BYTES, MOST_TOKENS = 4 << 20, 256 << 10
# a polynomial over the tokens, modulo a prime: the oldest token leaves, a new one comes
BASE, MODULUS = 0x1F3D5B79, (1 << 61) - 1
OLDEST = pow(BASE, RUN, MODULUS)
KEYWORDS = frozenset("""auto break case char const continue default do double else enum extern float
for goto if inline int long register restrict return short signed sizeof static struct switch
typedef union unsigned void volatile while __global__ __device__ __shared__""".split())
# what may lack its end ends with the line or the text: a search that fails would begin again at the
# next sign
TOKEN = re.compile(r"""/\*.*?(?:\*/|\Z)|//[^\n]*|\#[ ]*(?:include|if|else|endif|pragma)[^\n]*
    |(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>->|\+\+|--|<<=|>>=|<<|>>|[-+*/%&|^<>=!]=|&&|\|\||\S)""", re.S | re.X)
SOURCES = (".c", ".h", ".cu", ".cuh")
SOLUTIONS = ("0?_*/cpu/*", "0?_*/cuda/*", "common/attention/[bfw]*/**/*", "06_ring_burst/**/*",
             "docs/learn/solutions/*", "tests/course/solutions/*", "tests/course/submissions/*")


def matches(text):
    return itertools.islice(TOKEN.finditer(text), MOST_TOKENS)


def exact_tokens(text):
    """The tokens as they stand, without comments and directives but #define."""
    return [found[0] for found in matches(text) if found.lastgroup]


def tokens(text):
    """The tokens with names, numbers and strings made equal."""
    words = []
    for found in matches(text):
        kind = found.lastgroup
        if kind == "name":
            words.append(found[0] if found[0] in KEYWORDS else "name")
        elif kind:
            words.append(found[0] if kind == "sign" else kind)
    return words


def runs(words, length):
    return {tuple(words[at:at + length]) for at in range(len(words) - length + 1)}


def fingerprints(text):
    words = [zlib.crc32(word.encode()) for word in tokens(text)]
    hashes, rolling = [], 0
    for at, word in enumerate(words):
        rolling = (rolling * BASE + word) % MODULUS
        if at >= RUN:
            rolling = (rolling - words[at - RUN] * OLDEST) % MODULUS
        if at >= RUN - 1:
            hashes.append(rolling)
    kept = collections.deque()  # places of a rising run of hashes: the first is the least
    marks = set()
    for at, value in enumerate(hashes):
        while kept and hashes[kept[-1]] >= value:
            kept.pop()
        kept.append(at)
        if kept[0] <= at - WINDOW:
            kept.popleft()
        if at >= min(WINDOW, len(hashes)) - 1:
            marks.add(hashes[kept[0]])
    return marks


def read(path):
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).decode(errors="replace")


def repository(root, suffixes=SOURCES):
    """Fingerprints of everything in the repository that solves an assignment or a part of it."""
    root = pathlib.Path(root)
    files = {path for pattern in SOLUTIONS for path in root.glob(pattern)
             if path.suffix in suffixes and path.is_file()}
    return {str(path.relative_to(root)): fingerprints(read(path)) for path in sorted(files)}


def share(own, others):
    """(share of `own`, name) of the most similar of the others; (0, None): nothing is shared."""
    best = max(((len(own & prints), name) for name, prints in others.items()),
               key=lambda pair: (pair[0], pair[1]), default=(0, None))
    return (round(best[0] / len(own), 3), best[1]) if own and best[0] else (0.0, None)


def fields(submissions, root, handout=()):
    given = set().union(*(fingerprints(text) for text in handout))
    own = {name: fingerprints(text) - given for name, text in submissions.items()}
    cuda = any(name.endswith((".cu", ".cuh")) for name in submissions)
    public = repository(root, SOURCES if cuda else (".c", ".h"))
    found = {}
    for name, prints in own.items():
        others = {other: marks for other, marks in own.items() if other != name}
        in_public, in_class = share(prints, public), share(prints, others)
        found[name] = {"repository": {"share": in_public[0], "file": in_public[1]},
                       "class": {"share": in_class[0], "with": in_class[1]}}
    return found


def main():
    parser = argparse.ArgumentParser(prog="similarity.py", allow_abbrev=False,
                                     description="how much of each file stands elsewhere")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--handout", metavar="DIR", help="a folder whose sources everybody has")
    options = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    try:
        submissions = {name: read(name) for name in options.files}
        handout = [read(path) for path in sorted(pathlib.Path(options.handout or ".").rglob("*"))
                   if options.handout and path.suffix in SOURCES]
    except OSError as why:
        print(f"similarity.py: {why.filename}: found that it cannot be read ({why.strerror}), "
              "accepted is a source file", file=sys.stderr)
        return 2
    for name, found in fields(submissions, root, handout).items():
        print(json.dumps({"submission": name, "similarity": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
