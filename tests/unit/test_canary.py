"""The canary: when it asks, what it makes of the answer, what it tells, and how it gets onto a host."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy import lock
from sglang_deploy.canary import ask, decide, install, look, metrics, record
from sglang_deploy.canary.decide import ASK, Seen, Settings
from sglang_deploy.canary.record import PASSED, SILENT, WRONG, Asked, Record, Xids
from sglang_deploy.decode_check import Server
from sglang_deploy.decode_check.context import Requests
from sglang_deploy.decode_check.process import UnitState
from sglang_deploy.instance import Running
from stubs import broken, honest

HASH = "a" * 64
NOW = 1_800_000_000.0
HEALTHY = Seen(
    accepted=HASH,
    active=True,
    state="active (running)",
    spec=HASH,
    invocation="i1",
    active_seconds=9000.0,
    answers=True,
    requests=Requests(0, 0),
)


def seen(**changes: Any) -> Seen:
    return dataclasses.replace(HEALTHY, **changes)


def asked(ago: float, outcome: str = PASSED, seconds: float = 2.0, invocation: str = "i1", **more: Any) -> Record:
    verdict = {"checks": [{"name": "logprobs", "ok": outcome == PASSED}, {"name": "text", "ok": None}]}
    given = {"at": NOW - ago - seconds, "ended": NOW - ago, "seconds": seconds, "reason": "because", "spec": HASH}
    return Record(
        NOW, outcome, "", {}, Asked(**{**given, "outcome": outcome, "invocation": invocation, "verdict": verdict, **more})
    )


@pytest.mark.parametrize(
    ("view", "kept", "outcome"),
    [
        (HEALTHY, Record(), ASK),
        (seen(accepted=""), Record(), "not_deployed"),
        (seen(deploying=True), Record(), "deploying"),
        (seen(active=False, state="failed (failed)"), Record(), "stopped"),
        (seen(spec="b" * 64), Record(), "candidate"),
        (seen(spec=None), Record(), "candidate"),
        (seen(answers=False, active_seconds=60), Record(), "starting"),
        (seen(answers=False, active_seconds=7201), Record(), SILENT),
        (seen(answers=False, active_seconds=60), asked(60), SILENT),  # it did answer since it started
        (seen(answers=False, active_seconds=60), asked(60, invocation="i0"), "starting"),
        (HEALTHY, asked(60), "waiting"),
        (HEALTHY, asked(601), ASK),
        (HEALTHY, asked(601, seconds=60), "waiting"),  # 60 s of questions are paid for with 20 minutes
        (HEALTHY, asked(1201, seconds=60), ASK),
        (HEALTHY, asked(61, outcome=WRONG), ASK),
        (HEALTHY, asked(59, outcome=WRONG), "waiting"),
        (HEALTHY, asked(61, invocation="i0"), ASK),  # another process: at once
        (HEALTHY, asked(-5), ASK),  # the clock went back
        (seen(requests=Requests(1, 0)), asked(700), "busy"),
        (seen(requests=Requests(1, 0)), asked(3601), ASK),
        (seen(requests=Requests(1, 1)), asked(36000), "busy"),  # somebody would wait longer for it
        (seen(requests=Requests(1, 0)), Record(), ASK),
        (seen(requests=Requests(1, 0), active_seconds=100), Record(), "busy"),
        (seen(requests=None), asked(700), ASK),
        (seen(part="it is rank 1"), Record(), "part"),
    ],
)
def test_when_it_asks(view: Seen, kept: Record, outcome: str) -> None:
    decision = decide.decide(NOW, view, kept, Settings())
    assert decision.outcome == outcome, decision
    assert decision.reason


@settings(deadline=None)
@given(
    lengths=st.lists(st.floats(0.1, 300), min_size=1, max_size=30),
    outcomes=st.lists(st.sampled_from([PASSED, WRONG, SILENT]), min_size=30, max_size=30),
    restarts=st.lists(st.booleans(), min_size=30, max_size=30),
    share=st.floats(0.01, 0.5),
)
def test_it_never_takes_more_than_its_share_of_the_time(
    lengths: list[float], outcomes: list[str], restarts: list[bool], share: float
) -> None:
    """Whatever comes back, and however often the server is started again: looked at every minute, by the clock."""
    kept, now, spent, turns = Record(), NOW, 0.0, 0
    wanted = Settings(share=share)
    while turns < len(lengths):
        now += 60
        process = f"i{sum(restarts[:turns])}"
        if decide.decide(now, seen(invocation=process), kept, wanted).outcome != ASK:
            continue
        assert spent <= share * (now - NOW) + 1e-6
        end = now + lengths[turns]
        answer = Asked(now, end, lengths[turns], outcomes[turns], "", HASH, process)
        kept, now, spent, turns = Record(asked=answer), end, spent + lengths[turns], turns + 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"interval": 5}, "60 seconds or more"),
        ({"share": 0}, "0.5 at most"),
        ({"share": 0.9}, "0.5 at most"),
        ({"share": "much"}, "number"),
        ({"busy_seconds": -1}, "less than 0"),
        ({"wrong": "panic"}, "report or stop"),
        ({"textfile_dir": "/a b"}, "without spaces"),
        ({"textfile_dir": "here"}, "absolute path"),
        ({"speed": 1}, "speed is no setting"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(decide.SettingsError, match=said):
        Settings.of({**dataclasses.asdict(Settings()), **wrong})


def test_settings_come_back_from_their_file() -> None:
    kept = json.loads(json.dumps(dataclasses.asdict(Settings(interval=120, wrong="stop"))))
    assert Settings.of(kept) == Settings(interval=120, wrong="stop")


# What it makes of an answer.


def found(server: Server | None, **changes: Any) -> look.Look:
    spec = {"hash": HASH, "instance": "glm5", "settings": {}, "command": ["python"], "release": "cpu-1", "profile": "p"}
    return look.Look(HEALTHY, {"spec": spec, "real_model": False, "vocabulary": honest.VOCABULARY, **changes}, 0, server)


@pytest.fixture
def no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of the tests are no units; one is made up for them."""
    monkeypatch.setattr("sglang_deploy.decode_check.process.unit_state", lambda *_: UnitState("active", 0, 1))
    monkeypatch.setattr("sglang_deploy.decode_check.process.running_argv", lambda pid: ("python",))


def test_an_honest_server_passes(no_unit: None) -> None:
    with honest.Honest() as server:
        verdict = ask._ask(found(Server(server.url, kind="sglang", limits=look.LIMITS)))
    assert ask.judged(verdict).outcome == PASSED, verdict["checks"]


@pytest.mark.parametrize("name", ["NullLogprobs", "Uniform"])
def test_a_server_of_nan_is_wrong(no_unit: None, name: str) -> None:
    kinds = [kind for kind in vars(broken).values() if isinstance(kind, type) and issubclass(kind, honest.Honest)]
    with next(kind for kind in kinds if kind.__name__ == name)() as server:
        verdict = ask._ask(found(Server(server.url, kind="sglang", limits=look.LIMITS)))
    assert ask.judged(verdict).outcome == WRONG


def test_a_server_that_is_gone_is_silent(no_unit: None) -> None:
    with honest.Honest() as server:
        gone = server.url
    assert ask.judged(ask._ask(found(Server(gone, kind="sglang")))).outcome == SILENT


# A turn, on a host of files.


class Host:
    """A folder of configuration and one of state, with a deployment that was accepted."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.config, self.state, self.text = folder / "etc" / "glm5", folder / "lib" / "glm5", folder / "text"
        for path in (self.config, self.state, self.text):
            path.mkdir(parents=True)
        spec = {"hash": HASH, "url": "http://127.0.0.1:1", "profile": "p", "release": "r", "command": ["x"], "argv": []}
        deployment = {"spec": {**spec, "environment": {}, "instance": "glm5"}, "launch": "", "environment": ""}
        (self.state / "last_good.json").write_text(json.dumps({"time": "", "deployment": deployment}))
        self.running = Running(True, "active (running)", 7, 0, "i1", HASH)
        self.stopped: list[str] = []
        self.lease = folder / "lock"
        patch.setattr("sglang_deploy.canary.look.instance.running", lambda name: self.running)
        patch.setattr("sglang_deploy.canary.look._requests", lambda server: Requests(0, 0))
        patch.setattr("sglang_deploy.canary.look.deploying", lambda path=None: lock_counts(self.lease))
        patch.setattr("sglang_deploy.canary.look.xids", lambda before: before)
        patch.setattr("sglang_deploy.canary.ask._stop", self.stopped.append)

    def turn(self, verdict: dict[str, Any] | None = None, **settings: Any) -> str:
        wanted = Settings(textfile_dir=str(self.text), **settings)
        return ask.turn("glm5", self.config, self.state, wanted, (lambda found: verdict) if verdict else None)

    @property
    def told(self) -> str:
        return (self.text / "sglang-glm5.prom").read_text()


def lock_counts(path: Path) -> bool:
    lease = lock.read(path)
    return lease is not None and lock.counts(lease)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


GOOD = {"ok": True, "seconds": 1.5, "checks": [{"name": "logprobs", "ok": True, "summary": "", "evidence": {}}]}
NAN = {"ok": False, "seconds": 1.5, "checks": [{"name": "logprobs", "ok": False, "summary": "null", "evidence": {}}]}
MUTE = {
    "ok": False,
    "seconds": 9,
    "checks": [{"name": "server", "ok": False, "summary": "no", "evidence": {"error": "TimedOut"}}],
}


def test_a_good_verdict_is_remembered_and_told(host: Host) -> None:
    assert host.turn(GOOD) == "passed: it decodes"
    kept = record.read(host.state)
    assert kept.asked is not None and kept.asked.outcome == PASSED and kept.asked.verdict == GOOD
    assert 'sglang_canary_passed{service="glm5"} 1' in host.told
    assert 'sglang_canary_check_passed{service="glm5",check="logprobs"} 1' in host.told
    assert host.turn(NAN).startswith("waiting")  # and nothing is asked
    assert record.read(host.state).counts == {"passed": 1, "waiting": 1}
    assert 'sglang_canary_passed{service="glm5"} 1' in host.told


def test_a_wrong_verdict_is_told_and_stops_nothing_unasked(host: Host) -> None:
    assert host.turn(NAN) == "wrong: logprobs: null"
    assert 'sglang_canary_wrong{service="glm5"} 1' in host.told
    assert 'sglang_unit_active{service="glm5"} 1' in host.told
    assert host.stopped == []


def test_a_wrong_verdict_stops_the_unit_where_that_is_wanted(host: Host) -> None:
    host.turn(NAN, wrong="stop")
    assert host.stopped == ["glm5"]
    assert 'sglang_unit_active{service="glm5"} 0' in host.told
    host.running = dataclasses.replace(host.running, active=False, state="inactive (dead)")
    assert host.turn(NAN, wrong="stop").startswith("stopped")
    assert 'sglang_canary_wrong{service="glm5"} 1' in host.told  # it stays so until somebody has mended it


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ({}, "silent"),
        ({"state": "inactive (dead)", "active": False}, "interrupted"),
        ({"invocation": "i2"}, "interrupted"),  # systemctl restart
        ({"invocation": "i2", "restarts": 1}, "silent"),  # a crash
        ({"state": "activating (auto-restart)", "active": False}, "silent"),
    ],
)
def test_an_answer_that_was_cut_off_is_no_verdict(host: Host, after: dict[str, Any], outcome: str) -> None:
    wanted = Settings(textfile_dir=str(host.text))

    def answer(found: look.Look) -> dict[str, Any]:
        host.running = dataclasses.replace(host.running, **after)
        return MUTE

    assert ask.turn("glm5", host.config, host.state, wanted, answer).startswith(outcome)
    kept = record.read(host.state)
    assert (kept.asked is None) == (outcome == "interrupted")


def test_nothing_is_asked_while_somebody_deploys(host: Host) -> None:
    with lock.taken(lock.Holder("c", 1, "s", "me"), path=host.lease):
        pass  # the lease outlives the step
    assert host.turn(NAN).startswith("deploying")
    assert record.read(host.state).asked is None


def test_a_verdict_on_what_is_not_deployed_any_more_is_not_told(host: Host) -> None:
    host.turn(NAN)
    kept = record.read(host.state)
    told = metrics.text("glm5", kept, metrics.Host(True, 0, "r", "p", "b" * 64))
    assert "sglang_canary_wrong" not in told and "sglang_canary_verdict" not in told


def test_what_it_tells_is_understood_by_prometheus(host: Host) -> None:
    """Every metric at once, read by promtool where it is installed, and in any case each with type and meaning."""
    gpus = (metrics.Gpu("0", 90e9, 96e9), metrics.Gpu("1", 80e9, 96e9))
    facts = metrics.Host(True, 2, "r", 'p"\\', HASH, NOW, gpus, 1, Xids("b", "c", {"79": 2}, {"79": NOW}))
    text = metrics.text("glm5", asked(60, WRONG), facts)
    named = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert named == set(metrics.METRICS)
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert 'profile="p\\"\\\\"' in text


# What it remembers.


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 2}', "null", '{"schema": 1, "asked": 5}', "[" * 9999])
def test_a_damaged_record_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / record.FILE).write_text(text)
    assert record.read(tmp_path) == Record()


def test_a_record_comes_back(tmp_path: Path) -> None:
    kept = dataclasses.replace(asked(60, WRONG), counts={"wrong": 3}, xids=Xids("b", "c", {"79": 1}, {"79": NOW}))
    record.write(tmp_path, kept)
    assert record.read(tmp_path) == kept


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (Record(), ""),
        (
            Record(NOW, "busy", "3 requests run and 0 wait"),
            "canary has not asked yet, last look 2027-01-15T08:00:00Z: 3 requests",
        ),
        (asked(0), "canary passed at 2027-01-15T08:00:00Z"),
        (asked(0, WRONG), "CANARY wrong at 2027-01-15T08:00:00Z: because"),
        (dataclasses.replace(asked(60), outcome="busy", reason="3 run"), "canary passed at 2027-01-15T07:59:00Z, last look"),
    ],
)
def test_what_status_says(kept: Record, said: str) -> None:
    assert record.line(kept).startswith(said) and bool(record.line(kept)) == bool(said)


LOG = """1800000000.100000 gpu1 kernel: nvidia: loading
1800000001.100000 gpu1 kernel: NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', GPU has fallen off the bus.
1800000002.100000 gpu1 kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.
1800000003.100000 gpu1 kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=77, name=python, MMU Fault
-- cursor: s=abc;i=1
""".splitlines()


def test_xids_are_counted_once() -> None:
    once = look.counted(Xids("b"), LOG)
    assert once == Xids("b", "s=abc;i=1", {"79": 2, "31": 1}, {"79": 1800000002.0, "31": 1800000003.0})
    assert look.counted(once, []) == once
    assert look.counted(once, LOG[1:2]).counts == {"79": 3, "31": 1}


def test_xids_begin_anew_after_a_boot(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("new\n")
    assert look.xids(Xids("old", "c", {"79": 5}, {"79": 1.0}), tmp_path / "boot_id").counts.get("79") is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"node_rank": 1, "nnodes": 2}, "rank 1"),
        ({"node_rank": 0, "nnodes": 2}, ""),
        ({"disaggregation_mode": "decode"}, "decode half"),
        ({"disaggregation_mode": "null"}, ""),
        ({}, ""),
    ],
)
def test_who_cannot_answer_alone(settings: dict[str, Any], said: str) -> None:
    spec = {"settings": {name: {"value": value} for name, value in settings.items()}}
    assert said in look.part(spec) and bool(look.part(spec)) == bool(said)


def test_a_gpu_without_numbers_is_lost() -> None:
    assert look._gpu("0, 90000, 97887") == metrics.Gpu("0", 90000 * 2**20, 97887 * 2**20)
    assert look._gpu("3, [N/A], [N/A]") is None


# On a host.


def places(folder: Path) -> install.Places:
    for name in ("etc/glm5", "lib/glm5"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return install.Places(folder / "etc", folder / "lib", folder / "units", folder / "lib" / "canary.pyz")


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """What systemd is told; `enable` and `disable` have their effect."""
    called: list[tuple[str, ...]] = []

    def call(*words: str) -> None:
        called.append(words)
        link = tmp_path / "units" / "timers.target.wants" / words[-1]
        if words[0] == "enable":
            link.parent.mkdir(exist_ok=True)
            link.symlink_to("nowhere")
        if words[0] == "disable":
            link.unlink()

    monkeypatch.setattr(install, "_systemctl", call)
    return called


def test_it_is_installed_once_and_taken_away(tmp_path: Path, systemctl: list[tuple[str, ...]]) -> None:
    where = places(tmp_path)
    assert len(install.install("glm5", Settings(), "/usr/bin/python3", where, apply=False)) == 5
    assert systemctl == [] and not where.units.exists()
    assert len(install.install("glm5", Settings(), "/usr/bin/python3", where)) == 5
    assert ("enable", "sglang-canary@glm5.timer") in systemctl
    assert install.install("glm5", Settings(), "/usr/bin/python3", where) == []
    assert install.install("glm5", Settings(interval=120), "/usr/bin/python3", where) == [
        str(tmp_path / "etc/glm5/canary.json")
    ]
    assert install.remove("glm5", where, str(tmp_path)) == [
        "sglang-canary@glm5.timer",
        str(tmp_path / "etc/glm5/canary.json"),
    ]
    assert not record.switched_on("glm5", where.units)
    assert install.remove("glm5", where, str(tmp_path)) == []


def test_the_archive_runs_by_itself_and_is_the_same_each_time(tmp_path: Path) -> None:
    content = install.archive()
    assert content == install.archive()
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert "sglang_deploy/decode_check/basic.py" in names and "sglang_deploy/catalog.py" not in names
    archive, config, state = tmp_path / "canary.pyz", tmp_path / "etc" / "none", tmp_path / "lib" / "none"
    archive.write_bytes(content)
    for path in (config, state):
        path.mkdir(parents=True)
    (config / "canary.json").write_text(json.dumps({**dataclasses.asdict(Settings()), "textfile_dir": str(tmp_path)}))
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(archive), str(config), str(state)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "not_deployed: no deployment was accepted here\n"), done.stderr
    assert (
        'sglang_canary_looks_total{service="none",outcome="not_deployed"} 1' in (tmp_path / "sglang-none.prom").read_text()
    )
    assert abs(record.read(state).looked - time.time()) < 60


def test_settings_that_are_no_settings_end_it_with_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "canary.json").write_text('{"interval": "often"}')
    assert ask.main([str(tmp_path), str(tmp_path)]) == 1
    assert "canary.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("python", "version", "said"),
    [
        ("/usr/bin/python3", (3, 9), "needs 3.10"),
        ("/root/venv/bin/python", (3, 11), "does not see"),
        ("/usr/bin/python3", (3, 12), ""),
    ],
)
def test_a_python_that_cannot_run_it_is_refused(python: str, version: tuple[int, int], said: str) -> None:
    assert said in install.python_problem(python, version) and bool(said) == bool(install.python_problem(python, version))
