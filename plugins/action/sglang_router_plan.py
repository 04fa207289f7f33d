"""Resolve what the inventory asks of a router to a deployment, and show it; on the controller."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import dialect, router, secrets  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: those of the role sglang_router. Fails where something cannot run; the host is only ever read.

    hosts: of the inventory, whose variables say where each worker is; workers: addresses instead of them.
    keys: the router's keys by name; they end here and on the host, and are in nothing that is returned.
    release: as the role sglang_release leaves it, {} before it is known. show: say what would run.

    Returns stack (for the release), constraints, deployment, workers and, for sglang_router_workers, targets.
    """

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args, task_vars = self._task.args, task_vars or {}
        release = args["release"] or {}
        try:
            entry = router.load(PROJECT / "catalog" / "router.yml")
            keys = secrets.checked(args["keys"] or {})
            workers = _workers(args, task_vars)
            options = release.get("options")
            spoken = (
                dialect.parse(options, f"release {release['id']}")
                if options
                else dialect.read(PROJECT / "catalog" / "router-options.json")
            )
            request = router.Request(
                name=str(args["name"]),
                workers=workers,
                dialect=spoken,
                host=str(args["host"] or ""),
                port=_port(args, "port"),
                metrics_host=str(args["metrics_host"]),
                metrics_port=_port(args, "metrics_port"),
                settings=[("sglang_router_settings", _mapping(args["settings"]))],
                keys=sorted(keys),
                identity=self._identity(args, keys, task_vars) if keys and args["show"] else "",
                release=str(release.get("id") or ""),
                path=str(release.get("path") or f"{args['root']}/releases/{router.STACK}"),
                config_root=str(args["config_root"]),
                cache_root=str(args["cache_root"]),
                allow=[str(rule) for rule in args["allow"] or ()],
                real_model=bool(args["real_model"]),
            )
            deployment = router.resolve(entry, request)
        except (router.RouterError, secrets.SecretError, dialect.DialectError) as error:
            raise AnsibleActionFail(f"The router cannot run like this; nothing was stopped:\n{error}") from error
        if args["show"]:
            self._show(deployment, str(task_vars["inventory_hostname"]))
        return {
            "changed": False,
            "stack": entry.stack(),
            "constraints": "",
            "deployment": deployment,
            "targets": [vars(worker) for worker in workers],
        }

    def _identity(self, args: Mapping[str, Any], keys: Mapping[str, str], task_vars: dict[str, Any]) -> str:
        """The id of these keys: that of the host's where they are the same."""
        call = {"name": args["name"], "config_root": args["config_root"], "template": router.TEMPLATE, "keys": dict(keys)}
        answer = self._execute_module(module_name="sglang_secrets", module_args=call, task_vars=task_vars)
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure(str(answer.get("msg")))
        if "id" not in answer:
            raise AnsibleActionFail(f"The host's keys could not be compared: {answer.get('msg')}")
        return str(answer["id"])

    def _show(self, deployment: Mapping[str, Any], host: str) -> None:
        spec = deployment["spec"]
        lines = [f"{host}: plan of router {spec['instance']}: sglang-{spec['sglang_version']}, {spec['url']}"]
        for name, choice in spec["settings"].items():
            value = ", ".join(map(str, choice["value"])) if isinstance(choice["value"], list) else choice["value"]
            lines.append(f"  {name:32} {value}  ({choice['source']})")
        Display().display("\n".join(lines))


def _workers(args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> list[router.Worker]:
    """The workers that are written out, else those that the hosts of the group are."""
    given = args["workers"] or []
    if not isinstance(given, list):
        raise router.RouterError([f"sglang_router_workers is {given!r}: write a list of addresses"])
    if given:
        return [router.Worker(str(url).rstrip("/")) for url in given]
    variables = {host: task_vars["hostvars"][host] for host in args["hosts"] or []}
    # Of an instance over several hosts the first one answers.
    first = [host for host, own in variables.items() if host not in (own.get("sglang_nodes") or [])[1:]]
    return [router.worker_of(host, variables[host]) for host in first]


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise router.RouterError(
            [f"sglang_router_settings is {value!r}: write names and values, such as policy: round_robin"]
        )
    return value


def _port(args: Mapping[str, Any], name: str) -> int:
    try:
        return int(str(args[name]))
    except ValueError as error:
        raise router.RouterError([f"sglang_router_{name} {args[name]!r} is no port: write one from 1 to 65535"]) from error
