"""Hosts of many kinds, and what is said of them (tests/data/hosts/cases.yaml)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy import fields, host_facts, host_judge, host_report
from sglang_deploy.host_evidence import Evidence
from sglang_deploy.host_judge_p2p import LEVELS, needed_level
from sglang_deploy.host_judge_system import max_jobs
from sglang_deploy.host_needs import Needs, of_deployment

HOSTS = Path(__file__).resolve().parents[1] / "data" / "hosts"
CASES = yaml.safe_load((HOSTS / "cases.yaml").read_text(encoding="utf-8"))
GLM5 = Needs(
    stack="glm5-cuda128",
    python_range=">=3.10,<3.13",
    disk_mib=20000,
    cuda="12.8",
    driver=">=570",
    capabilities=("12.0",),
    gpus=8,
    shards=8,
    weights_gib=410,
    weights_there=True,
    environment={"NCCL_P2P_LEVEL": "SYS", "MAX_JOBS": "16"},
)


def recording(name: str) -> dict[str, Any]:
    return json.loads((HOSTS / f"{name}.json").read_text(encoding="utf-8"))["evidence"]


def change(data: Any, path: list[str], value: object) -> None:
    """Set a field of nested data; `*` stands for all entries of a list, `X` of a matrix stays."""
    step, *rest = path
    if step == "*":
        for index in range(len(data)):
            if rest:
                change(data[index], rest, value)
            elif data[index] != "X":
                data[index] = value
        return
    key = int(step) if isinstance(data, list) else step
    if value == "remove" and not rest:
        del data[key]
    elif rest:
        change(data[key], rest, value)
    else:
        assert isinstance(data, list) or key in data, f"there is no {key}"
        data[key] = value


def host(case: Mapping[str, Any]) -> Evidence:
    data = recording(case["of"])
    for path, value in (case.get("change") or {}).items():
        change(data, path.split("."), value)
    return fields.build(Evidence, data, case["name"])


def needs(case: Mapping[str, Any]) -> Needs:
    asked = dict(case.get("needs") or {})
    if "capabilities" in asked:
        asked["capabilities"] = tuple(asked["capabilities"])
    if case["of"] == "container" and "weights_there" not in asked:
        asked["weights_there"] = "cuda" in asked
    return replace(GLM5, **asked)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_is_said_of_a_host(case: dict[str, Any]) -> None:
    report = host_judge.judge(host(case), needs(case))
    assert {found.id: found.severity for found in report.judgements} == case["says"], report.judgements
    assert case["source"]


def test_a_gpu_keeps_its_number_where_others_are_hidden() -> None:
    case = next(case for case in CASES if case["name"] == "CUDA_VISIBLE_DEVICES leaves too few")
    told = {found.id: found.reason for found in host_judge.judge(host(case), needs(case)).judgements}
    assert told["pcie-width"].startswith("GPU 7: PCIe x8 of x16")


def test_every_judgement_has_a_case_and_a_page() -> None:
    said = {name for case in CASES for name in case["says"]}
    assert said == set(host_judge.SOURCES)
    page = (HOSTS.parents[2] / "docs" / "host-check.md").read_text(encoding="utf-8")
    for name in said:
        assert f"`{name}`" in page, name


def test_the_page_marks_what_refuses() -> None:
    refuses = {name for case in CASES for name, severity in case["says"].items() if severity == "refuse"}
    page = (HOSTS.parents[2] / "docs" / "host-check.md").read_text(encoding="utf-8")
    marked = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "| refuses" in line}
    assert marked == refuses


@pytest.mark.parametrize("name", sorted(path.stem for path in HOSTS.glob("*.json")))
def test_recordings_read_back_as_they_were_written(name: str) -> None:
    data = recording(name)
    assert json.loads(json.dumps(fields.build(Evidence, data, name).as_dict())) == data


def test_a_refusal_can_be_waived_and_stays_visible() -> None:
    case = next(case for case in CASES if case["name"] == "one of eight has fallen off the bus")
    report = host_judge.judge(host(case), needs(case), ["gpu-count"])
    assert not report.refusals
    (waived,) = [found for found in report.judgements if found.allowed]
    assert (waived.id, waived.severity) == ("gpu-count", "warn")
    assert "allowed: gpu-count" in "\n".join(line for line, _ in host_report.lines(report, "gpu1", whole=False))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(host_report.UnknownJudgement, match="gpu-count"):
        host_judge.judge(Evidence(), GLM5, ["gpu-cuont"])


def test_refusals_come_first_and_say_how_to_go_on() -> None:
    case = next(case for case in CASES if case["name"] == "no cards at all")
    report = host_judge.judge(host(case), needs(case))
    severities = [found.severity for found in report.judgements]
    assert severities == sorted(severities, key=["refuse", "warn", "inform"].index)
    text = "\n".join(host_report.refusal(report))
    assert "nothing was changed" in text and "remedy:" in text and "host_check_allow: [driver-absent]" in text
    shown = [line for line, _ in host_report.lines(report, "gpu1", whole=False)]
    assert shown[0] == "gpu1: the host is not fit (2 refusals, 3 warnings, 2 notes)"
    assert not any(line.startswith(("REFUSED", "note")) for line in shown)
    whole = [line for line, _ in host_report.lines(report, "gpu1", whole=True)]
    assert any(line.startswith("note: time") for line in whole) and any("releases" in line for line in whole)


def test_a_report_is_plain_data() -> None:
    report = host_judge.judge(host(CASES[0]), GLM5).as_dict()
    assert json.loads(json.dumps(report)) == report
    assert report["refused"] is False
    assert {"topic": "paths between GPUs", "found": "NODE, PIX, SYS"} in report["summary"]


def test_nothing_is_said_of_what_nobody_could_tell() -> None:
    """An empty evidence is a host that answered nothing: no GPU is certain, the rest is unknown."""
    told = {found.id for found in host_judge.judge(Evidence(), GLM5).judgements}
    assert told == {"driver-absent", "python"}


@given(st.data())
@settings(max_examples=25)
def test_any_field_may_be_unknown(data: st.DataObject) -> None:
    """Each fact may be missing, one by one: never an error, and never more refusals than for a sound host."""
    evidence = recording("pro6000x8-two-sockets")
    for name in data.draw(st.sets(st.sampled_from(sorted(evidence["gpus"][0])), max_size=6)):
        number = data.draw(st.integers(0, 7))
        evidence["gpus"][number][name] = {"processes": [], "name": "GPU", "index": number}.get(name)
    for part in ("driver", "memory", "limits"):
        for name in data.draw(st.sets(st.sampled_from(sorted(evidence[part])), max_size=3)):
            if (
                evidence[part][name] is None
                or isinstance(evidence[part][name], (int, bool))
                or name in ("loaded", "library", "cuda")
            ):
                evidence[part][name] = False if name in ("nouveau", "silent") else None
    for name in data.draw(
        st.sets(st.sampled_from(["systemd", "init", "cpus", "sockets", "secure_boot", "upgrades", "time_synced"]))
    ):
        evidence[name] = None
    report = host_judge.judge(fields.build(Evidence, evidence, "a host"), GLM5)
    assert not report.refusals
    host_report.lines(report, "host", whole=True)


@pytest.mark.parametrize(
    ("paths", "level"),
    [
        ((), None),
        ((("X", "NV18"), ("NV18", "X")), "NVL"),
        ((("X", "PIX"), ("PIX", "X")), "PIX"),
        ((("X", "PXB", "PIX"), ("PXB", "X", "PIX"), ("PIX", "PIX", "X")), "PXB"),
        ((("X", "NODE"), ("NODE", "X")), "PHB"),
        ((("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X")), "SYS"),
    ],
)
def test_the_level_that_follows_from_the_paths(paths: tuple[tuple[str, ...], ...], level: str | None) -> None:
    assert needed_level(paths) == level


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS", "NV12"]), min_size=1))
def test_a_further_path_never_lowers_the_level(cells: list[str]) -> None:
    levels = [LEVELS.index(needed_level([["X", *cells[: n + 1]]]) or "LOC") for n in range(len(cells))]
    assert levels == sorted(levels)


@given(st.integers(0, 4 * 10**6), st.integers(1, 512))
def test_compile_jobs_fit_memory(available: int, cpus: int) -> None:
    jobs = max_jobs(available, cpus)
    assert 1 <= jobs <= cpus
    assert jobs == 1 or jobs * 8192 + 16384 <= available


def test_needs_of_a_launch_spec() -> None:
    def spec(**values: object) -> dict[str, Any]:
        given = {name: {"value": value} for name, value in values.items()}
        return {"instance": "glm5", "settings": given, "environment": {"MAX_JOBS": {"value": "8"}}}

    stack = {
        "name": "cuda13",
        "python": ">=3.11",
        "cuda": "13.0",
        "driver": ">=580",
        "disk_mib": 24000,
        "capabilities": ("12.0",),
    }
    found = of_deployment(stack, spec(tp_size=4, pp_size=2, dp_size=1), weights_gib=400)
    assert (found.gpus, found.shards, found.weights_mib_per_gpu) == (8, 8, 51200)
    assert found.environment == {"MAX_JOBS": "8"} and found.p2p
    assert of_deployment(stack, spec(tp_size=16, nnodes=2)).gpus == 8
    assert of_deployment(stack, spec(tp_size=4, dp_size=2), weights_gib=400).weights_mib_per_gpu == 102400
    assert of_deployment(stack, spec()).p2p is False
    assert of_deployment({"name": "cpu", "cuda": None}, spec(tp_size=2)).gpus == 0


def test_facts_for_the_plan() -> None:
    found = host_facts.facts(host(CASES[0]))
    assert (found.gpu_count, found.capability, found.gpu_memory_gib, found.driver) == (8, "12.0", 95.6, "580.159.03")
    assert (found.nvlink, found.nvcc, found.sockets) == (False, "12.8", 2)
    assert host_facts.facts(fields.build(Evidence, recording("h200x2-nvlink"), "")).nvlink is True
    assert host_facts.facts(fields.build(Evidence, recording("gb10"), "")).gpu_memory_gib is None
    assert found.weights is True
    nothing = host_facts.facts(Evidence())
    assert nothing.weights is None
    assert (nothing.gpu_count, nothing.capability, nothing.driver, nothing.nvlink) == (None, None, None, None)


def test_a_mixed_host_has_no_single_capability_and_the_smallest_memory() -> None:
    evidence = fields.build(Evidence, recording("pro6000x4-workstation"), "")
    other = replace(evidence.gpus[0], capability="9.0", memory_mib=143771)
    found = host_facts.facts(replace(evidence, gpus=(*evidence.gpus, other)))
    assert (found.capability, found.gpu_memory_gib, found.gpu_count) == (None, 95.6, 5)
