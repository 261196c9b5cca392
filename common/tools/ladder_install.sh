# SPDX-License-Identifier: MIT
# Part of ./ladder: finds out what is missing and installs it with apt, as root or through a sudo
# that asks nothing. Otherwise it prints the line to type. Only cc, meson, ninja and python3 are
# needed; everything else is optional.
#
# Interface:
# - install demo|simt|site|test: exits with 2 only when a needed tool is still missing afterwards.
# - optional_parts: which optional parts are here, as one word each.

has_package() {
    have pkg-config && pkg-config --exists "$1"
}

probe_default='int main(void) { return 0; }'

# compiles COMPILER FLAGS...: does a small program (probe_source, else an empty main) build?
compiles() {
    probe=$(mktemp -d)
    printf '%s\n' "${probe_source:-$probe_default}" >"$probe/probe.c"
    "$@" "$probe/probe.c" -o "$probe/probe" >/dev/null 2>&1 && probe_status=0 || probe_status=1
    rm -rf "$probe"
    return $probe_status
}

has_fuzzer() {
    probe_source='int LLVMFuzzerTestOneInput(const char *p, unsigned long n)
        { return p && n > 9999; }' compiles clang -fsanitize=fuzzer,address,undefined
}

has_clang_openmp() {
    have clang && compiles clang -fopenmp
}

compiles_wasm() {
    have wasm-ld && compiles clang --target=wasm32-wasi
}

has_cross() {
    have qemu-aarch64 && have aarch64-linux-gnu-gcc && compiles aarch64-linux-gnu-gcc -static
}

clang_format() { # the version that the tree is formatted with, where there is a choice
    for name in clang-format-14 clang-format; do
        have "$name" && echo "$name" && return 0
    done
    return 1
}

optional_parts() {
    { have nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } && printf 'nvcc '
    has_package openblas && printf 'openblas '
    has_package cmocka && printf 'cmocka '
    have mpicc && printf 'mpi '
    return 0
}

# Names of the Debian packages that are missing for the demo ($1 = demo), simt,
# the book (site) or the tests (test).
missing_packages() {
    have cc || echo gcc libc6-dev
    have meson || echo meson
    have ninja || echo ninja-build
    have python3 || echo python3
    have pkg-config || echo pkg-config
    # the OpenMP build: the pthread build would start a second thread pool inside our OpenMP loops
    has_package openblas || echo libopenblas-openmp-dev
    has_package libseccomp || echo libseccomp-dev
    if [ -f 06_ring_burst/meson.build ]; then
        have mpicc && have mpirun || echo openmpi-bin libopenmpi-dev
    fi
    if [ "$1" != demo ]; then
        have clang++ || echo clang
        have llvm-symbolizer || echo llvm
        [ -e /usr/include/boost/context/detail/fcontext.hpp ] || echo libboost-context-dev
    fi
    if [ "$1" = site ] || [ "$1" = test ]; then
        compiles_wasm || echo clang lld wasi-libc libclang-rt-dev-wasm32
        python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
    fi
    [ "$1" = test ] || return 0
    have chromium || echo chromium
    has_package cmocka || echo libcmocka-dev
    clang_format >/dev/null || echo clang-format-14
    has_clang_openmp || echo libomp-dev
    if ! has_fuzzer; then
        clang_major=$(clang -dumpversion 2>/dev/null || apt-cache show clang 2>/dev/null |
            sed -n 's/^Version: 1:\([0-9]*\).*/\1/p' | head -n 1)
        echo "libclang-rt-${clang_major%%.*}-dev"
    fi
    has_cross || echo qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
}

apt() {
    DEBIAN_FRONTEND=noninteractive $as_root apt-get -o DPkg::Lock::Timeout=300 -q "$@"
}

install() {
    missing=$(missing_packages "$1" | tr '\n' ' ')
    if [ -n "$missing" ] && [ -z "${LADDER_NO_INSTALL:-}" ]; then
        as_root=
        [ "$(id -u)" = 0 ] || as_root='sudo -n'
        if ! have apt-get; then
            warn "no apt-get here; install what Debian calls: $missing"
        elif [ -n "$as_root" ] && ! sudo -n true 2>/dev/null; then
            warn "not root, and sudo asks for a password; to have everything, run:"
            say "    sudo apt-get install -y --no-install-recommends $missing"
        else
            install_with_apt "$1"
        fi
    fi
    for tool in cc meson ninja python3; do
        have "$tool" || refuse "'$tool' is missing; run: sudo apt-get install -y" \
            "--no-install-recommends $(missing_packages "$1" | tr '\n' ' ')"
    done
    missing=$(missing_packages "$1" | tr '\n' ' ')
    [ -z "$missing" ] || warn "goes on without (optional): $missing"
}

# All at once; when that fails (a name that this release does not have), one by one.
install_with_apt() {
    step "update the package lists" build/apt-update.log apt update ||
        warn "apt-get update failed; trying with the lists that are here"
    missing=$(missing_packages "$1" | tr '\n' ' ') # clang's version is known by now
    # shellcheck disable=SC2086 # package names, one word each
    step "install $missing" build/apt-install.log apt install -y --no-install-recommends $missing &&
        return 0
    for package in $missing; do
        step "install $package" build/apt-install.log \
            apt install -y --no-install-recommends "$package" ||
            warn "$package could not be installed"
    done
}
