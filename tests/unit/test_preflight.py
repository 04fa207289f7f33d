"""The host check against this host's own sockets and against made-up /proc trees."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang_deploy import preflight, release_host


@pytest.fixture(autouse=True)
def one_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking each Python of the machine takes its time; test_release does."""
    mine = release_host.Python(os.path.realpath(sys.executable), sys.version_info[:3], "linux-x86_64")
    monkeypatch.setattr(release_host, "host_pythons", lambda: iter([mine]))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_a_taken_port_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    holders = preflight.port_holders("127.0.0.1", port)
    assert [(holder.pid, holder.address) for holder in holders] == [(os.getpid(), "127.0.0.1")]
    problem = preflight.check_port("glm5", "127.0.0.1", port)
    assert problem is not None
    assert (problem.id, problem.severity) == ("port-taken", "refuse")
    assert str(os.getpid()) in problem.message and str(port) in problem.message and "glm5" in problem.message


def test_every_address_meets_a_listener_on_one(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert preflight.port_holders("0.0.0.0", port)
    assert not preflight.port_holders("127.0.0.2", port)


def test_an_ipv6_listener() -> None:
    with socket.socket(socket.AF_INET6) as made:
        made.bind(("::1", 0))
        made.listen()
        port = made.getsockname()[1]
        assert [holder.address for holder in preflight.port_holders("::1", port)] == ["::1"]
        assert not preflight.port_holders("127.0.0.1", port)


def test_a_bound_port_that_does_not_listen_is_free() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        assert preflight.check_port("glm5", "127.0.0.1", made.getsockname()[1]) is None


def test_the_services_own_port_is_fine(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = listener.getsockname()[1]
    asked = []

    def own(unit: str) -> set[int]:
        asked.append(unit)
        return {os.getpid()}

    monkeypatch.setattr(preflight, "unit_processes", own)
    assert preflight.check_port("glm5", "127.0.0.1", port) is None
    assert asked == ["sglang@glm5.service"]


def process(proc: Path, pid: int, cgroup: str, comm: str = "python") -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(cgroup, encoding="utf-8")
    (proc / str(pid) / "comm").write_text(f"{comm}\n", encoding="utf-8")


def test_a_units_processes_by_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "/system.slice/system-sglang.slice/sglang@glm5.service"
    monkeypatch.setattr(preflight, "_systemctl", lambda *_: f"MainPID=10\nControlGroup={group}")
    process(tmp_path, 10, f"0::{group}\n")
    process(tmp_path, 11, f"1:name=systemd:/machine/x{group}\n0::/\n")
    process(tmp_path, 12, "0::/system.slice/system-sglang.slice/sglang@glm52.service\n")
    (tmp_path / "self").mkdir()
    assert preflight.unit_processes("sglang@glm5.service", tmp_path) == {10, 11}


def test_a_stopped_unit_has_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_systemctl", lambda *_: "MainPID=0\nControlGroup=")
    assert preflight.unit_processes("sglang@glm5.service", tmp_path) == set()


def test_a_holder_names_its_unit(tmp_path: Path) -> None:
    process(tmp_path, 7, "0::/system.slice/nginx.service\n", "nginx")
    (tmp_path / "7" / "fd").mkdir()
    (tmp_path / "7" / "fd" / "3").symlink_to("socket:[4711]")
    (tmp_path / "net").mkdir()
    row = "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1"
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address\n{row}\n", encoding="ascii")
    (holder,) = preflight.port_holders("127.0.0.1", 8000, tmp_path)
    assert str(holder) == "nginx (pid 7, nginx.service, on 0.0.0.0)"
    assert preflight.port_holders("127.0.0.1", 8001, tmp_path) == []


def test_a_socket_without_a_known_owner_still_counts(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    row = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1"
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address\n{row}\n", encoding="ascii")
    assert preflight.port_holders("127.0.0.1", 8000, tmp_path) == [preflight.Holder(None, "unknown", "127.0.0.1")]


def test_no_systemd(tmp_path: Path) -> None:
    process(tmp_path, 1, "", "bash")
    state, problem = preflight.check_systemd(tmp_path)
    assert state == "absent"
    assert problem is not None and problem.severity == "refuse" and "process 1 is bash" in problem.message


@pytest.mark.parametrize(
    ("state", "refused"), [("running", False), ("degraded", False), ("maintenance", True), ("stopping", True)]
)
def test_states_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, refused: bool) -> None:
    process(tmp_path, 1, "", "systemd")
    monkeypatch.setattr(preflight, "_systemctl", lambda *_: state)
    monkeypatch.setattr(preflight, "_SYSTEMD_RUNS", tmp_path)
    found, problem = preflight.check_systemd(tmp_path)
    assert found == state
    assert (problem is not None) is refused


def test_distribution(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text(
        'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n', encoding="utf-8"
    )
    assert preflight.distribution(tmp_path / "os-release") == {
        "id": "ubuntu",
        "version": "24.04",
        "name": "Ubuntu 24.04.1 LTS",
    }
    assert preflight.distribution(tmp_path / "none") == {}


def problems(wanted: preflight.Wanted) -> dict[str, preflight.Problem]:
    return {problem.id: problem for problem in preflight.check(wanted).problems}


def test_a_python_that_the_stack_does_not_allow() -> None:
    problem = problems(preflight.Wanted(python_range=">=4.0"))["python"]
    assert problem.severity == "refuse"
    assert ">=4.0" in problem.message and "/python3" in problem.message
    assert "apt install" in problem.remedy


def test_a_python_without_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = release_host.Python(str(tmp_path / "bin" / "python3.11"), (3, 11, 2), "linux-x86_64")
    monkeypatch.setattr(release_host, "host_pythons", lambda: iter([python]))
    found = problems(preflight.Wanted(python_range=">=3.10"))
    assert found["python-headers"].severity == "warn" and "python3.11-dev" in found["python-headers"].remedy
    (tmp_path / "include" / "python3.11").mkdir(parents=True)
    (tmp_path / "include" / "python3.11" / "Python.h").touch()
    assert "python-headers" not in problems(preflight.Wanted(python_range=">=3.10"))


def test_too_little_disk(tmp_path: Path) -> None:
    problem = problems(preflight.Wanted(root=tmp_path / "a" / "b", disk_mib=10**9))["disk"]
    assert problem.severity == "refuse" and "1000000000 MiB" in problem.message
    assert "disk" not in problems(preflight.Wanted(root=tmp_path / "a" / "b", disk_mib=1))


def test_missing_tools_are_warnings() -> None:
    found = problems(preflight.Wanted(tools=("sh", "no-such-tool")))
    assert found["tool-no-such-tool"].severity == "warn"
    assert "tool-sh" not in found


def test_refusals_come_first_and_the_report_is_plain_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_systemd", lambda: ("running", None))
    report = preflight.check(preflight.Wanted(root=tmp_path, disk_mib=10**9, tools=("no-such-tool",), user="no-such-user"))
    assert [problem.severity for problem in report.problems] == ["refuse", "warn"]
    assert report.facts["user"] is None
    assert report.as_dict()["problems"][0]["id"] == "disk"
