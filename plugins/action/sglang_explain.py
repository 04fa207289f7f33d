"""Explain a launch command that somebody pasted: what it means, what is known against it, the group_vars for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.color import stringc
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import catalog, command, explain, interpretation, known, lexer, names, planning, plantext, rules  # noqa: E402


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: command or file; version and hardware as people write them, else those of stack and profile; allow.

    Asks no host. Returns verdict (refuse, warn, inform or ok), group_vars and findings.
    """

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        args = self._task.args
        try:
            entries = catalog.load(PROJECT / "catalog", args["stacks"], args["profiles"])
            book = rules.load(PROJECT / "catalog" / "rules.yml", entries.options.names)
            parsed = command.parse(_text(args))
            source, origin = _source(args, entries)
            dialects = explain.candidates(entries, source)
            named = interpretation.interpret(parsed, dialects, entries.options).settings.get("model_path", "")
            knowledge = known.load(entries)
            host, chip = _host(args, knowledge)
            model = knowledge.model(str(named))
            allow = [str(name) for name in args["allow"]]
            found = explain.explain(parsed, source, host, model, entries, book, dialects=dialects, allow=allow)
        except (catalog.CatalogError, rules.RuleError, lexer.CommandError) as error:
            raise AnsibleActionFail(f"The command cannot be explained: {error}") from error
        except rules.UnknownRule as error:
            raise AnsibleActionFail(f"sglang_allow: {error}") from error
        told = rules.Context(versions=source.versions, host=host, model=model)
        notes = [f"judged for {origin}, {chip}", f"facts: {plantext.facts(told)}"]
        display = Display()
        lines = plantext.explanation(found, entries.options, notes=notes, verbose=display.verbosity > 0)
        display.display("\n".join(stringc(line.text, line.colour) if line.colour else line.text for line in lines))
        return {
            "changed": False,
            "verdict": found.verdict,
            "group_vars": found.group_vars,
            "findings": [result.as_dict() for result in found.results],
        }


def _text(args: Mapping[str, Any]) -> str:
    """The command as it was given."""
    if args["file"]:
        path = Path(str(args["file"])).expanduser()
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise AnsibleActionFail(f"sglang_command_file: {path} cannot be read: {reason}") from error
    return _typed(args, "command")


def _typed(args: Mapping[str, Any], name: str) -> str:
    """An argument of the task as it was typed after -e, where it was."""
    given = as_typed(f"sglang_{name}" if name == "command" else f"sglang_command_{name}", context.CLIARGS.get("extra_vars"))
    return given or str(args[name])


def as_typed(variable: str, extra_vars: Iterable[str] | None) -> str | None:
    """The whole of an unquoted `-e VARIABLE=several words`, which Ansible itself cuts at the first space.

    None where there is none, or where Ansible read it whole: quoted once more, or from a file or JSON.
    """
    pattern = re.compile(rf"(?:^|\s){variable}=(?!['\"])(.*?)(?=\s+sglang_\w+=|\s*\Z)", re.DOTALL)
    found = [match[1] for text in extra_vars or () if text[:1] not in "@{[" and (match := pattern.search(text))]
    return found[-1] if found else None


def _source(args: Mapping[str, Any], entries: catalog.Catalog) -> tuple[known.Source, str]:
    """The version that the command is judged for, and where it comes from."""
    if version := _typed(args, "version"):
        source = known.load(entries).source(version)
        if source.engine != "sglang" or source.versions.sglang is None:
            raise AnsibleActionFail(
                f"sglang_command_version: {version!r} names no version of SGLang; write one such as 0.5.9"
            )
        return source, f"SGLang {version}"
    if args["stack"] not in entries.stacks:
        raise AnsibleActionFail(f"stack {args['stack']!r} is not known; {names.suggest(str(args['stack']), entries.stacks)}")
    versions = planning.versions_of_stack(entries.stacks[args["stack"]])
    source = known.Source("sglang", versions, exact=versions.exact)
    return source, f"stack {args['stack']} (sglang_command_version names another version)"


def _host(args: Mapping[str, Any], knowledge: known.Known) -> tuple[rules.Host, str]:
    """The host that the command is judged for, and where that comes from."""
    if hardware := _typed(args, "hardware"):
        host = knowledge.host(hardware)[0]
        if host.capability is None:
            raise AnsibleActionFail(
                f"sglang_command_hardware: {hardware!r} names no GPU of catalog/known.yml; write it as in '8x RTX PRO 6000'"
            )
        return host, hardware
    profiles = knowledge.catalog.profiles
    if args["profile"] not in profiles:
        raise AnsibleActionFail(f"profile {args['profile']!r} is not known; {names.suggest(str(args['profile']), profiles)}")
    chips = profiles[args["profile"]].fits.capabilities
    chip = f"the chips of profile {args['profile']} (sglang_command_hardware names others)"
    return rules.Host(capability=chips[0] if chips else None), chip
