#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs one Meson test and does not take "skipped" for "passed": on a machine with a GPU a CUDA test
# that finds no device is a failure.    usage: gpu_one_test.sh BUILD NAME
set -eu
meson test -C "$1" --no-rebuild --print-errorlogs "$2"
exec python3 "$(dirname "$0")/testsum.py" "$1/meson-logs/testlog.json"
