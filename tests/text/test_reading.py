#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_reading.py: what a rung costs to read stays within the budgets.

common/tools/reading.py measures and has the budgets; in reading_limits.txt stands every exception
from them with its reason. First a small planted tree, of which all figures are known.
"""
import os
import pathlib
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, os.path.join(HERE, "..", "..", "common", "tools"))
import reading
import tree
from tap import Tap

LIMITS = os.path.join(HERE, "reading_limits.txt")
MOST_EXCEPTIONS = 6

PLANTED = {
    "common/attention/attn.h": "/* doc */\n#include \"base.h\"\nint shape;\n\n",
    "common/base.h": "int type; // text\n",
    "03_x/x.h": "#include \"attn.h\"\nvoid rung_v0(void);\nvoid help(int n);\n",
    "03_x/cpu/tiles.h": "static inline int add(int a)\n{\n    return a + 1;\n}\n"
                        "#define TWICE(x) \\\n    (add(x) + add(x))\n"
                        "struct Unused {\n    int u;\n};\n"
                        "void other(int a,\n           int b);\n",
    "03_x/cpu/help.c": "/* help */\n#include \"x.h\"\nvoid help(int n)\n{\n    (void)n;\n}\n",
    "03_x/cpu/other.c": "#include \"x.h\"\nvoid other(int a, int b)\n{\n}\n",
    "03_x/cpu/v0_a.c": "/* v0_a: the first. */\n#include \"x.h\"\nvoid rung_v0_a(void)\n{\n"
                       "    help(1); /* helps */\n}\n",
    "03_x/cpu/v1_b.c": "/* v1_b: what v0 does, twice. */\n#include \"x.h\"\n#include \"tiles.h\"\n"
                       "void rung_v1_b(void)\n{\n    help(TWICE(1));\n}\n",
}


def check_planted(tap):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        for name, text in PLANTED.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        found = {rung.name: reading.measure(root, rung) for rung in reading.rungs(root)}
        tap.ok(list(found) == ["v0_a", "v1_b"], "the rungs of a planted tree", found)
        # v0_a 5, x.h 3, attn.h 2, base.h 1, help.c 5: not other.c, which nobody calls
        tap.ok(found["v0_a"] == (5, 16, None, None, ""), "a first rung: files and lines",
               found["v0_a"])
        # v1_b 6 and tiles.h 11; added: the include, the changed call, add (4) and TWICE (2)
        tap.ok(found["v1_b"] == (6, 28, 8, 25, "v0_a"), "a step: what it first uses counts",
               found["v1_b"])
        tap.ok(reading.held(root) == "Of 2 rungs 1 hold their budget, 1 have an exception.\n",
               "a small rung holds its budget; one whose idea stands in a header does not",
               reading.held(root))
        kernels = """template <class A, int N = 2 * 3, typename B = Pair<A, N>>
static __device__ void load(float (&S)[N], int b1)
{
}
namespace forward
{
template <> __device__ float mul<half>(float (&c)[4], int b1)
{
}
struct Tile : Base {
    int a = f(1);
};
static const int WARPS = f(4);
}
"""
        given = [sorted(names) for names, _used, _lines in reading.definitions(kernels)]
        tap.ok(given == [["load"], ["mul"], ["Tile"], ["WARPS"]],
               "names of kernels, templates and types, in a namespace or not", given)
        table = reading.markdown(root, ["03"])
        tap.ok("| `v1_b` | 6 | 28 | 8 | `v0_a` |" in table, "the table of the planted tree", table)
        (root / "03_x/cpu/v1_b.c").write_text(PLANTED["03_x/cpu/v1_b.c"] +
                                              "int line;\n" * (reading.MAX_ADDED - 7))
        for cached in (reading.parts_of, reading.words_of, reading.closure):
            cached.cache_clear()
        tap.ok("Of 2 rungs 1 hold" in reading.held(root), "a long step is an exception",
               reading.held(root))


def read_limits():
    """{(stage, device, rung): ((files, lines, added, own), reason)}; "-": no limit of its own."""
    limits = {}
    with open(LIMITS, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                stage, device, name, *figures, reason = line.split(maxsplit=7)
                limits[stage, device, name] = ([int(f) if f != "-" else None for f in figures],
                                               reason.strip())
    return limits


def check_rung(tap, root, rung, limits):
    got, budget = reading.measure(root, rung), reading.budget(root, rung)
    name = f"{rung.stage[:2]} {rung.device} {rung.name}"
    own, reason = limits.pop((rung.stage[:2], rung.device, rung.name), ([None] * 4, ""))
    bad = []
    least = own.pop()
    wanted = reading.MIN_OWN if least is None else least
    if reading.has_steps(rung) and got.own is not None and got.own < wanted:
        bad.append(f"{got.own} % of what it adds stand in its own file, {wanted} are asked for")
    if least is not None and got.own >= reading.MIN_OWN:
        bad.append(f"{got.own} % need no exception: write - in {os.path.basename(LIMITS)}")
    for what, is_now, allowed, exception in zip(("files", "lines of code", "lines added"), got,
                                                budget, own):
        limit = allowed if exception is None else exception
        if is_now is not None and limit is not None and is_now > limit:
            bad.append(f"{is_now} {what}, {limit} are accepted")
        if exception is not None and (is_now is None or allowed is None or is_now <= allowed):
            bad.append(f"{is_now} {what} need no exception: write - in {os.path.basename(LIMITS)}")
    if (rung.stage[:2] in reading.STEPS_IN and not rung.name.startswith("v0_") and
            not got.predecessor):
        bad.append("the comment at its head names no lower rung (v<number>) as its predecessor")
    files = [str(file.relative_to(root)) for file in reading.closure(root, rung.path)]
    tap.ok(not bad, f"{name}: {got.files} files, {got.lines} lines, {got.added} added",
           "\n".join([*bad, f"it reads {' '.join(files)}"]))
    return reason


def main():
    tap = Tap()
    check_planted(tap)
    root, limits = tree.ROOT, read_limits()
    tap.ok(all(reason for _figures, reason in limits.values()), "every exception has a reason")
    tap.ok(len(limits) <= MOST_EXCEPTIONS, f"{len(limits)} exceptions, {MOST_EXCEPTIONS} at most")
    for rung in reading.rungs(root):
        check_rung(tap, root, rung, limits)
    tap.ok(not limits, "every exception is a rung's", f"remove from {LIMITS}: {list(limits)}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
