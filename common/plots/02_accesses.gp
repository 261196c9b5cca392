# SPDX-License-Identifier: MIT
# 02_accesses: what each softmax touches and how long it takes, the same rows for all.
width = 1000; height = 480
load plots."/style.gp"
set multiplot layout 1,2 title sprintf("Softmax: fewer passes over the row\n{/*0.8 %s; %s}", case, chip)
set boxwidth 0.6
set xrange [-0.6:count-0.4]
set xtics rotate by 25 right noenhanced
set grid noxtics
set yrange [0:*]
set offsets 0,0,graph 0.12,0
set title "Accesses, counted"
set ylabel "reads and writes per element"
plot dat using 1:3:(c($1)):xticlabels(2) with boxes lc rgb variable, \
     dat using 1:3:(sprintf("%.3g", $3)) with labels offset 0,0.8
set title "Time"
set ylabel "ns per element"
plot dat using 1:4:(c($1)):xticlabels(2) with boxes lc rgb variable, \
     dat using 1:4:(sprintf("%.3g", $4)) with labels offset 0,0.8
unset multiplot
