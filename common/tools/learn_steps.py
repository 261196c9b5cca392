# SPDX-License-Identifier: MIT
"""learn_steps.py: the steps of ./ladder learn: how they are read, compiled and judged.

A step is a folder of docs/learn; docs/learn/README.md has the format. A step in C is a program of
three files, the learner's, an examiner and learn.c, that judges one case in one process: the
learner's code is an ordinary function in an ordinary process, with a time limit. A typed step has
no program: numbers and orders are compared here. A step on the GPU is a .cu file: its program holds
common/simt, a model of a GPU (simt_library.py).

Interface:
- read_steps(): every Step in order. find_step(name): one, or Usage.
- Step: name, title, minutes, task, hints, header, cases, kind ("hole", "bug", "free" or "typed"),
  answer_name, on_gpu, stub(), solution(), others(), wrong_answers().
- judge(step, file, folder, asan, say, examiner): compiles into the folder, runs the cases until one
  fails, gives each a line to say(), and returns a Verdict(passed, code, text, flags, why).
- Usage: a sentence for stderr, exit status 2.
"""
import ast
import math
import operator
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import typing

import simt_library
import tool

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "common/course"), str(ROOT / "tests/wrong")]
import suite
import workshop

LEARN = ROOT / "docs" / "learn"
SIMT = ROOT / "common" / "simt"
SHOWN = 4000          # characters of a learner's own output that are shown
FLAGS = ["-std=gnu11", "-Og", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter",
         "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable",
         "-Wno-unknown-pragmas"]
ASAN = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-DLEARN_ASAN"]
HOLE = re.compile(r"^ */\* YOUR CODE: (\d+) lines? (?:is|are) enough \*/\n(.*?)"
                  r"^( */\* END OF YOUR CODE \*/\n)", re.S | re.M)
SIGNALS = {"SIGSEGV": "it used memory that is not its own",
           "SIGFPE": "it divided a whole number by 0", "SIGABRT": "it called abort()",
           "SIGXFSZ": "it printed more than 16 MiB"}


class Usage(Exception):
    """A sentence that names what was given, and what is accepted."""


class Verdict(typing.NamedTuple):
    passed: bool
    code: str = ""      # of the recognised mistake; "-": none was recognised
    text: str = ""      # what failed
    flags: tuple = ()   # of the case that failed
    why: str = ""       # the sentence of a recognised mistake in C: of a bug it tells the place


class Step:
    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name.partition("_")[0]
        self.task = (folder / "task.md").read_text(encoding="utf-8")
        first = re.match(r"# (\d\d\.\d[a-z]) (.+) \((\d+) minutes\)\n", self.task)
        if not first or first[1] != self.name:
            raise ValueError(f"{folder}/task.md has to begin '# {self.name} TITLE (N minutes)'")
        self.title, self.minutes = first[2], int(first[3])
        self.header, self.cases = read_cases(folder / "cases")
        if (folder / "stub.txt").is_file():
            self.kind = "typed"
        elif "source" in self.header or "bug" in self.header:
            self.kind = "bug"
        else:
            self.kind = "hole" if list(folder.glob("stub.c*")) else "free"
        self.on_gpu = self.header["contract"].startswith("gpu_")
        self.answer_name = ("answer.txt" if self.kind == "typed" else
                            "answer.cu" if self.on_gpu else "answer.c")

    def hints(self):
        text = (self.folder / "hints.md").read_text(encoding="utf-8")
        return [" ".join(hint.split()) for hint in re.split(r"^\d\. ", text, flags=re.M)[1:]]

    def fact(self):
        """The answer to what the task asks its reader to predict, or None."""
        path = self.folder / "fact.md"
        return " ".join(path.read_text(encoding="utf-8").split()) if path.is_file() else None

    def stub(self):
        """None: the learner begins with an empty file."""
        if "source" in self.header:
            with_bug = (ROOT / self.header["source"]).read_text(encoding="utf-8")
            _, hunks = workshop.read_patch(ROOT / self.header["patch"])
            return self.without_head(workshop.apply_hunks(with_bug, hunks))
        if "bug" in self.header:
            blocks = (self.folder / "bug").read_text(encoding="utf-8")
            return exchange_blocks(self.solution(), blocks, f"{self.name}/bug")
        for name in ("stub.c", "stub.cu", "stub.txt"):
            if (self.folder / name).is_file():
                return (self.folder / name).read_text(encoding="utf-8")
        return None

    def solution_path(self):
        if "source" in self.header:
            return ROOT / self.header["source"]
        suffix = ".hole" if self.kind == "hole" else pathlib.Path(self.answer_name).suffix
        return LEARN / "solutions" / (self.name + suffix)

    def without_head(self, text):
        """A source of the suite without its first comment, which says how it is done rightly."""
        head = ("/* SPDX-License-Identifier: MIT\n *\n"
                f" * {self.name}: {self.header['source']} without the comment at its head.\n */\n")
        return re.sub(r"\A/\*.*?\*/\n", lambda found: head, text, flags=re.S)

    def solution(self):
        text = self.solution_path().read_text(encoding="utf-8")
        if self.kind == "hole":
            return self.in_hole(text)
        return self.without_head(text) if "source" in self.header else text

    def in_hole(self, text):
        """What stands in the hole; the rest is the stub."""
        return HOLE.sub(lambda hole: hole[0].replace(hole[2] + hole[3], text + hole[3]),
                        self.stub())

    def others(self):
        """Another right solution of a hole (.other.hole), or blocks that change the solution."""
        for path in sorted((LEARN / "solutions").glob(self.name + ".other.*")):
            text = path.read_text(encoding="utf-8")
            yield (self.in_hole(text) if path.suffix == ".hole" else
                   exchange_blocks(self.solution(), text, path.name))

    def trace(self):
        """trace.txt with the program's place in the command; None: the step has none."""
        path = self.folder / "trace.txt"
        if not path.is_file():
            return None
        stage = next(ROOT.glob(f"{self.name[:2]}_*")).name
        return path.read_text(encoding="utf-8").replace("$ ", f"$ build/demo/{stage}/", 1)

    def wrong_answers(self):
        """[(code of its hint, text)]: the solution with the lines of one block exchanged. A block
        may exchange lines in several places: each begins with its old lines."""
        text = (LEARN / "wrong" / self.name).read_text(encoding="utf-8")
        found = []
        for code, block in re.findall(r"^\[([\w-]+)\]\n((?:[-+ ].*\n|[-+]\n)+)", text, re.M):
            found.append((code, exchange_blocks(self.solution(), block, f"{self.name} [{code}]")))
        return found


def exchange_blocks(text, blocks, where):
    """Each block: `-` lines, which stand in the text once, and the `+` lines in their place."""
    for place in re.findall(r"(?:-.*\n)+(?:[+ ].*\n|\+\n)*", blocks):
        old = [line[2:].strip() for line in tool.lines_of(place) if line[0] == "-"]
        new = [line[2:] for line in tool.lines_of(place) if line[0] == "+"]
        text = exchange(text, old, new, where)
    return text


def exchange(text, old, new, where):
    """The text with the lines `old`, which stand in it once, replaced. Indentation is the first
    replaced line's."""
    lines = tool.lines_of(text)
    places = [n for n in range(len(lines)) if [x.strip() for x in lines[n:n + len(old)]] == old]
    if len(places) != 1:
        raise ValueError(f"{where}: {len(places)} places match {old}")
    first = places[0]
    indent = re.match(" *", lines[first])[0]
    new = tool.lines_of(textwrap.dedent("\n".join(new)))
    lines[first:first + len(old)] = [(indent + line).rstrip() for line in new]
    return "\n".join(lines) + "\n"


HEADER = {name: (str, "") for name in ("contract", "time", "links", "include", "source", "patch",
                                      "bug", "optimise")}


def read_cases(path):
    """The header {key: value} and the cases, in the suite syntax of the course kit."""
    lines = [(number, line) for number, line in
             enumerate(tool.lines_of(path.read_text(encoding="utf-8")), 1)
             if line.strip() and not line.startswith("#")]
    try:
        header = suite.read_words(lines[0][1], HEADER)
        return header, [suite.read_case(line, number, suite.Suite(str(path)))
                        for number, line in lines[1:]]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_steps():
    return sorted((Step(path.parent) for path in LEARN.glob("[0-9]*/task.md")),
                  key=lambda step: step.name)


def find_step(name):
    """The step called 01.2a, 1.2a or 01.2a_softmax_of_a_column."""
    if re.match(r"\d\.", name):
        name = "0" + name
    folders = [path.parent for path in LEARN.glob("[0-9]*/task.md")]
    for folder in folders:
        if folder.name == name or folder.name.partition("_")[0] == name:
            return Step(folder)
    raise Usage(f"unknown step '{name}'; ./ladder learn lists them, as in 01.1a")


# --- typed answers -------------------------------------------------------------------------------

ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
              ast.Div: operator.truediv, ast.Pow: operator.pow, ast.USub: operator.neg}
FUNCTIONS = {"exp": math.exp, "log": math.log, "ln": math.log, "sqrt": math.sqrt}


def value_of(text):
    """A number, or a formula of numbers with + - * / ** exp log sqrt, ^ for ** and ln for log; None
    for anything else."""
    def walk(node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = walk(node.left), walk(node.right)
            if isinstance(node.op, ast.Pow) and abs(right) > 64:
                raise ValueError
            return ARITHMETIC[type(node.op)](left, right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](walk(node.operand))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
            if node.func.id in FUNCTIONS:
                return FUNCTIONS[node.func.id](walk(node.args[0]))
        raise ValueError
    try:
        return float(walk(ast.parse(text.strip().replace("^", "**"), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):
        return None


def typed_answers(text):
    """{key: what stands behind its '='}"""
    lines = (line.partition("#")[0].partition("=") for line in tool.lines_of(text))
    return {key.strip(): value.strip() for key, sign, value in lines if sign}


def judge_typed(words, answers):
    """words: --key a, then --answer NUMBER [--within PERCENT%] or --order LETTERS (several with
    '|'), then any --mistake CODE ANSWER SENTENCE. Without --within a whole number has to be met, of
    any other 0.1 % may be missing."""
    words, within, mistakes, wanted, order = list(words), None, [], None, None
    while words:
        flag = words.pop(0)
        if flag == "--key":
            key = words.pop(0)
        elif flag == "--answer":
            wanted = value_of(words.pop(0))
        elif flag == "--order":
            order = [alternative.split() for alternative in words.pop(0).split("|")]
        elif flag == "--within":
            within = float(words.pop(0).rstrip("%")) / 100
        elif flag == "--mistake":
            mistakes.append([words.pop(0) for _ in range(3)])
        else:
            raise ValueError(f"unknown word {flag} in a typed case")

    if within is None:
        within = 1e-9 if wanted is not None and wanted.is_integer() else 0.001

    def near(a, b):
        return abs(a - b) <= within * max(abs(b), 1e-12)

    found = answers.get(key, "")
    if not found:
        return Verdict(False, "empty", f"There is no answer behind '{key} ='.")
    if order:
        letters = re.findall(r"\w", found.upper())
        if letters in order:
            return Verdict(True)
        for code, typical, sentence in mistakes:
            if letters == typical.split():
                return Verdict(False, code, sentence)
        if sorted(letters) != sorted(order[0]):
            return Verdict(False, "letters", f"'{found}' is not each of "
                           f"{' '.join(sorted(order[0]))} once.")
        good = max(len(os.path.commonprefix([letters, right])) for right in order
                   if len(right) == len(letters))
        return Verdict(False, "-", f"'{found}' is not the order: '{letters[good]}' is the first "
                       "letter that is not in its place.")
    number = value_of(found)
    if number is None:
        return Verdict(False, "number", f"'{found}' is not a number; 3, 0.25, 4*64, 2^20, "
                       "exp(1) and ln(2) are, without a unit.")
    if near(number, wanted):
        return Verdict(True)
    for code, typical, sentence in mistakes:
        if near(number, value_of(typical)):
            return Verdict(False, code, f"{key} is not {found}. {sentence}")
    return Verdict(False, "-", f"{key} is not {found}: it is "
                   f"{'larger' if wanted > number else 'smaller'}.")


# --- C -------------------------------------------------------------------------------------------

def compiler():
    words = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if not shutil.which(words[0]):
        raise Usage(f"there is no C compiler '{words[0]}'; ./ladder learn doctor says more")
    return words


def compile_flags(step, asan=False):
    folders = [LEARN / "examiners", *([SIMT / "include"] if step.on_gpu else []),
               ROOT / "common", ROOT / "common" / "attention",
               *(ROOT / name for name in step.header.get("include", "").split())]
    return [*compiler(), *FLAGS, *step.header.get("optimise", "").split(), *(ASAN if asan else []),
            *(f"-I{path}" for path in folders)]


def examiner_sources(step):
    names = [step.header["contract"], "learn", *(["gpu"] if step.on_gpu else [])]
    return [*(LEARN / "examiners" / f"{name}.c" for name in names),
            *(ROOT / name for name in step.header.get("links", "").split())]


def run_compiler(command):
    """(did it work, its messages with paths from the top of the repository)"""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          errors="replace", check=False)
    return done.returncode == 0, done.stderr.replace(str(ROOT) + "/", "")


PLAIN = r"\s*(?:const\s+)?(?:int|long|float|double|void)\b[\s*]*\w*"
PROTOTYPE = re.compile(rf"^(?:int|long|float|void) \w+\({PLAIN}(?:,{PLAIN})*\);", re.M)


def prototypes(step):
    """What the examiner calls and the learner writes. The compiler reads it before the learner's
    file, so that another list of arguments is an error and not a wrong result. A prototype with a
    type of its own is left to a header that the task names."""
    examiner = examiner_sources(step)[0].read_text(encoding="utf-8")
    return "\n".join(PROTOTYPE.findall(examiner)) + "\n"


def compile_help(said):
    """What the linker says in its own words."""
    missing = re.search(r"undefined reference to [`']?(\w+)", said)
    if "multiple definition of" in said and "main" in said:
        return "Your file has a main(); the examiner has one already. Take yours out."
    if missing:
        return (f"There is no function {missing[1]}. If it is the one that the task asks for, look "
                "at its spelling.")
    return "It does not compile; the compiler's messages stand above. The first one matters most."


# What lets the compiler change the order of sums, from inside of a file; the suite's flags do not.
FAST_MATH = re.compile(r"(?i)pragma\W+(?:GCC|clang|STDC)\W+(?:optimize|fp)\b|float_control"
                       r"|\b_*optimize_*\s*\(")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


# A learner's kernels, with a call before each access to memory.
CUDA = [sys.executable, SIMT / "compile.py", "clang++", "--arch=90a", "-I", ROOT / "common", "-c"]


def gpu_libraries():
    try:
        return simt_library.link_words()
    except simt_library.Missing as why:
        raise Usage(f"a step on the GPU needs {why}") from None


def compile_step(step, file, folder, asan=False, examiner=()):
    """(the program `check` in the folder or None, what the compiler said). examiner: what is linked
    with the learner's file, by default its sources. The program appears when it is complete."""
    new, given = pathlib.Path(folder) / "check.new", pathlib.Path(folder) / "given.h"
    program, mine = new.with_name("check"), pathlib.Path(folder) / "answer.o"
    libraries = gpu_libraries() if step.on_gpu else ["-lm"]
    try:
        given.write_text(prototypes(step), encoding="utf-8")
        own = ([*CUDA, file] if step.on_gpu else
               [*compile_flags(step, asan), "-include", given, "-c", "-x", "c", file])
        good, said = run_compiler([*own, "-o", mine])
        if good:
            good, more = run_compiler([*compile_flags(step, asan), mine,
                                       *(examiner or examiner_sources(step)), *libraries,
                                       "-o", new])
            said += more
        if good:
            os.replace(new, program)
    finally:
        for path in (new, given, mine, mine.with_name("answer.o.ii")):
            path.unlink(missing_ok=True)
    return program if good else None, said


# A check's limit is time of the processor. The clock may run so many times as long, since other
# programs have the processor, too; a check that only sleeps ends then.
WAITS = 4


def run_case(program, flags, seconds):
    """(exit status or None for no time, verdict text, what the learner's code printed); seconds: of
    the processor."""
    read_end, write_end = os.pipe()
    environment = dict(os.environ, LEARN_FD=str(write_end))
    environment.setdefault("ASAN_OPTIONS", "detect_leaks=0")
    with tempfile.TemporaryFile() as printed:
        try:
            process = subprocess.Popen([str(program), *flags], stdin=subprocess.DEVNULL,
                                       stdout=printed, stderr=printed, pass_fds=[write_end],
                                       env=environment)
            # at the limit comes SIGXCPU, a second later SIGKILL
            resource.prlimit(process.pid, resource.RLIMIT_CPU,
                             (math.ceil(seconds), math.ceil(seconds) + 1))
        finally:
            os.close(write_end)
        try:
            status = process.wait(timeout=WAITS * seconds)
            status = None if status == -signal.SIGXCPU else status
        except subprocess.TimeoutExpired:
            status = None
        finally:
            process.kill()
            process.wait()
        os.set_blocking(read_end, False)
        with open(read_end, "rb") as pipe:
            text = (pipe.read() or b"").decode("utf-8", "replace")
        printed.seek(0)
        return status, text, printed.read(SHOWN).decode("utf-8", "replace")


def verdict_of(status, text, seconds):
    if status is None:
        return Verdict(False, "time", f"It did not finish within {seconds:g} s. Is there a loop "
                       "that does not end?")
    if text.startswith("right") and status == 0:
        return Verdict(True)
    if text.startswith("wrong "):
        code, _, sentences = text.strip().partition("\n")
        what, _, why = sentences.partition("\n\n")
        return Verdict(False, code.split()[1], what.strip(), (), why.strip())
    if status < 0:
        name = signal.Signals(-status).name
        return Verdict(False, "crash", f"Your code ended with {name}: "
                       f"{SIGNALS.get(name, 'the system stopped it')}.")
    return Verdict(False, "exit", f"The program ended with exit status {status} before the case "
                   "was judged.")


def sanitizer_says(printed):
    """What is wrong, where, and next to which array: a few lines of a report of a hundred, in which
    learn.c has written the addresses of the examiner's arrays. Without a report: ""."""
    lines, names = [], {}
    for line in tool.lines_of(printed):
        array = re.match(r"array (\w+) at (\w+)$", line)
        error = re.search(r"ERROR: \w+: (.*?)(?: on (?:unknown )?address.*)?$", line)
        frame = re.match(r"\s+#\d+ \S+ in (\w+) .*/([\w.]+\.c):(\d+)", line)
        block = re.search(r"is located (\d+) bytes (.*) (\d+)-byte region \[(\w+)", line)
        variable = re.search(r"'(\w+)'.* <== .* \w+flows this variable", line)
        if array:
            names[array[2]] = array[1]
        elif "runtime error:" in line:
            lines.append(re.sub(r"^.*/", "", line))
        elif error:
            lines.append(error[1])
        elif re.match(r"(READ|WRITE) of size", line):
            lines.append(line.partition(" at ")[0])
        elif block:
            where = ("inside" if "inside" in block[2] else
                     "behind the end of" if re.search("right|after", block[2]) else "before")
            lines.append(f"the address is {block[1]} bytes {where} "
                         f"{names.get(block[4], 'an array')}, which has {block[3]} bytes")
            if block[4] in names:
                break
        elif variable:
            lines.append(f"the array is {variable[1]}")
        elif " by thread " in line:  # of memory that the learner's code has allocated
            lines.append(line.partition(" by thread ")[0] + ":")
        elif frame and frame[2] != "learn.c":
            lines.append(f"  in {frame[1]}, {frame[2]}:{frame[3]}")
        elif line.startswith("SUMMARY"):
            break
    return "\n".join(lines)


def judge_c(step, file, folder, asan, say, examiner):
    asan = asan and not step.on_gpu  # the model of a GPU sees every access anyway
    text = pathlib.Path(file).read_text(encoding="utf-8", errors="replace")
    if FAST_MATH.search(COMMENT.sub(" ", text)):
        return Verdict(False, "compiler_options", "The compiler's options are part of the step: "
                       "take the pragma or the attribute that changes them out of your file.")
    program, said = compile_step(step, file, folder, asan, examiner)
    if said.strip():
        say(said.rstrip())
    if not program:
        return Verdict(False, "compile", compile_help(said))
    # the model of a GPU ends a loop without progress itself, and says where
    seconds = float(step.header.get("time", "20" if step.on_gpu else "5")) * (4 if asan else 1)
    for number, case in enumerate(step.cases, 1):
        status, text, printed = run_case(program, case.flags, seconds)
        verdict = verdict_of(status, text, seconds)
        report = sanitizer_says(printed) if asan else ""
        if report:
            verdict, printed = Verdict(False, "sanitizer", report), ""
        say(f"  case {number} of {len(step.cases)}, {case.name}: "
            f"{'right' if verdict.passed else 'WRONG'}")
        if printed:
            say("    printed:\n" + "\n".join("    | " + line for line in tool.lines_of(printed)))
        if not verdict.passed:
            return verdict._replace(flags=tuple(case.flags))
    return Verdict(True)


def judge(step, file, folder, asan=False, say=print, examiner=()):
    if step.kind != "typed":
        return judge_c(step, file, folder, asan, say, examiner)
    answers = typed_answers(pathlib.Path(file).read_text(encoding="utf-8", errors="replace"))
    for number, case in enumerate(step.cases, 1):
        verdict = judge_typed(case.flags, answers)
        say(f"  {number} of {len(step.cases)}, {case.name}: "
            f"{'right' if verdict.passed else 'WRONG'}")
        if not verdict.passed:
            return verdict
    return Verdict(True)
