# SPDX-License-Identifier: MIT
"""rows.py: recorded runs (the --json files of all programs) for the table, docs and plot tools.

Every tool reads rows through this module, so that none of them can show a row that was not
checked: usable() keeps `pass: true` and nothing else. A record with an `experiment` (stage 02's
score_range, where the unsafe form is meant to be wrong) is in no table.

Interface:
- load(files): the objects of JSONL files, each knowing its file and line ("_where").
- usable(rows): those with pass true.
- select(rows, "variant=v1_blas Nq>=1024"): a filter.
- is_stale(row): the variant's sources have changed since the row was recorded.
- grouped(rows): rows of one case together. ladder_order, rung_order: keys to sort rows by.
- add_speedups(rows): row["_speed"] against v0 of the same stage, device and case.
- gflops, forward_gflops, backward_gflops, share, gbytes_per_s, share_of_copy, of_peer,
  of_peer_backward, of_peer_both: rates of a row, None where it has none.
- facts(rows): the machine, revision and command lines behind a table, one line each.
"""
import functools
import json
import operator
import pathlib
import re

import source_hashes

ROOT = pathlib.Path(__file__).resolve().parents[2]
LADDER = ["naive", "tiled_softmax", "flash_forward", "flash_backward", "sliding_window",
          "ring_burst"]
CASE_KEYS = ("stage", "device", "dtype", "B", "H", "Hkv", "Nq", "Nk", "d", "mask", "window", "rows",
             "cols", "backward", "threads", "machine", "input", "strides", "seed", "dist",
             "scale", "softcap", "tensor_layout", "pack", "sequences", "temperature", "clip",
             "dropout", "qk_norm", "block_q", "block_kv", "order", "ranks", "transport", "layout",
             "nodes", "link", "partials")


# What the tools show of a row; null is accepted for all of it.
KINDS = {
    "a text": (str, "stage variant device dtype mask method transport layout link partials order "
               "pack input strides dist tensor_layout machine cpu gpu peer revision date command "
               "sha256 sources_sha256 experiment"),
    "a number": ((int, float), "B H Hkv Nq Nk d ranks nodes threads rows cols tokens free_from "
                 "ms_med ms_backward_med ncu_ms compute_ms flops sgemm_gflops gflops copy_gbps "
                 "peer_gflops peer_backward_gflops peer_both_gflops hbm_bytes_model peak_bytes "
                 "ram_bytes traffic_bytes l2_request_bytes dram_bytes sm_bytes link_bytes "
                 "compulsory_bytes_model sram_elements fast_elements tile_rows tile_keys block_q "
                 "block_kv accesses score_max error nonfinite bound_ratio flash_ratio o_error "
                 "hidden hidden_backward temperature softcap dropout scale loss_scale sequences"),
    "a list": (list, "window clip ms_backward alone_ms alone_ms_backward"),
    "an object": (dict, "errors tiles counters"),
}


class RowError(Exception):
    """A file or a filter that cannot be used; the text is one sentence."""


def check_kinds(row, where):
    for accepted, (kind, keys) in KINDS.items():
        for key in keys.split():
            if row.get(key) is not None and not isinstance(row[key], kind):
                raise RowError(f"{where}: {key}: found {json.dumps(row[key])[:40]}, accepted is "
                               f"{accepted}")


def load(files):
    rows = []
    for name in files:
        try:
            text = pathlib.Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", "not UTF-8")
            raise RowError(f"{name}: {why}") from error
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise RowError(f"{name}:{number}: not JSON: {error}") from error
            if not isinstance(row, dict) or None in (row.get("stage"), row.get("variant")):
                raise RowError(f"{name}:{number}: not a row: it has no stage and variant")
            check_kinds(row, f"{name}:{number}")
            row["_where"] = f"{name}:{number}"
            rows.append(row)
    return rows


def usable(rows):
    """Right, of no experiment, and of a machine: a model has no times (docs/simt_limits.md)."""
    return [row for row in rows if row.get("pass") is True and "experiment" not in row
            and row.get("device") != "simt"]


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
        if op not in ("=", "!="):
            try:
                float(wanted)
            except ValueError:
                raise RowError(f"filter '{term}': found '{wanted}', accepted is a number behind "
                               f"{op}") from None
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
    return source_hashes.sources_hashes(pathlib.Path(root))


def is_stale(row, root=ROOT):
    """True when the sources of this row's variant are not those it was measured on, or are gone."""
    for (folder, variant), sources in hashes_now(str(root)).items():
        if folder.split("_", 1)[1].startswith(row["stage"]) and \
                variant == source_hashes.variant_key(row["variant"], row.get("device")):
            return row.get("sources_sha256") != sources
    return True


def case_of(row):
    return tuple(json.dumps(row.get(key)) for key in CASE_KEYS)


def rung_order(variant):
    """Sorts v2 before v10, and what has no number, a library or a method, behind the rungs."""
    number = re.match(r"v(\d+)_", variant)
    return (int(number[1]) if number else 999, variant)


def ladder_order(row):
    """Sorts rows as a reader climbs: by stage, then by rung."""
    stage = LADDER.index(row["stage"]) if row["stage"] in LADDER else len(LADDER)
    return (stage, rung_order(row["variant"]))


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
    """Median milliseconds of what flops counts too: with --backward of both passes, in stage 04 of
    the backward pass alone."""
    if row["stage"] == "flash_backward":
        return row.get("ms_backward_med")
    both = [row.get("ms_med")] + ([row.get("ms_backward_med")] if row.get("backward") else [])
    return sum(both) if all(both) else None


def gflops(row):
    if not time_ms(row) or not row.get("flops"):
        return None
    return row["flops"] / time_ms(row) / 1e6


def share(row):
    """Fraction of this machine's sgemm rate; a CPU figure only."""
    return ratio(gflops(row), row.get("sgemm_gflops")) if row.get("device") == "cpu" else None


def gbytes_per_s(row):
    if not time_ms(row) or not row.get("hbm_bytes_model"):
        return None
    return row["hbm_bytes_model"] / time_ms(row) / 1e6


def share_of_copy(row):
    """Fraction of the device's copy rate, measured in the same run."""
    return ratio(gbytes_per_s(row), row.get("copy_gbps"))


def forward_gflops(row):
    """The rate of the forward pass: 2 of the 7 products of a row with --backward."""
    ms, of_pass = row.get("ms_med"), 2 / 7 if row.get("backward") else 1
    return row["flops"] * of_pass / ms / 1e6 if ms and row.get("flops") else None


def backward_gflops(row):
    ms = row.get("ms_backward_med") if row.get("backward") else None
    return row["flops"] * 5 / 7 / ms / 1e6 if ms and row.get("flops") else None


def ratio(mine, peer):
    return mine / peer if mine and peer else None


def of_peer(row):
    """Of stage 05's and 06's rows with both passes the forward's; of_peer_backward has stage 05's
    other one, of_peer_both stage 06's both."""
    forward = row["stage"] in ("sliding_window", "ring_burst")
    return ratio(forward_gflops(row) if forward else gflops(row), row.get("peer_gflops"))


def of_peer_backward(row):
    return ratio(backward_gflops(row), row.get("peer_backward_gflops"))


def of_peer_both(row):
    return ratio(gflops(row), row.get("peer_both_gflops"))


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
