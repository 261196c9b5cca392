# SPDX-License-Identifier: MIT
"""plot_rows.py: recorded rows as the blocks and names that gnuplot reads, for all figures.

Interface:
- block, quoted, chip: text of a data block, of a string, of a processor's name.
- by_variant, richest, latest, sizes_of, square: which rows a figure shows.
- per_head, curves: numbers of a head; one block a variant.
"""


def block(lines):
    return "\n".join(lines) + "\n\n\n"


def quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def chip(row):
    """The processor's name, safe in gnuplot's enhanced text, where @ _ ^ { } & are commands."""
    name = str(row.get("cpu") if row.get("device") == "cpu" else row.get("gpu"))
    return "".join("\\" + c if c in "@_^{}&~" else c for c in name)


def by_variant(rows):
    found = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(row)
    return dict(sorted(found.items()))


def richest(rows, key, count):
    """The group of rows (same key) with the most different values of count; ties: the last."""
    groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return max(groups.values(), key=lambda g: len({count(r) for r in g}), default=[])


def latest(rows, key):
    """One row a key: a later line of the file replaces an earlier one."""
    return list({key(row): row for row in rows}.values())


def sizes_of(row):
    return tuple(str(row.get(k)) for k in ("device", "dtype", "B", "H", "Hkv", "d", "mask",
                                           "window", "threads", "machine", "gpu"))


def square(rows):
    """Rows with as many queries as keys and no mask."""
    return [r for r in rows if r.get("Nq") == r.get("Nk") and not r.get("backward")
            and r.get("mask") in (None, "none") and r.get("window") in (None, [-1, -1])]


def per_head(row, key):
    return f"{row[key] / (row['B'] * row['H']):.6g}" if row.get(key) else "NaN"


def curves(rows, x, columns, order=()):
    """One block a variant, sorted by x; and the variants' names, in this order or by name."""
    data, names = [], []
    found = by_variant(rows)
    for name in [n for n in order if n in found] or found:
        mine = found[name]
        mine.sort(key=lambda r: r[x])
        data.append(block([f"# {name}: {x}, {', '.join(columns)}"] +
                          [" ".join([str(r[x])] + [per_head(r, c) for c in columns])
                           for r in mine]))
        names.append(name)
    return data, names
