# SPDX-License-Identifier: MIT
# ./ladder site: the book, and the rungs as WebAssembly inside its step pages. Part of ./ladder.

site_usage() {
    cat <<'TXT'
usage: ./ladder site [--zip] [--slides] [--steps]

Writes out/site/index.html: lessons, steps, course, glossary, lab; pages that step through the rungs
with the arrow keys, computed by their C code. Opens from disk, offline.

  --zip     also out/site.zip
  --slides  and opens out/site/slides.html: the step pages in large type, one key a step
  --steps   only the WebAssembly of the step pages, into build/steps

Needs clang, lld, wasi-libc and libclang-rt-dev-wasm32, and Sphinx in build/site-venv (installed
there by pip, docs/site/requirements.txt).
TXT
}

# What the pages show, each file behind watch.h: "file what else is included first".
site_rungs() {
    cat <<'TXT'
01_naive/cpu/v0_loops.c
02_tiled_softmax/cpu/v1_online.c
02_tiled_softmax/cpu/v2_tiled_merge.c
03_flash_forward/cpu/v0_fa1_tiles.c
03_flash_forward/cpu/v1_fa2_rows.c
04_flash_backward/cpu/v0_fa1_backward.c
04_flash_backward/cpu/v1_fa2_backward.c
05_sliding_window_online/cpu/v1_online_block.c
05_sliding_window_online/cpu/v3_streaming.c -include units/stream_row.h
TXT
    ls 06_ring_burst/methods/*.c
}

site_others() {
    ls 06_ring_burst/planner/*.c 06_ring_burst/runtime/*.c common/harness/models/model*.c \
        common/attention/forward/cpu/*.c common/attention/*.c common/wasm/*.c common/tensor.c \
        common/alloc.c common/dtype.c common/units/exp.c common/units/product.c
}

# site_object OUT FILE FLAGS...: the object's name on stdout. With SITE_RUNGS, a folder whose files
# stand in for rungs of the same path (tests/docs/test_site.py puts wrong ones there), all others
# are those of the last whole build.
site_object() {
    site_o=$1/$(echo "$2" | tr / _).o site_c=$2
    shift 2
    if [ -f "${SITE_RUNGS:-/}/$site_c" ]; then
        site_c=$SITE_RUNGS/$site_c
    elif [ -n "${SITE_RUNGS:-}" ]; then
        echo "build/steps/${site_o##*/}" && return 0
    fi
    clang --target=wasm32-wasi -std=gnu11 -O2 -Wall -Werror -Wno-unknown-pragmas \
        -Wno-unused-variable -D_WASI_EMULATED_MMAN -Ibuild/steps -Icommon/wasm -Icommon \
        -Icommon/attention -I06_ring_burst -I. "-fmacro-prefix-map=${SITE_RUNGS:-}/=" "$@" -c \
        -o "$site_o" "$site_c" && echo "$site_o"
}

site_objects() {
    site_rungs | while read -r site_file site_flags; do
        # shellcheck disable=SC2086
        site_object "$1" "$site_file" $site_flags -include watch.h || exit 1
    done || return 1
    for site_file in $(site_others); do
        site_object "$1" "$site_file" || return 1
    done
}

# site_wasm OUT: OUT/steps.wasm, and OUT/steps.wasm.js with all that pages need beside it.
site_wasm() {
    mkdir -p "$1" build/steps
    : >build/steps/attn_config.h # what Meson writes for a processor: a browser has one path
    site_objects "$1" >"$1/objects" || return 1
    # shellcheck disable=SC2046
    clang --target=wasm32-wasi -O2 -mexec-model=reactor -Wl,--gc-sections -Wl,--strip-all \
        -Wl,-z,stack-size=65536 -o "$1/steps.wasm" $(cat "$1/objects") \
        -lwasi-emulated-mman || return 1
    # shellcheck disable=SC2046
    python3 common/tools/site_sources.py "$1/steps.wasm" $(site_rungs | cut -d ' ' -f 1) \
        >"$1/new.js" && mv "$1/new.js" "$1/steps.wasm.js"
}

# Nothing that it is made of has changed since.
site_wasm_is_new() {
    [ -z "${SITE_OUT:-}" ] && [ -f build/steps/steps.wasm.js ] &&
        [ -z "$(find 0* common docs/examples docs/results -newer build/steps/steps.wasm.js \
            -name '*.[chjnp]*')" ]
}

site_sphinx() {
    rm -rf build/site-static && mkdir -p build/site-static
    [ -d out/site/source ] || rm -rf build/site-doctrees
    cp docs/site/web/* build/steps/steps.wasm.js build/site-static/
    LADDER_STEPS=$PWD/build/site-static build/site-venv/bin/sphinx-build -q -W --keep-going \
        -b html -j auto -d build/site-doctrees -c docs/site . out/site
}

site_venv() { # nothing is fetched where nothing may be installed
    ! cmp -s docs/site/requirements.txt build/site-venv/installed || return 0
    [ -z "${LADDER_NO_INSTALL:-}" ] || return 1
    python3 -m venv build/site-venv && build/site-venv/bin/pip install -q -r \
        docs/site/requirements.txt && cp docs/site/requirements.txt build/site-venv/installed
}

# Where a browser can be started.
show_slides() {
    say out/site/slides.html
    [ -z "${DISPLAY:-}${WAYLAND_DISPLAY:-}" ] || ! have xdg-open || xdg-open out/site/slides.html
}

ladder_site() {
    site_zip=0 site_slides=0 site_only=0
    for site_word; do
        case $site_word in
        -h | --help) site_usage && exit 0 ;;
        --zip) site_zip=1 ;;
        --slides) site_slides=1 ;;
        --steps) site_only=1 ;;
        *) site_usage >&2 && exit 2 ;;
        esac
    done
    mkdir -p build
    install site
    compiles_wasm || refuse 'clang makes no WebAssembly here; run: sudo apt-get install -y' \
        '--no-install-recommends clang lld wasi-libc libclang-rt-dev-wasm32'
    site_wasm_is_new || step 'rungs to WebAssembly' "${SITE_OUT:-build/site}_wasm.log" \
        site_wasm "${SITE_OUT:-build/steps}"
    [ $site_only -eq 0 ] || return 0
    step 'Sphinx' build/site_pip.log site_venv ||
        refuse 'Sphinx is not in build/site-venv; run ./ladder site, with a network'
    step 'pages' build/site_pages.log site_sphinx
    [ $site_zip -eq 0 ] || (cd out && rm -f site.zip && python3 -m zipfile -c site.zip site)
    [ $site_slides -eq 0 ] || show_slides
    say "out/site/index.html ($(du -sm out/site | cut -f 1) MB)"
}
