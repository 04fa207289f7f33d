"""Resolve what group_vars ask for to a deployment, judge it by the rules, and show the plan; on the controller."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.color import stringc
from ansible.utils.display import Display

try:  # Where a value was written. Internal to ansible-core 2.19 and later; without it the variable's name has to do.
    from ansible._internal._datatag._tags import Origin
except ImportError:
    Origin = None

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import catalog, dialect, instance, known, launch_spec, names, planning, plantext, render, rules  # noqa: E402
from sglang_deploy import plan as plans  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: those of the role sglang_plan. Fails where a rule refuses; the host is only ever read.

    ref, patched: what is built of a git source instead of the stack's own ref, and whether it is changed by patches or a
    fork. release: as the role sglang_release leaves it, {} before it is known; `problem` says why it cannot be built.
    model_facts, host_facts: results of the modules sglang_model_dir and sglang_host_facts, {} where they did not run.
    show: ask the release itself, show the plan and write it to .cache/plan/HOST-INSTANCE.json.

    Returns stack, constraints, options_from (release or catalog), deployment and plan.
    """

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args, task_vars = self._task.args, task_vars or {}
        release = args["release"] or {}
        try:
            entries = catalog.load(PROJECT / "catalog", args["stacks"], args["profiles"])
            book = rules.load(PROJECT / "catalog" / "rules.yml", entries.options.names)
            if args["stack"] not in entries.stacks:
                raise AnsibleActionFail(_unknown_stack(str(args["stack"]), entries))
            stack = entries.stacks[args["stack"]]
            if args["ref"]:
                entries = replace(entries, stacks={**entries.stacks, stack.name: stack.at(str(args["ref"]))})
            options = release.get("options")
            spoken = (
                dialect.parse(options, f"release {release['id']}")
                if options
                else entries.dialect(entries.stacks[stack.name].sglang)
            )
            spec = launch_spec.resolve(entries, request(args, spoken, stack, release))
        except (catalog.CatalogError, dialect.DialectError, rules.RuleError) as error:
            raise AnsibleActionFail(str(error)) from error
        except launch_spec.LaunchSpecError as error:
            raise AnsibleActionFail(_cannot_run([f"- {problem}" for problem in error.problems])) from error
        context, noted = self._facts(args, known.load(entries), spec, spoken, release)
        resolution = self._resolution(args, spec, release, task_vars) if args["show"] else None
        try:
            made = plans.make(spec, context, book, spoken, resolution=resolution, noted=noted, allow=_words(args["allow"]))
        except rules.UnknownRule as error:
            raise AnsibleActionFail(_cannot_run([f"- sglang_allow: {error}"])) from error
        if args["show"]:
            notes = [] if options else [_not_built(release, spoken)]
            self._show(made, [*notes, f"facts: {plantext.facts(context)}"], str(task_vars["inventory_hostname"]))
        if made.refused:
            refused = [f"- {line.text}" if line.colour else line.text for line in plantext.refusals(made.results)]
            raise AnsibleActionFail(_cannot_run(refused))
        return {
            "changed": False,
            "stack": stack.as_dict(),
            "constraints": _constraints(stack),
            "options_from": "release" if options else "catalog",
            "deployment": self._deployment(args, made, spoken, release),
            "plan": made.as_dict(),
        }

    def _facts(
        self,
        args: Mapping[str, Any],
        knowledge: known.Known,
        spec: launch_spec.LaunchSpec,
        spoken: dialect.Dialect,
        release: Mapping[str, Any],
    ) -> tuple[rules.Context, list[rules.RuleResult]]:
        """What the rules are told, and what the catalog itself says against the choice."""
        stack, profile = knowledge.catalog.stacks[spec.stack], knowledge.catalog.profiles[spec.profile]
        receipt = release.get("receipt")
        versions = planning.versions_of_receipt(receipt, stack) if receipt else planning.versions_of_stack(stack)
        versions = replace(versions, patched=versions.patched or bool(args["patched"]))
        model = replace(knowledge.model(spec.model), local=Path(spec.model).is_absolute())
        if summary := (args["model_facts"] or {}).get("model"):
            model = planning.over(planning.model_of(summary, knowledge), model)
        host = planning.host_of((args["host_facts"] or {}).get("host") or {})
        context = plans.context_of(spec, spoken, versions=versions, host=host, model=model)
        return context, list(planning.noted(stack, profile, host, model))

    def _resolution(
        self,
        args: Mapping[str, Any],
        spec: launch_spec.LaunchSpec,
        release: Mapping[str, Any],
        task_vars: dict[str, Any],
    ) -> dict[str, Any] | None:
        """What the release on the host makes of the arguments; None before it is built."""
        if not release.get("receipt"):
            return None
        call = {
            "python": f"{release['path']}/venv/bin/python",
            "argv": list(spec.argv),
            "environment": spec.variables,
            "cache": f"{args['cache_root']}/plan",
            "user": args["user"],
        }
        answer = self._execute_module(module_name="sglang_resolve", module_args=call, task_vars=task_vars)
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure(str(answer.get("msg")))
        if "resolution" not in answer:
            raise AnsibleActionFail(f"SGLang could not be asked what it makes of this: {answer.get('msg')}")
        return dict(answer["resolution"])

    def _show(self, made: plans.Plan, notes: list[str], host: str) -> None:
        path = PROJECT / ".cache" / "plan" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', host)}-{made.spec.instance}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # an environment may hold what is nobody else's business
        path.write_text(json.dumps(made.as_dict(), indent=2) + "\n", encoding="utf-8")
        display = Display()
        notes = [*notes, f"written to {path.relative_to(PROJECT)}"]
        lines = plantext.show(made, host, notes=notes, verbose=display.verbosity > 0)
        display.display("\n".join(stringc(line.text, line.colour) if line.colour else line.text for line in lines))

    def _deployment(
        self, args: Mapping[str, Any], made: plans.Plan, spoken: dialect.Dialect, release: Mapping[str, Any]
    ) -> dict[str, Any]:
        spec = made.spec
        path = release.get("path", f"{args['root']}/releases/{args['stack']}")
        python = f"{path}/venv/bin/python"
        bind = {name: spec.settings[name].value for name in ("host", "port")}
        return {
            "spec": {
                **spec.as_dict(),
                "command": [python, *render.MODULE, *spec.argv],
                "url": instance.local_url(str(bind["host"]), int(str(bind["port"]))),
                "server_fields": plans.server_fields(spec, spoken),
                "allowed": [result.rule for result in made.results if result.allowed],
            },
            "launch": render.launch_script(spec, python, f"{args['config_root']}/{args['instance']}/environment"),
            "environment": render.environment_file({**spec.variables, instance.MARKER: spec.hash}),
        }


def request(
    args: Mapping[str, Any], spoken: dialect.Dialect, stack: catalog.Stack, release: Mapping[str, Any]
) -> launch_spec.Request:
    """What the task's arguments ask for, each value with the line that it came from."""
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
    asked = [entries["CUDA_HOME"] for _, entries in environment if isinstance(entries, Mapping) and "CUDA_HOME" in entries]
    return str(asked[-1] if asked else stack.environment.get("CUDA_HOME", ""))


def _not_built(release: Mapping[str, Any], spoken: dialect.Dialect) -> str:
    way = f" As things stand it cannot be built: {release['problem']}" if "problem" in release else ""
    return f"The options are those recorded for SGLang {spoken.sglang}, for want of a built release.{way}"


def _constraints(stack: catalog.Stack) -> str:
    return (PROJECT / "catalog" / stack.constraints).read_text(encoding="utf-8") if stack.constraints else ""


def _unknown_stack(name: str, entries: catalog.Catalog) -> str:
    return _cannot_run([f"- stack {name!r} is not known; {names.suggest(name, entries.stacks)}"])


def _cannot_run(lines: list[str]) -> str:
    count = sum(line.startswith("- ") for line in lines)
    return f"This cannot run ({count} {'problem' if count == 1 else 'problems'}); nothing was stopped:\n" + "\n".join(lines)


def _words(value: object) -> list[str]:
    """A list of words; `-e sglang_allow=a,b` gives one text."""
    return value.split(",") if isinstance(value, str) else [str(word) for word in value or ()]  # type: ignore[attr-defined]
