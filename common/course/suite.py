#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""suite.py: the test suites of the course: what is judged, for how many points, and who may see it.

    suite.py SUITE [--key FILE]         print the suite with every choice drawn; exit 2 if it is bad

A suite is a text file. Lines that begin with # are comments. The first other line is the header,
words of the form key=value; each line after it is a case: words, then " : ", then the flags of the
contract.

    contract=flash_simple time=5 memory=1024 key=optional all=causal
    points=5 name="tiny" : -N 3 -d 2
    points=5 group=causal visibility=after_due_date name="causal, long" : -N 333 -d 64 --causal

Header:  contract (required); time: seconds of one case (10); memory: MiB (1024); threads (1);
         key: optional, required or none; all=GROUP,...: groups whose points are all or nothing;
         subject=GROUP: what the assignment is about: who loses one of its cases has at most 40 %
         of the suite's points.
Case:    points (1); name (the flags); group (none); threads (the header's); visibility: visible,
         hidden, after_due_date or after_published (visible); perf and of: perf=0.4 of=sgemm gives
         all points from 0.4 of the rate of sgemm on, and a share of them below (a case's threads
         count: of others the processor time is what a call took);
         perf=0.1,0.2,0.5 gives a third of the points for each of the three that is reached.
         of=cublas: two products of cuBLAS on a GPU, which a program measures (peer_speed.py).
         of=sectors, of=banks: counts of flash_cuda, as shares of what is possible.

A template is a suite in which a word holds choices: {32|64|128}, {300..700}, {301..699..2} (steps
of 2: odd numbers, which are no multiple of any tile). A key, a file of at least 16 random bytes,
decides them: by the SHA-256 of the key, the suite (its folder and file name), the case (its name as
it is written) and the place in the line. So do the seeds of the inputs: no case's seed tells
another's, in the same suite or another. A choice with a name, {cap=2..6}, is drawn by its name
instead: the same in all lines and all files. The same key gives the same suite, and nobody without
the key knows it.

Students see seeds of a drawn suite, so they can try keys. The bytes of the file therefore pass
through scrypt once, which makes each try cost time and 16 MiB. That delays a search through a
dictionary; only a random key stops it.

Interface:
- read(path, key=None, final=False) -> Suite; SuiteError is one sentence with file and line.
  final: every seed comes from the key, also where the suite names one that students know.
- parse(text, name, key=None, final=False): the same from text. Suite.text(): as it was drawn.
  Suite.replay(case): the command that runs it.
- key_bytes(path): the key that a key file stands for, 32 bytes.
- draw(line, key, suite="", case=""): one line without choices.
- Suite: contract, time, memory, threads, key, all, subject, cases, path. Case: line, points, group,
  visibility, name, flags (a list), perf, of, threads.
"""
import argparse
import dataclasses
import hashlib
import math
import pathlib
import re
import shlex
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))  # for all here
import tool

CONTRACTS = ("naive", "tiled_softmax", "flash_forward", "flash_backward", "sliding_window",
             "softmax_merge", "softmax_rows", "softmax_twist", "flash_simple", "backward_steps",
             "sliding_window_step", "ring_method", "flash_cuda")
VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")
KEYS = ("optional", "required", "none")
# what a case in CUDA counts without a GPU, as shares of what is possible
COUNTED = {"sectors": "the traffic that is necessary", "banks": "wavefronts without conflicts"}
PEERS = ("sgemm", "cublas", *COUNTED)
WORD = re.compile(r'([A-Za-z_]+)=("[^"]*"|[^\s"]+)(?=\s|$)')
CHOICE = re.compile(r"\{(?:([a-z]+)=)?([^{}]*)\}")
RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(\d{1,18}))?")
MAX_CHOICES = 10**9
MIN_KEY, MAX_KEY = 16, 1 << 20
SCRYPT = {"salt": b"attention ladder", "n": 1 << 14, "r": 8, "p": 1, "dklen": 32}


class SuiteError(Exception):
    """One sentence that names the file, the line, what was found and what is accepted."""


@dataclasses.dataclass
class Case:
    line: int
    flags: list
    points: float = 1.0
    group: str = ""
    visibility: str = "visible"
    name: str = ""
    perf: tuple = ()
    of: str = ""
    threads: int = 0  # 0: the suite's

    def text(self):
        words = [f"points={self.points:g}", f"visibility={self.visibility}"]
        words += [f"group={quoted(self.group)}"] if self.group else []
        words += [f"perf={','.join(f'{p:g}' for p in self.perf)} of={self.of}"] if self.perf else []
        words += [f"threads={self.threads}"] if self.threads else []
        return " ".join([*words, f"name={quoted(self.name)}", ":", shlex.join(self.flags)])


@dataclasses.dataclass
class Suite:
    path: str
    contract: str = ""
    time: float = 10.0
    memory: int = 1024
    threads: int = 1
    key: str = "optional"
    all: tuple = ()
    subject: str = ""
    cases: list = dataclasses.field(default_factory=list)

    @property
    def max_score(self):
        return sum(case.points for case in self.cases)

    def replay(self, case):
        """The command that runs one case alone, in the handout's folder."""
        head = (f"contract={self.contract} time={self.time:g} memory={self.memory} "
                f"threads={case.threads or self.threads}")
        return f'make grade SUITE={shlex.quote(head)} CASE={shlex.quote(shlex.join(case.flags))}'

    def text(self):
        head = (f"contract={self.contract} time={self.time:g} memory={self.memory} "
                f"threads={self.threads} key=none")
        head += f" all={quoted(','.join(self.all))}" if self.all else ""
        head += f" subject={quoted(self.subject)}" if self.subject else ""
        return "\n".join([head, *(case.text() for case in self.cases)]) + "\n"


def quoted(text):
    return f'"{text}"' if re.search(r"\s", text) or not text else text


def number(text, least, most, whole=False):
    """The number, or None when text is none from least to most."""
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and least <= value <= most else None


def one_of(accepted):
    return lambda text: text if text in accepted else None


def name_list(text):
    return tuple(part for part in text.split(",") if part) or None


def rising(text):
    values = tuple(number(part, 0.001, 100) for part in text.split(","))
    good = None not in values and all(a < b for a, b in zip(values, values[1:]))
    return values if good else None


# key: reader (None = refused), what is accepted
HEADER = {
    "contract": (one_of(CONTRACTS), ", ".join(CONTRACTS)),
    "time": (lambda text: number(text, 0.01, 3600), "0.01 to 3600 seconds"),
    "memory": (lambda text: number(text, 16, 1 << 20, True), "16 to 1048576 MiB"),
    "threads": (lambda text: number(text, 1, 256, True), "1 to 256"),
    "key": (one_of(KEYS), ", ".join(KEYS)),
    "all": (name_list, "groups with commas between them"),
    "subject": (lambda text: text or None, "a group"),
}
CASE = {
    "points": (lambda text: number(text, 0, 10000), "0 to 10000"),
    "group": (lambda text: text or None, "a name"),
    "visibility": (one_of(VISIBILITIES), ", ".join(VISIBILITIES)),
    "name": (lambda text: text or None, "a text in quotes"),
    "perf": (rising, "0.001 to 100, or several of them that rise, with commas between them"),
    "of": (one_of(PEERS), ", ".join(PEERS)),
    "threads": HEADER["threads"],
}


def key_bytes(path):
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_KEY + 1)
    except OSError as why:
        raise SuiteError(f"--key {path}: found that it cannot be read ({why.strerror}), accepted "
                         "is a text file") from None
    used = len(data.strip())
    if used < MIN_KEY or len(data) > MAX_KEY:
        found = "more than 1 MiB" if used >= MIN_KEY else f"{used} byte{'s' * (used != 1)}"
        raise SuiteError(f"--key {path}: found {found} in it, accepted is a file of 16 bytes to "
                         "1 MiB that nobody guesses: head -c 32 /dev/urandom | base64 > "
                         "teacher.key")
    return hashlib.scrypt(data, **SCRYPT)


def hashed(key, suite, case, place):
    """64 bits from the key, the suite, the case and the place in its line."""
    material = b"\0".join([key or b"", *(str(part).encode() for part in (suite, case, place))])
    return int.from_bytes(hashlib.sha256(material).digest()[:8], "big")


def suite_of(name):
    """What tells a suite from others, wherever the course lies: its folder and file name."""
    return "/".join(pathlib.Path(name).resolve().parts[-2:])


def case_of(line):
    """What tells a case from the others of its suite: its name before any choice is drawn, or the
    whole line."""
    found = re.search(r'(?:^|\s)name=("[^"]*"|\S+)', line)
    return found[1].strip('"') if found else line


def values_of(choice):
    """What {choice} may become, or None when it is no choice."""
    found = RANGE.fullmatch(choice)
    if not found:
        parts = choice.split("|")
        return parts if len(parts) > 1 and all(part.strip() for part in parts) else None
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    values = range(first, last + 1, step) if step else ()
    return values if 0 < len(values) <= MAX_CHOICES else None


def draw(line, key, suite="", case=""):
    """The line with every choice drawn. ValueError: no choice."""
    place = 0

    def one(found):
        nonlocal place
        values = values_of(found[2])
        if values is None:
            raise ValueError(f"found the choice '{found[0]}', accepted are {{a|b|c}}, "
                             "{300..700}, {301..699..2} and, with a name, {cap=2..6}")
        place += 1
        number = hashed(key, "", "", found[1]) if found[1] else hashed(key, suite, case, place)
        return str(values[number % len(values)])

    drawn = CHOICE.sub(one, line)
    if "{" in drawn or "}" in drawn:
        raise ValueError("found a brace without its partner, accepted are {a|b|c}, {300..700} and "
                         "{301..699..2}")
    return drawn


def read_words(text, known):
    """{key: value} of key=value words; ValueError names what is wrong."""
    values, at = {}, 0
    text = text.strip()
    while at < len(text):
        found = WORD.match(text, at)
        if not found:
            raise ValueError(f"found '{text[at:at + 40]}', accepted are words of the form "
                             "key=value with quotes around a value that holds blanks")
        key, value = found[1], found[2].strip('"')
        if key not in known:
            raise ValueError(f"found the key '{key}', accepted are {', '.join(known)}")
        if key in values:
            raise ValueError(f"found {key}= twice, accepted is once")
        reader, accepted = known[key]
        values[key] = reader(value)
        if values[key] is None:
            raise ValueError(f"{key}: found '{value}', accepted is {accepted}")
        at = found.end()
        at += len(text[at:]) - len(text[at:].lstrip())
    return values


def split_case(line):
    """Words and flags on both sides of the first ' : ' outside of quotes."""
    bare = re.sub(r'"[^"]*"', lambda found: "_" * len(found[0]), line)
    at = re.search(r"(^|\s):(\s|$)", bare)
    if not at:
        raise ValueError("found no ' : ', accepted is a case: words, ' : ' and the flags")
    return line[:at.start()], line[at.end():]


def without_seed(flags):
    kept = []
    for at, flag in enumerate(flags):
        if flag != "--seed" and not flag.startswith("--seed=") and flags[at - 1:at] != ["--seed"]:
            kept.append(flag)
    return kept


def read_case(line, count, suite, seed=None, final=False):
    left, right = split_case(line)
    case = Case(line=count, flags=[], **read_words(left, CASE))
    try:
        case.flags = shlex.split(right)
    except ValueError:
        raise ValueError(f"found the flags '{right.strip()}', accepted is a quote with its "
                         "partner") from None
    case.name = case.name or " ".join(case.flags) or "default"
    if bool(case.perf) != bool(case.of):
        raise ValueError("found one of perf= and of=, accepted are both or none")
    if final and seed is not None:
        case.flags = without_seed(case.flags)
    if seed is not None and suite.key != "none" and "--seed" not in case.flags and \
            not any(flag.startswith("--seed=") for flag in case.flags):
        case.flags += ["--seed", str(seed)]
    return case


def check(suite, key, where):
    names = {}
    for case in suite.cases:
        if case.name in names:
            raise SuiteError(f"{suite.path}:{case.line}: name: found '{case.name}' as in line "
                             f"{names[case.name]}, accepted are different names")
        names[case.name] = case.line
    if not suite.cases:
        raise SuiteError(f"{suite.path}:{where}: found no case after the header, accepted is at "
                         "least one")
    for word, group in [*(("all", group) for group in suite.all), ("subject", suite.subject)]:
        if group and group not in {case.group for case in suite.cases}:
            raise SuiteError(f"{suite.path}:{where}: {word}: found the group '{group}', accepted "
                             "are groups of the cases")
    if suite.max_score <= 0:
        raise SuiteError(f"{suite.path}:{where}: found 0 points in all cases together, accepted "
                         "are more")
    if suite.key == "required" and not key:
        raise SuiteError(f"{suite.path}:{where}: found no key, accepted is --key FILE, which this "
                         "suite requires")
    if suite.key == "none" and key:
        raise SuiteError(f"{suite.path}:{where}: found a key, accepted is none: this suite is the "
                         "same for everybody")


def parse(text, name, key=None, final=False):
    suite, head, place = None, 0, suite_of(name)
    for count, raw in enumerate(tool.lines_of(text), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        case = case_of(line)
        try:
            if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", line):  # a zero byte would end it in C
                raise ValueError("found a control character, accepted is text")
            line = draw(line, key, place, case)
            if suite is None:
                suite, head = Suite(path=name, **read_words(line, HEADER)), count
                if not suite.contract:
                    raise ValueError("found no contract=, accepted is a header line that begins "
                                     "with contract=NAME")
            else:
                seed = hashed(key, place, case, "seed") >> 1 if key else None
                suite.cases.append(read_case(line, count, suite, seed, final))
        except ValueError as why:
            raise SuiteError(f"{name}:{count}: {why}") from None
    if suite is None:
        raise SuiteError(f"{name}: found no header line, accepted is a suite that begins with "
                         "contract=NAME")
    check(suite, key, head)
    return suite


def read(path, key=None, final=False):
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as why:
        raise SuiteError(f"{path}: found that it cannot be read "
                         f"({getattr(why, 'strerror', None) or 'not UTF-8'}), accepted is a "
                         "suite") from None
    return parse(text, str(path), key, final)


def main():
    parser = argparse.ArgumentParser(prog="suite.py", allow_abbrev=False,
                                     description="print a suite with every choice drawn")
    parser.add_argument("suite")
    parser.add_argument("--key", metavar="FILE")
    options = parser.parse_args()
    key = key_bytes(options.key) if options.key else None
    sys.stdout.write(read(options.suite, key).text())


if __name__ == "__main__":
    tool.end(main, SuiteError)
