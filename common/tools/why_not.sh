#!/bin/sh
# SPDX-License-Identifier: MIT
# why_not.sh COMMAND...: nothing where the command succeeds, else its first line that tells of an
# error (or its first line) and exit 1: why an optional part is off, in the tool's own words.
said=$(LC_ALL=C "$@" 2>&1 </dev/null) && exit 0
{ printf '%s\n' "$said" | grep -iE -m 1 'error|fatal|not found|no such|cannot' ||
    printf '%s\n' "$said" | head -n 1; } | sed "s|^[^ ]*why_not.sh: [line 0-9]*: ||" | cut -c 1-400
exit 1
