"""group_vars that hold anything at all: a launch spec or a message, and nothing that a shell or systemd would run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_deploy import catalog, rules

ROOT = Path(__file__).resolve().parents[2]
NASTY = [
    "$(touch x)",
    "`touch x`",
    "'; touch x; '",
    '"; touch x; "',
    "a\nExecStart=/bin/touch x",
    "%n %h %%",
    "${HOME}",
    "\\",
    "a\0b",
    "--flag",
    "-",
    "",
    " ",
    "é \u2028 \ud800",
    "x" * 5000,
    "$IFS",
    "!!python/object",
    "{{ 7 * 7 }}",
    "\r",
    "#",
    "&& touch x",
    "../../etc",
]
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=12))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
TAKEN = {
    "sglang_instance": ANY,
    "sglang_profile": ANY,
    "sglang_stack": ANY,
    "sglang_model": ANY,
    "sglang_model_revision": ANY,
    "sglang_served_model_name": ANY,
    "sglang_host": ANY,
    "sglang_port": ANY,
    "sglang_allow": ANY,
    "sglang_profiles": ANY,
    "sglang_stacks": ANY,
    "sglang_settings": ANY
    | st.dictionaries(st.sampled_from(["served_model_name", "chunked_prefill_size", "json_model_override_args"]), ANY),
    "sglang_backends": ANY | st.dictionaries(st.sampled_from(["attention", "moe_runner"]), ANY),
    "sglang_environment": ANY | st.dictionaries(st.sampled_from(["A", "PATH", "LD_PRELOAD"]) | TEXT, ANY),
    "sglang_extra_args": ANY | st.lists(TEXT, max_size=4),
}


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("hostile_sglang_plan", ROOT / "plugins" / "action" / "sglang_plan.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # The project's own files are read once: what is tried are the variables.
    read: dict[Path, Any] = {}
    load = catalog.load
    book = rules.load(ROOT / "catalog" / "rules.yml", load(ROOT / "catalog").options.names)

    def kept(root: Path, stacks: Any = None, profiles: Any = None) -> Any:
        if stacks or profiles:
            return load(root, stacks, profiles)
        if root not in read:
            read[root] = load(root)
        return read[root]

    with mock.patch.object(catalog, "load", kept), mock.patch.object(rules, "load", lambda *_: book):
        yield module


def plan(plugin: ModuleType, given: dict[str, Any]) -> dict[str, Any]:
    """What the action says of the lab's group_vars with these over them."""
    role = yaml.safe_load((ROOT / "roles/sglang_plan/defaults/main.yml").read_text(encoding="utf-8"))
    lab = {"sglang_stack": "cpu", "sglang_profile": "cpu-lab-glm4moe", "sglang_model": "/srv/models/x"}
    variables = {**role, **lab, **given}
    task = yaml.safe_load((ROOT / "roles/sglang_plan/tasks/resolve.yml").read_text(encoding="utf-8"))[0]["sglang_plan"]
    args = {name: variables.get(f"sglang_{name}") for name in task}
    args |= {
        "user": given.get("sglang_user", "sglang"),
        "group": "sglang",
        "release": {},
        "model_facts": {},
        "host_facts": {},
        "show": False,
    }
    args |= {"keys": {}, "tls": {}, "ref": "", "git_url": "", "source": "", "patched": False, "pin": ""}
    args |= {"model_source": "local", "model_root": "", "toolkit": "apt"}
    action = plugin.ActionModule(
        mock.Mock(args=args, async_val=0, check_mode=False), mock.Mock(), mock.Mock(), None, None, None
    )
    result: dict[str, Any] = action.run(task_vars={"inventory_hostname": "gpu1"})
    return result


def harmless(deployment: dict[str, Any], folder: Path) -> None:
    """A real shell reads back from the launch script exactly what the launch spec says, and runs nothing else."""
    environment = folder / "environment"
    environment.write_text(deployment["environment"], encoding="utf-8")
    script = re.sub(r"^\. .*$", f". {environment}", deployment["launch"], flags=re.MULTILINE)
    assert sum(line.startswith("exec ") for line in script.splitlines()) == 1
    script = re.sub(r"^exec ", "exec printf '%s\\\\0' ", script, flags=re.MULTILINE)
    (folder / "launch").write_text(script, encoding="utf-8")
    before = {path.name for path in folder.iterdir()}
    done = subprocess.run(["/bin/sh", "launch"], cwd=folder, capture_output=True, env={"PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split("\0")[:-1] == deployment["spec"]["command"]
    assert {path.name for path in folder.iterdir()} == before
    for line in deployment["environment"].splitlines():
        assert line.startswith("#") or re.fullmatch(r'[A-Za-z_]\w*="([^"\\`$]|\\["\\`$])*"', line), line


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_group_vars_give_a_launch_spec_or_a_message(
    plugin: ModuleType, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(TAKEN)), min_size=1, max_size=2, unique=True))
    given_ = {name: data.draw(TAKEN[name]) for name in names}
    try:
        made = plan(plugin, given_)
    except AnsibleActionFail as error:
        assert 0 < len(str(error)) < 20_000
        return
    harmless(made["deployment"], tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("value", [value for value in NASTY if value.isprintable() and value])
def test_text_that_a_shell_would_run_arrives_as_text(plugin: ModuleType, tmp_path: Path, value: str) -> None:
    given_ = {"sglang_environment": {"ODD": value}, "sglang_served_model_name": f"x{value}"}
    made = plan(plugin, given_)["deployment"]
    assert f"x{value}" in made["spec"]["command"]
    assert made["spec"]["environment"]["ODD"]["value"] == value
    harmless(made, tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "a b", "a;b", "$(x)", "a\nb", "%n", "A", "", "a" * 40, "-a", "a@b", "é", None, 5, ["a"]]
)
def test_an_instance_is_named_by_a_plain_word(plugin: ModuleType, name: object) -> None:
    with pytest.raises(AnsibleActionFail, match="instance name"):
        plan(plugin, {"sglang_instance": name})


@pytest.mark.parametrize("name", ["root", "config_root", "state_root", "cache_root", "user"])
@pytest.mark.parametrize("value", ["/x\nExecStart=/bin/touch /x", "/x%n", "/x y", "x y", "/x;id", "/$(id)", "/x\\"])
def test_what_stands_in_the_unit_as_it_is_is_plain(plugin: ModuleType, name: str, value: str) -> None:
    with pytest.raises(AnsibleActionFail, match=f"sglang_{name}: .* is not allowed"):
        plan(plugin, {f"sglang_{name}": value})
