"""Judgements of a host, and the report that they make: problems first, each with its remedy and source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .host_evidence import Evidence
from .names import suggest

REFUSE, WARN, INFORM = "refuse", "warn", "inform"
_ORDER = (REFUSE, WARN, INFORM)
_MARKS = {REFUSE: "REFUSED", WARN: "warning", INFORM: "note"}
_COLOURS = {WARN: "yellow"}


Told = Iterator[tuple[str, str, str, str]]
"""What a check yields: id, severity, reason and remedy."""


class UnknownJudgement(ValueError):
    """`host_check_allow` names no judgement."""


@dataclass(frozen=True)
class Judgement:
    """One thing that is certain to fail (refuse), may come to hurt (warn) or is good to know (inform).

    `allowed` marks a refusal that the user waived; it is then a warning.
    """

    id: str
    severity: str
    reason: str
    remedy: str
    source: tuple[str, ...]
    allowed: bool = False


@dataclass(frozen=True)
class Report:
    """All judgements, gravest first, and the topics of the host in a line each."""

    judgements: tuple[Judgement, ...]
    summary: tuple[tuple[str, str], ...]

    @property
    def refusals(self) -> tuple[Judgement, ...]:
        """What stops a deployment."""
        return tuple(found for found in self.judgements if found.severity == REFUSE)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "refused": bool(self.refusals),
            "judgements": [{**asdict(found), "source": list(found.source)} for found in self.judgements],
            "summary": [{"topic": topic, "found": text} for topic, text in self.summary],
        }


def report(
    judgements: Iterable[Judgement], summary: Sequence[tuple[str, str]], allow: Sequence[str], ids: Collection[str]
) -> Report:
    """The report of some judgements. `allow` turns refusals into warnings, `ids` are all that there are.

    Raises UnknownJudgement with the nearest names.
    """
    for name in allow:
        if name not in ids:
            raise UnknownJudgement(f"host_check_allow: there is no judgement {name!r}; {suggest(name, ids)}")
    told = [
        replace(found, severity=WARN, allowed=True) if found.severity == REFUSE and found.id in allow else found
        for found in judgements
    ]
    return Report(tuple(sorted(told, key=lambda found: _ORDER.index(found.severity))), tuple(summary))


def lines(found: Report, host: str, *, whole: bool) -> list[tuple[str, str | None]]:
    """The report as a person reads it but for its refusals, with which the caller stops: lines, each with its colour.

    Without `whole` sources, notes and summary are left out.
    """
    text: list[tuple[str, str | None]] = [(f"{host}: {_verdict(found)}", "red" if found.refusals else None)]
    for judgement in found.judgements:
        if judgement.severity == REFUSE or (judgement.severity == INFORM and not whole):
            continue
        text += [
            (line, _COLOURS.get(judgement.severity) if not n else None) for n, line in enumerate(_told(judgement, whole))
        ]
    if whole:
        width = max((len(topic) for topic, _ in found.summary), default=0)
        text += [(f"  {topic.ljust(width)}  {value}", None) for topic, value in found.summary]
    return text


def refusal(found: Report) -> list[str]:
    """What stops a deployment, in lines: why, what to do, how it is known, and how to go on all the same."""
    text = ["This host is not fit; nothing was changed:"]
    for judgement in found.refusals:
        text += [f"- {line}" if not n else line for n, line in enumerate(_told(judgement, True))]
        text.append(f"    to go on all the same: host_check_allow: [{judgement.id}]")
    return text


def _told(judgement: Judgement, whole: bool) -> list[str]:
    mark = "allowed" if judgement.allowed else _MARKS[judgement.severity]
    text = [f"{mark}: {judgement.id}: {judgement.reason}"]
    if not judgement.allowed:
        text.append(f"    remedy: {judgement.remedy}")
    if whole:
        text.append(f"    source: {', '.join(judgement.source)}")
    return text


def _verdict(found: Report) -> str:
    counts = [sum(entry.severity == severity for entry in found.judgements) for severity in _ORDER]
    parts = [
        _plural(counts[0], "refusal"),
        _plural(counts[1], "warning"),
        _plural(counts[2], "note"),
    ]
    said = ", ".join(part for part in parts if part)
    return f"the host is {'not ' if counts[0] else ''}fit{f' ({said})' if said else ''}"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}" if count else ""


def summary(evidence: Evidence) -> list[tuple[str, str]]:
    """What the host is, a line a topic; what could not be told is left out."""
    return [(topic, text) for topic, text in _topics(evidence) if text]


def _topics(evidence: Evidence) -> Iterable[tuple[str, str]]:
    kinds: dict[str, int] = {}
    for gpu in evidence.gpus:
        size = f", {gpu.memory_mib / 1024:.1f} GiB" if gpu.memory_mib else ""
        kind = f"{gpu.name}{size}{f', capability {gpu.capability}' if gpu.capability else ''}"
        kinds[kind] = kinds.get(kind, 0) + 1
    yield "GPUs", "; ".join(f"{count} x {kind}" for kind, count in kinds.items()) or f"none ({len(evidence.pci)} on the bus)"
    driver = evidence.driver
    flavour = {True: "open modules", False: "proprietary modules"}.get(driver.open) if driver.open is not None else ""
    serves = f"serves CUDA {driver.cuda}" if driver.cuda else ""
    yield "driver", ", ".join(filter(None, [driver.loaded, flavour, serves]))
    yield "CUDA compiler", evidence.nvcc or ""
    cells = sorted({cell for row in evidence.topology.paths for cell in row if cell != "X"})
    yield "paths between GPUs", ", ".join(cells)
    told = sorted({cell for row in evidence.topology.read for cell in row if cell != "X"})
    yield "P2P, by the driver", ", ".join(told)
    yield "IOMMU of the GPUs", ", ".join(sorted({gpu.iommu or "none" for gpu in evidence.pci}))
    links = sorted(
        {f"{gpu.link_gen_max}.0 x{gpu.link_width}" for gpu in evidence.gpus if gpu.link_gen_max and gpu.link_width}
    )
    yield "PCIe links", ", ".join(links)
    cpu = [f"{evidence.cpus} threads" if evidence.cpus else "", _plural(evidence.sockets or 0, "socket")]
    yield "CPU", ", ".join(filter(None, [*cpu, _plural(evidence.numa_nodes or 0, "NUMA node")]))
    memory = evidence.memory
    if memory.total_mib:
        free = f", {memory.available_mib / 1024:.0f} free" if memory.available_mib is not None else ""
        yield "memory", f"{memory.total_mib / 1024:.0f} GiB{free}"
    if memory.shm_mib is not None:
        yield "shared memory", f"{memory.shm_mib / 1024:.1f} GiB"
    for disk in evidence.disks:
        if disk.free_mib is not None:
            yield disk.use, f"{disk.path}: {disk.free_mib / 1024:.0f} GiB free on {disk.kind or 'an unknown filesystem'}"
    yield (
        "system",
        ", ".join(filter(None, [evidence.distribution.get("name"), evidence.kernel, f"systemd {evidence.systemd}"])),
    )
    yield "Pythons", ", ".join(f"{python.path} ({python.version})" for python in evidence.pythons)
    yield "not told", "; ".join(evidence.not_told)
    yield "looked for", f"{evidence.seconds} s"
