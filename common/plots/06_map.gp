# SPDX-License-Identifier: MIT
# 06_map: which method is fastest for how many GPUs, and from where on communication is free.
width = 1200; height = 560
load data.".set"
load plots."/style.gp"
set multiplot layout 1,2 title "Predicted: ".case
unset grid
set border 15
set title "the fastest method; number: share of the time that is computation (%)"
set xlabel "GPUs"
set ylabel "tokens per GPU"
set xrange [-0.5:columns-0.5]
set yrange [-0.5:rows-0.5]
set xtics ()
set ytics ()
do for [i=1:columns] { set xtics add (word(ranks, i) i-1) }
do for [i=1:rows] { set ytics add (word(tokens, i) i-1) }
set tics scale 0
set key below horizontal samplen 1 noenhanced
set style fill solid 0.55 noborder
plot for [m=0:5] dat index 0 using ($3 == m ? $1 : NaN):2:(0.48):(0.48) with boxxyerror lc rgb c(m) notitle, \
     for [m=0:5] NaN with boxes lc rgb c(m) title word(methods, m+1), \
     dat index 0 using 1:2:4 with labels font ",9" notitle
set title "messages cost less than 2 % from this many tokens on"
set border 3
set tics scale 0.6
set grid
set logscale xy 2
set autoscale
set xtics auto
set ytics auto
set format x "%.0f"
set format y "%.0f"
set offsets graph 0.03, graph 0.03, graph 0.1, graph 0.05
index_of(name) = name eq word(methods,1) ? 0 : name eq word(methods,2) ? 1 : name eq word(methods,3) ? 2 : name eq word(methods,4) ? 3 : name eq word(methods,5) ? 4 : 5
plot for [v=1:count] dat index v using 1:2 with linespoints lc rgb c(index_of(word(names, v))) lw 2 pt v+3 title word(names, v)
unset multiplot
