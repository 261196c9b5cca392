# SPDX-License-Identifier: MIT
# 03_traffic_m: bytes of one head against the size of fast memory, counted.
# Dashed: the papers' N^2 d^2 / M, which standard attention cannot follow; the line at 4 d^2 is where
# Br stops growing.
width = 800; height = 540
load plots."/style.gp"
set title sprintf("Bytes of one head against fast memory, N = %d, d = %d, f32", N, d)
set logscale xy
set logscale x 2
set xlabel "fast memory M (elements)"
set ylabel "loads and stores, counted (bytes)"
set format y "10^{%L}"
set xtics ("1k" 1024, "2k" 2048, "4k" 4096, "8k" 8192, "16k" 16384, "32k" 32768, "64k" 65536, \
    "128k" 131072, "256k" 262144)
set offsets graph 0.02, graph 0.02, 0, 0
set yrange [1e4:] # room for the key below the lowest line
set key bottom left reverse Left samplen 2 noenhanced
set arrow 1 from 4*d*d, graph 0 to 4*d*d, graph 1 nohead lc rgb grey lw 1.2 dt 3
set label 1 "M = 4 d²: from here on Br = d" at 4*d*d*1.06, graph 0.95 tc rgb grey font ",10"
fa1(m) = 4.0 * 12 * N * N * d * d / m
once = 4.0 * (4 * N * d + N)
if (points) {
    # what the tiles of a GPU's kernel stand for: M = 4 d Bc
    plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v+1), \
         dat index count using 1:2 with points lc rgb c(3) pt 3 ps 1.8 lw 2.5 \
             title "v0_fa1 asks of a GPU's L2", \
         [m_first:m_last] fa1(x) with lines lt 8 lw 1.5 dt 3 title "4 · 12 N² d² / M bytes", \
         once with lines lt 7 lw 1.2 dt 2 title "every input and output once"
} else {
    plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v+1), \
         [m_first:m_last] fa1(x) with lines lt 8 lw 1.5 dt 3 title "4 · 12 N² d² / M bytes", \
         once with lines lt 7 lw 1.2 dt 2 title "every input and output once"
}
