#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_site.py BUILD [--no-wrong]: the book builds without a warning; what its step pages show is
what the native programs in BUILD compute; and a page whose C code is wrong shows something else.

A page opened with ?selftest in headless Chromium presses the keys itself and writes what each step
shows at its end. Numbers are compared within one last digit: a browser has no fused multiply-add.
What is not here (Sphinx in build/site-venv, clang for WebAssembly, Chromium) is skipped, and said.
"""
import collections
import concurrent.futures
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


# Each page in a frame as wide as a phone: how wide it is, whether a script of it stopped, and what
# a step page shows at each step.
LOOK = """<body><script>
const pages = %s, seen = {};
async function next(frame) {
    for (let page; page = pages.pop();) {
        frame.src = page;
        await new Promise(done => frame.onload = done);
        const d = frame.contentDocument, end = "#selftest, .wrong";
        for (let k = 0; page.includes("?selftest") && k < 999 && !d.querySelector(end); k++)
            await new Promise(done => setTimeout(done, 20));
        const steps = d.querySelector("#selftest");
        seen[page] = [d.documentElement.scrollWidth, !!d.querySelector(".wrong"),
                      steps ? JSON.parse(steps.textContent) : []];
    }
}
const frames = [1, 2, 3].map(() => document.body.appendChild(document.createElement("iframe")));
frames.forEach(f => f.style = "width:390px;height:844px;border:0");
Promise.all(frames.map(next)).then(() => {
    const all = document.body.appendChild(document.createElement("script"));
    all.id = "seen", all.type = "application/json";
    all.textContent = JSON.stringify(seen).replaceAll("<", "\\u003c");
});
</script>"""


def look(pages):
    """{page: [width, stopped, steps]} by one browser, and what its console says."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "look.html"
        file.write_text(LOOK % json.dumps(pages))
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
             "--allow-file-access-from-files", "--enable-logging=stderr", "--timeout=200000",
             f"--user-data-dir={folder}/user", "--virtual-time-budget=1000000", file.as_uri()],
            capture_output=True, text=True, timeout=300, check=False)
    found = re.search(r'id="seen"[^>]*>(.*?)</script>', done.stdout, re.S)
    said = re.findall(r"CONSOLE[^\n]*", done.stderr)
    return json.loads(found[1]) if found else {}, said


def address(number, site=SITE):
    """Of a case's page; a number of its own, so that no two differ in what stands after # alone."""
    page, choices, _ = CASES[number]
    return f"file://{site}/docs/steps/{page}.html?selftest={number}#ask=0&{choices}"


def same(shown, wanted):
    """Two tables of numbers, within one last digit of the four that a page shows."""
    if len(shown) != len(wanted) or not shown:
        return False
    return all(len(a) == len(b) and all(x != "" and (float(x) == y or abs(float(x) - y) <= 1.1e-4)
                                        for x, y in zip(a, b)) for a, b in zip(shown, wanted))


# --- what each page must show: (page, choices, check(steps) -> list of (what, good)) --------------

def page(name, choices, program, flags, tables, more=lambda steps, want: []):
    """tables: {a table that the page shows in the end: which saved tensors stand in it}."""
    def check(steps):
        want, last = saved(program, *flags), {}
        for step in steps:
            last.update(step["shown"])
        found = [("the line of C", all(s["code"] for s in steps))]
        for table, tensors in tables.items():
            rows = zip(*(want[t] for t in tensors.split()))
            found.append((table, same(last[table], [[x for r in row for x in r] for row in rows])))
        return found + more(steps, want)
    return name, choices, check


def case_of(N, d, seed, causal=False):
    return [*f"-B 1 -H 1 -N {N} -d {d} --seed {seed}".split(), *(["--causal"] if causal else [])]


def scores(flags, choices):
    return page("01_scores_to_output", choices, "naive", ["--variant=v0_loops", *flags],
                {"O lse": "o lse"})


def online(flags, choices, query):
    def more(steps, want):
        told = native("rows", "--trace", "--step", *flags)
        both = [line.split()[1:3] for line in told if line.startswith("  both")]
        pairs = [s["shown"]["state"][1] for s in steps]
        pairs = [pairs[min(2 * k + 1, len(pairs) - 1)] for k in range(len(both))]
        return [("lse", same(steps[-1]["shown"]["lse"], [want["lse"][query]])),
                ("(m, l) after each block of the trace",
                 same(pairs, [list(map(float, b)) for b in both]))]
    return page("02_1_online_pair", f"{choices}&query={query}", "rows",
                ["--variant=v1_online", *flags], {}, more)


def tree(N, query, seed):
    def more(steps, want):
        merges = [s for s in steps if "merge: m" in s["say"]]
        return [("lse", same(steps[-1]["shown"]["lse"], [want["lse"][query]])),
                ("a merge for each block but one", len(merges) == -(-N // 64) - 1)]
    return page("02_2_merge_tree", f"N={N}&query={query}&seed={seed}", "rows",
                ["--variant=v2_tiled_merge", *case_of(N, 4, seed)], {}, more)


def flash(rung, flags, choices, M):
    variant = {"v0": "v0_fa1_tiles", "v1": "v1_fa2_rows"}[rung]
    flags = [*flags, f"--sram={M}", f"--variant={variant}"]

    def more(steps, _):
        told = native("flash", "--trace", *flags)
        moved = next(re.findall(r"\d+", t)[-2:] for t in told if t.startswith(f"  {rung} "))
        result = [("loads and stores", steps[-1]["shown"]["traffic"] == [moved])]
        if rung == "v0":
            pages = "\n".join(native("flash", "--trace", "--step", *flags)).split("-- page")
            seen = [p for p in pages if re.search(r"^  S .*\d\.\d", p, re.M)]  # not skipped
            rows = [[r.split()[1:] for r in re.findall(r"^  (q\d+ .*)$", p, re.M)] for p in seen]
            tiles = [s["shown"]["m l O"] for s in steps if s["say"].startswith("O of")]
            want = [[list(map(float, r)) for r in p] for p in rows if p][:len(tiles)]
            result.append((f"m, l, O after each of {len(tiles)} tiles", len(tiles) == len(want) and
                           all(same(a, b) for a, b in zip(tiles, want))))
        return result
    return page("03_tiles", f"rung={rung}&M={M}&{choices}", "flash", flags, {"result": "lse o"},
                more)


def backward(rung, flags, choices):
    variant = {"0": "v0_fa1_backward", "1": "v1_fa2_backward"}[rung]
    return page("04_backward_tiles", f"rung=backward{rung}&{choices}", "backward",
                [f"--variant={variant}", *flags], {"dQ": "dq", "dK": "dk", "dV": "dv"})


def blocks(N, d, window, order, seed):
    return page("05_blocks_in_any_order", f"N={N}&d={d}&Br=2&Bc=3&window={window}&order={order}&"
                f"input={seed}", "window", ["--variant=v1_online_block", *case_of(N, d, seed, True),
                f"--window={window},0", "--block-q=2", "--block-kv=3", "--order=columns"],
                {"result": "lse o"})


def cache(N, d, window, seed):
    def more(steps, _):
        held = [set(map(int, s["shown"]["slots"][0])) for s in steps]
        return [("the cache holds the last tokens", held == [
            set(range(max(0, t - window), t + 1)) for t in range(N)])]
    return page("05_rolling_cache", f"N={N}&d={d}&window={window}&input={seed}", "window",
                ["--variant=v3_streaming", *case_of(N, d, seed, True), f"--window={window},0"],
                {"result": "lse o"}, more)


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

    def more(steps, _):
        told = native("ring", "--trace", "--step", *flags)
        return [(f"who works with whom, who sends what: {len(steps)} steps", who(steps, told))]
    return page("06_1_ring", f"method={number}&layout={form}&ranks={ranks}&N={N}&causal="
                f"{int(causal)}&left={left}&backward={int(backward)}&d=2", "ring", flags,
                {"lse O": "lse o"}, more)


def waits(rung):
    """The one page that plays a recording: the ticks of its steps are those of the trace."""
    trace = json.loads((ROOT / f"docs/results/simt_trace_{rung}.json").read_text())["traceEvents"]

    def check(steps):
        want, told = collections.Counter(), zip(*(map(int, s["shown"]["ticks"][0]) for s in steps))
        for e in trace:
            if e["ph"] == "X" and e["tid"] == 0:
                want[e["name"]] += e["dur"]
        return [("the ticks of warp 0", sorted(want.values()) == [
            t for t in sorted(map(sum, told)) if t])]
    return "03_who_waits", f"rung={rung}", check


CASES = [
    scores(HAND, "input=own"), scores(case_of(6, 3, 1, True), "input=1&N=6&d=3&causal=1"),
    online(HAND, "input=hand", 3),
    online(case_of(5, 4, 1), "input=1&N=5", 4),
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
    ring("ring", "contiguous", 8, 32, True, 6, False), waits("v5_cp_async"),
    ("03_tiles", "ask=1", lambda steps: [("a question holds the next step",
                                          1 < len({s["hash"] for s in steps}) < len(steps))]),
]

# Wrong solutions that a page must show: patch, number of its case above.
WRONG = {"101": 0, "103": 0, "109": 1, "110": 0, "205": 4, "206": 4, "401": 7, "402": 7,
         "404": 10, "405": 10, "406": 10, "407": 11, "501": 13, "502": 13, "503": 12, "504": 13,
         "509": 12, "517": 13, "703": 18, "714": 18, "720": 19}


def judged(number, seen, site=SITE):
    steps = seen.get(address(number, site), [0, 0, []])[2]
    try:
        return CASES[number][2](steps) if steps else [("it opens", False)]
    except (KeyError, IndexError, ValueError) as why:  # a wrong program may show no such table
        return [(f"what it shows can be read: {why!r}", False)]


def wrong_site(name, folder):
    """The page that a wrong solution must fail, beside its program: the folder, or what failed."""
    fields, hunks = read_patch(next((ROOT / "tests/wrong").glob(f"{name}_*.patch")))
    site, page = folder / name, f"docs/steps/{CASES[WRONG[name]][0]}.html"
    file = site / "rungs" / fields["file"]
    for new in (file, site / page):
        new.parent.mkdir(parents=True)
    file.write_text(apply_hunks(changed_text(fields), hunks))
    shutil.copy(SITE / page, site / page)
    shutil.copytree(SITE / "_static", site / "_static")
    made = ladder("--steps", SITE_RUNGS=str(site / "rungs"), SITE_OUT=str(site / "_static"))
    return site if made.returncode == 0 else made.stderr


def check_wrong(tap, folder):
    """All are compiled first; then one browser looks at all."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sites = dict(zip(WRONG, pool.map(lambda name: wrong_site(name, folder), WRONG)))
    seen, _ = look([address(WRONG[n], s) for n, s in sites.items() if not isinstance(s, str)])
    for name, site in sites.items():
        checks = [] if isinstance(site, str) else judged(WRONG[name], seen, site)
        failed = [what for what, good in checks if not good]
        tap.ok(failed and failed != ["it opens"], f"{name}: its page shows it: {failed}", site)


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
    links = {os.path.normpath(p.parent / to) for p in pages for to in re.findall(
        r' (?:href|src)="([^"#?:]+)["#?]', text[p])}
    gone = [link for link in links if not os.path.exists(link)]
    tap.ok(not gone, f"{len(links)} links lead to files", gone[:9])
    hidden = [str(p) for p in pages if re.search(r"hints\.html|instructor|solutions/", str(p))]
    tap.ok(not hidden, "hints, solutions and instructor's notes are not in it", hidden)
    size = (ROOT / "build/steps/steps.wasm").stat().st_size
    tap.ok(size <= 450_000, f"the program of the step pages has {size} bytes, at most 450,000")
    if not shutil.which("chromium"):
        tap.skip("the step pages in a browser", "chromium is not here")
        return tap.done()
    seen, said = look([p.as_uri() for p in pages] + [address(k) for k in range(len(CASES))])
    wrong = [(p, *s[:2]) for p, s in seen.items() if s[0] > 390 or s[1]] + said
    tap.ok(not wrong and len(seen) == len(pages) + len(CASES),
           f"{len(pages)} pages: none wider than 390 px, no error in the console", wrong[:9])
    for number, (page, choices, _) in enumerate(CASES):
        for what, good in judged(number, seen):
            tap.ok(good, f"{page} {choices}: {what}")
    if "--no-wrong" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            check_wrong(tap, pathlib.Path(folder))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
