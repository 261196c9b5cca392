# SPDX-License-Identifier: MIT
# attention_map: P of one head of the bundled input, all tokens and the first ones by name.
width = 1240; height = 640
load plots."/style.gp"
unset grid
set border 15
set multiplot title sprintf("Where one trained head looks: P, head %d of the bundled input\n{/*0.8 each row sums to 1; a row has %.1f bits of entropy on average, %.1f would be uniform}", head, bits, log(n) / log(2))
# viridis in five stops: brightness rises evenly, also without colour
set palette defined (0 "#fdfdf6", 0.3 "#a8dba8", 0.55 "#35a6a0", 0.8 "#31688e", 1 "#440154")
set cblabel "P (key j seen by query i)" offset 0.5,0
set logscale cb
set cbrange [1e-4:1]
set format cb "10^{%L}"
set xlabel "key j"

set lmargin at screen 0.065
set rmargin at screen 0.445
set bmargin at screen 0.13
set tmargin at screen 0.85
unset colorbox
set title "all tokens"
set xrange [-0.5:n-0.5]
set yrange [n-0.5:-0.5]
set ylabel "query i" offset 1,0
set xtics 64
set ytics 64
plot dat index 0 matrix with image

set lmargin at screen 0.555
set rmargin at screen 0.905
set colorbox
set title sprintf("enlarged: tokens 0 to %d", zoom - 1)
set xrange [-0.5:zoom-0.5]
set yrange [zoom-0.5:-0.5]
unset ylabel
unset xlabel
set tics scale 0
set xtics () rotate by 90 right font ",10" noenhanced
set ytics () font ",10" noenhanced
plot dat index 1 using 1:2:3 with image pixels, \
     dat index 2 using 1:(-9):xticlabels(2) with dots, \
     dat index 2 using (-9):1:yticlabels(2) with dots
unset multiplot
