"""Wheelhouses with the real uv and pip: made, moved, damaged, interrupted; releases built from them without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import wheel
from sglang_deploy import release, release_uv, release_wheelhouse, release_wheelhouse_make
from sglang_deploy.release_wheelhouse_make import Target

STACK: dict[str, Any] = {
    "name": "small",
    "sglang": "0.5.9",
    "source": {"kind": "index", "package": "sglang", "version": "0.5.9"},
    "python": ">=3.10",
    "torch": "2.9.1",
    "transformers": "5.2.0",
    "overrides": ["transformers==5.2.0"],
}
HERE = Target(f"3.{sys.version_info.minor}", f"{os.uname().machine}-manylinux_2_36")
UV = "0.13.9"


@pytest.fixture(scope="session")
def shop(wheels: Path, tmp_path_factory: pytest.TempPathFactory, uv: str) -> release.Index:
    """An index that also sells uv, packed by its own rules from the one that is installed."""
    folder = tmp_path_factory.mktemp("shop")
    for path in wheels.iterdir():
        shutil.copy(path, folder)
    script = f"#!{sys.executable}\nimport os, sys\nos.execv({uv!r}, ['uv', *sys.argv[1:]])\n"
    wheel(folder, "uv", UV, {f"uv-{UV}.data/scripts/uv": script, "uv/__init__.py": ""})
    with zipfile.ZipFile(folder / f"uv-{UV}-py3-none-any.whl", "a") as archive:
        archive.getinfo(f"uv-{UV}.data/scripts/uv").external_attr = 0o100755 << 16
        archive.comment = b"changed, so that the list of files is written again"
    return release.Index(find_links=(str(folder),), offline=True, cache_dir=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tools(uv: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder as release_uv.provide makes it, with this environment's own uv and pip: installing them takes seconds."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "uv").symlink_to(uv)
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    (folder / "python").chmod(0o755)
    return str(folder / "uv")


@pytest.fixture(autouse=True)
def one_pip(tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_uv, "provide", lambda *_: tools)


def request_for(index: release.Index, **changes: Any) -> release.Request:
    return release.Request.from_stack(STACK | changes, index)


def make(index: release.Index, path: Path, target: Target = HERE, **changes: Any) -> release_wheelhouse_make.Made:
    return release_wheelhouse_make.make(request_for(index, **changes), target, path, uv_version=UV, python=sys.executable)


@pytest.fixture(scope="session")
def made(shop: release.Index, tools: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "wheelhouse"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_uv, "provide", lambda *_: tools)
        assert make(shop, path).changed
    return path


def opened(path: Path, cache: Path) -> release_wheelhouse.Wheelhouse:
    return release_wheelhouse.located(path, cache)


def without_network(tmp_path: Path) -> release.Index:
    """Nothing to take packages from, and an empty cache."""
    return release.Index(index_url="http://127.0.0.1:9/simple", cache_dir=str(tmp_path / "empty-cache"))


def build(path: Path, tmp_path: Path, **changes: Any) -> release.Built:
    request = request_for(without_network(tmp_path), **changes).from_wheelhouse(opened(path, tmp_path / "unpacked"))
    return release.build(request, tmp_path / "root", python=sys.executable)


def test_a_wheelhouse_holds_all_that_is_needed_and_no_more(made: Path, shop: release.Index) -> None:
    manifest = release_wheelhouse.read_manifest(made)
    names = sorted(path.name for path in (made / "wheels").iterdir())
    assert sorted(name.split("-")[0] for name in names) == ["numpy", "sglang", "torch", "transformers", "uv"]
    assert sorted(manifest["files"]) == names
    assert "transformers-5.2.0-py3-none-any.whl" in names, "the override decides"
    assert manifest["python"] == HERE.python and manifest["uv"]["version"] == UV
    assert sorted(path.name for path in made.iterdir()) == [".lock", "lock.txt", "wheelhouse.json", "wheels"]
    lock = (made / "lock.txt").read_text(encoding="utf-8")
    assert lock.count("==") == lock.count("--hash=sha256:") == 4, "one file each"
    assert not make(shop, made).changed


def test_a_release_is_built_from_it_without_a_network(made: Path, tmp_path: Path) -> None:
    built = build(made, tmp_path)
    assert built.changed
    assert built.receipt["versions"]["torch"] == "2.9.1+cpu"
    assert built.receipt["uv"] == UV
    assert built.receipt["wheelhouse"]["lock_sha256"] == release_wheelhouse.read_manifest(made)["lock_sha256"]
    assert built.receipt["lock_sha256"] == built.receipt["wheelhouse"]["lock_sha256"]
    assert (tmp_path / "root" / "uv" / UV / "bin" / "uv").is_file(), "uv came out of it, too"
    assert not build(made, tmp_path).changed


@pytest.mark.skipif(os.geteuid() != 0, reason="cutting the network off needs root")
def test_a_release_is_built_where_there_is_no_network_at_all(made: Path, tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nimport test_release_wheelhouse as t\n"
        f"print(t.build(Path({str(made)!r}), Path({str(tmp_path)!r})).release_id)\n",
        encoding="utf-8",
    )
    root = Path(__file__).resolve().parents[2]
    paths = [root / "plugins" / "module_utils", root / "tests", Path(__file__).parent]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = ["unshare", "--net", sys.executable, str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip("this container may not make network namespaces")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "root" / "releases" / done.stdout.strip() / "receipt.json").is_file()


def test_an_archive_serves_as_well_as_a_folder(shop: release.Index, made: Path, tmp_path: Path) -> None:
    archive = tmp_path / "wheelhouse.tar"
    assert make(shop, archive).changed and not make(shop, archive).changed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wheelhouse.tar"]
    wheelhouse = opened(archive, tmp_path / "unpacked")
    release_wheelhouse.unpack(archive, wheelhouse)
    built = build(archive, tmp_path)
    assert built.release_id == build(made, tmp_path / "other").release_id, "the place does not matter, nor the form"


def test_another_lock_is_another_release(shop: release.Index, made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    request = replace(request_for(shop), requirements=("sglang==0.5.9", "numpy==2.0"))
    release_wheelhouse_make.make(request, HERE, other, uv_version=UV, python=sys.executable)
    manifest = json.loads((other / "wheelhouse.json").read_text(encoding="utf-8"))
    manifest["asked"] = release_wheelhouse.read_manifest(made)["asked"]  # as after a new upload to the index
    (other / "wheelhouse.json").write_text(json.dumps(manifest), encoding="utf-8")
    first, second = build(made, tmp_path), build(other, tmp_path)
    assert second.changed and first.release_id != second.release_id
    assert (
        first.path.is_dir()
        and first.receipt
        == release.build(
            request_for(without_network(tmp_path)).from_wheelhouse(opened(made, tmp_path)),
            tmp_path / "root",
            python=sys.executable,
        ).receipt
    )


def test_another_python_and_platform_than_this_machines(shop: release.Index, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    make(shop, path, Target("3.14", "aarch64-manylinux_2_39"))
    with pytest.raises(release.ReleaseError, match=r"The wheelhouse is for Python 3\.14"):
        build(path, tmp_path)
    manifest = json.loads((path / "wheelhouse.json").read_text(encoding="utf-8")) | {"python": HERE.python}
    (path / "wheelhouse.json").write_text(json.dumps(manifest), encoding="utf-8")
    if os.uname().machine != "aarch64":
        with pytest.raises(release.ReleaseError, match="wheelhouse is for linux-aarch64, and this host is linux-x86_64"):
            build(path, tmp_path)


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing", "lock"])
def test_a_damaged_wheelhouse_is_refused_before_anything_is_built(made: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "copy"
    shutil.copytree(made, path)
    file = path / "lock.txt" if damage == "lock" else path / "wheels" / "numpy-2.2-py3-none-any.whl"
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "cut off" else data[:40] + bytes([data[40] ^ 1]) + data[41:])
    with pytest.raises(release.ReleaseError, match=f"is not whole: {file.relative_to(path)} is missing or not the file"):
        build(path, tmp_path)
    assert list((tmp_path / "root" / "releases").iterdir()) == []


@pytest.mark.parametrize("content", [None, b"no zip", b"PK"])
def test_a_damaged_uv_is_refused_before_it_is_run(tmp_path: Path, content: bytes | None) -> None:
    name = "uv-1-py3-none-any.whl"
    (tmp_path / "wheels").mkdir()
    if content is not None:
        (tmp_path / "wheels" / name).write_bytes(content)
    manifest = {"uv": {"file": name}, "files": {name: {"sha256": "0" * 64, "bytes": 6}}}
    with pytest.raises(release_wheelhouse.WheelhouseError, match=f"is not whole: wheels/{name}, its uv"):
        release_wheelhouse.Wheelhouse(manifest, tmp_path).provide_uv(tmp_path / "uv")
    assert not (tmp_path / "uv").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overrides": ["transformers==4.57.1"]}, r"by its overrides .*4\.57\.1"),
        ({"source": {"kind": "index", "package": "sglang", "version": "0.5.10"}}, "by its source"),
        ({"name": "other"}, "by its stack"),
        ({"proofs": ["sm120_extend_block_size"]}, "by its proofs"),
    ],
)
def test_a_wheelhouse_for_something_else(made: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(release.ReleaseError, match=words):
        build(made, tmp_path, **changes)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no wheelhouse.json"),
        ("{", "is not JSON"),
        ('{"schema": 9}', "schema 9"),
        ('{"schema": 1}', "lacks stack"),
    ],
)
def test_what_is_no_wheelhouse(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "wheelhouse.json").write_text(text, encoding="utf-8")
    with pytest.raises(release_wheelhouse.WheelhouseError, match=words):
        release_wheelhouse.read_manifest(tmp_path)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(release_wheelhouse.WheelhouseError, match="make one with"):
        release_wheelhouse.read_manifest(tmp_path / "none")
    (tmp_path / "file").write_text("words", encoding="utf-8")
    with pytest.raises(release_wheelhouse.WheelhouseError, match="neither a folder nor a tar archive"):
        release_wheelhouse.read_manifest(tmp_path / "file")
    name = "../../etc/x.whl"
    with pytest.raises(release_wheelhouse.WheelhouseError, match="not the name of a wheel"):
        entry = {"sha256": "0", "bytes": 1}
        fields = {key: {} for key in release_wheelhouse.FIELDS}
        release_wheelhouse.parse(json.dumps({"schema": 1, **fields, "files": {name: entry}}), "here")


@pytest.mark.parametrize(("python", "platform"), [("3.12.1", HERE.platform), ("4", HERE.platform), ("3.12", "linux")])
def test_targets_that_are_none(python: str, platform: str) -> None:
    with pytest.raises(release.ReleaseError, match="sglang_wheelhouse_p"):
        Target(python, platform)


def test_files_arrive_checked(made: Path, tmp_path: Path) -> None:
    manifest = release_wheelhouse.read_manifest(made)
    arrived, folder = tmp_path / "arrived", tmp_path / "folder"
    arrived.mkdir()
    first, second, *_ = release_wheelhouse.names(manifest)
    release_wheelhouse.copy_out(made, second, arrived / Path(second).name)
    left = release_wheelhouse.take_in(manifest, arrived, folder)
    assert first in left and second not in left and list(arrived.iterdir()) == []
    (arrived / "lock.txt").write_text("evil==1\n", encoding="utf-8")
    with pytest.raises(release_wheelhouse.WheelhouseError, match=r"lock\.txt of the wheelhouse is damaged"):
        release_wheelhouse.take_in(manifest, arrived, folder)
    assert not (folder / "lock.txt").exists()


def test_a_making_that_is_killed_is_gone_on_with(
    shop: release.Index, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_wheelhouse_make, "BATCH", 1)
    path = tmp_path / "wheelhouse"
    pid = os.fork()
    if pid == 0:
        os.setpgrp()
        make(shop, path)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not list((path / "wheels").glob("*.whl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(pid, 9)
    os.waitpid(pid, 0)
    assert not (path / "wheelhouse.json").exists()
    there = {file.name: file.stat().st_mtime_ns for file in (path / "wheels").glob("*.whl")}
    lock = (path / ".work" / "lock.txt").read_bytes()
    said: list[str] = []
    again = release_wheelhouse_make.make(
        request_for(shop), HERE, path, uv_version=UV, python=sys.executable, progress=said.append
    )
    assert again.changed and not any(text.startswith("resolving") for text in said), "the lock stayed"
    assert lock
    whole = {name: at for name, at in there.items() if name in again.manifest["files"]}
    assert whole and {name: (path / "wheels" / name).stat().st_mtime_ns for name in whole} == whole
    assert again.manifest["files"] == release_wheelhouse.read_manifest(made)["files"]


def test_two_at_once(shop: release.Index, tmp_path: Path) -> None:
    with release_wheelhouse_make._alone(tmp_path), pytest.raises(release.ReleaseError, match="Another process makes"):
        make(shop, tmp_path)


def test_a_package_without_a_wheel_is_built(shop: release.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source distribution on the index becomes a wheel in the wheelhouse, and the lock holds that wheel's hash."""
    monkeypatch.setattr(release_wheelhouse_make, "BATCH", 1)
    source = tmp_path / "only-source-1.0"
    (source / "only_source").mkdir(parents=True)
    (source / "only_source" / "__init__.py").touch()
    backend = (
        "import zipfile, os\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        "    name = 'only_source-1.0-py3-none-any.whl'\n"
        "    with zipfile.ZipFile(os.path.join(folder, name), 'w') as out:\n"
        "        info = 'only_source-1.0.dist-info/'\n"
        "        out.writestr('only_source/__init__.py', '')\n"
        "        out.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: only-source\\nVersion: 1.0\\n')\n"
        "        out.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        out.writestr(info + 'RECORD', '')\n"
        "    return name\n"
    )
    (source / "backend.py").write_text(backend, encoding="utf-8")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: only-source\nVersion: 1.0\n", encoding="utf-8")
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(system + '[project]\nname = "only-source"\nversion = "1.0"\n', encoding="utf-8")
    links = tmp_path / "links"
    links.mkdir()
    shutil.make_archive(str(links / "only-source-1.0"), "gztar", tmp_path, source.name)
    index = replace(shop, find_links=(*shop.find_links, str(links)))
    path = tmp_path / "wheelhouse"
    made = make(index, path, requirements=["only-source==1.0"])
    entry = made.manifest["files"]["only_source-1.0-py3-none-any.whl"]
    assert f"only-source==1.0 \\\n    --hash=sha256:{entry['sha256']}" in (path / "lock.txt").read_text(encoding="utf-8")
    assert build(path, tmp_path, requirements=["only-source==1.0"]).receipt["packages"] == 5


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp312-cp312-linux_x86_64.whl", True),
        ("a-1-cp311-cp311-linux_x86_64.whl", False),
        ("a-1-cp39-abi3-linux_x86_64.whl", True),
        ("a-1-cp312-cp312-linux_aarch64.whl", False),
    ],
)
def test_what_a_host_takes(name: str, takes: bool) -> None:
    assert Target("3.12", "x86_64-manylinux_2_36").takes(name) is takes


def test_pip_is_told_every_name_of_a_platform() -> None:
    words = Target("3.12", "x86_64-manylinux_2_17").for_pip()
    assert words[:4] == ["--python-version", "3.12", "--implementation", "cp"]
    for name in ("manylinux_2_17_x86_64", "manylinux_2_5_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"):
        assert name in words
    assert "manylinux_2_18_x86_64" not in words


def test_uv_reports_what_went_wrong_with_pip(shop: release.Index, tmp_path: Path) -> None:
    with pytest.raises(release_uv.UvError, match="Resolving the stack's packages failed"):
        make(shop, tmp_path / "wheelhouse", requirements=["no-such-package"])
    assert not (tmp_path / "wheelhouse" / "wheelhouse.json").exists()
