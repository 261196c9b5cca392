# SPDX-License-Identifier: MIT
"""draw_timeline.py: the drawings of GPU kernels as lines of time: what is loaded, what the tensor
cores multiply, what the threads compute.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
from svg_drawing import BLUE, GREEN, GREY, RED, YELLOW, Drawing


def span(pic, x, y, width, text, colour, opacity=0.3):
    """Something that lasts from x on."""
    pic.box(x, y, width - 3, 34, colour, colour, opacity, 3)
    pic.text(x + width / 2, y + 22, text, 13)


def draw_pipeline():
    pic = Drawing(980, 350, "Loads behind the products, and beside them",
                  "Time lines of one block: v4 loads a tile, waits, computes, waits; v5 copies the "
                  "next tile into the other stage while it computes.")
    pic.text(490, 32, "One block, four tiles of keys: load, then compute; or both at once", 19)
    load, work, x0 = 84, 112, 110

    pic.text(20, 100, "v4", 16, "start", weight="bold")
    x = x0
    for n in range(4):
        span(pic, x, 78, load, f"load j+{n}" if n else "load j", BLUE)
        span(pic, x + load, 78, work, f"S P O of j+{n}" if n else "S P O of j", YELLOW)
        x += load + work
    pic.line(x, 66, x, 124, RED, 2)
    pic.text(x - 6, 138, "done", 13, "end", RED)
    pic.text(20, 200, "v5 copy", 15, "start", weight="bold")
    pic.text(20, 252, "compute", 15, "start", weight="bold")
    x = x0
    span(pic, x, 178, load, "j", BLUE)
    x += load
    for n in range(4):
        if n < 3:
            span(pic, x, 178, load, f"j+{n + 1}", BLUE)
            pic.text(x + load - 8, 172, f"stage {(n + 1) % 2}", 11, "end", GREY)
        span(pic, x, 230, work, f"S P O of j+{n}" if n else "S P O of j", YELLOW)
        pic.line(x - 1.5, 166, x - 1.5, 276, GREEN, 2)
        x += work
    pic.line(x, 166, x, 276, RED, 2)
    pic.text(x + 6, 290, "done", 13, "start", RED)
    pic.text(490, 330, "green: wait for the copy, then the one barrier of the tile; after it the "
             "other stage is free", 14)
    return pic.done()


# --- Hopper, forward -----------------------------------------------------------------------------

# Clocks of one warpgroup and tile at d = 128, as the head of v11_overlapped_softmax.cu has them.
S_CLOCKS, PV_CLOCKS, EXP_CLOCKS = 512, 512, 600


def one_after_another(tiles):
    """v10: [(start, end, kind, tile)], end. The softmax waits for S, and P V for the softmax."""
    done, now = [], 0
    for tile in range(tiles):
        for kind, clocks in (("S", S_CLOCKS), ("exp", EXP_CLOCKS), ("PV", PV_CLOCKS)):
            done.append((now, now + clocks, kind, tile))
            now += clocks
    return done, now


def half_a_turn_late(tiles):
    """v11: P V of the tile before is issued behind S, and runs while the softmax does."""
    done, now = [], 0
    for tile in range(tiles + 1):
        if tile < tiles:
            done.append((now, now + S_CLOCKS, "S", tile))
            now += S_CLOCKS
            done.append((now, now + EXP_CLOCKS, "exp", tile))
        if tile:
            done.append((now, now + PV_CLOCKS, "PV", tile - 1))
        now += EXP_CLOCKS if tile < tiles else PV_CLOCKS
    return done, now


def draw_overlapped_softmax():
    tiles, left, unit = 4, 140, 0.119
    pic = Drawing(980, 400, "The softmax beside a product",
                  "Two lines of time of a warpgroup. In v10 products and softmax take turns. In "
                  "v11 the second product of a tile runs while the softmax of the next one does.")
    pic.text(490, 32, f"One warpgroup, {tiles} tiles, d = 128: v10 above, v11 below", 19)
    pic.text(490, 56, f"a product S or P V: {S_CLOCKS} clocks; a softmax: about {EXP_CLOCKS}", 14,
             fill=GREY)
    for top, name, (done, end) in ((84, "v10", one_after_another(tiles)),
                                   (218, "v11", half_a_turn_late(tiles))):
        pic.text(20, top + 58, name, 17, "start", weight="bold")
        pic.text(left - 10, top + 32, "products", 14, "end")
        pic.text(left - 10, top + 82, "softmax", 14, "end")
        for start, stop, kind, tile in done:
            text = {"S": f"S{tile}", "PV": f"P V{tile}", "exp": f"softmax {tile}"}[kind]
            span(pic, left + start * unit, top + (60 if kind == "exp" else 10),
                 (stop - start) * unit, text, YELLOW if kind == "exp" else BLUE)
        busy = sum(stop - start for start, stop, kind, _ in done if kind != "exp") / end
        pic.line(left + end * unit, top + 4, left + end * unit, top + 100, RED, 2)
        pic.text(left, top + 118, f"tensor cores: {busy:.0%} of the time", 14, "start")
    pic.text(490, 384, "drawn from the clocks that each part needs alone; red line: done", 14,
             fill=GREY)
    return pic.done()


# --- Hopper, backward ----------------------------------------------------------------------------

def draw_warpgroup_turns():
    unit, left, exp = 23, 150, 5
    pic = Drawing(980, 470, "Two warpgroups that take turns",
                  "In v11 both warpgroups multiply at the same time and then both compute "
                  "exponentials. In v12 one multiplies while the other computes exponentials.")
    pic.text(490, 32, "Two warpgroups and one set of tensor cores: v11 above, v12 below", 19)
    pic.text(490, 56, "blue: products, two at once take twice as long; yellow: P and dS", 14,
             fill=GREY)

    def line(y, name, spans):
        pic.text(left - 10, y + 22, name, 14, "end")
        x = left
        for width, text in spans:
            if text:
                span(pic, x, y, width * unit, text, YELLOW if text == "P, dS" else BLUE)
            x += width * unit

    tile = [(4, "S dP"), (exp, "P, dS"), (6, "dV dQ dK")]
    line(88, "warpgroup 0", 2 * tile)
    line(132, "warpgroup 1", 2 * tile)
    line(176, "tensor cores", [(4, "busy"), (exp, ""), (10, "busy"), (exp, ""), (6, "busy")])
    turn = [(5, "dQ' dV dK S dP"), (exp, "P, dS")]
    line(266, "warpgroup 0", 3 * turn)
    line(310, "warpgroup 1", [(5, ""), *(2 * turn), turn[0]])
    line(354, "tensor cores", [(30, "busy")])
    for y, x in ((88, 4 + exp + 6), (88, 2 * (4 + exp + 6)), (266, 10), (266, 20), (266, 30)):
        pic.line(left + x * unit, y - 8, left + x * unit, y + 130, RED, 2)
    pic.text(left, 240, "in the time of 30 products: two tiles for each warpgroup", 14, "start")
    pic.text(left, 420, "in the same time: three tiles for each, those of warpgroup 1 half a tile "
             "later", 14, "start")
    pic.text(490, 452, "red: a tile is done. Drawn, not measured: P and dS take as long as five "
             "products here", 14, fill=GREY)
    return pic.done()


FIGURES = {"03_pipeline.svg": draw_pipeline,
           "03_overlapped_softmax.svg": draw_overlapped_softmax,
           "04_warpgroup_turns.svg": draw_warpgroup_turns}
