# SPDX-License-Identifier: MIT
# 02_unsafe_exp: how wrong softmax is in float32 when the row's maximum is not subtracted first.
# Rows that come out NaN or infinite have no place on an axis: they are marked on a line above it.
width = 860; height = 500
load plots."/style.gp"
set title sprintf("exp without the maximum works, until it does not\n{/*0.8 %s}", case)
set xlabel "largest score in magnitude"
set ylabel "worst relative error of P"
set logscale xy
set yrange [1e-8:1e3]
set format y "10^{%L}"
set ytics ("10^{-8}" 1e-8, "10^{-6}" 1e-6, "10^{-4}" 1e-4, "10^{-2}" 1e-2, "1" 1, \
    "NaN or inf" 1e2)
set key top left reverse Left samplen 2 noenhanced
set label 1 "float32 exp overflows above a score of 88.72" at graph 0.98, first 12 right \
    tc rgb grey font ",10"
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v+1), \
     for [v=0:count-1] dat index v using 1:3 with points lt v+1 pt 2 ps 1.3 lw 2
