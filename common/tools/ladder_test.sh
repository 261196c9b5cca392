# SPDX-License-Identifier: MIT
# Part of ./ladder: everything that this machine can test. Each build folder leaves Meson's record
# of its run, what could not be run leaves a record here, and testsum.py counts them all.
#
# Interface: ladder_test, ladder_test_quick.

# record NAME RESULT WHY: one line for testsum.py, as Meson writes them
record() {
    python3 -c 'import json, sys
print(json.dumps({"name": sys.argv[1], "result": sys.argv[2], "stdout": sys.argv[3],
                  "returncode": 77 if sys.argv[2] == "SKIP" else 1}))' "$@" >>"$steps"
}

# test_in DIR NAME "CONFIGURE OPTIONS" "TARGETS" MESON-TEST-ARGUMENTS...
# Builds the targets (all when empty) and runs the tests.
test_in() {
    dir=$1 name=$2 options=$3 targets=$4
    shift 4
    # shellcheck disable=SC2086 # options and targets, one a word
    if ! configure "$dir" $options; then
        record "$name" FAIL "configuration failed"
        return 0
    fi
    rm -f "$dir/meson-logs/testlog.json"
    # shellcheck disable=SC2086
    if ! step "build $name" "$dir-ninja.log" ninja -C "$dir" $targets; then
        record "$name" FAIL "the build failed"
        return 0
    fi
    gpu_visible || spare_cublas "$dir"
    say "test $name"
    # two more than there are cores: some tests wait, for messages, time-outs and processes
    meson test -C "$dir" --no-rebuild --print-errorlogs --num-processes "$(($(nproc) + 2))" "$@" \
        </dev/null >&2 || true
    records="$records $dir/meson-logs/testlog.json"
}

# Programs with cuBLAS take half a second to start, for a library of half a gigabyte that nobody
# calls where no GPU is. Their tests find one of its name first, with its symbols and nothing behind
# them.
spare_cublas() {
    cublas=$(readelf -d "$1/01_naive/naive" 2>/dev/null |
        sed -n 's/.*\[\(libcublas\.so[^]]*\)\]$/\1/p')
    [ -n "$cublas" ] || return 0
    mkdir -p build/no_gpu
    nm -D "$1/01_naive/naive" | sed -n 's/^ *U \(cublas[^@]*\)@.*/void \1(void) {}/p' \
        >build/no_gpu/cublas.c
    echo "$cublas { *; };" >build/no_gpu/cublas.map
    cc -shared -fPIC -w "-Wl,-soname,$cublas,--version-script,build/no_gpu/cublas.map" \
        build/no_gpu/cublas.c -o "build/no_gpu/$cublas" || return 0
    export LD_LIBRARY_PATH="$PWD/build/no_gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

# What keeps OpenMP's own memory out of the reports must not hide the races of our own loops: one
# adds to a number, one copies an array.
sees_planted_races() {
    cat >build/race.c <<'TXT'
#include <stdio.h>
#include <string.h>
static float shared[4096];
int main(int argc, char **argv)
{
    int n = 0;
    (void)argv;
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 10000; i++) {
        float mine[4096];
        if (argc == 1) {
            n++;
        } else {
            memcpy(mine, shared, sizeof mine);
            mine[i % 4096]++;
            memcpy(shared, mine, sizeof mine);
        }
    }
    printf("%d %g\n", n, shared[0]);
    return 0;
}
TXT
    clang -O1 -g -fopenmp -fsanitize=thread build/race.c -o build/race || return 1
    for race in '' copies; do
        # shellcheck disable=SC2086 # no argument, or one
        ! build/race $race >/dev/null 2>build/race.txt && grep -q 'data race' build/race.txt ||
            return 1
    done
}

# The sanitizers run the CPU's code on the short case lists. (What the suite stages proves about
# those lists is Python alone.) Suite numbers looks at results of code that other tests run as well,
# and TSan leaves out no_new_thread: see tests/meson.build.
test_sanitizers() {
    export ATTN_TEST_QUICK=1
    unset CC_LD
    # a report names functions and lines; more costs a quarter of the compiler's time
    lines_only="-Ddebug=false -Dc_args=-g1"
    stage_suites=$(stages | sed 's/^\(0[0-9]\).*/--suite \1/')
    if compiles cc -fsanitize=address,undefined; then
        export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:allocator_may_return_null=1
        export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
        # shellcheck disable=SC2086 # one suite a word
        test_in build/asan "ASan and UBSan" "-Dcuda=disabled -Db_sanitize=address,undefined
            -Db_lundef=false -Doptimization=1 $lines_only" "" \
            --timeout-multiplier 4 --suite unit --suite cli $stage_suites \
            --no-suite wrong --no-suite numbers
        unset ASAN_OPTIONS UBSAN_OPTIONS
    else
        record "ASan and UBSan" SKIP "cc has no -fsanitize=address,undefined"
    fi
    if has_clang_openmp && compiles clang -fsanitize=thread; then
        # libomp is not instrumented: its Archer tool tells TSan about barriers; OpenBLAS has its
        # own OpenMP runtime, so the BLAS rows stay out
        export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:halt_on_error=1"
        export OMP_NUM_THREADS=4
        sees_planted_races || record "TSan" FAIL "it misses a planted race in an OpenMP loop"
        # shellcheck disable=SC2086
        CC=clang test_in build/tsan "TSan" \
            "-Dcuda=disabled -Dblas=disabled -Db_sanitize=thread -Db_lundef=false
            -Doptimization=1 $lines_only" "" --timeout-multiplier 8 --suite unit $stage_suites \
            --no-suite wrong --no-suite numbers --no-suite cli --no-suite isa \
            --no-suite no_new_thread
        unset TSAN_OPTIONS OMP_NUM_THREADS
    else
        record "TSan" SKIP "clang with OpenMP and -fsanitize=thread is not here"
    fi
    link_with_gold
    unset ATTN_TEST_QUICK
}

test_fuzz() {
    if has_fuzzer; then
        CC=clang test_in build/fuzz "fuzz targets" "-Dfuzz=true -Dcuda=disabled -Dblas=disabled
            -Dopenmp=disabled -Db_sanitize=address,undefined -Db_lundef=false
            -Doptimization=1 -Dc_args=-fsanitize=fuzzer-no-link" \
            "$(ls tests/fuzz/*.c | sed 's/\.c$//')" --suite fuzz
    else
        record "fuzz targets" SKIP "clang with libFuzzer is not here"
    fi
}

# The C part on another processor: cross-compiled, and the unit tests that may notice it under
# qemu-user.
test_cross() {
    if has_cross; then
        export ATTN_TEST_QUICK=2
        test_in build/aarch64 "aarch64 under qemu-user" \
            "--cross-file tests/cross-aarch64.ini -Dcuda=disabled -Ddebug=false -Doptimization=2" \
            processor_tests \
            --timeout-multiplier 6 --suite processor --no-suite isa
        unset ATTN_TEST_QUICK
    else
        record "aarch64" SKIP "qemu-aarch64 and aarch64-linux-gnu-gcc are not here"
    fi
}

# The build that both commands test.
test_build() {
    # one portable architecture and Hopper's: every other one costs seconds per file. Where nothing
    # can run, the library's templates are compiled for one of the two 16-bit types and for one or
    # two head dimensions; `./ladder gpu build` compiles them all and fails on their spills.
    sample=-Dgpu_sample=true
    ! gpu_visible || sample=-Dgpu_sample=false
    # no debug information: neither a debugger nor a profiler reads it here
    test_in build/test "C and CUDA" "-Dgpu_archs=80,90a -Ddebug=false $sample" "" "$@"
}

# Hundreds of programs are linked, those of the wrong solutions among them: gold takes a third of
# the time. Not with sanitizers: for ASan it warns of a hundred symbols a program, and a program
# with TSan that writes to a full disk dies of SIGBUS.
link_with_gold() {
    ! have ld.gold || export CC_LD=gold
}

start_test() {
    mkdir -p build
    steps=build/steps.json records=
    : >"$steps"
    link_with_gold
    test_start=$(date +%s)
    install test
}

end_test() {
    say "all of it took $(($(date +%s) - test_start)) s"
    [ ! -s "$steps" ] || records="$records $steps"
    # shellcheck disable=SC2086 # file names without blanks
    python3 common/tools/testsum.py $records
}

# CUDA rungs on this CPU: right, without a finding; and planted mistakes are found.
test_simt() {
    if has_simt; then
        test_in build/simt "CUDA on a CPU (simt)" "$simt_options" "$(simt_targets)" --suite simt
    else
        record "simt" SKIP "clang, llvm-symbolizer or Boost.Context is not here"
    fi
}

simt_targets() {
    printf 'common/simt/programs/%s ' simt_01 simt_02 simt_03 simt_04 simt_05
    printf "tests/simt/%s " simt_faults simt_words simt_patterns
}

ladder_test() {
    start_test
    (step_lane=yes step 'Sphinx for the book' build/site_pip.log site_venv) & # network, not cores
    sphinx=$!
    test_simt # the course's tests take what it compiles of the model
    wait $sphinx || warn 'no Sphinx: no test of the book'
    test_build
    test_sanitizers
    test_fuzz
    test_cross
    end_test
}

# While one works: one build, the short case lists, the best instruction set, and nothing that takes
# long for what it is.
ladder_test_quick() {
    start_test
    export ATTN_TEST_QUICK=1
    test_build --no-suite isa --no-suite wrong --no-suite slow
    end_test
}
