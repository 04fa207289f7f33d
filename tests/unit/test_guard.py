"""The module that keeps keys out of a server's log and out of /server_info, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sglang_deploy import guard, secrets

KEY = "sk-0123456789./+abc=~"
KEYS = secrets.Secrets({"api_key": KEY, "admin_api_key": "adm-0123456789abcdef"}, "0" * 16)


def guarded(tmp_path: Path, program: str, keys: str | None = None) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / secrets.GUARD
    folder.mkdir()
    shutil.copy(guard.__file__, folder / "sitecustomize.py")
    (tmp_path / secrets.FILE).write_text(KEYS.text() if keys is None else keys)
    environment = {**os.environ, **secrets.environment(str(tmp_path), KEYS.id, secrets.path(str(tmp_path)))}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "program",
    [
        "print(K)",
        "import sys; sys.__stdout__.write(K)",
        "import sys; print(f'api_key={K!r}', file=sys.stderr)",
        "import logging; logging.basicConfig(); logging.error('server_args=%s', {'api_key': K})",
        "raise SystemExit(K)",
        "raise ValueError(K)",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv[1])', K])",
        "import multiprocessing; multiprocessing.get_context('spawn').Process(target=print, args=(K,)).start()",
    ],
)
def test_no_process_writes_a_key(tmp_path: Path, program: str) -> None:
    ended = guarded(
        tmp_path, f"import json\nK = json.loads({json.dumps(json.dumps(KEY))})\nif __name__ == '__main__':\n    {program}"
    )
    said = ended.stdout + ended.stderr
    assert guard.HIDDEN in said
    assert "0123456789" not in said


def test_other_text_is_left_alone(tmp_path: Path) -> None:
    assert guarded(tmp_path, "print('zwölf', 3, end='')").stdout == "zwölf 3"


def test_a_process_that_cannot_be_guarded_ends(tmp_path: Path) -> None:
    ended = guarded(tmp_path, "print('ran')", keys='api-key: "broken\\"\n')
    assert (ended.returncode, ended.stdout) == (78, "")
    assert "cannot be kept out of its log" in ended.stderr


def answered(path: str, chunks: list[bytes]) -> tuple[dict[str, object], bytes]:
    """What a client gets from an application that answers with these chunks."""
    sent: list[dict[str, object]] = []

    async def application(_self: object, _scope: object, _receive: object, send: object) -> None:
        length = str(sum(map(len, chunks))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length), (b"a", b"b")]})  # type: ignore[operator]
        for number, chunk in enumerate(chunks):
            await send({"type": "http.response.body", "body": chunk, "more_body": number + 1 < len(chunks)})  # type: ignore[operator]

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    call = guard.answering(application, (KEY,))
    asyncio.run(call(None, {"type": "http", "path": path}, None, send))
    return sent[0], b"".join(message.get("body", b"") for message in sent[1:])  # type: ignore[misc]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info", "/prefix/server_info/"])
def test_server_info_tells_no_key_even_when_it_comes_in_pieces(path: str) -> None:
    body = json.dumps({"api_key": KEY, "launch_command": f"--api-key {KEY}", "tp_size": 8}).encode()
    start, got = answered(path, [body[:15], body[15:30], body[30:]])
    assert json.loads(got) == {"api_key": guard.HIDDEN, "launch_command": f"--api-key {guard.HIDDEN}", "tp_size": 8}
    assert (b"content-length", str(len(got)).encode()) in start["headers"]  # type: ignore[operator]
    assert (b"a", b"b") in start["headers"]  # type: ignore[operator]


def test_other_answers_pass_as_they_are() -> None:
    assert answered("/v1/models", [b"one ", KEY.encode()])[1] == b"one " + KEY.encode()


@pytest.mark.parametrize("before", ["", "import importlib.util; importlib.util.find_spec('starlette.applications')\n"])
def test_starlette_is_guarded_when_it_is_imported(tmp_path: Path, before: str) -> None:
    (tmp_path / "starlette").mkdir()
    (tmp_path / "starlette/__init__.py").touch()
    (tmp_path / "starlette/applications.py").write_text("class Starlette:\n    async def __call__(self, *_): pass\n")
    program = f"import sys; sys.path.append({str(tmp_path)!r})\n{before}from starlette.applications import Starlette\n"
    program += "print(Starlette.__call__.__name__)"
    assert guarded(tmp_path, program).stdout.strip() == "guarded"
