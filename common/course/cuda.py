# SPDX-License-Identifier: MIT
"""cuda.py: submissions in CUDA, which are judged in a model of a GPU (common/simt) on any machine.

The kernels are compiled with a call before each access to memory, and these calls are the judge's
eyes. So what takes them away is refused: attributes, pragmas but unroll, code in assembly that is
no PTX (translate.py), names of the model. So is ##, which makes such words of harmless ones.

Interface:
- refused(text): what stands in it that no submission may have, or "". hidden_attribute(text): the
  same behind macros.
- put_tools(folder): what attn_jail needs there. NoModel: it is not here.
- add_lines(rows, libraries): addresses in messages become lines of mine.cu.
"""
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))  # for all here
import similarity
import simt_library

ROOT = pathlib.Path(__file__).resolve().parents[2]
FORBIDDEN = re.compile(r"__attribute(?:__)?$|__declspec$|_Pragma$|__pragma$|__asm$|_*simt|_*tsan"
                       r"|submitted_variant$|flash_cuda_variant$"
                       # these may hide where a comment begins
                       r"|__has_include|\.?\d[\w.]*'", re.I)
PRAGMA = re.compile(r"^[ \t]*(?:#|%:)\s*pragma\b(?!\s+unroll\b)[^\n]*", re.M)
# a list of attributes with these names alone: what CUDA's words are made of
HARMLESS = re.compile(r"__attribute(?:__)?\s*\(\(\s*(?:(?:always_inline|noinline|aligned\s*"
                      r"(?:\((?:[\w\s:<>+*/-]|\([\w\s:<>+*/-]*\))*\))?)\s*(?:,\s*)*)*\)\)")
NoModel = simt_library.Missing


def refused(text):
    plain = similarity.without_comments(text)
    names = re.finditer(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\.?\d[\w.]*\'?|'
                        r"[A-Za-z_]\w*|\[\s*\[|<:\s*<:|##|%:%:", plain)
    found = next((name[0] for name in names if name[0][:2] in ("##", "%:", "<:") or
                  name[0][0] == "[" or FORBIDDEN.match(name[0])), "")
    pragma = PRAGMA.search(plain)
    found = found or (pragma[0].strip() if pragma else "") or similarity.raw_string(plain)
    return found and (f"found '{found[:40]}', accepted is CUDA without attributes, pragmas (but "
                      "#pragma unroll), ##, raw strings, and assembly that is no PTX")


def hidden_attribute(text):
    """In what the preprocessor and translate.py made of it: "" if there are those of CUDA alone."""
    text = text.replace('(auto... simt_x) __attribute__((no_sanitize("thread")))', "")
    found = re.search(r"\[\s*\[|__attribute[^\n]{,60}", HARMLESS.sub(" ", text)) or \
        PRAGMA.search(text)
    return found and (f"found '{found[0].strip()}' behind a macro, accepted is CUDA without "
                      "attributes and pragmas") or ""


def put_tools(folder):
    place = folder / "simt"
    model = simt_library.library()
    shutil.copytree(simt_library.SIMT / "include", place / "include")
    for path in (simt_library.SIMT / "compile.py", simt_library.SIMT / "translate.py", model,
                 ROOT / "common" / "course" / "gpu_shell.cpp"):
        shutil.copy(path, place)


def lines_of(library, addresses):
    """{address: "mine.cu:12"}: the innermost line of a .cu file there."""
    try:
        run = subprocess.run(["llvm-symbolizer", f"--obj={library}", "--functions=none",
                              "--inlines", *addresses], capture_output=True, text=True,
                             errors="replace", check=False, timeout=20,
                             stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for address, part in zip(addresses, run.stdout.split("\n\n")):
        place = re.search(r"([\w.+-]+\.cu:\d+):\d+$", part, re.M)
        if place:
            found[address] = place[1]
    return found


def add_lines(rows, libraries):
    for (n, _), row in rows.items():
        addresses = sorted(set(re.findall(r"^0x[0-9a-f]+(?=: )", row["message"], re.M)))
        if row.get("code") == "gpu_rule_broken" and addresses:
            lines = lines_of(libraries[n], addresses)
            row["message"] = re.sub(r"^0x[0-9a-f]+(?=: )",
                                    lambda found: lines.get(found[0], "a place without a line"),
                                    row["message"], flags=re.M)
