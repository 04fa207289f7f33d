"""Decides what a sweep tries next, and keeps what came of it; on the controller. The role `sweep` calls it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.color import stringc
from ansible.utils.display import Display

PROJECT = Path(__file__).resolve().parents[2]
# Ansible finds a project's module_utils for modules only, which run on hosts; here they are plain Python.
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from sglang_deploy import catalog, dialect, launch_spec, rules  # noqa: E402
from sglang_deploy.sweep import board, measure, order, outcome, pin, prune, report, trials  # noqa: E402
from sglang_deploy.sweep import space as spaces  # noqa: E402

STEPS = ("plan", "next", "tell", "report")
# What differs between two resolutions of the same arguments.
VOLATILE = ("random_seed", "host", "port", "served_model_name", "nccl_port", "grpc_http_sidecar_port")


@dataclass(frozen=True)
class Sweep:
    """Everything that a step needs: what is asked, what is known, and what was told so far."""

    space: spaces.Space
    judge: Callable[[spaces.Candidate], prune.Judged]
    objective: measure.Objective
    workload: measure.Workload
    state: order.State
    record: trials.Record
    path: str
    facts: Mapping[str, Any]
    plan_args: Mapping[str, Any]


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core ships no types
    """Arguments: step (plan, next, tell, report) and those of the role; for tell also what came of the trial.

    plan: shows what would be tried. next: returns done, or number, deployment and said. tell: records a trial and shows
    its line. report: writes sweep.json and report.html, and the pin where it is asked for.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        args = self._task.args
        if args.get("step") not in STEPS:
            raise AnsibleActionFail(f"step is one of {', '.join(STEPS)}, not {args.get('step')!r}")
        try:
            sweep = self._sweep(args)
            answer = getattr(self, f"_{args['step']}")(args, sweep)
        except (catalog.CatalogError, dialect.DialectError, rules.RuleError, spaces.SpaceError) as error:
            raise AnsibleActionFail(f"This cannot be swept; nothing was stopped:\n{error}") from error
        except launch_spec.LaunchSpecError as error:
            raise AnsibleActionFail(f"What is deployed cannot be resolved; nothing was stopped:\n{error}") from error
        return {"changed": False, **answer}

    # What is asked and known

    def _sweep(self, args: Mapping[str, Any]) -> Sweep:
        asked = self._plan_args()
        plain = self._asked(asked)
        given = untagged(args["space"])
        found = spaces.load(
            PROJECT / "catalog" / "sweeps.yml",
            plain.entries,
            given["name"],
            given["spaces"],
            given["vary"],
            given["profiles"],
        )
        profiles = {profile: self._asked({**asked, "profile": profile}).request for profile in found.profiles}
        objective, workload = _question(args)
        judge: Callable[[spaces.Candidate], prune.Judged] = prune.Judge(
            found, plain.entries, profiles, plain.book, plain.context, [str(name) for name in asked["allow"]]
        )
        spec = launch_spec.resolve(plain.entries, profiles[found.profiles[0]])
        facts = untagged(pin.facts(asked))
        question = trials.digest(
            [
                [found.profiles, [[each.name, [value.label for value in each.values]] for each in found.dimensions]],
                workload.as_dict(),
                objective.as_dict(),
                trials.identity(spec.as_dict()),
                facts,
            ]
        )
        path = f"{args['state_root']}/{args['instance']}/sweeps/{question[:12]}.jsonl"
        answer = self._module(
            "sglang_sweep_record",
            {
                "path": path,
                "facts": trials.digest(facts),
                "deployments": [f"{args['state_root']}/{asked['instance']}"],
            },
        )
        record = trials.Record(**{**answer["record"], "lines": tuple(answer["record"]["lines"])})
        if not args["again"]:
            judge = outcome.Remembering(judge, answer["failed_before"])
        method = order.Method(tie=float(args["tie_percent"]) / 100, top=int(args["top"]), repeats=int(args["repeats"]))
        state = outcome.replay(order.State(found, method), record)
        return Sweep(found, judge, objective, workload, state, record, path, facts, asked)

    def _plan_args(self) -> dict[str, Any]:
        """What the role sglang_plan gives its action, as the plan of a deployment would be asked for here."""
        tasks = self._loader.load_from_file(
            str(PROJECT / "roles" / "sglang_plan" / "tasks" / "resolve.yml"), trusted_as_template=True
        )
        variables = {
            **self._vars,
            "__sglang_plan_release": self._vars.get("sglang_release", {}),
            "__sglang_plan_show": True,
        }
        self._templar.available_variables = variables
        asked = {name: self._templar.template(value) for name, value in tasks[0]["sglang_plan"].items()}
        self._templar.available_variables = self._vars
        asked["release"] = {} if "problem" in (asked["release"] or {}) else asked["release"] or {}
        # A trial listens on loopback alone, so it needs neither keys nor a certificate.
        bare = {"keys": {}, "tls": dict.fromkeys(asked.get("tls") or (), ""), "pin": ""}
        return {**asked, **bare}

    def _asked(self, args: Mapping[str, Any]) -> Any:
        """What the plan of a deployment is made from, with these arguments; one that is refused can still be varied."""
        action = self._plan_action({**args, "show": False})
        try:
            action.run(task_vars=self._vars)
        except AnsibleActionFail:
            if action.asked is None:
                raise
        return action.asked

    def _plan_action(self, args: Mapping[str, Any]) -> Any:
        task = self._task.copy()
        task.args = dict(args)
        made = self._shared_loader_obj.action_loader.get(
            "sglang_plan",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        made._show = lambda *_: None  # a sweep has a line for each trial, not a page
        return made

    def _module(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(module_name=name, module_args=arguments, task_vars=self._vars)
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure(str(answer.get("msg")))
        if answer.get("failed"):
            raise AnsibleActionFail(str(answer.get("msg")))
        return answer

    # Steps

    def _plan(self, args: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
        left = self._left(args, sweep)
        counted = prune.count(sweep.space, sweep.judge)
        budget = f"{args['launches']} launches, {args['minutes']} min"
        least = order.least(sweep.space, sweep.state.method)
        if left < least and not sweep.record.lines and sweep.record.pending is None:
            raise spaces.SpaceError(
                f"{budget} are {left} trials here, all of them for starting points and for measuring again; no change would "
                f"be tried. Allow {least} or more (sweep_launches, sweep_minutes), or lower sweep_top or sweep_repeats."
            )
        lines = board.plan_lines(sweep.space, counted, sweep.judge, sweep.state, left, self._trial_seconds(sweep), budget)
        if sweep.record.lines:
            lines.append(f"goes on where it was: {len(sweep.record.lines)} outcomes are on record in {sweep.path}")
        self._say([f"{self._host}: {lines[0]}", *lines[1:]])
        return {
            "launches": left + (sweep.record.pending is not None),
            "pending": sweep.record.pending is not None,
            "lines": lines,
            "counted": {**vars(counted), "by_rule": dict(counted.by_rule)},
            "ansible_facts": {"sweep_done": left <= 0 and sweep.record.pending is None},
        }

    def _next(self, args: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
        record = sweep.record
        if record.pending is not None:
            pending = record.pending
            if record.died:
                line = {**outcome.named(pending), "status": "died", "reason": "the host booted while it ran; quarantined"}
                self._add(sweep, trials.ENDED, line)
                self._say(
                    [f"{self._host}: the host booted during trial {pending['trial']} ({pending['said']}): quarantined"]
                )
                sweep = self._sweep(args)
            else:
                candidate = sweep.space.parse(str(pending["key"]))
                if candidate is not None:
                    deployment = self._deployment(sweep, args, candidate)[0]
                    self._say([f"{self._host}: trial {pending['trial']} ({pending['said']}) was cut off; it goes on"])
                    return {**outcome.named(pending), **self._trial(args, sweep, deployment)}
        while (wanted := order.next_trial(sweep.state, sweep.judge, self._left(args, sweep))) is not None:
            try:
                deployment, effective = self._deployment(sweep, args, wanted.candidate)
            except AnsibleActionFail as refused:
                line = {"key": wanted.candidate.key, "identity": wanted.identity, "status": "refused"}
                sweep = self._skip(sweep, {**line, "reason": _one_line(str(refused))})
                continue
            twin = None if wanted.phase == "again" else outcome.twin(sweep.record, wanted.identity, effective)
            if twin is not None:
                line = {"key": wanted.candidate.key, "identity": wanted.identity, "status": "same", "other": twin}
                sweep = self._skip(sweep, {**line, "reason": "SGLang makes the same of it as of another candidate"})
                continue
            number = 1 + sum(line["kind"] == trials.ENDED for line in sweep.record.lines)
            trial = {
                "trial": number,
                "key": wanted.candidate.key,
                "identity": wanted.identity,
                "effective": effective,
                "phase": wanted.phase,
                "why": wanted.why,
                "said": board.said(wanted),
                "spec": deployment["spec"]["hash"],
            }
            if not sweep.record.opened:
                self._open(args, sweep)
            self._add(sweep, trials.STARTED, trial)  # on disk before anything starts: it names what killed the host
            left = board.remaining(sweep.state, sweep.judge, self._left(args, sweep))
            time_left = board.spell(left * self._trial_seconds(sweep))
            self._say([f"{self._host}: trial {number}: {trial['said']} ({wanted.why}; about {left} left, {time_left})"])
            return {**trial, **self._trial(args, sweep, deployment)}
        return {"done": True, "ansible_facts": {"sweep_done": True}}

    @staticmethod
    def _trial(args: Mapping[str, Any], sweep: Sweep, deployment: Mapping[str, Any]) -> dict[str, Any]:
        """What the tasks that run a trial need, besides what names it."""
        return {
            "done": False,
            "deployment": deployment,
            "instance": args["instance"],
            "reference": str(Path(sweep.path).with_suffix(".reference.json")),
            "began": time.time(),
        }

    def _tell(self, args: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
        trial = args["trial"]
        line = outcome.of(
            trial,
            watch=args["watch"] or {},
            gate=args["gate"] or {},
            measured=args["measured"] or {},
            diagnosis=args["diagnosis"] or {},
            broken=str(args["broken"] or ""),
            objective=sweep.objective,
            seconds=time.time() - float(trial["began"]),
        )
        best = max((each.value for each in sweep.state.passed), default=0.0)
        self._add(sweep, trials.ENDED, line)
        unit = board.UNITS[sweep.objective.kind]
        ended = [each for each in sweep.record.lines if each["kind"] == trials.ENDED]
        rows = [
            board.row(number, each, each, outcome.best_before(ended, number), unit, each["seconds"])
            for number, each in enumerate(ended, 1)
        ]
        rows.append(board.row(len(rows) + 1, trial, line, best, unit, line["seconds"]))
        shown = board.table(rows)
        colour = None if line["status"] == "passed" else "red"
        self._say(shown[:1] + shown[-1:] if len(rows) > 1 else shown, colour)
        return {"status": line["status"], "line": line}

    def _report(self, args: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
        folder = pin.path_of(PROJECT / str(args["directory"]), self._host, str(sweep.plan_args["instance"]))
        if not sweep.record.lines:
            return {"lines": ["Nothing was tried."], "choice": {}}
        unit = board.UNITS[sweep.objective.kind]
        made = report.results(
            host=self._host,
            instance=str(sweep.plan_args["instance"]),
            space=sweep.space,
            state=sweep.state,
            record=sweep.record,
            objective=sweep.objective,
            workload=sweep.workload,
            facts=sweep.facts,
            unit=unit,
            base_backends=untagged(sweep.plan_args["backends"] or {}),
            base_environment=untagged(sweep.plan_args["environment"] or {}),
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        )
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(made, indent=2, sort_keys=True) + "\n"
        (folder / "sweep.json").write_text(text, encoding="utf-8")
        template = (PROJECT / "roles" / "sweep" / "templates" / "report.html.j2").read_text(encoding="utf-8")
        (folder / "report.html").write_text(report.html(made, template), encoding="utf-8")
        lines = report.summary(made)
        if made["choice"] and args["pin"]:
            written = report.pin_text(made, text, folder / "sweep.json", PROJECT)
            (folder / pin.NAME).write_text(written, encoding="utf-8")
            lines.append(f"Pinned in {_shown(folder / pin.NAME)}; deploy-glm5.yml reads it.")
        lines.append(f"All of it: {_shown(folder / 'report.html')} and sweep.json beside it.")
        self._say([f"{self._host}: {lines[0]}", *lines[1:]])
        return {"lines": lines, "choice": made["choice"], "folder": str(folder)}

    # Smaller things

    @property
    def _host(self) -> str:
        return str(self._vars["inventory_hostname"])

    def _deployment(self, sweep: Sweep, args: Mapping[str, Any], candidate: spaces.Candidate) -> tuple[dict[str, Any], str]:
        """A candidate as a deployment of the sweep's own instance, by the same plan; and what SGLang makes of it."""
        settings, environment = sweep.space.layers(candidate)
        asked = sweep.plan_args
        changed = {
            **asked,
            "instance": args["instance"],
            "host": "127.0.0.1",
            "port": args["port"],
            "profile": candidate.profile,
            "backends": {**(asked["backends"] or {}), **settings},
            "environment": {**(asked["environment"] or {}), **environment},
        }
        made = self._plan_action(changed).run(task_vars=self._vars)
        deployment, resolved = made["deployment"], dict(made["plan"]["resolved"])
        for name in VOLATILE:
            resolved.pop(name, None)
        variables = {name: each["value"] for name, each in deployment["spec"]["environment"].items()}
        effective = trials.digest([deployment["spec"]["release"], resolved, variables]) if resolved else ""
        vocabulary = ((asked["model_facts"] or {}).get("model") or {}).get("vocabulary")
        return {**deployment, "real_model": bool(args["real_model"]), "vocabulary": vocabulary}, effective

    def _left(self, args: Mapping[str, Any], sweep: Sweep) -> int:
        """How many launches the budget still has, by number and by time."""
        spent = sum(float(line.get("seconds") or 0.0) for line in sweep.record.lines)
        in_time = (float(args["minutes"]) * 60 - spent) / self._trial_seconds(sweep)
        return max(0, min(int(args["launches"]) - sweep.state.launches, int(in_time)))

    def _trial_seconds(self, sweep: Sweep) -> float:
        """How long a trial takes: as they did here, or as the space guesses."""
        took = [float(line["seconds"]) for line in sweep.record.lines if line.get("status") == "passed"]
        return max(1.0, statistics.median(took) if took else 60 * (sweep.space.start_minutes + sweep.space.measure_minutes))

    def _open(self, args: Mapping[str, Any], sweep: Sweep) -> None:
        head = {"facts": trials.digest(sweep.facts), "about": dict(sweep.facts), "objective": sweep.objective.as_dict()}
        self._add(sweep, trials.OPENED, {**head, "workload": sweep.workload.as_dict(), "by": str(args.get("by") or "")})

    def _add(self, sweep: Sweep, kind: str, line: Mapping[str, Any]) -> None:
        self._module("sglang_sweep_record", {"path": sweep.path, "line": {"kind": kind, **line}})

    def _skip(self, sweep: Sweep, line: Mapping[str, Any]) -> Sweep:
        self._add(sweep, trials.SKIPPED, line)
        record = replace(sweep.record, lines=(*sweep.record.lines, {"kind": trials.SKIPPED, **line}))
        return replace(sweep, record=record, state=outcome.replay(replace(sweep.state, trials=()), record))

    def _say(self, lines: list[str], colour: str | None = None) -> None:
        Display().display("\n".join(stringc(line, colour) if colour else line for line in lines))


def untagged(value: Any) -> Any:
    """Data of a play without the tags that ansible-core puts on it, which YAML cannot write."""
    return json.loads(json.dumps(value))


def _question(args: Mapping[str, Any]) -> tuple[measure.Objective, measure.Workload]:
    """What is asked, checked."""
    asked = args["objective"]
    if asked["kind"] not in measure.OBJECTIVES:
        raise spaces.SpaceError(f"sweep_objective: one of {', '.join(measure.OBJECTIVES)}, not {asked['kind']!r}")
    ceilings = dict(asked["ceilings"] or {})
    if wrong := sorted(set(ceilings) - set(measure.CEILINGS)):
        raise spaces.SpaceError(f"sweep_ceilings: there is no {', '.join(wrong)}; there are {', '.join(measure.CEILINGS)}")
    users = int(asked["users"])
    numbers = {name: int(value) for name, value in args["workload"].items() if name != "users"}
    levels = tuple(sorted({users, *(int(each) for each in args["workload"]["users"])}))
    if min(*numbers.values(), *levels) < 1:
        raise spaces.SpaceError("sweep_workload and sweep_users: every number is at least 1")
    workload = measure.Workload(levels, **numbers)
    objective = measure.Objective(str(asked["kind"]), users, {name: float(value) for name, value in ceilings.items()})
    return objective, workload


def _one_line(text: str) -> str:
    lines = [line.lstrip("- ") for line in text.splitlines() if line.startswith("- ")]
    return " ".join((lines or text.splitlines())[0].split())


def _shown(path: Path) -> str:
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)
