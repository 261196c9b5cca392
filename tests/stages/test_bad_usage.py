#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_bad_usage.py: bad usage and bad input end with exit 2 and one sentence.

    test_bad_usage.py PROGRAM...

Every case below runs on every program: exit status 2, nothing on stdout, exactly one line on stderr
that names the culprit and says what is accepted, and no file or folder written or changed.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]
import npyfile
from tap import Tap

# (flags, what the sentence must name). {} is a folder with the files that make_files writes.
FLAGS = [
    ("--frobnicate", "--frobnicate"),
    ("--hed 3", r"--hed.*--heads"),
    ("-X", "-X"),
    ("seven", "seven"),
    ("-N 0", r"-N: found '0'"),
    ("-N -4", r"-N: found '-4'"),
    ("-N 12x", r"-N: found '12x'"),
    ("-N 1e3", r"-N: found '1e3'"),
    ("-N=", r"-N: found ''"),
    ("-N", r"-N: found no value"),
    ("-B 99999999999999999999", r"-B: found '9+'"),
    ("--batch 0", r"--batch: found '0'"),
    ("--heads 0", r"--heads: found '0'"),
    ("--kv-heads -1", r"--kv-heads: found '-1'"),
    ("--seq-q 0", r"--seq-q: found '0'"),
    ("--seq-kv nine", r"--seq-kv: found 'nine'"),
    ("-d 0", r"-d: found '0'"),
    ("-d 1025", r"-d: found '1025'.*1024"),
    ("--heads 6 --kv-heads 4", r"--kv-heads: found 4.*6"),
    ("--heads 2 --kv-heads 4", r"--kv-heads: found 4.*2"),
    ("--kv-heads 3", r"--kv-heads"),
    ("-N 99999999999", r"--seq: found .*99999999999.*accepted"),
    ("-B 1000000000 -H 1000000000", r"--(batch|heads): found .*1000000000"),
    ("-N 4000000 -H 64 -d 512", r"--seq: found .*4000000"),
    ("--mask full --seq-kv 99999999", r"--seq-kv: found"),
    ("--dtype f64", r"--dtype: found 'f64'.*f32, f16, bf16"),
    ("--dtype", r"--dtype: found no value"),
    ("--mask lower", r"--mask: found 'lower'.*causal-lower-right"),
    ("--causal --mask full", r"--causal.*--mask full"),
    ("--mask none --causal", r"--causal.*--mask none"),
    ("--mask-file {}/mask.npy", r"--mask-file.*--mask full"),
    ("--mask-file {}/mask.npy --causal", r"--mask-file.*--mask full"),
    ("--window -2,0", r"--window: found '-2,0'.*-1"),
    ("--window 5", r"--window: found '5'"),
    ("--window 1,2,3", r"--window: found '1,2,3'"),
    ("--window 1,", r"--window: found '1,'"),
    ("--window 0x4,1", r"--window: found '0x4,1'"),
    ("--scale 0", r"--scale: found '0'"),
    ("--scale nan", r"--scale: found 'nan'"),
    ("--scale inf", r"--scale: found 'inf'"),
    ("--scale 1e99", r"--scale: found '1e99'"),
    ("--scale 1e19", r"--scale: found '1e19'.*1e\+18"),
    ("--softcap -1", r"--softcap: found '-1'"),
    ("--softcap 0", r"--softcap: found '0'"),
    ("--softcap 2.4e38", r"--softcap: found '2.4e38'.*1e\+38"),
    ("--softcap 3.5.1", r"--softcap: found '3.5.1'"),
    ("--seed -1", r"--seed: found '-1'"),
    ("--seed 18446744073709551616", r"--seed: found '18446744073709551616'"),
    ("--dist uniform", r"--dist: found 'uniform'.*outlier"),
    ("--dist large --bundled", r"--dist.*--bundled"),
    ("--q {}/q.npy --k {}/k.npy --v {}/k.npy --dist large", r"--dist.*--q"),
    ("--strides hbsd", r"--strides: found 'hbsd'.*bhsd"),
    ("--bundled=decoder", r"--bundled: found 'decoder'.*encoder, causal"),
    ("--bundled -N 7", r"-N|--seq.*found 7"),
    ("--bundled --heads 5", r"--heads: found 5"),
    ("--bundled=causal -N 384", r"-N|--seq.*found 384.*causal_q\.npy has 512"),
    ("--bundled=causal --kv-heads 4", r"--kv-heads: found 4.*causal_k\.npy has 2"),
    ("--bundled=causal -d 32", r"--head-dim: found 32.*64"),
    ("--bundled=causal --mask-file {}/mask.npy", r"--mask-file.*--mask full"),
    ("--bundled=causal --mask none --causal", r"--causal.*--mask none"),
    ("--bundled=causal --dist large", r"--dist.*--bundled"),
    ("--bundled --q {}/q.npy --k {}/k.npy --v {}/k.npy", r"--bundled.*--q"),
    ("--device gpu", r"--device: found 'gpu'.*cuda"),
    ("--variant v9_magic", r"--variant: found 'v9_magic'.*v0_"),
    ("--variant V0 --device cuda", r"--variant"),
    ("--variant-so {}/none.so", r"--variant-so.*none\.so"),
    ("--threads 0", r"--threads: found '0'"),
    ("--threads 100000", r"--threads: found '100000'"),
    ("--iters 5", r"--iters.*--bench"),
    ("--warmup 5", r"--warmup.*--bench"),
    ("--bench --iters 0", r"--iters: found '0'"),
    ("--bench --warmup -1", r"--warmup: found '-1'"),
    ("--check=yes", r"--check.*'yes'"),
    ("--quiet=", r"--quiet"),
    ("--so-time 0", r"--so-time: found '0'"),
    ("--so-memory 0", r"--so-memory: found '0'"),
    ("--json --quiet", r"--json: found '--quiet'"),
    ("--json {}/none/rows.jsonl", r"--json.*none/rows\.jsonl"),
    ("--json {}", r"--json"),
    ("--json {}/fifo", r"--json.*fifo"),
    ("--json {}/third.txt", r"--json.*third\.txt.*begin"),
    ("--json {}/cut.jsonl", r"--json.*cut\.jsonl.*end"),
    ("--save {}/q.npy", r"--save.*q\.npy"),
    ("--save {}/q.npy/deeper", r"--save.*q\.npy"),
    ("--save /proc/here", r"--save.*/proc/here"),
    ("--do {}/q.npy", r"--do"),
    # input files
    ("--q {}/q.npy", r"--q.*--k"),
    ("--q {}/q.npy --v {}/k.npy", r"--k"),
    ("--q {}/none.npy --k {}/k.npy --v {}/k.npy", r"none\.npy"),
    ("--q {} --k {}/k.npy --v {}/k.npy", r"--q takes a \.npy file"),
    ("--q {}/short.npy --k {}/k.npy --v {}/k.npy", r"short\.npy"),
    ("--q {}/magic.npy --k {}/k.npy --v {}/k.npy", r"magic\.npy"),
    ("--q {}/empty.npy --k {}/k.npy --v {}/k.npy", r"empty\.npy"),
    ("--q {}/fortran.npy --k {}/k.npy --v {}/k.npy", r"fortran\.npy.*[Ff]ortran"),
    ("--q {}/u1.npy --k {}/k.npy --v {}/k.npy", r"u1\.npy.*u1.*f2, f4 or f8"),
    ("--q {}/rank3.npy --k {}/k.npy --v {}/k.npy", r"rank3\.npy: found 3 dim"),
    ("--q {}/q.npy --k {}/q.npy --v {}/k.npy", r"k\.npy: found shape"),
    ("--q {}/q.npy --k {}/d6.npy --v {}/d6.npy", r"d6\.npy: found shape"),
    ("--q {}/q.npy --k {}/h2.npy --v {}/h2.npy", r"h2\.npy: found 2 heads.*3"),
    ("--q {}/zero.npy --k {}/k.npy --v {}/k.npy", r"zero\.npy"),
    ("--q {}/q.npy --k {}/k.npy --v {}/k.npy -N 6", r"-N|--seq.*found 6"),
    ("--q {}/q.npy --k {}/k.npy --v {}/k.npy -d 8", r"--head-dim: found 8"),
    ("--q {}/q.npy --k {}/k.npy --v {}/k.npy --batch 2", r"--batch: found 2"),
    ("--mask full -N 6 --mask-file {}/mask.npy", r"mask\.npy: found .*accepted is shape"),
    ("--mask full -N 5 --mask-file {}/q.npy", r"q\.npy: found type f4, accepted is u1 or bool"),
    ("--mask full --mask-file {}/none.npy", r"none\.npy"),
    # cases files
    ("--cases {}/none.txt", r"--cases.*none\.txt"),
    ("--cases {}", r"--cases"),
    ("--cases {}/fifo", r"--cases.*fifo"),
    ("--cases {}/blank.txt", r"--cases.*no case.*blank\.txt"),
    ("--cases {}/third.txt", r"third\.txt:3: -N: found '0'"),
    ("--cases {}/json.txt", r"json\.txt:1: --json: found in a line"),
    ("--cases {}/binary.txt", r"--cases.*zero byte.*binary\.txt"),
    ("--cases {}/conflict.txt", r"conflict\.txt:2: --causal"),
]
# Only where the program has the flag, as its --help says.
BACKWARD = [
    ("--backward --do {}/none.npy", r"none\.npy"),
    ("--backward -N 5 -H 3 -d 4 --do {}/k.npy", r"k\.npy: found shape.*the other tensors"),
    ("--backward --q {}/q.npy --k {}/k.npy --v {}/k.npy --do {}/k.npy", r"k\.npy: found shape"),
    ("--backward -N 5 -H 3 -d 4 --do {}/h2.npy", r"h2\.npy: found shape"),
    ("--backward -N 5 -H 3 -d 4 --do {}/rank3.npy", r"rank3\.npy: found 3 dim"),
    ("--backward -N 5 -H 3 -d 4 --do {}/u1.npy", r"u1\.npy.*u1.*f2, f4 or f8"),
    ("--backward -N 5 -H 3 -d 4 --do {}/short.npy", r"short\.npy"),
    ("--backward -N 5 -H 3 -d 4 --do {}", r"--do takes a \.npy file"),
    ("--backward --bundled=causal --do {}/q.npy", r"q\.npy: found shape"),
    ("--backward --bundled=causal --dist large", r"--dist.*--bundled"),
    ("--backward=1", r"--backward.*'1'"),
]
ROWS = [
    ("--rows 5", r"--rows.*--cols"),
    ("--cols 5", r"--cols.*--rows"),
    ("--rows 0 --cols 5", r"--rows: found '0'"),
    ("--rows 5 --cols x", r"--cols: found 'x'"),
    ("--rows 1000000000 --cols 1000000000", r"--rows: found 1000000000"),
    ("--rows 5 --cols 5 --bundled", r"--bundled.*--rows"),
    ("--rows 5 --cols 5 --dtype f16", r"--dtype.*--rows"),
] + [("--rows 5 --cols 5 " + flag, flag.split()[0] + ".*--rows") for flag in (
    "--causal", "--mask full", "--mask full --mask-file {}/mask.npy", "--mask-file {}/mask.npy",
    "--window 3,3", "--softcap 5", "--scale 2", "--strides odd", "--kv-heads 1", "--batch 2",
    "--heads 2", "--seq 7", "--head-dim 8", "--trace")]
TRACE = [
    ("--trace -N 1000", r"--trace: found.*(1000|125).*(8|16)"),
    ("--trace --bundled", r"--trace: found.*(384|48).*(8|16)"),
    ("--trace --bundled=causal", r"--trace: found.*(512|64).*(8|16)"),
]
# Stage 05. THD stands for the layout with two files of lengths.
THD = "--tensor-layout thd --cu-seqlens-q {}/lengths.npy --cu-seqlens-kv {}/lengths.npy"
OFFLINE = [
    ("--tensor-layout bhsd", r"--tensor-layout: found 'bhsd'.*thd"),
    ("--tensor-layout thd", r"--tensor-layout thd.*--cu-seqlens-q and --cu-seqlens-kv"),
    ("--tensor-layout thd --cu-seqlens-q {}/lengths.npy", r"thd.*without --cu-seqlens-kv"),
    ("--tensor-layout thd --cu-seqlens-kv {}/lengths.npy", r"thd.*without --cu-seqlens-q"),
    ("--cu-seqlens-q {}/lengths.npy", r"--cu-seqlens-q.*--tensor-layout thd"),
    ("--cu-seqlens-q {}/lengths.npy --cu-seqlens-kv {}/lengths.npy", r"--cu-seqlens-q.*thd"),
    ("--tensor-layout sbhd --cu-seqlens-kv {}/lengths.npy", r"--cu-seqlens-kv.*thd"),
    (THD + " -B 2", r"--batch.*thd"),
    (THD + " --bundled", r"--bundled.*thd"),
    (THD + " --seq-q 9", r"found 12.*9, the tokens of --seq-q"),
    (THD + " --seq-kv 13", r"found 12.*13, the tokens of --seq-kv"),
    (THD.replace("lengths", "falls", 1), r"falls\.npy"),
    (THD.replace("lengths", "late", 1), r"late\.npy"),
    (THD.replace("lengths", "five", 1), r"lengths\.npy: found 3 sequences.*4.*five"),
    (THD.replace("lengths", "q", 1), r"q\.npy"),
    (THD.replace("lengths", "none", 1), r"none\.npy"),
    (THD + " --q {}/q.npy --k {}/k.npy --v {}/k.npy", r"q\.npy: found 4 dim"),
    (THD + " --q {}/rank3.npy --k {}/rank3.npy --v {}/rank3.npy", r"found 5.*12|found 12.*5"),
    ("--tensor-layout sbhd --strides odd", r"--strides.*--tensor-layout sbhd"),
    ("--pack kv", r"--pack: found 'kv'.*q_kv"),
    ("--pack qkv --seq-q 5 --seq-kv 7", r"--pack qkv: found 5 queries and 7 keys"),
    ("--pack qkv --q {}/q.npy", r"--pack qkv.*--heads"),
    ("--pack qkv --q {}/q.npy -H 2", r"--pack qkv.*--kv-heads"),
    ("--pack qkv --q {}/q.npy -H 2 --kv-heads 1", r"q\.npy: found 3 heads"),
    ("--pack qkv --q {}/q.npy --k {}/k.npy -H 1 --kv-heads 1", r"--k.*--pack qkv|--pack qkv.*--k"),
    ("--pack q_kv --q {}/q.npy --k {}/k.npy --v {}/k.npy", r"--v.*--pack q_kv|--pack q_kv.*--v"),
    ("--pack q_kv --q {}/q.npy --k {}/k.npy", r"k\.npy: found 3 heads"),
    ("--temperature 0", r"--temperature: found '0'"),
    ("--temperature -2", r"--temperature: found '-2'"),
    ("--temperature inf", r"--temperature: found 'inf'"),
    ("--temperature 1e-30", r"--temperature: found 1e-30"),
    ("--clip 0", r"--clip: found '0'"),
    ("--clip 0.1,1", r"--clip: found '0.1,1'"),
    ("--clip 0,0.9", r"--clip: found '0,0.9'"),
    ("--clip=-0.1,1.1,2", r"--clip: found '-0.1,1.1,2'"),
    ("--clip nan,1", r"--clip: found 'nan,1'"),
    ("--clip=-2e6,1", r"--clip: found '-2e6,1'"),
    ("--dropout 1", r"--dropout: found '1'"),
    ("--dropout -0.1", r"--dropout: found '-0.1'"),
    ("--dropout nan", r"--dropout: found 'nan'"),
    ("--dropout 0.99999999", r"--dropout: found '0.99999999'"),
    ("--qk-norm 0", r"--qk-norm: found '0'"),
    ("--qk-norm 3 -d 8", r"--qk-norm: found groups of 3.*8"),
    ("--qk-norm 16 -d 8", r"--qk-norm: found groups of 16.*8"),
    ("--qk-norm 5 --bundled", r"--qk-norm: found groups of 5.*32"),
    ("--wq {}/w12.npy", r"--wq.*--wk"),
    ("--wk {}/w12.npy --qk-norm 4", r"--wk.*--wq"),
    ("--wq {}/w12.npy --wk {}/w12.npy", r"--wq.*--qk-norm"),
    ("--qk-norm 4 -N 5 -H 2 -d 4 --wq {}/w12.npy --wk {}/w12.npy", r"w12\.npy: found .*8"),
    ("--qk-norm 4 -N 5 -H 3 -d 4 --wq {}/w12.npy --wk {}/q.npy", r"q\.npy: found .*4 dim"),
    ("--block-q 0", r"--block-q: found '0'"),
    ("--block-kv 99999999", r"--block-kv: found '99999999'"),
    ("--order spiral", r"--order: found 'spiral'.*diagonal"),
    ("--variant v1_online_block --dropout 0.5 -N 5", r"v1_online_block.*dropout"),
    ("--variant v1_online_block --clip=-0.1,1.1 -N 5", r"v1_online_block.*clip"),
    ("--variant v3_streaming -N 5", r"v3_streaming.*causal"),
    ("--variant v3_streaming -N 5 --causal", r"v3_streaming.*finite"),
    ("--variant v3_streaming --seq-q 9 --seq-kv 5 --causal --window 3,-1", r"v3_streaming.*key"),
    ("--variant v3_streaming -N 5 --window 3,0 --mask full", r"v3_streaming.*mask"),
    ("--variant v3_streaming -N 5 --causal --window 3,-1 --dropout 0.5", r"v3_streaming.*dropout"),
    ("--variant v2_window_tiles --backward -N 5", r"v2_window_tiles.*--backward"),
]
ONLY_OFFLINE = [(flag, re.match("[a-z-]+", flag)[0]) for flag in (
    "--tensor-layout sbhd", "--pack qkv", "--temperature 2", "--clip=-0.1,1.1", "--dropout 0.1",
    "--qk-norm 4", "--block-q 4", "--order random", "--cu-seqlens-q {}/lengths.npy",
    "--wq {}/w12.npy")]
DETERMINISTIC = [("--deterministic=yes", r"--deterministic.*'yes'")]
OTHERS = {"--deterministic": "--deterministic", "--backward": "--backward",
          "--rows": "--rows 3 --cols 3", "--trace": "--trace"}


def npy_bytes(header, data):
    text = header + " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data


def make_files(folder):
    """q: B=1 Nq=5 H=3 d=4; k: Nk=5 Hkv=3."""
    def path(name):
        return os.path.join(folder, name)

    for name, shape, kind in (("q", (1, 5, 3, 4), "f4"), ("k", (1, 5, 3, 4), "f8"),
                              ("d6", (1, 5, 3, 6), "f4"), ("h2", (1, 5, 2, 4), "f4"),
                              ("u1", (1, 5, 3, 4), "u1"), ("rank3", (5, 3, 4), "f4"),
                              ("mask", (5, 5), "u1"), ("zero", (1, 0, 3, 4), "f4")):
        count = 1
        for n in shape:
            count *= n
        npyfile.write(path(name + ".npy"), shape, [i % 2 for i in range(count)], kind)
    for name, starts in (("lengths", (0, 5, 5, 12)), ("falls", (0, 5, 3, 12)),
                         ("late", (1, 5, 12)), ("five", (0, 2, 4, 5, 12))):
        npyfile.write(path(name + ".npy"), (len(starts),), starts, "i4")
    npyfile.write(path("w12.npy"), (12,), [1.0] * 12)
    # k has another number of keys than q has queries, so that the two cannot be mixed up
    npyfile.write(path("k.npy"), (1, 7, 3, 4), [0.25 * (i % 9) for i in range(84)], "f8")
    with open(path("q.npy"), "rb") as f:
        whole = f.read()
    header = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 5, 3, 4), }"
    texts = {"short.npy": whole[:-3], "magic.npy": b"PK\x03\x04" + whole[4:], "empty.npy": b"",
             "fortran.npy": npy_bytes(header, bytes(240)),
             "blank.txt": b"\n# nothing\n   \n", "third.txt": b"-N 5\n# -N 0\n-N 0\n",
             "json.txt": b"--json x\n", "binary.txt": b"-N 5\n\0\n",
             "cut.jsonl": b'{"schema":1}\n{"sch',
             "conflict.txt": b"-N 5 --causal\n-N 5 --causal --mask full\n"}
    for name, content in texts.items():
        with open(path(name), "wb") as f:
            f.write(content)
    os.mkfifo(path("fifo"))


def snapshot(folder):
    found = {}
    for where, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.join(where, name)] = None
        for name in files:
            if not os.path.isfile(os.path.join(where, name)):
                continue  # the FIFO: reading it would wait
            with open(os.path.join(where, name), "rb") as f:
                found[os.path.join(where, name)] = f.read()
    return found


def check(tap, program, flags, pattern, folder, before):
    words = [word.replace("{}", folder) for word in flags.split()]
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60,
                              cwd=folder, errors="backslashreplace")
    except subprocess.TimeoutExpired:
        tap.ok(False, f"{os.path.basename(program)} {flags}", "did not come back in 60 s")
        return
    lines = done.stderr.splitlines()
    wrong = []
    if done.returncode != 2:
        wrong.append(f"exit status {done.returncode}")
    if done.stdout:
        wrong.append(f"stdout: {done.stdout[:200]}")
    if len(lines) != 1 or not lines[0].startswith(os.path.basename(program) + ": "):
        wrong.append(f"{len(lines)} lines on stderr")
    elif not re.search(pattern, lines[0]):
        wrong.append(f"the sentence does not name {pattern}")
    elif not re.search(r"accepted|did you mean|takes a", lines[0]):
        wrong.append("the sentence does not say what is accepted")
    if snapshot(folder) != before:
        wrong.append("files were written")
    tap.ok(not wrong, f"{os.path.basename(program)} {flags}",
           "; ".join(wrong) + "\n" + done.stderr[:500])


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory() as folder:
        make_files(folder)
        before = snapshot(folder)
        for program in map(os.path.abspath, sys.argv[1:]):
            page = subprocess.run([program, "--help"], capture_output=True, text=True,
                                  timeout=60).stdout
            cases = list(FLAGS)
            # another stage's flag, or a bad value of this stage's own
            cases.append(("--sram 0", "--sram: found '0'") if "--sram" in page
                         else ("--sram 4096", "--sram"))
            cases.append(("--smem-limit 0", "--smem-limit: found '0'") if "--smem-limit" in page
                         else ("--smem-limit 101376", "--smem-limit"))
            if "  --do" in page and "  --backward" not in page:
                # always on: --do needs nothing beside it, and --dist is for a random dO at least
                cases = [case for case in cases if not re.search("--dist large|--do ", case[0])]
                cases += [(flags.replace("--backward ", ""), pattern)
                          for flags, pattern in BACKWARD if "--backward " in flags]
            for flag, more in (("--backward", BACKWARD), ("--rows", ROWS), ("--trace", TRACE),
                               ("--deterministic", DETERMINISTIC), ("--clip", OFFLINE)):
                if f"  {flag}" in page:
                    cases += more
                elif flag == "--clip":
                    cases += ONLY_OFFLINE
                else:  # a flag that belongs to other stages
                    cases.append((OTHERS[flag], flag))
            for flags, pattern in cases:
                check(tap, program, flags, pattern, folder, before)
            tap.ok(len(cases) >= 40, f"{os.path.basename(program)}: {len(cases)} cases")
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
