# SPDX-License-Identifier: MIT
"""bad_usage.py: command lines that every program has to refuse, for test_bad_usage.py.

Interface:
- FLAGS: for every program. BACKWARD, ROWS, TRACE, DETERMINISTIC, OFFLINE, RANKS: for those that
  have the flag. OTHERS, ONLY_OFFLINE, ONLY_RANKS: for those that do not.
"""
import re


def found(lines):
    """Flags, '|' between them, whose last value is what the sentence must name."""
    ends = [(flags, re.search(r"(\S+)[ =](\S*)$", flags)) for flags in lines.split("|")]
    return [(flags, f"{re.escape(end[1])}: found '{re.escape(end[2])}'") for flags, end in ends]


# (flags, what the sentence must name). {} is a folder with the files that make_files writes.
FLAGS = found(
    "-N 0|-N -4|-N 12x|-N 1e3|-N=|--batch 0|--heads 0|--kv-heads -1|--seq-q 0|"
    "--seq-kv nine|-d 0|--window 5|--window 1,2,3|--window 1,|--window 0x4,1|--scale 0|"
    "--scale nan|--scale inf|--scale 1e99|--softcap -1|--softcap 0|--softcap 3.5.1|"
    "--seed -1|--seed 18446744073709551616|--threads 0|--threads 100000|--bench --iters 0|"
    "--bench --warmup -1|--so-time 0|--so-memory 0|--json --quiet"
) + [
    ("--frobnicate", "--frobnicate"),
    ("--hed 3", r"--hed.*--heads"),
    ("-X", "-X"),
    ("seven", "seven"),
    ("-N", r"-N: found no value"),
    ("-B 99999999999999999999", r"-B: found '9+'"),
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
    ("--dtype e4m3 --device cpu", r"--dtype e4m3.*: found no variant of .* --device cpu.*--list"),
    ("--mask lower", r"--mask: found 'lower'.*causal-lower-right"),
    ("--causal --mask full", r"--causal.*--mask full"),
    ("--mask none --causal", r"--causal.*--mask none"),
    ("--mask-file {}/mask.npy", r"--mask-file.*--mask full"),
    ("--mask-file {}/mask.npy --causal", r"--mask-file.*--mask full"),
    ("--window -2,0", r"--window: found '-2,0'.*-1"),
    ("--scale 1e19", r"--scale: found '1e19'.*1e\+18"),
    ("--softcap 2.4e38", r"--softcap: found '2.4e38'.*1e\+38"),
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
    ("--variant v9_magic", r"--variant: found 'v9_magic'.*(v0_|auto, all, ring)"),
    ("--variant V0 --device cuda", r"--variant"),
    ("--variant-so {}/none.so", r"--variant-so.*none\.so"),
    ("--iters 5", r"--iters.*--bench"),
    ("--warmup 5", r"--warmup.*--bench"),
    ("--check=yes", r"--check.*'yes'"),
    ("--quiet=", r"--quiet"),
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


def of_lengths(files):
    """files: the flags of two files of lengths, of stage 05 or 06."""
    def other(name):
        return files.replace("lengths", name, 1)

    return [
        (files + " -B 2", r"--batch.*(thd|--cu-seqlens-q)"),
        (files + " --bundled", r"--bundled.*(thd|--cu-seqlens-q)"),
        (files + " --seq-q 9", r"found 12.*9, the tokens of --seq-q"),
        (files + " --seq-kv 13", r"found 12.*13, the tokens of --seq-kv"),
        (other("falls"), r"falls\.npy"),
        (other("late"), r"late\.npy"),
        (other("five"), r"lengths\.npy: found 3 sequences.*4.*five"),
        (other("one"), r"one\.npy: found 1 numbers"),
        (other("nobody"), r"nobody\.npy: found 0 at its end"),
        (other("q"), r"q\.npy"),
        (other("none"), r"none\.npy"),
    ]


# Stage 05. THD stands for the layout with two files of lengths.
THD = "--tensor-layout thd --cu-seqlens-q {}/lengths.npy --cu-seqlens-kv {}/lengths.npy"
OFFLINE = found(
    "--temperature 0|--temperature -2|--temperature inf|--clip 0|--clip 0.1,1|--clip 0,0.9|"
    "--clip=-0.1,1.1,2|--clip nan,1|--clip=-2e6,1|--dropout 1|--dropout -0.1|--dropout nan|"
    "--dropout 0.99999999|--qk-norm 0|--block-q 0|--block-kv 99999999"
) + of_lengths(THD) + [
    ("--tensor-layout bhsd", r"--tensor-layout: found 'bhsd'.*thd"),
    ("--tensor-layout thd", r"--tensor-layout thd.*--cu-seqlens-q and --cu-seqlens-kv"),
    ("--tensor-layout thd --cu-seqlens-q {}/lengths.npy", r"thd.*without --cu-seqlens-kv"),
    ("--tensor-layout thd --cu-seqlens-kv {}/lengths.npy", r"thd.*without --cu-seqlens-q"),
    ("--cu-seqlens-q {}/lengths.npy", r"--cu-seqlens-q.*--tensor-layout thd"),
    ("--cu-seqlens-q {}/lengths.npy --cu-seqlens-kv {}/lengths.npy", r"--cu-seqlens-q.*thd"),
    ("--tensor-layout sbhd --cu-seqlens-kv {}/lengths.npy", r"--cu-seqlens-kv.*thd"),
    (THD.replace("lengths", "huge"), r"huge\.npy: found 9\.22337203685478e\+18 at its end"),
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
    ("--temperature 1e-30", r"--temperature: found 1e-30, accepted is 1e-18 or more"),
    ("--temperature 1e-9 --scale 1e12", r"--temperature: found 1e-09 with a scale of 1e\+12"),
    ("--qk-norm 3 -d 8", r"--qk-norm: found groups of 3.*8"),
    ("--qk-norm 16 -d 8", r"--qk-norm: found groups of 16.*8"),
    ("--qk-norm 5 --bundled", r"--qk-norm: found groups of 5.*32"),
    ("--wq {}/w12.npy", r"--wq.*--wk"),
    ("--wk {}/w12.npy --qk-norm 4", r"--wk.*--wq"),
    ("--wq {}/w12.npy --wk {}/w12.npy", r"--wq.*--qk-norm"),
    ("--qk-norm 4 -N 5 -H 2 -d 4 --wq {}/w12.npy --wk {}/w12.npy", r"w12\.npy: found .*8"),
    ("--qk-norm 4 -N 5 -H 3 -d 4 --wq {}/w12.npy --wk {}/q.npy", r"q\.npy: found .*4 dim"),
    ("--order spiral", r"--order: found 'spiral'.*diagonal"),
    ("--variant v1_online_block --dropout 0.5 -N 5", r"v1_online_block.*options"),
    ("--variant v1_online_block --clip=-0.1,1.1 -N 5", r"v1_online_block.*options"),
    ("--variant v3_streaming -N 5", r"v3_streaming.*causal"),
    ("--variant v3_streaming -N 5 --causal", r"v3_streaming.*finite"),
    ("--variant v3_streaming --seq-q 9 --seq-kv 5 --causal --window 3,-1", r"v3_streaming.*key"),
    ("--variant v3_streaming -N 5 --window 3,0 --mask full", r"v3_streaming.*mask"),
    ("--variant v3_streaming -N 5 --causal --window 3,-1 --dropout 0.5", r"v3_streaming.*options"),
    ("--variant v1_online_block --backward -N 5", r"v1_online_block.*--backward"),
]
ONLY_OFFLINE = [(flag, re.match("[a-z-]+", flag)[0]) for flag in (
    "--tensor-layout sbhd", "--pack qkv", "--temperature 2", "--clip=-0.1,1.1", "--dropout 0.1",
    "--qk-norm 4", "--block-q 4", "--order random", "--cu-seqlens-q {}/lengths.npy",
    "--wq {}/w12.npy")]
DETERMINISTIC = [("--deterministic=yes", r"--deterministic.*'yes'")]
OTHERS = {"--deterministic": "--deterministic", "--backward": "--backward",
          "--rows": "--rows 3 --cols 3", "--trace": "--trace"}
# Stage 06. LENGTHS stands for two files of lengths: there the tensors keep their four dimensions.
LENGTHS = "--cu-seqlens-q {}/lengths.npy --cu-seqlens-kv {}/lengths.npy"
RANKS = found(
    "--ranks all|--nodes 0|--timeout 0|--timeout nan|--seed-schedule -1|--seed-schedule x|"
    "--inject drop@1"
) + of_lengths(LENGTHS) + [
    ("--ranks 0", r"--ranks: found '0'.*1 to 64"),
    ("--ranks 65", r"--ranks: found '65'.*1 to 64"),
    ("--transport tcp", r"--transport: found 'tcp'.*sim, mpi, nccl"),
    ("--transport nccl --device cpu", r"--transport nccl.*--device cpu.*--device cuda"),
    ("--method v0", r"--method: found 'v0'.*auto, all, ring-minimal, ring, burst"),
    ("--variant ring --method burst", r"--method burst: found beside --variant ring, accepted"),
    ("--method ring --variant burst", r"--variant burst: found beside --method ring, accepted"),
    ("--method ring-minimal --device cuda", r"--method ring-minimal: .*accepted is --device cpu"),
    ("--method", r"--method: found no value"),
    ("--method ulysses -N 9 --heads 4 --ranks 3",
     r"--method ulysses: .*skips: .*4 query heads.*3 ranks.*; accepted is --method all"),
    ("--method ulysses -N 9 --heads 12 --kv-heads 3 --ranks 2", r"ulysses.*3 kv heads.*2 ranks"),
    ("--layout snake", r"--layout: found 'snake'.*contiguous, zigzag, striped"),
    ("--nodes 3", r"--nodes: found 3 with 4 ranks.*divisor"),
    ("--ranks 6 --nodes 4 --method ring-double", r"--nodes: found 4 with 6 ranks"),
    ("--link copy", r"--link.*--transport sim.*nccl"),
    ("--partials f16", r"--partials: found 'f16'.*f32, bf16"),
    ("--timeout 1e6", r"--timeout: found '1e6'.*86400"),
    ("--seed-schedule 1 --transport nccl", r"--seed-schedule.*--transport nccl.*sim"),
    ("--inject lose@1:2", r"--inject: found 'lose@1:2'.*drop, duplicate"),
    ("--inject drop", r"--inject: found 'drop'.*drop@1:2"),
    ("--inject drop@x:2", r"--inject: found 'x'"),
    ("--inject drop@1:-2", r"--inject: found '-2'"),
    ("--inject drop@4:0", r"--inject: found rank 4 of 4.*0 to 3"),
    ("--inject drop@0:0 --transport nccl", r"--inject.*--transport nccl.*sim or mpi"),
    ("--verify-hops --transport nccl", r"--verify-hops.*--transport nccl.*sim or mpi"),
    ("--verify-hops=yes", r"--verify-hops.*'yes'"),
    ("--trace-json {}/t.json", r"--trace-json.*--method all"),
    ("--trace-json --causal --method ring", r"--trace-json: found '--causal'"),
    ("--trace-json {}/none/t.json --method ring -N 9", r"--trace-json.*none/t\.json"),
    ("--trace-json {} --method ring -N 9", r"--trace-json.*[Dd]irectory"),
    ("--trace-json {}/t.json --json {}/t.json --method ring", r"--trace-json.*the file of --json"),
    ("--cases {}/traces.txt", r"traces\.txt:2: --trace-json: found t\.json.*line 1"),
    ("--trace --method ulysses -N 9 --heads 4 --ranks 3", r"ulysses.*4 query heads.*3 ranks"),
    ("--trace --ranks 17", r"--trace: found 17 ranks.*16"),
    ("--cu-seqlens-q {}/lengths.npy", r"--cu-seqlens-q.*without --cu-seqlens-kv"),
    ("--cu-seqlens-kv {}/lengths.npy", r"--cu-seqlens-kv.*without --cu-seqlens-q"),
    (LENGTHS + " --q {}/q.npy --k {}/k.npy --v {}/k.npy", r"found 12.*5, the tokens of"),
]
ONLY_RANKS = [(flag, flag.split()[0]) for flag in (
    "--ranks 2", "--method ring", "--transport sim", "--layout zigzag", "--nodes 2", "--link copy",
    "--partials f32", "--timeout 5", "--seed-schedule 1", "--inject drop@0:0", "--verify-hops",
    "--trace-json {}/t.json")]
