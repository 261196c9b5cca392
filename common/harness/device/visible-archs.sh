#!/bin/sh
# SPDX-License-Identifier: MIT
# What -Dgpu_archs=auto stands for: the architectures of the GPUs that are visible, 90a beside 90,
# or 80 where none is.
set -eu
archs=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . |
    grep -x '[0-9]*' | sort -u || :)
for arch in ${archs:-80}; do
    echo "$arch"
    [ "$arch" != 90 ] || echo 90a
done
