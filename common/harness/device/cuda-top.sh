#!/bin/sh
# SPDX-License-Identifier: MIT
# Prints the CUDA toolkit's folder, asked of nvcc itself. An nvcc reached through a bare symbolic
# link does not know it, hence readlink. Exit status 2: flags of the environment ask it for fast
# math, of which the compiled code knows nothing.    usage: cuda-top.sh NVCC
set -eu
said=$("$(readlink -f "$1")" --dryrun -c x.cu 2>&1)
case $said in *-ftz=1* | *prec_div=0* | *prec_sqrt=0*) exit 2 ;; esac
cd "$(printf '%s\n' "$said" | sed -n 's/^#\$ TOP=//p' | head -n 1)" && pwd -P
