# SPDX-License-Identifier: MIT
"""tool.py: how a tool ends when it cannot go on: one sentence on stderr, no traceback.

Interface:
- end(main, *told): ends the program with the status of main(). 2: main raised one of `told`, whose
  text is a sentence, or a file cannot be read or written; 3: nobody takes what it prints.
- lines_of(text): its lines, which end at "\n" alone. Python's own splits at U+2028, U+0085 and more
  signs, too, which a program may print inside of a line, and JSON may hold in a string.
- MALFORMED: what Python raises where a file's content is not what a tool reads. Told by tools that
  read recorded rows; elsewhere these are mistakes of ours.
"""
import os
import pathlib
import sys

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def lines_of(text):
    return text.removesuffix("\n").split("\n") if text else []


def end(main, *told):
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except told as why:
        status, sentence = 2, str(why)
        if isinstance(why, MALFORMED):
            sentence = f"found input that cannot be used ({type(why).__name__}: {why})"
    except OSError as why:
        status, sentence = 2, f"{why.filename}: {why.strerror}"
        if why.filename is None:
            status, sentence = 3, f"the output was not taken: {why.strerror}"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python tries once more at its end
    print(f"{pathlib.Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    sys.exit(status)
