# SPDX-License-Identifier: MIT
"""draw_timeline.py: a GPU kernel as lines of time: loads behind the products, and beside them.
Hopper's rungs have measured ones (draw_stamps.py).

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


FIGURES = {"03_pipeline.svg": draw_pipeline}
