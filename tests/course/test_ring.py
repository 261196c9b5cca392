#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring.py: mistakes of a ring have names, and who gathers the whole sequence is found out.

    test_ring.py BUILD

Each mistake is an edit of the solution of assignment 5. A name says the rank and the block.
"""
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "common" / "course")]
import handout
import suite as suites
from tap import Tap
from test_assignments import KEY, build, edited, graded, numbers, solution

CASES = {"plain": "--ranks 4 -H 2 -N 66 -d 8",
         "even": "--ranks 4 -H 2 -N 64 -d 8 --causal",
         "causal": "--ranks 4 -H 2 -N 66 -d 8 --causal",
         "zigzag": "--ranks 4 -H 2 -N 64 -d 8 --causal --layout zigzag",
         "window": "--ranks 4 -H 2 -N 64 -d 8 --window 20,3 --layout zigzag"}
OWNER = "int owner = (p->rank - step + p->world) % p->world;"
ADD = "add_block(p, owner, kv, m, l);"
STEPS = "step < p->world; step++"
KEY_PLACE = "p->position[owner][j]"
SEES = f"if (sees(p, p->position[p->rank][i], {KEY_PLACE}))"
KEYS = "keys = p->tokens[owner],"
LOOP = "for (int j = 0; j < keys; j++) {"
# m, l and O of each block apart: what is done with the results of two blocks
APART = [(ADD, """{
            size_t all = states * (size_t)p->d;
            float *before = malloc(sizeof(float) * all);
            memcpy(before, p->O, sizeof(float) * all);
            memset(p->O, 0, sizeof(float) * all);
            for (size_t at = 0; at < states; at++)
                m[at] = -INFINITY, l[at] = 0.0f;
            add_block(p, owner, kv, m, l);
            finish(p, m, l);
            for (size_t at = 0; at < all; at++)
                p->O[at] = (p->O[at]) WEIGHT + before[at];
            free(before);
        }"""), ("    finish(p, m, l);\n    free(kv);", "    free(kv);")]
# what is edited, the case, the code, the sentence
NAMED = [
    ([(STEPS, "step + 1 < p->world; step++"), ], "plain", "block_never_used",
     "rank 3 never used block 0"),
    ([(ADD, "if (step < 2) " + ADD)], "plain", "ring_too_short", "rank 3 used 2 of 4 blocks only"),
    ([(ADD, "if (step > 0) " + ADD)], "plain", "block_never_used", "rank 3 never used block 3"),
    ([(ADD, "if (owner != 0 || p->rank != 2) " + ADD)], "causal", "block_never_used",
     "rank 2 never used block 0"),
    ([(ADD, f"{ADD}\n        if (owner == 1) {ADD}")], "plain", "block_used_twice",
     "rank 3 used block 1 twice"),
    ([(KEY_PLACE + "))", "j))")], "causal", "positions_from_0",
     "rank 3 takes positions of keys as if each block began at 0"),
    ([("p->position[p->rank][i], ", "i, ")], "causal", "positions_from_0",
     "positions of rank 3's queries are taken as if its block began at 0"),
    ([(SEES, "if (sees(p, i, j))")], "causal", "positions_from_0",
     "rank 3 takes places in memory for positions"),
    ([(KEY_PLACE + "))", "p->position[owner][0] + j))")], "zigzag", "positions_in_a_row",
     "rank 3 takes keys of a block for neighbours"),
    ([("p->position[p->rank][i], ", "p->position[p->rank][0] + i, ")], "zigzag",
     "positions_in_a_row", "rank 2 takes its queries for neighbours"),
    ([(KEY_PLACE + "))", "p->position[p->rank][j % n]))")], "window", "positions_of_own_block",
     "the positions of its own tokens"),
    ([(KEY_PLACE + "))", "p->position[(owner + 1) % p->world][0] + j))")], "causal",
     "positions_of_next_block", "the block behind it"),
    ([(KEY_PLACE + "))", "p->position[(owner + p->world - 1) % p->world][0] + j))")], "causal",
     "positions_of_previous_block", "the block before it"),
    ([(SEES, f"if (owner != p->rank || sees(p, p->position[p->rank][i], {KEY_PLACE}))")], "causal",
     "mask_of_own_block", "applies the mask to its own block only"),
    ([(SEES, f"if (owner == p->rank || sees(p, p->position[p->rank][i], {KEY_PLACE}))")], "causal",
     "mask_of_other_blocks", "applies the mask to all blocks but its own"),
    ([(LOOP, "for (int j = 0; j < (keys < n ? keys : n); j++) {")], "plain", "tokens_of_own_block",
     "takes tokens[rank] keys of every block"),
    ([(LOOP, "for (int j = 0; j + 1 < keys; j++) {")], "plain", "last_key_of_block",
     "leaves out the last key of each block"),
    ([("add_key(p->Q + q, k, k + (long)keys * row,",
       "add_key(p->Q + q, k, p->V + (long)(j % n) * row + h / (p->H / p->Hkv) * p->d,")], "even",
     "values_of_own_block", "multiplies with its own V"),
    ([(old, new.replace("WEIGHT", "")) for old, new in APART], "plain", "blocks_added",
     "adds the results of blocks without weights"),
    ([(old, new.replace("WEIGHT", "/ (float)p->world")) for old, new in APART], "plain",
     "blocks_averaged", "takes the mean of the results"),
    ([(ADD, "memset(p->O, 0, sizeof(float) * states * (size_t)p->d);\n        for (size_t at = 0; "
       f"at < states; at++)\n            m[at] = -INFINITY, l[at] = 0.0f;\n        {ADD}")],
     "plain", "last_block_alone", "the result of the last block alone"),
    ([("o[x] = o[x] * alpha + weight", "o[x] = o[x] + weight")], "plain", "stale_o",
     "does not multiply O by exp(m_old - m_new)"),
    ([("*l = *l * alpha + weight;", "*l = *l + weight;")], "plain", "stale_l",
     "does not multiply l by exp(m_old - m_new)"),
    ([("        if (step + 1 < p->world)\n            p->send(p, (p->rank + 1) % p->world, kv,",
       "        if (step + 1 < p->world)\n            p->send(p, (p->rank + 1) % p->world, own,"),
      ("bytes * (size_t)p->tokens[owner]);", "bytes * (size_t)n);"),
      ("kv, bytes * (size_t)p->tokens[next]);",
       "kv, bytes * (size_t)p->tokens[(p->rank + p->world - 1) % p->world]);"),
      (OWNER, "int owner = step ? (p->rank + p->world - 1) % p->world : p->rank;"),
      ("    memset(p->O, 0,", "    float *own = malloc(sizeof(float) * 2 * row * (size_t)n);\n"
       "    memcpy(own, kv, sizeof(float) * 2 * row * (size_t)n);\n    memset(p->O, 0,"),
      ("int next = (owner - 1 + p->world) % p->world;", "")], "plain", "not_passed_on",
     "rank 3 has the same block in every step"),
]
# the whole sequence, gathered round a ring that is right
GATHER = [
    ("kv = malloc(sizeof(float) * 2 * row * (size_t)(most + 1));",
     "kv = malloc(sizeof(float) * 2 * row * (size_t)(most + 1));\n"
     "    float *all = malloc(sizeof(float) * 2 * row * (size_t)(most * p->world));"),
    (ADD, "memcpy(all + 2 * row * (size_t)(most * step), kv, bytes * (size_t)p->tokens[owner]);"),
    ("    finish(p, m, l);\n    free(kv);",
     "    for (int step = 0; step < p->world; step++)\n"
     "        add_block(p, (p->rank - step + p->world) % p->world,\n"
     "                  all + 2 * row * (size_t)(most * step), m, l);\n"
     "    finish(p, m, l);\n    free(all);\n    free(kv);")]
# the same without a byte more than the sequence: each block is received where it stays
IN_PLACE = [
    ("(size_t)(most + 1));", "(size_t)(most * p->world + 1));"),
    (ADD, ""),
    ("p->receive(p, (p->rank - 1 + p->world) % p->world, kv,",
     "p->receive(p, (p->rank - 1 + p->world) % p->world, kv += 2 * row * (size_t)most,"),
    ("    finish(p, m, l);\n    free(kv);",
     "    for (int step = p->world - 1; step >= 0; step--, kv -= 2 * row * (size_t)most)\n"
     "        add_block(p, (p->rank - step + p->world) % p->world, kv, m, l);\n"
     "    finish(p, m, l);\n    free(kv + 2 * row * (size_t)most);")]
# half of the sequence at a time: right, and far more than three blocks
HALF = [
    ("    float *kv, *m, *l;\n", "    float *kv, *m, *l;\n    int held = 0;\n"),
    ("(size_t)(most + 1));", "(size_t)(most * (p->world / 2 + 1) + 1));"),
    (ADD, """if (++held > p->world / 2 || step + 1 == p->world) {
            for (int k = 0; k < held; k++)
                add_block(p, (owner + k) % p->world, kv - 2 * row * (size_t)(most * k), m, l);
            kv -= 2 * row * (size_t)(most * (held - 1));
            held = 0;
        }"""),
    ("p->receive(p, (p->rank - 1 + p->world) % p->world, kv,",
     "p->receive(p, (p->rank - 1 + p->world) % p->world, held ? kv += 2 * row * (size_t)most : kv,"
     )]
EMPTY = [("    finish(p, m, l);\n    free(kv);", """
    for (int n = 0; n < 1000 && p->world > 1; n++) {
        p->send(p, (p->rank + 1) % p->world, kv, 0);
        p->receive(p, (p->rank - 1 + p->world) % p->world, kv, 0);
    }
    finish(p, m, l);
    free(kv);""")]


def check_names(tap, place, plain):
    for case, flags in CASES.items():
        named = [entry for entry in NAMED if entry[1] == case]
        suite = suites.parse(f"contract=ring_method time=10 memory=256\n: {flags}\n", "ring")
        results = graded(place, suite, [build(place, f"{case}{number}", edited(plain, edits))
                                        for number, (edits, *_) in enumerate(named)])
        for (*_, code, sentence), result in zip(named, results):
            test = result["tests"][0]
            tap.ok(test["status"] == "wrong" and test["code"] == code and
                   sentence in test["message"], f"{case}: {sentence}",
                   f"{test['status']} {test['code']}: {test['message']}")


def check_subject(tap, place, folder, plain):
    """Each part has a case for what it is about. test_assignments.py has the ring itself."""
    made = [build(place, name, edited(plain, edits)) for name, edits in
            (("empty", EMPTY), ("gather", GATHER), ("in_place", IN_PLACE), ("half", HALF))]
    for path in (folder / "public.suite", folder / "hidden.template"):
        suite = suites.read(path, KEY if path.suffix == ".template" else None)
        empty, *gathered = graded(place, suite, made)
        for way, gather in zip(("all", "all in place", "half at a time"), gathered):
            states = [test["status"] for test in gather["tests"]]
            tap.ok(states.count("memory") == 1 and states.count("right") == len(states) - 1 and
                   0.3 < gather["score"] / gather["max_score"] <= 0.4,
                   f"{path.name}: who gathers the sequence ({way}) has at most 40 %",
                   f"{gather['score']} {[test['message'] for test in gather['tests']]}")
        tap.ok({test["status"] for test in empty["tests"] if "--ranks 1" not in test["flags"]} ==
               {"refused"},
               f"{path.name}: messages without a byte are refused",
               str([test["message"] for test in empty["tests"]]))
    suite = suites.read(folder / "twist_dilation.template", KEY)
    changed = build(place, "changed", edited(solution(5, "dilation"), GATHER), numbers(suite))
    found = graded(place, suite, [changed])[0]
    tap.ok(0.3 < found["score"] / found["max_score"] <= 0.4, "and of the change, too",
           str([test["message"] for test in found["tests"]]))


def main():
    tap, folder = Tap(), handout.assignment(5)
    plain = (HERE / "solutions" / "5_ring_attention.c").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        check_names(tap, pathlib.Path(scratch), plain)
        check_subject(tap, pathlib.Path(scratch), folder, plain)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
