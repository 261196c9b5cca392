# SPDX-License-Identifier: MIT
"""docs_check.py: do the links of the pages lead somewhere, do the commands they quote work, and can
every formula be read in a terminal?

Interface:
- links(pages): one sentence for each relative link whose file or heading does not exist.
- formulas(pages): one sentence for each page with a formula in TeX.
- commands(pages, root, build): looks at every ```sh block. In one that follows a
  `<!-- test-commands -->` line each command is executed in the root folder, `build/` standing for
  the build folder, and must end with exit status 0; authors keep these tiny. In every other block
  `./ladder WORD` must be a word that `./ladder --help` prints, and a long option of a program of
  ours must stand in its --help.
"""
import os
import pathlib
import re
import shlex
import subprocess

LINK = re.compile(r"!?\[[^\]\n]*(?:\][^\[\]\n]*)?\]\(([^)\s]+)\)")
BLOCK = re.compile(r"(<!-- test-commands -->\s*\n)?^```sh\n(.*?)^```", re.S | re.M)
FENCED = re.compile(r"^```.*?^```", re.S | re.M)
TEX = re.compile(r"\$\$|\$[^$\s][^$\n]*\$|\\(?:frac|sum|sqrt|mathrm|cdot|text)\b")


def heading_anchors(text):
    """The anchors that GitHub gives to headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCED.sub("", text), re.M):
        plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(plain.replace(" ", "-"))
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def links(pages):
    problems = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in LINK.findall(re.sub(r"`[^`\n]*`", "`code`", FENCED.sub("", text))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path) if path else page
            if not file.exists():
                problems.append(f"{page}: link to {target}: there is no {path}")
            elif anchor and file.suffix == ".md":
                if anchor not in heading_anchors(file.read_text(encoding="utf-8")):
                    problems.append(f"{page}: link to {target}: {file.name} has no such heading")
    return problems


def formulas(pages):
    found = [(page, TEX.search(re.sub(r"`[^`\n]*`", "", FENCED.sub(
        "", page.read_text(encoding="utf-8"))))) for page in pages]
    return [f"{page}: '{tex[0]}' is a formula in TeX, which no terminal shows"
            for page, tex in found if tex]


def command_lines(block):
    """Commands of a block: comments dropped, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", block)
    lines = joined.split("\n")
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def run_line(line, root, build):
    """One sentence, or None. Words that begin with build/demo/ (what ./ladder demo makes) or
    build/ mean the folder built for this test, whose programs ./ladder lecture plays as well."""
    built = pathlib.Path(build).resolve()
    here = re.sub(r"(?<![\w./])(\./)?build/(demo/)?", f"{built}/", line)
    try:
        done = subprocess.run(["sh", "-c", here], cwd=root, capture_output=True, text=True,
                              timeout=300, check=False, env={
                                  **os.environ, "OMP_NUM_THREADS": "2",
                                  "LADDER_PROGRAMS": str(built)})
    except subprocess.TimeoutExpired:
        return f"'{line}' ran past 300 s"
    if done.returncode == 0:
        return None
    last = (done.stderr.strip() or done.stdout.strip()).split("\n")[-1]
    return f"'{line}' ended with exit status {done.returncode}: {last}"


def help_of(command):
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60,
                          check=False)
    return done.stdout if done.returncode == 0 else ""


def parse_line(line, root, build, helps):
    """One sentence about an unknown ./ladder word or program option, or None."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words:
        return None
    if words[0] == "./ladder":
        program = [str(root / "ladder")]
        wanted = words[1:2] if words[1:] and not words[1].startswith("-") else []
    elif build and re.match(r"(\./)?build/", words[0]):
        program = [str(pathlib.Path(build) / re.sub(r"^(\./)?build/(demo/)?", "", words[0]))]
        wanted = [w.split("=")[0] for w in words[1:] if w.startswith("--")]
    else:
        return None
    if not pathlib.Path(program[0]).exists():
        return f"'{line}': there is no {words[0]}"
    if program[0] not in helps:
        helps[program[0]] = help_of(program)
    unknown = [w for w in wanted if not re.search(rf"(?<![\w-]){re.escape(w)}(?![\w-])",
                                                  helps[program[0]])]
    return f"'{line}': {words[0]} --help does not know {' '.join(unknown)}" if unknown else None


def commands(pages, root, build):
    problems, helps = [], {}
    for page in pages:
        for tested, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in command_lines(block):
                if tested and not build:
                    problem = f"'{line}' is to be executed: give --build DIR"
                elif tested:
                    problem = run_line(line, root, build)
                else:
                    problem = parse_line(line, root, build, helps)
                if problem:
                    problems.append(f"{page}: {problem}")
    return problems
