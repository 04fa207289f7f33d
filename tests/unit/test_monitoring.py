"""Monitoring: what is named is produced, alerts fire when they should and only then, targets are reachable or refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from sglang_deploy.canary import metrics
from sglang_deploy.monitoring import book, render, targets
from sglang_deploy.monitoring.targets import Host

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "catalog" / "monitoring.yml"
ANSWERS = ROOT / "tests" / "data" / "metrics"
BOOK = book.load(CATALOG)
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt install prometheus)")


def names(file: str) -> set[str]:
    return {line for line in (ANSWERS / file).read_text().splitlines() if not line.startswith("#")}


# Every metric that is named is produced.


@pytest.mark.parametrize("release", ["0.5.9", "0.5.10.post1", "0.5.15.post1", "0.5.20"])
def test_the_server_produces_what_is_asked_of_it(release: str) -> None:
    assert set(BOOK.metrics["server"]) <= names(f"sglang-{release}.txt")


def test_the_canary_produces_what_is_asked_of_it() -> None:
    assert set(BOOK.metrics["canary"]) == set(metrics.METRICS)


def test_the_others_produce_what_is_asked_of_them() -> None:
    assert set(BOOK.metrics["node"]) <= names("node-exporter-1.5.0.txt")
    assert set(BOOK.metrics["router"]) <= names("sglang-router-0.3.2.txt")
    assert set(BOOK.metrics) == {"server", "canary", "node", "router", "prometheus"}


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rate(sglang:time_to_first_token_seconds_bucket[5m])", {"sglang:time_to_first_token_seconds"}),
        ("max by (host, service) (sglang:num_running_reqs)", {"sglang:num_running_reqs"}),
        ('up{job="sglang-host"} == 0', {"up"}),
        ("host:sglang_gpu_memory:ratio > 1", {"host:sglang_gpu_memory:ratio"}),
        ("a unless on (host, service) sglang_canary_wrong", {"sglang_canary_wrong"}),
        ("max_over_time(service:sglang_kv_pool:max[5m])", {"service:sglang_kv_pool:max"}),
    ],
)
def test_metrics_are_found_in_expressions(expression: str, found: set[str]) -> None:
    assert book.used(expression) == found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data["alerts"][0].update(expr="sglang_canary_worng == 1"), "stands under no producer"),
        (lambda data: data["alerts"][0].update(expr="sglang_canary_wrong > [[much]]"), "[[much]] is no limit"),
        (lambda data: data["metrics"]["server"].append("sglang:unheard_of"), "used nowhere"),
        (lambda data: data["alerts"][0].update(expr="1 > 0"), "names no metric"),
        (lambda data: data["alerts"][0].update(severity="loud"), "loud"),
        (lambda data: data["alerts"][0].update(sumary="x"), "unknown field 'sumary'"),
    ],
)
def test_a_catalog_that_names_what_is_not_there_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    data = yaml.safe_load(CATALOG.read_text())
    change(data)
    (tmp_path / "monitoring.yml").write_text(yaml.safe_dump(data))
    with pytest.raises(book.MonitoringError) as error:
        book.load(tmp_path / "monitoring.yml")
    assert said in str(error.value)


def test_limits_are_laid_over_the_catalogs() -> None:
    changed = book.load(CATALOG, {"queue_requests": 99})
    assert "> 99" in render.rules(changed) and "> 99" not in render.rules(BOOK)


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"queue_request": 1}, "did you mean queue_requests"), ({"queue_requests": "many"}, "write a number")],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(book.MonitoringError, match=said):
        book.load(CATALOG, limits)


def test_every_alert_has_its_two_texts_and_a_test() -> None:
    tested = {case["alertname"] for test in CASES["tests"] for case in test["alert_rule_test"]}
    assert {alert.alert for alert in BOOK.alerts} == tested
    for alert in BOOK.alerts:
        assert alert.summary and alert.remedy and "$labels" in alert.summary


def test_the_dashboard_fits_its_grid_and_asks_for_a_source() -> None:
    shown = json.loads(render.dashboard(BOOK))
    cells = set()
    for panel in shown["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= render.COLUMNS
        own = {
            (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
    assert len({panel["id"] for panel in shown["panels"]}) == len(shown["panels"])
    asked = [target for panel in shown["panels"] for target in panel.get("targets", [])]
    assert {target["datasource"]["uid"] for target in asked} == {"${source}"}


@pytest.mark.parametrize(
    ("answered", "kept"),
    [("sglang_num_running_reqs", "sglang:num_running_reqs"), ("sglang:token_usage", "sglang:token_usage"), ("up", "up")],
)
def test_the_names_of_the_server_are_the_same_in_both_formats(answered: str, kept: str) -> None:
    """Asked for OpenMetrics, the real server wrote sglang_ for sglang:. Prometheus anchors its expressions."""
    servers, exporters = render.jobs("/f", ["sglang", "sglang-host"])
    (rule,) = servers["metric_relabel_configs"]
    found = re.fullmatch(rule["regex"], answered)
    assert (found.expand(rule["replacement"].replace("${1}", r"\1")) if found else answered) == kept
    assert "metric_relabel_configs" not in exporters  # the canary's names begin with sglang_ and stay


# Prometheus' own judgement.


@needs_promtool
def test_promtool_takes_the_files(tmp_path: Path) -> None:
    folder = str(tmp_path)
    (tmp_path / "rules.yml").write_text(render.rules(BOOK))
    (tmp_path / "targets").mkdir()
    for name in ("sglang", "sglang-host"):
        (tmp_path / "targets" / f"{name}.json").write_text(render.targets_file([targets.Target("a:1", {"host": "a"})]))
    jobs = render.jobs(folder, ["sglang", "sglang-host"])
    (tmp_path / "prometheus.yml").write_text(render.configuration(folder, jobs, ["alerts:9093"]))
    done = promtool("check", "config", folder + "/prometheus.yml")
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout + done.stderr


@needs_promtool
def test_promtool_takes_what_the_canary_tells() -> None:
    from test_canary import NOW, WRONG, asked

    gpu = metrics.Gpu("0", 90e9, 96e9)
    facts = metrics.Host(True, 2, "r", 'p"\\', "a" * 64, NOW, [gpu], 1, metrics.Xids("b", "c", {"79": 2}, {"79": NOW}))
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=metrics.text("glm5", asked(60, WRONG), facts),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    rules = yaml.safe_load(render.rules(BOOK))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)  # promtool compares them letter by letter
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / "cases.yml").write_text(yaml.safe_dump({**CASES, "rule_files": [str(tmp_path / "rules.yml")]}))
    done = promtool("test", "rules", str(tmp_path / "cases.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, check=False)


def fires(alert: str, when: str, series: dict[str, str], **labels: str) -> dict[str, Any]:
    """A case for promtool: the alert fires with these labels, and does not where `labels` is empty."""
    severity = next(one.severity for one in BOOK.alerts if one.alert == alert)
    expected = [{"exp_labels": {"severity": severity, **labels}}] if labels else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"alertname": alert, "eval_time": when, "exp_alerts": expected}],
    }


ONE = 'host="gpu1",service="glm5"'
IT = {"host": "gpu1", "service": "glm5"}


def series(name: str, *more: str) -> str:
    return f"{name}{{{','.join([ONE, *more])}}}"


WRONG_NOW, VERDICT, LOOK, PASSED, ASKS = (
    series(f"sglang_canary_{name}")
    for name in ("wrong", "verdict_timestamp_seconds", "look_timestamp_seconds", "passed", "asks")
)
QUEUE = series("sglang:num_queue_reqs")
TTFT = "sglang:time_to_first_token_seconds_bucket"
CASES: dict[str, Any] = {
    "evaluation_interval": "1m",
    "tests": [
        fires("SGLangDecodesWrongly", "2m", {WRONG_NOW: "0 1 1"}, **IT),
        fires("SGLangDecodesWrongly", "2m", {WRONG_NOW: "1 0 0"}),
        fires("SGLangNoVerdict", "130m", {VERDICT: "0+0x130", LOOK: "0+60x130"}, **IT),
        fires("SGLangNoVerdict", "80m", {VERDICT: "0+0x130", LOOK: "0+60x130"}),
        fires("SGLangNoVerdict", "40m", {ASKS: "1+0x40"}, **IT),  # it never could
        fires("SGLangNoVerdict", "40m", {ASKS: "1+0x40", VERDICT: "0+60x40"}),
        fires("SGLangNoVerdict", "40m", {ASKS: "0+0x40"}),
        fires("SGLangCanarySilent", "30m", {LOOK: "0+0x30"}, **IT),
        fires("SGLangCanarySilent", "30m", {LOOK: "0+60x30"}),
        fires("SGLangDoesNotAnswer", "5m", {PASSED: "0+0x5", WRONG_NOW: "0+0x5"}, **IT),
        fires("SGLangDoesNotAnswer", "5m", {PASSED: "0+0x5", WRONG_NOW: "1+0x5"}),  # that is another alert
        fires("SGLangStopped", "8m", {series("sglang_unit_active"): "0+0x8"}, **IT),
        fires("SGLangStopped", "4m", {series("sglang_unit_active"): "0+0x8"}),  # a deployment may take that long
        fires("SGLangRestarts", "20m", {series("sglang_unit_restarts_total"): "0+0x10 1+0x10"}, **IT),
        fires("SGLangRestarts", "20m", {series("sglang_unit_restarts_total"): "3+0x20"}),
        fires("SGLangNotScraped", "12m", {series("up", 'job="sglang"'): "0+0x12"}, **IT),
        fires("SGLangNotScraped", "12m", {series("up", 'job="sglang"'): "0 0 0 1+0x12"}),
        fires("SGLangHostNotScraped", "12m", {'up{host="gpu1",job="sglang-host"}': "0+0x12"}, host="gpu1"),
        fires(
            "SGLangTextfileBroken",
            "12m",
            {'node_textfile_scrape_error{host="gpu1",job="sglang-host"}': "1+0x12"},
            host="gpu1",
        ),
        fires("SGLangQueueGrows", "25m", {QUEUE: "0+2x25"}, **IT),
        fires("SGLangQueueGrows", "25m", {QUEUE: "50-1x25"}),  # it is being worked off
        fires("SGLangKvPoolFull", "12m", {series("sglang:token_usage", 'tp_rank="0"'): "0.97+0x12"}, **IT),
        fires("SGLangKvPoolFull", "12m", {series("sglang:token_usage", 'tp_rank="0"'): "0.9+0x12"}),
        fires("SGLangRetracts", "15m", {series("sglang:num_retracted_reqs", 'pid="7"'): "2+0x15"}, **IT),
        fires(
            "SGLangFirstTokenLate",
            "30m",
            {
                series(TTFT, 'le="20.0"'): "0+9x30",
                series(TTFT, 'le="40.0"'): "0+10x30",
                series(TTFT, 'le="+Inf"'): "0+10x30",
            },
            **IT,
        ),
        fires(
            "SGLangFirstTokenLate",
            "30m",
            {series(TTFT, 'le="20.0"'): "0+10x30", series(TTFT, 'le="+Inf"'): "0+10x30"},
        ),
        fires("SGLangXid", "10m", {series("sglang_xid_timestamp_seconds", 'xid="79"'): "300+0x10"}, host="gpu1", xid="79"),
        fires("SGLangXid", "100m", {series("sglang_xid_timestamp_seconds", 'xid="79"'): "300+0x100"}),
        fires("SGLangGpuLost", "1m", {series("sglang_gpus_lost"): "1 1"}, host="gpu1"),
        fires(
            "SGLangGpuMemoryFull",
            "15m",
            {
                series("sglang_gpu_memory_used_bytes", 'gpu="3"'): "99+0x15",
                series("sglang_gpu_memory_total_bytes", 'gpu="3"'): "100+0x15",
                series("sglang_gpu_memory_used_bytes", 'gpu="4"'): "90+0x15",
                series("sglang_gpu_memory_total_bytes", 'gpu="4"'): "100+0x15",
            },
            host="gpu1",
            gpu="3",
        ),
        fires("SGLangCertificateEnds", "70m", {series("sglang_certificate_end_timestamp_seconds"): "864000+0x70"}, **IT),
        fires("SGLangCertificateEnds", "70m", {series("sglang_certificate_end_timestamp_seconds"): "8640000+0x70"}),
        fires(
            "SGLangDiskFull",
            "20m",
            {
                'node_filesystem_avail_bytes{host="gpu1",job="sglang-host",fstype="ext4",mountpoint="/"}': "1e9+0x20",
                'node_filesystem_avail_bytes{host="gpu1",job="sglang-host",fstype="tmpfs",mountpoint="/run"}': "1+0x20",
            },
            host="gpu1",
            mountpoint="/",
        ),
        fires(
            "SGLangRouterWorkerUnhealthy",
            "5m",
            {'smg_worker_health{host="r1",job="sglang-router",worker="http://gpu1:8000"}': "0+0x5"},
            host="r1",
            worker="http://gpu1:8000",
        ),
    ],
}


# Where it is scraped.

REMOTE = Host("gpu1", "10.0.0.5", "glm5", "0.0.0.0", 8000)


def test_a_server_on_all_addresses_is_reached_at_its_host() -> None:
    (found,) = targets.servers([REMOTE], "watch")
    assert found == targets.Target("10.0.0.5:8000", {"host": "gpu1", "service": "glm5", "__scheme__": "http"})


@pytest.mark.parametrize(
    ("bind", "watcher", "address"),
    [
        ("", "gpu1", "127.0.0.1:8000"),
        ("127.0.0.1", "gpu1", "127.0.0.1:8000"),
        ("::1", "gpu1", "[::1]:8000"),
        ("0.0.0.0", "gpu1", "127.0.0.1:8000"),
        ("10.0.0.9", "gpu1", "10.0.0.9:8000"),
        ("10.0.0.9", "watch", "10.0.0.5:8000"),
    ],
)
def test_where_a_server_is_reached(bind: str, watcher: str, address: str) -> None:
    assert targets.servers([Host("gpu1", "10.0.0.5", "glm5", bind, 8000)], watcher)[0].address == address


def test_https_is_asked_by_the_certificates_name() -> None:
    (found,) = targets.servers([Host("gpu1", "10.0.0.5", "glm5", "0.0.0.0", 8443, "glm5.example.com")], "watch")
    assert (found.address, found.labels["__scheme__"]) == ("glm5.example.com:8443", "https")


def test_servers_that_cannot_be_watched_are_refused_with_the_way_out() -> None:
    hosts = [Host(f"gpu{number}", "a", "glm5", "127.0.0.1", 8000) for number in range(7)]
    mute = Host("mute", "a", "glm5", "0.0.0.0", 8000, metrics=False)
    with pytest.raises(targets.UnreachableTargets) as error:
        targets.servers([*hosts, mute], "watch")
    assert "mute: no metrics: write enable_metrics: true" in error.value.problems[0]
    assert error.value.problems[1].startswith("gpu0, gpu1, gpu2, gpu3, gpu4 and 2 more: the server listens on loopback")
    with pytest.raises(targets.UnreachableTargets, match="sglang_router_metrics_host"):
        targets.routers([Host("r1", "a", bind="127.0.0.1", port=29000)], "watch")


def test_of_an_instance_over_several_hosts_rank_0_is_asked() -> None:
    own = {"sglang_nodes": ["gpu1", "gpu2"], "sglang_settings": {"enable_metrics": True}, "sglang_host": "0.0.0.0"}
    hosts = [targets.host_of(name, own.get, {"sglang_instance": "glm5", "sglang_port": 8000}) for name in ("gpu1", "gpu2")]
    assert [target.labels["host"] for target in targets.servers(hosts, "watch")] == ["gpu1"]
    assert len(targets.exporters(hosts, "watch", 9100)) == 2


def test_exporters_are_one_a_host() -> None:
    found = targets.exporters([REMOTE, REMOTE, Host("watch", "10.0.0.7")], "watch", 9100)
    assert [target.address for target in found] == ["10.0.0.5:9100", "127.0.0.1:9100"]


def test_a_host_is_read_from_its_variables() -> None:
    defaults = yaml.safe_load((ROOT / "roles" / "sglang_plan" / "defaults" / "main.yml").read_text())
    own = {"ansible_host": "10.0.0.5", "sglang_port": "8001", "sglang_settings": {"enable_metrics": True}}
    assert targets.host_of("gpu1", own.get, defaults) == Host("gpu1", "10.0.0.5", "glm5", "", 8001, "", True)
    assert targets.host_of("gpu1", {}.get, defaults).metrics is False
    secure = {"sglang_tls_certificate": "/c", "sglang_host": "10.0.0.5", "monitoring_address": "vpn"}
    assert targets.host_of("gpu1", secure.get, defaults) == Host("gpu1", "vpn", "glm5", "10.0.0.5", 8000, "10.0.0.5", False)
