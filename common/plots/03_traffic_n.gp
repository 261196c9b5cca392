# SPDX-License-Identifier: MIT
# 03_traffic_n: bytes of one head against N, counted (left) and measured on a GPU (right).
# Left: the papers' fast memory, dashed their formulas. Right: what ncu saw of the same algorithms.
width = 1100; height = 560
load plots."/style.gp"
set multiplot layout 1,(gpu_count ? 2 : 1) title "Bytes of one head, f32, d = ".d
set logscale xy
set logscale x 2
set xlabel "sequence length N"
set format y "10^{%L}"
set xtics ("128" 128, "256" 256, "512" 512, "1k" 1024, "2k" 2048, "4k" 4096, "8k" 8192, "16k" 16384)
set key top left reverse Left samplen 2 noenhanced
set lmargin 9
set offsets graph 0.02, graph 0.02, 0, 0
fa1(n) = 4.0 * 12 * n * n * d * d / M
standard(n) = 4.0 * (4 * n * n + 4 * n * d)
set title sprintf("Counted, fast memory M = %d elements", M)
set ylabel "loads and stores (bytes)"
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v+1), \
     [n_first:n_last] standard(x) with lines lt 7 lw 1.2 dt 2 title "4 (4 N² + 4 N d) bytes", \
     fa1(x) with lines lt 8 lw 1.5 dt 3 title "4 · 12 N² d² / M bytes"
if (gpu_count) {
    set title sprintf("Measured, %s", chip)
    set ylabel "bytes"
    set yrange [:1e13] # room for the key above all lines
    plot for [v=0:gpu_count-1] dat index count+v using 1:2 with linespoints lt v+1 \
             title word(gpu_names, v+1)." asks of L2", \
         for [v=0:gpu_count-1] dat index count+v using 1:3 with linespoints lc rgb c(v) lw 1.5 dt 2 \
             pt int(word("6 4 8", v+1)) ps 1.1 title word(gpu_names, v+1)." HBM", \
         for [v=0:gpu_count-1] dat index count+v using 1:4 with lines lc rgb c(v) lw 1 dt 3 \
             title word(gpu_names, v+1)." model"
}
unset multiplot
