# SPDX-License-Identifier: MIT
"""saved_runs.py: a stage program as a function from tensors to tensors, through files.

Interface:
- Program(path, device, folder): write(name, shape, values) makes an input file; run(files, flags)
  runs the program on files {flag: path} and returns what --save wrote, {name: flat values}.
- Lab: a variant with a dtype, its runs, and the laws that are asked of them.
- numbers(seed, count, steps, unit): random multiples of a unit, the same on every machine.
- loss(dO, O): their product in float64.
- wrong_so(build, program, patch, folder): a wrong solution of tests/wrong as a shared object, and
  which outputs its header blames.
"""
import operator
import os
import random
import shutil
import subprocess
import sys
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "wrong")]
import npyfile
import workshop

SAVED = ("o", "lse", "dq", "dk", "dv")


class Program:
    def __init__(self, path, device, folder):
        self.path, self.device, self.folder, self.count = path, device, folder, 0

    def write(self, name, shape, values):
        path = os.path.join(self.folder, name + ".npy")
        npyfile.write(path, shape, values)
        return path

    def run(self, files, flags, wanted=SAVED):
        self.count += 1
        folder = os.path.join(self.folder, f"run{self.count}")
        command = [self.path, "--device", self.device, "--no-check", "--quiet", "--save", folder]
        command += [word for flag, path in files.items() for word in (f"--{flag}", path)]
        done = subprocess.run(command + list(flags), capture_output=True, text=True, timeout=280,
                              errors="backslashreplace")
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command + list(flags))}: exit status {done.returncode}: "
                               f"{done.stderr[-1000:]}")
        found = {name: npyfile.read(os.path.join(folder, name + ".npy"))[1] for name in wanted
                 if os.path.exists(os.path.join(folder, name + ".npy"))}
        shutil.rmtree(folder)
        return found


class Lab:
    """One variant with one dtype: tensors in, results out; what is asked of them is recorded."""

    def __init__(self, args, variant, dtype, folder, flag="--variant"):
        self.program = Program(args.program, args.device, folder)
        self.args, self.variant, self.dtype, self.results = args, variant, dtype, []
        self.label = variant if dtype == "f32" else f"{variant} {dtype}"
        self.flags = [flag, variant, "--dtype", dtype]

    def ok(self, good, what, detail=""):
        self.results.append((good, f"{self.label}: {what}", detail))

    def run(self, tensors, *flags, wanted=SAVED):
        """tensors: {name: (shape, values)}"""
        files = {name: self.program.write(name, *tensor) for name, tensor in tensors.items()}
        return self.program.run(files, self.flags + list(flags), wanted)


def numbers(seed, count, steps, unit):
    """Uniform among -steps .. steps times the unit. Only random() is drawn, whose sequence Python
    promises to keep."""
    draw = random.Random(seed).random
    values = [unit * (n - steps) for n in range(2 * steps + 1)]
    return [values[int(draw() * len(values))] for _ in range(count)]


def loss(dO, O):
    return sum(map(operator.mul, dO, O))


def wrong_so(build, program, patch, folder):
    build, program = os.path.abspath(build), os.path.abspath(program)
    folder = os.path.join(folder, patch)
    os.mkdir(folder)
    shop = workshop.Workshop(SimpleNamespace(build=build, program=program,
                                             stage=os.path.basename(program)), folder, set())
    fields, hunks = workshop.read_patch(os.path.join(workshop.HERE, patch + ".patch"))
    made = shop.make(fields, workshop.apply_hunks(workshop.changed_text(fields), hunks))
    return made[made.index("--variant-so") + 1], {name.lower() for name in fields["caught-by"]}
