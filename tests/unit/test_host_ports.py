"""Who holds a port, against this host's own sockets and against made-up /proc trees."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang_deploy import host_ports
from sglang_deploy.host_evidence import Holder


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        yield made


def test_a_holder_is_named(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    found = host_ports.look_at_port("glm5", "127.0.0.1", port)
    assert (found.instance, found.address, found.port) == ("glm5", "127.0.0.1", port)
    assert [(holder.pid, holder.address, holder.own) for holder in found.holders] == [(os.getpid(), "127.0.0.1", False)]


def test_every_address_meets_a_listener_on_one(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert host_ports.port_holders("0.0.0.0", port)
    assert not host_ports.port_holders("127.0.0.2", port)


def test_an_ipv6_listener() -> None:
    with socket.socket(socket.AF_INET6) as made:
        made.bind(("::1", 0))
        made.listen()
        port = made.getsockname()[1]
        assert [holder.address for holder in host_ports.port_holders("::1", port)] == ["::1"]
        assert not host_ports.port_holders("127.0.0.1", port)


def test_a_bound_port_that_does_not_listen_is_free() -> None:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        assert not host_ports.look_at_port("glm5", "127.0.0.1", made.getsockname()[1]).holders


def test_the_services_own_process_is_told(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def own(unit: str, proc: Path) -> set[int]:
        asked.append(unit)
        return {os.getpid()}

    monkeypatch.setattr(host_ports, "unit_processes", own)
    (holder,) = host_ports.look_at_port("glm5", "127.0.0.1", listener.getsockname()[1]).holders
    assert holder.own
    assert asked == ["sglang@glm5.service"]


def process(proc: Path, pid: int, cgroup: str, comm: str = "python") -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cgroup").write_text(cgroup, encoding="utf-8")
    (proc / str(pid) / "comm").write_text(f"{comm}\n", encoding="utf-8")


def test_a_units_processes_by_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "/system.slice/system-sglang.slice/sglang@glm5.service"
    monkeypatch.setattr(host_ports, "_systemctl", lambda *_: f"MainPID=10\nControlGroup={group}")
    process(tmp_path, 10, f"0::{group}\n")
    process(tmp_path, 11, f"1:name=systemd:/machine/x{group}\n0::/\n")
    process(tmp_path, 12, "0::/system.slice/system-sglang.slice/sglang@glm52.service\n")
    (tmp_path / "self").mkdir()
    assert host_ports.unit_processes("sglang@glm5.service", tmp_path) == {10, 11}


def test_a_stopped_unit_has_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_ports, "_systemctl", lambda *_: "MainPID=0\nControlGroup=")
    assert host_ports.unit_processes("sglang@glm5.service", tmp_path) == set()


ROW = "   0: {address}:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1"


def test_a_holder_names_its_unit(tmp_path: Path) -> None:
    process(tmp_path, 7, "0::/system.slice/nginx.service\n", "nginx")
    (tmp_path / "7" / "fd").mkdir()
    (tmp_path / "7" / "fd" / "3").symlink_to("socket:[4711]")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address\n{ROW.format(address='00000000')}\n", encoding="ascii")
    (holder,) = host_ports.port_holders("127.0.0.1", 8000, tmp_path)
    assert str(holder) == "nginx (pid 7, nginx.service, on 0.0.0.0)"
    assert host_ports.port_holders("127.0.0.1", 8001, tmp_path) == []


def test_a_socket_without_a_known_owner_still_counts(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(f"  sl  local_address\n{ROW.format(address='0100007F')}\n", encoding="ascii")
    assert host_ports.port_holders("127.0.0.1", 8000, tmp_path) == [Holder(None, "unknown", address="127.0.0.1")]
