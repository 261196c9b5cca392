# SPDX-License-Identifier: MIT
# 05_steps: what O loses when it is rounded to its dtype after every online step.
# Dashed: one float32 accumulator that is rounded once.
width = 800; height = 480
load plots."/style.gp"
set title sprintf("Error of O against the number of steps, N = %d, d = %d, no mask\n{/*0.8 dashed: one float32 accumulator, rounded once}", N, d)
set logscale xy
set logscale x 2
set xlabel "online steps of a row: ceil(N / keys of a block)"
set ylabel "largest error of O"
set format y "10^{%L}"
set key outside right reverse Left samplen 2 noenhanced
set offsets graph 0.04, graph 0.04, graph 0.1, graph 0.1
level(v) = real(word(levels, v + 1))
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v + 1), \
     for [v=0:count-1] dat index v using 1:(level(v) > 0 ? level(v) : NaN) with lines lt v+1 lw 1.2 dt 2
