"""Where Prometheus finds what it scrapes: servers, exporters and routers of the inventory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..problems import Problems

LOOPBACK = ("", "localhost", "::1")
SHOWN = 5
"""Hosts that a problem names."""


@dataclass(frozen=True)
class Host:
    """A host of the inventory as Prometheus sees it.

    address: where others reach it. service: the instance's name. bind, port: `sglang_host` and `sglang_port`. tls_name: what
    its certificate is for, empty for HTTP. metrics: whether the server has them. first: not a further rank of its instance,
    which answers nothing.
    """

    name: str
    address: str
    service: str = ""
    bind: str = ""
    port: int = 0
    tls_name: str = ""
    metrics: bool = True
    first: bool = True


@dataclass(frozen=True)
class Target:
    """An address with its labels."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As an entry of a file for file_sd_configs."""
        return {"targets": [self.address], "labels": dict(self.labels)}


class UnreachableTargets(Problems):
    """Some of them cannot be scraped. `problems` says why, each with what to write."""


def servers(hosts: Iterable[Host], watcher: str) -> list[Target]:
    """The servers' /metrics. watcher: name of the host that scrapes. Raises UnreachableTargets."""
    found, mute, hidden = [], [], []
    for host in (host for host in hosts if host.first):
        here = host.name == watcher
        if not host.metrics:
            mute.append(host.name)
        elif _is_loopback(host.bind) and not here:
            hidden.append(host.name)
        address = host.tls_name or _address(host, here)
        labels = {"host": host.name, "service": host.service, "__scheme__": "https" if host.tls_name else "http"}
        found.append(Target(_joined(address, host.port), labels))
    _refuse(
        (mute, "no metrics: write enable_metrics: true into sglang_settings and deploy"),
        (
            hidden,
            f"the server listens on loopback and {watcher} is another host: set sglang_host (with sglang_api_key, and a "
            "firewall before /metrics, which wants no key), or put the host itself into the group monitoring",
        ),
    )
    return found


def exporters(hosts: Iterable[Host], watcher: str, port: int) -> list[Target]:
    """The node exporters, one a host."""
    seen = {host.name: host for host in hosts}
    return [
        Target(_joined("127.0.0.1" if host.name == watcher else host.address, port), {"host": host.name})
        for host in seen.values()
    ]


def routers(hosts: Iterable[Host], watcher: str) -> list[Target]:
    """The routers' metrics. Raises UnreachableTargets."""
    hosts = list(hosts)
    hidden = [host.name for host in hosts if _is_loopback(host.bind) and host.name != watcher]
    _refuse((hidden, f"the router's metrics are on loopback and {watcher} is another host: set sglang_router_metrics_host"))
    return [Target(_joined(_address(host, host.name == watcher), host.port), {"host": host.name}) for host in hosts]


def host_of(name: str, read: Callable[[str], Any], defaults: Mapping[str, Any]) -> Host:
    """A host with a server. read: the value of a variable there, None where it is not set; defaults: the roles' own."""

    def value(variable: str) -> Any:
        found = read(variable)
        return defaults.get(variable) if found is None else found

    settings = {**_mapping(value("sglang_settings")), **_mapping(value("sglang_backends"))}
    bind = str(value("sglang_host") or "")
    certified = (
        str(value("sglang_tls_name") or ("" if _is_wildcard(bind) else bind)) if value("sglang_tls_certificate") else ""
    )
    return Host(
        name,
        address_of(name, read),
        str(value("sglang_instance")),
        bind,
        int(value("sglang_port")),
        certified,
        settings.get("enable_metrics") is True or "--enable-metrics" in (value("sglang_extra_args") or ()),
        first=name not in (value("sglang_nodes") or ())[1:],
    )


def address_of(name: str, read: Callable[[str], Any]) -> str:
    """Where other hosts reach a host: monitoring_address, else the address that Ansible uses, else its name."""
    return str(read("monitoring_address") or read("ansible_host") or name)


def _address(host: Host, here: bool) -> str:
    if _is_wildcard(host.bind):
        return "127.0.0.1" if here else host.address
    return host.address if not _is_loopback(host.bind) and not here else host.bind or "127.0.0.1"


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _is_wildcard(bind: str) -> bool:
    return bind in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound to


def _is_loopback(bind: str) -> bool:
    return bind in LOOPBACK or bind.startswith("127.")


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _refuse(*groups: tuple[list[str], str]) -> None:
    problems = []
    for names, problem in groups:
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            problems.append(f"{', '.join(names[:SHOWN])}{more}: {problem}")
    if problems:
        raise UnreachableTargets(problems)
