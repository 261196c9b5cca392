#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the C file behind common/harness/report/source_hash.h: what exactly was built.

usage: source_hashes.py ROOT OUTPUT FLAGS...

Every variant's source gets its SHA-256, so that a recorded number can be told from the code it was
measured on, and so does that file together with all that it is made of (variant_sources): much of
the work is done in headers and helper files. There, comments, white space and the names and places
of files do not count: a file may move, and its rows stay. A stage's library has a hash for each
device. The revision is the first line of ROOT/.revision (`./ladder revision` writes
it before a transfer to another machine), or what `git describe` says. Runs in every build; the file
is rewritten only when its text changes, so nothing is compiled again for nothing.
"""
import functools
import hashlib
import pathlib
import re
import subprocess
import sys


# Variants that a stage lists, under their own name, from a library that it builds on.
LINKED = {("04_flash_backward", "v1_blas"): "01_naive"}
# Stage 05's library is a window around kernels of earlier stages, which it calls by the headers of
# these stages: no include leads to the file.
F, B, W = "03_flash_forward", "04_flash_backward", "05_sliding_window_online"
LIBRARY = {F: "common/attention/forward", B: "common/attention/backward",
           W: "common/attention/window"}
R = "06_ring_burst"
METHODS = ("ring-minimal", "ring", "burst", "allgather", "ulysses", "ring-double", "burst-double")
CALLED = {
    (W, "library cpu"): [LIBRARY[F] + "/cpu/simd_run.c", LIBRARY[B] + "/cpu/backward_run.c"],
    (W, "library cuda"): [LIBRARY[F] + "/cuda/attention_f32.cu",
                          LIBRARY[F] + "/cuda/attention_16bit.cu",
                          LIBRARY[F] + "/cuda/hopper_16bit.cu",
                          LIBRARY[B] + "/cuda/gradients_f32.cu",
                          LIBRARY[B] + "/cuda/gradients_16bit.cu",
                          LIBRARY[B] + "/cuda/hopper_gradients.cu"],
}
# Stage 06's methods call what lies behind rank.h: the block kernels, messages, memory. Not
# what only watches a run or works outside of what is timed.
WATCHES = ("collect", "fault", "log", "share", "simulate", "table")
KERNELS = [LIBRARY[F] + "/cpu/simd_run.c", LIBRARY[B] + "/cpu/backward_run.c",
           LIBRARY[F] + "/cuda/block.cu", LIBRARY[F] + "/cuda/attention_f32.cu",
           LIBRARY[F] + "/cuda/attention_16bit.cu", LIBRARY[F] + "/cuda/hopper_16bit.cu",
           LIBRARY[B] + "/cuda/block.cu", LIBRARY[B] + "/cuda/gradients_f32.cu",
           LIBRARY[B] + "/cuda/gradients_16bit.cu", LIBRARY[B] + "/cuda/hopper_gradients.cu"]
SHARED = {"ring": ("relay", "ring_forward"), "burst": ("relay", "ring_forward"),
          "ulysses": ("heads",), "ring-double": ("relay", "tree_forward"),
          "burst-double": ("relay", "tree_forward")}


def behind_methods(root):
    """{(stage folder, method): [what it calls, by path]}"""
    folders = ("runtime", "runtime/cuda", "transports/cuda")
    behind = [path.relative_to(root).as_posix() for folder in folders
              for path in sorted((root / R / folder).glob("*.c*")) if path.stem not in WATCHES]
    behind += [R + "/" + name for name in ("planner/plan.c", "planner/shard.c")] + KERNELS
    return {(R, method): behind + [f"{R}/methods/{name}.c" for name in SHARED.get(method, ())]
            for method in METHODS}


def variant_files(root):
    """{(stage folder, variant): [files]}; a name may have a CPU and a CUDA file. A stage's library
    is "library cpu" and "library cuda"."""
    found = {}
    for folder in sorted(root.glob("0[0-9]_*")):
        files = [*folder.glob("cpu/*.c"), *folder.glob("cuda/*.cu")]
        for path in sorted(files):
            found.setdefault((folder.name, path.stem), []).append(path)
        for device, suffix in (("cpu", "c"), ("cuda", "cu")):
            home = root / LIBRARY.get(folder.name, "no library")
            files = sorted(home.glob(f"{device}/*.{suffix}"))
            if files:
                found[folder.name, f"library {device}"] = files
    for method in METHODS:  # stage 06: one file for all devices
        path = root / R / "methods" / (method.replace("-", "_") + ".c")
        if path.is_file():
            found[R, method] = [path]
    return found


def with_linked(root, hashes):
    for (folder, variant), home in LINKED.items():
        if (root / folder).is_dir():
            hashes[folder, variant] = hashes[home, variant]
    return hashes


def variant_key(variant, device):
    """The library has one name on all devices; its sources have not."""
    return f"{variant} {device}" if variant == "library" else variant


def variant_hashes(root):
    """{(stage folder, variant): SHA-256 of the code in its files}. See variant_key."""
    return with_linked(root, {key: hash_of_code(files)
                              for key, files in variant_files(root).items()})


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
# What is compiled in place of kernels where nothing can run (-Dgpu_sample): no row is of it.
SAMPLE = re.compile(r"^#ifdef ATTN_GPU_SAMPLE\b.*?^#else\n(.*?)^#endif\n", re.M | re.S)
# A string or a character, which may hold what looks like a comment, or a comment.
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)


@functools.lru_cache(maxsize=None)
def code_of(path, _stamp):
    """(the text without comments, white space and include lines, what it includes)"""
    text = path.read_text(encoding="utf-8")
    text = SAMPLE.sub(r"\1", text)
    bare = COMMENT.sub(lambda m: m[0] if m[0][0] in "\"'" else " ", text)
    return " ".join(INCLUDE.sub(" ", bare).split()), tuple(INCLUDE.findall(bare))


def read_code(path):
    about = path.stat()
    return code_of(path, (about.st_mtime_ns, about.st_size))


def hash_of_code(files):
    """Of what these files hold, in an order that does not depend on their names."""
    codes = sorted({read_code(path)[0] for path in files})
    return hashlib.sha256("\n".join(codes).encode()).hexdigest()


def included(root, path):
    """The files of this tree that one of its files includes, as the builds of all stages find
    them: beside it, in common/, common/attention/, the stages' folders and their cuda/. A name
    that is found nowhere is the system's or generated."""
    stage_of = path.relative_to(root).parts[0]
    places = [path.parent, root / "common", root / "common" / "attention"]
    for stage in sorted(root.glob("0[0-9]_*"), key=lambda s: s.name != stage_of):
        places += [stage, stage / "cuda"]
    for name in read_code(path)[1]:
        found = next((place / name for place in places if (place / name).is_file()), None)
        if found:
            yield found.resolve()


def variant_sources(path, includes):
    """A variant's file, all that it includes, and the helper files beside the headers of a stage
    that it includes: *.c or *.cu that are no variants and include such a header themselves.
    includes: what a file includes, asked many times."""
    seen, todo = set(), [path.resolve()]
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        todo += includes(file)
        if file.suffix in (".h", ".cuh") and file.parent.name in ("cpu", "cuda", "device"):
            helpers = [*file.parent.glob("*.c"), *file.parent.glob("*.cu")]
            todo += [helper for helper in helpers if not re.match(r"v\d", helper.name)
                     and file in includes(helper)]
    return sorted(seen)


def sources_hashes(root):
    """{(stage folder, variant): SHA-256 of its variant_sources}, as variant_hashes."""
    root, hashes, known = root.resolve(), {}, {}
    called = {**CALLED, **behind_methods(root)}
    includes = functools.lru_cache(maxsize=None)(lambda file: tuple(included(root, file)))

    def sources_of(file):
        if file not in known:
            known[file] = variant_sources(file, includes)
        return known[file]

    for (folder, variant), files in variant_files(root).items():
        files = files + [root / name for name in called.get((folder, variant), [])
                         if (root / name).is_file()]
        hashes[folder, variant] = hash_of_code(
            {source for file in files for source in sources_of(file)})
    return with_linked(root, hashes)


def revision(root):
    written = root / ".revision"
    if written.is_file():  # this tree is a copy, perhaps inside a checkout of something older
        return written.read_text(encoding="utf-8").split("\n")[0].strip()
    if (root / ".git").exists():
        run = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty",
                              "--abbrev=12"], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return run.stdout.strip()
    return "unknown"


def c_string(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def c_text(root, flags):
    sources = sources_hashes(root)
    rows = "".join(f'    {{"{stage}", "{variant}", "{digest}",\n'
                   f'     "{sources[stage, variant]}"}},\n'
                   for (stage, variant), digest in sorted(variant_hashes(root).items()))
    return f"""/* Generated by common/tools/source_hashes.py. */
#include "harness/report/source_hash.h"

#include <string.h>

static const struct {{
    const char *stage, *variant, *file, *sources;
}} hashes[] = {{
{rows}    {{"", "", "", ""}},
}};

static size_t find(const char *stage_folder, const char *variant, const char *device)
{{
    char key[32] = "library ";
    size_t s = 0;
    if (strcmp(variant, "library") == 0)
        variant = strcat(key, device);
    while (s + 1 < sizeof hashes / sizeof hashes[0] &&
           (strcmp(hashes[s].stage, stage_folder) || strcmp(hashes[s].variant, variant)))
        s++;
    return s;
}}

const char *variant_sha256(const char *stage_folder, const char *variant, const char *device)
{{
    return hashes[find(stage_folder, variant, device)].file;
}}

const char *variant_sources_sha256(const char *stage_folder, const char *variant,
                                   const char *device)
{{
    return hashes[find(stage_folder, variant, device)].sources;
}}

const char *build_revision(void)
{{
    return {c_string(revision(root))};
}}

const char *build_flags(void)
{{
    return {c_string(flags)};
}}
"""


def main():
    root, output = map(pathlib.Path, sys.argv[1:3])
    text = c_text(root, " ".join(sys.argv[3:]))
    if not output.is_file() or output.read_text(encoding="utf-8") != text:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
