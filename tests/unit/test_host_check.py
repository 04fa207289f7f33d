"""The task that checks a host: what it asks the module, how it judges, shows, writes down and refuses."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "data" / "hosts"


def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("host_check_action", ROOT / "plugins" / "action" / "sglang_host_check.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def deployment(stack: str = "glm5-cuda128", **environment: str) -> dict[str, Any]:
    entry = yaml.safe_load((ROOT / "catalog" / "stacks.yml").read_text(encoding="utf-8"))[stack]
    values = {"tp_size": 8, "host": "127.0.0.1", "port": 8000}
    spec = {
        "instance": "glm5",
        "settings": {name: {"value": value} for name, value in values.items()},
        "environment": {name: {"value": value} for name, value in environment.items()},
    }
    return {"stack": {"name": stack, **entry}, "deployment": {"spec": spec}}


class Ran:
    """A run of the task on a recorded host."""

    def __init__(self, evidence: dict[str, Any], folder: Path, **args: Any) -> None:
        self.evidence, self.folder, self.args = evidence, folder, args
        self.asked: dict[str, Any] = {}
        self.shown = ""

    def __call__(self) -> dict[str, Any]:
        module = plugin()
        module.PROJECT = self.folder
        (self.folder / "catalog").symlink_to(ROOT / "catalog")
        task = mock.Mock(args=self.args, async_val=0, check_mode=False)
        action = module.ActionModule(task, mock.Mock(), mock.Mock(), None, None, None)

        def execute(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
            self.asked = module_args
            return {"evidence": self.evidence} if self.evidence else {"unreachable": True, "msg": "gone", "invocation": {}}

        with mock.patch.object(action, "_execute_module", execute), mock.patch.object(Display, "display") as display:
            result: dict[str, Any] = action.run(task_vars={"inventory_hostname": "gpu1"})
        self.shown = "\n".join(str(call.args[0]) for call in display.call_args_list)
        return result


@pytest.fixture
def evidence() -> Iterator[dict[str, Any]]:
    yield json.loads((HOSTS / "pro6000x8-two-sockets.json").read_text(encoding="utf-8"))["evidence"]


def test_a_fit_host(evidence: dict[str, Any], tmp_path: Path) -> None:
    given = deployment(NCCL_P2P_LEVEL="SYS", MAX_JOBS="16", CUDA_HOME="/usr/local/cuda-12.8")
    ran = Ran(evidence, tmp_path, deployment=given, model="lukealonso/GLM-5-NVFP4", model_source="hub")
    result = ran()
    assert (result["host"]["gpu_count"], result["host"]["driver"], result["changed"]) == (8, "580.159.03", False)
    assert not result["report"]["refused"] and ran.shown == ""
    assert json.loads((tmp_path / ".cache/host_check/gpu1.json").read_text(encoding="utf-8"))["evidence"] == evidence
    assert ran.asked["ports"] == [{"instance": "glm5", "address": "127.0.0.1", "port": 8000}]
    assert ran.asked["places"] == {"releases": "/opt/sglang", "weights": "/srv/models", "kernel caches": "/var/cache/sglang"}
    assert (ran.asked["cuda_home"], ran.asked["tools"]) == ("/usr/local/cuda-12.8", ["g++", "ninja"])


def test_nothing_of_the_environment_goes_to_the_host_but_cuda_home(evidence: dict[str, Any], tmp_path: Path) -> None:
    ran = Ran(evidence, tmp_path, deployment=deployment(NCCL_P2P_LEVEL="SYS", PRIVATE="hush"))
    ran()
    assert "hush" not in json.dumps(ran.asked)


def test_problems_are_shown_without_the_rest(evidence: dict[str, Any], tmp_path: Path) -> None:
    ran = Ran(evidence, tmp_path, deployment=deployment(NCCL_P2P_LEVEL="PHB", MAX_JOBS="16"))
    ran()
    assert "nccl-level" in ran.shown and "Set NCCL_P2P_LEVEL: SYS" in ran.shown
    assert "paths between GPUs" not in ran.shown
    whole = Ran(evidence, tmp_path / "whole", deployment=deployment(NCCL_P2P_LEVEL="PHB", MAX_JOBS="16"), whole=True)
    (tmp_path / "whole").mkdir()
    whole()
    assert "paths between GPUs  NODE, PIX, SYS" in whole.shown


def test_a_host_that_is_not_fit(evidence: dict[str, Any], tmp_path: Path) -> None:
    evidence["gpus"] = evidence["gpus"][:7]
    with pytest.raises(AnsibleActionFail) as refused:
        Ran(evidence, tmp_path, deployment=deployment(NCCL_P2P_LEVEL="SYS"))()
    assert "gpu-count" in str(refused.value) and "host_check_allow: [gpu-count]" in str(refused.value)
    assert json.loads((tmp_path / ".cache/host_check/gpu1.json").read_text(encoding="utf-8"))["report"]["refused"]


@pytest.mark.parametrize("allow", [["gpu-count"], "gpu-count,acs"])
def test_a_waiver(evidence: dict[str, Any], tmp_path: Path, allow: object) -> None:
    evidence["gpus"] = evidence["gpus"][:7]
    result = Ran(evidence, tmp_path, deployment=deployment(NCCL_P2P_LEVEL="SYS"), allow=allow)()
    assert [found["id"] for found in result["report"]["judgements"] if found["allowed"]] == ["gpu-count"]


def test_a_waiver_of_nothing(evidence: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="did you mean gpu-count"):
        Ran(evidence, tmp_path, deployment=deployment(), allow=["gpu-counts"])()


def test_a_lost_host_is_passed_on_as_it_is(tmp_path: Path) -> None:
    result = Ran({}, tmp_path, deployment=deployment())()
    assert result["unreachable"] and result["msg"] == "gone" and "invocation" not in result


@pytest.mark.parametrize(
    ("source", "model", "environment", "place"),
    [
        ("server", "a/b", {"HF_HOME": "/data/hf"}, "/data/hf/hub/models--a--b"),
        ("server", "a/b", {"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/data/hub"}, "/data/hub/models--a--b"),
        ("server", "a/b", {}, "/var/cache/sglang/huggingface/hub/models--a--b"),
        ("server", "/data/glm5", {}, "/data/glm5"),
        ("hub", "a/b", {}, "/srv/models"),
        ("local", "/data/glm5", {}, "/data/glm5"),
    ],
)
def test_weights_are_looked_for_where_they_come_to_be(
    evidence: dict[str, Any], tmp_path: Path, source: str, model: str, environment: dict[str, str], place: str
) -> None:
    ran = Ran(
        evidence,
        tmp_path,
        deployment=deployment(NCCL_P2P_LEVEL="SYS", **environment),
        model=model,
        model_source=source,
    )
    ran()
    assert ran.asked["places"]["weights"] == place


def test_room_for_the_weights_is_the_servers_concern_alone(evidence: dict[str, Any], tmp_path: Path) -> None:
    evidence["disks"][1] |= {"free_mib": 1000, "total_mib": 2000, "inhabited": False}
    given = {"deployment": deployment(NCCL_P2P_LEVEL="SYS"), "model": "lukealonso/GLM-5-NVFP4"}
    assert not Ran(evidence, tmp_path, **given, model_source="hub")()["report"]["refused"]
    (tmp_path / "other").mkdir()
    with pytest.raises(AnsibleActionFail, match="disk-weights"):
        Ran(evidence, tmp_path / "other", **given, model_source="server")()


def test_an_option_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="no option deploment"):
        Ran({}, tmp_path, deploment={})()


def test_the_role_gives_options_that_the_task_has() -> None:
    task = yaml.safe_load((ROOT / "roles/host_check/tasks/check.yml").read_text(encoding="utf-8"))[0]
    assert set(task["sglang_host_check"]) <= {*plugin().DEFAULTS, "deployment"}
    documented = yaml.safe_load(_documentation())["options"]
    assert set(documented) == {*plugin().DEFAULTS, "deployment"}
    for name, value in plugin().DEFAULTS.items():
        assert documented[name].get("default") == value, name


def _documentation() -> str:
    text = (ROOT / "plugins/modules/sglang_host_check.py").read_text(encoding="utf-8")
    return text.split('DOCUMENTATION = r"""')[1].split('"""')[0]
