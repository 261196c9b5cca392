#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the C file behind common/source_hash.h: what exactly was built.

usage: source_hashes.py ROOT OUTPUT FLAGS...

Every variant's source gets its SHA-256, so that a recorded number can be told from the code it was
measured on, and so does that file together with all that it is made of (variant_sources): much of
the work is done in headers and helper files. There, comments and white space do not count, since a
header has many users. The revision is the first line of ROOT/.revision (`./ladder revision` writes
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
# Stage 05's variants are a window around kernels of earlier stages, which they call by the headers
# of these stages: no include leads to the file.
F, B, W = "03_flash_forward", "04_flash_backward", "05_sliding_window_online"
R = "06_ring_burst"
METHODS = ("ring", "burst", "allgather", "ulysses", "ring-double", "burst-double")
CALLED = {
    (W, "v2_window_tiles"): [F + "/cpu/v2_simd.c", W + "/cpu/plain.c"],
    (W, "v4_window_backward"): [F + "/cpu/v2_simd.c", B + "/cpu/v2_simd.c", W + "/cpu/plain.c",
                                W + "/cpu/v2_window_tiles.c"],
    (W, "v1_window_tiles"): [F + "/cuda/v2_register_tiles.cu", B + "/cuda/v1_two_kernels.cu",
                             W + "/cuda/plain.cu"],
    (W, "v2_mma_window"): [F + "/cuda/v5_clean_tiles.cu", B + "/cuda/v4_clean_tiles.cu",
                           W + "/cuda/plain.cu"],
}
# Stage 06's methods call what lies behind ring_rank.h: the block kernels, messages, memory.
BEHIND = [R + "/" + name for name in (
    "block.c", "exchange.c", "job.c", "lanes.c", "methods.c", "pair.c", "plan.c", "shard.c",
    "space_cpu.c", "work.c", "cuda/space_blocks.cu", "cuda/space_cuda.cu", "cuda/space_memory.cu",
    "cuda/space_lanes.cu", "cuda/space_queues.cu", "cuda/space_sums.cu", "cuda/space_zeros.cu",
    "cuda/small_work.cu", "transport_copy.c", "cuda/transport_nccl.cu")] + [
    F + "/cpu/v2_simd.c", B + "/cpu/v2_simd.c", F + "/cuda/block.cu",
    F + "/cuda/v2_register_tiles.cu", F + "/cuda/v5_clean_tiles.cu", B + "/cuda/block.cu",
    B + "/cuda/v1_two_kernels.cu", B + "/cuda/v4_clean_tiles.cu"]
CALLED.update({
    (R, method): BEHIND + [R + "/" + name + ".c" for name in own] for method, own in {
        "ring": ("relay", "ring_forward"), "burst": ("relay", "ring_forward"), "allgather": (),
        "ulysses": ("heads",), "ring-double": ("relay", "tree_forward"),
        "burst-double": ("relay", "tree_forward")}.items()})


def variant_files(root):
    """{(stage folder, variant): [files]}; a name may have a CPU and a CUDA file."""
    found = {}
    for folder in sorted(root.glob("0[0-9]_*")):
        files = [*folder.glob("cpu/*.c"), *folder.glob("cuda/*.cu")]
        for path in sorted(files):
            found.setdefault((folder.name, path.stem), []).append(path)
    for method in METHODS:  # stage 06: <folder>/<method>.c for all devices
        path = root / R / (method.replace("-", "_") + ".c")
        if path.is_file():
            found[R, method] = [path]
    return found


def with_linked(root, hashes):
    for (folder, variant), home in LINKED.items():
        if (root / folder).is_dir():
            hashes[folder, variant] = hashes[home, variant]
    return hashes


def variant_hashes(root):
    """{(stage folder, variant): SHA-256}; of two files the bytes of both in turn."""
    hashes = {}
    for key, files in variant_files(root).items():
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        hashes[key] = digest.hexdigest()
    return with_linked(root, hashes)


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
# A string or a character, which may hold what looks like a comment, or a comment.
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)


@functools.lru_cache(maxsize=None)
def code_of(path, _stamp):
    """(the text without comments and white space, what it includes)"""
    text = path.read_text(encoding="utf-8")
    bare = COMMENT.sub(lambda m: m[0] if m[0][0] in "\"'" else " ", text)
    return " ".join(bare.split()), tuple(INCLUDE.findall(bare))


def read_code(path):
    about = path.stat()
    return code_of(path, (about.st_mtime_ns, about.st_size))


def included(root, path):
    """The files of this tree that one of its files includes, as the builds of all stages find
    them: beside it, in common/, in the stages' folders and in their cuda/. A name that is found
    nowhere is the system's or generated."""
    places = [path.parent, root / "common"]
    for stage in sorted(root.glob("0[0-9]_*"), key=lambda s: s.name != path.parts[-3]):
        places += [stage, stage / "cuda"]
    for name in read_code(path)[1]:
        found = next((place / name for place in places if (place / name).is_file()), None)
        if found:
            yield found.resolve()


def variant_sources(root, path):
    """A variant's file, all that it includes, and the helper files beside the headers of a stage
    that it includes: *.c or *.cu that are no variants and include such a header themselves."""
    seen, todo = set(), [path.resolve()]
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        todo += included(root, file)
        if file.suffix in (".h", ".cuh") and file.parent.name in ("cpu", "cuda"):
            helpers = [*file.parent.glob("*.c"), *file.parent.glob("*.cu")]
            todo += [helper for helper in helpers if not re.match(r"v\d", helper.name)
                     and file in included(root, helper)]
    return sorted(seen)


def sources_hashes(root):
    """{(stage folder, variant): SHA-256 of its variant_sources}, as variant_hashes."""
    root, hashes, known = root.resolve(), {}, {}

    def sources_of(file):
        if file not in known:
            known[file] = variant_sources(root, file)
        return known[file]

    for (folder, variant), files in variant_files(root).items():
        files = files + [root / name for name in CALLED.get((folder, variant), [])
                         if (root / name).is_file()]
        sources = sorted({source for file in files for source in sources_of(file)})
        digest = hashlib.sha256()
        for source in sources:
            digest.update(f"{source.relative_to(root)}\n{read_code(source)[0]}\n".encode())
        hashes[folder, variant] = digest.hexdigest()
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
#include "source_hash.h"

#include <string.h>

static const struct {{
    const char *stage, *variant, *file, *sources;
}} hashes[] = {{
{rows}    {{"", "", "", ""}},
}};

static size_t find(const char *stage_folder, const char *variant)
{{
    size_t s = 0;
    while (s + 1 < sizeof hashes / sizeof hashes[0] &&
           (strcmp(hashes[s].stage, stage_folder) || strcmp(hashes[s].variant, variant)))
        s++;
    return s;
}}

const char *variant_sha256(const char *stage_folder, const char *variant)
{{
    return hashes[find(stage_folder, variant)].file;
}}

const char *variant_sources_sha256(const char *stage_folder, const char *variant)
{{
    return hashes[find(stage_folder, variant)].sources;
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
