#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_install.py: what `meson install` puts down is enough for a stranger's program.

usage: test_install.py BUILD EXAMPLE.c     the build folder, and the example to build against it

Installs into a temporary DESTDIR, looks at what is there, and builds and runs the example, as C and
as C++, with nothing but what pkg-config says. The working folder is not the source tree.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from tap import Tap

PACKAGE = "attention-ladder-flash"
LIBRARY = "libattention_ladder_flash.so"
HEADERS = ["flash_attention_op.h", "infiniop_flash_attention.h", "exact_math.h"]

# Calls under infiniop's names; with DESTORY the misspelt one.
INFINIOP = """
#include <infiniop_flash_attention.h>
int main(void)
{
    size_t shape[] = {3, 1, 4}, bytes;
    float x[12] = {0}, out[12];
    int mask_type = 3;
    infiniopHandle_t h;
    infiniopTensorDescriptor_t t, m;
    infiniopFlashAttentionDescriptor_t op;
    int bad = infiniopCreateHandle(&h, INFINI_DEVICE_CPU, 0);
    bad += infiniopCreateTensorDescriptor(&t, 3, shape, NULL, INFINI_DTYPE_F32);
    bad += infiniopCreateTensorDescriptor(&m, 0, NULL, NULL, INFINI_DTYPE_I32);
    for (int n = 0; n < 12; n++)
        x[n] = (float)n, out[n] = -1;
    bad += infiniopCreateFlashAttentionDescriptor(h, &op, t, t, t, t, NULL, m);
    bad += infiniopGetFlashAttentionWorkspaceSize(op, &bytes);
    void *raw = malloc(bytes + 64), *w = (char *)raw + (64 - (size_t)raw % 64) % 64;
    bad += infiniopFlashAttention(op, w, bytes, out, x, x, x, NULL, &mask_type, NULL);
#ifdef DESTORY
    bad += infiniopDestoryFlashAttentionDescriptor(op);
#else
    bad += infiniopDestroyFlashAttentionDescriptor(op);
#endif
    bad += infiniopDestroyTensorDescriptor(t) + infiniopDestroyTensorDescriptor(m);
    bad += infiniopDestroyHandle(h);
    free(raw);
    for (int n = 0; n < 4; n++)
        bad += out[n] != x[n]; /* the first query sees the first key only */
    return bad;
}
"""


def output(*command, env=None, cwd=None):
    """(exit status, what it printed)"""
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    return run.returncode, run.stdout + run.stderr


def declared(header):
    """Functions of the public header."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(encoding="utf-8"), flags=re.S)
    return set(re.findall(r"\b(flash_attention_\w+)\(", text))


def check_files(tap, root):
    """Returns {name: path} of what was installed."""
    found = {p.name: p for p in root.rglob("*") if not p.is_dir()}
    wanted = {PACKAGE + ".pc", *HEADERS, LIBRARY, LIBRARY + ".0", LIBRARY + ".0.1.0"}
    tap.ok(set(found) == wanted, "headers, library and pkg-config file, nothing else",
           f"{sorted(set(found) ^ wanted)}")
    included = {name for h in HEADERS
                for name in re.findall(r'#include\s+[<"]([^>"]+)', found[h].read_text())}
    tap.ok(included == {"stddef.h", "stdint.h", "stdlib.h", HEADERS[0], HEADERS[2]},
           "headers include standard ones and each other only", f"{sorted(included)}")
    return found


def check_library(tap, found, build):
    library = str(found[LIBRARY + ".0.1.0"])
    status, text = output("nm", "-D", "--defined-only", library)
    shown = {line.split()[2].split("@")[0] for line in text.splitlines() if " T " in line}
    others = [line for line in text.splitlines() if " T " not in line and " A " not in line]
    wanted = declared(found[HEADERS[0]])
    tap.ok(status == 0 and shown == wanted and len(wanted) == 9 and not others,
           "the library shows the functions of its header, nothing else",
           f"{sorted(shown ^ wanted)} {others}")
    text = output("readelf", "-d", library)[1]
    tap.ok(f"soname: [{LIBRARY}.0]" in text, "SONAME", text)
    tap.ok(str(build) not in text and "blas" not in text,
           "it asks for no library of the build folder, and for no BLAS", text)


def compiled(folder, language, source, flags, name):
    """Builds source (text) in folder, which holds nothing else of ours. (status, output)"""
    compiler, standard, suffix = language
    path = folder / (name + suffix)
    path.write_text(source, encoding="utf-8")
    return output(compiler, standard, "-Wall", "-Wextra", str(path), "-o", str(folder / name),
                  *flags, "-lm", cwd=folder)


def main():
    tap = Tap()
    build, example = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    for tool in ("meson", "pkg-config", "nm", "readelf", "ldd", "cc"):
        if not shutil.which(tool):
            tap.skip("install", f"no {tool}")
            return tap.done()
    with tempfile.TemporaryDirectory() as temporary:
        root, work = pathlib.Path(temporary) / "root", pathlib.Path(temporary) / "work"
        work.mkdir()
        status, text = output("meson", "install", "-C", str(build), "--no-rebuild", "--destdir",
                              str(root))
        if not tap.ok(status == 0, "meson install", text):
            return tap.done()
        found = check_files(tap, root)
        check_library(tap, found, build)

        env = dict(os.environ, PKG_CONFIG_SYSROOT_DIR=str(root),
                   PKG_CONFIG_PATH=str(found[PACKAGE + ".pc"].parent))
        status, flags = output("pkg-config", "--cflags", "--libs", PACKAGE, env=env)
        tap.ok(status == 0 and f"-I{root}" in flags and f"-L{root}" in flags, "pkg-config", flags)
        flags = flags.split()
        run_env = dict(os.environ, LD_LIBRARY_PATH=str(found[LIBRARY].parent))
        languages = [("cc", "-std=c11", ".c")]
        languages += [("c++", "-std=c++17", ".cpp")] if shutil.which("c++") else []
        for language in languages:
            source = example.read_text(encoding="utf-8")
            status, text = compiled(work, language, source, flags, "attend")
            if tap.ok(status == 0 and not text, f"{language[0]}: the example builds", text):
                status, text = output(str(work / "attend"), env=run_env, cwd=work)
                tap.ok(status == 0 and "largest difference" in text,
                       f"{language[0]}: the example is right", text)
            for fast in ("-ffast" + "-math", "-ffinite" + "-math-only"):
                status, text = compiled(work, language, source, [*flags, fast], "fast")
                tap.ok(status != 0 and "compile without fast math" in text,
                       f"{language[0]}: {fast} is refused", text)
            for extra in ([], ["-DDESTORY", "-Wno-deprecated-declarations"]):
                status, text = compiled(work, language, INFINIOP, flags + extra, "infiniop")
                ran, said = output(str(work / "infiniop"), env=run_env, cwd=work)
                tap.ok(status == 0 and not text and ran == 0,
                       f"{language[0]}: infiniop's names {' '.join(extra)}", text + said)
            status, text = compiled(work, language, INFINIOP, flags + ["-DDESTORY"], "infiniop")
            tap.ok(status == 0 and "deprecated" in text,
                   f"{language[0]}: the misspelt name says that it is deprecated", text)
        text = output("ldd", str(work / "attend"), env=run_env)[1]
        tap.ok(f"{LIBRARY}.0 => {root}" in text, "it was the installed library that ran", text)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
