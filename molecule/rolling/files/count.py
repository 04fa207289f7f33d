#!/usr/bin/env python3
"""Count what client.py wrote: count.py OUT. Prints JSON; waits a minute for requests that run when the client is stopped."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

out = Path(sys.argv[1])
for _ in range(120):
    rows = out.read_text().splitlines()
    if rows and rows[-1] == "end":
        break
    time.sleep(0.5)
asked = [row.split(" ", 3) for row in rows if row != "end"]
failed = [row for row in asked if row[3] != "ok"]
print(
    json.dumps(
        {
            "ended": rows[-1] == "end",
            "asked": len(asked),
            "plain": sum(row[2] == "plain" for row in asked),
            "streams": sum(row[2] == "stream" for row in asked),
            "longest": max((float(row[1]) for row in asked), default=0.0),
            "failed": len(failed),
            "which": [" ".join(row) for row in failed[:20]],
        }
    )
)
