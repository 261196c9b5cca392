#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_sweep.py: every method of stage 06 on every case of ring_cases.py, ranks as threads.

    test_ring_sweep.py PROGRAM [--device cpu|cuda] [--only GROUP] [--flags="--partials f32 ..."]

As test_sweep.py, whose judge it is. Beside right numbers a row has to tell the ranks, layout and
sequences that its line asked for, the bytes that the ranks sent have to add up to what the model
says (the program itself compares them rank by rank and tensor by tensor, and fails if one differs),
and the most that each rank held is what the model says, to the byte.
A method that is missing against the contract fails, and so does one too many.
"""
import concurrent.futures
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import ring_cases
import test_sweep


def fault_of_ranks(line, row):
    words = line.split()
    given = dict(zip(words, words[1:]))
    ranks, layout = int(given["--ranks"]), given["--layout"]
    sequences = 4 if "--cu-seqlens-q" in given else 1
    schedule = int(given["--seed-schedule"]) if "--seed-schedule" in given else None
    said = {"ranks": ranks, "layout": layout, "sequences": sequences, "transport": "sim",
            "method": row["variant"], "seed_schedule": schedule, "inject": None,
            "verify_hops": "--verify-hops" in words, "partials": given.get("--partials", "f32")}
    if "--nodes" in given:
        said["nodes"] = int(given["--nodes"])
    wrong = {key: row.get(key) for key in said if row.get(key) != said[key]}
    if wrong:
        return f"the report says {wrong}"
    sent = row["sent_bytes"] + row["sent_bytes_backward"]
    if len(sent) != 2 * ranks or min(sent) < 0 or sum(sent) != row["link_bytes"]:
        return f"the ranks sent {sent}, the model says {row['link_bytes']} in all"
    if row["rank_peak_bytes"] != row["rank_peak_model_bytes"]:
        return f"ranks held {row['rank_peak_bytes']}, the model says {row['rank_peak_model_bytes']}"
    if (ranks == 1 or row["nodes"] == 1) and row["outer_bytes"] != 0:
        return f"{row['outer_bytes']} bytes between nodes, and there is one node"
    if ranks == 1 and sum(sent) != 0:
        return f"one rank sent {sum(sent)} bytes"
    if "--backward" not in words and any(row["sent_bytes_backward"]):
        return "bytes of a backward pass that nobody asked for"
    return ""


def main():
    args, tap = test_sweep.begin(only="", flags="", seconds=test_sweep.limit(300))
    args.backward, args.variant = True, "all"
    test_sweep.test_the_judge(tap)
    methods = test_sweep.variants_of(args.program, args.device)
    expected = 7 if args.device == "cpu" else 6  # ring-minimal has no GPU
    tap.ok(len(methods) == expected, f"--list for {args.device}: {' '.join(methods)}")
    counts = dict.fromkeys(methods, 0)

    def answers(method, line):
        takes = ring_cases.answers(method, line)
        counts[method] += takes
        return takes

    faults = test_sweep.fault_of_row
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        groups = ring_cases.sweep(folder, bool(os.environ.get("ATTN_TEST_QUICK")))
        if args.device == "cuda":  # schedules and checksums are for ranks on the CPU
            groups = {name: [line.replace(" --verify-hops", "") for line in group]
                      for name, group in groups.items() if name != "turns"}
        lines = {test_sweep.seed_of(line): line for group in groups.values() for line in group}
        test_sweep.BATCH = 125
        test_sweep.answers = answers
        test_sweep.fault_of_row = lambda row: (
            faults(row) or fault_of_ranks(lines[row["seed"]], row))
        test_sweep.judge_groups(tap, args, methods, {name: group for name, group in groups.items()
                                                     if args.only in name}, pool)
    tap.ok(args.only or min(counts.values()) >= 50 and
           max(counts.values()) == sum(map(len, groups.values())),
           "each method had to answer cases: " +
           ", ".join(f"{name} {count}" for name, count in counts.items()))
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
