"""What the hub says of a model before anything is downloaded, against a hub of our own with the real one's answers."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import hardening, hub, hub_progress, hub_store, model_access, model_dir
from stubs.hub import LARGE, FakeHub
from test_model_dir import CONFIG, SHARED, make, safetensors

REPO = "lukealonso/GLM-5-NVFP4"
TOKEN = "hf_secretsecret"


def model(folder: Path, elements: int = LARGE, **config: Any) -> dict[str, bytes]:
    """A small model of two shards, both large enough to be kept by SHA-256, as names and contents."""
    shards = [{"model.embed.weight": "BF16"}, {f"{SHARED}.weight": "BF16"}]
    made = make(folder, shards, CONFIG | config)
    for number, tensors in enumerate(shards, 1):
        safetensors(made / f"model-{number:05}-of-00002.safetensors", tensors, elements)
    return {path.name: path.read_bytes() for path in made.iterdir()}


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    with FakeHub() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    return model(tmp_path / "published")


def look(fake: FakeHub, tmp_path: Path, revision: str, token: str = "") -> hub_store.Found:
    return hub_store.look(hub.Hub(fake.url, token, pause=0.01), hub_store.Place(str(tmp_path / "models"), REPO, revision))


def refused(fake: FakeHub, tmp_path: Path, revision: str, token: str = "") -> str:
    with pytest.raises(hub.HubError) as caught:
        look(fake, tmp_path, revision, token)
    assert TOKEN not in str(caught.value)
    return str(caught.value)


def test_config_and_index_are_read_and_nothing_else(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    found = look(fake, tmp_path, fake.publish(REPO, files))
    assert not found.whole
    assert found.fetch_bytes == sum(map(len, files.values()))
    assert (found.model["architecture"], found.model["experts"], found.model["layers"]) == ("GlmMoeDsaForCausalLM", 16, 2)
    assert found.model["weight_bytes"] == sum(len(data) for name, data in files.items() if name.endswith("safetensors"))
    assert found.model["has_mtp"] is False
    assert found.model["path"].startswith(str(tmp_path / "models" / "models--lukealonso--GLM-5-NVFP4" / "snapshots"))
    assert fake.fetched() == []
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("tensors", "bf16", "mtp"),
    [
        ([f"{SHARED}.weight"], True, False),
        ([f"{SHARED}.weight", f"{SHARED}.weight_scale"], False, False),
        ([f"{SHARED}.weight", "model.layers.2.eh_proj.weight"], True, True),
    ],
)
def test_the_index_tells_shared_experts_and_mtp(tmp_path: Path, tensors: list[str], bf16: bool, mtp: bool) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}}
    index = dict.fromkeys(tensors, "a.safetensors")
    sizes = {"a.safetensors": 100, "tokenizer.json": 2}
    found = model_dir.foresee(tmp_path, {"config.json": json.dumps(config)}, index, sizes)
    assert (found.quantization, found.shared_experts_unquantized, found.has_mtp) == ("modelopt_fp4", bf16, mtp)


def test_without_an_index_tensors_are_not_guessed(tmp_path: Path) -> None:
    sizes = {"model.safetensors": 100, "tokenizer.json": 2}
    found = model_dir.foresee(tmp_path, {"config.json": json.dumps(CONFIG)}, {}, sizes)
    assert (found.has_mtp, found.shared_experts_unquantized, found.weight_bytes) == (None, None, 100)


@pytest.mark.parametrize(
    ("small", "sizes", "said"),
    [
        ({}, {"tokenizer.json": 1, "model.safetensors": 1}, "config.json is missing"),
        ({"config.json": "{"}, {"tokenizer.json": 1, "model.safetensors": 1}, "config.json is not JSON"),
        ({"config.json": "{}"}, {"tokenizer.json": 1, "model.safetensors": 1}, "architecture"),
        ({"config.json": json.dumps(CONFIG)}, {"model.safetensors": 1}, "No tokenizer"),
        ({"config.json": json.dumps(CONFIG)}, {"tokenizer.json": 1}, "No weights"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused(
    tmp_path: Path, small: dict[str, str], sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(model_dir.ModelDirError, match=said):
        model_dir.foresee(tmp_path, small, {}, sizes)


@pytest.mark.parametrize("revision", ["", "main", "v1"])
def test_an_unpinned_revision_is_refused_with_the_commit(
    fake: FakeHub, files: dict[str, bytes], tmp_path: Path, revision: str
) -> None:
    commit = fake.publish(REPO, files, branch=revision or "main")
    assert f"sglang_model_revision: {commit}" in refused(fake, tmp_path, revision)


def test_a_branch_that_moved_changes_nothing_for_a_pin(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    first = fake.publish(REPO, files)
    fake.publish(REPO, {**files, "config.json": b"{}"})
    assert look(fake, tmp_path, first).model["architecture"] == "GlmMoeDsaForCausalLM"


def test_a_commit_that_is_gone_is_refused_with_the_head(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    first = fake.publish(REPO, files)
    head = fake.publish(REPO, {**files, "README.md": b"new"})
    fake.gone.add(first)
    said = refused(fake, tmp_path, first)
    assert first in said and head in said and "sglang_model_revision" in said


def test_a_hub_that_gives_another_commit_is_not_believed(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    commit = fake.publish(REPO, files)
    fake.branches[REPO, "0" * 40] = commit
    assert "Do not use this hub" in refused(fake, tmp_path, "0" * 40)


def test_who_may_read_it(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    commit = fake.publish(REPO, files)
    fake.token = TOKEN
    assert "private" in (said := refused(fake, tmp_path, commit)) and "401" in said
    assert "does not accept the token" in refused(fake, tmp_path, commit, TOKEN + "x")
    assert look(fake, tmp_path, commit, TOKEN).fetch_bytes
    fake.gated.add(REPO)
    assert "Accept its terms" in refused(fake, tmp_path, commit, TOKEN)


def test_no_such_model(fake: FakeHub, tmp_path: Path) -> None:
    assert "there is no such model" in refused(fake, tmp_path, "0" * 40)
    assert "404" in refused(fake, tmp_path, "0" * 40, TOKEN)


def test_a_hub_that_is_ill_or_away(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    commit = fake.publish(REPO, files)
    fake.status = 503
    assert "503" in refused(fake, tmp_path, commit)
    assert len(fake.asked) == 4  # it was asked again
    fake.status = 429
    assert "too many requests" in refused(fake, tmp_path, commit)
    away = hub.Hub("http://127.0.0.1:9", pause=0.0)
    with pytest.raises(hub.HubError, match="cannot be reached from this host"):
        away.listing(REPO, commit)


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_hub_that_never_comes_to_an_end_is_left(part: str) -> None:
    class Dripping(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            start = b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if part == "body" else b"X-More: ")
            with contextlib.suppress(OSError):
                self.wfile.write(start)
                while not over.wait(0.05):  # each byte comes well within the limit between two
                    self.wfile.write(b" ")

        def log_message(self, *_: object) -> None:
            pass

    over = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dripping)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    asked = hub.Hub(f"http://127.0.0.1:{server.server_port}", whole=0.5)
    began = time.monotonic()
    try:
        with pytest.raises(hub.HubError, match=r"no whole answer to /api/models/.* sglang_model_source: local"):
            asked.listing(REPO, "main")
        assert time.monotonic() - began < 5
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("said", [b'{"hello": 1}', b"<html>Log in to the network</html>", b"[" * 100_000, b"\xff", b"3"])
def test_something_that_is_no_hub(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(hub.Hub, "_get", lambda *_: said)
    with pytest.raises(hub.HubError, match="not as the Hugging Face hub does"):
        hub.Hub("http://127.0.0.1:9").listing(REPO, "main")


def test_the_token_goes_to_the_hub_alone(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    fake.token = TOKEN
    commit = fake.publish(REPO, files)
    asked = hub.Hub(fake.url, TOKEN)
    shard = "model-00001-of-00002.safetensors"
    assert len(asked.text(asked.listing(REPO, commit), shard)) > 0  # redirected to another host
    assert {item.token for item in fake.fetched()} == {None}
    assert {item.token for item in fake.asked if not item.path.startswith("/cdn/")} == {TOKEN}


def test_a_shard_that_the_revision_lacks(fake: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    del files["model-00002-of-00002.safetensors"]
    assert "model-00002-of-00002.safetensors" in refused(fake, tmp_path, fake.publish(REPO, files))


def test_too_little_disk(fake: FakeHub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = fake.publish(REPO, files)
    usage = type("Usage", (), {"free": sum(map(len, files.values())) - 1})
    monkeypatch.setattr(hub_store.shutil, "disk_usage", lambda _: usage)
    assert "Too little disk" in (said := refused(fake, tmp_path, commit)) and "model_weights_root" in said


@pytest.mark.parametrize(
    "name", ["/srv/models/m", "m", "a/b/c", "../a", "a/..", "a/b c", "", "-a/b", "https://huggingface.co/a/b"]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(hub.HubError, match="sglang_model"):
        hub.serve("hub", name, "", "/srv/models")


@given(st.text(max_size=30))
def test_no_name_leaves_the_root(name: str) -> None:
    try:
        path = hub.serve("hub", name, "0" * 40, "/srv/models").path
    except hub.HubError:
        return
    assert os.path.normpath(path) == path and path.startswith("/srv/models/models--") and path.count("/") == 5


def test_what_the_server_is_told() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    served = hub.serve("hub", REPO, commit, "/data/")
    assert served.path == f"/data/models--lukealonso--GLM-5-NVFP4/snapshots/{commit}"
    assert (served.revision, served.settings, served.environment) == (
        None,
        {"served_model_name": REPO},
        {"HF_HUB_OFFLINE": "1"},
    )
    assert hub.serve("server", REPO, "", "/data") == hub.Served(REPO, None, REPO)
    assert hub.serve("server", REPO, commit, "/data").revision == commit
    assert hub.serve("local", "/srv/m", "", "/data").path == "/srv/m"


def remote(*names: str) -> list[hub.Remote]:
    return [hub.Remote(name, 1, None, name) for name in names]


@pytest.mark.parametrize(
    ("names", "index", "kept"),
    [
        (["a.safetensors", "b.safetensors", "x.bin"], {"t": "a.safetensors"}, ["a.safetensors"]),
        (["model.safetensors", "consolidated.safetensors", "pytorch_model.bin"], {}, ["model.safetensors"]),
        (["pytorch_model.bin", "model.onnx", "tf_model.h5"], {}, ["pytorch_model.bin"]),
        (["config.json", "original/params.json", "figure.png", "modeling.py"], {}, ["config.json", "modeling.py"]),
        (["m.gguf"], {}, ["m.gguf"]),
    ],
)
def test_one_format_of_the_weights_is_fetched(names: list[str], index: dict[str, str], kept: list[str]) -> None:
    assert [entry.name for entry in hub_store.wanted(remote(*names), index)] == kept


def test_proxies_and_certificates_are_those_of_the_index(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").touch()
    found = hub.transport(
        {
            "index_url": "https://x/simple",
            "ca_bundle": str(tmp_path / "ca.crt"),
            "proxies": {"https": "http://p:1", "no": "y"},
        }
    )
    assert found == {
        "SSL_CERT_FILE": str(tmp_path / "ca.crt"),
        "https_proxy": "http://p:1",
        "HTTPS_PROXY": "http://p:1",
        "no_proxy": "y",
        "NO_PROXY": "y",
    }


def test_progress_in_words() -> None:
    state = {"phase": "fetching", "outcome": "", "done": 100e9, "total": 440e9, "rate": 250e6, "joined": False, "again": []}
    assert hub_progress.line(state) == "weights are downloaded: 100.0 of 440.0 GB, 250 MB/s, 22:40 left"
    assert "nothing comes" in hub_progress.line({**state, "rate": 0})
    assert "by a run of before" in hub_progress.line({**state, "joined": True})
    assert "checked" in hub_progress.line({**state, "phase": "checking"})
    assert hub_progress.line({**state, "outcome": "whole"}) == ""
    assert hub_progress.clock(3723) == "1:02:03"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask for another user")
def test_what_the_service_cannot_read_is_refused() -> None:
    folder = make(Path("/var/tmp") / f"sglang-access-{os.getpid()}")
    try:
        assert model_access.problems(folder, "nobody", []) == []
        (folder / "config.json").chmod(0o600)
        assert "cannot read config.json" in model_access.problems(folder, "no-such-user", [])[0]
        (folder / "config.json").chmod(0o644)
        folder.chmod(0o700)
        assert "o+x" in model_access.problems(folder, "nobody", [])[0]
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask for another user")
def test_what_the_service_could_change_of_a_model_is_told() -> None:
    above = Path("/srv") / f"sglang-access-{os.getpid()}"
    above.mkdir(parents=True)
    folder, shard = above / "model", above / "blob"
    try:
        make(folder)
        shard.write_text("x")
        (folder / "linked.py").symlink_to(shard)
        assert model_access.writable(folder, "nobody") == []
        for path, mode in ((shard, 0o666), (folder / "config.json", 0o646), (above, 0o757)):
            kept = path.stat().st_mode
            path.chmod(mode)
            assert model_access.writable(folder, "nobody") == [path]
            path.chmod(kept)
        above.chmod(0o1777)
        assert model_access.writable(folder, "nobody") == []
    finally:
        shutil.rmtree(above)


def test_homes_and_temporary_folders_are_hidden_from_the_service(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    assert "ProtectHome" in model_access.problems(folder, "nobody", [str(tmp_path)])[0]
    temporary = make(Path("/var/tmp") / f"sglang-access-{os.getpid()}")
    try:
        assert "sglang_hardening" in model_access.problems(temporary, "nobody")[0]
        assert model_access.problems(temporary, "nobody", hardening.unseen({"PrivateTmp": False})) == []
    finally:
        shutil.rmtree(temporary)


def test_a_link_to_nowhere_in_a_model_and_a_cache_that_cannot_be_written_do_no_harm(tmp_path: Path) -> None:
    folder = make(tmp_path / "m")
    (tmp_path / "file").touch()
    assert hub_store.inspect_once(folder, tmp_path / "file" / "cache", keep=True)["architecture"]
    (folder / "README.md").symlink_to(tmp_path / "none")
    assert hub_store.inspect_once(folder, tmp_path / "cache", keep=True)["architecture"]
    assert not (tmp_path / "cache").exists()


def test_a_directory_is_read_once_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = make(tmp_path / "m"), tmp_path / "cache"
    first = hub_store.inspect_once(folder, cache, keep=False)
    assert first == model_dir.inspect(folder).as_dict() and not cache.exists()
    hub_store.inspect_once(folder, cache, keep=True)
    with monkeypatch.context() as patch:
        patch.setattr(model_dir, "inspect", None)
        assert json.loads(json.dumps(first)) == hub_store.inspect_once(folder, cache, keep=True)
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(model_dir.ModelDirError, match="damaged"):
        hub_store.inspect_once(folder, cache, keep=True)
    with pytest.raises(model_dir.ModelDirError, match="does not exist"):
        hub_store.inspect_once(tmp_path / "none", cache, keep=True)
