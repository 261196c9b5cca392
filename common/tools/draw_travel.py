# SPDX-License-Identifier: MIT
"""draw_travel.py: more drawings of stage 06: what travels in a backward pass, when a message
hides behind a computation, how ranks come to wait for each other in a circle, and a ring in two
levels. Owners, parts and times are computed here, by the rules that the lessons give.

Interface:
- FIGURES: file name -> function that returns the SVG. draw_figures.py writes and checks them.
"""
import math

from draw_ring import COLOURS, RANKS
from svg_drawing import BLUE, GREY, RED, YELLOW, Drawing

# --- who moves what in a backward pass -----------------------------------------------------------


def draw_visit(pic, x, y, owner, letters, parts):
    """A block that comes by, below it its sum: a filled quarter for each rank whose part is in."""
    pic.box(x, y, 62, 24, COLOURS[owner], COLOURS[owner], 0.85, 3)
    pic.text(x + 31, y + 17, "  ".join(f"{c}{owner}" for c in letters), 13, fill="white")
    for n in range(RANKS):
        full = n < parts
        pic.box(x + n * 15.5, y + 27, 15.5, 12, COLOURS[owner] if full else "white",
                COLOURS[owner], 0.85 if full else 1, 0)


def draw_backward():
    pic = Drawing(1000, 420, "What travels in the backward pass of ring and of burst",
                  "Left, ring: keys visit queries, with their sums, and are at home after three "
                  "hops. Right, burst: queries visit keys, and dQ makes one hop more.")
    pic.text(500, 30, "Backward: the block that comes by, and the sum that grows with it", 19)
    for x0, title, letters, owner in (
            (70, "ring: keys visit queries", "KV", lambda r, t: (r + 1 + t) % RANKS),
            (520, "burst: queries visit keys", "Q", lambda r, t: (r - t) % RANKS)):
        pic.text(x0 + 158, 66, title, 16, weight="bold")
        for rank in range(RANKS):
            pic.text(x0 - 12, 136 + 62 * rank, f"rank {rank}", 13, "end")
            for t in range(RANKS):
                draw_visit(pic, x0 + 80 * t, 110 + 62 * rank, owner(rank, t), letters, t + 1)
            if len(letters) == 1:
                draw_visit(pic, x0 + 80 * RANKS + 24, 110 + 62 * rank, rank, letters, RANKS)
        for t in range(RANKS):
            pic.text(x0 + 80 * t + 31, 96, f"step {t}", 13)
    pic.text(520 + 80 * RANKS + 55, 96, "then home", 13, fill=RED)
    pic.text(70 + 80 * (RANKS - 1) + 31, 372, "at home", 13, fill=RED)
    pic.text(520 + 80 * (RANKS - 1) + 31, 372, "complete, elsewhere", 13, fill=RED)
    pic.text(500, 404, "box: only read, leaves as a step begins. quarters: ranks whose part is in "
             "the sum, which leaves when the step's part is added", 13, fill=GREY)
    return pic.done()


# --- when a message hides ------------------------------------------------------------------------

def steps_in_order(comp, hop):
    """Compute, then send, then compute: (computations, messages) as lists of (start, end)."""
    starts = [t * (comp + hop) for t in range(RANKS)]
    return ([(s, s + comp) for s in starts],
            [(s + comp, s + comp + hop) for s in starts[:-1]])


def steps_overlapped(comp, hop):
    """Keys leave when the step begins; the next step needs both."""
    work, messages, now = [], [], 0.0
    for t in range(RANKS):
        work.append((now, now + comp))
        if t < RANKS - 1:
            messages.append((now, now + hop))
        now += max(comp, hop) if t < RANKS - 1 else comp
    return work, messages


def sums_in_parts(comp, hop, parts):
    """A sum leaves when its part is added; so does the next rank's, at the same time."""
    work, messages = [], []
    arrived, link, now = [0.0] * parts, 0.0, 0.0
    for t in range(RANKS):
        for part in range(parts):
            start = max(now, arrived[part])
            now = start + comp / parts
            work.append((start, now))
            if t < RANKS - 1:
                leave = max(now, link)
                link = arrived[part] = leave + hop / parts
                messages.append((leave, link))
    return work, messages


def draw_overlap():
    comp, hop, scale = 1.0, 0.72, 96
    rows = (("send when done", "compute, send, compute ...", steps_in_order(comp, hop)),
            ("send first", "hidden: a step computes longer than a block travels",
             steps_overlapped(comp, hop)),
            ("half the tokens", "computing: a quarter, message: a half. Not hidden any more",
             steps_overlapped(comp / 4, hop / 2)),
            ("a sum in one piece", "it can leave only when this rank's part is in it",
             sums_in_parts(comp, hop, 1)),
            ("a sum in halves", "one half travels while the other is computed",
             sums_in_parts(comp, hop, 2)))
    pic = Drawing(1000, 490, "When a message hides behind a computation",
                  "Five timelines of one rank with four steps: blue computes, yellow travels.")
    pic.text(500, 30, "One rank, four steps: what it computes, and what travels meanwhile", 19)
    for n, (name, why, (work, messages)) in enumerate(rows):
        y = 58 + 82 * n
        pic.text(20, y + 22, name, 15, "start", weight="bold")
        pic.text(200, y - 1, why, 13, "start", fill=GREY)
        for start, end in work:
            pic.box(200 + scale * start, y + 6, scale * (end - start), 22, BLUE, "white", 0.85, 2)
        for start, end in messages:
            pic.box(200 + scale * start, y + 30, scale * (end - start), 16, YELLOW, "white", 0.9, 2)
        end = work[-1][1]
        pic.line(200 + scale * end, y + 2, 200 + scale * end, y + 50, RED, 2)
        useful = sum(b - a for a, b in work) / end
        pic.text(208 + scale * end, y + 26, f"computes {useful:.0%}", 13, "start", fill=RED)
    pic.text(500, 478, "blue: computing, yellow: a message. A block of keys may leave before it is "
             "used, a sum of gradients may not", 13, fill=GREY)
    return pic.done()


# --- a circle of waiting -------------------------------------------------------------------------

def arrow(pic, start, end, colour, width=2, dash=""):
    """A straight line with a head, between two points."""
    (x1, y1), (x2, y2) = start, end
    angle = math.atan2(y2 - y1, x2 - x1)
    pic.curve([start, end], colour, width, dash)
    barbs = [(x2 - 11 * math.cos(angle + turn), y2 - 11 * math.sin(angle + turn))
             for turn in (0.45, -0.45)]
    pic.curve([barbs[0], end, barbs[1]], colour, width)


def draw_deadlock():
    pic = Drawing(1000, 370, "A deadlock is a circle",
                  "Left: three ranks that send before they receive wait for each other in a "
                  "circle. Right: each hands in both messages at once, and all of them travel.")
    pic.text(500, 30, "The same three messages, with an order and without one", 19)
    places = ((0, 112), (150, 258), (-150, 258))  # of ranks 0, 1, 2: the middle of a box
    ways = (((80, 130), (150, 222)), ((72, 272), (-72, 272)), ((-150, 222), (-80, 130)))
    for x, title, colour in ((250, "send, wait until it is taken, then receive", RED),
                             (750, "start both, then wait for both", GREY)):
        pic.text(x, 66, title, 16, weight="bold")
        for rank, (dx, dy) in enumerate(places):
            right, left = (rank + 1) % len(places), (rank - 1) % len(places)
            pic.box(x + dx - 76, dy - 33, 152, 66, "#F4F4F4", GREY, 1)
            pic.text(x + dx, dy - 14, f"rank {rank}", 14, weight="bold")
            pic.text(x + dx, dy + 5, f"send K to {right}", 13,
                     fill=RED if colour == RED else "#222222")
            pic.text(x + dx, dy + 23, f"receive K from {left}", 13,
                     fill="#AAAAAA" if colour == RED else "#222222")
            arrow(pic, *[(x + px, py) for px, py in ways[rank]], colour)
    pic.text(250, 190, "arrow: waits for", 13, fill=RED)
    pic.text(750, 190, "arrow: a message", 13, fill=GREY)
    pic.text(250, 332, "red: where all of them stand, for ever", 13, fill=GREY)
    pic.text(250, 350, "grey: the line that nobody comes to", 13, fill=GREY)
    pic.text(750, 332, "no message has to wait for another one:", 13, fill=GREY)
    pic.text(750, 350, "whichever is quick arrives first", 13, fill=GREY)
    return pic.done()


# --- two levels ----------------------------------------------------------------------------------

def draw_nodes(pic, x0, rows):
    """Two nodes, one above the other, and where their GPUs are: {number: (x, y)}."""
    at = {}
    for node, numbers in enumerate(rows):
        top = 92 + 150 * node
        pic.box(x0, top, 380, 100, "#F4F4F4", "#BBBBBB", 1, 8)
        pic.text(x0 - 10, top + 54, f"node {node}", 13, "end")
        for place, gpu in enumerate(numbers):
            at[gpu] = (x0 + 55 + 90 * place, top + 50)
    return at


def draw_two_levels():
    size = 4
    pic = Drawing(1000, 410, "A flat ring over two nodes, and a ring in two levels",
                  "Left: one ring through both nodes; every step waits for the two slow links. "
                  "Right: a ring in each node; each GPU uses its slow link once in four steps.")
    pic.text(500, 30, "Two nodes of four GPUs: one ring, and a ring in two levels", 19)
    first, second = list(range(size)), list(range(size, 2 * size))
    for x0, title, rows in ((80, "one ring", (first, second[::-1])),
                            (590, "two levels", (first, second))):
        flat = x0 == 80
        pic.text(x0 + 190, 74, title, 16, weight="bold")
        at = draw_nodes(pic, x0, rows)
        for gpu, (x, y) in at.items():
            node = gpu // size
            to = (gpu + 1) % (2 * size) if flat else node * size + (gpu + 1) % size
            x2, y2 = at[to]
            if to // size != node:
                arrow(pic, (x, y + math.copysign(20, y2 - y)), (x2, y2 - math.copysign(20, y2 - y)),
                      RED, 4)
            elif abs(to - gpu) == 1:
                arrow(pic, (x + math.copysign(21, x2 - x), y),
                      (x2 - math.copysign(21, x2 - x), y2), BLUE, 2.5)
            else:  # the way back to the first GPU of the node
                side = 1 if node else -1  # outside, where no other line is
                pic.curve([(x, y + 20 * side), (x, y + 36 * side), (x2, y + 36 * side)], BLUE, 2.5)
                arrow(pic, (x2, y + 36 * side), (x2, y + 20 * side), BLUE, 2.5)
            if not flat and node == 0:
                x2, y2 = at[gpu + size]
                arrow(pic, (x - 7, y + 20), (x2 - 7, y2 - 20), RED, 2, "6,4")
                arrow(pic, (x2 + 7, y2 - 20), (x + 7, y + 20), RED, 2, "6,4")
        for gpu, (x, y) in at.items():
            pic.box(x - 19, y - 18, 38, 36, "white", GREY, 1, 4)
            pic.text(x, y + 5, str(gpu), 14)
    for x, lines in ((270, ("red: the slow links. All ranks move on together,",
                            "so every step takes as long as these two")),
                     (780, ("red: between equal places of the nodes, once in 4 steps,",
                            "each over a card of its own, behind 4 steps of computing"))):
        for n, line in enumerate(lines):
            pic.text(x, 372 + 19 * n, line, 13, fill=GREY)
    return pic.done()


FIGURES = {"06_backward.svg": draw_backward, "06_overlap.svg": draw_overlap,
           "06_deadlock.svg": draw_deadlock, "06_two_levels.svg": draw_two_levels}
