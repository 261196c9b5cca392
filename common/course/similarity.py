#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""similarity.py: how much of a submission stands elsewhere: in this repository, in the class.

    similarity.py [--handout DIR] FILE...          a JSON object a file, a line each

A source is read as tokens: comments, blanks and the lines of directives are dropped, every
name that is no keyword of C is the same token, so are all numbers and all strings. Renaming and new
comments change nothing. Each run of RUN tokens is hashed; of each WINDOW neighbouring hashes the
least is kept (winnowing: Schleimer, Wilkerson and Aiken, SIGMOD 2003), so that texts that share
WINDOW + RUN - 1 tokens share a fingerprint, wherever it stands. What the handout gives to everybody
(stubs, headers) counts for nobody.

The share is the larger of two: how much of the submission stands in the other text, and how much of
the other text stands in the submission, so that code in front of a copy or behind it hides nothing.
A text with fewer than LEAST fingerprints is contained by chance and has no share of its own. What a
submission's preprocessor made of it is compared as well as what stands in its files: a macro for
`for`, or #if 0, changes nothing. Two honest solutions of a short function share much: look at the
texts before you say anything.

Whoever wrote the text may want this program to take hours. So each kind of token is found in linear
time, a string or a comment without its end too, and no more than MOST_BYTES of a file and
MOST_TOKENS of a text are read; a program with more than MOST_TEXT of its own is refused.

Interface:
- tokens(text), exact_tokens(text): with and without names made equal.
- fingerprints(text) -> set; runs(words, length) -> set of tuples.
- repository(root, suffixes) -> [(path, fingerprints)] of all solutions of the repository.
- own_text(preprocessed, names): without what came from headers that have none of these names.
- without_comments(text): its lines joined. raw_string(text): the first start of one in such a text.
- forged_origin(text): the directive by which it could say that its lines came from elsewhere.
- fields(submissions, root, handout) -> {name: {"repository": {"share", "file"},
  "class": {"share", "with"}} or a sentence, why there is none}; submissions: {name: its texts};
  handout: texts that everybody has.
"""
import argparse
import collections
import contextlib
import itertools
import json
import pathlib
import posixpath
import re
import subprocess
import sys
import zlib

RUN, WINDOW, LEAST = 20, 8, 80
MOST_BYTES, MOST_TEXT, MOST_TOKENS = 4 << 20, 1 << 20, 1 << 20
# a polynomial over the tokens, modulo a prime: the oldest token leaves, a new one comes
BASE, MODULUS = 0x1F3D5B79, (1 << 61) - 1
OLDEST = pow(BASE, RUN, MODULUS)
KEYWORDS = frozenset("""auto break case char const continue default do double else enum extern float
for goto if inline int long register restrict return short signed sizeof static struct switch
typedef union unsigned void volatile while __global__ __device__ __shared__""".split())
# what may lack its end ends with the line or the text: a search that fails would begin again at the
# next sign
TOKEN = re.compile(r"""/\*.*?(?:\*/|\Z)|//[^\n]*
    |\#[ ]*(?:include|define|undef|if|el|endif|pragma)
        (?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|(?!/[/*])[^\n"'])*
    |(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>->|\+\+|--|<<=|>>=|<<|>>|[-+*/%&|^<>=!]=|&&|\|\||\S)""", re.S | re.X)
FOREIGN = re.compile(r"/|<|\.\./include\d")  # a file from there has a name of its own
SOURCES = (".c", ".h", ".cu", ".cuh")
SOLUTIONS = ("0?_*/cpu/*", "0?_*/cuda/*", "common/attention/[bfw]*/**/*", "06_ring_burst/**/*",
             "docs/learn/solutions/*", "tests/course/solutions/*", "tests/course/submissions/*")


def matches(text):
    return itertools.islice(TOKEN.finditer(text), MOST_TOKENS)


def exact_tokens(text):
    """The tokens as they stand, without comments and directives."""
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


def compiled(path, root):
    """Fingerprints of a solution of the course as the compiler sees it; none without a compiler."""
    if path.suffix != ".c" or "course" not in path.relative_to(root).parts:
        return set()
    folders = [f"-I{root / folder}" for folder in ("docs/course/include", "common",
                                                   "common/attention")]
    with contextlib.suppress(OSError):
        run = subprocess.run(["cc", "-E", *folders, path.name], cwd=path.parent, check=False,
                             capture_output=True, text=True, errors="replace")
        return fingerprints(own_text(run.stdout, {path.name}))
    return set()


def repository(root, suffixes=SOURCES):
    """Fingerprints of everything in the repository that solves an assignment or a part of it: of
    the texts, and of what the preprocessor makes of the course's solutions."""
    root = pathlib.Path(root)
    files = {path for pattern in SOLUTIONS for path in root.glob(pattern)
             if path.suffix in suffixes and path.is_file()}
    return [(str(path.relative_to(root)), prints) for path in sorted(files)
            for prints in (fingerprints(read(path)), compiled(path, root))]


def own_text(preprocessed, names):
    """The lines of a preprocessed text that came from the submission's own files, which it may
    include by any path."""
    kept, own = [], True
    for line in preprocessed.split("\n"):
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            own = marker[1].rpartition("/")[2] in names or \
                not FOREIGN.match(posixpath.normpath(marker[1]))
        elif own:
            kept.append(line)
    return "\n".join(kept)


def without_comments(text):
    text = re.sub(r"\\[ \t\v\f\r]*\n", "", text)
    return TOKEN.sub(lambda found: found[0] if found.lastgroup or found[0][0] == "#" else " ", text)


def raw_string(plain):
    """A raw string may hold /*, by which the code behind it would be read as a comment."""
    found = re.finditer(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\b(?:u8|[uUL])?R"', plain)
    return next((start[0] for start in found if start[0][-2:] == 'R"' and start[0][0] not in "\"'"),
                "")


def forged_origin(text):
    """The directive (#line, # 12 "name") by which a text could name another origin, or what could
    hide it; "" if none."""
    plain = without_comments(text)
    found = re.search(r"^[ \t\v\f]*(?:#|%:)\s*(?:line\b|\d)[^\n]*", plain, re.M)
    return found[0].strip() if found else raw_string(plain)


def share(own, others):
    """(share, name) of the most similar of the others; (0, None): nothing is shared. own: the
    fingerprints of each text of a submission; others: [(name, fingerprints)]."""
    best = (0.0, None)
    for prints in own:
        for name, marks in others:
            common = len(prints & marks)
            for size in (len(prints), len(marks)):
                if common and size >= LEAST and common / size > best[0]:
                    best = (common / size, name)
    return round(best[0], 3), best[1]


def fields(submissions, root, handout=()):
    given = set().union(*(fingerprints(text) for text in handout))
    own = {name: [fingerprints(text) - given for text in texts]
           for name, texts in submissions.items()}
    cuda = any(name.endswith((".cu", ".cuh")) for name in submissions)
    public = repository(root, SOURCES if cuda else (".c", ".h"))
    found = {}
    for name, prints in own.items():
        most = max(map(len, prints), default=0)
        if not any(submissions[name]):
            found[name] = "its source cannot be read: compared are C files"
        elif most < LEAST:
            found[name] = f"it has {most} fingerprints of its own: compared are {LEAST} or more"
        else:
            others = [(other, marks) for other, texts in own.items() if other != name
                      for marks in texts]
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
        submissions = {name: [read(name)] for name in options.files}
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
