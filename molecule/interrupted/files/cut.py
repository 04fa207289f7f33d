#!/usr/bin/env python3
"""Cut a command off as soon as its output has some words: cut.py WORDS HOST COMMAND...

The command is killed with all its children. With a HOST, that container is killed instead, and the command has to end by
itself, with an error that says that the host is unreachable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

words, host, command = sys.argv[1], sys.argv[2], sys.argv[3:]
cut, said = False, ""
with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
) as process:
    for line in process.stdout or ():
        print(line, end="")
        said += line
        if words in line and not cut:
            cut = True
            if not host:
                os.killpg(process.pid, signal.SIGKILL)
                sys.exit(0)
            subprocess.run(["podman", "kill", host], check=True)
if not cut:
    sys.exit(f"it ended by itself, with status {process.returncode}, before its output had {words!r}")
if process.returncode == 0 or "UNREACHABLE" not in said or "Traceback" in said:
    sys.exit(f"the host was gone, and the command ended with status {process.returncode}")
