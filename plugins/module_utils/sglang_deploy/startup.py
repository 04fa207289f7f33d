"""Phases of an SGLang start, recognised from its log lines.

A Tracker takes messages one after another and says what changed. Its state is plain data, so that a start can be
followed in many short calls. Texts are those of SGLang 0.5.9 to 0.5.23 and of the libraries that it compiles kernels
with. Standard library only, since it runs on the managed host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .logtext import Line

PHASES: dict[str, str] = {
    "starting": "starting the process",
    "importing": "importing",
    "arguments": "resolving arguments",
    "distributed": "joining ranks",
    "weights": "loading weights",
    "memory": "allocating KV cache",
    "compiling": "compiling kernels",
    "capturing": "capturing graphs",
    "warmup": "warming up",
    "ready": "ready",
}
"""Name -> what a person reads."""

LIMITS: dict[str, int] = {
    "starting": 300,
    "importing": 900,
    "arguments": 600,
    "distributed": 600,
    "weights": 3600,
    "memory": 900,
    "compiling": 3600,
    "capturing": 1800,
    "warmup": 2700,
}
"""Seconds that a phase may stay without any sign of progress. Joining ranks and weights cover cold imports on slow
disks; compiling and warm-up cover a first start on an empty kernel cache, 10 to 30 minutes on SM120 (InferenceX
recipe, SGLang's own DeepGEMM notice). Quiet compilation inside graph capture is why that has half an hour.
"""

# The last is all that a rank above 0 ever says of it.
_HTTP_UP = r"Application startup complete|Uvicorn running on|Dummy health check server started"
_MARKS: tuple[tuple[str, str], ...] = (
    (r"server_args=ServerArgs\(|Attention backend not (?:explicitly )?specified", "arguments"),
    (r"Set [DN]SA backends|attention backend for DeepSeek", "arguments"),
    (r"Init torch distributed begin", "distributed"),
    (r"sglang is using nccl|Init torch distributed ends", "distributed"),
    (r"Load weight begin", "weights"),
    (r"Load weight end", "memory"),
    (r"KV Cache is allocated|Memory pool end|Capture .*graph end", "memory"),
    (
        r"Capture (?:[\w-]+ ){0,4}(?:cuda|cpu|npu|xpu|hip)? ?graph (?:begin|bs)|Capturing batches|Compiling num tokens",
        "capturing",
    ),
    (r"Entering DeepGEMM JIT|DeepGEMM warmup|DeepGEMM JIT (?:Pre-)?Compil|Try DeepGEMM", "compiling"),
    (r"flashinfer\.jit: (?:Loading|Building|Compiling)", "compiling"),
    (r"Loading JIT ops|Building JIT|Compiling JIT|Compile .*JIT kernel", "compiling"),
    (
        r"^ninja: |^\[\d+/\d+\] .*(?:nvcc|c\+\+|g\+\+)|Running FlashInfer autotune|\[AutoTuner\]|\[Autotuner\]: ",
        "compiling",
    ),
    (r"Building (?:CUDA )?extension|Using .* as PyTorch extensions root|Emitting ninja build file", "compiling"),
    (_HTTP_UP, "warmup"),
    (r"Start of (?:pd disaggregation )?warmup|Warmup ended", "warmup"),
    (r"The server is fired up and ready to roll", "ready"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), phase) for pattern, phase in _MARKS)
_COMPILE_END = re.compile(
    r"FlashInfer autotun\w+ (?:completed|process ends)|Autotuning process ends|Finished loading JIT ops|Prefill batch,"
)

_PROGRESS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "weights",
        re.compile(r"(?:Loading|loading|quant weights)[^:]*:\s+(?P<percent>\d+)%[^|]*\|\s*(?P<done>\d+)/(?P<all>\d+)"),
    ),
    ("compiling", re.compile(r"DeepGEMM warmup\s*:\s+(?P<percent>\d+)%\|.*\|\s*(?P<done>\d+)/(?P<all>\d+)")),
    ("compiling", re.compile(r"^\[(?P<done>\d+)/(?P<all>\d+)\] ")),
    (
        "capturing",
        re.compile(r"(?:Capturing|Compiling num tokens)[^|]*?(?P<percent>\d+)%\|.*\|\s*(?P<done>\d+)/(?P<all>\d+)"),
    ),
)


@dataclass
class Tracker:
    """Where a start stands. Times are seconds since the epoch.

    phase, phase_since: now. progress: text such as `37 %` or `3/12`. moved: time of the last change of phase or
    progress. spent: seconds of the phases that are over. leader: the rank whose lines count, the first that wrote.
    ready: SGLang wrote its ready line.
    """

    started: float
    phase: str = "starting"
    phase_since: float = 0.0
    progress: str = ""
    moved: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    leader: str = ""
    before_compiling: str = ""
    ready: bool = False
    http_up: bool = False

    def __post_init__(self) -> None:
        self.phase_since = self.phase_since or self.started
        self.moved = self.moved or self.started

    def feed(self, line: Line, now: float) -> str:
        """Takes one message that came at `now`. Returns `phase`, `progress`, or an empty text when nothing changed."""
        if line.rank:
            self.leader = self.leader or line.rank
            if line.rank != self.leader:
                return ""
        for pattern, phase in _COMPILED:
            if pattern.search(line.text):
                return self._mark(phase, line, now)
        if self.phase == "starting" and line.text.strip():
            return self._enter("importing", now)
        if self.phase == "compiling" and self.before_compiling and _COMPILE_END.search(line.text):
            return self._enter(self.before_compiling, now)
        return self._advance(line, now)

    def _mark(self, phase: str, line: Line, now: float) -> str:
        if phase == "ready":
            self.ready = True
            return ""
        if re.search(_HTTP_UP, line.text, re.IGNORECASE):
            self.http_up = True
        if phase == "compiling" and self.phase != "compiling":
            self.before_compiling = self.phase
        if phase == "arguments" and self.phase not in ("starting", "importing"):
            return ""
        changed, moved = self._enter(phase, now), self._advance(line, now)
        return changed or moved

    def _enter(self, phase: str, now: float) -> str:
        if phase == self.phase:
            return ""
        self.spent[self.phase] = round(self.spent.get(self.phase, 0.0) + max(0.0, now - self.phase_since), 1)
        self.phase, self.phase_since, self.progress, self.moved = phase, now, "", now
        return "phase"

    def _advance(self, line: Line, now: float) -> str:
        for phase, pattern in _PROGRESS:
            found = pattern.search(line.text) if phase == self.phase else None
            if found:
                done, total = found["done"], found["all"]
                percent = f"{round(100 * int(done) / int(total))} %" if int(total) else ""
                text = percent if phase == "weights" else f"{done}/{total}"
                if text and text != self.progress:
                    self.progress, self.moved = text, now
                    return "progress"
        return ""

    def finish(self, now: float) -> str:
        """Marks the start as over, the server as ready."""
        return self._enter("ready", now)

    def overdue(self, limits: dict[str, int], now: float, began: float) -> int | None:
        """The limit of this phase in seconds if nothing moved for longer since watching `began`, else None."""
        limit = limits.get(self.phase)
        return limit if limit is not None and now - max(self.moved, began) > limit else None

    def says(self) -> str:
        """Phase and progress as a person reads it: `loading weights 37 %`."""
        return " ".join(filter(None, [PHASES[self.phase], self.progress]))

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `Tracker(**data)` goes on from it."""
        return dict(vars(self))
