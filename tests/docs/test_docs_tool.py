#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is common/tools/docs.py able to fail? It works on a small tree of its own, made here: what it
inserts, each kind of drift, each kind of broken marker, dead links and dead commands."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common/tools")]
import source_hashes  # noqa: E402
from tap import Tap  # noqa: E402

LOOPS = """/* SPDX-License-Identifier: MIT
 * v0: the head comment. */
#include "attention/rows.h"

/* Adds two
 * numbers. */
static float
add_two(float a,
        float b)
{
    /* [sum] */
    float s = a + b;
    /* [/sum] */
    return s;
}

typedef struct Pair {
    int a;
} Pair;

#define TWICE(x) \\
    ((x) * 2)

float unrelated(void);

float unrelated(void)
{
    return add_two(1, 2);
}

static __global__ void __launch_bounds__(32)
    one_kernel(float *x)
{
    *x = 1;
}
"""
PAGE = """# Page
<!-- code: 01_naive/cpu/v0_loops.c#add_two -->
<!-- /code -->
<!-- code: 01_naive/cpu/v0_loops.c#[sum] -->
<!-- /code -->
<!-- diff: 01_naive/cpu/v0_loops.c 01_naive/cpu/v1_blas.c -->
<!-- /diff -->
<!-- table: docs/r.jsonl columns=variant,ms_med,speed filter="N=64" -->
<!-- /table -->
It takes
<!-- number: docs/r.jsonl column=ms_med filter="variant=v0_loops N=64" --><!-- /number --> ms.
<!-- reading: 01 -->
<!-- /reading -->
<!-- run: hello 1 2 -->
<!-- /run -->
"""


class Tree:
    def __init__(self, folder):
        self.root = pathlib.Path(folder)
        self.write("01_naive/cpu/v0_loops.c", LOOPS)
        self.write("01_naive/cpu/v1_blas.c", LOOPS.replace("a + b", "b + a"))
        self.program("echo hello $*")
        self.rows()
        self.write("docs/page.md", PAGE)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, line):
        self.write("build/01_naive/hello", f"#!/bin/sh\n{line}\n").chmod(0o755)

    def rows(self, ms=2.0):
        lines = []
        for name, time, good in (("v0_loops", ms, True), ("v1_blas", 0.5, True),
                                 ("v9_wrong", 0.001, False), ("v8_unchecked", 0.002, None)):
            path = self.root / f"01_naive/cpu/{name}.c"
            digest = source_hashes.hash_of_code([path]) if path.exists() else ""
            lines.append(json.dumps({
                "stage": "naive", "variant": name, "device": "cpu", "dtype": "f32", "B": 1, "H": 1,
                "Hkv": 1, "Nq": 64, "Nk": 64, "d": 8, "ms_med": time, "flops": 1e6, "pass": good,
                "sha256": digest, "cpu": "Test CPU", "command": "naive -N 64"}))
        self.write("docs/r.jsonl", "\n".join(lines) + "\n")

    def docs(self, *arguments, build=True):
        command = [sys.executable, str(ROOT / "common/tools/docs.py"), "--root", str(self.root)]
        command += ["--build", str(self.root / "build")] if build else []
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    def page(self):
        return (self.root / "docs/page.md").read_text()


def test_insertion(tap, tree):
    done = tree.docs()
    page = tree.page()
    tap.ok(done.returncode == 0, "a page is written", done.stderr)
    tap.ok("/* Adds two\n * numbers. */\nstatic float\nadd_two(float a,\n"
           "        float b)\n{" in page
           and "    return s;\n}\n```" in page and "unrelated" not in page,
           "a whole function with its comment and return type, nothing after it", page)
    tap.ok("```c\nfloat s = a + b;\n```" in page, "tagged lines, indentation removed", page)
    tap.ok("-    float s = a + b;\n+    float s = b + a;" in page and "*2 changed lines" in page,
           "the diff of two variants", page)
    tap.ok("| v1_blas | 0.500 | 4.00x |" in page, "a table row with its speed against v0", page)
    tap.ok("v9_wrong" not in page and "v8_unchecked" not in page,
           "rows that failed or were not checked are left out", page)
    tap.ok("Test CPU" in page and "`naive -N 64`" in page, "machine and command stand below", page)
    tap.ok("| 01 | CPU | `v0_loops` | 1 | 23 |  |  |" in page, "what a rung costs to read", page)
    tap.ok("It takes\n<!-- number: docs/r.jsonl column=ms_med filter=\"variant=v0_loops N=64\" -->"
           "2.00<!-- /number --> ms." in page, "a number inside a sentence", page)
    tap.ok("$ hello 1 2\nhello 1 2\n```" in page, "the output of a program", page)
    tap.ok("†" not in page, "rows measured on today's sources carry no mark", page)
    tap.ok(tree.docs("--check").returncode == 0, "check mode accepts what write mode wrote")
    again = tree.docs()
    tap.ok(again.stdout == "" and page == tree.page(), "writing twice changes nothing",
           again.stdout)


def test_pending(tap, tree):
    """A row that is still to be recorded is announced, and takes its place when it is there."""
    table = '<!-- table: docs/later.jsonl columns=variant,ms_med filter="N=64" pending="ask me" -->'
    number = '<!-- number: docs/r.jsonl column=ms_med filter="N=65" pending="ask me" -->'
    tree.write("docs/page.md", f"{table}\n<!-- /table -->\nIt takes {number}<!-- /number --> ms.\n")
    done = tree.docs()
    tap.ok(done.returncode == 0 and "*Not yet recorded; the command is* `ask me`." in tree.page()
           and "takes " + number + "(not yet recorded)<" in tree.page(),
           "rows that the marker calls pending may be missing", done.stderr + tree.page())
    hidden = table.replace('"ask me"', "hide")
    tree.write("docs/hidden.md", f"{hidden}\n<!-- /table -->\n")
    tree.docs(str(tree.root / "docs/hidden.md"))
    tap.ok((tree.root / "docs/hidden.md").read_text() == f"{hidden}<!-- /table -->\n",
           "pending=hide: nothing stands where the table will be")
    (tree.root / "docs/hidden.md").unlink()
    rows = (tree.root / "docs/r.jsonl").read_text()
    tree.write("docs/fresh.md", number.replace("N=65", "variant=v0_loops").replace(
        'pending', 'fresh=yes pending') + "<!-- /number --> ms.\n")
    tree.docs(str(tree.root / "docs/fresh.md"))
    tap.ok(">2.00<" in (tree.root / "docs/fresh.md").read_text(), "fresh=yes takes a fresh row")
    tree.write("01_naive/cpu/v0_loops.c", LOOPS + "int later;\n")
    tree.docs(str(tree.root / "docs/fresh.md"))
    tap.ok(">(not yet recorded)<" in (tree.root / "docs/fresh.md").read_text(),
           "... and no row that is older than its source")
    tree.write("01_naive/cpu/v0_loops.c", LOOPS)
    (tree.root / "docs/fresh.md").unlink()
    tree.write("docs/later.jsonl", rows)
    tap.ok(tree.docs("--check").returncode == 1, "not any more when they are there")
    tap.ok(tree.docs().returncode == 0 and "| v1_blas | 0.500 |" in tree.page()
           and "ask me`" not in tree.page(), "then the table is filled", tree.page())
    (tree.root / "docs/later.jsonl").unlink()
    tree.write("docs/page.md", '<!-- code: docs/said.txt pending="ask me" -->\n<!-- /code -->\n')
    tap.ok(tree.docs().returncode == 0 and "the command is* `ask me`." in tree.page(),
           "a file that is still to be made", tree.page())
    tree.write("docs/said.txt", "G=2: 255 GB/s\n")
    tap.ok(tree.docs().returncode == 0 and "```\nG=2: 255 GB/s\n```" in tree.page(),
           "... and is there as a whole", tree.page())
    (tree.root / "docs/said.txt").unlink()
    tree.write("docs/page.md", PAGE)
    tree.docs()


def drifts(tap, tree, name, change, undo, expected):
    change()
    done = tree.docs("--check")
    tap.ok(done.returncode == 1 and expected in done.stdout, f"drift is found and shown: {name}",
           f"status {done.returncode}\n{done.stdout}{done.stderr}")
    undo()
    tap.ok(tree.docs("--check").returncode == 0, f"and is gone again: {name}")


def test_drift(tap, tree):
    source = "01_naive/cpu/v0_loops.c"

    def restore():
        tree.write(source, LOOPS)

    drifts(tap, tree, "code", lambda: tree.write(source, LOOPS.replace("return s;", "return -s;")),
           restore, "+    return -s;")
    drifts(tap, tree, "the source behind a recorded row",
           lambda: tree.write(source, LOOPS + "\nint later;\n"), restore, "+| v0_loops †")
    drifts(tap, tree, "a table", lambda: tree.rows(ms=3.0), tree.rows, "+| v0_loops | 3.00 |")
    drifts(tap, tree, "program output", lambda: tree.program("echo bye"),
           lambda: tree.program("echo hello $*"), "+bye")
    page = tree.page()
    drifts(tap, tree, "a number edited by hand",
           lambda: tree.write("docs/page.md", page.replace("-->2.00<", "-->1.00<")),
           lambda: tree.write("docs/page.md", page), "-->2.00<!--")
    tree.program("echo bye")
    tap.ok(tree.docs("--check", "--no-run", build=False).returncode == 0,
           "--no-run leaves program output alone")
    tap.ok(tree.docs("--check", build=False).returncode == 1,
           "without a build folder run markers are an error, not skipped in silence")
    tree.program("echo hello $*")


def test_c_file(tap, tree):
    tree.write("docs/say.c", '#include <stdio.h>\nint main(int n, char **a)\n{\n'
               '    return printf("%d %s\\n", n, a[1]) != 6;\n}\n')
    page = tree.write("docs/say.md", "<!-- run: docs/say.c yes -->\n<!-- /run -->\n")
    done = tree.docs(str(page))
    tap.ok("```console\n$ say yes\n2 yes\n```" in page.read_text() and done.returncode == 0,
           "a file of C is compiled and run", done.stderr)
    page.unlink()


def test_cut(tap, tree):
    tree.program("printf 'first\\nsecond\\nLast 1e-7\\nend\\n'")
    page = tree.write("docs/cut.md", "<!-- run: before=Last hello -->\n<!-- /run -->\n")
    done = tree.docs(str(page))
    tap.ok("$ hello\nfirst\nsecond\n```" in page.read_text() and done.returncode == 0,
           "before=WORD leaves out what depends on the machine", done.stderr)
    page.write_text("<!-- run: from=second to=Last hello -->\n<!-- /run -->\n")
    tree.docs(str(page))
    tap.ok("$ hello\nsecond\nLast 1e-7\n```" in page.read_text(),
           "from= and to= keep some lines of an output", page.read_text())
    page.unlink()
    tree.program("echo hello $*")


def test_errors(tap, tree):
    for name, marker, expected in (
            ("a missing function", "<!-- code: 01_naive/cpu/v0_loops.c#gone -->\n<!-- /code -->",
             "no function, struct or macro named gone"),
            ("a part of a name", "<!-- code: 01_naive/cpu/v0_loops.c#add -->\n<!-- /code -->",
             "named add"),
            ("a missing file", "<!-- code: nowhere.c#f -->\n<!-- /code -->", "nowhere.c"),
            ("a missing tag", "<!-- code: 01_naive/cpu/v0_loops.c#[no] -->\n<!-- /code -->",
             "no lines between [no]"),
            ("an unclosed marker", "<!-- code: 01_naive/cpu/v0_loops.c#add_two -->\n",
             "not closed"),
            ("equal files", "<!-- diff: 01_naive/cpu/v0_loops.c 01_naive/cpu/v0_loops.c -->\n"
             "<!-- /diff -->", "do not differ"),
            ("a table of no row", '<!-- table: docs/r.jsonl filter="variant=v9_wrong" -->\n'
             "<!-- /table -->", "no checked row"),
            ("an unknown column", "<!-- table: docs/r.jsonl columns=colour -->\n<!-- /table -->",
             "no column 'colour'"),
            ("a number of two rows", "<!-- number: docs/r.jsonl column=ms_med --><!-- /number -->",
             "2 rows match"),
            ("a program that fails", "<!-- run: fails -->\n<!-- /run -->", "exit status 3"),
            ("a cut at nothing", "<!-- run: before=Nobody hello -->\n<!-- /run -->",
             "no line begins with Nobody"),
            ("a missing program", "<!-- run: absent -->\n<!-- /run -->", "no program absent"),
            ("a C file that is not C", "<!-- run: docs/broken.c -->\n<!-- /run -->",
             "docs/broken.c"),
            ("a quote without its partner", '<!-- code: "x -->\n<!-- /code -->', "No closing"),
            ("a status that is no number", "<!-- run: exit=x hello -->\n<!-- /run -->", "'x'"),
            ("a program without a name", "<!-- run: exit=1 -->\n<!-- /run -->", "IndexError"),
            ("a field that no row has", "<!-- table: docs/r.jsonl sort=colour -->\n<!-- /table -->",
             "'colour'"),
            ("a file that is no text", "<!-- code: docs/data.bin -->\n<!-- /code -->", "utf-8")):
        (tree.root / "docs/data.bin").write_bytes(b"\xff")
        tree.write("build/01_naive/fails", "#!/bin/sh\nexit 3\n").chmod(0o755)
        tree.write("docs/broken.c", "int main(void) { return }\n")
        page = tree.write("docs/bad.md", f"# Bad\n{marker}\n")
        done = tree.docs(str(page))
        tap.ok(done.returncode == 1 and expected in done.stderr and "bad.md" in done.stderr,
               f"{name} is an error that names the page", done.stdout + done.stderr)
        tap.ok(page.read_text() == f"# Bad\n{marker}\n", f"{name}: the page is not touched")
        page.unlink()


def test_bad_pages(tap, tree):
    page = tree.root / "docs/bad.md"
    for what, said in ((None, "bad.md: No such file"), (b"\xff", "UnicodeDecodeError")):
        if what:
            page.write_bytes(what)
        done = tree.docs(str(page))
        tap.ok(done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1,
               f"a page that cannot be read: {said}", done.stderr)
    page.unlink()


def test_kinds_of_code(tap, tree):
    page = tree.write("docs/kinds.md", "".join(
        f"<!-- code: 01_naive/cpu/v0_loops.c#{name} -->\n<!-- /code -->\n"
        for name in ("Pair", "TWICE", "unrelated", "one_kernel")))
    tree.docs(str(page))
    text = page.read_text()
    tap.ok("typedef struct Pair {\n    int a;\n} Pair;\n```" in text, "a struct", text)
    tap.ok("#define TWICE(x) \\\n    ((x) * 2)\n```" in text, "a macro of two lines", text)
    tap.ok("float unrelated(void)\n{\n    return add_two(1, 2);\n}\n```" in text
           and "float unrelated(void);" not in text, "a definition, not its prototype", text)
    tap.ok("```c\nstatic __global__ void __launch_bounds__(32)\n    one_kernel(float *x)\n{\n"
           "    *x = 1;\n}\n```" in text, "a kernel whose name stands below its attributes", text)
    page.unlink()


def test_lessons(tap, tree):
    """What a lesson needs: part of a function, no command lines, the map, terms from a folder."""
    tree.write("docs/glossary.md", "# Glossary\n\n### tile\n\nA part.\n")
    page = tree.write("docs/01_naive/1_sum.md", "# 01.1 A sum (11 minutes, no GPU)\n\nA tile.\n"
                      '<!-- code: 01_naive/cpu/v0_loops.c#add_two from="float s" to="return" -->\n'
                      "<!-- /code -->\n"
                      "<!-- table: docs/r.jsonl columns=variant commands=no sort=ms_med -->\n"
                      "<!-- /table -->\n"
                      "<!-- minutes: 01 01.1 --><!-- /minutes --> minutes\n"
                      "<!-- lessons: 01 -->\n<!-- /lessons -->\n")
    done = tree.docs(str(page))
    text = page.read_text()
    tap.ok(done.returncode == 0 and "A [tile](../glossary.md#tile)." in text,
           "a term is linked from a folder of lessons", done.stderr + text)
    tap.ok("static" not in text and re.search(r"```c\nfloat s.*return s;\n```", text, re.S),
           "from= and to= keep some lines, indentation removed", text)
    tap.ok("Test CPU" in text and "Command" not in text, "commands=no keeps the machine", text)
    tap.ok(0 < text.find("| v1_blas") < text.find("| v0_loops"), "sort= gives the rows an order",
           text)
    tap.ok(">22<!--" in text and "| [01.1 A sum](1_sum.md) | 11 | no GPU |" in text,
           "the map and the sum of the minutes", text)
    for old, new, wanted in (('from="float s"', 'from="double s"', "no line holds 'double s'"),
                             ('to="return"', 'to="goto"', "after 'float s' no line holds 'goto'"),
                             ("lessons: 01", "lessons: 02", "there is no lesson 02")):
        bad = tree.write("docs/01_naive/1_sum.md", text.replace(old, new))
        done = tree.docs(str(bad))
        tap.ok(done.returncode == 1 and wanted in done.stderr, f"an error: {wanted}", done.stderr)
    page.unlink()


def test_links_and_commands(tap, tree):
    for name, text, option, expected in (
            ("a dead link", "[x](gone.md)\n", "--links", "there is no gone.md"),
            ("a dead picture", "![x](figures/gone.svg)\n", "--links",
             "there is no figures/gone.svg"),
            ("a dead heading", "[x](page.md#nothing)\n", "--links", "no such heading"),
            ("a command that fails", "<!-- test-commands -->\n```sh\nfalse\n```\n", "--commands",
             "exit status 1"),
            ("an option that no help knows", "```sh\nbuild/01_naive/hello --nonsense 3\n```\n",
             "--commands", "does not know --nonsense"),
            ("a missing program", "```sh\n./ladder dance\n```\n", "--commands",
             "there is no ./ladder"),
    ):
        page = tree.write("docs/bad.md", text)
        tree.program("echo 'options: --seq N'")
        done = tree.docs(option, str(page))
        tap.ok(done.returncode == 1 and expected in done.stdout, f"{name} is found",
               done.stdout + done.stderr)
    good = tree.write("docs/bad.md", "[p](page.md#page) `[x](no.md)`\n<!-- test-commands -->\n"
                      "```sh\n# a comment\nbuild/01_naive/hello \\\n  --seq 3\n```\n"
                      "```sh\nbuild/01_naive/hello --seq=3\n```\n")
    for option in ("--links", "--commands"):
        done = tree.docs(option, str(good))
        tap.ok(done.returncode == 0, f"good ones pass {option}", done.stdout + done.stderr)
    good.unlink()


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder)
        test_insertion(tap, tree)
        test_pending(tap, tree)
        test_drift(tap, tree)
        test_c_file(tap, tree)
        test_cut(tap, tree)
        test_errors(tap, tree)
        test_bad_pages(tap, tree)
        test_kinds_of_code(tap, tree)
        test_lessons(tap, tree)
        test_links_and_commands(tap, tree)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
