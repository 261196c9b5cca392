#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the CUDA toolkit's folder, asked of nvcc itself. An nvcc reached through a bare symbolic
# link does not know it, hence readlink.    usage: cuda-top.sh NVCC
set -eu
top=$("$(readlink -f "$1")" --dryrun -c x.cu 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1)
[ -n "$top" ] || exit 1
cd "$top" && pwd -P
