"""Downloads with the real huggingface_hub, of the versions that the stacks pin, from a hub of our own and its faults.

`make slow` runs them. The library is installed once into .cache/tests from the package index that pip is configured for.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang_deploy import hub, hub_fetch, hub_store
from stubs.hub import FakeHub
from test_hub import REPO, TOKEN, model

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MANY = 6 * 2**20  # elements of a shard of 12 MB: the library writes what it gets in blocks of 10
STACKS = ("cpu", "glm5-cuda128")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=STACKS)
def library(request: pytest.FixtureRequest) -> str:
    """A folder with the stack's huggingface_hub."""
    pins = (ROOT / "catalog" / "constraints" / f"{request.param}.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^huggingface-hub==(\S+)", pins, re.MULTILINE)
    folder = ROOT / ".cache" / "tests" / f"huggingface_hub-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            target = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(target, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={target}", f"huggingface-hub=={version}"]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"pip cannot install huggingface-hub {version}: {done.stderr.strip().splitlines()[-1]}")
            target.rename(folder)
    return str(folder)


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with FakeHub() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return model(tmp_path / "published")


def wanted(fake: FakeHub, root: Path, revision: str, library: str, token: str = "") -> hub_fetch.Wanted:
    place = hub_store.Place(str(root), REPO, revision)
    return hub_fetch.Wanted(place, fake.url, token, sys.executable, {"PYTHONPATH": library}, pause=0.05)


def finish(given: hub_fetch.Wanted, state: dict[str, Any] | None = None, limit: float = 60) -> dict[str, Any]:
    """Calls until there is an outcome, the state going through JSON as it does between controller and host."""
    state, deadline = state or {}, time.monotonic() + limit
    while not state.get("outcome"):
        assert time.monotonic() < deadline, state
        state = hub_fetch.step(given, json.loads(json.dumps(state)), 0.3)
    return state


def served(given: hub_fetch.Wanted) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in given.place.snapshot.iterdir()}


def test_a_model_is_fetched_checked_and_then_known(
    fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str
) -> None:
    fake.token = TOKEN
    given = wanted(
        fake, tmp_path / "models", fake.publish(REPO, {**files, "pytorch_model.bin": b"x" * 9000}), library, TOKEN
    )
    ended = finish(given)
    assert (ended["outcome"], ended["done"]) == ("done", ended["total"]), ended["reason"]
    assert served(given) == files
    receipt = hub_store.read_receipt(given.place)
    assert set(receipt["files"]) == set(files) and receipt["model"]["architecture"] == "GlmMoeDsaForCausalLM"
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in given.place.snapshot.iterdir())
    held = b"".join(path.read_bytes() for path in given.place.folder.rglob("*") if path.is_file())
    assert TOKEN.encode() not in held
    fake.asked.clear()
    found = hub_store.look(hub.Hub("http://127.0.0.1:9"), given.place)  # no network is needed any more
    assert found.whole and found.model["tensors"] == 2 and found.model["path"] == str(given.place.snapshot)
    assert finish(given)["outcome"] == "whole" and fake.asked == []


def test_a_hub_that_lists_files_without_end_is_not_listened_to(
    fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str
) -> None:
    fake.endless = True
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    assert finish(given, limit=30)["outcome"] == "done"
    assert served(given) == files


def test_what_breaks_off_is_gone_on_with(fake: FakeHub, tmp_path: Path, library: str) -> None:
    files = model(tmp_path / "published", MANY)
    fake.cut[FIRST] = [11 * 2**20]
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    assert finish(given)["outcome"] == "done"
    assert served(given) == files
    ranges = [item.range for item in fake.fetched(FIRST)]
    assert ranges[0] is None and int(str(ranges[1]).removeprefix("bytes=").rstrip("-")) >= 10**7, ranges


def test_a_killed_download_goes_on(fake: FakeHub, tmp_path: Path, library: str) -> None:
    files = model(tmp_path / "published", MANY)
    fake.pace = 0.01
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    state = hub_fetch.step(given, {}, 0)
    deadline = time.monotonic() + 30
    while not list(given.place.blobs.glob("*.incomplete")) or hub_fetch._look(given, state)["done"] < 10**7:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(json.loads(given.place.record("state").read_text(encoding="utf-8"))["pid"], signal.SIGKILL)
    ended = finish(given, state)
    assert ended["outcome"] == "failed" and "was killed" in ended["reason"] and "Run again" in ended["reason"]
    old = time.time() - 3600
    for part in given.place.blobs.glob("*.incomplete"):
        os.utime(part, (old, old))
    fake.pace = 0.0
    assert finish(given)["outcome"] == "done"
    assert served(given) == files
    assert not list(given.place.blobs.glob("*.incomplete"))  # nor is anything left of the killed one


def test_a_second_run_joins_the_first(fake: FakeHub, tmp_path: Path, library: str) -> None:
    fake.pace = 0.005
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, model(tmp_path / "published", MANY)), library)
    first = hub_fetch.step(given, {}, 0)
    second = hub_fetch.step(given, {}, 0)
    assert second["joined"] and not first["joined"]
    assert finish(given, second)["outcome"] == finish(given, first)["outcome"] == "done"
    assert len(fake.fetched(FIRST)) == 1


def test_a_wrong_hash_is_fetched_once_more(fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str) -> None:
    fake.changed[SECOND] = files[SECOND][:-1] + b"!"
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    ended = finish(given)
    assert (ended["outcome"], ended["again"]) == ("done", [SECOND])
    assert served(given) == files
    assert len(fake.fetched(SECOND)) == 2 and len(fake.fetched(FIRST)) == 1


def test_a_hash_that_stays_wrong_is_refused(fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str) -> None:
    fake.changed[SECOND], fake.changes = files[SECOND][:-1] + b"!", 9
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    ended = finish(given)
    assert ended["outcome"] == "failed" and SECOND in ended["reason"] and "hash" in ended["reason"]
    assert not (given.place.snapshot / SECOND).exists() and not hub_store.read_receipt(given.place)


def test_a_file_that_changed_since_is_checked_again(
    fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str
) -> None:
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    finish(given)
    path = (given.place.snapshot / FIRST).resolve()
    path.write_bytes(files[FIRST][:-1] + b"!")
    assert not hub_store.look(hub.Hub(fake.url), given.place).whole
    assert finish(given)["again"] == [FIRST]
    assert served(given) == files


def test_another_revision_fetches_what_differs(fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str) -> None:
    first = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library)
    finish(first)
    fake.asked.clear()
    config = files["config.json"].replace(b"4096", b"8192")
    second = wanted(fake, tmp_path / "models", fake.publish(REPO, {**files, "config.json": config}), library)
    assert hub_store.look(hub.Hub(fake.url), second.place).fetch_bytes == len(config)
    assert finish(second)["outcome"] == "done"
    assert served(second)["config.json"] == config and served(first) == files
    assert fake.fetched() == []


def test_a_hub_that_refuses_meanwhile(fake: FakeHub, files: dict[str, bytes], tmp_path: Path, library: str) -> None:
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), library, TOKEN)
    first = hub_fetch.Hub.listing

    def then_gated(asked: hub.Hub, repo: str, revision: str) -> hub.Listing:
        found = first(asked, repo, revision)
        fake.gated.add(REPO)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub.Hub, "listing", then_gated)
        patch.setattr(hub.Hub, "text", lambda *_: files["model.safetensors.index.json"].decode())
        state = hub_fetch.step(given, {}, 0)
    ended = finish(given, state)
    assert ended["outcome"] == "failed" and "Accept its terms" in ended["reason"] and TOKEN not in ended["reason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", folder], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_too_small_or_fills_up(fake: FakeHub, tmp_path: Path, library: str, small_disk: Path) -> None:
    files = model(tmp_path / "published", MANY)
    given = wanted(fake, small_disk / "models", fake.publish(REPO, files), library)
    with pytest.raises(hub.HubError, match=r"25\.2 GB|0\.0 GB"):
        hub_fetch.step(given, {}, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_fetch, "check_space", lambda *_: None)  # as where another program fills it meanwhile
        state = hub_fetch.step(given, {}, 0)
    ended = finish(given, state)
    assert ended["outcome"] == "failed" and "is full" in ended["reason"] and "model_weights_root" in ended["reason"]


def test_a_release_without_python_is_named(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    given = wanted(fake, tmp_path / "models", fake.publish(REPO, files), "")
    with pytest.raises(hub.HubError, match="build it first"):
        hub_fetch.step(hub_fetch.Wanted(given.place, given.endpoint, "", "/no/python", {}), {}, 0)


def test_a_library_that_is_missing_is_said(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    ended = finish(wanted(fake, tmp_path / "models", fake.publish(REPO, files), "/nowhere"))
    assert ended["outcome"] == "failed" and "No module named" in ended["reason"]
