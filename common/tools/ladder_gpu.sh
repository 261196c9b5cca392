# SPDX-License-Identifier: MIT
# Part of ./ladder: work on a machine with an NVIDIA GPU, in pieces of less than ten minutes. A
# piece notes each finished part in DIR/done.txt and leaves those out when it is called again; when
# its time is up it says so and exits with 4. Clocks and settings of the card are left alone.
#
# Interface: ladder_gpu PIECE [STAGE] --out DIR.

gpu_time_up() {
    [ $(($(date +%s) - gpu_start)) -ge "${LADDER_SECONDS:-540}" ]
}

# part NAME COMMAND...: once per revision; a failure is remembered and the piece goes on
part() {
    part_key="$(revision) $gpu_piece $1"
    part_name=$1
    shift
    if grep -qxF "$part_key" "$gpu_out/done.txt"; then
        say "$part_name: done before"
        return 0
    fi
    if gpu_time_up; then
        warn "time is up before '$part_name'; call the same command again to go on"
        exit 4
    fi
    part_file=$(printf %s "$part_name" | tr -c 'A-Za-z0-9_.\n-' _)
    part_log=build/gpu_logs/$gpu_piece$gpu_stage.$part_file.log
    part_status=0
    part_seconds=$((gpu_start + ${LADDER_SECONDS:-540} + 30 - $(date +%s)))
    step "$part_name" "$part_log" timeout "$part_seconds" "$@" || part_status=$?
    if [ $part_status -ne 0 ]; then
        gpu_status=1
    else
        printf '%s\n' "$part_key" >>"$gpu_out/done.txt"
    fi
}

# "folder program" lines of the wanted stages
gpu_stages() {
    chosen_stages ${gpu_stage:+"$gpu_stage"}
}

gpu_build() {
    archs=auto
    gpu_visible || archs=80,90,90a # to be carried to a machine that has one
    configure build/gpu -Dcuda=enabled "-Dgpu_archs=$archs" || exit 3
    step "build" build/gpu-ninja.log ninja -C build/gpu || exit 3
    find build/gpu -name '*.kernels.txt' -exec cat {} + | sort >"$gpu_out/kernels.txt"
    say "registers, shared memory and spills per kernel: $gpu_out/kernels.txt"
}

# Names of the tests in the suites gpu and $1, from where Meson keeps them for other programs.
gpu_tests_of() {
    python3 - "$1" <<'TXT'
import json
import sys

for test in json.load(open("build/gpu/meson-info/intro-tests.json", encoding="utf-8")):
    suites = {name.split(":")[-1] for name in test["suite"]}
    if {"gpu", sys.argv[1]} <= suites:
        print(test["name"])
TXT
}

# Ranks on GPUs of their own, over both links: as threads of one process, and as processes, one of
# which is then killed, or stopped.
check_several_gpus() {
    ranks=$(gpu_count)
    if [ "$ranks" -lt 2 ]; then
        warn "one GPU: messages between GPUs are not checked"
        return 0
    fi
    ring_gpu_cases "$ranks" >build/ring_gpus.txt
    part "06 on $ranks GPUs" build/gpu/06_ring_burst/ring_burst --transport nccl \
        --cases build/ring_gpus.txt
    have mpirun || return 0
    grep -v -e '--ranks 1$' build/ring_gpus.txt >build/ring_processes.txt
    # unbound: mpirun would give each process one core, for its oracle and for the threads that wait
    part "06 on $ranks GPUs, processes" mpirun --allow-run-as-root --bind-to none -n "$ranks" \
        build/gpu/06_ring_burst/ring_burst --transport nccl --cases build/ring_processes.txt
    for link in nccl copy; do
        for signal in KILL STOP; do
            part "06 rank with SIG$signal, $link" sh common/tools/lose_a_rank.sh $signal "$ranks" \
                10 build/gpu/06_ring_burst/ring_burst --transport nccl --link $link \
                --ranks "$ranks" -H 16 --kv-heads 8 -N 32768 -d 128 --dtype bf16 --causal \
                --backward --method ring --bench --iters 1000 --no-check --timeout 10
        done
    done
}

# One of two lanes: the tests of the list that the other one has not begun.
check_lane() {
    step_lane=yes
    while read -r name <&4; do
        [ ! -e "$gpu_lists/begun/.stop" ] || exit 130
        mkdir "$gpu_lists/begun/$name" 2>/dev/null || continue
        part "$1 $name" sh common/tools/gpu_one_test.sh build/gpu "$name"
    done 4<"$gpu_lists/lanes.txt"
    exit $gpu_status
}

# check_tests SUITE: two at a time, for most of them wait for an oracle or a compiler while another
# one has the GPU; those that fill its memory come last, alone.
check_tests() {
    gpu_tests_of "$1" >"$gpu_lists/tests.txt"
    if [ ! -s "$gpu_lists/tests.txt" ]; then
        warn "suite $1: no test with a GPU"
        gpu_status=1
    fi
    grep -v -e large -e alloc "$gpu_lists/tests.txt" >"$gpu_lists/lanes.txt" || true
    rm -rf "$gpu_lists/begun" && mkdir "$gpu_lists/begun"
    trap 'mkdir -p "$gpu_lists/begun/.stop"' INT TERM HUP # lanes end what they have begun
    (check_lane "$1") &
    lanes=$!
    (check_lane "$1") &
    lanes="$lanes $!" late=0
    for lane in $lanes; do
        lane_status=0
        wait "$lane" 2>/dev/null || lane_status=$?
        [ ! -e "$gpu_lists/begun/.stop" ] || wait || true
        [ $lane_status -ne 4 ] || late=1
        [ $lane_status -eq 0 ] || gpu_status=1
    done
    trap - INT TERM HUP
    [ ! -e "$gpu_lists/begun/.stop" ] || exit 130
    [ $late -eq 0 ] || exit 4
    grep -e large -e alloc "$gpu_lists/tests.txt" >"$gpu_lists/large.txt" || true
    while read -r name <&4; do
        part "$1 $name" sh common/tools/gpu_one_test.sh build/gpu "$name"
    done 4<"$gpu_lists/large.txt"
    while read -r name <&4; do # whatever a lane did: what is not noted has not passed
        grep -qxF "$(revision) $gpu_piece $1 $name" "$gpu_out/done.txt" || gpu_status=1
    done 4<"$gpu_lists/tests.txt"
}

# The tests with a CUDA device. Without a STAGE those of common/ too, and the CPU's own: this
# machine may have SIMD units (AVX-512) that the one of every day lacks.
gpu_check() {
    gpu_stages >"$gpu_lists/stages.txt"
    if [ -z "$gpu_stage" ]; then
        part unit sh common/tools/gpu_one_test.sh build/gpu --suite unit --no-suite gpu
        check_tests unit
    fi
    while read -r folder _ <&3; do
        check_tests "${folder%%_*}"
        [ "${folder%%_*}" != 06 ] || check_several_gpus
    done 3<"$gpu_lists/stages.txt"
}

gpu_sanitize() {
    tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    [ -x "$tool" ] || refuse "compute-sanitizer is not here"
    gpu_stages >"$gpu_lists/stages.txt"
    while read -r folder program <&3; do
        sanitize_cases "$program" >"build/sanitize_$program.txt"
        for kind in memcheck racecheck synccheck initcheck; do
            what=$kind
            if [ "$program $kind" = "ring_burst initcheck" ]; then
                what="initcheck of one rank" # why: sanitize_one_rank
                sanitize_one_rank >"build/sanitize_$program.txt"
            fi
            part "$folder $what" "$tool" --tool $kind --error-exitcode 9 \
                "build/gpu/$folder/$program" --device cuda --cases "build/sanitize_$program.txt"
            sanitize_programs "$program" >"$gpu_lists/sanitize_programs.txt"
            while read -r own <&4; do
                # shellcheck disable=SC2086 # a program and its flags, one word each
                part "$folder $kind $own" "$tool" --tool $kind --error-exitcode 9 $own
            done 4<"$gpu_lists/sanitize_programs.txt"
        done
    done 3<"$gpu_lists/stages.txt"
}

# The CPU's speed-up of flash over standard attention, for the figure. (The GPU's is in the rows of
# `ncu`.)
bench_speedup() {
    for N in 256 512 1024 2048 4096; do
        echo "-B 1 -H 8 -N $N -d 64"
    done >build/speedup.txt
    for run in '01_naive/naive v1_blas' '03_flash_forward/flash_forward library'; do
        part "03 speed-up, ${run#* }" "build/gpu/${run% *}" --device cpu --threads 2 \
            --variant "${run#* }" --cases build/speedup.txt --bench --quiet \
            --json "$gpu_out/03_speedup_cpu.jsonl"
    done
}

# wall_of NAME DEVICE FOLDER/PROGRAM VARIANT FLAGS...: into 04_wall.jsonl
wall_of() {
    wall_cases "$2" >"build/wall_$2.txt"
    wall_name=$1 wall_device=$2 wall_program=$3 wall_variant=$4 wall_rows=$gpu_out/04_wall.jsonl
    shift 4
    part "$wall_name" sh common/tools/or_no_memory.sh "$wall_rows" "build/gpu/$wall_program" \
        --device "$wall_device" --variant "$wall_variant" --cases "build/wall_$wall_device.txt" \
        --bench --quiet --json "$wall_rows" "$@"
}

bench_wall() {
    wall_of "04 wall, v1_cublas" cuda 01_naive/naive v1_cublas --backward
    wall_of "04 wall, library" cuda 04_flash_backward/flash_backward library
    for variant in v1_blas library; do
        wall_of "04 wall, $variant, cpu" cpu 04_flash_backward/flash_backward $variant --threads 2
    done
}

# What the dtypes make of a training step's gradient: checked rows, not times.
bench_real_gradient() {
    part "04 real gradient" sh -c 'python3 "$1" "$2" --device cuda >"$3"' sh \
        common/tools/gradient_rows.py build/gpu/04_flash_backward/flash_backward \
        "$gpu_out/04_real_gradient.jsonl"
}

# Stage 06's longest run, judged and timed like any other; --trace-json for the share of
# communication hidden.
bench_million() {
    ring_million_cases "$(gpu_count)" >build/bench_million.txt
    while read -r flags <&4; do
        # shellcheck disable=SC2086 # flags, one word each
        part "06 a million tokens" build/gpu/06_ring_burst/ring_burst --device cuda $flags \
            --trace-json build/ring_million.json --json "$gpu_out/06_ring_burst.jsonl"
    done 4<build/bench_million.txt
}

# What a stage measures beside its list of cases comes first: the list is what may run out of time.
gpu_bench() {
    gpu_stages >"$gpu_lists/stages.txt"
    while read -r folder program <&3; do
        [ "$program" != flash_forward ] || bench_speedup
        [ "$program" != flash_backward ] || bench_real_gradient
        [ "$program" != flash_backward ] || bench_wall
        bench_cases "$program" >"build/bench_$program.txt"
        while read -r flags <&4; do
            # shellcheck disable=SC2086 # flags, one word each
            part "$folder $flags" "build/gpu/$folder/$program" --device cuda --bench --warmup 3 \
                --iters 20 $flags --json "$gpu_out/$folder.jsonl"
        done 4<"build/bench_$program.txt"
        [ "$program" != ring_burst ] || bench_million
    done 3<"$gpu_lists/stages.txt"
}

# traffic_of FOLDER PROGRAM REST: a run that is checked, one that is counted, rows from both
traffic_of() {
    traffic_run="build/gpu/$1/$2 --device cuda --quiet --cases build/traffic_$2.txt"
    traffic_cases "$2" >"build/traffic_$2.txt"
    ncu --query-metrics >build/ncu_metrics.txt
    # shellcheck disable=SC2086 # the program and its flags, one word each
    part "$1 checked" sh -c 'rm -f "$1" && shift && exec "$@"' sh "build/traffic_$2.jsonl" \
        $traffic_run --json "build/traffic_$2.jsonl"
    # shellcheck disable=SC2086
    part "$1 counted" ncu --clock-control none --csv --page raw --print-units base --metrics \
        "$(python3 common/tools/traffic_rows.py --metrics build/ncu_metrics.txt)" \
        --log-file "build/traffic_$2.csv" $traffic_run --no-check
    part "$1 traffic" sh -c 'python3 common/tools/traffic_rows.py "$1" "$2" --rest "$3" >>"$4"' sh \
        "build/traffic_$2.jsonl" "build/traffic_$2.csv" "$3" "$gpu_out/03_traffic.jsonl"
}

gpu_traffic() {
    traffic_of 03_flash_forward flash_forward library
    traffic_of 01_naive naive v1_cublas
}

gpu_ncu() {
    have ncu || refuse "ncu (Nsight Compute) is not on the PATH"
    gpu_stages >"$gpu_lists/stages.txt"
    while read -r folder program <&3; do
        if [ "$program" = flash_forward ]; then
            gpu_traffic
            continue
        fi
        ncu_cases "$program" >"build/ncu_$program.txt"
        while read -r flags <&4; do
            report=$gpu_out/$folder
            case $flags in
            *'-d 128'*bf16*) report=${report}_bf16_d128 ;;
            *bf16*) report=${report}_bf16 ;;
            esac
            # shellcheck disable=SC2086 # flags, one word each
            part "$folder $flags" ncu --clock-control none --set detailed -f -o "$report" \
                "build/gpu/$folder/$program" --device cuda $flags --no-check
            [ ! -f "$report.ncu-rep" ] ||
                part "$folder text $flags" sh -c 'ncu --import "$1" --page details >"$2"' ncu \
                    "$report.ncu-rep" "$report.ncu.txt"
        done 4<"build/ncu_$program.txt"
    done 3<"$gpu_lists/stages.txt"
}

# PEER_SITES: the folders where the wheels of FlashAttention-3 and -4 were unpacked, in that order.
gpu_peers() {
    [ -d peers ] || refuse "no folder peers/ here (it needs PyTorch and is not part of the project)"
    for script in peers/*.py; do
        case $script in
        *ring* | *best*) continue ;; # several GPUs (torchrun --nproc-per-node G); no measurement
        *fa[34]* | *decode*) [ -n "${PEER_SITES:-}" ] || continue ;;
        esac
        part "$script" sh -c 'out=$1; shift; python3 "$@" >"$out"' peers \
            "$gpu_out/$(basename "$script" .py).txt" "$script" ${PEER_SITES:-}
    done
    for folder in 03_flash_forward 04_flash_backward 05_sliding_window_online; do
        [ ! -f "$gpu_out/$folder.jsonl" ] || [ ! -f "$gpu_out/peers_gpu.txt" ] ||
            part "${folder%%_*} beside its peers" python3 common/tools/peer_rows.py \
                "$gpu_out/$folder.jsonl" "$gpu_out/peers_gpu.txt" "$gpu_out"/peers_[!gr]*.txt
    done
}

ladder_gpu() {
    gpu_piece=${1:-} gpu_stage='' gpu_out='' gpu_status=0 gpu_start=$(date +%s)
    case $gpu_piece in
    build | check | sanitize | bench | ncu | peers) shift ;;
    *) refuse "gpu needs one of build, check, sanitize, bench, ncu, peers; found '$gpu_piece'" ;;
    esac
    while [ $# -gt 0 ]; do
        case $1 in
        --out) gpu_out=${2:-} && shift ;;
        -* | '') refuse "gpu $gpu_piece: unknown flag '$1'; accepted is --out DIR" ;;
        *) gpu_stage=$1 ;;
        esac
        [ $# -eq 0 ] || shift
    done
    [ -n "$gpu_out" ] || refuse "gpu $gpu_piece: --out DIR is missing"
    gpu_stages >/dev/null
    [ ! -e "$gpu_out" ] || [ -d "$gpu_out" ] ||
        refuse "gpu $gpu_piece: --out: found that $gpu_out is no folder, accepted is one"
    if [ "$gpu_piece" != build ] && ! gpu_visible; then
        warn "no NVIDIA GPU is visible here"
        exit 77
    fi
    gpu_lists=build/gpu_lists/$gpu_piece$gpu_stage # pieces may run side by side
    mkdir -p "$gpu_lists" "$gpu_out" && touch "$gpu_out/done.txt" || exit 3
    [ "$gpu_piece" = build ] || [ "$gpu_piece" = peers ] || [ -f build/gpu/build.ninja ] ||
        gpu_build
    "gpu_$gpu_piece"
    exit $gpu_status
}
