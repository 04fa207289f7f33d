#!/usr/bin/env python3
"""Ask a server all the time, plain and streamed in turn, and count: client.py URL KEY OUT.

Four threads ask until OUT.stop is there. A line of OUT for each request: when it began, how long it took, its kind, `ok` or
what was wrong. An answer counts as ok when it is complete: status 200, all tokens, and of a stream its end, too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

THREADS, TOKENS = 4, 24
url, key, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
stop = out.with_suffix(".stop")
stop.unlink(missing_ok=True)
end = time.time() + 3600
writing = threading.Lock()


def ask(number: int, streamed: bool) -> str:
    """What was wrong with the answer to one request, or `ok`."""
    body: dict[str, Any] = {
        "model": "glm-5",
        "messages": [{"role": "user", "content": f"Question {number}: what is new?"}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310  # nosec B310
            if not streamed:
                found = json.load(answer)["usage"]["completion_tokens"]
                return "ok" if found == TOKENS else f"{found} tokens"
            events = [line[5:].strip() for line in answer if line.startswith(b"data:")]
            if not events or events[-1] != b"[DONE]":
                return f"the stream broke off after {len(events)} events"
            found = [usage for event in events[:-1] if (usage := json.loads(event).get("usage"))][-1]["completion_tokens"]
            return "ok" if found == TOKENS else f"{found} tokens in the stream"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def work(first: int) -> None:
    number = first
    while not stop.exists() and time.time() < end:
        begun = time.time()
        streamed = number // THREADS % 2 == 0
        said = ask(number, streamed)
        with writing:
            lines.write(f"{begun:.2f} {time.time() - begun:.2f} {'stream' if streamed else 'plain'} {said}\n")
        number += THREADS
        time.sleep(0.2)


with out.open("w", buffering=1) as lines:
    threads = [threading.Thread(target=work, args=(first,)) for first in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.write("end\n")
