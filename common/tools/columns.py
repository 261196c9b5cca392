# SPDX-License-Identifier: MIT
"""columns.py: what the tables show of a recorded run (rows.py), as text.

Interface:
- COLUMNS: column name -> (heading, row -> text). WORDS: those that are no numbers, which stand to
  the left. DEMO_COLUMNS: where none are asked for. TERMINAL_COLUMNS with SHORT_HEADS: in 100
  columns of a terminal.
- cell(row, name). case_text(row): sizes and mask in a few words. number, size, percent.
"""

import rows as recorded


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


def tera(gflops):
    return number(gflops and gflops / 1e3)


def scientific(value):
    """For numbers whose size is what matters: 3.9e-05."""
    return "-" if value is None else f"{value:.1e}"


def size(value):
    """Bytes in binary units."""
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number(value)} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1024
    return f"{number(value)} TiB"


def option_text(row):
    """What only stage 05 knows, as far as it was asked for."""
    text = ""
    if row.get("tensor_layout") == "thd":
        text += f" {row.get('sequences')} sequences"
    if row.get("pack") in ("q_kv", "qkv"):
        text += f" packed {row['pack']}"
    if row.get("temperature") not in (None, 1):
        text += f" temperature {number(row['temperature'])}"
    if row.get("clip") not in (None, [0, 1]):
        text += f" clip {row['clip'][0]:g},{row['clip'][1]:g}"
    if row.get("dropout"):
        text += f" dropout {number(row['dropout'])}"
    if row.get("qk_norm"):
        text += f" QK norm {row['qk_norm']}"
    return text


def rank_text(row):
    """Stage 06: who has the tokens."""
    if not row.get("transport"):
        return ""
    text = f" {row['ranks']} ranks" if row["ranks"] != 1 else " 1 rank"
    text += f" {row['layout']} {row['transport']}"
    if row.get("link"):
        text += f" {row['link']}"
    if (row.get("nodes") or 1) > 1:
        text += f" {row['nodes']} nodes"
    return text + (" bf16 partials" if row.get("partials") == "bf16" else "")


def most(key):
    """Of the rank that sends or holds most."""
    return lambda row: size(max(row[key]) if row.get(key) else None)


def hidden_text(row):
    """Of the time of messages, covered by computation, in the forward and the backward pass."""
    shares = [row.get("hidden"), row.get("hidden_backward") if row.get("backward") else None]
    return " / ".join(percent(share) for share in shares if share is not None) or "-"


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
    left, right = row.get("window") or (-1, -1)
    if "causal" in str(row.get("mask")):  # which makes right 0
        text += f" window {left}" if left >= 0 else ""
    elif (left, right) != (-1, -1):
        text += f" window {left},{right}"
    text += option_text(row) + rank_text(row)
    if str(row.get("input")).startswith("bundled"):
        text += " bundled"
    return text + (" backward" if row.get("backward") else "")


def percent(value):
    return "-" if value is None else f"{value:.0%}"


def plain(value):
    return "-" if value is None else str(value)


def of(value, form=plain):
    """A field of the row, or what a function makes of it, as text."""
    return lambda row: form(value(row) if callable(value) else row.get(value))


def of_rank(gflops):
    """TFLOP/s of one rank, from the GFLOP/s of all."""
    return of(lambda row: gflops(row) and gflops(row) / row["ranks"], tera)


def error_of(array):
    return of(lambda row: (row.get("errors") or {}).get(array), scientific)


def online_steps(row):
    """How often an online variant rounds each row of O, where every row sees all keys."""
    online = row.get("variant") in ("v1_online_block", "v0_online_block") and row.get("block_kv")
    if not online or row.get("mask") != "none" or row.get("window") not in (None, [-1, -1]):
        return "-"
    return str(-(-row["Nk"] // row["block_kv"]))


def online_keys(row):
    return "-" if online_steps(row) == "-" else str(row["block_kv"])


def window_tiles(row):
    """Of all tiles of the score matrix: skipped, masked and clean."""
    tiles = row.get("tiles") or {}
    return f"{tiles['skipped']} / {tiles['masked']} / {tiles['clean']}" if tiles else "-"


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
    **{name: (name, of(name)) for name in ("stage", "variant", "device", "dtype", "B", "H", "d",
                                           "mask", "rows", "threads", "peer", "ranks", "layout",
                                           "link", "partials")},
    "case": ("case", case_text),
    "Hkv": ("kv heads", of("Hkv")),
    "N": ("N", of("Nq")),
    "cols": ("columns", of("cols")),
    "accesses": ("accesses per element", of("accesses", number)),
    "deterministic": ("in a fixed order",
                      lambda row: {True: "yes", False: "no"}.get(row.get("deterministic"), "-")),
    "ms_med": ("ms", of(recorded.time_ms, number)),
    "ms_backward": ("backward, ms", of("ms_backward_med", number)),
    "ncu_ms": ("ms (ncu)", of("ncu_ms", number)),
    "splits": ("blocks a row tile", of("key_splits")),
    "bound_ratio": ("error / bound", of("bound_ratio", lambda ratio: number(ratio, 2))),
    "gflops": ("GFLOP/s", of(recorded.gflops, number)),
    "gflop": ("GFLOP", of("flops", lambda flops: number(flops and flops / 1e9))),
    "tflops": ("TFLOP/s", of(recorded.gflops, tera)),
    "peer_tflops": ("peer's TFLOP/s", of("peer_gflops", tera)),
    "of_peer": ("of peer", of(recorded.of_peer, number)),
    "forward_tflops": ("forward, TFLOP/s", of(recorded.forward_gflops, tera)),
    "backward_tflops": ("backward, TFLOP/s", of(recorded.backward_gflops, tera)),
    "of_peer_backward": ("backward, of peer", of(recorded.of_peer_backward, number)),
    "share": ("of sgemm", of(recorded.share, percent)),
    "gbytes_per_s": ("GB/s", of(recorded.gbytes_per_s, number)),
    "share_of_copy": ("of copy", of(recorded.share_of_copy, percent)),
    "hbm_bytes_model": ("traffic (model)", of("hbm_bytes_model", size)),
    "compulsory_bytes_model": ("everything once (model)", of("compulsory_bytes_model", size)),
    "l2_request_bytes": ("L2 requests (ncu)", of("l2_request_bytes", size)),
    "dram_bytes": ("HBM (ncu)", of("dram_bytes", size)),
    "sm_bytes": ("at the SMs (ncu)", of("sm_bytes", size)),
    "tensor": ("tensor cores", counter("tensor")),
    "fma": ("f32 units", counter("fma")),
    "xu": ("exp units", counter("xu")),
    "issue": ("issue slots", counter("issue")),
    "shared": ("shared memory", counter("shared")),
    "dram": ("HBM", counter("dram")),
    "stalls": ("warps waiting, for each instruction issued", top_stalls),
    "loss_scale": ("loss times", of("loss_scale")),
    "dO_zero": ("dO made zero", of("dO_zero", percent)),
    "dQ_error": ("dQ rows off by (median)", of("dQ_error_median", scientific)),
    "dQ_lost": ("dQ rows lost", of("dQ_rows_lost", percent)),
    "dK_lost": ("dK rows lost", of("dK_rows_lost", percent)),
    "dV_lost": ("dV rows lost", of("dV_rows_lost", percent)),
    "tiles": ("tiles skipped / masked / full", window_tiles),
    "block_kv": ("keys a step", online_keys),
    "steps": ("steps", online_steps),
    "o_error": ("largest error of O", of("o_error", scientific)),
    "sent": ("sent by a rank, forward", most("sent_bytes")),
    "sent_backward": ("backward", most("sent_bytes_backward")),
    "rank_peak": ("most that a rank holds", most("rank_peak_bytes")),
    "rank_peak_model": ("by the model", most("rank_peak_model_bytes")),
    "hidden": ("communication hidden", hidden_text),
    "rank_tokens": ("tokens of a GPU",
                    of(lambda row: row.get("ranks") and row["Nq"] // row["ranks"])),
    "rank_forward_tflops": ("forward, TFLOP/s of a GPU", of_rank(recorded.forward_gflops)),
    "rank_tflops": ("both passes", of_rank(recorded.gflops)),
    "rank_peer_tflops": ("peer's forward", of_rank(lambda row: row.get("peer_gflops"))),
    "rank_peer_both_tflops": ("peer's both passes",
                              of_rank(lambda row: row.get("peer_both_gflops"))),
    "of_peer_both": ("both, of peer", of(recorded.of_peer_both, number)),
    "efficiency": ("forward, of the kernel alone", of("efficiency", number)),
    "efficiency_both": ("both passes, of the kernel alone", of("efficiency_both", number)),
    "balance": ("a ring's limit", of("balance", number)),
    "O_error": ("error of O", error_of("O")),
    "lse_error": ("error of lse", error_of("lse")),
    "dQ_error_max": ("error of dQ", error_of("dQ")),
    "dK_error_max": ("error of dK", error_of("dK")),
    "dV_error_max": ("error of dV", error_of("dV")),
    "peak_bytes": ("peak memory", of("peak_bytes", size)),
    "speed": ("speed against v0",
              of("_speed", lambda speed: "-" if speed is None else f"{number(speed)}x")),
}
WORDS = {"stage", "variant", "device", "dtype", "case", "mask", "deterministic", "peer", "stalls",
         "layout", "link", "partials"}
DEMO_COLUMNS = ["stage", "variant", "device", "case", "bound_ratio", "ms_med", "gflops", "share",
                "hbm_bytes_model", "peak_bytes", "speed"]

TERMINAL_COLUMNS = ["variant", "bound_ratio", "ms_med", "gflops", "share", "hbm_bytes_model",
                    "peak_bytes", "speed"]
SHORT_HEADS = {"hbm_bytes_model": "traffic", "peak_bytes": "memory", "speed": "times v0",
               "rank_tflops": "TFLOP/s a GPU", "efficiency_both": "of its kernel alone"}


def cell(row, column):
    if column not in COLUMNS:
        raise recorded.RowError(f"no column '{column}'; there are: {' '.join(COLUMNS)}")
    return COLUMNS[column][1](row)
