# SPDX-License-Identifier: MIT
# Part of ./ladder: the demonstration, the figures and the CPU bench.
#
# Interface: ladder_demo, ladder_plot [FILE], ladder_bench cpu.

# Sizes: the bundled activations of a trained transformer, and random numbers of a size that the
# readable v0 variants still finish in a second or two.
demo_cases='--bundled
-B 1 -H 8 -N 512 -d 64'
bench_cpu_lengths='128 256 512 1024 2048 4096'

build_for_demo() {
    cuda=disabled
    gpu_visible && cuda=auto
    [ $cuda = auto ] || say "no GPU is visible: the CUDA variants are not built"
    configure build/demo -Dcuda=$cuda || exit 3
    # shellcheck disable=SC2046 # one target a word
    step "build" build/demo-ninja.log ninja -C build/demo $(stages | tr ' ' /) || exit 3
}

# run_stages JSONL FLAGS...: every stage with these flags; a wrong answer is remembered, not fatal
run_stages() {
    run_json=$1
    shift
    stages >build/stages.txt
    while read -r folder program <&3; do
        say "$folder: $*"
        run_status=0
        "build/demo/$folder/$program" "$@" --quiet --json "$run_json" </dev/null || run_status=$?
        if [ $run_status -ne 0 ]; then
            warn "$program $* ended with exit status $run_status"
            status=$run_status
        fi
    done 3<build/stages.txt
}

ladder_demo() {
    mkdir -p build out
    status=0
    install demo
    build_for_demo
    rm -f out/demo.jsonl
    printf '%s\n' "$demo_cases" >build/demo_cases.txt
    while read -r flags <&4; do
        # shellcheck disable=SC2086 # flags, one word each
        run_stages out/demo.jsonl $flags --bench --warmup 1 --iters 3
    done 4<build/demo_cases.txt
    say ""
    python3 common/tools/table.py out/demo.jsonl --demo
    ladder_plot out/demo.jsonl || status=$?
    exit $status
}

ladder_plot() {
    plot_file=${1:-out/demo.jsonl}
    [ -f "$plot_file" ] || refuse "$plot_file is not there; ./ladder demo writes out/demo.jsonl"
    if ! have gnuplot; then
        warn "no figures: gnuplot is not installed"
        return 0
    fi
    sh common/tools/draw_plots.sh "$plot_file" out/plots
}

ladder_bench() {
    [ "${1:-}" = cpu ] && [ $# -eq 1 ] || refuse "accepted is: ./ladder bench cpu"
    mkdir -p build out
    status=0
    install demo
    build_for_demo
    rm -f out/bench_cpu.jsonl
    for N in $bench_cpu_lengths; do
        run_stages out/bench_cpu.jsonl -B 1 -H 8 -N "$N" -d 64 --device cpu --bench
    done
    python3 common/tools/table.py out/bench_cpu.jsonl
    exit $status
}
