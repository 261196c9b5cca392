#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The counters of the model beside those of a card, for one rung and size.

usage: simt_beside_ncu.py COUNTS.txt NCU.csv KERNEL [NAME_IN_COUNTS]

COUNTS.txt: what `./ladder simt 03 RUNG count --lines FLAGS` prints. NCU.csv: the same rung and
flags under  ncu --csv --page raw --print-units base --metrics METRICS --log-file NCU.csv
build/.../flash_forward --device cuda --variant RUNG --no-check --quiet FLAGS,  with the metrics of
METRICS below. KERNEL: the kernel's name as far as `<`; NAME_IN_COUNTS: if another.

Interface: only used by people.
"""
import csv
import pathlib
import re
import sys

LSU = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
SMEM = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_"
METRICS = {  # ours: theirs, added up; op_ld holds LDGSTS (cp.async) and LDSM (ldmatrix)
    "sectors read": [LSU + "ld.sum"],
    "sectors written": [LSU + "st.sum", LSU + "red.sum"],
    "wavefronts": [SMEM + "ld.sum", SMEM + "st.sum"],
    "mma": ["sm__inst_executed_pipe_tensor_op_hmma.sum"],
    "ldmatrix": ["smsp__inst_executed_op_ldsm.sum"],
    "cp.async": ["smsp__inst_executed_op_ldgsts.sum"],
}


def ours(text, kernel):
    """One launch of the kernel: {name of METRICS: count}."""
    found = re.search(rf"(?ms)^count: kernel {re.escape(kernel)}\b[^\n]*?: (\d+) launch.*?"
                      r"(?=^count: |\Z)", text)
    if not found:
        sys.exit(f"simt_beside_ncu: found no kernel {kernel} among the model's counts")
    patterns = {"sectors read": r"memory read: .* (\d+) sectors",
                "sectors written": r"memory written: .* (\d+) sectors",
                "wavefronts": r"shared memory: (\d+) wavefronts", "mma": r"(\d+) mma\b",
                "ldmatrix": r"(\d+) ldmatrix", "cp.async": r"(\d+) cp\.async"}
    return {name: sum(map(int, re.findall(pattern, found[0])[:1])) / int(found[1])
            for name, pattern in patterns.items()}


def theirs(path, kernel):
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) > 5]
    launches = [row for row in (dict(zip(rows[0], r)) for r in rows[2:])
                if re.search(rf"\b{re.escape(kernel)}\b", row["Kernel Name"])]
    if not launches:
        sys.exit(f"simt_beside_ncu: found no kernel {kernel} in {path}")
    return {name: sum(int((row.get(metric) or "0").replace(",", ""))
                      for row in launches for metric in metrics) / len(launches)
            for name, metrics in METRICS.items()}


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__[__doc__.index("usage:"):__doc__.index("Interface:")].rstrip())
    counts, table, kernel = sys.argv[1:4]
    model = ours(pathlib.Path(counts).read_text(encoding="utf-8"), sys.argv[-1])
    card = theirs(table, kernel)
    for name, metrics in METRICS.items():
        off = (model[name] / card[name] - 1) * 100 if card[name] else 0
        print(f"{name:16} {model[name]:10.0f} {card[name]:10.0f} {off:+6.1f} %  {metrics[0]}")


if __name__ == "__main__":
    main()
