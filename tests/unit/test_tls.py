"""Certificates, made by openssl on the spot."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sglang_deploy import decode_check, local_http, tls
from sglang_deploy.decode_check.client import Client, Deadline, Unreachable

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None or os.geteuid() != 0, reason="needs openssl, and keys that belong to root"
)
GROUP = os.getegid()
examine = partial(tls.examine, unseen=("/home",))  # the tests' folders lie under /tmp


def made(
    folder: Path, name: str = "a", days: int = 90, names: str = "DNS:glm5.example.com,IP:10.0.0.5"
) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(days), "-subj", "/CN=x", "-addext", f"subjectAltName={names}"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    key.chmod(0o640)
    return certificate, key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in (tmp_path, *tmp_path.parents[:-1]):
        path.chmod(path.stat().st_mode | 0o011)
    return tmp_path


def test_a_good_one_has_no_problem(folder: Path) -> None:
    pair = made(folder)
    found = examine(*pair, "glm5.example.com", GROUP)
    assert (found.problems, found.warnings) == ((), ())
    assert len(found.until) == len("2027-01-01")
    assert examine(*pair, "10.0.0.5", GROUP).problems == ()


def test_what_is_wrong_is_said(folder: Path) -> None:
    certificate, key = made(folder)
    _, other = made(folder, "b")
    assert "but for glm5.example.com, 10.0.0.5" in examine(certificate, key, "other.example.com", GROUP).problems[0]
    assert "not for 10.0.0.6" in examine(certificate, key, "10.0.0.6", GROUP).problems[0]
    assert "is not the key of" in examine(certificate, other, "", GROUP).problems[0]
    assert "No such file" in examine(folder / "none", key, "", GROUP).problems[0]
    assert "no certificate" in examine(key, key, "", GROUP).problems[0]


def test_dates(folder: Path) -> None:
    soon = examine(*made(folder, "soon", days=5), "", GROUP)
    assert soon.problems == ()
    assert "ends on" in soon.warnings[0]
    later = datetime.now(timezone.utc) + timedelta(days=6)
    assert "renew it" in examine(folder / "soon.pem", folder / "soon.key", "", GROUP, later).problems[0]


@pytest.mark.parametrize(
    ("mode", "group", "said"),
    [
        (0o644, GROUP, "everybody"),
        (0o600, GROUP, "cannot be read"),
        (0o640, GROUP + 4321, "cannot be read"),
        (0o660, GROUP, "written"),
    ],
)
def test_the_key_is_for_the_service_alone(folder: Path, mode: int, group: int, said: str) -> None:
    certificate, key = made(folder)
    key.chmod(mode)
    assert said in examine(certificate, key, "", group).problems[0]


def test_places_that_the_unit_does_not_see(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = made(folder)
    assert "does not see" in tls.examine(*pair, "", GROUP, unseen=[str(folder)]).problems[0]
    assert tls.examine(*pair, "", GROUP, unseen=[]).problems == ()
    monkeypatch.setattr(tls, "OWN", str(folder))
    assert "does not see" in tls.examine(*pair, "", GROUP, unseen=[]).problems[0]


@pytest.fixture
def server(folder: Path) -> tuple[str, Path]:
    """An HTTPS server on loopback with a certificate for another name, and that certificate."""
    certificate, key = made(folder, names="DNS:glm5.example.com")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    return f"https://127.0.0.1:{httpd.server_port}", certificate


def test_the_gate_judges_the_certificate_by_the_name_that_clients_use(server: tuple[str, Path]) -> None:
    url, certificate = server

    def ask(**how: object) -> object:
        return Client(decode_check.Server(url, **how)).get("/x", Deadline(10))  # type: ignore[arg-type]

    assert ask(ca_file=str(certificate), name="glm5.example.com") == {}
    for how in ({}, {"ca_file": str(certificate)}, {"ca_file": str(certificate), "name": "other.example.com"}):
        with pytest.raises(Unreachable, match="TLS failed"):
            ask(**how)


def test_a_host_asks_itself_whatever_the_certificate(server: tuple[str, Path]) -> None:
    assert local_http.get(server[0], 5) == b"{}"
