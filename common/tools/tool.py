# SPDX-License-Identifier: MIT
"""tool.py: how a tool ends when it cannot go on: one sentence on stderr, no traceback.

Interface:
- end(main, *told): ends the program with the status of main(). 2: main raised one of `told`, whose
  text is a sentence, or a file, a number or a text is not what the tool reads (MALFORMED); 3:
  nobody takes what it prints.
"""
import os
import pathlib
import sys

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def end(main, *told):
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except told as why:
        status, sentence = 2, why
    except OSError as why:
        status, sentence = 2, f"{why.filename}: {why.strerror}"
        if why.filename is None:
            status, sentence = 3, f"the output was not taken: {why.strerror}"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python tries once more at its end
    except MALFORMED as why:
        status, sentence = 2, f"found input that cannot be used ({type(why).__name__}: {why})"
    print(f"{pathlib.Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    sys.exit(status)
