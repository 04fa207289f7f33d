#!/usr/bin/env python3
"""Run a command and kill it, with all its children, as soon as its output has some words: cut.py WORDS COMMAND..."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

words, command = sys.argv[1], sys.argv[2:]
with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
) as process:
    for line in process.stdout or ():
        print(line, end="")
        if words in line:
            os.killpg(process.pid, signal.SIGKILL)
            sys.exit(0)
sys.exit(f"it ended by itself, with status {process.returncode}, before its output had {words!r}")
