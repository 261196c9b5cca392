# SPDX-License-Identifier: MIT
# Part of ./ladder: CUDA rungs on this CPU. The build folder is configured on the first use; what a
# rung needs is compiled when it is asked for (common/tools/simt.py).
#
# Interface: ladder_simt WORDS..., simt_options, has_simt.

# No library that a rung does not call; a debugger's lines of the .cu files are there anyway.
simt_options='-Dcuda=simt -Ddebug=false -Dblas=disabled -Dmpi=disabled -Dnccl=disabled'

has_simt() {
    have clang++ && have llvm-symbolizer && [ -e /usr/include/boost/context/detail/fcontext.hpp ]
}

ladder_simt() {
    case " $* " in
    *' --help '* | *' -h '* | '  ') exec python3 common/tools/simt.py --help ;;
    esac
    mkdir -p build
    install simt
    has_simt || refuse "simt needs clang, llvm-symbolizer and Boost.Context; run: sudo apt-get" \
        "install -y --no-install-recommends clang llvm libboost-context-dev"
    # shellcheck disable=SC2086 # one option a word
    configure build/simt $simt_options || exit 3
    LADDER_FROM=$OLDPWD exec python3 common/tools/simt.py "$@"
}
