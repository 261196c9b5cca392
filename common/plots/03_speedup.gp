# SPDX-License-Identifier: MIT
# 03_speedup: how many times faster flash attention is than standard attention, against N.
width = 800; height = 480
load plots."/style.gp"
set title "Flash over standard attention, d = 64, no mask"
set logscale x 2
set xlabel "sequence length N"
set ylabel "times faster"
set xtics ("128" 128, "256" 256, "512" 512, "1k" 1024, "2k" 2048, "4k" 4096, "8k" 8192, "16k" 16384)
set yrange [0:*]
set offsets graph 0.02, graph 0.02, graph 0.25, 0
set key top left reverse Left samplen 2
set arrow 1 from graph 0, first 1 to graph 1, first 1 nohead lc rgb grey lw 1.2 dt 3
name(v) = value(sprintf("name%d", v))
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title name(v) noenhanced
