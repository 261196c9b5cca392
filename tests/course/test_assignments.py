#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_assignments.py: an assignment can be done, and only by doing it.

usage: test_assignments.py BUILD N        BUILD: a build folder with the judge; N: the assignment

- The stub compiles and has 0 points, the solution has all of them, in the public suites and in the
  hidden ones as a key draws them, and in each format of a result.
- Of each change the plain solution has at most 20 % of the points, also when what the change needs
  in the way of names is put around it; a solution with the change (solutions/changes.py) has all.
- Mistakes that only some inputs show are wrong in the cases made for them, in each suite.
"""
import csv
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE / "..", HERE / "solutions", ROOT / "common" / "course"):
    sys.path.insert(0, str(folder))
import grade
import grade_formats
import handout
import suite as suites
from changes import edited, numbers, solution
from tap import Tap

KEY = b"a key"
MOST_OF_A_CHANGE = 0.2

# What stands for assignment 1, whose changes are other algorithms: a plain call for each column.
CALLS = {
    "sliding": """softmax_rows_variant(S + at - n + 1, P, out + at, 1, n);""",
    "mean": """softmax_rows_variant(S + at - n + 1, P, &lse, 1, n); out[at] = 0.0f;
            for (int k = 0; k < n; k++) out[at] += P[k] * S[at - n + 1 + k];""",
    "groups": """n = 0;
            for (int k = 0; k < cols; k++)
                if (label[k] == label[c]) { if (k == c) mine = n; G[n++] = S[at - c + k]; }
            softmax_rows_variant(G, P, &lse, 1, n); out[at] = P[mine];""",
}
AROUND = """
#include <stdlib.h>
#include "softmax_twist.h"
int softmax_twist_variant(const float *S, const int *label, float *out, int rows, int cols,
                          int width)
{
    float *P = malloc(sizeof(float) * 2 * (size_t)cols), *G = P + cols, lse;
    int mine = 0;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            long at = (long)r * cols + c;
            int n = c + 1 < width ? c + 1 : width;
            %s
            (void)G, (void)lse, (void)mine, (void)label;
        }
    free(P);
    return 0;
}
"""


# assignment: mistakes that only some inputs show: name, what is replaced in the plain solution by
# what, {suite: cases that are wrong}, while all other cases are right, and the code of the hint
EXTREME = ("large scores", "large scores, causal")
MISTAKES = {
    1: [("m starts at 0", [("m_i = -INFINITY, l_i", "m_i = 0.0f, l_i")],
         {"public": ("large scores",), "hidden_rows": ("large scores",)}, "m_from_zero"),
        ("merge: l_a + l_b", [("l_a[k] * rescale(m_a[k], larger)", "l_a[k]"),
                              ("l_b[k] * rescale(m_b[k], larger)", "l_b[k]")],
         {"merge": ("one pair", "many pairs", "large scores"),
          "hidden_merge": ("pairs", "pairs of large scores")}, "merge_without_weights")],
    2: [("m starts at 0", [("t->m[r] = -INFINITY;", "t->m[r] = 0.0f;")],
         {"simple": EXTREME, "public": EXTREME, "hidden": EXTREME, "hidden_simple": EXTREME},
         "m_from_zero"),
        ("no maximum", [("float *o = t->O + r * t->d, m_new = t->m[r], alpha;\n",
                         "float *o = t->O + r * t->d, m_new = 0.0f, alpha;\n"),
                        ("m_new = fmaxf(m_new, s[c]);", "m_new += 0.0f * (s[c] > 0.0f);")],
         {"simple": EXTREME, "public": EXTREME, "hidden": EXTREME, "hidden_simple": EXTREME},
         "no_max_subtraction"),
        ("threads share a state", [
            ("    for (int i = 0; i < N; i += BR) {\n",
             "#pragma omp parallel for schedule(static, 1)\n"
             "    for (int i = 0; i < N; i += BR) {\n"),
            ("        for (int64_t h = 0; h < args->shape.H; h++)\n            for (int64_t i",
             "#pragma omp parallel for\n"
             "        for (int64_t h = 0; h < args->shape.H; h++)\n            for (int64_t i")],
         {"simple": ("four threads",), "public": ("four threads",),
          "hidden_simple": ("long, four threads",),
          "hidden": ("batches and heads, four threads",)}, None),
        ("a matrix N x N", [("    if (!tile_alloc(&t, d))\n        return 1;\n",
                             "    if (!tile_alloc(&t, d))\n        return 1;\n"
                             "    float *S = malloc(sizeof(float) * (size_t)N * (size_t)N);\n"
                             "    memset(S, 1, sizeof(float) * (size_t)N * (size_t)N);\n"
                             "    O[0] = S[N - 1];\n    free(S);\n"),
                            ("        return ATTN_NO_MEMORY;\n", "        return ATTN_NO_MEMORY;\n"
                             "    const size_t matrix = sizeof(float) * (size_t)args->shape.Nq *\n"
                             "                          (size_t)args->shape.Nk;\n"
                             "    float *S = malloc(matrix);\n    memset(S, 1, matrix);\n"
                             "    args->lse[0] = S[matrix / 8];\n    free(S);\n")],
         {"simple": ("long, without a matrix",), "hidden_simple": ("long, four threads",),
          "public": ("four threads",), "hidden": ("batches and heads, four threads",)}, None)],
    3: [("exp(s) / exp(lse)", [
        ("expf(scale * dot(Q + (long)i * d, K + (long)j * d, d) - lse[i])",
         "expf(scale * dot(Q + (long)i * d, K + (long)j * d, d)) / expf(lse[i])"),
        ("expf(scale * dot(q, k, d) - lse)", "expf(scale * dot(q, k, d)) / expf(lse)")],
         {"public": ("dV, large scores",), "hidden": ("dV, large scores", "dQ, large scores")},
         None),
        ("a matrix N x N", [(f"    memset({name}, 0,",
                             "    const size_t matrix = sizeof(float) * (size_t)N * (size_t)N;\n"
                             "    float *S = malloc(matrix);\n    memset(S, 1, matrix);\n"
                             f"    {name}[0] = S[N - 1];\n    free(S);\n    memset({name}, 0,")
                            for name in ("dV", "dK", "dQ")] +
         [("#include <math.h>\n", "#include <math.h>\n#include <stdlib.h>\n")],
         {"hidden": tuple(f"{name}, long, without a matrix" for name in ("dV", "dK", "dQ"))},
         None)],
    4: [("merge without a maximum", [("larger = fmaxf(lse, *global_lse), lse_new", "lse_new"),
                                     ("larger + logf(expf(lse - larger) + "
                                      "expf(*global_lse - larger))",
                                      "logf(expf(lse) + expf(*global_lse))")],
         {"public": ("large scores", "one key a row, large scores"),
          "hidden": ("large scores, random order", "one key a row, large scores")}, None),
        ("m starts at 0", [("float m = -INFINITY, l = 0.0f;", "float m = 0.0f, l = 0.0f;"),
                           ("if (m == -INFINITY)\n        return m;", ""),
                           ("        o[x] /= l;", "        o[x] /= l > 0.0f ? l : 1.0f;")],
         {"public": ("one key a row, large scores",),
          "hidden": ("one key a row, large scores",)}, "m_from_zero")],
    5: [("no maximum", [("m_new = fmaxf(*m, s);", "m_new = 0.0f;")],
         {"public": EXTREME, "hidden": EXTREME}, None),
        ("m starts at 0", [("m[at] = -INFINITY;", "m[at] = 0.0f;")],
         {"public": EXTREME, "hidden": EXTREME}, None)],
}
# assignment: ordinary mistakes, which the suites must tell apart: edits as above, suite, code
SEES = "attn_sees(a, i + r, j + c)"
ORDINARY = {
    2: [([("scale = 1.0f / sqrtf((float)d)", "scale = 1.0f")], "simple", "no_scale"),
        ([("causal && j + c > i + r", "causal && j + c > N"),
          ("(causal ? i + t.rows : N)", "N")], "simple", "no_mask"),
        ([(SEES, "((a->rule.left < 0 || j + c >= i + r - a->rule.left) && "
                 "(a->rule.right < 0 || j + c <= i + r + a->rule.right))")],
         "public", "other_corner"),
        ([("i < N; i += BR) {\n        tile_start(&t, N - i < BR ? N - i : BR);",
           "i < N; i += BR) {\n        tile_start(&t, N - i < BR ? N - i : BR);"),
          ("j < (causal ? i + t.rows : N); j += BC)",
           "j + BC <= N && j < (causal ? i + t.rows : N); j += BC)"),
          ("    if (t->l[r] == 0.0f)\n        return -INFINITY;\n", "")],
         "simple", "tail_tile_dropped"),
        ([("    if (m_new == -INFINITY)\n        return;\n", "    return;\n")], "simple",
         "nothing_seen"),
        ([("causal && j + c > i + r", "causal && j + c >= i + r"),
          ("    if (t->l[r] == 0.0f)\n        return -INFINITY;\n", "")], "simple",
         "window_off_by_one"),
        ([("    t->m[r] = m_new;\n}", "    t->m[r] = m_new;\n    for (int x = 0; x < t->d; x++)\n"
           "        o[x] /= t->l[r];\n}")], "simple", "normalised_twice"),
        ([("memcpy(t.V, V + (long)j * d, sizeof(float) * (size_t)(keys * d));",
           "for (int k = 0; k < keys; k++)\n                for (int x = 0; x < d; x++)\n"
           "                    t.V[k * d + x] = V[(long)x * N + j + k];")], "simple",
         "values_transposed"),
        ([("t->m[r] + logf(t->l[r])", "t->m[r] + log2f(t->l[r])")], "simple", "lse_base_2"),
        ([("dot(Q + (long)(i + r) * d, K + (long)(j + c) * d, d)",
           "dot(K + (long)(i + r) * d, Q + (long)(j + c) * d, d)")], "simple",
         "q_and_k_exchanged")],
}
def build(folder, name, text, flags=()):
    """A shared object from the text, by cc with little optimisation: that is quicker to compile."""
    source = folder / f"{name}.c"
    source.write_text(text, encoding="utf-8")
    run = subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-Wall",
                          "-Wextra", "-Werror", "-fPIC", "-shared", *flags,
                          *(f"-I{path}" for path in grade.HEADERS), "-o",
                          str(source.with_suffix(".so")), str(source), "-lm"],
                         capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return str(source.with_suffix(".so"))


def graded(place, suite, submissions):
    """The results of the submissions on a drawn suite; without a sandbox where there is none."""
    path = place / "drawn.suite"
    path.write_text(suite.text(), encoding="utf-8")
    words = [str(path), *map(str, submissions), "--build", sys.argv[1]]
    return without_sandbox_where_none(lambda more: grade.grade(grade.parse(words + more))[1])


def without_sandbox_where_none(run):
    """run([]), or without a sandbox if this machine has none. Any other failure is a failure: a
    judge that only works outside of its sandbox must not pass here."""
    try:
        return run([])
    except grade.CannotGrade as why:
        if not re.search(r"has no (libseccomp|seccomp|Landlock)", str(why)):
            raise
        return run(["--so-sandbox", "off"])


def check_retry(tap):
    for said, wanted in (("this kernel has no seccomp", [[], ["--so-sandbox", "off"]]),
                         ("attn_judge ended with -11", [[]])):
        tried = []

        def run(more, said=said, tried=tried):
            tried.append(more)
            if not more:
                raise grade.CannotGrade(said)

        try:
            without_sandbox_where_none(run)
        except grade.CannotGrade:
            pass
        tap.ok(tried == wanted, f"'{said}': tried again without a sandbox, or not", tried)


def wrong_ones(result):
    return "\n".join(f"{test['name']}: {test['status']}: {test['message']}"
                     for test in result["tests"] if test["status"] != "right")


def scores_in(form, texts):
    """The points of each submission, as a format's reader sees them; junit: tests not failed."""
    if form == "json":
        return [json.loads(line)["score"] for line in texts[0].split("\n")[:-1]]
    if form == "gradescope":
        return [sum(test["score"] for test in json.loads(text)["tests"]) for text in texts]
    if form == "otter":
        return [sum(case["test_case"]["points"] for part in json.loads(text)["test_file_results"]
                    for case in part["test_case_results"] if case["passed"]) for text in texts]
    if form == "csv":
        return [float(row[1]) for row in list(csv.reader(io.StringIO(texts[0])))[1:]]
    if form == "junit":
        return [sum(len(case) == 0 for case in suite.iter("testcase"))
                for suite in xml.fromstring(texts[0]).iter("testsuite")]
    return [float(line.split(": ")[1].split()[0]) for line in texts[0].splitlines()
            if line[0] != " "]


def check_formats(tap, suite, results):
    for form in grade_formats.FORMATS:
        found = scores_in(form, list(grade_formats.write(form, results, suite).values()))
        most = len(suite.cases) if form == "junit" else suite.max_score
        tap.ok(found == [0, most], f"{form}: nothing for the stub, everything for the solution",
               f"{found} of {most}")


def check_suites(tap, place, folder, plain):
    """Stub, solution and mistakes on each suite, judged together: a case has one reference. The
    first suite gets stub and solution as students hand them in: C files, compiled by grade."""
    number = int(folder.name[0])
    mistakes = MISTAKES[number]
    sources = [folder / "stub.c", HERE / "solutions" / f"{folder.name}.c"]
    libraries = [build(place, path.stem, path.read_text(encoding="utf-8")) for path in sources]
    made = [build(place, f"mistake{count}", edited(plain, edits), ["-fopenmp"])
            for count, (_, edits, _, _) in enumerate(mistakes)]
    ordinary = [(stem, code, build(place, f"ordinary{count}", edited(plain, edits)))
                for count, (edits, stem, code) in enumerate(ORDINARY.get(number, []))]
    paths = sorted(folder.glob("*.suite")) + sorted(folder.glob("hidden*.template"))
    assert {stem for stem, _, _ in ordinary} <= {path.stem for path in paths}
    for path in paths:
        suite = suites.read(path, KEY if path.suffix == ".template" else None)
        mine = [(code, library) for stem, code, library in ordinary if stem == path.stem]
        results = graded(place, suite, [*(libraries if path != paths[0] else sources), *made,
                                        *(library for _, library in mine)])
        of_stub, of_solution = results[:2]
        if path == paths[0]:
            check_formats(tap, suite, results[:2])
        tap.ok(of_stub["score"] == 0, f"{path.name}: the stub has no points",
               str(of_stub["score"]))
        tap.ok(of_solution["score"] == of_solution["max_score"] > 0,
               f"{path.name}: the solution has all points", wrong_ones(of_solution))
        for (name, _, wrong, code), result in zip(mistakes, results[2:]):
            found = {test["name"] for test in result["tests"] if test["status"] != "right"}
            tap.ok(found == {case.name for case in suite.cases} & set(wrong.get(path.stem, ())) and
                   bool(found) == (path.stem in wrong),
                   f"{path.name}: '{name}' is wrong in the cases made for it, and only there",
                   str(sorted(found)))
            if code and found:
                tap.ok(codes(result) == {code}, f"{path.name}: '{name}' has the hint {code}",
                       str(codes(result)))
        for (code, _), result in zip(mine, results[2 + len(made):]):
            tap.ok(codes(result) == {code}, f"{path.name}: the hint of a wrong solution is {code}",
                   f"{codes(result)}\n{wrong_ones(result)}")


def check_change(tap, place, folder, kind, plain):
    number = int(folder.name[0])
    suite = suites.read(folder / f"twist_{kind}.template", KEY)
    public = plain + (AROUND % CALLS[kind] if number == 1 else "")
    changed = solution(number, kind)
    flags = [f"-D{kind.upper()}"] if number == 1 else numbers(suite)
    both = [build(place, f"changed_{kind}", changed, flags), build(place, f"public_{kind}", public)]
    if number == 1:  # whose calls take several times the limit; this test does not wait for that
        results = graded(place, suite, both[:1])
        suite.time = 0.5
        results += graded(place, suite, both[1:])
    else:
        results = graded(place, suite, both)
    tap.ok(results[0]["score"] == results[0]["max_score"],
           f"{kind}: a solution with the change has all points", wrong_ones(results[0]))
    tap.ok(results[1]["score"] <= MOST_OF_A_CHANGE * results[1]["max_score"],
           f"{kind}: the public solution has at most 20 %", str(results[1]["score"]))


def codes(result):
    """The codes of what is wrong, but those of what follows from another array."""
    wrong = [test for test in result["tests"] if test["status"] == "wrong"]
    return {one["code"] for test in wrong for one in (test, *test["errors"])} - {"follows"}


def main():
    tap = Tap()
    check_retry(tap)
    folder = handout.assignment(sys.argv[2])
    plain = (HERE / "solutions" / f"{folder.name}.c").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch)
        check_suites(tap, place, folder, plain)
        for kind in handout.kinds(folder):
            check_change(tap, place, folder, kind, plain)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
