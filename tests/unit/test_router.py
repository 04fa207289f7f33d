"""The router's launch spec: workers, keys, settings, and every refusal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import dialect, instance, release_request, router, router_start, secrets
from sglang_deploy.release_uv import Index

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "catalog"
ENTRY = router.load(CATALOG / "router.yml")
OPTIONS = dialect.read(CATALOG / "router-options.json")
TWO = (router.Worker("http://gpu2:8000"), router.Worker("http://gpu1:8000"))
PD = (router.Worker("http://p:1", "prefill", 8998), router.Worker("http://d:2", "decode"))


def resolve(**given: Any) -> dict[str, Any]:
    return router.resolve(ENTRY, router.Request(**{"name": "router", "workers": TWO, "dialect": OPTIONS, **given}))


def words(deployment: dict[str, Any], option: str) -> list[str]:
    """The values that follow an option."""
    argv = deployment["spec"]["argv"]
    start = argv.index(option) + 1
    ends = [i for i in range(start, len(argv)) if argv[i].startswith("--")]
    return argv[start : ends[0] if ends else None]


def problems(**given: Any) -> str:
    with pytest.raises(router.RouterError) as error:
        resolve(**given)
    return str(error.value)


def test_it_has_the_form_of_an_instances_deployment() -> None:
    made = resolve(release="router-1", path="/opt/sglang-router/releases/router-1")
    assert instance.whole(made["spec"])
    assert made["spec"]["command"][:2] == [
        "/opt/sglang-router/releases/router-1/venv/bin/python",
        "/etc/sglang-router/router/start.py",
    ]
    assert made["spec"]["command"][2:] == made["spec"]["argv"]
    assert made["spec"]["url"] == "http://127.0.0.1:30000"
    assert made["spec"]["template"] == "sglang-router"
    assert set(made["files"]) == {"start.py"}
    assert f'SGLANG_DEPLOYMENT="{made["spec"]["hash"]}"' in made["environment"]


def test_what_the_launch_script_runs_is_the_command() -> None:
    made = resolve(path="/opt/x y")
    run = made["launch"].partition("exec ")[2].replace("\\\n", " ")
    assert shlex.split(run) == made["spec"]["command"]


def test_every_default_of_the_catalog_becomes_an_argument() -> None:
    made = resolve()
    assert words(made, "--policy") == ["cache_aware"]
    assert set(ENTRY.settings) <= set(made["spec"]["settings"])
    assert not OPTIONS.split(made["spec"]["argv"]).problems


def test_the_recorded_options_are_those_of_the_version() -> None:
    assert OPTIONS.sglang == f"router {ENTRY.version}"


def test_the_order_of_the_inventory_does_not_change_the_deployment() -> None:
    assert resolve()["spec"]["hash"] == resolve(workers=TWO[::-1])["spec"]["hash"]
    assert words(resolve(), "--worker-urls") == ["http://gpu1:8000", "http://gpu2:8000"]


def test_prefill_and_decode_workers_make_a_pd_router() -> None:
    made = resolve(workers=PD)
    assert "--pd-disaggregation" in made["spec"]["argv"]
    assert words(made, "--prefill") == ["http://p:1", "8998"]
    assert words(made, "--decode") == ["http://d:2"]
    assert "--worker-urls" not in made["spec"]["argv"]


def test_a_later_setting_wins_and_null_takes_one_out() -> None:
    made = resolve(settings=[("a", {"policy": "round_robin", "retry_max_retries": 3}), ("b", {"retry_max_retries": None})])
    assert words(made, "--policy") == ["round_robin"]
    assert "--retry-max-retries" not in made["spec"]["argv"]
    assert resolve(settings=[("a", {"policy": None})])["spec"]["profile"] == "default"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"polcy": "random"}, "did you mean"),
        ({"policy": "fastest"}, "not one of its choices"),
        ({"retry_max_retries": "many"}, "not a whole number"),
        ({"disable_retries": "perhaps"}, "not true or false"),
        ({"policy": {"a": 1}}, "neither text nor a number"),
        ({"log_level": "--api-key"}, "would be read as an option"),
        ({"log_level": "in\nfo"}, "a line break"),
        ({"api_key": "x" * 20}, "sglang_router_api_key"),
        ({"worker_urls": ["http://a:1"]}, "sglang_router_group"),
        ({"disable_health_check": True}, "a worker that died"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_what_to_write(settings: dict[str, Any], said: str) -> None:
    text = problems(settings=[("group_vars", settings)])
    assert said in text
    assert "group_vars" in text


def test_a_truth_is_an_option_or_nothing() -> None:
    assert "--disable-retries" in resolve(settings=[("a", {"disable_retries": "true"})])["spec"]["argv"]
    assert "--disable-retries" not in resolve(settings=[("a", {"disable_retries": False})])["spec"]["argv"]


def test_a_number_below_zero_is_a_value() -> None:
    assert words(resolve(settings=[("a", {"max_concurrent_requests": -1})]), "--max-concurrent-requests") == ["-1"]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ((), "there is no worker"),
        ((TWO[0], TWO[0]), "more than once"),
        ((router.Worker("gpu1:8000"),), "no address of a worker"),
        ((router.Worker("http://gpu1"),), "no address of a worker"),
        ((router.Worker("http://gpu1:x"),), "no address of a worker"),
        ((router.Worker("http://key@gpu1:80"),), "no address of a worker"),
        ((*TWO, PD[0]), "a router of its own"),
        (PD[:1], "one with decode is needed"),
        (PD[1:], "one with prefill is needed"),
        ((router.Worker("http://a:1", "encode"),), "is not known"),
    ],
)
def test_workers_that_cannot_be_are_refused(workers: tuple[router.Worker, ...], said: str) -> None:
    assert said in problems(workers=workers)


def test_a_router_open_to_others_wants_a_key() -> None:
    assert "sglang_router_api_key" in problems(host="0.0.0.0")
    assert resolve(host="0.0.0.0", allow=["open-bind"])["spec"]["allowed"] == ["open-bind"]
    assert resolve(host="0.0.0.0", keys=["api_key"], identity="0" * 16)["spec"]["allowed"] == []


@pytest.mark.parametrize("given", [{"port": 29000}, {"port": 0}, {"metrics_port": 70000}, {"name": "Router 1"}])
def test_ports_and_names_are_checked(given: dict[str, Any]) -> None:
    assert problems(**given)


def test_keys_stand_in_a_file_and_their_id_in_the_environment() -> None:
    made = resolve(keys=["api_key"], identity="0123456789abcdef")
    assert made["spec"]["secrets"] == ["api_key"]
    assert "--api-key" not in made["spec"]["argv"]
    assert 'SGLANG_SECRETS_FILE="/etc/sglang-router/router/secrets.yaml"' in made["environment"]
    other = resolve(keys=["api_key"], identity="f" * 16)
    assert other["spec"]["hash"] != made["spec"]["hash"]


def test_the_start_program_reads_the_file_of_the_keys(tmp_path: Path) -> None:
    values = {"api_key": "a" * 16, "admin_api_key": "b~/+=" * 4}
    path = tmp_path / secrets.FILE
    path.write_text(secrets.Secrets(values, "0" * 16).text())
    assert router_start.keys(str(path)) == {"api-key": values["api_key"], "admin-api-key": values["admin_api_key"]}


@pytest.mark.parametrize(
    ("variables", "worker"),
    [
        ({}, router.Worker("http://gpu1:8000")),
        ({"sglang_port": 8001}, router.Worker("http://gpu1:8001")),
        ({"sglang_tls_certificate": "/c.pem"}, router.Worker("https://gpu1:8000")),
        ({"sglang_worker_url": "http://10.0.0.1:9/"}, router.Worker("http://10.0.0.1:9")),
        ({"sglang_settings": {"disaggregation_mode": "null"}}, router.Worker("http://gpu1:8000")),
        ({"sglang_settings": {"disaggregation_mode": "decode"}}, router.Worker("http://gpu1:8000", "decode")),
        (
            {"sglang_settings": {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": "8998"}},
            router.Worker("http://gpu1:8000", "prefill", 8998),
        ),
    ],
)
def test_a_host_of_the_inventory_is_a_worker(variables: dict[str, Any], worker: router.Worker) -> None:
    assert router.worker_of("gpu1", variables) == worker


def test_an_address_with_colons_stands_in_brackets() -> None:
    assert router.worker_url("", "fd00::1", 8000) == "http://[fd00::1]:8000"


def test_a_port_that_is_none_names_the_host() -> None:
    settings = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": "x"}
    with pytest.raises(router.RouterError, match="gpu1: disaggregation_bootstrap_port"):
        router.worker_of("gpu1", {"sglang_settings": settings})


def test_what_it_does_is_read_from_a_launch_spec_too() -> None:
    settings = {"disaggregation_mode": {"value": "prefill"}, "disaggregation_bootstrap_port": {"value": 1}}
    assert router.part_of(settings) == {"kind": "prefill", "bootstrap_port": 1}


def test_its_stack_is_built_by_the_same_builder_and_asked_for_its_own_options() -> None:
    request = release_request.Request.from_stack(ENTRY.stack(), Index())
    assert request.program == "sglang_router"
    assert request.expected == {"sglang-router": ENTRY.version}
    assert request.requirements == (f"sglang-router=={ENTRY.version}",)


@pytest.mark.parametrize("text", ["- a", "summary: x", "a: [", "summary: 1\nnonsense: 2"])
def test_a_damaged_catalog_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "router.yml").write_text(text)
    with pytest.raises(router.RouterError):
        router.load(tmp_path / "router.yml")


@given(
    st.dictionaries(st.sampled_from([o.flags[-1][2:].replace("-", "_") for o in OPTIONS.options]), st.text() | st.integers())
)
def test_whatever_is_set_it_is_refused_or_the_parser_takes_it(settings: dict[str, Any]) -> None:
    try:
        made = resolve(settings=[("x", settings)])
    except router.RouterError:
        return
    assert not OPTIONS.split(made["spec"]["argv"]).problems


def ordered(tasks: list[dict[str, Any]]) -> list[str]:
    """Which task files and roles a list of tasks includes, in order, its blocks' `always` last."""
    found: list[str] = []
    for task in tasks:
        included = task.get("ansible.builtin.include_tasks") or task.get("ansible.builtin.include_role", {}).get(
            "tasks_from"
        )
        found += [str(included).removesuffix(".yml")] if included else []
        found += [*ordered(task.get("block", [])), *ordered(task.get("always", []))]
    return found


@pytest.mark.parametrize(
    ("path", "between"),
    [("sglang_service/tasks/routed.yml", ["activate"]), ("sweep/tasks/run.yml", ["room", "trial", "clear", "back"])],
)
def test_a_worker_is_out_of_its_routers_while_it_does_not_serve(path: str, between: list[str]) -> None:
    tasks = yaml.safe_load((ROOT / "roles" / path).read_text(encoding="utf-8"))
    (block,) = [task for task in tasks if "always" in task]
    assert ordered([block]) == ["leave", *between, "join"]
    assert ordered(block["always"])[-1] == "join"  # whatever happens
    for one in ("leave", "join"):
        (told, *_) = yaml.safe_load((ROOT / "roles/sglang_service/tasks" / f"{one}.yml").read_text(encoding="utf-8"))
        assert told["loop"] == "{{ __sglang_service_routers }}" and told["delegate_to"] == "{{ item }}"


@pytest.mark.parametrize(
    ("routers", "change", "leaves"),
    [
        (["r1"], {}, True),
        ([], {}, False),
        (["r1"], {"ansible_check_mode": True}, False),
        (["r1"], {"sglang_drain": False}, False),
    ],
)
def test_all_ranks_go_the_same_way_and_the_first_one_alone_leaves_its_routers(
    routers: list[str], change: dict[str, Any], leaves: bool
) -> None:
    # Hosts that take different includes run one after the other, and ranks have to start together.
    template = pytest.importorskip("ansible.template")
    loader = pytest.importorskip("ansible.parsing.dataloader").DataLoader()
    role = loader.load_from_file(str(ROOT / "roles/sglang_service/vars/main.yml"), trusted_as_template=True)
    given = {"sglang_nodes": ["n0", "n1"], "sglang_routers": routers, "sglang_drain": True, "ansible_check_mode": False}
    given |= {"__sglang_service_before": {"current": False}, "__sglang_service_template": "sglang", **change}
    for host, left in (("n0", routers if leaves or change.get("ansible_check_mode") else []), ("n1", [])):
        told = template.Templar(loader=loader, variables={**role, **given, "inventory_hostname": host})
        assert told.template(role["__sglang_service_leaves"]) is leaves
        assert told.template(role["__sglang_service_routers"]) == left
