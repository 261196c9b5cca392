#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cases.py: which option combinations a stage is swept over.

The full product of the options is millions of cases. What finds bugs is that every PAIR of option
values occurs together somewhere (d = 59 with bf16, an lower-right mask with Nq > Nk, ...), and an
all-pairs table needs some sixty cases for that. Six lists make the sweep:

    pairs    every valid pair of values of the options below, in ROUNDS different surroundings
             (test_cases.py proves it from the printed lines, with tables of its own)
    grid     the full product of Nq, Nk and the masks at d = 32: tile edges, empty rows
    windows  the full product of masks, windows and the three relations of Nq to Nk: the visibility
             rule has three-way interactions that pairs cannot promise
    widths   head dimensions that the pairs leave out, each with every dtype, aligned and not: a
             CUDA kernel is compiled for some and pads the others
    plain    what rungs take, at the head dimensions that they have on a GPU: sizes x masks, in f32
             and in 16 bits
    bundled  the real activations of common/data, with the dO of a training step

Every case carries a seed of its own, so a line of the JSON report names its case, and a failing
line is replayed by pasting it behind the program's name.

Interface:
- sweep(backward, quick): {group name: [case line, ...]}; quick is a subset for sanitizers and qemu.
  backward: False, True (a flag that is varied), or "always" (no such flag: every case has it).
- is_plain(line, device): does a rung take this case?
- exhaustive(backward, shard): the full product, line by line; shard "3/1000" takes a part of it.
- cases.py [--backward[=always]] [--group NAME]: prints the lines, for `--cases FILE`.
- The environment chooses for this program and for test_sweep.py: ATTN_TEST_QUICK=1, or
  ATTN_TEST_EXHAUSTIVE=1 (everything: weeks) or =3/1000 (a part).
"""
import itertools
import math
import os
import random
import sys

SIZES = (1, 2, 17, 64, 127, 129, 300)
MASKS = ("none", "full", "causal-upper-left", "causal-lower-right")
WINDOWS = ("", "0,0", "16,-1", "5,3", "-1,4", "400,400")

# One tuple per option, in the order of the command line. "" means that the flag is not given.
OPTIONS = {
    "--seq-q": SIZES,
    "--seq-kv": SIZES,
    "-d": (1, 8, 32, 59, 64, 128),
    "--mask": MASKS,
    "--window": WINDOWS,
    "--softcap": ("", 20),
    # query heads / key-value heads: one head; MHA; GQA by 2 and by 4; MQA of an odd number
    "heads": ("1/1", "2/2", "4/2", "8/2", "3/1"),
    "-B": (1, 2),
    "--strides": ("bshd", "sbhd", "bhsd", "odd"),
    "--dtype": ("f32", "f16", "bf16"),
    "--dist": ("normal", "outlier", "large"),
    "--scale": ("", -0.3),  # negative: the largest score is the smallest product
    "--threads": (1, 2),
    "--backward": (0, 1),
}
# Ordinary values of everything, for the lists that vary only some options.
USUAL = {
    "--seq-q": 64, "--seq-kv": 64, "-d": 32, "--mask": "none", "--window": "", "--softcap": "",
    "heads": "2/2", "-B": 1, "--strides": "bshd", "--dtype": "f32", "--dist": "normal",
    "--scale": "", "--threads": 2, "--backward": 0,
}
# --bundled fixes the sizes, so it is a list of its own instead of one more option.
BUNDLED = (
    "--bundled",
    "--bundled=encoder --dtype bf16 --strides odd",
    "--bundled=encoder --window 32,32 --strides bhsd",
    "--bundled=encoder --mask causal-lower-right --threads 1",
    "--bundled=encoder --mask causal-upper-left --dtype f16 --softcap 20",
    "--bundled=causal",
    "--bundled=causal --dtype f16 --strides odd",
    "--bundled=causal --dtype bf16 --strides sbhd",
    "--bundled=causal --dtype bf16 --window 100,-1 --softcap 30",
    "--bundled=causal --mask none --threads 1",
)


ROUNDS = 5  # tables of all pairs, each made from another seed


def options_of(backward):
    """The options of a stage: without a backward pass, or with nothing else, it has no such flag to
    vary."""
    return {k: v for k, v in OPTIONS.items() if backward is True or k != "--backward"}


def valid(case):
    """Which combinations the programs accept. All of them: a causal mask beside a window makes the
    window's right side 0, a full mask is ANDed with the window, and Nq > Nk leaves empty rows.
    An option whose values exclude each other goes here, and into test_cases.py's own table."""
    heads, kv_heads = map(int, case["heads"].split("/"))
    return heads % kv_heads == 0


def cost(case):
    """Multiply-adds of a case, roughly: among equal candidates the cheaper one is taken. (Where all
    cases are backward cases a factor changes nothing.)"""
    heads = int(case["heads"].split("/")[0])
    work = case["--seq-q"] * case.get("--seq-kv", case["--seq-q"]) * case["-d"] * heads * case["-B"]
    return work * (4 if case.get("--backward") else 1)


def pairs_of(case, names):
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(names, 2)}


def candidate(options, missing, wanted, draw):
    """One case, grown greedily from a missing pair: every further option takes the value that
    completes most missing pairs with what is already chosen. wanted: missing, in both orders."""
    names = list(options)
    a, value_a, b, value_b = missing[int(draw() * len(missing))]
    case = {a: value_a, b: value_b}
    rest = [n for n in names if n not in case]
    rest.sort(key=lambda n: draw())
    for name in rest:
        chosen = list(case.items())
        gains = {value: sum((name, value, other, x) in wanted for other, x in chosen)
                 for value in options[name]}
        case[name] = max(options[name], key=lambda value: (gains[value], draw()))
    return {n: case[n] for n in names}


def pair_may_be(options, valid, pair):
    """Some values of the other options go with this pair."""
    a, x, b, y = pair
    rest = [name for name in options if name not in (a, b)]
    case = dict({name: values[0] for name, values in options.items()}, **{a: x, b: y})
    return valid(case) or any(
        valid(dict(case, **{c: z, e: w}))
        for c, e in itertools.combinations(rest, 2) for z in options[c] for w in options[e])


def all_pairs(options, table, candidates=12, valid=valid):
    """A covering array of strength 2. Greedy: of a dozen candidates the one with most new pairs.
    Only random() is drawn, whose sequence Python promises to keep, so the list never changes."""
    draw = random.Random(20240601 + table).random
    names = list(options)
    missing = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x in options[a]
        for y in options[b]
    }
    missing = {pair for pair in missing if pair_may_be(options, valid, pair)}
    chosen = []
    while missing:
        listed = sorted(missing, key=repr)
        wanted = missing | {(b, y, a, x) for a, x, b, y in missing}
        best = None
        for _ in range(candidates):
            case = candidate(options, listed, wanted, draw)
            if not valid(case):
                continue
            new = len(pairs_of(case, names) & missing)
            if best is None or (new, -cost(case)) > best[:2]:
                best = (new, -cost(case), case)
        if best is None:
            continue
        missing -= pairs_of(best[2], names)
        chosen.append(best[2])
    return chosen


def line_of(case, seed):
    """The command-line flags of a case."""
    words = []
    for name, value in case.items():
        if name == "heads":
            heads, kv_heads = value.split("/")
            words += ["-H", heads, "--kv-heads", kv_heads]
        elif name == "--backward":
            words += ["--backward"] if value else []
        elif value != "":
            words += [name, str(value)]
    return " ".join(words + ["--seed", str(seed)])


def grid_cases(backward):
    """Every (Nq, Nk, mask) at d = 32. Backward on every other one: half the time, and the pairs
    list has backward with every size and mask anyway."""
    for n, (nq, nk, mask) in enumerate(itertools.product(SIZES, SIZES, MASKS)):
        case = dict(USUAL, **{"--seq-q": nq, "--seq-kv": nk, "--mask": mask})
        case["--backward"] = int(backward is True and (nq + nk + n) % 2 == 0)
        yield case


def window_cases(backward):
    relations = ((17, 64), (64, 64), (129, 64))
    for mask, window, (nq, nk) in itertools.product(MASKS, WINDOWS, relations):
        yield dict(USUAL, **{"--seq-q": nq, "--seq-kv": nk, "-d": 8, "--mask": mask,
                             "--window": window, "--backward": int(backward is True)})


WIDTHS = (17, 33, 80, 96, 100, 250, 256)


def width_cases(backward):
    """The last tiles of rows and keys are partial ones, heads are shared."""
    for (n, d), (t, dtype) in itertools.product(enumerate(WIDTHS),
                                                enumerate(OPTIONS["--dtype"])):
        yield dict(USUAL, **{"--seq-q": 130, "--seq-kv": 150, "-d": d, "--dtype": dtype,
                             "heads": "4/2", "--mask": MASKS[(n + t) % 4],
                             "--window": ("", "40,9")[n // 2 % 2],
                             "--strides": ("bshd", "odd")[(n + t) % 2],
                             "--backward": int(backward is True and t == 0)})


PLAIN_SIZES = (1, 63, 64, 129, 300)
PLAIN_MASKS = (("none", ""), ("causal-upper-left", ""), ("causal-lower-right", ""),
               ("none", "16,-1"), ("none", "40,9"), ("causal-lower-right", "100,0"))


def plain_cases(backward):
    """150 of float32, of 16 bits and of bytes: each rung has all of one of them."""
    grid = itertools.product(PLAIN_SIZES, PLAIN_SIZES, PLAIN_MASKS)
    for n, (nq, nk, (mask, window)) in enumerate(grid):
        for dtype in ("f32", ("f16", "bf16")[n // 2 % 2], *([] if backward else ["e4m3"])):
            d = 128 if dtype == "e4m3" else (64, 128)[(n + nq) % 2]
            yield dict(USUAL, **{"--seq-q": nq, "--seq-kv": nk, "-d": d,
                                 "--dtype": dtype, "--mask": mask, "--window": window,
                                 "heads": OPTIONS["heads"][n % 5], "-B": 1 + n % 3 // 2,
                                 "--dist": OPTIONS["--dist"][n % 3],
                                 "--scale": ("", 0.2)[n % 4 // 3],
                                 "--backward": int(backward is True)})


def is_plain(line, device):
    """Of the lines of this file; a file of --q is one of test_sweep.py's, with d = 8."""
    words = line.split()
    given = dict(zip(words, words[1:]))
    bundled = 64 if "--bundled=causal" in line else 32  # of --bundled alone and =encoder
    d = int(given.get("-d", bundled if "--bundled" in line else 8))
    return (given.get("--mask") != "full" and "--softcap" not in given and
            float(given.get("--scale", 1)) > 0 and (device == "cpu" or d in (64, 128)))


def sweep(backward, quick=False):
    """{group: [line, ...]}, deterministic."""
    groups = {}

    def add(group, case):
        if not quick or cost(case) <= 5e5:
            groups.setdefault(group, []).append(case)

    for table in range(1 if quick else ROUNDS):
        for case in all_pairs(options_of(backward), table):
            add("pairs " + case["--dtype"], case)
    for case in grid_cases(backward):
        if not quick or {case["--seq-q"], case["--seq-kv"]} <= {1, 17, 64, 129}:
            add("grid " + case["--mask"], case)
    for case in window_cases(backward):
        if not quick or case["--window"] in ("0,0", "5,3"):
            add("windows " + case["--mask"], case)
    for case in width_cases(backward):
        if not quick:
            add("widths", case)
    for case in () if quick else plain_cases(backward):
        add("plain " + case["--dtype"], case)
    seed = itertools.count(1)
    lines = {group: [line_of(c, next(seed)) for c in cases] for group, cases in groups.items()}
    if not quick:
        both = ["", "--backward "] if backward is True else [""]
        lines["bundled"] = [f"{b}{w} --seed {next(seed)}" for w in BUNDLED for b in both]
    return lines


def exhaustive(backward, shard="1"):
    """Lines of the full product, one at a time: tens of millions. shard "3/1000" = every 1000th,
    from the third on. Walked in strides of a prime that does not divide the number of
    combinations: each comes once, and a shard is a mixture of all values."""
    options = options_of(backward)
    first, _, step = shard.partition("/")
    total = math.prod(len(values) for values in options.values())
    for n in range(int(first) - 1, total, int(step or 1)):
        rest, case = n * 15485863 % total, {}
        for name, values in options.items():
            rest, digit = divmod(rest, len(values))
            case[name] = values[digit]
        if valid(case):
            yield line_of(case, n + 1)


def main(argv):
    backward = "always" if "--backward=always" in argv else "--backward" in argv
    if os.environ.get("ATTN_TEST_EXHAUSTIVE"):
        for line in exhaustive(backward, os.environ["ATTN_TEST_EXHAUSTIVE"]):
            print(line)
        return 0
    wanted = argv[argv.index("--group") + 1] if "--group" in argv else None
    for group, lines in sweep(backward, bool(os.environ.get("ATTN_TEST_QUICK"))).items():
        if wanted is None or wanted == group:
            print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
