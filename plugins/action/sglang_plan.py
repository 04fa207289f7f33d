"""Resolve what group_vars ask for to a deployment, on the controller."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

try:  # Where a value was written. Internal to ansible-core 2.19 and later; without it the variable's name has to do.
    from ansible._internal._datatag._tags import Origin
except ImportError:
    Origin = None

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; plugins on the controller import them as Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import catalog, dialect, instance, launch_spec, names, render  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: those of the role sglang_plan. Returns stack, deployment and whether the option list is the release's own."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        release = args["release"] or {}
        try:
            known = catalog.load(PROJECT / "catalog", args["stacks"], args["profiles"])
            if args["stack"] not in known.stacks:
                raise AnsibleActionFail(_unknown_stack(str(args["stack"]), known))
            stack = known.stacks[args["stack"]]
            options = release.get("options")
            spoken = dialect.parse(options, f"release {release['id']}") if options else known.dialect(stack.sglang)
            spec = launch_spec.resolve(known, self._request(args, spoken, stack, release))
        except (catalog.CatalogError, dialect.DialectError) as error:
            raise AnsibleActionFail(str(error)) from error
        except launch_spec.LaunchSpecError as error:
            count = len(error.problems)
            lines = "\n".join(f"- {problem}" for problem in error.problems)
            raise AnsibleActionFail(
                f"This cannot run ({count} {'problem' if count == 1 else 'problems'}); nothing was changed:\n{lines}"
            ) from error
        return {
            "changed": False,
            "stack": stack.as_dict(),
            "constraints": _constraints(stack),
            "options_from": "release" if options else "catalog",
            "deployment": self._deployment(args, spec, release),
        }

    def _request(
        self, args: Mapping[str, Any], spoken: dialect.Dialect, stack: catalog.Stack, release: Mapping[str, Any]
    ) -> launch_spec.Request:
        own = {"served_model_name": args["served_model_name"], "host": args["host"], "port": args["port"]}
        layers = [
            *_layers({name: value for name, value in own.items() if value not in ("", None)}, "sglang_{name}"),
            *_layers(args["settings"], "sglang_settings"),
            *_layers(args["backends"], "sglang_backends"),
        ]
        environment = _layers(args["environment"], "sglang_environment")
        service = instance.service_environment(
            cache_root=args["cache_root"],
            release_path=release.get("path", f"{args['root']}/releases/{args['stack']}"),
            release=release.get("id", args["stack"]),
            profile=args["profile"],
            cuda_home=_cuda_home(stack, environment),
        )
        return launch_spec.Request(
            instance=args["instance"],
            stack=args["stack"],
            profile=args["profile"],
            model=args["model"],
            dialect=spoken,
            release=release.get("id"),
            revision=args["model_revision"] or None,
            default_settings={"host": "127.0.0.1"},
            default_environment=service,
            layers=layers,
            environment_layers=environment,
            extra_args=args["extra_args"],
        )

    def _deployment(
        self, args: Mapping[str, Any], spec: launch_spec.LaunchSpec, release: Mapping[str, Any]
    ) -> dict[str, Any]:
        path = release.get("path", f"{args['root']}/releases/{args['stack']}")
        python = f"{path}/venv/bin/python"
        bind = {name: spec.settings[name].value for name in ("host", "port")}
        return {
            "spec": {
                **spec.as_dict(),
                "command": [python, *render.MODULE, *spec.argv],
                "url": instance.local_url(str(bind["host"]), int(str(bind["port"]))),
            },
            "launch": render.launch_script(spec, python, f"{args['config_root']}/{args['instance']}/environment"),
            "environment": render.environment_file({**spec.variables, instance.MARKER: spec.hash}),
        }


def _layers(entries: object, variable: str) -> list[launch_spec.Layer]:
    """One layer an entry, so that each names the line that it came from."""
    if not isinstance(entries, Mapping):
        return [(variable, entries)]  # type: ignore[list-item]  # resolve() names what is wrong with it
    return [(_source(value, entries, variable.format(name=name)), {name: value}) for name, value in entries.items()]


def _source(value: object, container: object, variable: str) -> str:
    """`group_vars/glm5.yml:12` or `-e` if Ansible knows, else the variable's name."""
    for candidate in (value, container):
        origin = Origin and Origin.get_tag(candidate)
        if origin and origin.path:
            path = Path(origin.path)
            shown = path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path
            return f"{shown}:{origin.line_num}" if origin.line_num else str(shown)
        if origin and origin.description:
            return "-e" if "'-e'" in origin.description else str(origin.description)
    return variable


def _cuda_home(stack: catalog.Stack, environment: Iterable[launch_spec.Layer]) -> str:
    asked = [
        entries["CUDA_HOME"] for _, entries in environment if isinstance(entries, Mapping) and "CUDA_HOME" in entries
    ]
    return str(asked[-1] if asked else stack.environment.get("CUDA_HOME", ""))


def _constraints(stack: catalog.Stack) -> str:
    return (PROJECT / "catalog" / stack.constraints).read_text(encoding="utf-8") if stack.constraints else ""


def _unknown_stack(name: str, known: catalog.Catalog) -> str:
    return f"This cannot run; nothing was changed:\n- stack {name!r} is not known; {names.suggest(name, known.stacks)}"
