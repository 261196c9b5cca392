# SPDX-License-Identifier: MIT
# Part of ./ladder: the cases that the pieces of ladder_gpu.sh run, a line of flags each.
#
# Interface: sanitize_cases, sanitize_one_rank, sanitize_programs, bench_cases, wall_cases,
# traffic_cases, ncu_cases, ring_gpu_cases, ring_bench_cases, ring_million_cases, gpu_count.

gpu_count() {
    nvidia-smi -L 2>/dev/null | grep -c '^GPU' || :
}

# Small cases that reach every kernel's tails: the tools slow a program down 10 to 100 times.
sanitize_cases() {
    cat <<'TXT'
-B 2 -H 4 --kv-heads 2 --seq-q 65 --seq-kv 129 -d 59 --mask causal-lower-right
-H 1 --seq-q 17 --seq-kv 33 -d 64 --mask full --softcap 20
-H 2 --seq-q 64 --seq-kv 64 -d 32 --window 5,3 --strides odd
-H 2 --seq-q 33 --seq-kv 70 -d 64 --dtype bf16 --mask causal-upper-left
TXT
    case $1 in
    naive) printf '%s\n' '-H 2 --kv-heads 1 --seq-q 33 --seq-kv 40 -d 24 --backward' ;;
    tiled_softmax) printf '%s\n' '--rows 3 --cols 1025' '--rows 1 --cols 70000' ;;
    flash_forward) # each compiled head dimension and padded ones, aligned rows and not
        echo '--dtype e4m3 -H 2 --kv-heads 1 --seq-q 140 --seq-kv 600 -d 128 --causal'
        for dtype in f32 f16 bf16; do
            printf -- "--dtype $dtype %s\n" \
                '-H 2 --seq-q 140 --seq-kv 130 -d 32 --causal' \
                '-H 4 --kv-heads 2 --seq-q 65 --seq-kv 200 -d 64 --causal' \
                '-H 1 --seq-q 70 --seq-kv 130 -d 64 --strides odd --mask causal-upper-left' \
                '-H 1 --seq-q 70 --seq-kv 130 -d 96 --mask full' \
                '-H 2 --kv-heads 1 --seq-q 33 --seq-kv 129 -d 128 --window 40,9' \
                '-H 2 --seq-q 140 --seq-kv 270 -d 128 --causal' \
                '-H 1 --seq-q 33 --seq-kv 70 -d 128 --strides odd' \
                '-H 1 --seq-q 70 --seq-kv 70 -d 256 --causal' \
                '-H 2 --seq-q 130 --seq-kv 100 -d 59 --softcap 20' \
                '-H 1 --seq-q 5 --seq-kv 1000 -d 80' \
                '-B 11 -H 16 --kv-heads 8 --seq-q 8 --seq-kv 1500 -d 64'
        done
        ;;
    flash_backward) # the same, smaller: five products instead of two
        for dtype in f32 f16 bf16; do
            printf -- "--dtype $dtype %s\n" \
                '-H 2 --kv-heads 1 --seq-q 70 --seq-kv 90 -d 32 --causal' \
                '-H 2 --seq-q 65 --seq-kv 140 -d 64 --causal' \
                '-H 1 --seq-q 70 --seq-kv 70 -d 64 --strides odd --mask causal-upper-left' \
                '-H 1 --seq-q 33 --seq-kv 130 -d 96 --mask full' \
                '-H 2 --kv-heads 1 --seq-q 33 --seq-kv 129 -d 128 --window 40,9' \
                '-H 1 --seq-q 70 --seq-kv 33 -d 256 --causal' \
                '-H 1 --seq-q 130 --seq-kv 50 -d 59 --softcap 20' \
                '-H 1 --seq-q 1 --seq-kv 300 -d 80' \
                '-H 2 --kv-heads 1 --seq-q 140 --seq-kv 150 -d 64 --causal --deterministic' \
                '-H 1 --seq-q 200 --seq-kv 70 -d 128 --deterministic' \
                '-H 1 --seq-q 65 --seq-kv 130 -d 59 --strides odd --window 40,9 --deterministic'
        done
        ;;
    sliding_window) # every option, tails of tiles, several keys of a window's ends
        for dtype in f32 f16 bf16; do
            printf -- "--dtype $dtype %s\n" \
                '-H 2 --kv-heads 1 --seq-q 70 --seq-kv 90 -d 64 --causal --window 20,0 --backward' \
                '-H 1 --seq-q 65 --seq-kv 140 -d 59 --window 9,30 --strides odd --backward' \
                '-H 2 --seq-q 40 --seq-kv 70 -d 64 --causal --qk-norm 16 --dropout 0.2 --backward' \
                '-H 1 --seq-q 33 --seq-kv 50 -d 96 --clip -0.1,1.2 --temperature 2 --backward' \
                '-H 2 --kv-heads 1 --seq-q 33 --seq-kv 130 -d 128 --window 40,9' \
                '-H 4 --kv-heads 1 --seq-q 3 --seq-kv 600 -d 80 --causal --window 500,0' \
                '-H 2 -N 70 -d 64 --causal --pack qkv --order random --block-q 24 --block-kv 40' \
                '-H 1 --seq-q 70 --seq-kv 70 -d 256 --causal --window 30,0'
        done
        for dtype in f16 bf16; do # narrow windows: a block of threads goes from rows to rows
            printf -- "--dtype $dtype --variant library %s\n" \
                '-H 140 --kv-heads 70 --seq-q 300 --seq-kv 317 -d 8 --causal --window 256,0' \
                '-H 80 --seq-q 300 --seq-kv 280 -d 72 --window 100,99'
        done
        ;;
    ring_burst) # every method, layout and dtype; ranks are streams of one GPU
        for dtype in f32 f16 bf16; do
            printf -- "--dtype $dtype --backward %s\n" \
                '-H 2 --kv-heads 2 -N 130 -d 64 --causal --ranks 2 --method all' \
                '-H 4 --kv-heads 1 --seq-q 70 --seq-kv 33 -d 59 --ranks 4 --layout striped' \
                '-B 2 -H 2 -N 41 -d 32 --causal --window 9,0 --ranks 3 --method burst' \
                '-H 2 --kv-heads 1 -N 3 -d 32 --mask full --ranks 4 --method ring-double' \
                '-H 1 -N 140 -d 128 --causal --ranks 3 --deterministic --method ring'
        done
        ;;
    esac
}

# The same of stage 06 for initcheck. Ranks on one GPU are threads with streams of their own, and
# with them the tool (CUDA 13.0, H200) reported what had been written: the end of an lse, from its
# byte 256 on, though one loop of one block fills all of it, earlier in the same stream. Had nobody
# written it, O would have been wrong. A method that reads what nobody wrote is found on the CPU,
# where a rank's memory begins as NaN.
sanitize_one_rank() {
    sanitize_cases ring_burst | sed 's/ --ranks [0-9]*//; s/$/ --ranks 1/'
}

# Stage 06 on $1 GPUs: small cases that are checked, over both links.
ring_gpu_cases() {
    for link in nccl copy; do
        for flags in '-N 1000 -d 64 --causal --layout zigzag' '-N 777 -d 128 --window 99,0' \
            '-B 2 --seq-q 300 --seq-kv 1001 -d 59 --layout striped' '-N 2000 -d 128 --causal' \
            '-N 5 -d 64 --causal' '-N 640 -d 64 --mask full' '-N 500 -d 64 --dtype f32 --causal'; do
            echo "-H 16 --kv-heads 8 --dtype bf16 --backward --ranks $1 --link $link $flags"
        done
    done
    [ "$1" -lt 4 ] || echo "-H 8 --dtype f16 -N 900 -d 64 --causal --backward --ranks $1 --nodes 2"
    echo "-H 2 --dtype bf16 -N 600 -d 64 --causal --backward --ranks 1"
}

# A stage's own test programs that run under the tools as well.
sanitize_programs() {
    case $1 in
    flash_forward)
        echo build/gpu/tests/gpu/test_flash_resume_gpu small
        echo build/gpu/tests/gpu/test_flash_unnormalised_gpu small
        ;;
    flash_backward) # a test at a time: under racecheck all of them take longer than a piece
        blocks=tests/gpu/test_backward_blocks_gpu
        sed -n "s|^TEST(\([a-z_]*\))|build/gpu/$blocks small \1|p" $blocks.c
        ;;
    sliding_window) echo build/gpu/tests/gpu/test_window_decode_gpu small ;;
    ring_burst) echo build/gpu/tests/gpu/test_ring_work_gpu ;;
    esac
}

# 16k tokens in all, hidden size 2048: the setting of the published numbers
published_cases() {
    for d in 64 128 256; do
        for n in 1024 4096 16384; do
            echo "-B $((16384 / n)) -H $((2048 / d)) -N $n -d $d --dtype bf16"
            echo "-B $((16384 / n)) -H $((2048 / d)) -N $n -d $d --dtype bf16 --causal"
        done
    done
}

# Stage 05: the published setting at N = 16384 with windows, both passes; then what one window costs
# at all lengths, the whole ladder at a length that all variants bear, and a rolling cache.
window_cases() {
    for d in 64 128; do
        for left in 256 1024 4096; do
            echo "-B 1 -H $((2048 / d)) -N 16384 -d $d --dtype bf16 --causal --window $left,0" \
                "--variant library --backward"
        done
        echo "-B 1 -H $((2048 / d)) -N 16384 -d $d --dtype f16 --causal --window 1024,0" \
            "--variant library"
    done
    for d in 64 128; do
        for n in 8192 16384 32768 65536; do
            echo "-B 1 -H $((2048 / d)) -N $n -d $d --dtype bf16 --causal --window 1024,0" \
                "--variant library"
        done
    done
    for n in 8192 16384 32768; do
        echo "-B 1 -H 32 -N $n -d 64 --dtype bf16 --causal --variant library"
    done
    echo "-B 1 -H 32 -N 4096 -d 64 --dtype bf16 --causal --window 1024,0"
    echo "-B 1 -H 32 -N 4096 -d 64 --dtype f32 --causal --window 1024,0"
    echo "-B 1 -H 32 -N 16384 -d 64 --dtype f32 --causal --window 1024,0 --backward" \
        "--variant library"
    echo "-B 1 -H 8 -N 4096 -d 64 --dtype bf16 --causal --window 1024,0 --dropout 0.1" \
        "--clip -0.1,1.1 --qk-norm 64 --backward --variant library"
    for n in 1 2 4 8 16; do
        echo "-B 8 -H 32 --kv-heads 8 --seq-q $n --seq-kv $((4096 + n)) -d 128 --dtype bf16" \
            "--causal --window 4096,0 --variant library"
    done
    for n in 1 4; do # more are not few: it reads the keys again for each
        echo "-B 8 -H 32 --kv-heads 8 --seq-q $n --seq-kv $((4096 + n)) -d 128 --dtype bf16" \
            "--causal --window 4096,0 --variant v3_decode_window"
    done
}

# Stage 06 on $1 GPUs, what matters most first: 8192 and 32768 tokens on each, over both links; what
# contiguous shards cost; one GPU, few tokens on each and fewer GPUs. On one GPU: its ranks as
# streams.
ring_bench_cases() {
    ranks=$1
    common='-B 1 -H 32 --kv-heads 8 -d 128 --dtype bf16 --warmup 2 --iters 7 --backward'
    if [ "$ranks" -lt 2 ]; then
        for layout in zigzag contiguous; do
            echo "$common --causal -N 16384 --ranks 4 --layout $layout --method all"
        done
        return
    fi
    common="$common --transport nccl"
    several="$common --causal --ranks $ranks"
    methods='--cases common/tools/ring_methods.txt'
    echo "$several -N $((8192 * ranks)) --link nccl $methods"
    echo "$several -N $((8192 * ranks)) --link copy $methods"
    echo "$several -N $((8192 * ranks)) --link nccl --layout contiguous --method ring"
    echo "$common --ranks 1 --method ring --cases common/tools/ring_one_gpu.txt"
    echo "$several -N $((32768 * ranks)) --link nccl $methods"
    echo "$several -N $((32768 * ranks)) --link copy --method ring"
    echo "$several -N $((4096 * ranks)) --link nccl $methods"
    echo "$several -N $((2048 * ranks)) --link nccl $methods"
    echo "$several -N $((4096 * ranks)) --link copy --method ring"
    echo "$several -N $((2048 * ranks)) --link copy --method ring"
    fewer=2
    while [ "$fewer" -lt "$ranks" ]; do
        echo "$common --causal --ranks $fewer -N $((8192 * fewer)) --link nccl $methods"
        fewer=$((2 * fewer))
    done
}

# A million tokens on $1 GPUs: one round without a warm-up, since it takes most of a minute on two
# GPUs, and without the local baseline of --bench, which would take as long again. Inputs (--dist
# paired) whose gradients stay large enough to be judged.
ring_million_cases() {
    ranks=$1
    [ "$ranks" -lt 2 ] ||
        echo "-B 1 -H 32 --kv-heads 8 -d 128 --dtype bf16 --causal --transport nccl --link copy" \
            "--ranks $ranks -N 1048576 --backward --dist paired --method ring --timeout 300"
}

# One line of flags per bench run.
bench_cases() {
    case $1 in
    tiled_softmax) # 2^28 elements in all, f32; then one row of them
        for cols in 1024 4096 16384 32768; do
            echo "--rows $((268435456 / cols)) --cols $cols"
        done
        echo "--rows 1 --cols 268435456 --variant v3_split_row"
        ;;
    flash_forward)
        published_cases
        for heads in 8 1; do # query heads that share keys and values
            echo "-B 2 -H 32 --kv-heads $heads -N 8192 -d 128 --dtype bf16 --causal" \
                '--variant library'
        done
        for n in 1 4 16; do # few queries, many keys
            for keys in "-B 8 --seq-kv $((4096 + n))" '-B 1 --seq-kv 65536'; do
                echo "$keys -H 32 --kv-heads 8 --seq-q $n -d 128 --dtype bf16 --causal" \
                    '--variant library'
            done
        done
        echo "-B 1 -H 16 -N 1024 -d 64 --dtype f32"
        echo "-B 4 -H 16 -N 1024 -d 64 --dtype f32"
        echo "-B 1 -H 16 -N 4096 -d 64 --dtype f32"
        ;;
    flash_backward) # and with each the price of the same bits on every run
        echo "-B 1 -H 16 -N 1024 -d 64 --dtype f32"
        echo "-B 1 -H 16 -N 4096 -d 64 --dtype f32"
        published_cases | sed 's|$| --cases common/tools/fixed_order.txt|'
        ;;
    sliding_window) window_cases ;;
    ring_burst) ring_bench_cases "$(gpu_count)" ;;
    *)
        for dtype in f32 bf16; do
            for N in 512 1024 2048 4096 8192; do
                echo "-B 1 -H 16 -N $N -d 64 --dtype $dtype"
                echo "-B 1 -H 16 -N $N -d 64 --dtype $dtype --causal"
            done
        done
        ;;
    esac
    [ "$1" != naive ] || echo "-B 1 -H 16 -N 2048 -d 64 --backward"
}

# Materialised attention's memory wall and the crossover: one batch, until the matrices do not fit.
wall_cases() {
    case $1 in
    cuda)
        for N in 256 512 1024 2048 4096 8192 16384 32768; do
            echo "-B 1 -H 16 -N $N -d 64 --dtype bf16"
        done
        # beyond the wall: its oracle would take minutes, and nothing is plotted
        echo "-B 1 -H 16 -N 65536 -d 64 --dtype bf16 --no-check"
        ;;
    cpu)
        for N in 128 256 512 1024 2048 4096; do
            echo "-B 1 -H 8 -N $N -d 64"
        done
        ;;
    esac
}

# What the memory moved, measured: stage 03's kernels and, beside them, stage 01's. ncu empties the
# caches before each kernel, so a variant of several kernels finds nothing of its own in the L2.
traffic_cases() {
    for N in 512 1024 2048 4096 8192; do
        echo "-B 1 -H 16 -N $N -d 64 --dtype bf16"
    done | sed "$([ "$1" = naive ] && echo 's/$/ --variant v1_cublas/')"
    for N in 512 1024 2048 4096 8192; do
        echo "-B 1 -H 16 -N $N -d 64 --dtype f32"
    done
    [ "$1" = naive ] || # one new query against many keys: what splitting the keys is for
        echo "-B 1 -H 32 --kv-heads 8 --seq-q 1 --seq-kv 65536 -d 128 --dtype bf16"
}

# What Nsight Compute looks at in detail.
ncu_cases() {
    case $1 in
    tiled_softmax) echo '--rows 65536 --cols 4096' ;;
    flash_backward)
        echo '-B 1 -H 16 -N 4096 -d 64 --dtype bf16'
        echo '-B 1 -H 16 -N 2048 -d 64 --dtype f32'
        ;;
    sliding_window)
        for d in 64 128; do
            echo "-B 1 -H $((2048 / d)) -N 16384 -d $d --dtype bf16 --causal --window 1024,0" \
                "--variant library --backward"
        done
        echo '-B 8 -H 32 --kv-heads 8 --seq-q 1 --seq-kv 4097 -d 128 --causal --window 4096,0' \
            '--variant v3_decode_window'
        ;;
    ring_burst) ;; # its kernels are those of stages 03 and 04
    *) echo '-B 1 -H 16 -N 2048 -d 64' ;;
    esac
}
