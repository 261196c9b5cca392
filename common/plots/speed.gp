# SPDX-License-Identifier: MIT
# speed: GFLOP/s of every variant, one bar each, log scale because the ladder climbs by factors.
# The dumb terminal draws the same bars with letters.
load data.".set"
# Room follows the number of bars: in letters two lines a bar, in pixels 44.
width = 900; height = kind eq "dumb" ? 5 + 2 * count : 200 + 44 * count
load plots."/style.gp"
if (kind ne "dumb") {
    set title sprintf("Speed of every variant\n{/*0.8 %s; %s}", case, chip)
} else {
    set title sprintf("Speed of every variant: %s (GFLOP/s, log scale)", case)
}
left = 10 ** floor(log10(low) - 0.3)
set logscale x
set xrange [left:(sgemm > top ? sgemm : top) * (kind eq "dumb" ? 30 : 12)]
set yrange [count - 0.4:-0.9]
set ytics scale 0 noenhanced
unset grid
set grid xtics
set border 1
if (kind ne "dumb") {
    set xlabel "GFLOP/s"
    if (sgemm > 0) {
        set arrow 1 from sgemm, graph 0 to sgemm, graph 1 nohead lc rgb grey lw 1.5 dt 3 front
        set label 1 sprintf("sgemm %.0f", sgemm) at sgemm, -0.65 offset 0.4,0 tc rgb grey font ",10" front
    }
    # The numbers stand in a column behind bars and dotted line, which would cross them.
    column = 1.15 * (sgemm > top ? sgemm : top)
    plot dat using (left):1:(left):2:($1-0.36):($1+0.36):(c($3)):yticlabels(4) with boxxyerror lc rgb variable, \
         dat using (column):1:5 with labels left font ",10"
} else {
    unset border
    unset grid
    unset xtics
    plot for [k=0:160] dat using ($2 >= left * 10**(k * log10(top * 1.0001 / left) / 160.0) ? left * 10**(k * log10(top / left) / 160.0) : NaN):1:yticlabels(4) with points pt "#", \
         dat using 2:1:5 with labels left offset 2,0
}
