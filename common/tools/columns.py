# SPDX-License-Identifier: MIT
"""columns.py: what the tables show of a recorded run (rows.py), as text.

Interface:
- COLUMNS: column name -> (heading, row -> text, numbers to the right). DEMO_COLUMNS: in Markdown;
  TERMINAL_COLUMNS with SHORT_HEADS: in 100 columns of a terminal.
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


def most_sent(key):
    """Payload of one pass, of the rank that sends most."""
    return lambda row: size(max(row[key]) if row.get(key) else None)


def hidden_text(row):
    """Of the time of messages, covered by computation, in the forward and the backward pass."""
    shares = [row.get("hidden"), row.get("hidden_backward") if row.get("backward") else None]
    return " / ".join(percent(share) for share in shares if share is not None) or "-"


def error_of(array):
    return lambda row: scientific((row.get("errors") or {}).get(array))


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


def of_rank(gflops):
    """TFLOP/s of one rank, from the GFLOP/s of all."""
    def text(row):
        rate = gflops(row)
        return number(rate and rate / row["ranks"] / 1e3)
    return text


def of(key, other):
    """One number of a row as a percentage of another."""
    return lambda r: percent(r[key] / r[other] if r.get(key) and r.get(other) else None)


def tile_text(row):
    return f"{row['tile_rows']} x {row['tile_keys']}" if row.get("tile_rows") else "-"


def online_steps(row):
    """How often an online variant rounds each row of O, where every row sees all keys."""
    online = row.get("variant") in ("v1_online_block", "v0_online_block") and row.get("block_kv")
    if not online or row.get("mask") != "none" or row.get("window") not in (None, [-1, -1]):
        return "-"
    return str(-(-row["Nk"] // row["block_kv"]))


def online_keys(row):
    return "-" if online_steps(row) == "-" else plain("block_kv")(row)


def window_tiles(row):
    """Of all tiles of the score matrix: skipped, masked and clean."""
    tiles = row.get("tiles") or {}
    return f"{tiles['skipped']} / {tiles['masked']} / {tiles['clean']}" if tiles else "-"


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
    "Hkv": ("kv heads", plain("Hkv"), True),
    "N": ("N", plain("Nq"), True),
    "d": ("d", plain("d"), True),
    "mask": ("mask", plain("mask"), False),
    "rows": ("rows", plain("rows"), True),
    "cols": ("columns", plain("cols"), True),
    "accesses": ("accesses per element", lambda r: number(r.get("accesses")), True),
    "threads": ("threads", plain("threads"), True),
    "deterministic": ("in a fixed order",
                      lambda r: {True: "yes", False: "no"}.get(r.get("deterministic"), "-"), False),
    "ms_med": ("ms", lambda r: number(recorded.time_ms(r)), True),
    "ms_backward": ("backward, ms", lambda r: number(r.get("ms_backward_med")), True),
    "ncu_ms": ("ms (ncu)", lambda r: number(r.get("ncu_ms")), True),
    "splits": ("blocks a row tile", plain("key_splits"), True),
    "bound_ratio": ("error / bound", lambda r: number(r.get("bound_ratio"), 2), True),
    "gflops": ("GFLOP/s", lambda r: number(recorded.gflops(r)), True),
    "gflop": ("GFLOP", lambda r: number(r.get("flops") and r["flops"] / 1e9), True),
    "tflops": ("TFLOP/s", lambda r: number(recorded.gflops(r) and recorded.gflops(r) / 1e3), True),
    "peer": ("peer", plain("peer"), False),
    "peer_tflops": ("peer's TFLOP/s",
                    lambda r: number(r.get("peer_gflops") and r["peer_gflops"] / 1e3), True),
    "of_peer": ("of peer", lambda r: number(recorded.of_peer(r)), True),
    "forward_tflops": ("forward, TFLOP/s", lambda r: tera(recorded.pass_gflops(r, False)), True),
    "backward_tflops": ("backward, TFLOP/s", lambda r: tera(recorded.pass_gflops(r, True)), True),
    "peer_backward_tflops": ("peer's backward, TFLOP/s",
                             lambda r: tera(r.get("peer_backward_gflops")), True),
    "of_peer_backward": ("backward, of peer", lambda r: number(recorded.of_peer_backward(r)), True),
    "share": ("of sgemm", lambda r: percent(recorded.share(r)), True),
    "gbytes_per_s": ("GB/s", lambda r: number(recorded.gbytes_per_s(r)), True),
    "share_of_copy": ("of copy", lambda r: percent(recorded.share_of_copy(r)), True),
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
    "loss_scale": ("loss times", plain("loss_scale"), True),
    "dO_zero": ("dO made zero", lambda r: percent(r.get("dO_zero")), True),
    "dQ_error": ("dQ rows off by (median)", lambda r: scientific(r.get("dQ_error_median")), True),
    "dQ_lost": ("dQ rows lost", lambda r: percent(r.get("dQ_rows_lost")), True),
    "dK_lost": ("dK rows lost", lambda r: percent(r.get("dK_rows_lost")), True),
    "dV_lost": ("dV rows lost", lambda r: percent(r.get("dV_rows_lost")), True),
    "sram": ("M", plain("sram_elements"), True),
    "tile": ("tile", tile_text, True),
    "tiles": ("tiles skipped / masked / full", window_tiles, True),
    "block_kv": ("keys a step", online_keys, True),
    "steps": ("steps", online_steps, True),
    "o_error": ("largest error of O", lambda r: scientific(r.get("o_error")), True),
    "ranks": ("ranks", plain("ranks"), True),
    "transport": ("transport", plain("transport"), False),
    "layout": ("layout", plain("layout"), False),
    "nodes": ("nodes", plain("nodes"), True),
    "link": ("link", plain("link"), False),
    "partials": ("partials", plain("partials"), False),
    "sent": ("sent by a rank, forward", most_sent("sent_bytes"), True),
    "sent_backward": ("backward", most_sent("sent_bytes_backward"), True),
    "link_bytes": ("sent by all", bytes_of("link_bytes"), True),
    "rank_peak": ("most that a rank holds", most_sent("rank_peak_bytes"), True),
    "rank_peak_model": ("by the model", most_sent("rank_peak_model_bytes"), True),
    "hidden": ("communication hidden", hidden_text, True),
    "rank_tokens": ("tokens of a GPU",
                    lambda r: str(r["Nq"] // r["ranks"]) if r.get("ranks") else "-", True),
    "rank_forward_tflops": ("forward, TFLOP/s of a GPU",
                            of_rank(lambda r: recorded.pass_gflops(r, False)), True),
    "rank_tflops": ("both passes", of_rank(recorded.gflops), True),
    "rank_peer_tflops": ("peer's forward", of_rank(lambda r: r.get("peer_gflops")), True),
    "rank_peer_both_tflops": ("peer's both passes", of_rank(lambda r: r.get("peer_both_gflops")),
                              True),
    "of_peer_both": ("both, of peer", lambda r: number(recorded.of_peer_both(r)), True),
    "efficiency": ("forward, of the kernel alone", lambda r: number(r.get("efficiency")), True),
    "efficiency_both": ("both passes, of the kernel alone",
                        lambda r: number(r.get("efficiency_both")), True),
    "balance": ("a ring's limit", lambda r: number(r.get("balance")), True),
    "O_error": ("error of O", error_of("O"), True),
    "lse_error": ("error of lse", error_of("lse"), True),
    "dQ_error_max": ("error of dQ", error_of("dQ"), True),
    "dK_error_max": ("error of dK", error_of("dK"), True),
    "dV_error_max": ("error of dV", error_of("dV"), True),
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

TERMINAL_COLUMNS = ["variant", "bound_ratio", "ms_med", "gflops", "share", "hbm_bytes_model",
                    "peak_bytes", "speed"]
SHORT_HEADS = {"hbm_bytes_model": "traffic", "peak_bytes": "memory", "speed": "times v0",
               "rank_tflops": "TFLOP/s a GPU", "efficiency_both": "of its kernel alone"}


def cell(row, column):
    if column not in COLUMNS:
        raise recorded.RowError(f"no column '{column}'; there are: {' '.join(COLUMNS)}")
    return COLUMNS[column][1](row)
