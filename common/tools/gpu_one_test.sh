#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs Meson tests and does not take "skipped" for "passed": testsum.py fails when nothing passed,
# so a CUDA test that finds no device on a machine with a GPU is a failure.
# usage: gpu_one_test.sh BUILD MESON-TEST-ARGUMENTS...
set -eu
build=$1
shift
log=gpu_$(printf %s "$*" | tr -c 'A-Za-z0-9_.' _) # its own: tests of other pieces may run now
meson test -C "$build" --no-rebuild --print-errorlogs --logbase "$log" "$@"
exec python3 "$(dirname "$0")/testsum.py" "$build/meson-logs/$log.json"
