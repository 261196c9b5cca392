#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_site.py BUILD [--no-wrong]: the book builds without a warning; what its step pages show is
what the native programs in BUILD compute; and a page whose C code is wrong shows something else.

A page opened with ?selftest in headless Chromium presses the keys itself and writes what each step
shows at its end. Numbers are compared within one last digit: a browser has no fused multiply-add.
What is not here (Sphinx in build/site-venv, clang for WebAssembly, Chromium) is skipped, and said.
"""
import concurrent.futures
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/wrong"), str(ROOT / "common/tools")]
import npy_small  # noqa: E402
from tap import Tap  # noqa: E402
from workshop import apply_hunks, changed_text, read_patch  # noqa: E402

BUILD = pathlib.Path(sys.argv[1]).resolve()
SITE = ROOT / "out/site"
PROGRAMS = {"naive": "01_naive/naive", "rows": "02_tiled_softmax/tiled_softmax",
            "flash": "03_flash_forward/flash_forward",
            "backward": "04_flash_backward/flash_backward",
            "window": "05_sliding_window_online/sliding_window", "ring": "06_ring_burst/ring_burst"}
HAND = [f"--{t}={ROOT}/docs/examples/hand_{t}.npy" for t in "qkv"]
TURNED = [f"--{t}={ROOT}/docs/examples/hand_{t}{'_turned' * (t != 'q')}.npy" for t in "qkv"]


def native(program, *flags):
    done = subprocess.run([str(BUILD / PROGRAMS[program]), "--device=cpu", *flags], cwd=ROOT,
                          input="", capture_output=True, text=True, check=True)
    return [line.removesuffix(" *").rstrip() for line in done.stdout.splitlines()]


def saved(program, *flags):
    """{"o": rows, "lse": numbers ...} of one head."""
    with tempfile.TemporaryDirectory() as folder:
        native(program, "--quiet", "--save", folder, *flags)
        found = {}
        for file in pathlib.Path(folder).glob("*.npy"):
            shape, x = npy_small.read(file)
            d = shape[-1] if file.stem != "lse" else 1
            found[file.stem] = [x[k:k + d] for k in range(0, len(x), d)]
        return found


def shows(page, choices, static=None):
    """What a page shows at each step; static: a folder in the place of the site's own scripts."""
    with tempfile.TemporaryDirectory() as folder:
        site = SITE
        if static:
            site = pathlib.Path(folder) / "site"
            (site / "docs/steps").mkdir(parents=True)
            shutil.copy(SITE / f"docs/steps/{page}.html", site / "docs/steps")
            os.symlink(static, site / "_static")
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
             f"--user-data-dir={folder}/user", "--virtual-time-budget=20000",
             f"file://{site}/docs/steps/{page}.html?selftest#ask=0&{choices}"],
            capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'id="selftest">(.*?)</script>', done.stdout, re.S)
    return json.loads(html.unescape(found[1])) if found else []


# Every page in a frame as wide as a phone: which are wider, which have an error of a script.
SWEEP = """<body><script>
const pages = %s, bad = [];
async function next(frame) {
    for (let page; page = pages.pop();) {
        frame.src = page;
        await new Promise(done => frame.onload = done);
        const w = frame.contentWindow, wide = w.document.documentElement.scrollWidth;
        if (wide > 390) bad.push(page + ": " + wide + " px");
        if (w.document.querySelector(".wrong")) bad.push(page + ": a step page stopped");
    }
}
const frames = [1, 2, 3].map(() => document.body.appendChild(document.createElement("iframe")));
frames.forEach(f => f.style = "width:390px;height:844px;border:0");
Promise.all(frames.map(next)).then(() => document.title = "swept " + bad.join("; "));
</script>"""


def sweep(pages):
    """What is wrong with pages at 390 px, and what the browser's console says."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "sweep.html"
        file.write_text(SWEEP % json.dumps([p.as_uri() for p in pages]))
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
             "--allow-file-access-from-files", "--enable-logging=stderr", "--timeout=100000",
             f"--user-data-dir={folder}/user", "--virtual-time-budget=1000000", file.as_uri()],
            capture_output=True, text=True, timeout=200, check=False)
    title = re.search(r"<title>swept (.*?)</title>", done.stdout)
    said = re.findall(r"CONSOLE[^\n]*", done.stderr)
    return [title[1] if title else "it did not end", *said[:5]] if (
        not title or title[1] or said) else []


def same(shown, wanted):
    """Two tables of numbers, within one last digit of the four that a page shows."""
    if len(shown) != len(wanted) or not shown:
        return False
    return all(len(a) == len(b) and all(x != "" and (float(x) == y or abs(float(x) - y) <= 1.1e-4)
                                        for x, y in zip(a, b)) for a, b in zip(shown, wanted))


def beside(first, second):
    return [list(a) + list(b) for a, b in zip(first, second)]


# --- what each page must show: (page, choices, check(steps) -> list of (what, good)) --------------

def case_of(N, d, seed, causal=False):
    return [*f"-B 1 -H 1 -N {N} -d {d} --seed {seed}".split(), *(["--causal"] if causal else [])]


def scores(flags, choices):
    def check(steps):
        want = saved("naive", "--variant=v0_loops", *flags)
        return [("O and lse", same(steps[-1]["shown"]["O lse"], beside(want["o"], want["lse"])))]
    return "01_scores_to_output", choices, check


def online(flags, choices, query):
    def check(steps):
        want = saved("rows", "--variant=v1_online", *flags)
        told = native("rows", "--trace", "--step", *flags)
        both = [line.split()[1:3] for line in told if line.startswith("  both")]
        pairs = [s["shown"]["state"][1] for s in steps]
        pairs = [pairs[min(2 * k + 1, len(pairs) - 1)] for k in range(len(both))]
        return [("lse", same(steps[-1]["shown"]["lse"], [want["lse"][query]])),
                ("(m, l) after each block of the trace",
                 same(pairs, [list(map(float, b)) for b in both]))]
    return "02_1_online_pair", choices, check


def tree(N, query, seed):
    def check(steps):
        want = saved("rows", "--variant=v2_tiled_merge", *case_of(N, 4, seed))
        merges = [s for s in steps if "merge: m" in s["say"]]
        return [("lse", same(steps[-1]["shown"]["lse"], [want["lse"][query]])),
                ("a merge for each block but one", len(merges) == -(-N // 64) - 1)]
    return "02_2_merge_tree", f"N={N}&query={query}&seed={seed}", check


def flash(rung, flags, choices, M):
    variant = {"v0": "v0_fa1_tiles", "v1": "v1_fa2_rows"}[rung]

    def check(steps):
        flags_m = [*flags, f"--sram={M}", f"--variant={variant}"]
        want, told = saved("flash", *flags_m), native("flash", "--trace", *flags_m)
        moved = next(re.findall(r"\d+", t)[-2:] for t in told if t.startswith(f"  {rung} "))
        result = [("O and lse", same(steps[-1]["shown"]["result"], beside(want["lse"], want["o"]))),
                  ("loads and stores", steps[-1]["shown"]["traffic"] == [moved])]
        if rung == "v0":
            pages = "\n".join(native("flash", "--trace", "--step", *flags_m)).split("-- page")
            seen = [p for p in pages if re.search(r"^  S .*\d\.\d", p, re.M)]  # not skipped
            rows = [[r.split()[1:] for r in re.findall(r"^  (q\d+ .*)$", p, re.M)] for p in seen]
            tiles = [s["shown"]["m l O"] for s in steps if s["say"].startswith("O of")]
            want = [[list(map(float, r)) for r in p] for p in rows if p][:len(tiles)]
            result.append((f"m, l, O after each of {len(tiles)} tiles", len(tiles) == len(want) and
                           all(same(a, b) for a, b in zip(tiles, want))))
        return result
    return "03_tiles", f"rung={rung}&M={M}&{choices}", check


def backward(rung, flags, choices):
    variant = {"0": "v0_fa1_backward", "1": "v1_fa2_backward"}[rung]

    def check(steps):
        want, last = saved("backward", f"--variant={variant}", *flags), steps[-1]["shown"]
        return [(t, same(last[t], want[t.lower()])) for t in ("dQ", "dK", "dV")]
    return "04_backward_tiles", f"rung=backward{rung}&{choices}", check


def blocks(N, d, window, order, seed):
    def check(steps):
        want = saved("window", "--variant=v1_online_block", *case_of(N, d, seed, True),
                     f"--window={window},0", "--block-q=2", "--block-kv=3", "--order=columns")
        return [("O and lse", same(steps[-1]["shown"]["result"], beside(want["lse"], want["o"])))]
    return ("05_blocks_in_any_order", f"N={N}&d={d}&Br=2&Bc=3&window={window}&order={order}&"
            f"input={seed}", check)


def cache(N, d, window, seed):
    def check(steps):
        want = saved("window", "--variant=v3_streaming", *case_of(N, d, seed, True),
                     f"--window={window},0")
        held = [set(map(int, s["shown"]["slots"][0])) for s in steps]
        return [("O and lse", same(steps[-1]["shown"]["result"], beside(want["lse"], want["o"]))),
                ("the cache holds the last tokens", held == [
                    set(range(max(0, t - window), t + 1)) for t in range(N)])]
    return "05_rolling_cache", f"N={N}&d={d}&window={window}&input={seed}", check


def who(steps, told):
    """Who works with whose block and sends what to whom, as --trace --step says it."""
    pages = [p.split("\n") for p in "\n".join(told).split("-- page") if "pass, step" in p]
    if len(pages) != len(steps):
        return False
    for k, (lines, step) in enumerate(zip(pages, steps)):
        text = "\n".join(lines)
        t = int(re.search(r"step (\d+):", text)[1])
        table = re.split(r"^(?:for|back)ward +step.*$", text, flags=re.M)[1]
        for rank, (works, pairs, _, sends) in enumerate(step["shown"]["ranks"]):
            cells = re.search(rf"^rank {rank} .*$", table, re.M)[0]
            cell = re.findall(r"([KQ]\d+) (\w+)", cells)[t]
            said = re.search(rf"^rank {rank} +sends (.*)$", text, re.M)
            said = set(re.findall(r"to (\d+): ([A-Za-z ]+)", said[1])) if said else set()
            mine = {(to, what) for what, to in re.findall(r"([A-Za-z ]+?) to (\d+)", sends)}
            same_words = {(a, *sorted(b.split())) for a, b in said} == {
                (a, *sorted(b.split())) for a, b in mine}
            if works != cell[0] or (pairs == "skip") != (cell[1] == "skip") or not same_words:
                return False
    return True


def ring(method, layout, ranks, N, causal, left, backward):
    number = {"ring-minimal": 7, "ring": 1, "burst": 2, "allgather": 3}[method]
    form = {"contiguous": 0, "zigzag": 1, "striped": 2}[layout]
    flags = [*case_of(N, 2, 0, causal), f"--method={method}", f"--layout={layout}",
             f"--ranks={ranks}", *[f"--window={left},0"] * (left >= 0), *["--backward"] * backward]

    def check(steps):
        want, told = saved("ring", *flags), native("ring", "--trace", "--step", *flags)
        last = [s["shown"]["lse O"] for s in steps if "lse O" in s["shown"]][-1]
        return [("O and lse", same(last, beside(want["lse"], want["o"]))),
                (f"who works with whom, who sends what: {len(steps)} steps", who(steps, told))]
    return ("06_1_ring", f"method={number}&layout={form}&ranks={ranks}&N={N}&causal={int(causal)}&"
            f"left={left}&backward={int(backward)}&d=2", check)


CASES = [
    scores(HAND, "input=hand"), scores(case_of(6, 3, 1, True), "input=1&N=6&d=3&causal=1"),
    online(HAND, "input=hand&query=3", 3),
    online(case_of(5, 4, 1), "input=1&N=5&query=4", 4),
    tree(300, 3, 0), tree(1024, 60, 2), tree(129, 0, 1),
    flash("v0", case_of(6, 2, 0), "N=6&d=2&input=0", 16),
    flash("v0", case_of(5, 3, 1, True), "N=5&d=3&input=1&causal=1", 24),
    flash("v0", TURNED, "input=turned", 16),
    flash("v1", case_of(6, 2, 0), "N=6&d=2&input=0", 16),
    flash("v1", case_of(7, 2, 2, True), "N=7&d=2&input=2&causal=1", 9),
    backward("0", case_of(5, 3, 0), "N=5&d=3&Br=2&Bc=2&input=0"),
    backward("1", case_of(6, 2, 1, True), "N=6&d=2&Br=2&Bc=3&input=1&causal=1"),
    blocks(8, 2, 3, "shuffled", 0), blocks(7, 3, 15, "backwards", 1), cache(9, 2, 2, 0),
    ring("ring-minimal", "contiguous", 3, 12, False, -1, False),
    ring("ring", "zigzag", 4, 16, True, -1, True), ring("burst", "striped", 4, 16, True, -1, True),
    ring("ring", "contiguous", 8, 32, True, 6, False),
]

# Wrong solutions that a page must show: patch, number of its case above.
WRONG = {"101": 0, "103": 0, "109": 1, "110": 0, "205": 4, "206": 4, "401": 7, "402": 7,
         "404": 10, "405": 10, "406": 10, "407": 11, "501": 13, "502": 13, "503": 12, "504": 13,
         "509": 12, "517": 13, "703": 18, "714": 18, "720": 19}


def judged(case, static=None):
    page, choices, check = case
    steps = shows(page, choices, static)
    try:
        return [("it opens", bool(steps))] + (check(steps) if steps else [])
    except (KeyError, IndexError, ValueError) as why: # a wrong program may show no such table
        return [(f"what it shows can be read: {why!r}", False)]


def wrong_one(name):
    """The failed checks of a page whose rung is patched."""
    path = next((ROOT / "tests/wrong").glob(f"{name}_*.patch"))
    fields, hunks = read_patch(path)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "rungs" / fields["file"]
        file.parent.mkdir(parents=True)
        file.write_text(apply_hunks(changed_text(fields), hunks))
        static = pathlib.Path(folder) / "static"
        shutil.copytree(SITE / "_static", static)
        made = ladder("--steps", SITE_RUNGS=f"{folder}/rungs", SITE_OUT=str(static))
        if made.returncode != 0:
            return path.name, made.stderr
        return path.name, [what for what, good in judged(CASES[WRONG[name]], static) if not good]


def ladder(*words, **environment):
    return subprocess.run([str(ROOT / "ladder"), "site", *words], capture_output=True, text=True,
                          check=False, env={**os.environ, "LADDER_NO_INSTALL": "1", **environment})


def main():
    tap = Tap()
    done = ladder()
    if done.returncode == 2:
        return tap.skip_all(done.stderr.strip().splitlines()[-1])
    if not tap.ok(done.returncode == 0, "./ladder site: every page, no warning", done.stderr):
        return tap.done()
    pages = list(SITE.rglob("*.html"))
    text = {p: p.read_text() for p in pages}
    outside = [str(p) for p in pages if re.search(
        r'<(script|img|iframe)[^>]* src="(https?:)?//|<link[^>]* href="(https?:)?//', text[p])]
    tap.ok(not outside, f"{len(pages)} pages fetch nothing from outside", outside[:9])
    hidden = [str(p) for p in pages if re.search(r"hints\.html|instructor|solutions/", str(p))]
    tap.ok(not hidden, "hints, solutions and instructor's notes are not in it", hidden)
    size = (ROOT / "build/steps/steps.wasm").stat().st_size
    tap.ok(size <= 450_000, f"the program of the step pages has {size} bytes, at most 450,000")
    if not shutil.which("chromium"):
        tap.skip("the step pages in a browser", "chromium is not here")
        return tap.done()
    wrong = sweep(pages)
    tap.ok(not wrong, f"{len(pages)} pages: none wider than 390 px, no error in the console", wrong)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for case, checks in zip(CASES, pool.map(judged, CASES)):
            for what, good in checks:
                tap.ok(good, f"{case[0]} {case[1]}: {what}")
        if "--no-wrong" not in sys.argv:
            for name, failed in pool.map(wrong_one, WRONG):
                tap.ok(isinstance(failed, list) and failed, f"{name}: its page shows it: {failed}")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
