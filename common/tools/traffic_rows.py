#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""traffic_rows.py: what Nsight Compute counted, as rows beside what the model says.

    traffic_rows.py --metrics QUERY.txt             the counters below that this chip has, for
                                                    `ncu --metrics`; QUERY.txt: ncu --query-metrics
    traffic_rows.py CHECKED.jsonl NCU.csv [--rest VARIANT]      rows on stdout

CHECKED.jsonl comes from a run of the same cases without ncu: it says that the outputs are right,
which sources they came from and what the model expects. NCU.csv is `ncu --csv --page raw
--print-units base` of the second run, one line a kernel. A kernel belongs to the variant in whose
source file it stands; others (a library's) to the variant before it, or to --rest.

Interface:
- counters(text): the ncu metrics to ask for.
- read_kernels(text): one dict a kernel.
- group(kernels, owners, rest): [(variant, kernels of one run)] in order.
- join(checked, groups): rows of docs/json_schema.md, "Measured traffic".
"""
import argparse
import csv
import json
import pathlib
import re

import rows as recorded
import tool
from source_hashes import LIBRARY

SECTOR = 32  # bytes

# Summed over the kernels of a variant.
SUMS = {"dram_read_bytes": "dram__bytes_read.sum", "dram_write_bytes": "dram__bytes_write.sum",
        "l2_request_sectors": "lts__t_sectors_srcunit_tex.sum",
        "l2_read_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
        "l2_write_sectors": "lts__t_sectors_srcunit_tex_op_write.sum",
        "sm_read_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
        "sm_write_bytes": "l1tex__m_l1tex2xbar_write_bytes.sum",
        "l1_load_bytes": "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum",
        "ncu_ns": "gpu__time_duration.sum"}
# Of the kernel that takes longest: how busy each unit is, in percent of what it could do.
PERCENT = {"tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
           "fma": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
           "fmaheavy": "sm__pipe_fmaheavy_cycles_active.avg.pct_of_peak_sustained_active",
           "alu": "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
           "xu": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
           "lsu": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
           "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
           "shared": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
           "l2": "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
           "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
           "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
           "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
           "l1_hit": "l1tex__t_sector_hit_rate.pct", "l2_hit": "lts__t_sector_hit_rate.pct"}
OTHERS = {"bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
          "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
          "instructions": "smsp__inst_executed.sum",
          "read_merging": "lrc__average_xbar2gpc_sectors_op_read.ratio",
          "registers": "launch__registers_per_thread",
          "shared_bytes": "launch__shared_mem_per_block"}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = ("barrier", "long_scoreboard", "short_scoreboard", "mio_throttle", "lg_throttle",
          "math_pipe_throttle", "wait", "not_selected", "no_instruction", "dispatch_stall",
          "membar", "sleeping", "branch_resolving", "imc_miss", "drain")
LEFT_OUT = ("ms", "ms_med", "ms_backward", "ms_backward_med", "gflops", "l2_flushed", "_where")


def counters(text):
    """Of all counters above those whose base name `ncu --query-metrics` lists; launch__... are
    known without a counter."""
    have = {line.split()[0] for line in tool.lines_of(text) if "__" in line.split(" ")[0]}
    wanted = [*SUMS.values(), *PERCENT.values(), *OTHERS.values(), *map(STALL.format, STALLS)]
    return [name for name in wanted if name.split(".")[0] in have or name.startswith("launch__")]


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def read_kernels(text):
    lines = tool.lines_of(text)
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise recorded.RowError("no line of ncu's CSV begins with \"ID\": " + " ".join(lines[-3:]))
    rows = csv.DictReader(lines[first:])
    return [row for row in rows if row["ID"]]  # the second line holds units and no ID


def kernel_owners(root, folder):
    """{kernel: variant} from the sources; a helper file v5_more.cuh belongs to v5_idea when that is
    the only variant with its number."""
    owners = {}
    kernels = r"__global__[^;{]*?\b(\w+_kernel)\s*\("
    for path in sorted((root / LIBRARY.get(folder, "no library") / "cuda").glob("*.cu*")):
        found = re.findall(kernels, path.read_text("utf-8"))
        owners.update((kernel, "library") for kernel in found)
    names = [path.stem for path in sorted((root / folder / "cuda").glob("v*.cu"))]
    for path in sorted((root / folder / "cuda").glob("v*.cu*")):
        mine = [name for name in names if name == path.stem] or \
               [name for name in names if name.split("_")[0] == path.stem.split("_")[0]]
        for kernel in re.findall(kernels, path.read_text("utf-8")):
            owners[kernel] = mine[0]
    return owners


def owner(kernel, owners):
    words = re.findall(r"\w+", kernel["Kernel Name"])
    return next((word for word in words if word in owners), None)


def runs_of(kernels, owners):
    """The kernels of one variant, cut into its runs. Each run launches the same kernels, so they
    are cut evenly, and a kernel of the variant's own file must be once in each piece."""
    own = [owner(kernel, owners) for kernel in kernels]
    names = {name for name in own if name}
    runs = max((own.count(name) for name in names), default=1)
    length = len(kernels) // runs
    pieces = [kernels[n * length:(n + 1) * length] for n in range(runs)]
    for piece in pieces:
        if sorted(name for kernel in piece if (name := owner(kernel, owners))) != sorted(names):
            raise recorded.RowError(f"{len(kernels)} kernels in a row are not {runs} equal runs of "
                               f"{' '.join(sorted(names))}")
    return pieces


def group(kernels, owners, rest=None):
    together = []
    for kernel in kernels:
        name = owner(kernel, owners)
        variant = owners[name] if name else rest or (together[-1][0] if together else None)
        if variant is None:
            raise recorded.RowError(f"no variant has the kernel {kernel['Kernel Name']}")
        if not together or together[-1][0] != variant:
            together.append((variant, []))
        together[-1][1].append(kernel)
    return [(variant, run) for variant, mine in together for run in runs_of(mine, owners)]


def measured(kernels):
    row = {}
    for key, metric in SUMS.items():
        values = [number(kernel.get(metric) or "") for kernel in kernels]
        row[key] = sum(values) if None not in values else None
    for key in ("l2_request", "l2_read", "l2_write"):
        sectors = row.pop(f"{key}_sectors")
        row[f"{key}_bytes"] = None if sectors is None else sectors * SECTOR
    for key in ("dram", "sm"):
        both = (row[f"{key}_read_bytes"], row[f"{key}_write_bytes"])
        row[f"{key}_bytes"] = None if None in both else sum(both)
    row["ncu_ms"] = row["ncu_ns"] and row["ncu_ns"] / 1e6
    del row["ncu_ns"]
    row["kernels"] = len(kernels)
    longest = max(kernels, key=lambda k: number(k.get(SUMS["ncu_ns"]) or "") or 0)
    values = {key: number(longest.get(metric) or "")
              for key, metric in (*PERCENT.items(), *OTHERS.items())}
    values["stalls"] = {name: value for name in STALLS
                        if (value := number(longest.get(STALL.format(name)) or "")) is not None}
    row["counters"] = {key: value for key, value in values.items() if value is not None}
    return row


def join(checked, groups):
    """The n-th group of a variant belongs to its n-th checked row."""
    waiting = {}
    for row in checked:
        waiting.setdefault(row["variant"], []).append(row)
    rows = []
    for variant, kernels in groups:
        if not waiting.get(variant):
            raise recorded.RowError(f"ncu saw {variant} more often than the checked rows have it")
        row = waiting[variant].pop(0)
        rows.append({**{k: v for k, v in row.items() if k not in LEFT_OUT}, **measured(kernels)})
    left = [name for name, more in waiting.items() if more]
    if left:
        raise recorded.RowError(f"ncu did not see all runs of {' '.join(left)}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--rest")
    args = parser.parse_args()
    text = pathlib.Path(args.files[-1]).read_text(encoding="utf-8")
    if args.metrics:
        print(",".join(counters(text)))
        return 0
    checked = recorded.load(args.files[:1])
    if not checked:
        raise recorded.RowError("no checked rows")
    folder = next((path.name for path in recorded.ROOT.glob("0?_*")
                   if path.name.split("_", 1)[1].startswith(checked[0]["stage"])), None)
    if not folder:
        raise recorded.RowError(f"no stage '{checked[0]['stage']}'")
    groups = group(read_kernels(text), kernel_owners(recorded.ROOT, folder), args.rest)
    for row in join(checked, groups):
        print(json.dumps(row, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    tool.end(main, recorded.RowError, *tool.MALFORMED)
