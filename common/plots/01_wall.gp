# SPDX-License-Identifier: MIT
# 01_wall: time and memory of materialised attention against N, and where memory ends.
# Right: dashed lines continue the largest measured run as N squared; that is the wall.
width = 1100; height = 520
load plots."/style.gp"
set multiplot layout 1,2 title sprintf("Materialised attention: both costs grow as N^2\n{/*0.8 %s; %s}", case, chip)
set logscale xy
set xlabel "sequence length N"
set key bottom right reverse Left samplen 2 noenhanced
set logscale x 2
set xtics ("16" 16, "64" 64, "256" 256, "1k" 1024, "4k" 4096, "16k" 16384, "64k" 65536, \
    "256k" 262144, "1M" 1048576, "4M" 4194304)
set lmargin 9

set title "Time"
set ylabel "forward pass (ms)"
set format y "10^{%L}"
plot for [v=0:count-1] dat index v using 1:2 with linespoints lt v+1 title word(names, v+1)

# Memory: the axis goes on until the larger of the two memories is passed.
set title "Memory beside the inputs and outputs"
set ylabel "peak workspace (bytes)"
most = ram_bytes > gpu_bytes ? ram_bytes : gpu_bytes
w_low = 1e300; w_high = 0
do for [v=1:count] {
    w = real(word(walls, v))
    if (w > w_high) { w_high = w }
    if (w > 0 && w < w_low) { w_low = w }
}
x_end = 2 ** ceil(log(sqrt(2 * most / w_low)) / log(2))
set xrange [n_first:x_end]
set yrange [*:most * 4]
set arrow 1 from n_first, gpu_bytes to x_end, gpu_bytes nohead lc rgb grey lw 1.5 dt 3
set label 1 "an 80 GB GPU ends" at n_first * 1.2, gpu_bytes * 1.6 tc rgb grey font ",10"
if (ram_bytes > 0) {
    set arrow 2 from n_first, ram_bytes to x_end, ram_bytes nohead lc rgb grey lw 1.5 dt 3
    set label 2 sprintf("this machine's %.0f GB end", ram_bytes / 1e9) at n_first * 1.2, ram_bytes / 2.2 tc rgb grey font ",10"
}
# Where each line meets the 80 GB is a point on it and a line of the key.
do for [v=1:count] {
    set label 10+v "" at sqrt(gpu_bytes / real(word(walls, v))), gpu_bytes point lt v ps 1.2
}
full(v) = sprintf("%s: 80 GB full at N = %.0fk", word(names, v), sqrt(gpu_bytes / real(word(walls, v))) / 1024)
plot for [v=0:count-1] dat index v using 1:3 with linespoints lt v+1 title full(v+1), \
     for [v=0:count-1] (x < n_last ? NaN : real(word(walls, v+1)) * x * x) with lines lt v+1 lw 1.2 dt 2
unset multiplot
