# SPDX-License-Identifier: MIT
# style.gp: how every figure of this suite looks. Set before loading: kind (svg, png or dumb), out,
# data (the path of the figure's .dat and .set without ending), width, height.
#
# Colours: Okabe and Ito's set, which readers with any common colour blindness can tell apart; each
# line also has its own point, so that a figure survives a grey printer.
load data.".set"
dat = data.".dat"
set encoding utf8
if (kind eq "svg") {
    set terminal svg size width,height font "DejaVu Sans,14" background rgb "white" name "figure"
    set output out
}
if (kind eq "png") {
    set terminal pngcairo size width,height font "DejaVu Sans,11" background rgb "white"
    set output out
}
if (kind eq "dumb") {
    set terminal dumb size 100,height noenhanced
}
colour(i) = word("0x0072B2 0xD55E00 0x009E73 0xCC79A7 0xE69F00 0x56B4E9 0x000000 0x999999", 1 + int(i) % 8)
c(i) = int(colour(i))
grey = 0x666666
set linetype 1 lc rgb 0x0072B2 lw 2.5 pt 7 ps 0.8
set linetype 2 lc rgb 0xD55E00 lw 2.5 pt 5 ps 0.8
set linetype 3 lc rgb 0x009E73 lw 2.5 pt 9 ps 1.0
set linetype 4 lc rgb 0xCC79A7 lw 2.5 pt 13 ps 1.0
set linetype 5 lc rgb 0xE69F00 lw 2.5 pt 11 ps 1.0
set linetype 6 lc rgb 0x56B4E9 lw 2.5 pt 4 ps 0.8
set linetype 7 lc rgb 0x000000 lw 2.5 pt 6 ps 0.8
set border 3 lc rgb grey lw 1
set tics nomirror out scale 0.6 textcolor rgb 0x333333
set grid lc rgb 0xDDDDDD lt 1 lw 0.6
set key noautotitle
set style fill solid 0.9 noborder
