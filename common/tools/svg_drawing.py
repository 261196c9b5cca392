# SPDX-License-Identifier: MIT
"""svg_drawing.py: the few shapes that the drawn figures are made of.

Interface:
- Drawing(width, height, title, description): box, text, line, arrow, down, mark, curve; done()
  gives the SVG text, the same bytes for the same calls.
- BLUE RED GREEN PURPLE YELLOW GREY: the colours of all figures, safe for the colour-blind.
"""
from xml.sax.saxutils import escape

BLUE, RED, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
YELLOW, GREY = "#E69F00", "#666666"


class Drawing:
    def __init__(self, width, height, title, description):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, sans-serif" '
            'font-size="15" role="img">',
            f"<title>{escape(title)}</title>", f"<desc>{escape(description)}</desc>",
            f'<rect width="{width}" height="{height}" fill="white"/>']

    def box(self, x, y, w, h, fill="none", stroke=GREY, opacity=1.0, radius=4, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius}" '
                          f'fill="{fill}" fill-opacity="{opacity:g}" stroke="{stroke}"{dashed}/>')

    def text(self, x, y, text, size=15, anchor="middle", fill="#222222", weight="normal"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{fill}" font-weight="{weight}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour=GREY, width=1.5):
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
                          f'stroke="{colour}" stroke-width="{width:g}"/>')

    def arrow(self, x1, x2, y, width, colour):
        """Horizontal, with a head that grows with the shaft."""
        sign = 1 if x2 > x1 else -1
        head = width / 2 + 5
        neck = x2 - sign * (head + 4)
        points = [(x1, y - width / 2), (neck, y - width / 2), (neck, y - head), (x2, y),
                  (neck, y + head), (neck, y + width / 2), (x1, y + width / 2)]
        self.parts.append(f'<polygon points="{" ".join(f"{a:g},{b:g}" for a, b in points)}" '
                          f'fill="{colour}" fill-opacity="0.85"/>')

    def down(self, x1, y1, x2, y2):
        """A thin arrow between two points, drawn downwards."""
        self.line(x1, y1, x2, y2 - 4)
        self.parts.append(f'<polygon points="{x2 - 5:g},{y2 - 9:g} {x2 + 5:g},{y2 - 9:g} '
                          f'{x2:g},{y2:g}" fill="{GREY}"/>')

    def mark(self, x, y, colour, hollow=False):
        """A point of a diagram."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5.5" stroke="{colour}" '
                          f'stroke-width="2" fill="{"white" if hollow else colour}"/>')

    def curve(self, points, colour=GREY, width=1.5, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                          f'stroke-width="{width:g}"{dashed}/>')

    def done(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"
