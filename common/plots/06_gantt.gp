# SPDX-License-Identifier: MIT
# 06_gantt: what each rank did when: it computes, sends and receives, three lines a rank from above.
# It computes in up to two lanes.
load data.".set"
width = 620 * panels; height = 150 + 46 * ranks
load plots."/style.gp"
set multiplot layout 1,panels title case
set border 3
unset grid
set key below horizontal samplen 1
set yrange [ranks-0.4:-0.6]
set ytics 1 format "rank %.0f"
set xlabel "ms"
set style fill solid 0.8 border rgb 0xFFFFFF
middle(r, g) = r + 0.28 * (g - 1)
do for [p=0:panels-1] {
    set title p == 0 ? name0 : name1
    set xrange [0:(p == 0 ? end0 : end1) * 1.01]
    plot dat index 3*p using 1:(middle($3,0)+$4):1:2:(middle($3,0)+$4-$5):(middle($3,0)+$4+$5) with boxxyerror lc rgb c(0) title "computes", \
         dat index 3*p+1 using 1:(middle($3,1)+$4):1:2:(middle($3,1)+$4-$5):(middle($3,1)+$4+$5) with boxxyerror lc rgb c(1) title "sends", \
         dat index 3*p+2 using 1:(middle($3,2)+$4):1:2:(middle($3,2)+$4-$5):(middle($3,2)+$4+$5) with boxxyerror lc rgb c(2) title "receives"
}
unset multiplot
