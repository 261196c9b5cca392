#!/bin/sh
# SPDX-License-Identifier: MIT
# draw_plots.sh: recorded runs -> figures, SVG and PNG each, and the last one as text on stdout.
#
#     draw_plots.sh FILE.jsonl OUTDIR [FIGURE...]      FIGURE: all that the file has data for
#
# The same file gives the same SVG, byte for byte. Exit 2 without gnuplot or on bad usage.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: draw_plots.sh FILE.jsonl OUTDIR [FIGURE...]" >&2
    exit 2
fi
command -v gnuplot >/dev/null || { echo "draw_plots.sh: gnuplot is not installed" >&2; exit 2; }
tools=$(cd "$(dirname "$0")" && pwd)
plots=$tools/../plots
rows=$1 out=$2
shift 2
mkdir -p "$out"
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
have=$(python3 "$tools/plot_data.py" "$data" "$rows")
for figure in ${*:-$have}; do
    if [ ! -f "$data/$figure.dat" ]; then
        echo "draw_plots.sh: $rows has no rows for the figure $figure" >&2
        exit 2
    fi
    what=$(sed -n "s/^# $figure: //p" "$plots/$figure.gp")
    for kind in svg png; do
        # A run of its own into a temporary file: nobody sees half a figure.
        gnuplot -e "kind='$kind'; out='$data/out.$kind'; data='$data/$figure'; plots='$plots'" \
            "$plots/$figure.gp"
        [ $kind = png ] || sed -i "s|<title>figure<|<title>$what<|" "$data/out.svg"
        mv "$data/out.$kind" "$out/$figure.$kind"
    done
    echo "$out/$figure.svg" >&2
done
if [ -f "$data/speed.dat" ]; then
    gnuplot -e "kind='dumb'; out=''; data='$data/speed'; plots='$plots'" "$plots/speed.gp"
fi
