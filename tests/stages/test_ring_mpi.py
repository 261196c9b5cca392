#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""test_ring_mpi.py: ring_burst over MPI: the same bits and bytes as over sim, and every way in
which a rank can fail is told, by rank, step and operation, without a hang or a process left over.

    test_ring_mpi.py PROGRAM

More ranks than cores: what is tested is who sends what to whom, not speed.
"""
import concurrent.futures
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import npyfile
from tap import Tap

METHODS = ["ring-minimal", "ring", "burst", "allgather", "ulysses", "ring-double", "burst-double"]
SMALL = "-H 2 -N 24 -d 8 --causal --backward --method ring"
LONG = ["-H 4 -N 600 -d 64 --causal --backward --method ring --no-check"] * 100

# What is varied beside the method; {G} heads or twice as many, so that Ulysses can deal them out.
SETTINGS = [
    "-H {G} -N 37 -d 8 --causal --layout zigzag --backward",
    "-H {2G} --kv-heads {G} -N 29 -d 8 --causal --layout striped --dtype bf16 --backward -B 2",
    "-H {G} --kv-heads 1 --seq-q 19 --seq-kv 45 -d 4 --layout contiguous --dtype f16 --backward",
    "-H {G} -N 41 -d 8 --window 6,3 --layout contiguous --backward --deterministic",
    "-H {G} -N 5 -d 4 --mask full --layout zigzag --backward --verify-hops",
    "-H {G} -N 40 -d 4 --cu-seqlens-q {cu} --cu-seqlens-kv {cu} --causal --layout zigzag --backward"
    " --partials bf16 --dtype bf16",
]


# --- running ring_burst over MPI, and finding the processes that belong to it --------------------

MARK = f"RING_TEST_MARK_{os.getpid()}"


def environment(**more):
    """For mpirun as well, as world_mpi.c sets it; a folder of its own (one mpirun that ends takes
    the folder away from one that starts); and a mark by which orphans are found."""
    return {**os.environ, MARK: "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(dir=os.environ.get("TMPDIR")),
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1", **more}


def marked(mark=MARK + "=1", rank=None):
    """Processes with a mark in their environment (zombies have none); of one rank, if asked."""
    wanted = [mark.encode()] + ([f"OMPI_COMM_WORLD_RANK={rank}".encode()] if rank is not None
                                else [])
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if all(word in words for word in wanted):
            found.append(int(path.split("/")[2]))
    return found


class Program:
    def __init__(self, tap, path, folder):
        self.tap = tap
        self.path = os.path.abspath(path)
        self.folder = folder

    def run(self, flags, front=(), env=None):
        """(status, stdout, stderr, seconds); a hang is a failure of its own status."""
        start = time.monotonic()
        try:
            run = subprocess.run([*front, self.path, *flags.split()], capture_output=True,
                                 text=True, timeout=120, env=env or environment(), check=False,
                                 stdin=subprocess.DEVNULL, errors="replace")
        except subprocess.TimeoutExpired:
            return "hang", "", "", 120.0
        return run.returncode, run.stdout, run.stderr, time.monotonic() - start

    def cases(self, name, lines):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        return path


def rows_of(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def saved_files(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "**", "*.npy"), recursive=True):
        with open(path, "rb") as f:
            found[os.path.relpath(path, folder)] = f.read()
    return found


def stat_fields(pid):
    """Of /proc/PID/stat, from the state on; none of a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()
    except OSError:
        return []


def cpu_seconds(pid):
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def pids_in_run(mark, seconds=30.0):
    """Process of each rank, when all four have worked for a while."""
    deadline = time.monotonic() + seconds
    pids = []
    while time.monotonic() < deadline:
        pids = [(marked(f"{mark}=1", rank) or [0])[0] for rank in range(4)]
        if all(pids) and min(cpu_seconds(pid) for pid in pids) > 0.2:
            break
        time.sleep(0.1)
    return pids


# --- the same as over sim ------------------------------------------------------------------------

def compare(p, name, ranks, lines, env=None):
    """Runs cases over sim and over mpi: results to the bit, bytes and memory to the byte."""
    file = name.replace(" ", "_")
    cases = p.cases(file + ".txt", lines)
    out = {t: os.path.join(p.folder, f"{file}.{t}") for t in ("sim", "mpi")}
    done = {t: p.run(f"--cases {cases} --ranks {ranks} --transport {t} --threads 1 --quiet --save "
                     f"{out[t]} --json {out[t]}.jsonl" + (" --no-check" if t == "sim" else ""),
                     env=env) for t in ("sim", "mpi")}
    said = "\n".join(f"{t}: {d[0]} {d[2]}" for t, d in done.items())[:2000]
    p.tap.ok(all(d[0] == 0 for d in done.values()), f"{name}: runs over sim and mpi", said)
    files = {t: saved_files(out[t]) for t in out}
    p.tap.ok(len(files["sim"]) >= 5 * len(lines) - 1 and sorted(files["sim"]) ==
             sorted(files["mpi"]), f"{name}: {len(lines)} cases are saved",
             f"{len(files['sim'])} and {len(files['mpi'])} files")
    differ = [f for f in files["sim"] if files["sim"][f] != files["mpi"].get(f)]
    p.tap.ok(not differ, f"{name}: O, lse, dQ, dK, dV have the same bits", sorted(differ)[:8])
    rows = {t: rows_of(out[t] + ".jsonl") for t in out}
    wrong = [r["variant"] for r in rows["mpi"] if r["pass"] is not True or r["transport"] != "mpi"
             or r["ranks"] != ranks]
    p.tap.ok(len(rows["mpi"]) == len(lines) and not wrong, f"{name}: one row a case, each pass",
             f"{len(rows['mpi'])} rows, wrong: {wrong}")
    told = {t: [(r["sent_bytes"], r["sent_bytes_backward"], r["peak_bytes"]) for r in rows[t]]
            for t in rows}
    p.tap.ok(told["sim"] == told["mpi"], f"{name}: bytes sent and held are the same",
             str([pair for pair in zip(told["sim"], told["mpi"]) if pair[0] != pair[1]])[:600])
    return rows["mpi"]


def check_same(p):
    starts = [0, 1, 17, 40]
    cu = os.path.join(p.folder, "cu.npy")
    npyfile.write(cu, (len(starts),), starts, "i4")
    for ranks in (2, 3, 4, 8):
        lines = []
        for number, setting in enumerate(SETTINGS):
            text = setting.replace("{2G}", str(2 * ranks)).replace("{G}", str(ranks))
            text = text.replace("{cu}", cu)
            lines += [f"--method {m} {text} --seed {number + 1}" +
                      (f" --nodes {2 if ranks % 2 == 0 else 3}" if "double" in m else "")
                      for m in METHODS]
        rows = compare(p, f"{ranks} ranks", ranks, lines)
        sent = [sum(r["sent_bytes"]) for r in rows]
        p.tap.ok(sent and min(sent) > 0, f"{ranks} ranks: something was sent in each case", sent)
    compare(p, "messages in pieces of 100 bytes", 3, [
        "--method ring -H 2 -N 37 -d 8 --backward --causal",
        "--method burst -H 2 -N 37 -d 8 --backward --verify-hops",
        "--method ulysses -H 3 -N 20 -d 8 --backward"], environment(ATTN_MPI_PIECE="100"))


# --- faults that a run survives ------------------------------------------------------------------

BENCH = "--bench --warmup 1 --iters 2"
WRONG = "--inject corrupt@2:1"  # and nobody looks at checksums
SURVIVED = ["", "--inject delay@1:2", WRONG, "", f"{WRONG} {BENCH}", f"--inject delay@1:2 {BENCH}",
            ""]


def check_survived(p):
    """One mpirun: after a wrong answer the next case must be right again."""
    rows_path = os.path.join(p.folder, "survived.jsonl")
    cases = p.cases("survived.txt", [f"{SMALL} {flags}" for flags in SURVIVED])
    done = p.run(f"--cases {cases} --ranks 4 --transport mpi --json {rows_path}")
    passed = [row["pass"] for row in rows_of(rows_path)]
    p.tap.ok(done[0] == 1 and passed == [WRONG not in flags for flags in SURVIVED] and
             done[2].count("ring: O is wrong: ") == 2,
             "late and damaged messages are rows of the table", f"{done[0]} {passed} {done[2]}")


# --- faults that end a run -----------------------------------------------------------------------

def check_exit(p, flags, sentence, front=()):
    status, _, said, seconds = p.run(f"{SMALL} --timeout 5 --transport mpi {flags}", front)
    shown = [t for t in said.splitlines() if t.startswith("ring_burst: ")]
    return [(status == 3, f"{flags}: exit 3", f"{status} {said}"),
            (len(shown) == 1 and re.search(sentence, shown[0]), f"{flags}: one sentence", said),
            (seconds < 15, f"{flags}: told at once", f"{seconds:.1f} s")]


def check_failing_case(p):
    """The sentence names its line and says that the rest did not run: the processes are gone. Rows
    of the cases before it are whole; it has none."""
    rows_path = os.path.join(p.folder, "failing.jsonl")
    cases = p.cases("failing.txt", [SMALL, f"{SMALL} --inject drop@1:2 --verify-hops", SMALL])
    status, table, said, _ = p.run(f"--cases {cases} --timeout 3 --transport mpi --json "
                                   f"{rows_path}")
    shown = [t for t in said.splitlines() if t.startswith("ring_burst: ")]
    sentence = (r"failing.txt:2 \(the cases after it did not run\): rank 2, forward step 2: "
                "waiting for K from rank 1")
    return [(status == 3 and len(shown) == 1 and re.search(sentence, shown[0]),
             "a case that fails: exit 3 and one sentence", f"{status} {said}"),
            ([row["pass"] for row in rows_of(rows_path)] == [True] and
             len(re.findall("^ring ", table, re.M)) == 1, "the row before it", table)]


def check_signal(p, number, victim, sentence, front=()):
    """Rank `victim`, or mpirun (None), gets a signal in the middle of its work."""
    mark = f"RING_TEST_CASE_{os.getpid()}_{int(number)}_{victim}_{len(front)}"
    flags = f"--cases {p.cases(mark + '.txt', LONG)} --timeout 5 --transport mpi --ranks 4 --quiet"
    name = (f"{' '.join(front)} {signal.Signals(number).name} to "
            f"{'mpirun' if victim is None else victim}")
    run = subprocess.Popen([*front, p.path, *flags.split()], stdout=subprocess.PIPE, text=True,
                           stderr=subprocess.PIPE, env=environment(**{mark: "1"}), errors="replace")
    pids = pids_in_run(mark)
    pid = run.pid if victim is None else pids[victim]
    if pid:
        os.kill(pid, number)
    start = time.monotonic()
    try:
        _, said = run.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        run.kill()
        said = "a hang: " + run.communicate()[1]
    seconds = time.monotonic() - start
    status = (3 if number == signal.SIGSTOP else 128 + number) if victim is not None else (
        1 if number == signal.SIGTERM else -number)
    shown = [t for t in said.splitlines() if t.startswith("ring_burst: ")]
    result = [(all(pids) and run.returncode == status, f"{name}: exit {int(status)}",
               f"{pids} {run.returncode} {said}"),
              (seconds < 15, f"{name}: told in time", f"{seconds:.1f} s")]
    if sentence:
        result.append((len(shown) == 1 and re.search(sentence, shown[0]), f"{name}: one sentence",
                       said))
    deadline = time.monotonic() + 5 # killed processes take a moment
    while marked(f"{mark}=1") and time.monotonic() < deadline:
        time.sleep(0.1)
    left = marked(f"{mark}=1")
    return result + [(not left, f"{name}: no process stays behind", left)]


def check_lost(p, number, word, flags):
    """The script that does the same on several GPUs; where no rank is lost it says no."""
    script = os.path.join(HERE, "..", "..", "common", "tools", "lose_a_rank.sh")
    words = f"--transport mpi --ranks 3 --timeout 4 --method ring --no-check {flags}".split()
    run = subprocess.run(["sh", script, number, "3", "4", p.path, *words], text=True,
                         capture_output=True, env=environment(AFTER="3"), errors="replace",
                         timeout=60, check=False)
    return [((run.returncode == 0) == bool(word) and word in run.stdout,
             f"lose_a_rank.sh {number} {flags}: status and sentence",
             f"{run.returncode} {run.stdout} {run.stderr}")]


PLACE = r"((forward|backward) step \d+|set-up|before its first step|between two runs)"
STEADY = "-H 8 -N 3000 -d 64 --causal --backward --bench --iters 1000 --threads 1"
BY_USER = ("mpirun", "-q", "-n", "4")
ENDS = [
    (check_exit, "--ranks 4 --inject exit@1:2", "rank 1, forward step 2, .*without a word"),
    (check_exit, "--ranks 4 --inject exit@0:5", "rank 0, backward step 1, .*without a word"),
    (check_exit, f"--ranks 4 --inject exit@1:2 {BENCH}", "rank 1, forward step 2, .*without"),
    (check_exit, "--inject exit@2:1", "rank 2, forward step 1, .*without a word", BY_USER),
    *((check_exit, f"--ranks 4 --inject {fault}", sentence) for fault, sentence in (
        ("drop@1:1", r"rank 2, forward step \d: waiting for K from rank 1: nothing came"),
        ("drop@1:1 --verify-hops", r"rank 2, forward step 1: K from rank 1 .*one is lost"),
        ("drop@3:4", r"rank 2, backward step \d: waiting for \w+ from rank 3"),
        ("drop@0:77", r"rank 0, .*drop@0:77 did not happen"),
        ("corrupt@1:1 --verify-hops",
         r"rank 2, forward step \d: K from rank 1 is damaged.*forward step \d"),
        ("corrupt@0:5 --verify-hops",
         r"rank 3, backward step \d: \w+ from rank 0 is damaged"),
        ("duplicate@1:1", r"rank 2, .*1 message was left over, .*K from rank 1"),
        ("duplicate@1:1 --verify-hops", r"rank 2, forward step 2: K from rank 1 .*came twice"),
        # in every round of a benchmark
        (f"corrupt@1:1 --verify-hops {BENCH}", "rank 2, forward step 1: .* is damaged"),
        (f"drop@1:1 --verify-hops {BENCH}", "rank 2, forward step 1: .*one is lost"),
        (f"duplicate@1:1 {BENCH}", r"rank 2, .*3 messages were left over"))),
    (check_failing_case,),
    (check_signal, signal.SIGKILL, 2, f"rank 2, {PLACE}.*ended without a word"),
    (check_signal, signal.SIGSEGV, 1, f"rank 1, {PLACE}.*crashed .signal 11"),
    *((check_signal, signal.SIGSTOP, victim, f"rank {victim} is stopped", BY_USER if victim else ())
      for victim in range(4)),
    (check_signal, signal.SIGTERM, 2, f"rank 2, {PLACE}.*told to end"),
    (check_signal, signal.SIGTERM, None, "told to end"),
    (check_signal, signal.SIGKILL, None, ""),
    (check_lost, "KILL", "ring_burst: rank 1, ", STEADY),
    (check_lost, "STOP", "rank 1 is stopped", STEADY),
    (check_lost, "KILL", "", "-N 9"), # it has ended before
]


def check_ends(p):
    """Most of this is waiting, so several at a time."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
        futures = [pool.submit(end[0], p, *end[1:]) for end in ENDS]
        for future in futures:
            for condition, name, detail in future.result():
                p.tap.ok(condition, name, detail)


# --- starting ------------------------------------------------------------------------------------

def check_starting(p):
    two = ("mpirun", "-q", "-n", "2")
    status, table, said, _ = p.run("-H 2 -N 24 -d 8 --transport mpi --method ring", two)
    p.tap.ok(status == 0 and len(re.findall(r"^ring ", table, re.M)) == 1 and not said,
             "mpirun -n 2: one table, from rank 0", f"{status} {table}{said}")
    status, table, said, _ = p.run("-N 24 --transport mpi --ranks 3", two)
    p.tap.ok(status == 2 and said.count("ring_burst: ") == 1 and "--ranks: found 3" in said,
             "mpirun -n 2 with --ranks 3 is refused, once", f"{status} {table}{said}")
    for flags in ("", "--transport sim"):
        status, table, said, _ = p.run(f"-N 24 --ranks 2 {flags}", two)
        p.tap.ok(status == 2 and said.count("ring_burst: ") == 1 and
                 "--transport: found sim" in said and "accepted is mpi" in said,
                 f"mpirun {flags}: what was found is said, once", f"{status} {table}{said}")
    status, _, said, _ = p.run("-N x", env=environment(OMPI_COMM_WORLD_RANK="1"))
    p.tap.ok(status == 0 and not said, "a refusal by another rank than 0 has no status: with one, "
             "mpirun would kill rank 0 before it speaks", f"{status} {said}")
    status, _, said, _ = p.run("-N 24 --transport mpi --ranks 2",
                               env=environment(PATH="/nonexistent"))
    p.tap.ok(status == 77 and said.count("\n") == 1 and "mpirun" in said,
             "without mpirun: one sentence, exit 77", f"{status} {said}")
    none = os.path.join(p.folder, "none")
    os.mkdir(none)
    with open(os.path.join(none, "mpirun"), "w", encoding="utf-8"):
        pass
    status, _, said, _ = p.run("-N 24 --transport mpi --ranks 2", env=environment(PATH=none))
    p.tap.ok(status == 3 and "mpirun does not start: Permission denied" in said,
             "an mpirun that cannot be started is no missing one", f"{status} {said}")
    other = os.path.join(p.folder, "other")
    os.mkdir(other)
    with open(os.path.join(other, "mpirun"), "w", encoding="utf-8") as f:
        f.write('#!/bin/sh\nshift 3\nexec "$@"\n')
    os.chmod(os.path.join(other, "mpirun"), 0o755)
    status, _, said, _ = p.run("-N 24 --transport mpi --ranks 2",
                               env=environment(PATH=other + os.pathsep + os.environ["PATH"]))
    p.tap.ok(status == 3 and said.count("\n") == 1 and "tells no process its rank" in said,
             "an mpirun of another kind does not start a chain of mpiruns", f"{status} {said}")
    # files are rank 0's alone: its refusal ends all ranks, with its status
    status, _, said, _ = p.run(f"{SMALL} --transport mpi --ranks 2 --json {p.folder}/no/row")
    p.tap.ok(status == 2 and said.count("\n") == 1 and "--json: found" in said,
             "a file that rank 0 refuses is one sentence, exit 2", f"{status} {said}")
    # lines 2 and 6: only rank 0 knows it, and to the others they look like the line after them
    large, other = "--scale 1e6 --dist large", "--seed 5"
    cases = p.cases("refused.txt", [f"--backward --method {method}" for method in (
        "ring", f"ring {large}", f"ring {other}", "ulysses -H 3", "burst", f"burst {large}")])
    status, table, said, _ = p.run(f"--cases {cases} -N 24 --transport mpi", two)
    p.tap.ok(status == 2 and re.findall(r"refused.txt:(\d): ", said) == ["2", "4", "6"] and
             said.count("\n") == 3 and re.findall(r"^(ring|burst) +cpu +(\w+)", table, re.M) ==
             [("ring", "ok"), ("ring", "ok"), ("burst", "ok")],
             "after a line that rank 0 refuses the others run", f"{status} {table} {said}")
    cases = p.cases("mixed.txt", ["--ranks 2", "--ranks 3"])
    status, _, said, _ = p.run(f"--cases {cases} -N 24 --transport mpi")
    p.tap.ok(status == 2 and said.count("\n") == 1 and "--ranks" in said,
             "cases with different --ranks are refused", f"{status} {said}")
    status, _, said, _ = p.run("-N 24 --transport mpi --ranks 65")
    p.tap.ok(status == 2 and said.count("\n") == 1 and "--ranks" in said,
             "65 ranks are refused", f"{status} {said}")
    rows = os.path.join(p.folder, "none.jsonl")
    p.run(f"{SMALL} --transport mpi --ranks 2 --inject exit@1:0 --json {rows}")
    p.tap.ok(not os.path.exists(rows), "a run that ends before its first row leaves no file")


def main():
    tap = Tap()
    if not shutil.which("mpirun"):
        return tap.skip_all("no mpirun")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder # what a killed launcher leaves there goes with it
        p = Program(tap, sys.argv[1], folder)
        said = p.run("-N 8 --transport mpi --ranks 1 --method ring")[2]
        if "without MPI" in said:
            return tap.skip_all("this build has no MPI")
        check_same(p)
        check_survived(p)
        check_ends(p)
        check_starting(p)
        left = marked()
        tap.ok(not left, "no process is left over", left)
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
