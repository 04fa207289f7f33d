"""What Prometheus and Grafana need for the instances of the inventory, computed on the controller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))

from sglang_deploy.monitoring import book, render, targets

PROJECT = Path(__file__).resolve().parents[2]


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Returns `files`, each with path, content and what promtool can check it as, and `targets`, how many of each job.

    folder: where they go on the host of Prometheus. servers, routers: hosts of the inventory. limits, ca_file,
    alertmanagers, exporter_port, interval: as the role has them. configuration: path of prometheus.yml, empty where it is
    somebody else's. grafana_dir: where the dashboard goes besides.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args, task_vars = self._task.args, task_vars or {}
        watcher, hostvars = str(task_vars["inventory_hostname"]), task_vars["hostvars"]
        defaults = {**_defaults("sglang_plan"), **_defaults("sglang_router")}
        try:
            found = book.load(PROJECT / "catalog" / "monitoring.yml", args.get("limits"))
            hosts = [targets.host_of(name, hostvars[name].get, defaults) for name in args["servers"]]
            scraped = {"sglang": targets.servers(hosts, watcher)}
            scraped["sglang-host"] = targets.exporters(hosts, watcher, int(args["exporter_port"]))
            if args["routers"]:
                between = [_router(name, hostvars[name].get, defaults) for name in args["routers"]]
                scraped["sglang-router"] = targets.routers(between, watcher)
        except book.MonitoringError as error:
            raise AnsibleActionFail(str(error)) from error
        except targets.UnreachableTargets as error:
            said = "\n".join(f"- {problem}" for problem in error.problems)
            raise AnsibleActionFail(f"Prometheus on {watcher} cannot watch everything:\n{said}") from error
        folder = str(args["folder"])
        jobs = render.jobs(folder, list(scraped), str(args["ca_file"] or ""), int(args["interval"]))
        files = [
            _file(f"{folder}/rules.yml", render.rules(found), "rules"),
            _file(f"{folder}/scrape.yml", render.scrape_file(jobs)),
            _file(f"{folder}/dashboard.json", render.dashboard(found)),
            *(_file(f"{folder}/targets/{name}.json", render.targets_file(each)) for name, each in scraped.items()),
        ]
        if args["grafana_dir"]:
            files.append(_file(f"{args['grafana_dir']}/sglang.json", render.dashboard(found)))
        if args["configuration"]:
            text = render.configuration(folder, jobs, args["alertmanagers"])
            files.append(_file(str(args["configuration"]), text, "config"))
        return {**result, "changed": False, "files": files, "targets": {name: len(each) for name, each in scraped.items()}}


def _file(path: str, content: str, check: str = "") -> dict[str, str]:
    return {"path": path, "content": content, "check": check}


def _router(name: str, read: Callable[[str], Any], defaults: Mapping[str, Any]) -> targets.Host:
    bind, port = (
        read(variable) if read(variable) is not None else defaults[variable]
        for variable in ("sglang_router_metrics_host", "sglang_router_metrics_port")
    )
    return targets.Host(name, targets.address_of(name, read), bind=str(bind), port=int(port))


def _defaults(role: str) -> dict[str, Any]:
    path = PROJECT / "roles" / role / "defaults" / "main.yml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}
