"""The sweep's parts but its order: spaces, pruning, records, measurement, agreement, pin and page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from loading import plugin
from sglang_deploy import catalog, launch_spec, ledger, plan, rules
from sglang_deploy.sweep import agreement, board, gpu, measure, order, outcome, pin, prune, report, space, trials

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = catalog.load(ROOT / "catalog")
BOOK = rules.load(ROOT / "catalog" / "rules.yml", ENTRIES.options.names)
FILE = ROOT / "catalog" / "sweeps.yml"


# Spaces


@pytest.mark.parametrize("name", sorted(yaml.safe_load(FILE.read_text(encoding="utf-8"))))
def test_every_space_of_the_catalog_is_whole_and_carries_evidence(name: str) -> None:
    found = space.load(FILE, ENTRIES, name)
    assert found.dimensions and found.size > 1
    assert yaml.safe_load(FILE.read_text(encoding="utf-8"))[name]["evidence"]


def test_a_space_of_ones_own_is_laid_over() -> None:
    found = space.load(
        FILE,
        ENTRIES,
        "cpu-lab",
        vary={"torch_compile": None, "NCCL_ALGO": ["Ring", None], "layout": {"two": {"tp_size": 2, "pp_size": None}}},
    )
    names = [each.name for each in found.dimensions]
    assert "torch_compile" not in names and names[-2:] == ["NCCL_ALGO", "layout"]
    candidate = space.Candidate("cpu-lab-glm4moe", (("NCCL_ALGO", "unset"), ("layout", "two")))
    assert found.layers(candidate) == ({"tp_size": 2, "pp_size": None}, {"NCCL_ALGO": None})
    assert found.parse(candidate.key) == candidate
    assert found.parse("cpu-lab-glm4moe + layout=three") is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"vary": {"moe_runer": ["triton"]}}, "moe_runner"),
        ({"vary": {"moe_runner": "triton"}}, "list of values"),
        ({"vary": {"max_running_requests": ["many"]}}, "max_running_requests"),
        ({"vary": {"moe_runner": ["triton", "triton"]}}, "twice"),
        ({"vary": {"layout": {"x": 3}}}, "change together"),
        ({"profiles": ["dense-mla-bf61"]}, "dense-mla-bf16"),
    ],
)
def test_a_space_that_is_wrong_is_refused_with_the_right_words(given: dict[str, Any], says: str) -> None:
    with pytest.raises(space.SpaceError, match=says):
        space.load(FILE, ENTRIES, "cpu-lab", **given)


def test_an_unknown_space_is_refused_with_the_known_ones() -> None:
    with pytest.raises(space.SpaceError, match="glm5-dense"):
        space.load(FILE, ENTRIES, "glm5-dens")


# Pruning


def judge(name: str = "glm5-dense", **given: Any) -> tuple[space.Space, prune.Judge]:
    found = space.load(FILE, ENTRIES, name, **given)
    stack = ENTRIES.stacks["glm5-cuda128"]
    requests = {
        profile: launch_spec.Request(
            "glm5", stack.name, profile, "lukealonso/GLM-5-NVFP4", ENTRIES.dialect(stack.sglang), "r1"
        )
        for profile in found.profiles
    }
    spec = launch_spec.resolve(ENTRIES, requests[found.profiles[0]])
    context = plan.context_of(
        spec,
        requests[found.profiles[0]].dialect,
        versions=rules.Versions(sglang="0.5.9", flashinfer="0.6.3"),
        host=rules.Host(capability="12.0", gpu_count=8, gpu_memory_gib=95.6),
        model=rules.Model(sparse_attention=True, mla=True, moe=True, quantization="nvfp4", weights_gib=410.0),
    )
    return found, prune.Judge(found, ENTRIES, requests, BOOK, context)


def test_rules_prune_what_is_known_to_fail_and_say_which_rule() -> None:
    found, say = judge()
    base = space.Candidate("dense-mla-bf16")
    assert say(base).rule == ""
    assert say(found.change(base, "kv_cache_dtype", "fp8_e4m3")).rule == "dense-attention-fp8-kv"
    assert say(found.change(base, "fp4_gemm", "cutlass")).rule == "cannot-be-asked"


def test_memory_that_cannot_fit_is_pruned_although_the_plan_only_warns() -> None:
    found, say = judge(vary={"mem_fraction_static": [0.5]})
    assert say(found.change(space.Candidate("dense-mla-bf16"), "mem_fraction_static", "0.5")).rule == "no-room-for-kv"


def test_equal_launches_are_one() -> None:
    found, say = judge()
    base = space.Candidate("dense-mla-bf16")
    assert say(found.change(base, "kv_cache_dtype", "bfloat16")).identity == say(base).identity
    assert say(found.change(base, "moe_runner", "triton")).identity != say(base).identity


def test_the_full_product_is_counted_whole_where_it_is_small_and_by_sample_where_not() -> None:
    small, say = judge(name="", vary={"kv_cache_dtype": ["fp8_e4m3", "bfloat16"]}, profiles=["dense-mla-bf16"])
    counted = prune.count(small, say)
    assert counted == prune.Count(3, 3, 1, 1, {"dense-attention-fp8-kv": 1})
    large, say = judge()
    sampled = prune.count(large, say, most=50)
    assert not sampled.whole and sampled.judged == 50


def test_what_failed_here_before_is_not_tried_again() -> None:
    found, say = judge()
    base = space.Candidate("dense-mla-bf16")
    remembering = outcome.Remembering(say, {say(base).identity: "deploy of yesterday: nan-answers"})
    assert remembering(base).rule == "failed-before" and "nan-answers" in remembering(base).reason
    assert remembering(found.change(base, "moe_runner", "triton")).rule == ""


# The record


def spec_of(port: int = 8000, chunk: str = "512") -> dict[str, Any]:
    return {
        "release": "r1",
        "settings": {
            "port": {"options": ["--port", str(port)]},
            "chunked_prefill_size": {"options": ["--chunked-prefill-size", chunk]},
        },
        "extra_args": [],
        "environment": {"A": {"value": "1"}},
        "hash": f"{port}{chunk}",
        "url": f"http://127.0.0.1:{port}",
        "profile": "p",
        "command": ["/r/venv/bin/python"],
        "argv": [],
    }


def test_the_address_does_not_make_another_launch() -> None:
    assert trials.identity(spec_of(8000)) == trials.identity(spec_of(8999))
    assert trials.identity(spec_of()) != trials.identity(spec_of(chunk="1024"))


def test_a_start_without_an_end_is_pending_and_the_boot_tells_whether_the_host_died(tmp_path: Path) -> None:
    path = tmp_path / "sweeps" / "a.jsonl"
    trials.append(path, {"kind": trials.OPENED, "facts": "f"})
    trials.append(path, {"kind": trials.STARTED, "trial": 1, "key": "x", "boot": "one"})
    trials.append(path, {"kind": trials.ENDED, "trial": 1, "key": "x", "identity": "i", "status": "passed"})
    trials.append(path, {"kind": trials.STARTED, "trial": 2, "key": "y", "boot": "one"})
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"kind": "en')  # cut off with the power
    same, other = trials.read(path, boot="one"), trials.read(path, boot="two")
    assert same.pending is not None and same.pending["trial"] == 2
    assert not same.died and other.died and other.unreadable == 1
    trials.append(path, {"kind": trials.ENDED, "trial": 2, "key": "y", "identity": "j", "status": "died"})
    assert trials.read(path, boot="two").pending is None


def test_failures_of_deployments_and_of_other_sweeps_are_known(tmp_path: Path) -> None:
    state = tmp_path / "glm5"
    deployment = {"spec": spec_of(), "launch": "", "environment": ""}
    finding = {"id": "nan-answers", "severity": "fatal"}
    ledger.record(state, "deploy", deployment, {"ok": False, "findings": [finding]}, "me")
    other = {"spec": spec_of(chunk="2"), "launch": "", "environment": ""}
    ledger.record(state, "deploy", other, {"ok": False, "reason": "the connection was lost"}, "me")
    folder = tmp_path / "sweeps"
    ended_line = {"kind": trials.ENDED, "trial": 1, "key": "k", "status": "wrong", "reason": "garbage"}
    for name, facts in (("same", "f"), ("changed", "g")):
        trials.append(folder / f"{name}.jsonl", {"kind": trials.OPENED, "facts": facts})
        trials.append(folder / f"{name}.jsonl", {**ended_line, "identity": name})
    unknown = {**ended_line, "identity": "unknown", "status": "failed", "findings": [{"severity": "info"}]}
    trials.append(folder / "same.jsonl", {**unknown, "trial": 2})
    found = trials.failed_before(folder, folder / "mine.jsonl", [state], "f")
    assert set(found) == {trials.identity(spec_of()), "same"}
    ledger.record(state, "deploy", deployment, {"ok": True}, "me")
    assert trials.identity(spec_of()) not in trials.failed_before(folder, folder / "mine.jsonl", [state], "f")


# Measurement


def line(users: int, rate: float, **changed: Any) -> str:
    return json.dumps(
        {
            "max_concurrency": users,
            "completed": 2,
            "errors": ["", ""],
            "output_throughput": rate,
            "total_throughput": 2 * rate,
            "ttfts": [0.1, 0.3],
            "itls": [[0.01, 0.02], [0.03]],
            "median_e2e_latency_ms": 500.0,
            **changed,
        }
    )


def test_the_tools_output_is_read_and_put_together_by_users() -> None:
    found = measure.levels([measure.parse(line(4, 90)), measure.parse(line(4, 110)), measure.parse(line(1, 30))])
    assert [(each.users, each.rounds, each.output_rate) for each in found] == [(1, 1, 30.0), (4, 2, 100.0)]
    assert math.isclose(found[1].output_rate_error, 10.0)
    assert math.isclose(found[1].ttft_p50_ms, 200) and math.isclose(found[1].itl_p50_ms, 20)


@pytest.mark.parametrize("text", ["", "nonsense", "{}", line(1, 1, ttfts=None), line(1, 1, itls=[1])])
def test_output_that_is_none_is_an_error_in_words(text: str) -> None:
    with pytest.raises(measure.MeasureError, match="cannot be read"):
        measure.parse(text)


def test_a_ceiling_turns_a_fast_trial_into_one_that_does_not_count() -> None:
    found = measure.levels([measure.parse(line(4, 100))])
    assert measure.Objective("throughput", 4).score(found) == (100.0, 0.0, "")
    value, _, told = measure.Objective("throughput", 4, {"ttft_p95_ms": 100}).score(found)
    assert value < 0 and "ttft_p95_ms is 290 ms" in told
    assert measure.Objective("latency", 4).score(found)[0] == 2.0
    assert measure.Objective("throughput", 16).score(found)[0] == -math.inf


def test_every_round_has_prompts_of_its_own_and_the_first_is_thrown_away() -> None:
    calls = measure.arguments(measure.Workload((1, 4), rounds=3), 4, "http://h:1", "m", "/out")
    users = [call[call.index("--max-concurrency") + 1] for call in calls]
    assert users == ["4", "1", "4", "4", "4"]
    assert [call[call.index("--output-file") + 1] for call in calls] == ["/dev/null", *["/out"] * 4]
    assert len({call[call.index("--seed") + 1] for call in calls}) == 5


def test_gpus_are_read_and_what_is_not_told_is_nothing() -> None:
    assert measure.parse_gpus("812, 71.23\n1024, [N/A]\n") == [(812, 71.23), (1024, 0.0)]


def test_a_stopped_server_is_waited_for_and_what_stays_is_named() -> None:
    used = iter(["90000\n500", "3000\n500", "100\n500"])

    def said(command: tuple[str, ...]) -> str:
        return next(used) if command == gpu.MEMORY_QUERY else "[not set]"

    assert gpu.wait("u", 1000, 30, said).memory_mib == (100, 500)  # type: ignore[arg-type]

    def stays(command: tuple[str, ...]) -> str:
        return {gpu.MEMORY_QUERY: "90000", gpu.PROCESS_QUERY: "71, 90000 MiB, python"}.get(command, "3")

    with pytest.raises(gpu.NotFree, match=r"3 processes.*GPU 0 still holds 90000 MiB.*71, 90000 MiB, python"):
        gpu.wait("u", 1000, 0, stays)  # type: ignore[arg-type]


# Agreement


def sample(*steps: tuple[int, float, tuple[tuple[int, float], ...]]) -> agreement.Sample:
    return agreement.Sample((1, 2), tuple(agreement.Step(*step) for step in steps))


SURE = sample((5, -0.1, ((5, -0.1), (6, -3.0))), (7, -0.2, ((7, -0.2), (8, -2.0))))


def test_a_launch_agrees_with_itself() -> None:
    found = agreement.judge([SURE], [SURE], 0.05)
    assert (found.argmax, found.first, found.gap) == (1.0, 1.0, 0.0)
    assert found.problems(0.95, 0.1) == []


def test_quiet_corruption_is_seen_in_argmax_and_in_the_gap() -> None:
    other = sample((5, -2.5, ((6, -0.2), (5, -2.5))), (7, -0.3, ((7, -0.3), (8, -2.0))))
    found = agreement.judge([SURE], [other], 0.05)
    assert found.argmax == 0.5 and found.first == 0.0 and math.isclose(found.gap, 1.25)
    assert len(found.problems(0.95, 0.1)) == 2


def test_a_near_tie_of_the_reference_is_no_disagreement() -> None:
    tie = sample((5, -0.7, ((5, -0.7), (6, -0.71))))
    other = sample((5, -0.71, ((6, -0.70), (5, -0.71))))
    assert agreement.judge([tie], [other], 0.05).argmax == 1.0
    assert agreement.judge([tie], [other], 0.001).argmax == 0.0


def test_no_number_agrees_with_nothing() -> None:
    broken = sample((5, math.nan, ()), (7, math.nan, ()))
    found = agreement.judge([SURE], [broken], 0.05)
    assert found.argmax == 0.0 and found.problems(0.5, 100.0)


def test_a_reference_survives_its_file() -> None:
    assert agreement.samples_from(json.loads(json.dumps([SURE.as_dict()]))) == [SURE]


# Outcomes, the page and the pin

TRIAL = {
    "trial": 1,
    "key": "cpu-lab-glm4moe",
    "identity": "i1",
    "effective": "e1",
    "phase": "start",
    "said": "s",
    "why": "w",
}
MEASURED = {"levels": [vars(each) for each in measure.levels([measure.parse(line(4, 100))])]}
OBJECTIVE = measure.Objective("throughput", 4)


def ended(**given: Any) -> dict[str, Any]:
    asked = {"watch": {}, "gate": {}, "measured": {}, "diagnosis": {}, "broken": "", **given}
    return outcome.of(TRIAL, objective=OBJECTIVE, seconds=12.0, **asked)


def test_each_way_to_end_has_its_status_and_reason() -> None:
    ready, passes = {"outcome": "ready", "ready_s": 5.0}, {"ok": True, "checks": []}
    assert ended(broken="it broke")["status"] == "failed"
    assert ended(watch={"outcome": "failed", "reason": "exit 1"})["reason"] == "exit 1"
    wrong = ended(watch=ready, gate={"ok": False, "checks": [{"name": "greedy", "ok": False, "summary": "NaN"}]})
    assert (wrong["status"], wrong["reason"]) == ("wrong", "greedy: NaN")
    quiet = ended(watch=ready, gate=passes, measured={"problems": ["80 % agree"], "measured": {}})
    assert (quiet["status"], quiet["reason"]) == ("wrong", "80 % agree")
    died = ended(watch=ready, gate=passes, measured={"reason": "bench_serving ended", "measured": {}})
    assert (died["status"], died["reason"]) == ("failed", "bench_serving ended")
    good = ended(watch=ready, gate=passes, measured={"measured": MEASURED})
    assert (good["status"], good["value"]) == ("passed", 100.0)


def a_record() -> tuple[space.Space, trials.Record]:
    found = space.load(FILE, ENTRIES, "cpu-lab")
    ready, passes = {"outcome": "ready", "ready_s": 5.0}, {"ok": True, "checks": []}
    good = ended(watch=ready, gate=passes, measured={"measured": MEASURED})
    second = {**good, "key": "cpu-lab-glm4moe + torch_compile=true", "identity": "i2", "effective": "e2", "value": 140.0}
    bad = ended(watch={"outcome": "failed", "reason": "</script><b>exit 1</b>"})
    third = {**bad, "key": "cpu-lab-glm4moe + schedule_policy=lpm", "identity": "i3", "effective": "e3"}
    same = {"kind": trials.SKIPPED, "key": "cpu-lab-glm4moe + schedule_policy=fcfs", "identity": "i4", "status": "same"}
    lines = [{"kind": trials.ENDED, **each} for each in (good, second, third)]
    return found, trials.Record(opened={"facts": "f"}, lines=(*lines, {**same, "other": "i1", "reason": "the same"}))


def made() -> dict[str, Any]:
    found, record = a_record()
    return report.results(
        host="h",
        instance="glm5",
        space=found,
        state=outcome.replay(order.State(found), record),
        record=record,
        objective=OBJECTIVE,
        workload=measure.Workload((4,)),
        facts={"driver": "570", "gpus": ["A"], "release": "r1", "model": "m", "model_fingerprint": "p"},
        unit="tok/s",
        base_backends={"attention": "triton"},
        base_environment={},
        date="2026-11-30",
    )


def test_a_record_is_replayed_into_the_state_it_came_from() -> None:
    found, record = a_record()
    state = outcome.replay(order.State(found), record)
    assert [trial.status for trial in state.trials] == ["passed", "passed", "failed", "same"]
    first = state.first("i4")
    assert first is not None and first.identity == "i1"
    assert outcome.twin(record, "i9", "e2") == "i2" and outcome.twin(record, "i2", "e2") is None


def test_the_choice_gives_the_lines_that_pin_it_over_what_is_there() -> None:
    choice = made()["choice"]
    assert yaml.safe_load("\n".join(choice["group_vars"])) == {
        "sglang_profile": "cpu-lab-glm4moe",
        "sglang_backends": {"attention": "triton", "torch_compile": True},
    }


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    template = (ROOT / "roles" / "sweep" / "templates" / "report.html.j2").read_text(encoding="utf-8")
    page = report.html(made(), template)
    assert not re.search(r"(?:src|href)\s*=|@import|url\(", page)
    assert "torch_compile: true" in page and "&lt;b&gt;exit 1" in page and "<b>exit 1" not in page
    assert page.count("<circle") == 2 and "prefers-color-scheme: dark" in page


def test_a_page_without_any_passed_trial_says_so() -> None:
    template = (ROOT / "roles" / "sweep" / "templates" / "report.html.j2").read_text(encoding="utf-8")
    data = {**made(), "choice": {}, "by_users": [], "trials": [row for row in made()["trials"] if row["status"] != "passed"]}
    assert "nothing to choose" in report.html(data, template)


def test_the_frontier_has_no_point_that_another_beats_in_both() -> None:
    points = [{"x": 1.0, "y": 5.0}, {"x": 2.0, "y": 4.0}, {"x": 3.0, "y": 9.0}, {"x": 3.0, "y": 8.0}]
    assert report.frontier(points) == [points[0], points[2]]


def test_a_pin_names_its_evidence_and_is_stale_when_what_it_rests_on_has_changed(tmp_path: Path) -> None:
    data = made()
    text = report.pin_text(data, "evidence", ROOT / "sweeps" / "h-glm5" / "sweep.json", ROOT)
    path = tmp_path / pin.NAME
    path.write_text(text, encoding="utf-8")
    found = pin.read(path)
    assert found is not None and found.settings == {"torch_compile": True} and len(found.evidence["sha256"]) == 64
    assert pin.stale(found, data["facts"]) == []
    assert pin.stale(found, {**data["facts"], "driver": None}) == []
    assert pin.stale(found, {**data["facts"], "driver": "580"}) == ["the driver was 570 and is 580"]
    for name, now in (("gpus", ["B"]), ("release", "r2"), ("model", "n"), ("model_fingerprint", "q")):
        assert len(pin.stale(found, {**data["facts"], name: now})) == 1, name
    told = {each.rule: each.severity for each in pin.notes(found, "f", {"driver": "580"}, {"torch_compile": False})}
    assert told == {"pinned": "inform", "pin-stale": "warn", "pin-over-group-vars": "warn"}


def test_a_pin_that_cannot_be_read_is_refused_and_none_is_none(tmp_path: Path) -> None:
    assert pin.read(tmp_path / "none.yml") is None
    path = tmp_path / pin.NAME
    path.write_text("profil: x\n", encoding="utf-8")
    with pytest.raises(pin.PinError, match="profile"):
        pin.read(path)


def test_lengths_and_values_read_well() -> None:
    assert [board.spell(each) for each in (5, 300, 7200 + 60)] == ["5 s", "5 min", "2 h 1 min"]
    assert board.value_text(123.456, 1.2, "tok/s") == "123.5 ±1.2 tok/s"
    assert board.value_text(-1.25, 0, "tok/s") == "1.25 x ceiling"


def test_what_a_play_gives_has_ansibles_tags_and_is_written_without_them() -> None:
    tagged = DataLoader().load("max_running_requests: [4]\nlayout: {two: {tp_size: 2}}")
    with pytest.raises(yaml.representer.RepresenterError):
        yaml.safe_dump(tagged)
    assert yaml.safe_load(yaml.safe_dump(plugin("sglang_sweep").untagged(tagged))) == tagged
