"""The router in front of several instances: what it is built from, and how it is started. Runs on the controller.

Its settings are its own long options with underscores, checked against the option list of the built release, or the recorded
one before there is a release. The result has the form of an instance's launch spec, so that unit, gate, ledger and last good
deployment are those of a server.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from . import instance, render, router_start, secrets
from .dialect import Dialect, Option, text_of
from .fields import FieldError, build
from .launch_spec import Choice, LaunchSpec, Variable
from .names import instance_problem, suggest, text_problem
from .problems import Problems

TEMPLATE = "sglang-router"
"""Name of the template unit."""
STACK = "router"
START = "start.py"
KINDS = ("regular", "prefill", "decode")
OPEN_BIND = "open-bind"
"""The plan rule of that name, for sglang_allow."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
RESERVED = {
    "host": "set sglang_router_host",
    "port": "set sglang_router_port",
    "worker_urls": "workers are the hosts of the inventory's group sglang_router_group, or sglang_router_workers",
    "prefill": "a worker's own sglang_settings say disaggregation_mode: prefill",
    "decode": "a worker's own sglang_settings say disaggregation_mode: decode",
    "pd_disaggregation": "it follows from the workers' disaggregation_mode",
    "mini_lb": "it is upstream's load balancer for debugging, without retries and health checks",
    "prometheus_host": "set sglang_router_metrics_host",
    "prometheus_port": "set sglang_router_metrics_port",
    "api_key": "set sglang_router_api_key: as an argument everybody on the host could read it",
    "control_plane_api_keys": "set sglang_router_admin_api_key: as an argument everybody on the host could read it",
    "oracle_password": "as an argument everybody on the host could read it",
    "postgres_db_url": "as an argument everybody on the host could read its password",
    "redis_url": "as an argument everybody on the host could read its password",
    "service_discovery": "workers come from the inventory",
    "disable_health_check": "a worker that died would go on to get requests",
    "log_dir": "the log is the unit's journal",
}
"""Settings that are given in another way, or not at all, and why."""


class RouterError(Problems):
    """The router cannot be run as asked for. `problems` lists everything, each with what to write instead."""

    mark = "- "


@dataclass(frozen=True)
class Evidence:
    """One fact, where it was read or tried, and when."""

    fact: str
    source: str
    date: str


@dataclass(frozen=True)
class Entry:
    """catalog/router.yml: the package, its version, and settings with their evidence. disk_mib: what a build needs free."""

    summary: str
    package: str
    version: str
    python: str
    evidence: tuple[Evidence, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    disk_mib: int = 0

    def stack(self) -> dict[str, Any]:
        """In the form that the release builder takes."""
        return {
            "name": STACK,
            "program": "sglang_router",
            "source": {"kind": "index", "package": self.package, "version": self.version},
            "python": self.python,
            "disk_mib": self.disk_mib,
        }


@dataclass(frozen=True)
class Worker:
    """An instance as the router reaches it. bootstrap_port: of a prefill worker, None for the router's own default."""

    url: str
    kind: str = "regular"
    bootstrap_port: int | None = None


@dataclass(frozen=True)
class Request:
    """What is asked for.

    release: the id of the built release and path its folder, empty before it is built; keys: names of the keys that the
    router gets, and identity the id of this set. settings: layers with the place that each comes from, over the catalog's.
    allow: plan rules that may be broken. real_model: whether the workers' weights are trained, for the gate.
    """

    name: str
    workers: Sequence[Worker]
    dialect: Dialect
    host: str = ""
    port: int = 30000
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 29000
    settings: Sequence[tuple[str, Mapping[str, Any]]] = ()
    keys: Sequence[str] = ()
    identity: str = ""
    release: str = ""
    path: str = ""
    config_root: str = "/etc/sglang-router"
    cache_root: str = "/var/cache/sglang-router"
    allow: Sequence[str] = ()
    real_model: bool = True


def load(path: Path) -> Entry:
    """The catalog's entry. Raises RouterError with every problem of the file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        return build(Entry, data, path.name)
    except OSError as error:
        raise RouterError([f"{path}: cannot be read ({error.strerror})"]) from error
    except yaml.YAMLError as error:
        raise RouterError([f"{path}: is not YAML ({str(error).splitlines()[0]})"]) from error
    except FieldError as error:
        raise RouterError(error.problems) from error


def worker_url(given: str, name: str, port: object, certificate: str = "") -> str:
    """Where routers reach an instance: what is given, else the host's inventory name and port, https with a certificate."""
    if given:
        return given.rstrip("/")
    address = f"[{name}]" if ":" in name else name
    return f"{'https' if certificate else 'http'}://{address}:{port}"


def worker_of(host: str, variables: Mapping[str, Any]) -> Worker:
    """The worker that a host of the inventory is, from its variables. Raises RouterError for a port that is none."""
    url = worker_url(
        str(variables.get("sglang_worker_url") or ""),
        host,
        variables.get("sglang_port") or 8000,
        str(variables.get("sglang_tls_certificate") or ""),
    )
    settings = {**(variables.get("sglang_settings") or {}), **(variables.get("sglang_backends") or {})}
    try:
        return Worker(url, **part_of(settings))
    except ValueError as error:
        raise RouterError([f"{host}: {error}"]) from error


def part_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What an instance does for a router, `kind` and `bootstrap_port`, by its own settings: plain values, or those of a
    launch spec. Raises ValueError for a port that is none.
    """
    plain = {name: value["value"] if isinstance(value, Mapping) else value for name, value in settings.items()}
    kind = str(plain.get("disaggregation_mode") or "regular")
    port = plain.get("disaggregation_bootstrap_port") if kind == "prefill" else None
    try:
        number = None if port is None else int(str(port))
    except ValueError as error:
        raise ValueError(f"disaggregation_bootstrap_port {port!r} is no port") from error
    return {"kind": "regular" if kind == "null" else kind, "bootstrap_port": number}


def resolve(entry: Entry, request: Request) -> dict[str, Any]:
    """The deployment: launch spec, launch script, environment file and start program, as an instance has them.

    Raises RouterError with everything that is wrong.
    """
    problems = [*_worker_problems(request.workers), *_bind_problems(request)]
    if problem := instance_problem(request.name):
        problems.append(problem)
    settings, wrong = _settings(entry, request)
    problems += wrong
    if problems:
        raise RouterError(problems)
    directory = f"{request.config_root}/{request.name}"
    python = f"{request.path}/venv/bin/python"
    policy = str(settings["policy"].value) if "policy" in settings else "default"
    spec = LaunchSpec(
        instance=request.name,
        stack=STACK,
        sglang_version=f"router {entry.version}",
        release=request.release or None,
        profile=policy,
        model="",
        settings={**_own(request), **settings, **_workers(request.workers)},
        extra_args=(),
        environment={name: Variable(value, source) for name, (value, source) in _environment(request, policy).items()},
    )
    program = (f"{directory}/{START}",)
    return {
        "spec": {
            **spec.as_dict(),
            "command": [python, *program, *spec.argv],
            "url": instance.local_url(request.host or LOOPBACK[0], request.port, _scheme(settings)),
            "tls": {},
            "server_fields": {},
            "allowed": [OPEN_BIND] if OPEN_BIND in request.allow and _open(request) else [],
            "secrets": list(request.keys),
            "template": TEMPLATE,
        },
        "launch": render.launch_script(spec, python, f"{directory}/environment", program),
        "environment": render.environment_file({**spec.variables, instance.MARKER: spec.hash}),
        "files": {START: inspect.getsource(router_start)},
        "real_model": request.real_model,
    }


def _worker_problems(workers: Sequence[Worker]) -> list[str]:
    problems = []
    if not workers:
        problems.append(
            "there is no worker: put hosts into the inventory's group that sglang_router_group names, "
            "or write their addresses into sglang_router_workers"
        )
    urls = [worker.url for worker in workers]
    problems += [f"{url} is there more than once: each worker has an address of its own" for url in _twice(urls)]
    for worker in workers:
        parts = urlsplit(worker.url)
        good = parts.scheme in ("http", "https") and parts.hostname and not (parts.path or parts.query or parts.username)
        if not good or not _port_of(worker.url) or text_problem(worker.url):
            problems.append(f"{worker.url!r} is no address of a worker: write one such as http://gpu1.example.com:8000")
        if worker.kind not in KINDS:
            problems.append(f"{worker.url}: disaggregation_mode {worker.kind!r} is not known; {suggest(worker.kind, KINDS)}")
    kinds = {worker.kind for worker in workers}
    if "regular" in kinds and kinds & {"prefill", "decode"}:
        problems.append(
            "some workers serve whole requests, and others only prefill or decode: give each kind a router of its own"
        )
    elif len(kinds & {"prefill", "decode"}) == 1:
        there = "prefill" if "prefill" in kinds else "decode"
        other = "decode" if there == "prefill" else "prefill"
        problems.append(f"all workers have disaggregation_mode {there}: one with {other} is needed, too")
    return problems


def _port_of(url: str) -> int | None:
    try:
        return urlsplit(url).port
    except ValueError:
        return None


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _open(request: Request) -> bool:
    return bool(request.host) and request.host not in LOOPBACK and "api_key" not in request.keys


def _bind_problems(request: Request) -> list[str]:
    problems = []
    if _open(request) and OPEN_BIND not in request.allow:
        problems.append(
            f"sglang_router_host {request.host} is open to others, and no key is asked for: set sglang_router_api_key (or "
            f"sglang_api_key of the workers), or leave the address out; to go on all the same: sglang_allow: [{OPEN_BIND}]"
        )
    if request.port == request.metrics_port:
        problems.append(f"sglang_router_port and sglang_router_metrics_port are both {request.port}: take another one")
    for name, port in (("sglang_router_port", request.port), ("sglang_router_metrics_port", request.metrics_port)):
        if not 0 < port < 65536:
            problems.append(f"{name} {port} is no port: write one from 1 to 65535")
    return problems


def _settings(entry: Entry, request: Request) -> tuple[dict[str, Choice], list[str]]:
    """The chosen settings in the order of the parser's list, and what is wrong with them."""
    by_name = {option.flags[-1].removeprefix("--").replace("-", "_"): option for option in request.dialect.options}
    found: dict[str, Choice] = {}
    problems: list[str] = []
    for source, layer in [("catalog/router.yml", entry.settings), *request.settings]:
        for name, value in layer.items():
            if name in RESERVED:
                problems.append(f"{name} (from {source}): {RESERVED[name]}")
            elif name not in by_name:
                known = [other for other in by_name if other not in RESERVED]
                problems.append(f"{name} (from {source}) is no setting of the router; {suggest(str(name), known)}")
            elif value is None:
                found.pop(name, None)
            else:
                words, problem = _words(by_name[name], value)
                if problem:
                    problems.append(f"{name} (from {source}): {problem}")
                else:
                    found[name] = Choice(value, source, words)
    return {name: found[name] for name in by_name if name in found}, problems


def _words(option: Option, value: object) -> tuple[tuple[str, ...], str]:
    """The arguments that a value becomes, and why it cannot."""
    flag = option.flags[-1]
    if option.nargs == 0:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if not isinstance(value, bool):
            return (), f"{value!r} is not true or false"
        return ((flag,) if value else ()), ""
    if isinstance(value, (bool, Mapping)):
        return (), f"{value!r} is neither text nor a number"
    values = [text_of(one) for one in (value if isinstance(value, (list, tuple)) else [value])]
    for text in values:
        if problem := text_problem(text):
            return (), problem
        if not text.strip() or (text.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", text)):
            return (), f"{text!r} would be read as an option or as nothing"
    return (flag, *values), option.problem(values) or ""


def _own(request: Request) -> dict[str, Choice]:
    values = {
        "host": ("--host", request.host or LOOPBACK[0], "sglang_router_host"),
        "port": ("--port", request.port, "sglang_router_port"),
        "prometheus_host": ("--prometheus-host", request.metrics_host, "sglang_router_metrics_host"),
        "prometheus_port": ("--prometheus-port", request.metrics_port, "sglang_router_metrics_port"),
    }
    return {name: Choice(value, source, (flag, str(value))) for name, (flag, value, source) in values.items()}


def _workers(workers: Sequence[Worker]) -> dict[str, Choice]:
    """The workers as arguments, in an order that does not depend on the inventory's."""
    ordered = sorted(workers, key=lambda worker: worker.url)
    source = "the inventory"
    if all(worker.kind == "regular" for worker in ordered):
        urls = [worker.url for worker in ordered]
        return {"worker_urls": Choice(urls, source, ("--worker-urls", *urls))}
    prefill = [worker for worker in ordered if worker.kind == "prefill"]
    words = [("--prefill", w.url, *([] if w.bootstrap_port is None else [str(w.bootstrap_port)])) for w in prefill]
    decode = [worker.url for worker in ordered if worker.kind == "decode"]
    return {
        "pd_disaggregation": Choice(True, source, ("--pd-disaggregation",)),
        "prefill": Choice([worker.url for worker in prefill], source, tuple(word for group in words for word in group)),
        "decode": Choice(decode, source, tuple(word for url in decode for word in ("--decode", url))),
    }


def _scheme(settings: Mapping[str, Choice]) -> str:
    return "https" if "tls_cert_path" in settings else "http"


def _environment(request: Request, policy: str) -> dict[str, tuple[str, str]]:
    source = "what a unit needs"
    own = {
        "HOME": f"{request.cache_root}/{request.release or STACK}/{policy}/home",
        "PATH": f"{request.path}/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    found = {name: (value, source) for name, value in own.items()}
    if request.keys:
        directory = f"{request.config_root}/{request.name}"
        added = secrets.environment(directory, request.identity, secrets.path(directory))
        found |= {name: (value, "sglang_router_api_key") for name, value in added.items()}
    return found
