#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is common/tools/docs.py able to fail? It works on a small tree of its own, made here: each kind
of drift, broken markers, dead links and dead commands. (That every kind of marker is filled rightly
the committed pages show: docs_drift.)"""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE.parents[1]), str(ROOT / "common/tools")]
import source_hashes  # noqa: E402
from tap import Tap  # noqa: E402

SOURCE = "01_naive/cpu/v0_loops.c"
LOOPS = """float add_two(float a, float b)
{
    float s = a + b;
    return s;
}
"""
PAGE = """# Page
<!-- code: 01_naive/cpu/v0_loops.c#add_two -->
<!-- /code -->
<!-- table: docs/r.jsonl columns=variant,ms_med,speed filter="N=64" -->
<!-- /table -->
It takes
<!-- number: docs/r.jsonl column=ms_med filter="variant=v0_loops N=64" --><!-- /number --> ms.
<!-- run: hello 1 2 -->
<!-- /run -->
"""


class Tree:
    def __init__(self, folder):
        self.root = pathlib.Path(folder).resolve()
        self.write(SOURCE, LOOPS)
        self.write("01_naive/cpu/v1_blas.c", LOOPS)
        self.sources = source_hashes.sources_hashes(self.root)
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
        lines = [json.dumps({
            "stage": "naive", "variant": name, "device": "cpu", "dtype": "f32", "B": 1, "H": 1,
            "Hkv": 1, "Nq": 64, "Nk": 64, "d": 8, "ms_med": time, "flops": 1e6, "pass": good,
            "sources_sha256": self.sources.get(("01_naive", name)), "cpu": "Test CPU",
            "command": "naive -N 64"}) for name, time, good in (
                ("v0_loops", ms, True), ("v1_blas", 0.5, True), ("v9_wrong", 0.001, False),
                ("v8_unchecked", 0.002, None))]
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
    tap.ok(done.returncode == 0 and "| v1_blas | 0.500 | 4.00x |" in page, "a page is written",
           done.stderr + page)
    tap.ok("v9_wrong" not in page and "v8_unchecked" not in page,
           "rows that failed or were not checked are left out", page)
    tap.ok("†" not in page, "rows measured on today's sources carry no mark", page)
    again = tree.docs()
    tap.ok(again.stdout == "" and page == tree.page(), "writing twice changes nothing",
           again.stdout)


def drifts(tap, tree, name, change, undo, expected):
    change()
    done = tree.docs("--check")
    tap.ok(done.returncode == 1 and expected in done.stdout, f"drift is found and shown: {name}",
           f"status {done.returncode}\n{done.stdout}{done.stderr}")
    undo()
    tap.ok(tree.docs("--check").returncode == 0, f"and is gone again: {name}")


def test_drift(tap, tree):
    def restore():
        tree.write(SOURCE, LOOPS)

    drifts(tap, tree, "code", lambda: tree.write(SOURCE, LOOPS.replace("return s;", "return -s;")),
           restore, "+    return -s;")
    drifts(tap, tree, "the source behind a recorded row",
           lambda: tree.write(SOURCE, LOOPS + "\nint later;\n"), restore, "+| v0_loops †")
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


def test_errors(tap, tree):
    """A marker that cannot be filled names its page, which is not touched."""
    for marker, expected in (
            ("<!-- code: 01_naive/cpu/v0_loops.c#gone -->\n<!-- /code -->",
             "no function, struct or macro named gone"),
            ("<!-- code: nowhere.c#f -->\n<!-- /code -->", "nowhere.c"),
            ("<!-- code: 01_naive/cpu/v0_loops.c#add_two -->\n", "not closed"),
            ('<!-- table: docs/r.jsonl filter="variant=v9_wrong" -->\n<!-- /table -->',
             "no checked row"),
            ("<!-- number: docs/r.jsonl column=ms_med --><!-- /number -->", "2 rows match"),
            ("<!-- run: fails -->\n<!-- /run -->", "exit status 3"),
            ("<!-- run: absent -->\n<!-- /run -->", "no program absent")):
        tree.write("build/01_naive/fails", "#!/bin/sh\nexit 3\n").chmod(0o755)
        page = tree.write("docs/bad.md", f"# Bad\n{marker}\n")
        done = tree.docs(str(page))
        tap.ok(done.returncode == 1 and expected in done.stderr and "bad.md" in done.stderr
               and page.read_text() == f"# Bad\n{marker}\n", f"an error: {expected}",
               done.stdout + done.stderr)
        page.unlink()


def test_links_and_commands(tap, tree):
    for name, text, option, expected in (
            ("a dead link", "[x](gone.md)\n", "--links", "there is no gone.md"),
            ("a dead picture", "![x](figures/gone.svg)\n", "--links",
             "there is no figures/gone.svg"),
            ("a dead heading", "[x](page.md#nothing)\n", "--links", "no such heading"),
            ("TeX in a line", "All, $l \\le 0$.\n", "--links", "a formula in TeX"),
            ("TeX, displayed", "$$ \\frac12 $$\n", "--links", "a formula in TeX"),
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
        test_drift(tap, tree)
        test_errors(tap, tree)
        test_links_and_commands(tap, tree)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
