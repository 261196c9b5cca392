#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""table.py: recorded runs as a table for the terminal or for Markdown.

    table.py FILE.jsonl... [--demo] [--columns a,b,c] [--filter "variant=v1_blas N>=1024"]

Interface:
- Rows that were not checked or failed are left out and counted below the table.
- terminal(rows, columns) and markdown(rows, columns) give the text; docs.py uses the latter.
"""
import argparse
import sys

import columns as shown
import rows as recorded
import tool

STALE_MARK = "†"
STALE_NOTE = f"{STALE_MARK} the source of this variant has changed since this row was recorded"


def cells_of(rows, columns, root):
    table = []
    for row in rows:
        cells = [shown.cell(row, column) for column in columns]
        if recorded.is_stale(row, root):
            where = columns.index("variant") if "variant" in columns else 0
            cells[where] += " " + STALE_MARK
        table.append(cells)
    return table


def terminal(rows, columns, root=recorded.ROOT, case_lines=False, gaps=True):
    """Aligned columns; a blank line between stages and cases keeps long tables readable. With
    case_lines each of them has a line of its own in front, which spares two columns. Without gaps
    the rows are one block."""
    table = cells_of(rows, columns, root)
    heads = [shown.SHORT_HEADS.get(c, shown.COLUMNS[c][0]) for c in columns]
    right = [c not in shown.WORDS for c in columns]
    width = [max(len(line[i]) for line in [heads, *table]) for i in range(len(columns))]

    def line(cells):
        return "  ".join(cell.rjust(width[i]) if right[i] else cell.ljust(width[i])
                         for i, cell in enumerate(cells)).rstrip()

    lines = [line(heads), line(["-" * w for w in width])]
    previous = None
    for row, cells in zip(rows, table):
        if recorded.case_of(row) != previous:
            lines += [""] if gaps and previous is not None else []
            lines += [f"{row['stage']}  {shown.case_text(row)}  {row['device']}"] * case_lines
        previous = recorded.case_of(row)
        lines.append(line(cells))
    if any(STALE_MARK in cell for cells in table for cell in cells):
        lines += ["", STALE_NOTE]
    return "\n".join(lines) + "\n"


def markdown(rows, columns, root=recorded.ROOT, with_commands=True):
    table = cells_of(rows, columns, root)
    lines = ["| " + " | ".join(shown.COLUMNS[c][0] for c in columns) + " |",
             "|" + "|".join("---" if c in shown.WORDS else "--:" for c in columns) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
              for cells in table]
    machines, commands = recorded.facts(rows)
    notes = [STALE_NOTE + "."] if any(STALE_MARK in c for cells in table for c in cells) else []
    notes += [f"Recorded on: {machine}." for machine in machines]
    notes += [f"Command: `{command}`" for command in commands if with_commands]
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--demo", action="store_true", help="the table of ./ladder demo")
    parser.add_argument("--columns", default="")
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    rows = [row for row in recorded.load(args.files) if "experiment" not in row]
    rows = recorded.grouped(recorded.select(rows, args.filter))
    good = recorded.add_speedups(recorded.usable(rows))
    columns = args.columns.split(",") if args.columns else shown.DEMO_COLUMNS
    if args.demo:
        sys.stdout.write(terminal(good, shown.TERMINAL_COLUMNS, case_lines=True))
    else:
        sys.stdout.write(terminal(good, columns))
    failed = [row for row in rows if row.get("pass") is False]
    unchecked = len(rows) - len(good) - len(failed)
    if unchecked:
        print(f"\n{unchecked} rows left out: not checked, or of a model", file=sys.stderr)
    for row in failed:
        print(f"WRONG: {row['stage']} {row['variant']} on {shown.case_text(row)}: "
              f"error / bound {shown.cell(row, 'bound_ratio')}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
