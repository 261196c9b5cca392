# SPDX-License-Identifier: MIT
"""The repository's Markdown as a book. The sources stay as GitHub shows them; what a book needs and
GitHub does not (order, pages of sources, figures in the dark) is added here.

Interface (Sphinx calls these; environment LADDER_STEPS: the folder with steps.js and steps.css):
- add_contents: the order of pages.           - link_sources, source_page: C files as pages.
- add_steps: the scripts of a step page.      - discover, parts: a lab page a rung.
- short_titles: in the sidebar.
"""
import functools
import html
import os
import pathlib
import re

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from sphinx import addnodes
from sphinx.project import Project

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = pathlib.Path(os.environ["LADDER_STEPS"])
project = html_title = "Attention Ladder"
copyright = "MIT licence"
extensions = ["myst_parser"]
myst_heading_anchors = 6
suppress_warnings = ["myst.header"]
root_doc = "docs/README"
# What students may not see, and what is no page.
LEFT_OUT = ["docs/learn/*/hints.md", "docs/learn/*/fact.md", "docs/learn/solutions/**",
            "docs/course/*/instructor.md", "docs/course/twists.md", "docs/course/hints.md"]
exclude_patterns = ["build*", "out", "my", "peers", "tests", "handout*", *LEFT_OUT]
html_theme = "furo"
html_copy_source = html_show_sourcelink = html_show_search_summary = False
html_static_path = [str(STEPS)]
html_css_files = ["steps.css"]
html_search_scorer = str(ROOT / "docs/site/scorer.js")
pygments_style, pygments_dark_style = "default", "monokai"

PARTS = [("Lessons", ["docs/00_start_here", "docs/0?_*/README", "docs/gpu_on_paper",
                     "docs/numbers_differ"]),
         ("A step at a time", ["docs/steps/*"]),
         ("Do it", ["docs/learn/README", "docs/course/README"]),
         ("Programs", ["README", "0?_*/README", "docs/reading", "docs/json_schema"]),
         ("Look up", ["docs/glossary", "docs/simt_limits", "docs/lab/README",
                      "docs/results/README", "docs/examples/README", "common/data/README"])]


PARTED = "docs/lab/*_rungs"


def pages(pattern):
    return [str(p.relative_to(ROOT).with_suffix("")) for p in ROOT.glob(pattern + ".md")]


def numbers(page):
    """1.10 comes after 1.9."""
    return [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", page)]


def toctree(entries, options=""):
    lines = "\n".join(f"{e[:-7]} </{e}>" if re.fullmatch(r"0\d_\w+/README", e) else f"/{e}"
                      for e in entries)
    return f"\n\n```{{toctree}}\n:hidden:\n{options}\n{lines}\n```\n"


def steps_of(lesson):
    """The pages of the steps that a lesson names stand under it: 'steps 01.1a and 01.1b'."""
    last = (ROOT / f"{lesson}.md").read_text().rpartition("**Next:**")[2]
    named = re.findall(r"\b(0\d\.\d[a-z])\b", re.sub(r"\[.*?\]|`.*?`", "", last))
    return [p for n in dict.fromkeys(named) for p in pages(f"docs/learn/{n}_*/task")]


def step_pages_of(lesson):
    """The step pages that link to a lesson."""
    found = [(p.read_text(), p.name) for p in sorted((ROOT / "docs/steps").glob("*.md"))]
    return [(text[2:text.index("\n")], name) for text, name in found
            if f"../{lesson.removeprefix('docs/')}.md" in text]


@functools.cache
def parts(page):
    """{anchor: text}: what of a page stands in pages of its own, and under "" what is left."""
    text, stage = (ROOT / f"{page}.md").read_text(), pathlib.PurePosixPath(page).name[:2]
    level = "###" if "\n### " in text else "##"
    found = {"": ""}
    for piece in re.split(r"^(?=###? )", text, flags=re.M):
        title = piece.partition("\n")[0].removeprefix(f"{level} ")
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        if not piece.startswith(f"{level} "):
            found[""] += piece
        else:
            anchor += "-1" * (anchor in found)
            found[anchor] = re.sub(f"^{level[1:]}(?=#)", "", piece, flags=re.M).replace(
                "# ", f"# {stage} ", 1)
    here = pathlib.PurePosixPath(page).name  # what was on one page may be on another now
    return {part: text.replace("](#", f"]({here}.md#") for part, text in found.items()}


def discover(self, *patterns, whole=Project.discover):
    """A part is a page whose text comes from the same file."""
    whole(self, *patterns)
    for page in set(pages(PARTED)) & set(self.docnames):
        for part in filter(None, parts(page)):
            self.docnames.add(f"{page}/{part}")
            self._docname_to_path[f"{page}/{part}"] = self._docname_to_path[page]
    return self.docnames


Project.discover = discover


def lessons():
    return sorted((p for p in pages("docs/0?_*/*") if not p.endswith("README")), key=numbers)


def add_contents(app, docname, text):
    page, _, part = docname.rpartition("/")
    if page in pages(PARTED):
        text[0] = parts(page)[part]
    elif docname in pages(PARTED):
        below = parts(docname)
        text[0] = below[""] + toctree([f"{docname}/{part}" for part in below if part])
    elif docname == root_doc:
        for name, patterns in PARTS:
            text[0] += toctree([p for t in patterns for p in sorted(pages(t), key=numbers)],
                               f":caption: {name}\n")
    elif docname in lessons() and steps_of(docname):
        taken = [s for lesson in lessons()[:lessons().index(docname)] for s in steps_of(lesson)]
        text[0] += toctree([s for s in steps_of(docname) if s not in taken])
    elif docname.endswith("/README") and docname.startswith(("docs/", "common/")):
        here, placed = docname[:-len("README")], {s for p in lessons() for s in steps_of(p)}
        below = {p for t in ("*", "*/*") for p in pages(here + t)} - {docname} - placed
        below = sorted((p for p in below if p in app.env.found_docs), key=numbers)
        if below:
            text[0] += toctree(below)
    if docname in lessons():
        text[0] += "".join(f"\n\n**A step at a time:** [{title}](../steps/{name}).\n"
                           for title, name in step_pages_of(docname))
    if re.fullmatch(r"0\d_\w+/README", docname):  # the question in bold becomes the title
        text[0] = re.sub(r"\A\*\*(.*?)\*\*", r"# \1", text[0], flags=re.S)


def read_again(app, env, added, changed, removed):
    """A page more or less, or another title, changes the list beside every page."""
    titles = any(page.startswith("docs/steps/") or page.endswith("README") for page in changed)
    return list(env.all_docs) if env.all_docs and (added or removed or titles) else []


def left_out(path):
    return any(pathlib.PurePosixPath(path).match(p.removesuffix("/**")) for p in LEFT_OUT)


def link_sources(app, doctree):
    """Links to files that are no pages, and to folders: they become pages to read. A link to what
    the book leaves out stays as words."""
    page = pathlib.PurePosixPath(app.env.docname).parent
    here = page.parent if str(page) in pages(PARTED) else page
    for node in [*doctree.findall(addnodes.download_reference),
                 *doctree.findall(addnodes.pending_xref)]:
        path = os.path.normpath(here / node["reftarget"].partition("#")[0])
        if left_out(path) or left_out(node["reftarget"].lstrip("/") + ".md"):
            node.replace_self(node.children)
        elif (node["reftarget"] in pages(PARTED)
              and node["reftargetid"] in parts(node["reftarget"])):
            node["reftarget"] += "/" + node["reftargetid"]
            node["reftargetid"] = None
        elif (ROOT / path).is_dir() or isinstance(node, addnodes.download_reference) and not (
                path.endswith((".json", ".jsonl", ".npy"))):
            source_page(app.outdir, path)
            node.replace_self(nodes.reference("", "", *node.children, internal=True,
                                              refuri=os.path.relpath(f"source/{path}.html", page)))


SOURCE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{path}</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="{up}/_static/pygments.css">
<link rel="stylesheet" href="{up}/_static/steps.css">
<body class="source"><a href="{up}/index.html">Attention Ladder</a><h1>{path}</h1>{body}\n"""


def source_page(out, path):
    """A plain page: with the list of all pages at its side it would take ten times as long."""
    file, page = ROOT / path, pathlib.Path(out, "source", f"{path}.html")
    if page.exists() and page.stat().st_mtime > file.stat().st_mtime:
        return
    if file.is_dir():
        body = "".join(f"<li>{html.escape(p.name)}</li>" for p in sorted(file.iterdir()))
    else:
        try:
            lexer = get_lexer_for_filename(path.replace(".cuh", ".cu"))
        except ValueError:
            lexer = TextLexer()
        body = highlight(file.read_text(errors="replace"), lexer,
                         HtmlFormatter(linenos="inline", lineanchors="L", cssclass="highlight"))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(SOURCE.format(path=path, body=body, up=os.path.relpath(out, page.parent)))


MINUTES = re.compile(r" \((\d+ minutes?.*?)\)$")


def time_below(app, doctree):
    """(15 minutes, no GPU) goes from the title to a line below it."""
    for title in list(doctree.findall(nodes.title))[:1]:
        found = MINUTES.search(title.astext())
        text = list(title.findall(nodes.Text))[-1:]
        if found and text and text[0].endswith(found[0]):
            text[0].parent.replace(text[0], nodes.Text(text[0].removesuffix(found[0])))
            line = nodes.paragraph("", "", nodes.emphasis("", found[1] + "."))
            title.parent.insert(title.parent.index(title) + 1, line)


def one_value(app, doctree):
    """A column that repeats one value goes; the value stands once, below the table."""
    for group in list(doctree.findall(nodes.tgroup)):
        rows, said = list(group.findall(nodes.row)), []
        for k in reversed(range(len(rows[0]))):
            values = {row[k].astext() for row in rows[1:]}
            if len(rows) > 3 and len(values) == 1:
                said.insert(0, f"{rows[0][k].astext()}: {values.pop()}")
                for parent in (*rows, group):  # a tgroup has its colspecs first
                    del parent[k]
        if said:
            group["cols"] -= len(said)
            below = nodes.paragraph("", "", nodes.emphasis("", f"{'; '.join(said)}, in all rows."))
            group.parent.parent.insert(group.parent.parent.index(group.parent) + 1, below)


def short_titles(app, env):
    """... and away from the list of pages."""
    for page in env.found_docs:
        for text in [*env.titles[page].findall(nodes.Text),
                     *list(env.tocs[page].findall(nodes.Text))[:1]]:
            text.parent.replace(text, nodes.Text(MINUTES.sub("", text)))


def add_steps(app, pagename, templatename, context, doctree):
    if pagename.startswith("docs/steps/"):
        for script in ("steps.wasm.js", "steps.js", "pages.js", "ring.js", "gpu.js"):
            app.add_js_file(script)


def finish(app, error):
    """index.html opens the first page, slides.html the step pages; their rungs are pages, too."""
    out = pathlib.Path(app.outdir)
    old = [str(p.relative_to(out / "source"))[:-5] for p in (out / "source").rglob("*.html")]
    for path in old + re.findall(r'"(0\d_[^"]*)":\[', (STEPS / "steps.wasm.js").read_text()):
        if (ROOT / path).exists():
            source_page(app.outdir, path)
    for name, page in (("index", "docs/README.html"),
                       ("slides", "docs/steps/01_scores_to_output.html?slides")):
        (out / f"{name}.html").write_text(
            '<!doctype html><meta charset="utf-8"><title>Attention Ladder</title><meta '
            f'http-equiv="refresh" content="0; url={page}"><a href="{page}">Attention Ladder</a>\n')


def setup(app):
    app.connect("env-get-outdated", read_again)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", link_sources, priority=100)  # before Sphinx copies the files
    app.connect("doctree-read", time_below)
    app.connect("doctree-read", one_value)
    app.connect("env-updated", short_titles)
    app.connect("html-page-context", add_steps)
    app.connect("build-finished", finish)
