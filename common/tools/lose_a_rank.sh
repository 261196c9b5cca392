#!/bin/sh
# SPDX-License-Identifier: MIT
# Starts a program as RANKS processes, sends SIGNAL (KILL or STOP) to the one of rank 1 in the
# middle, and passes if that rank is named, the program fails, and all of it has ended within
# SECONDS after the signal (and a few more, for mpirun).
#
#     lose_a_rank.sh SIGNAL RANKS SECONDS PROGRAM FLAGS...
#
# AFTER: seconds from start to signal (10: inputs, a GPU's context, some rounds).
signal=$1 ranks=$2 seconds=$3
shift 3
log=$(mktemp) || exit 3
trap 'rm -f "$log"' EXIT

mpirun --allow-run-as-root -n "$ranks" "$@" >"$log" 2>&1 &
started=$!
sleep "${AFTER:-10}"
victim=
for process in /proc/[0-9]*; do # ranks are children of mpirun, and know who they are
    if grep -qsx "PPid:[[:space:]]*$started" "$process/status" &&
        tr '\0' '\n' <"$process/environ" | grep -qx 'OMPI_COMM_WORLD_RANK=1'; then
        victim=${process#/proc/}
    fi
done
if [ -z "$victim" ]; then
    cat "$log"
    echo "lose_a_rank: rank 1 is not running ${AFTER:-10} s after the start" >&2
    kill "$started" 2>/dev/null
    exit 1
fi
kill "-$signal" "$victim"
waited=0
while kill -0 "$started" 2>/dev/null && [ $waited -lt $((seconds + 10)) ]; do
    sleep 1
    waited=$((waited + 1))
done
if kill -0 "$started" 2>/dev/null; then
    cat "$log"
    echo "lose_a_rank: still running $waited s after rank 1 had its SIG$signal" >&2
    kill -9 "$started" # its ranks end with it
    exit 1
fi
wait "$started"
status=$?
grep '^ring_burst: ' "$log"
[ $status -ne 0 ] || echo "lose_a_rank: exit status 0, though rank 1 had its SIG$signal" >&2
waited=0
while [ -d "/proc/$victim" ] && [ $waited -lt 5 ]; do # a killed process takes a moment
    sleep 1
    waited=$((waited + 1))
done
if [ -d "/proc/$victim" ]; then
    echo "lose_a_rank: the process of rank 1 is still there" >&2
    kill -9 "$victim"
    exit 1
fi
case $signal in
STOP) named='^ring_burst: .*rank 1 is stopped' ;;
*) named='^ring_burst: rank 1, ' ;;
esac
[ $status -ne 0 ] && grep -q "$named" "$log"
