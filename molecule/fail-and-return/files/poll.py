#!/usr/bin/env python3
"""Ask a URL four times a second, and write `TIME ok` or `TIME failed` a line, until the file OUT.stop is there."""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path

url, out = sys.argv[1], Path(sys.argv[2])
stop = out.with_suffix(".stop")
stop.unlink(missing_ok=True)
end = time.time() + 3600
with out.open("w", buffering=1) as lines:
    while not stop.exists() and time.time() < end:
        asked = time.time()
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310
                said = "ok" if answer.status == 200 else "failed"
        except OSError:
            said = "failed"
        lines.write(f"{asked:.2f} {said}\n")
        time.sleep(0.25)
