#!/bin/sh
# SPDX-License-Identifier: MIT
# Does this nvcc compile for this architecture? The answer is kept in the build folder, since a
# probe costs two seconds and every reconfiguration asks.    usage: probe-arch.sh NVCC ARCH CU DIR
set -eu
nvcc=$1 arch=$2 source=$3 folder=$4
mkdir -p "$folder"
stamp="$folder/probe_$arch.ok"
key="$("$nvcc" --version | tail -n 1) ${NVCC_CCBIN:-} ${NVCC_PREPEND_FLAGS:-}
${NVCC_APPEND_FLAGS:-} $("${NVCC_CCBIN:-gcc}" -dumpfullversion 2>/dev/null || :)"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ] && exit 0
"$nvcc" "-gencode=arch=compute_$arch,code=sm_$arch" -Wno-deprecated-gpu-targets \
    -c "$source" -o "$folder/probe_$arch.o"
printf '%s\n' "$key" >"$stamp"
