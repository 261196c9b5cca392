# SPDX-License-Identifier: MIT
# Part of ./ladder: the build, the demonstration, the figures and the CPU bench.
#
# Interface: ladder_build [STAGE], ladder_lecture STAGE, ladder_demo,
# ladder_plot [FILE], ladder_bench cpu [STAGE].

# Sizes of the table: the bundled activations of a trained transformer, and random numbers of a size
# that the readable v0 variants still finish in a second or two; for the backward pass a training
# step's gradient. The figures need more lengths, and the softmax alone.
demo_cases='--bundled
-B 1 -H 8 -N 1024 -d 64'
demo_lengths='128 256 512 2048'
bench_cpu_lengths='128 256 512 1024 2048 4096'

# chosen_stages [STAGE]: the "folder program" line of one stage, or all of them
chosen_stages() {
    stages | awk -v all=$# -v want="${1:-}" \
        '!all || $1 == want || substr($1, 1, 2) == want { print; n++ } END { exit !n }' ||
        refuse "unknown stage '$1'; there are: $(stages | tr '\n' ' ')"
}

# build_programs TARGET...: into build/demo, which is configured when it has to be
build_programs() {
    cuda=disabled
    gpu_visible && cuda=auto
    [ $cuda = auto ] || [ -f build/demo/build.ninja ] ||
        say "no GPU is visible: the CUDA variants are not built"
    configure build/demo -Dcuda=$cuda || exit 3
    step "build" build/demo-ninja.log ninja -C build/demo "$@" || exit 3
}

# What one types after a change in a stage.
ladder_build() {
    [ $# -le 1 ] || refuse "accepted is: ./ladder build [STAGE]"
    build_chosen=$(chosen_stages "$@" | tr ' ' /)
    [ -n "$build_chosen" ] || exit 2
    mkdir -p build
    install demo
    # shellcheck disable=SC2086 # one target a word
    build_programs $build_chosen
    echo "$build_chosen" | sed 's|^|build/demo/|'
}

# A stage on a terminal, by the program that is built. LADDER_PROGRAMS names another folder of built
# programs, such as the tests' own.
ladder_lecture() {
    [ $# -eq 1 ] || refuse "accepted is: ./ladder lecture STAGE, 01 to 06"
    lecture_stage=$(chosen_stages "$1") || exit 2
    lecture_program=${LADDER_PROGRAMS:-build/demo}/${lecture_stage% *}/${lecture_stage#* }
    mkdir -p build
    if [ ! -x "$lecture_program" ]; then
        lecture_program=build/demo/${lecture_stage% *}/${lecture_stage#* }
        build_programs "${lecture_program#build/demo/}"
    fi
    python3 common/tools/lecture.py "$(echo "$lecture_stage" | cut -c1-2)" "$lecture_program"
}

build_for_demo() {
    # shellcheck disable=SC2046 # one target a word
    build_programs $(stages | tr ' ' /) 03_flash_forward/count_traffic
}

# run_stage FOLDER/PROGRAM JSONL FLAGS...: a wrong answer is remembered, not fatal
run_stage() {
    run_program=$1 run_json=$2 run_status=0
    shift 2
    say "${run_program%/*}: $*"
    "build/demo/$run_program" "$@" --quiet --json "$run_json" </dev/null || run_status=$?
    if [ $run_status -ne 0 ]; then
        warn "$run_program $* ended with exit status $run_status"
        status=$run_status
    fi
}

# time_stage FOLDER/PROGRAM JSONL FLAGS...: the median of ten runs; a slow variant stops after two
# seconds, with fewer
time_stage() {
    run_stage "$@" --bench --warmup 1 --iters 10
}

# time_stages JSONL FLAGS...: every stage that exists
time_stages() {
    stages_json=$1
    shift
    stages >build/stages.txt
    while read -r folder program <&3; do
        time_stage "$folder/$program" "$stages_json" "$@"
    done 3<build/stages.txt
}

ladder_demo() {
    mkdir -p build out
    status=0
    install demo
    build_for_demo
    rm -f out/demo.jsonl out/demo_figures.jsonl
    printf '%s\n' "$demo_cases" >build/demo_cases.txt
    while read -r flags <&4; do
        # shellcheck disable=SC2086 # flags, one word each
        time_stages out/demo.jsonl $flags
    done 4<build/demo_cases.txt
    time_stage 04_flash_backward/flash_backward out/demo.jsonl --bundled=causal
    # the same sizes without and with a window; how much each step of the online module loses
    for window in -1,0 256,0; do
        time_stage 05_sliding_window_online/sliding_window out/demo.jsonl -B 1 -H 8 -N 2048 -d 64 \
            --causal --window "$window"
    done
    # balance: the same causal pass dealt out in three ways, what each of 8 ranks sends and holds
    for layout in contiguous zigzag striped; do
        time_stage 06_ring_burst/ring_burst out/demo.jsonl -B 1 -H 8 --kv-heads 2 -N 1024 -d 64 \
            --causal --backward --ranks 8 --layout $layout --method ring
    done
    window_error_cases | sed '/kv 4096/d; s/-H 2 -N 4096/-H 1 -N 1024/' >build/window_error.txt
    run_stage 05_sliding_window_online/sliding_window out/demo_figures.jsonl \
        --cases build/window_error.txt
    for N in $demo_lengths; do
        time_stage 01_naive/naive out/demo_figures.jsonl -B 1 -H 8 -N "$N" -d 64
        time_stage 03_flash_forward/flash_forward out/demo_figures.jsonl -B 1 -H 8 -N "$N" -d 64 \
            --variant library
        for window in -1,0 256,0; do
            time_stage 05_sliding_window_online/sliding_window out/demo_figures.jsonl -B 1 -H 8 \
                -N "$N" -d 64 --causal --window "$window"
        done
    done
    say "03_flash_forward: bytes between slow and fast memory, counted"
    build/demo/03_flash_forward/count_traffic out/demo_figures.jsonl >out/traffic.txt || status=$?
    time_stage 02_tiled_softmax/tiled_softmax out/demo_figures.jsonl --rows 256 --cols 4096
    say ""
    python3 common/tools/table.py out/demo.jsonl --demo
    cat out/demo.jsonl >>out/demo_figures.jsonl
    ladder_plot || status=$?
    say ""
    python3 common/tools/first_page.py out/demo_figures.jsonl
    exit $status
}

ladder_plot() {
    plot_file=${1-out/demo_figures.jsonl}
    [ -f "$plot_file" ] || refuse "$plot_file is not there; ./ladder demo writes one"
    python3 common/tools/figures.py out/plots "$plot_file"
}

# What stage 05 is timed with on a CPU: the same window at all lengths, all variants as long as v0's
# matrices allow; the full matrix beside it; the gradients; and what the step of the online module
# loses to the dtype, against the number of steps (no times).
window_cpu_cases() {
    for N in 512 1024 2048 4096 8192; do
        echo "-B 1 -H 4 -N $N -d 64 --causal --window 256,-1 --bench"
        echo "-B 1 -H 4 -N $N -d 64 --causal --variant library --bench"
    done
    for N in 16384 32768 65536; do
        echo "-B 1 -H 4 -N $N -d 64 --causal --window 256,-1 --variant library --bench"
    done
    echo "-B 1 -H 4 -N 4096 -d 64 --causal --window 256,-1 --backward --bench"
    window_error_cases
}

window_error_cases() {
    for keys in 4096 1024 256 64 16; do
        for dtype in bf16 f16 f32; do
            echo "-B 1 -H 2 -N 4096 -d 64 --dtype $dtype --block-kv $keys --variant v1_online_block"
        done
    done
    for dtype in bf16 f16; do
        echo "-B 1 -H 2 -N 4096 -d 64 --dtype $dtype --variant library"
    done
}

# What stage 06 is timed with on a CPU. Ranks are threads of the same few cores, so the times show
# what dealing out costs and how layouts balance, not what a link does: errors against the number of
# ranks with both kinds of partials, and the three layouts.
ring_cpu_cases() {
    for ranks in 1 2 4 8 16; do
        for partials in f32 bf16; do
            for dtype in f32 bf16; do
                echo "-B 1 -H 4 -N 512 -d 64 --dtype $dtype --backward --ranks $ranks" \
                    "--partials $partials"
            done
        done
    done
    for layout in contiguous zigzag striped; do
        echo "-B 1 -H 8 -N 4096 -d 64 --causal --backward --ranks 4 --layout $layout --bench"
    done
    for ranks in 1 2 4 8; do
        echo "-B 1 -H 8 -N 4096 -d 64 --backward --ranks $ranks --bench"
    done
    echo "-B 1 -H 8 --kv-heads 2 -N 4096 -d 64 --causal --backward --bench"
}

# bench_stage FOLDER PROGRAM: times of its CPU variants, each against the oracle
bench_stage() {
    if [ "$2" = sliding_window ]; then
        window_cpu_cases >build/bench_cpu_cases.txt
    elif [ "$2" = ring_burst ]; then
        ring_cpu_cases >build/bench_cpu_cases.txt
    else
        for N in $bench_cpu_lengths; do
            echo "-B 1 -H 8 -N $N -d 64 --bench"
        done >build/bench_cpu_cases.txt
    fi
    while read -r flags <&4; do
        # shellcheck disable=SC2086 # flags, one word each
        run_stage "$1/$2" out/bench_cpu.jsonl --device cpu $flags
    done 4<build/bench_cpu_cases.txt
}

ladder_bench() {
    if [ "${1:-}" != cpu ] || [ $# -gt 2 ]; then
        refuse "accepted is: ./ladder bench cpu [STAGE]"
    fi
    shift
    bench_chosen=$(chosen_stages "$@") || exit 2
    mkdir -p build out
    echo "$bench_chosen" >build/bench_stages.txt
    status=0
    install demo
    build_for_demo
    rm -f out/bench_cpu.jsonl
    while read -r folder program <&3; do
        bench_stage "$folder" "$program"
    done 3<build/bench_stages.txt
    python3 common/tools/table.py out/bench_cpu.jsonl
    exit $status
}
