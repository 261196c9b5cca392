#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""changes.py: solutions of this year's changes, made from the plain ones beside this file.

    python3 tests/course/solutions/changes.py N CHANGE --key FILE > mine_twist.c

Each is the plain solution of assignment N with an edit inside its innermost loops, and the numbers
that the key draws in front. Those of assignment 1 are other algorithms: 1_changes.c.

Interface:
- EDITS[(N, change)]. edited(text, edits). numbers(suite): its numbers, as flags of a compiler.
- plain(N): path of the plain solution. solution(N, change): its text, without numbers.
"""
import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "common" / "course"))
import handout
import suite as suites

SINKS = "((!({q} - LEFT > {k} || {k} > {q} + RIGHT) || {k} < FIRST))"
DILATION = "(({q} - {k}) % STEP == 0)"
CLIP = """for (int r = 0; r < t.rows; r++) {
            float *o = O + (long)(i + r) * d;
            memset(o, 0, sizeof(float) * (size_t)d);
            for (int j = 0; j < (causal ? i + r + 1 : N); j++) {
                float s = scale * dot(Q + (long)(i + r) * d, K + (long)j * d, d);
                float a = (HIGH - (LOW)) * expf(s - lse[i + r]) + LOW;
                for (int x = 0; x < d; x++)
                    o[x] += fminf(fmaxf(a, 0.0f), 1.0f) * V[(long)j * d + x];
            }
        }
"""


CUDA_CLIP = """    for (int x = 0; x < d; x++)
        O_i[x] = 0.0f;
    for (int j = 0; i < N && j < (causal ? i + 1 : N); j++) {
        float s = 0.0f, a;
        for (int x = 0; x < d; x++)
            s += q[x] * K[(head + j) * d + x];
        a = (HIGH - (LOW)) * expf(s / sqrtf((float)d) - m_i) / l_i + LOW;
        for (int x = 0; x < d; x++)
            O_i[x] += fminf(fmaxf(a, 0.0f), 1.0f) * V[(head + j) * d + x];
    }
"""


def seen(expression, q, k):
    return expression.replace("{q}", q).replace("{k}", k)



SIMPLE_SCORE = ("scale * dot(Q + (long)(i + r) * d, K + (long)(j + c) * d, d)",
                "CAP * tanhf(scale * dot(Q + (long)(i + r) * d, K + (long)(j + c) * d, d) / CAP)")
STEP_SEES = "(s->right < 0 || ahead <= s->right)"
RING_SEES = "(p->right < 0 || ahead <= p->right)"
# (assignment, change): what is replaced in the plain solution by what
EDITS = {
    (2, "softcap"): [SIMPLE_SCORE],
    (2, "sinks"): [("causal && j + c > i + r",
                    "(causal && j + c > i + r) || !" + seen(SINKS, "(i + r)", "(j + c)"))],
    (2, "clip"): [("memcpy(O + (long)i * d, t.O, sizeof(float) * (size_t)(t.rows * d));", CLIP)],
    (3, "softcap"): [
        ("expf(scale * dot(Q + (long)i * d, K + (long)j * d, d) - lse[i])",
         "expf(CAP * tanhf(scale * dot(Q + (long)i * d, K + (long)j * d, d) / CAP) - lse[i])"),
        ("return scale * expf(scale * dot(q, k, d) - lse) * (dot(dO, v, d) - delta);",
         "float u = tanhf(scale * dot(q, k, d) / CAP);\n"
         "return scale * (1 - u * u) * expf(CAP * u - lse) * (dot(dO, v, d) - delta);")],
    (3, "sinks"): [("return !causal || j <= i;",
                    "return (!causal || j <= i) && " + seen(SINKS, "i", "j") + ";")],
    (3, "dilation"): [("return !causal || j <= i;",
                       "return (!causal || j <= i) && " + seen(DILATION, "i", "j") + ";")],
    (4, "softcap"): [("return sum * s->scale;", "return CAP * tanhf(sum * s->scale / CAP);")],
    (4, "sinks"): [(STEP_SEES, STEP_SEES + " && " +
                    seen(SINKS, "(s->position_q + r)", "(s->position_k + c)"))],
    (4, "dilation"): [(STEP_SEES, STEP_SEES + " && ahead % STEP == 0")],
    (5, "softcap"): [("s *= scale;", "s = CAP * tanhf(s * scale / CAP);")],
    (5, "sinks"): [(RING_SEES, RING_SEES + " && " + seen(SINKS, "position_q", "position_k"))],
    (5, "dilation"): [(RING_SEES, RING_SEES + " && ahead % STEP == 0")],
    (6, "softcap"): [("s *= 1.0f / sqrtf((float)d);",
                      "s = CAP * tanhf(s / sqrtf((float)d) / CAP);")],
    (6, "sinks"): [("            float s = 0.0f, p;\n", "            if (!" +
                    seen(SINKS, "i", "(j + c)") + ")\n                continue;\n"
                    "            float s = 0.0f, p;\n")],
    (6, "clip"): [("    for (int x = 0; i < N && x < d; x++)\n", CUDA_CLIP +
                   "    for (int x = 0; i < N && x < d; x++)\n"), ("= O_i[x] / l_i;", "= O_i[x];")],
}
NAMES = {"softcap": ("CAP",), "clip": ("LOW", "HIGH"), "window": ("LEFT", "RIGHT"),
         "first": ("FIRST",), "dilation": ("STEP",)}


def numbers(suite):
    """-D flags: the numbers that a handout would tell."""
    flags = suite.cases[0].flags
    told = [value.split("=") for word, value in zip(flags, flags[1:]) if word == "--twist"]
    return [f"-D{name}={number}{'f' if '.' in number else ''}"
            for kind, text in told for name, number in zip(NAMES.get(kind, ()), text.split(","))]


def edited(text, edits):
    for old, new in edits:
        assert text.count(old) == 1, f"'{old}' stands {text.count(old)} times in the solution"
        text = text.replace(old, new)
    return text


def plain(number):
    return next(path for path in sorted(HERE.glob(f"{number}_*.c*")) if "changes" not in path.name)


def solution(number, change):
    if number == 1:
        return (HERE / "1_changes.c").read_text(encoding="utf-8")
    return edited(plain(number).read_text(encoding="utf-8"), EDITS[number, change])


def main():
    parser = argparse.ArgumentParser(description="print the solution of a change")
    parser.add_argument("number", metavar="N")
    parser.add_argument("change", metavar="CHANGE")
    parser.add_argument("--key", required=True, metavar="FILE")
    options = parser.parse_args()
    try:
        folder = handout.assignment(options.number)
        handout.chosen(folder, b"", options.change)
        suite = suites.read(folder / f"twist_{options.change}.template",
                            suites.key_bytes(options.key))
    except (handout.HandoutError, suites.SuiteError) as why:
        print(f"changes.py: {why}", file=sys.stderr)
        return 2
    told = numbers(suite) if options.number != "1" else [f"-D{options.change.upper()}=1"]
    for flag in told:
        print("#define", flag[2:].replace("=", " "))
    sys.stdout.write(solution(int(options.number), options.change))
    return 0


if __name__ == "__main__":
    sys.exit(main())
