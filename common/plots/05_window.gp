# SPDX-License-Identifier: MIT
# 05_window: time against N, without a window and with some: N squared against N.
load data.".set"
width = 560 * panels; height = 520
load plots."/style.gp"
set multiplot layout 1,panels title "Causal attention without a window, and with one of w keys"
set logscale xy
set logscale x 2
set xlabel "sequence length N"
set ylabel "forward pass (ms)"
set format y "10^{%L}"
set xtics ("256" 256, "1k" 1024, "4k" 4096, "16k" 16384, "64k" 65536, "256k" 262144)
set key top left reverse Left samplen 2 noenhanced
set offsets graph 0.03, graph 0.03, graph 0.3, 0
from = 0
do for [p=1:panels] {
    set title p == 1 ? first_case : last_case
    upto = from + int(word(counts, p)) - 1
    plot for [v=from:upto] dat index v using 1:2 with linespoints lt v-from+1 title word(names, v + 1)
    from = upto + 1
}
unset multiplot
