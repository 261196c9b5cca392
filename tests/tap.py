# SPDX-License-Identifier: MIT
"""tap.py: the few lines of the Test Anything Protocol that the Python tests of this suite need.

Interface:
- Tap(): ok(condition, name, detail) prints one result; detail is printed only on a failure.
- skip(name, why): a result that this machine cannot have.
- skip_all(why): the whole program has nothing to do here (no GPU); returns the exit status.
- done(): prints the plan and returns the exit status: 1 when anything failed OR nothing was tested,
  because a test program that tests nothing must not look green.
"""
import sys


class Tap:
    def __init__(self, out=sys.stdout):
        self.out = out
        self.count = 0
        self.failed = 0
        self.skipped = 0

    def ok(self, condition, name, detail=""):
        self.count += 1
        # A '#' in a name would start a TAP directive, a new line would end the result.
        name = " ".join(str(name).replace("#", "no.").split())
        if not condition:
            self.failed += 1
        self.out.write(f"{'ok' if condition else 'not ok'} {self.count} - {name}\n")
        if not condition and detail:
            self.note(detail)
        self.out.flush()
        return bool(condition)

    def skip(self, name, why):
        self.count += 1
        self.skipped += 1
        self.out.write(f"ok {self.count} - {name} # SKIP {why}\n")
        self.out.flush()

    def note(self, text):
        for line in str(text).rstrip("\n").split("\n"):
            self.out.write(f"# {line}\n")
        self.out.flush()

    def skip_all(self, why):
        assert self.count == 0, "something was tested already"
        self.out.write(f"1..0 # SKIP {why}\n")
        self.out.flush()
        return 0

    def done(self):
        if self.count == 0:
            self.ok(False, "at least one check ran")
        self.out.write(f"1..{self.count}\n")
        self.out.flush()
        return 1 if self.failed else 0
