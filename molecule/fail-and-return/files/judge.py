#!/usr/bin/env python3
"""Compare what a client got with the unit's journal: judge.py CLIENT_FILE MODEL, with journalctl --output=json on stdin.

While a server with that model is up (from its ready line to the moment systemd stops it, or it ends) no answer may fail.
Prints the counts, and fails where one did or where nothing was asked while it was up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

EDGE = 1.0  # seconds around a change that the two records may differ by

spans: list[list[float]] = []
serves = False  # whether the server that starts has the model
for row in sys.stdin:
    entry = json.loads(row)
    message, moment = str(entry.get("MESSAGE")), int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    if "server_args=ServerArgs(" in message:
        serves = f"model_path='{sys.argv[2]}'" in message
    elif "fired up and ready to roll" in message and serves:
        spans.append([moment, float("inf")])
    elif entry.get("_PID") == "1" and message.startswith(("Stopping", "sglang@")) and spans:
        spans[-1][1] = min(spans[-1][1], moment)
asked = [line.split() for line in Path(sys.argv[1]).read_text().splitlines()]
up = [(moment, said) for moment, said in asked if any(start + EDGE < float(moment) < end - EDGE for start, end in spans)]
failed = [moment for moment, said in up if said != "ok"]
print(f"{len(asked)} asked, {len(up)} of them while it was up, {len(failed)} of those failed: {failed[:5]}")
sys.exit(bool(failed) or not up)
