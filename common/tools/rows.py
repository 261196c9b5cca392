# SPDX-License-Identifier: MIT
"""rows.py: recorded runs (the --json files of all programs) for the table, docs and plot tools.

Every tool reads rows through this module, so that none of them can show a row that was not
checked: usable() keeps `pass: true` and nothing else. A record with an `experiment` (stage 02's
score_range, where the unsafe form is meant to be wrong) is shown by a figure of its own only.

Interface:
- load(files): the objects of JSONL files, each knowing its file and line ("_where").
- usable(rows): those with pass true. experiment(rows, name): the records of one.
- select(rows, "variant=v1_blas Nq>=1024"): a filter.
- is_stale(row): the variant's source has changed since the row was recorded.
- grouped(rows): rows of one case together.
- add_speedups(rows): row["_speed"] against v0 of the same stage, device and case.
- COLUMNS: column name -> (heading, row -> text, numbers to the right). cell(row, name).
- facts(rows): the machine, revision and command lines behind a table, one line each.
"""
import functools
import json
import operator
import pathlib
import re

import source_hashes

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE_KEYS = ("stage", "device", "dtype", "B", "H", "Hkv", "Nq", "Nk", "d", "mask", "window", "rows",
             "cols", "backward", "threads", "machine", "input", "strides", "seed", "dist",
             "scale", "softcap")


class RowError(Exception):
    """A file or a filter that cannot be used; the text is one sentence."""


def load(files):
    rows = []
    for name in files:
        try:
            text = pathlib.Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise RowError(f"{name}: {error.strerror}") from error
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise RowError(f"{name}:{number}: not JSON: {error.msg}") from error
            if not isinstance(row, dict) or "stage" not in row or "variant" not in row:
                raise RowError(f"{name}:{number}: not a row: it has no stage and variant")
            row["_where"] = f"{name}:{number}"
            rows.append(row)
    return rows


def usable(rows):
    return [row for row in rows if row.get("pass") is True and "experiment" not in row]


def experiment(rows, name):
    """Its records but those that a check refused; pass is null where failing is the point."""
    return [row for row in rows if row.get("experiment") == name and row.get("pass") is not False]


OPERATORS = {"=": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge,
             "<": operator.lt, ">": operator.gt}


def select(rows, text):
    """Rows for which every `field<op>value` of the text holds; a|b|c is any of them. N is Nq."""
    for term in text.split():
        parts = re.fullmatch(r"(\w+)(!=|<=|>=|=|<|>)(.*)", term)
        if not parts:
            raise RowError(f"filter '{term}': expected field=value, with = != < <= > or >=")
        field, op, wanted = parts.groups()
        field = "Nq" if field == "N" else field
        rows = [row for row in rows if term_holds(row.get(field), op, wanted)]
    return rows


def term_holds(value, op, wanted):
    if op in ("=", "!="):
        same = any(same_value(value, w) for w in wanted.split("|"))
        return same == (op == "=")
    try:
        return value is not None and OPERATORS[op](float(value), float(wanted))
    except (TypeError, ValueError):
        return False


def same_value(value, wanted):
    if isinstance(value, bool) or value is None:
        return json.dumps(value) == wanted
    if isinstance(value, (int, float)):
        try:
            return float(value) == float(wanted)
        except ValueError:
            return False
    if isinstance(value, list):
        return ",".join(str(v) for v in value) == wanted
    return str(value) == wanted


@functools.lru_cache(maxsize=None)
def hashes_now(root):
    return source_hashes.variant_hashes(pathlib.Path(root))


def is_stale(row, root=ROOT):
    """True when the source of this row's variant is not the one it was measured on."""
    for (folder, variant), digest in hashes_now(str(root)).items():
        if folder.split("_", 1)[1].startswith(row["stage"]) and variant == row["variant"]:
            return row.get("sha256") != digest
    return True  # no such source any more


def case_of(row):
    return tuple(json.dumps(row.get(key)) for key in CASE_KEYS)


def grouped(rows):
    """The same rows, those of one case together, cases in the order of their first row."""
    order = {}
    for row in rows:
        order.setdefault(case_of(row), len(order))
    return sorted(rows, key=lambda row: order[case_of(row)])


def add_speedups(rows):
    """Speed against the first variant of the stage (v0_...) on the same device and case."""
    base = {case_of(r): time_ms(r) for r in rows if r["variant"].startswith("v0_")}
    for row in rows:
        first, mine = base.get(case_of(row)), time_ms(row)
        row["_speed"] = first / mine if first and mine else None
    return rows


def time_ms(row):
    """Median milliseconds; with --backward of both passes, which is what flops counts too."""
    both = [row.get("ms_med")] + ([row.get("ms_backward_med")] if row.get("backward") else [])
    return sum(both) if all(both) else None


def gflops(row):
    if not time_ms(row) or not row.get("flops"):
        return None
    return row["flops"] / time_ms(row) / 1e6


def share(row):
    """Fraction of this machine's sgemm rate; a CPU figure only."""
    rate, mine = row.get("sgemm_gflops"), gflops(row)
    return mine / rate if rate and mine and row.get("device") == "cpu" else None


def gbytes_per_s(row):
    if not time_ms(row) or not row.get("hbm_bytes_model"):
        return None
    return row["hbm_bytes_model"] / time_ms(row) / 1e6


def share_of_copy(row):
    """Fraction of the device's copy rate, measured in the same run."""
    rate, mine = row.get("copy_gbps"), gbytes_per_s(row)
    return mine / rate if rate and mine else None


def number(value, digits=3):
    """Three significant digits without exponent: 0.0123, 1.23, 12.3, 1234."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if not abs(value) < 1e15:
        return str(value)
    decimals = max(0, digits - 1 - int(f"{abs(value):e}".split("e")[1]))
    return f"{value:.{decimals}f}"


def size(value):
    """Bytes in binary units."""
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number(value)} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1024
    return f"{number(value)} TiB"


def case_text(row):
    if row.get("rows"):
        return f"{row['rows']} x {row['cols']}"
    text = f"B={row.get('B')} H={row.get('H')}"
    if row.get("Hkv") != row.get("H"):
        text += f"/{row.get('Hkv')}"
    text += (f" N={row.get('Nq')}" if row.get("Nq") == row.get("Nk")
             else f" Nq={row.get('Nq')} Nk={row.get('Nk')}")
    text += f" d={row.get('d')}"
    if row.get("mask") not in (None, "none"):
        text += f" {row['mask']}"
    window = tuple(row.get("window") or ())
    if window not in ((), (-1, -1)) and "causal" not in str(row.get("mask")):
        text += f" window {row['window'][0]},{row['window'][1]}"
    if row.get("input") == "bundled":
        text += " bundled"
    return text + (" backward" if row.get("backward") else "")


def percent(value):
    return "-" if value is None else f"{value:.0%}"


def of(key, other):
    """One number of a row as a percentage of another."""
    return lambda r: percent(r[key] / r[other] if r.get(key) and r.get(other) else None)


def tile_text(row):
    return f"{row['tile_rows']} x {row['tile_keys']}" if row.get("tile_rows") else "-"


def bytes_of(key):
    return lambda r: size(r.get(key))


def plain(key):
    return lambda row: "-" if row.get(key) is None else str(row[key])


def counter(name):
    """How busy a unit was, of what it could do: Nsight Compute's percentages are fractions here."""
    def text(row):
        value = (row.get("counters") or {}).get(name)
        return percent(None if value is None else value / 100)
    return text


def top_stalls(row):
    """The two reasons for which most warps wait, with how many do for each instruction issued."""
    stalls = (row.get("counters") or {}).get("stalls") or {}
    first = sorted(stalls.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{name} {number(value, 2)}" for name, value in first) or "-"


COLUMNS = {
    "stage": ("stage", plain("stage"), False),
    "variant": ("variant", plain("variant"), False),
    "device": ("device", plain("device"), False),
    "dtype": ("dtype", plain("dtype"), False),
    "case": ("case", case_text, False),
    "B": ("B", plain("B"), True),
    "H": ("H", plain("H"), True),
    "N": ("N", plain("Nq"), True),
    "d": ("d", plain("d"), True),
    "mask": ("mask", plain("mask"), False),
    "rows": ("rows", plain("rows"), True),
    "cols": ("columns", plain("cols"), True),
    "accesses": ("accesses per element", lambda r: number(r.get("accesses")), True),
    "threads": ("threads", plain("threads"), True),
    "ms_med": ("ms", lambda r: number(time_ms(r)), True),
    "ncu_ms": ("ms (ncu)", lambda r: number(r.get("ncu_ms")), True),
    "splits": ("blocks a row tile", plain("key_splits"), True),
    "bound_ratio": ("error / bound", lambda r: number(r.get("bound_ratio"), 2), True),
    "flash_ratio": ("error / plain", lambda r: number(r.get("flash_ratio"), 2), True),
    "gflops": ("GFLOP/s", lambda r: number(gflops(r)), True),
    "tflops": ("TFLOP/s", lambda r: number(gflops(r) and gflops(r) / 1e3), True),
    "peer": ("peer", plain("peer"), False),
    "peer_tflops": ("peer's TFLOP/s", lambda r: number(r.get("peer_gflops") and
                                                       r["peer_gflops"] / 1e3), True),
    "of_peer": ("of peer", lambda r: number(gflops(r) / r["peer_gflops"])
                if r.get("peer_gflops") and gflops(r) else "-", True),
    "share": ("of sgemm", lambda r: percent(share(r)), True),
    "ratio": ("of sgemm 2048^3", lambda r: number(r.get("ratio_med")), True),
    "scaling": ("speed-up, of sgemm's", lambda r: number(r.get("scaling_med")), True),
    "floor": ("floor", lambda r: number(r.get("floor"), 2), True),
    "aim": ("aim", lambda r: number(r.get("aim"), 2), True),
    "gbytes_per_s": ("GB/s", lambda r: number(gbytes_per_s(r)), True),
    "share_of_copy": ("of copy", lambda r: percent(share_of_copy(r)), True),
    "hbm_bytes_model": ("traffic (model)", lambda r: size(r.get("hbm_bytes_model")), True),
    "compulsory_bytes_model": ("everything once (model)",
                               lambda r: size(r.get("compulsory_bytes_model")), True),
    "l2_request_bytes": ("L2 requests (ncu)", lambda r: size(r.get("l2_request_bytes")), True),
    "dram_bytes": ("HBM (ncu)", lambda r: size(r.get("dram_bytes")), True),
    "tensor": ("tensor cores", counter("tensor"), True),
    "fma": ("f32 units", counter("fma"), True),
    "xu": ("exp units", counter("xu"), True),
    "issue": ("issue slots", counter("issue"), True),
    "shared": ("shared memory", counter("shared"), True),
    "dram": ("HBM", counter("dram"), True),
    "stalls": ("warps waiting, for each instruction issued", top_stalls, False),
    "sm_bytes": ("at the SMs (ncu)", bytes_of("sm_bytes"), True),
    "sm_of_model": ("SMs / model", of("sm_bytes", "hbm_bytes_model"), True),
    "l2_of_model": ("L2 / model", of("l2_request_bytes", "hbm_bytes_model"), True),
    "dram_of_model": ("HBM / model", of("dram_bytes", "hbm_bytes_model"), True),
    "sram": ("M", plain("sram_elements"), True),
    "tile": ("tile", tile_text, True),
    "fits": ("has to fit", plain("fast_elements"), True),
    "loads": ("loads", plain("loads"), True),
    "stores": ("stores", plain("stores"), True),
    "traffic": ("counted", bytes_of("traffic_bytes"), True),
    "peak_bytes": ("peak memory", lambda r: size(r.get("peak_bytes")), True),
    "speed": ("speed against v0",
              lambda r: "-" if r.get("_speed") is None else f"{number(r['_speed'])}x", True),
}
DEMO_COLUMNS = ["stage", "variant", "device", "case", "bound_ratio", "ms_med", "gflops", "share",
                "hbm_bytes_model", "peak_bytes", "speed"]


def cell(row, column):
    if column not in COLUMNS:
        raise RowError(f"no column '{column}'; there are: {' '.join(COLUMNS)}")
    return COLUMNS[column][1](row)


def facts(rows):
    """The distinct machines and command lines behind some rows, each one line of text."""
    machines, commands = [], []
    for row in rows:
        on_cpu = row.get("device") == "cpu"
        parts = [row.get("cpu" if on_cpu else "gpu"),
                 f"{row['threads']} threads" if on_cpu and row.get("threads") else "",
                 f"revision {row['revision']}" if row.get("revision") else "",
                 str(row.get("date", ""))[:10]]
        text = "; ".join(str(part) for part in parts if part)
        if text and text not in machines:
            machines.append(text)
        if row.get("command") and row["command"] not in commands:
            commands.append(row["command"])
    return machines, commands
