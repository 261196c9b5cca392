# SPDX-License-Identifier: MIT
"""mpi_lab.py: running ring_burst over MPI in a test, and finding the processes that belong to it.

Interface:
- Program: the program and a folder of the test; run, cases.
- environment: of all processes that a test starts, with a mark.
- marked, pids_in_run, parent_of: processes by their mark; the ranks, once they work.
- rows_of, saved_files: what --json and --save left.
"""
import glob
import json
import os
import subprocess
import tempfile
import time

MARK = f"RING_TEST_MARK_{os.getpid()}"


def environment(**more):
    """For mpirun as well, as launch_mpi.c sets it (its folder too: one that ends takes it away from
    one that starts); and a mark by which orphans are found."""
    return {**os.environ, MARK: "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
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
        own = {"OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(dir=self.folder)} if front else {}
        try:
            run = subprocess.run([*front, self.path, *flags.split()], capture_output=True,
                                 text=True, timeout=120, env=env or environment(**own), check=False,
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


def parent_of(pid):
    return int((stat_fields(pid) or ["", 0])[1])


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
