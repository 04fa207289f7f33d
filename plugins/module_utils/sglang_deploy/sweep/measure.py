"""What a trial is worth: SGLang's own bench_serving against the running server, and the objective over its results.

`run` works on the managed host with the release's Python, so this module needs the standard library alone.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# The tool imports `datasets` for data sets that are not used here, and a release for the CPU may lack it. All rounds run
# in one process, since importing SGLang takes as long as a short round.
RUNNER = """\
import importlib.util, json, runpy, sys, types
if importlib.util.find_spec("datasets") is None:
    absent = types.ModuleType("datasets")
    absent.load_dataset = None
    sys.modules["datasets"] = absent
for words in json.load(sys.stdin):
    sys.argv = ["bench_serving", *words]
    runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
"""
CEILINGS = ("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms", "e2e_p50_ms")
OBJECTIVES = ("throughput", "latency")
_GPU_QUERY = ["nvidia-smi", "--query-gpu=memory.used,power.draw", "--format=csv,noheader,nounits"]
_SAMPLE_S = 2.0


class MeasureError(Exception):
    """The tool brought no result; the message says what it said last."""


@dataclass(frozen=True)
class Workload:
    """What is sent: tokens in and out of each request, the numbers of users, requests of each user, rounds.

    `rounds` counts the rounds at the number of users that the objective names; the others have one. A round before
    them is thrown away.
    """

    users: tuple[int, ...]
    input_tokens: int = 1024
    output_tokens: int = 256
    requests_per_user: int = 4
    rounds: int = 3

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class Round:
    """One run of the tool at one number of users. Times in milliseconds, rates in tokens a second."""

    users: int
    completed: int
    failed: int
    output_rate: float
    total_rate: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    e2e_p50_ms: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class Level:
    """All rounds at one number of users: means, and the standard error of the output rate and of the latency."""

    users: int
    rounds: int
    failed: int
    output_rate: float
    output_rate_error: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    e2e_p50_ms: float
    e2e_p50_error: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class Objective:
    """What is better. kind: throughput (under the ceilings) or latency, at a number of users.

    ceilings: limits by name (CEILINGS), in milliseconds.
    """

    kind: str
    users: int
    ceilings: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"kind": self.kind, "users": self.users, "ceilings": dict(self.ceilings)}

    def score(self, levels: Sequence[Level]) -> tuple[float, float, str]:
        """Value (higher is better), its standard error, and what keeps it from counting, empty where nothing does.

        Above a ceiling the value is negative, and the nearer to the ceiling the better. For latency it is a thousand
        over the median request in milliseconds, that is requests a second for one user after another.
        """
        level = next((each for each in levels if each.users == self.users), None)
        if level is None:
            return -math.inf, 0.0, f"not measured at {self.users} users"
        over = {name: getattr(level, name) / limit for name, limit in self.ceilings.items()}
        worst = max(over, key=lambda name: over[name], default="")
        if worst and over[worst] > 1:
            told = f"{worst} is {getattr(level, worst):.0f} ms, above the ceiling of {self.ceilings[worst]:.0f} ms"
            return -over[worst], 0.0, told
        if self.kind == "latency":
            value = 1000 / level.e2e_p50_ms
            return value, value * level.e2e_p50_error / level.e2e_p50_ms, ""
        return level.output_rate, level.output_rate_error, ""


def arguments(workload: Workload, named: int, url: str, model: str, output: str, first_seed: int = 1) -> list[list[str]]:
    """The tool's arguments for a round to warm up and for every round. `named` is the objective's number of users.

    Every round has prompts of its own, so that none finds another one's prefix in the cache.
    """
    plan = [named, *(users for users in workload.users for _ in range(workload.rounds if users == named else 1))]
    calls = []
    for number, users in enumerate(plan):
        requests = users if number == 0 else users * workload.requests_per_user
        calls.append(
            [
                *("--backend", "sglang", "--base-url", url, "--model", model),
                *("--dataset-name", "random-ids", "--num-prompts", str(max(1, requests))),
                *("--random-input-len", str(workload.input_tokens), "--random-output-len", str(workload.output_tokens)),
                *("--random-range-ratio", "1.0", "--max-concurrency", str(users), "--seed", str(first_seed + number)),
                *("--output-file", os.devnull if number == 0 else output, "--output-details", "--disable-tqdm"),
            ]
        )
    return calls


def parse(line: str) -> Round:
    """One line of the tool's output file. Raises MeasureError where it is none or lacks what is needed."""
    try:
        data = json.loads(line)
        failed = sum(bool(error) for error in data.get("errors") or ())
        ttfts = [value for value in data["ttfts"] if value > 0]
        itls = [value for values in data["itls"] for value in values]
        return Round(
            users=int(data["max_concurrency"]),
            completed=int(data["completed"]),
            failed=failed,
            output_rate=float(data["output_throughput"]),
            total_rate=float(data.get("total_throughput") or 0.0),
            ttft_p50_ms=1000 * percentile(ttfts, 50),
            ttft_p95_ms=1000 * percentile(ttfts, 95),
            itl_p50_ms=1000 * percentile(itls, 50),
            itl_p95_ms=1000 * percentile(itls, 95),
            e2e_p50_ms=float(data["median_e2e_latency_ms"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise MeasureError(
            f"bench_serving's result cannot be read ({type(error).__name__}: {error}): {line[:200]}"
        ) from None


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, between two of them where need be. 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def levels(rounds: Sequence[Round]) -> list[Level]:
    """The rounds put together by number of users, the fewest first."""
    found = []
    for users in sorted({each.users for each in rounds}):
        mine = [each for each in rounds if each.users == users]
        rates, latencies = [each.output_rate for each in mine], [each.e2e_p50_ms for each in mine]
        found.append(
            Level(
                users=users,
                rounds=len(mine),
                failed=sum(each.failed for each in mine),
                output_rate=statistics.fmean(rates),
                output_rate_error=_error(rates),
                ttft_p50_ms=statistics.fmean(each.ttft_p50_ms for each in mine),
                ttft_p95_ms=statistics.fmean(each.ttft_p95_ms for each in mine),
                itl_p50_ms=statistics.fmean(each.itl_p50_ms for each in mine),
                itl_p95_ms=statistics.fmean(each.itl_p95_ms for each in mine),
                e2e_p50_ms=statistics.fmean(latencies),
                e2e_p50_error=_error(latencies),
            )
        )
    return found


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean; 0 of one value, where it is not known."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Measured:
    """Levels, and the most memory (MiB) and the mean power (W) of each GPU meanwhile; empty without nvidia-smi."""

    levels: tuple[Level, ...]
    gpu_memory_mib: tuple[int, ...] = ()
    gpu_power_w: tuple[float, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "levels": [level.as_dict() for level in self.levels],
            "gpu_memory_mib": list(self.gpu_memory_mib),
            "gpu_power_w": list(self.gpu_power_w),
        }


def run(
    python: str,
    environment: Mapping[str, str],
    workload: Workload,
    named: int,
    url: str,
    model: str,
    seconds: float,
    first_seed: int = 1,
    owner: tuple[int, int] | None = None,
) -> Measured:
    """Measure a running server.

    python: the release's interpreter. environment: the instance's variables, since the tool loads the model's tokenizer.
    seconds: limit for all rounds. owner: user and group id to run as, None for the caller's.
    Raises MeasureError where the tool fails, takes too long, or a request of a round was not answered.
    """
    with tempfile.TemporaryDirectory(prefix="sglang-bench-") as folder:
        result, said = Path(folder, "rounds.jsonl"), Path(folder, "said.txt")
        user, group = owner or (None, None)
        if owner is not None:
            os.chown(folder, *owner)
        calls = arguments(workload, named, url, model, str(result), first_seed)
        with said.open("wb") as output, _GpuWatch() as gpus:
            child = subprocess.Popen(
                [python, "-W", "ignore", "-c", RUNNER],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, "HF_HUB_OFFLINE": "1"},
                cwd=folder,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=() if owner is not None else None,
            )
            try:
                child.communicate(json.dumps(calls).encode(), timeout=seconds)
            except subprocess.TimeoutExpired:
                raise MeasureError(f"bench_serving was not done after {seconds:.0f} s; {_last(said)}") from None
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        if child.returncode or not result.is_file():
            raise MeasureError(f"bench_serving ended with status {child.returncode}; {_last(said)}")
        rounds = [parse(line) for line in result.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(rounds) != len(calls) - 1:
        raise MeasureError(f"bench_serving did {len(rounds)} of {len(calls) - 1} rounds; {_last_of(rounds)}")
    if bad := [each for each in rounds if each.failed or each.completed == 0]:
        raise MeasureError(f"{bad[0].failed} requests were not answered at {bad[0].users} users")
    return Measured(tuple(levels(rounds)), gpus.memory_mib, gpus.power_w)


def _last(path: Path) -> str:
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"its last line: {lines[-1][:300]}" if lines else "it said nothing"


def _last_of(rounds: Sequence[Round]) -> str:
    return f"the last was at {rounds[-1].users} users" if rounds else "none was completed"


class _GpuWatch:
    """Samples nvidia-smi while something else runs; nothing where there is none."""

    def __init__(self) -> None:
        self._samples: list[list[tuple[int, float]]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _GpuWatch:
        if shutil.which(_GPU_QUERY[0]):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            try:
                answer = subprocess.run(_GPU_QUERY, capture_output=True, text=True, check=True, timeout=20).stdout
            except (OSError, subprocess.SubprocessError):
                return
            if sample := parse_gpus(answer):
                self._samples.append(sample)
            self._done.wait(_SAMPLE_S)

    @property
    def memory_mib(self) -> tuple[int, ...]:
        return tuple(max(sample[0] for sample in gpu) for gpu in zip(*self._samples, strict=False))

    @property
    def power_w(self) -> tuple[float, ...]:
        return tuple(round(statistics.fmean(sample[1] for sample in gpu), 1) for gpu in zip(*self._samples, strict=False))


def parse_gpus(text: str) -> list[tuple[int, float]]:
    """Memory in use (MiB) and power (W) of each GPU in nvidia-smi's CSV; a value that it does not tell is 0."""

    def number(cell: str) -> float:
        try:
            return float(cell)
        except ValueError:
            return 0.0

    rows = [line.split(",") for line in text.splitlines()]
    return [(int(number(row[0])), number(row[1])) for row in rows if len(row) == 2]
