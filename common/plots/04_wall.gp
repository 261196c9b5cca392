# SPDX-License-Identifier: MIT
# 04_wall: time and memory of the backward pass, with whole matrices P and dS and without, against N.
# Dashed: the largest measured run continued as N squared, up to the wall.
width = 1100; height = 560
load plots."/style.gp"
set multiplot layout 1,2 title "Backward pass: P and dS as whole matrices, or tile by tile\n{/*0.8 ".cases."}"
set logscale xy
set logscale x 2
set xlabel "sequence length N"
set format y "10^{%L}"
set xtics ("128" 128, "512" 512, "2k" 2048, "8k" 8192, "32k" 32768, "128k" 131072, "512k" 524288)
set key bottom right reverse Left samplen 2 noenhanced
set lmargin 9
set offsets graph 0.02, graph 0.02, 0, 0

name(v) = sprintf("%s (%s)", word(names, v + 1), word(homes, v / 2 + 1))
set title "Time\n{/*0.8 ".notes."}"
set ylabel "backward pass (ms)"
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title name(v)

set title "Memory beside inputs and outputs\n "
set ylabel "peak workspace (bytes)"
end_of(p) = real(word(ends, p))
most = 0
do for [p=1:pairs] {
    if (end_of(p) > 0) {
        set arrow p from graph 0, first end_of(p) to graph 1, first end_of(p) nohead \
            lc rgb grey lw 1.5 dt 3
        set label p sprintf("%.0f GB: the memory of the %s", end_of(p) / 1e9, word(homes, p)) \
            at graph 0.03, first end_of(p) * 1.5 tc rgb grey font ",10" noenhanced
        most = end_of(p) > most ? end_of(p) : most
    }
}
set xrange [n_first:4 * n_last]
if (most > 0) { set yrange [*:most * 6] }
wall(v) = real(word(walls, v + 1))
plot for [v=0:count-1] dat index v using 1:3 with linespoints lt v+1 title name(v), \
     for [v=0:count-1] (wall(v) > 0 && x >= int(word(lasts, v + 1)) ? wall(v) * x * x : NaN) \
         with lines lt v+1 lw 1.2 dt 2
unset multiplot
