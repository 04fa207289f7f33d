"""Resolve what group_vars ask for to a deployment, judge it by the rules, and show the plan; on the controller."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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

from sglang_deploy import (  # noqa: E402
    catalog,
    cuda,
    dialect,
    hub,
    instance,
    known,
    launch_spec,
    names,
    nodes,
    planning,
    plantext,
    render,
    rules,
    secrets,
)
from sglang_deploy import plan as plans  # noqa: E402
from sglang_deploy.sweep import pin as pins  # noqa: E402


@dataclass(frozen=True)
class Asked:
    """What a plan was made from; the action sglang_sweep varies it."""

    entries: catalog.Catalog
    book: tuple[rules.Rule, ...]
    request: launch_spec.Request
    context: rules.Context


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: those of the role sglang_plan. Fails where a rule refuses; the host is only ever read.

    source, ref, git_url: where SGLang comes from instead of the stack's own; patched: whether patches or a fork change it.
    release: as the role sglang_release leaves it, {} before it is known; `problem` says why it cannot be built.
    model, model_revision, model_source, model_root: as the role model_weights has them; the deployment gets the directory.
    model_facts, host_facts: results of the modules sglang_model_dir and sglang_host_check, {} where they did not run.
    toolkit: how the CUDA toolkit gets onto the host (cuda_toolkit_install); `wheels` has a CUDA_HOME of its own.
    nodes: hosts of the instance in the order of their ranks (none for one host), port and interface.
    keys: the instance's keys by name; they end here and on the host, and are in nothing that is returned.
    credentials: whether systemd hands the keys over (LoadCredential).
    tls: certificate, key, name and ca of HTTPS, all paths on the host, empty for HTTP. hardening: sglang_hardening.
    pin: folder with the results of sweeps; a pin in it is laid over everything else. Empty reads none.
    show: ask the release itself, show the plan and write it to .cache/plan/HOST-INSTANCE.json.

    Returns stack, constraints, options_from (release or catalog), deployment and plan.
    """

    _supports_check_mode = True
    _supports_async = False
    asked: Asked | None = None

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args, task_vars = self._task.args, task_vars or {}
        release = args["release"] or {}
        if wrong := _wrong_types(args):
            raise AnsibleActionFail(_cannot_run(wrong))
        pin_file, pinned = _pin(args, task_vars)
        if pinned:
            args = {**args, "profile": pinned.profile}
        try:
            keys = secrets.checked(args.get("keys") or {})
        except secrets.SecretError as error:
            raise AnsibleActionFail(_cannot_run([f"- {error}"])) from error
        identity = self._identity(args, keys, task_vars) if keys and args["show"] else ""
        expiring = self._certificate(args, task_vars) if _tls(args)["certificate"] and args["show"] else []
        try:
            served = _served(args)
            entries = catalog.load(PROJECT / "catalog", args["stacks"], args["profiles"])
            book = rules.load(PROJECT / "catalog" / "rules.yml", entries.options.names)
            if args["stack"] not in entries.stacks:
                raise AnsibleActionFail(_unknown_stack(str(args["stack"]), entries))
            stack = entries.stacks[args["stack"]]
            if args.get("toolkit") == "wheels" and stack.cuda:
                home = cuda.home("wheels", stack.cuda, "", str(args["root"]))
                stack = replace(stack, environment={**stack.environment, "CUDA_HOME": home})
                entries = replace(entries, stacks={**entries.stacks, stack.name: stack})
            built = planning.as_built(stack, *(str(args.get(name) or "") for name in ("source", "ref", "git_url")))
            if built is not stack:
                entries = replace(entries, stacks={**entries.stacks, stack.name: built})
            options = release.get("options")
            spoken = (
                dialect.parse(options, f"release {release['id']}")
                if options
                else entries.dialect(entries.stacks[stack.name].sglang)
            )
            wanted = request(args, spoken, stack, release, list(keys), identity)
            group = _group(args, task_vars)
            if group:
                wanted = replace(
                    wanted,
                    layers=[*wanted.layers, ("sglang_nodes", group.settings)],
                    environment_layers=[("sglang_nodes", group.environment), *wanted.environment_layers],
                )
            if pinned:
                wanted = replace(
                    wanted,
                    layers=[*wanted.layers, (pin_file, pinned.settings)],
                    environment_layers=[*wanted.environment_layers, (pin_file, pinned.environment)],
                )
            spec = launch_spec.resolve(entries, wanted)
            if group and (cut := nodes.layout_problems({n: c.value for n, c in spec.settings.items()}, len(group.hosts))):
                raise nodes.NodesError(cut)
        except nodes.NodesError as error:
            raise AnsibleActionFail(_cannot_run([f"- {problem}" for problem in error.problems])) from error
        except (catalog.CatalogError, dialect.DialectError, rules.RuleError) as error:
            raise AnsibleActionFail(str(error)) from error
        except hub.HubError as error:
            raise AnsibleActionFail(_cannot_run([f"- {error}"])) from error
        except launch_spec.LaunchSpecError as error:
            raise AnsibleActionFail(_cannot_run([f"- {problem}" for problem in error.problems])) from error
        context, noted = self._facts(args, known.load(entries), spec, spoken, release, served)
        context = replace(context, has_api_key="api_key" in keys)
        if pinned:
            own = {**_mapping(args["settings"]), **_mapping(args["backends"])}
            noted = [*noted, *pins.notes(pinned, pin_file, pins.facts(args), own)]
        self.asked = Asked(entries, book, wanted, context)
        resolution = self._resolution(args, spec, release, task_vars) if args["show"] else None
        try:
            made = plans.make(spec, context, book, spoken, resolution=resolution, noted=noted, allow=_words(args["allow"]))
        except rules.UnknownRule as error:
            raise AnsibleActionFail(_cannot_run([f"- sglang_allow: {error}"])) from error
        if args["show"]:
            notes = [*([] if options else [_not_built(release, spoken)]), *expiring]
            self._show(made, [*notes, f"facts: {plantext.facts(context)}"], str(task_vars["inventory_hostname"]))
        if made.refused:
            refused = [f"- {line.text}" if line.colour else line.text for line in plantext.refusals(made.results)]
            raise AnsibleActionFail(_cannot_run(refused))
        return {
            "changed": False,
            "stack": stack.as_dict(),
            "constraints": _constraints(stack),
            "options_from": "release" if options else "catalog",
            "deployment": self._deployment(args, made, spoken, release, sorted(keys), group),
            "plan": made.as_dict(),
        }

    def _facts(
        self,
        args: Mapping[str, Any],
        knowledge: known.Known,
        spec: launch_spec.LaunchSpec,
        spoken: dialect.Dialect,
        release: Mapping[str, Any],
        served: hub.Served,
    ) -> tuple[rules.Context, list[rules.RuleResult]]:
        """What the rules are told, and what the catalog itself says against the choice."""
        stack, profile = knowledge.catalog.stacks[spec.stack], knowledge.catalog.profiles[spec.profile]
        receipt = release.get("receipt")
        versions = planning.versions_of_receipt(receipt, stack) if receipt else planning.versions_of_stack(stack)
        versions = replace(versions, patched=versions.patched or bool(args["patched"]))
        told = (args["host_facts"] or {}).get("host") or {}
        local = Path(spec.model).is_absolute()
        model = replace(knowledge.model(served.name), local=local, fetched=None if local else told.get("weights"))
        if summary := (args["model_facts"] or {}).get("model"):
            model = planning.over(planning.model_of(summary, knowledge), model)
            model = replace(model, writable=bool(args["model_facts"].get("writable")))
        host = planning.host_of(told)
        context = plans.context_of(spec, spoken, versions=versions, host=host, model=model)
        return context, list(planning.noted(stack, profile, host, model))

    def _certificate(self, args: Mapping[str, Any], task_vars: dict[str, Any]) -> list[str]:
        """What is to be said of the certificate on the host. Fails where it cannot be used."""
        tls = _tls(args)
        call = {
            "certificate": tls["certificate"],
            "key": tls["key"],
            "name": _tls_name(args),
            "group": args["group"],
            "hardening": args.get("hardening") or {},
        }
        answer = self._execute_module(module_name="sglang_tls", module_args=call, task_vars=task_vars)
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure(str(answer.get("msg")))
        if problems := answer.get("problems", [answer.get("msg")]):
            raise AnsibleActionFail(_cannot_run([f"- sglang_tls_certificate: {problem}" for problem in problems]))
        return [f"certificate: {warning}" for warning in answer["soon"]]

    def _identity(self, args: Mapping[str, Any], keys: Mapping[str, str], task_vars: dict[str, Any]) -> str:
        """The id of these keys: that of the host's where they are the same."""
        call = {"name": args["instance"], "config_root": args["config_root"], "keys": dict(keys)}
        answer = self._execute_module(module_name="sglang_secrets", module_args=call, task_vars=task_vars)
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure(str(answer.get("msg")))
        if "id" not in answer:
            raise AnsibleActionFail(f"The host's keys could not be compared: {answer.get('msg')}")
        return str(answer["id"])

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
        directory = f"{args['config_root']}/{args['instance']}"
        argv = list(spec.argv)
        if any((args.get("keys") or {}).values()):  # nothing depends on the keys, and the file may not be there yet
            words = spec.settings["config_file"].options
            start = next(i for i in range(len(argv)) if tuple(argv[i : i + len(words)]) == words)
            del argv[start : start + len(words)]
        call = {
            "python": f"{release['path']}/venv/bin/python",
            "argv": argv,
            "environment": secrets.unguarded(spec.variables, directory),
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
        self,
        args: Mapping[str, Any],
        made: plans.Plan,
        spoken: dialect.Dialect,
        release: Mapping[str, Any],
        keys: list[str],
        group: nodes.Group | None,
    ) -> dict[str, Any]:
        spec = made.spec
        together = {"nodes": list(group.hosts), "shared": nodes.shared_hash(spec.as_dict())} if group else {}
        path = release.get("path", f"{args['root']}/releases/{args['stack']}")
        python = f"{path}/venv/bin/python"
        bind = {name: spec.settings[name].value for name in ("host", "port")}
        tls = _tls(args)
        return {
            "spec": {
                **spec.as_dict(),
                **together,
                "command": [python, *render.MODULE, *spec.argv],
                "url": instance.local_url(
                    str(bind["host"]), int(str(bind["port"])), "https" if tls["certificate"] else "http"
                ),
                "tls": {"name": _tls_name(args), "ca": tls["ca"]} if tls["certificate"] else {},
                "server_fields": plans.server_fields(spec, spoken),
                "allowed": [result.rule for result in made.results if result.allowed],
                "secrets": keys,
            },
            "launch": render.launch_script(spec, python, f"{args['config_root']}/{args['instance']}/environment"),
            "environment": render.environment_file({**spec.variables, instance.MARKER: spec.hash}),
        }


def request(
    args: Mapping[str, Any],
    spoken: dialect.Dialect,
    stack: catalog.Stack,
    release: Mapping[str, Any],
    keys: Sequence[str] = (),
    identity: str = "",
) -> launch_spec.Request:
    """What the task's arguments ask for, each value with the line that it came from.

    keys: names of the keys that the server gets; identity: the id of this set of keys.
    """
    served = _served(args)
    own = {"served_model_name": args["served_model_name"], "host": args["host"], "port": args["port"]}
    layers = [
        *_layers({name: value for name, value in own.items() if value not in ("", None)}, "sglang_{name}"),
        *_layers(args["settings"], "sglang_settings"),
        *_layers(args["backends"], "sglang_backends"),
    ]
    environment = _layers(args["environment"], "sglang_environment")
    layers += _tls_layers(args, spoken)
    if keys:
        _with_keys(args, f"sglang_{keys[0]}", identity, layers, environment)
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
        model=served.path,
        dialect=spoken,
        release=release.get("id"),
        revision=served.revision,
        default_settings={"host": "127.0.0.1", **served.settings},
        default_environment={**service, **served.environment},
        layers=layers,
        environment_layers=environment,
        extra_args=args["extra_args"],
    )


def _pin(args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> tuple[str, pins.Pin | None]:
    """What a sweep of this host pinned for the instance, and the file that says so."""
    if not args.get("pin"):
        return "", None
    folder = pins.path_of(PROJECT / str(args["pin"]), str(task_vars.get("inventory_hostname", "")), str(args["instance"]))
    path = folder / pins.NAME
    try:
        return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path), pins.read(path)
    except pins.PinError as error:
        raise AnsibleActionFail(_cannot_run([f"- {error}"])) from error


TEXTS = ("stack", "profile", "model", "model_revision", "served_model_name", "host")
MAPPINGS = ("stacks", "profiles")
# They stand in the unit's file as they are, where a line break or a `%` would mean something else.
PATHS = ("root", "config_root", "state_root", "cache_root")
ACCOUNTS = ("user", "group")


def _wrong_types(args: Mapping[str, Any]) -> list[str]:
    """Problems of what is no text, number or mapping; what stands inside of settings is judged where it is resolved."""
    problems = [
        f"- sglang_{name}: {args[name]!r} is no text; write it in quotes"
        for name in TEXTS
        if args.get(name) is not None and not isinstance(args[name], str)
    ]
    port = args["port"]
    if isinstance(port, bool) or not isinstance(port, int | str) or not re.fullmatch(r"[0-9]{1,5}", str(port)):
        problems.append(f"- sglang_port: {port!r} is no port; write a number from 1 to 65535")
    problems += [
        f"- sglang_{name}: {args[name]!r} is not allowed: use an absolute path of letters, digits and ._+-"
        for name in PATHS
        if not re.fullmatch(r"(/[A-Za-z0-9._+-]+)+", str(args.get(name) or "/x"))
    ]
    problems += [
        f"- sglang_{name}: {args[name]!r} is not allowed: use small letters, digits, _ and -"
        for name in ACCOUNTS
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", str(args.get(name) or "x"))
    ]
    problems += [
        f"- sglang_{name}: {args[name]!r} is no mapping of names to entries"
        for name in MAPPINGS
        if args.get(name) is not None and not isinstance(args[name], Mapping)
    ]
    return problems


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _served(args: Mapping[str, Any]) -> hub.Served:
    """What the server is told of its model."""
    source, root = str(args["model_source"] or "local"), str(args["model_root"] or hub.ROOT)
    return hub.serve(source, str(args["model"]), str(args["model_revision"] or ""), root)


def _tls_layers(args: Mapping[str, Any], spoken: dialect.Dialect) -> list[launch_spec.Layer]:
    """HTTPS by the server itself. Fails where half of it is given, or the release has no such options."""
    tls = _tls(args)
    if not (tls["certificate"] or tls["key"]):
        return []
    if not (tls["certificate"] and tls["key"]):
        given, missing = ("certificate", "key") if tls["certificate"] else ("key", "certificate")
        raise AnsibleActionFail(
            _cannot_run([f"- sglang_tls_{given} is set and sglang_tls_{missing} is not: HTTPS needs both"])
        )
    if not _tls_name(args):
        problem = "sglang_tls_certificate: sglang_tls_name must say which name clients use, since sglang_host is none"
        raise AnsibleActionFail(_cannot_run([f"- {problem}"]))
    if spoken.find("--ssl-certfile") is None:
        problem = (
            f"sglang_tls_certificate: SGLang {spoken.sglang} cannot answer HTTPS; put a proxy before it (docs/security.md)"
        )
        raise AnsibleActionFail(_cannot_run([f"- {problem}"]))
    return [("sglang_tls_certificate", {"tls_certificate": tls["certificate"], "tls_key": tls["key"]})]


def _tls(args: Mapping[str, Any]) -> dict[str, str]:
    """Certificate, key, name and ca, each empty where it is not given."""
    given = args.get("tls") or {}
    return {part: str(given.get(part) or "") for part in ("certificate", "key", "name", "ca")}


def _tls_name(args: Mapping[str, Any]) -> str:
    """The name that the certificate must be for; a wildcard address is no name."""
    host = str(args["host"] or "")
    return _tls(args)["name"] or ("" if host in ("", "0.0.0.0", "::") else host)  # noqa: S104 - compared only


def _with_keys(
    args: Mapping[str, Any],
    source: str,
    identity: str,
    layers: list[launch_spec.Layer],
    environment: list[launch_spec.Layer],
) -> None:
    """Let the server read its keys from the instance's folder or from systemd, and keep them to itself."""
    directory = f"{args['config_root']}/{args['instance']}"
    file = secrets.path(directory, instance.unit_name(args["instance"]) if args.get("credentials") else "")
    if taken := [origin for origin, entries in layers if isinstance(entries, Mapping) and entries.get("config_file")]:
        problem = f"{source}: SGLang reads one --config, and the keys need it; take config_file out (from {taken[0]})"
        raise AnsibleActionFail(_cannot_run([f"- {problem}"]))
    layers.append((source, {"config_file": file}))
    paths = [given["PYTHONPATH"] for _, given in environment if isinstance(given, Mapping) and "PYTHONPATH" in given]
    environment.append((source, secrets.environment(directory, identity, file, str(paths[-1] or "") if paths else "")))


def _group(args: Mapping[str, Any], task_vars: Mapping[str, Any]) -> nodes.Group | None:
    """The hosts that the instance runs on, where these are several. Raises NodesError."""
    given = args.get("nodes") or {}
    hosts = given.get("hosts") or []
    first = str(hosts[0]) if isinstance(hosts, list) and hosts else ""
    there = task_vars.get("hostvars") or {}
    address = str(there[first].get("sglang_node_address") or "") if first in there else ""
    own = str(task_vars.get("inventory_hostname", ""))
    return nodes.group_of(hosts, own, address, given.get("port"), str(given.get("interface") or ""))


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
    words = value.split(",") if isinstance(value, str) else value or ()
    return [str(word) for word in (words if isinstance(words, Iterable) else [words])]
