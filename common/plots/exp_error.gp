# SPDX-License-Identifier: MIT
# exp_error: how wrong softmax is in float32 when the row's maximum is not subtracted first.
# Results that are NaN or infinite are drawn on a line of their own above the axis.
width = 860; height = 500
load plots."/style.gp"
set title "exp without the maximum works, until it does not"
set xlabel "largest |score| of the row"
set ylabel "largest relative error of P (float32)"
set logscale xy
set yrange [1e-8:1e3]
set format y "10^{%L}"
set ytics 100
set key top left reverse Left samplen 2 noenhanced
set arrow 1 from 88.72, graph 0 to 88.72, graph 0.86 nohead lc rgb grey lw 1.5 dt 3
set label 1 "exp(88.72) = largest float" at 82, 3e-2 right tc rgb grey font ",10"
set label 2 "NaN or infinite" at graph 0.98, first 3.2e2 right tc rgb grey
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v+1), \
     for [v=0:count-1] dat index v using 1:3 with points lt v+1 pt 2 ps 1.3 lw 2
