"""Releases from git: real repositories, small packages with a build backend of their own, the real git and uv."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import wheel
from sglang_deploy import (
    catalog,
    consistency,
    release,
    release_git,
    release_lock,
    release_tree,
    release_uv,
    release_wheelhouse,
    release_wheelhouse_make,
)

EXTEND = """\
def _get_block_sizes_for_extend_attention(Lq, Lv):
    if _is_cuda and CUDA_CAPABILITY[0] == 12:
        BLOCK_M, BLOCK_N = (32, 32)
    elif _is_cuda and CUDA_CAPABILITY[0] >= 9:
        BLOCK_M, BLOCK_N = (128, 64)
    return BLOCK_M, BLOCK_N
"""
BACKEND = """\
import os, pathlib, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    files = {str(p): p.read_text() for p in sorted(pathlib.Path("sglang").rglob("*")) if p.is_file() and p.name != ".git"}
    files["sglang/__init__.py"] = f"__version__ = {version!r}\\nJOBS = {os.environ['MAX_JOBS']!r}\\n"
    info = f"sglang-{version}.dist-info"
    requires = "Requires-Dist: transformers==4.57.1\\nRequires-Dist: torch\\n"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: sglang\\nVersion: {version}\\n{requires}"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
"""
TREE = {
    "python/pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n\n'
    '[project]\nname = "sglang"\ndynamic = ["version"]\n',
    "python/backend.py": BACKEND,
    "python/sglang/__init__.py": "",
    "python/sglang/srt/__init__.py": "",
    "python/sglang/srt/server_args.py": "class ServerArgs:\n    @staticmethod\n    def add_cli_args(parser):\n"
    '        parser.add_argument("--model-path")\n',
    "python/sglang/srt/layers/attention/triton_ops/extend_attention.py": EXTEND,
    "python/sglang/words.txt": "one\ntwo\nthree\n",
}
STACK: dict[str, Any] = {
    "name": "small",
    "sglang": "0.5.9",
    "python": ">=3.10",
    "torch": "2.9.1",
    "transformers": "5.2.0",
    "overrides": ["transformers==5.2.0"],
    "proofs": ["sm120_extend_block_size"],
}


class Origin:
    """A repository that somebody else pushes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always")
        done = subprocess.run(["git", *identity, *arguments], cwd=self.path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, files: dict[str, str]) -> str:
        for name, text in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")

    def diff(self, file: str, old: str, new: str) -> str:
        """The patch that would change ``old`` to ``new`` in a file, which stays as it is."""
        text = (self.path / file).read_text(encoding="utf-8")
        (self.path / file).write_text(text.replace(old, new), encoding="utf-8")
        patch = self.git("diff") + "\n"
        self.git("checkout", "--quiet", "--", file)
        return patch


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    made = Origin(tmp_path / "origin")
    made.commit(TREE)
    made.git("tag", "--annotate", "v0.5.9", "--message", "0.5.9")
    return made


@pytest.fixture
def repository(origin: Origin, tmp_path: Path) -> release_git.Repository:
    return release_git.Repository(str(origin.path), cache=str(tmp_path / "cache"))


@pytest.fixture
def make(origin: Origin, index: release.Index, tmp_path: Path) -> functools.partial[release.Request]:
    """``make(ref=..., patches=...)`` is a request for the origin's source."""
    source = {"kind": "git", "url": str(origin.path), "ref": "v0.5.9", "subdirectory": "python"}
    return functools.partial(
        release.Request.from_stack, STACK | {"source": source}, index, git_cache=str(tmp_path / "cache")
    )


def words(tree: Path) -> str:
    return (tree / "python" / "sglang" / "words.txt").read_text(encoding="utf-8")


# The whole build


def test_a_release_is_built_from_a_tag(make: Any, origin: Origin, tmp_path: Path, uv: str) -> None:
    root = tmp_path / "root"
    built = release.build(make(), root, uv=uv, python=sys.executable)
    commit = origin.git("rev-parse", "HEAD")
    version = f"0.5.9+g{commit[:12]}"
    receipt = built.receipt
    assert receipt["source"] == {
        "kind": "git",
        "url": str(origin.path),
        "ref": "v0.5.9",
        "subdirectory": "python",
        "commit": commit,
        "version": "0.5.9",
    }
    assert receipt["tree"] == origin.git("rev-parse", "HEAD^{tree}")
    assert receipt["versions"]["sglang"] == version
    assert receipt["versions"]["transformers"] == "5.2.0", "the override wins over SGLang's own pin"
    assert receipt["proofs"]["sm120_extend_block_size"]["line"] == 2
    lock = (built.path / "lock.txt").read_text(encoding="utf-8")
    ((wheel, digest),) = receipt["wheels"].items()
    assert f"sglang=={version} \\\n    --hash=sha256:{digest}\n" in lock
    assert commit in lock, "the lock says from what its own wheel was built"
    assert sorted(path.name for path in built.path.iterdir()) == [
        "lock.txt",
        "options.json",
        "receipt.json",
        "venv",
        "wheels",
    ]
    assert [path.name for path in (built.path / "wheels").iterdir()] == [wheel]
    for path in built.path.rglob("direct_url.json"):
        raise AssertionError(f"{path} names the folder that the release was built in")
    for ref in ("main", commit):
        again = release.build(make(ref=ref), root, uv="/no/such/uv", python=sys.executable)
        assert not again.changed and again.release_id == built.release_id, "the commit decides, not its name"


def test_a_branch_that_moved_is_another_release(make: Any, origin: Origin, tmp_path: Path, uv: str) -> None:
    root = tmp_path / "root"
    first = release.build(make(ref="main"), root, uv=uv, python=sys.executable)
    assert first.receipt["source"]["ref"] == "main"
    origin.commit({"python/sglang/words.txt": "moved\n"})
    moved, missing = release.plan(make(ref="main"), root, python=sys.executable)
    assert missing and moved != first.release_id
    second = release.build(make(ref="main"), root, uv=uv, python=sys.executable)
    assert second.release_id == moved
    assert second.receipt["versions"]["sglang"].startswith("0.5.10.dev0+g")
    assert first.path.is_dir()


def test_a_tree_without_the_fix_is_refused_at_once(make: Any, origin: Origin, tmp_path: Path) -> None:
    without = EXTEND.replace("CUDA_CAPABILITY[0] == 12", "CUDA_CAPABILITY[0] == 7")
    origin.commit({"python/sglang/srt/layers/attention/triton_ops/extend_attention.py": without})
    (uv := tmp_path / "uv").write_text('#!/bin/sh\n[ "$1" = --version ] && echo uv 0.13.9\n', encoding="utf-8")
    uv.chmod(0o755)
    with pytest.raises(release.ReleaseError, match=r"lacks the SM120 fix.*0\.5\.9"):
        release.build(make(ref="main"), tmp_path / "root", uv=str(uv), python=sys.executable)
    assert list((tmp_path / "root" / "releases").iterdir()) == []


def test_the_proof_is_made_of_what_was_installed(make: Any, origin: Origin, tmp_path: Path, uv: str) -> None:
    """A build that leaves the file out, or changes it, is found out although the tree has the fix."""
    origin.commit({"python/backend.py": BACKEND.replace('p.name != ".git"', 'p.name != "extend_attention.py"')})
    with pytest.raises(release.ReleaseError, match="cannot be shown to have the SM120 fix"):
        release.build(make(ref="main"), tmp_path / "root", uv=uv, python=sys.executable)
    assert list((tmp_path / "root" / "releases").iterdir()) == []


def test_the_proof_of_a_release_from_an_index(index: release.Index, tmp_path: Path, uv: str) -> None:
    stack = STACK | {"source": {"kind": "index", "package": "sglang", "version": "0.5.9"}}
    with pytest.raises(release.ReleaseError, match="cannot be shown to have the SM120 fix"):
        release.build(release.Request.from_stack(stack, index), tmp_path / "root", uv=uv, python=sys.executable)


def test_patches_are_built_in_and_recorded(make: Any, origin: Origin, tmp_path: Path, uv: str) -> None:
    patches = [
        release_git.Patch("a.patch", origin.diff("python/sglang/words.txt", "two", "zwei")),
        release_git.Patch("b.patch", "--- /dev/null\n+++ b/python/sglang/new.txt\n@@ -0,0 +1 @@\n+neu\n"),
    ]
    built = release.build(make(patches=patches), tmp_path / "root", uv=uv, python=sys.executable)
    assert built.release_id != release.plan(make(), tmp_path / "root", python=sys.executable)[0]
    (package,) = built.path.glob("venv/lib/python3*/site-packages/sglang")
    assert (package / "words.txt").read_text(encoding="utf-8") == "one\nzwei\nthree\n"
    assert (package / "new.txt").read_text(encoding="utf-8") == "neu\n"
    assert built.receipt["patches"] == [{"name": patch.name, "sha256": patch.sha256} for patch in patches]
    assert built.receipt["tree"] != origin.git("rev-parse", "HEAD^{tree}")
    assert ".p" in built.receipt["versions"]["sglang"]


# Refs


def test_refs_of_every_kind(repository: release_git.Repository, origin: Origin) -> None:
    tagged = origin.git("rev-parse", "HEAD")
    newer = origin.commit({"a": "1"})
    origin.git("update-ref", "refs/pull/7/head", origin.commit({"b": "1"}))
    request = origin.git("rev-parse", "refs/pull/7/head")
    origin.git("reset", "--quiet", "--hard", newer)
    expected = {
        "v0.5.9": tagged,  # annotated: the commit, not the tag's own id
        "refs/tags/v0.5.9": tagged,
        "main": newer,
        "HEAD": newer,
        "pull/7/head": request,
        tagged: tagged,
    }
    assert {ref: release_git.resolve(repository, ref).commit for ref in expected} == expected


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("v0.5.8", r"no branch, tag or commit 'v0\.5\.8': the nearest names are v0\.5\.9"),
        ("0.5.9", r"the nearest names are v0\.5\.9"),
        ("abcdef1", "all 40 digits"),
        ("pull/8/head", "has no refs/pull/8/head"),
        ("both", "write refs/tags/both or refs/heads/both"),
    ],
)
def test_refs_that_are_none(repository: release_git.Repository, origin: Origin, ref: str, message: str) -> None:
    origin.git("tag", "both")
    origin.commit({"a": "1"})
    origin.git("branch", "both")
    with pytest.raises(release.ReleaseError, match=message):
        release_git.resolve(repository, ref)


def test_a_commit_that_is_not_there(repository: release_git.Repository) -> None:
    with pytest.raises(release.ReleaseError, match=f"has no commit {'0' * 39}1"):
        release_git.fetch(repository, release_git.resolve(repository, "0" * 39 + "1"))


@pytest.mark.parametrize(
    ("ref", "stated", "expected"),
    [("v0.5.9", None, "0.5.9"), ("main", None, "0.5.11.dev0"), ("main", "0.5.9", "0.5.9"), ("fix", "0.5.8", "0.5.10")],
)
def test_what_a_build_is_named_after(ref: str, stated: str | None, expected: str) -> None:
    tags = {"v0.5.9": "a" * 40, "v0.5.10": "b" * 40, "v0.5.9rc1": "c" * 40, "gateway-v0.6.0": "b" * 40}
    commit = "b" * 40 if ref == "fix" else "d" * 40
    assert release_git.base_version(ref, stated, release_git.Resolved(commit, ref, tags)) == expected
    assert release_git.base_version("main", None, release_git.Resolved(commit, ref)) == "0.dev0"


def test_asking_changes_nothing(make: Any, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    release.plan(make(ref="main"), tmp_path / "root", python=sys.executable)
    assert sorted(tmp_path.iterdir()) == before


# Fetching


def test_a_fetch_is_shallow_and_the_second_comes_from_the_cache(
    repository: release_git.Repository, origin: Origin, tmp_path: Path
) -> None:
    for number in range(3):
        origin.commit({"a": str(number)})
    main = release_git.resolve(repository, "main")
    held = release_git.fetch(repository, main)
    count = ["git", "--git-dir", str(repository.mirror), "rev-list", "--count", held]
    assert subprocess.run(count, capture_output=True, text=True, check=True).stdout == "1\n"
    origin.path.rename(tmp_path / "gone")
    release_git.checkout(repository, main, tmp_path / "tree")
    assert (tmp_path / "tree" / "a").read_text(encoding="utf-8") == "2"


def test_a_fetch_that_was_cut_off(
    repository: release_git.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = release_git.resolve(repository, "main")
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "bin").mkdir()
    (fake := tmp_path / "bin" / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *" fetch "*) touch {repository.mirror}/shallow.lock; kill -9 $PPID; sleep 1;; esac\n'
        f'exec {real} "$@"\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        os.environ["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        release_git.fetch(repository, main)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    assert (repository.mirror / "shallow.lock").exists()
    release_git.checkout(repository, main, tmp_path / "tree")
    assert words(tmp_path / "tree") == "one\ntwo\nthree\n"


def test_submodules_come_along(repository: release_git.Repository, origin: Origin, tmp_path: Path) -> None:
    part = Origin(tmp_path / "part")
    pinned = part.commit({"word": "pinned\n"})
    origin.git("submodule", "--quiet", "add", "../part", "python/sglang/part")
    origin.commit({})
    part.commit({"word": "newer\n"})
    release_git.checkout(repository, release_git.resolve(repository, "main"), tmp_path / "tree")
    submodule = tmp_path / "tree" / "python" / "sglang" / "part"
    assert (submodule / "word").read_text(encoding="utf-8") == "pinned\n", pinned


def test_the_hosts_git_configuration_changes_nothing(
    repository: release_git.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text('[core]\n\tautocrlf = true\n\teol = crlf\n[url "/no"]\n\tinsteadOf = /\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/no/such")
    release_git.checkout(repository, release_git.resolve(repository, "main"), tmp_path / "tree")
    assert words(tmp_path / "tree") == "one\ntwo\nthree\n"


def test_no_git(repository: release_git.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(release.ReleaseError, match="apt install git"):
        release_git.resolve(repository, "main")


def test_no_such_repository(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"git says:\n.*/none.*\n(.*\n)*There is no such repository"):
        release_git.resolve(release_git.Repository("/none", cache=str(tmp_path)), "main")


def test_offline_takes_what_is_there(repository: release_git.Repository) -> None:
    away = replace(repository, url="https://git.example/x.git", index=release.Index(offline=True))
    with pytest.raises(release.ReleaseError, match="all 40 digits of a commit that was fetched before"):
        release_git.resolve(away, "main")
    with pytest.raises(release.ReleaseError, match="was not fetched before"):
        release_git.fetch(away, release_git.resolve(away, "a" * 40))


# A server with a password, which gives neither single commits nor shallow ones


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(b"user:hunter2@").decode()
        if self.headers.get("Authorization") == wanted:
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=x")
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(origin: Origin) -> Iterator[int]:
    """The port of a plain web server over the origin's files."""
    origin.git("update-server-info")
    handler = functools.partial(_Handler, directory=str(origin.path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()


def test_credentials_are_used_and_never_kept(make: Any, server: int, tmp_path: Path, uv: str) -> None:
    url = f"http://user:hunter2%40@127.0.0.1:{server}/.git"
    online = release_git.Repository(url, cache=str(tmp_path / "cache"))
    main = release_git.resolve(online, "main")
    release_git.fetch(online, main)  # the whole history: this server gives no less
    request = make(url=url, ref=main.commit)
    assert "hunter2" not in repr(request)
    built = release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert built.receipt["source"]["url"] == f"http://127.0.0.1:{server}/.git"
    for folder in (tmp_path / "cache", *built.path.glob("*.*")):
        for path in folder.rglob("*") if folder.is_dir() else [folder]:
            assert not path.is_file() or b"hunter2" not in path.read_bytes(), path
    assert "hunter2" not in json.dumps(built.receipt)


def test_wrong_credentials(server: int, tmp_path: Path) -> None:
    for url in (f"http://user:hunter3@127.0.0.1:{server}/.git", f"http://127.0.0.1:{server}/.git"):
        with pytest.raises(release.ReleaseError, match="wants credentials or refused them") as caught:
            release_git.resolve(release_git.Repository(url, cache=str(tmp_path)), "main")
        assert "hunter3" not in str(caught.value)


def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="cannot be reached") as caught:
        release_git.resolve(release_git.Repository("http://user:hunter2@127.0.0.1:9/x.git", cache=str(tmp_path)), "main")
    assert "hunter2" not in str(caught.value)


# Patches


def test_a_patch_that_does_not_apply(repository: release_git.Repository, origin: Origin, tmp_path: Path) -> None:
    good = release_git.Patch("good.patch", origin.diff("python/sglang/words.txt", "one", "eins"))
    bad = release_git.Patch("bad.patch", good.text)  # a second time
    main = release_git.resolve(repository, "main")
    message = r"Patch 2, bad\.patch, does not apply to refs/heads/main .*python/sglang/words\.txt:1"
    with pytest.raises(release.ReleaseError, match=message):
        release_git.checkout(repository, main, tmp_path / "tree", [good, bad])
    with pytest.raises(release.ReleaseError, match=r"Patch 1, empty\.patch, does not apply"):
        release_git.checkout(repository, main, tmp_path / "other", [release_git.Patch("empty.patch", "no patch\n")])


def test_a_patch_cannot_leave_the_tree(repository: release_git.Repository, tmp_path: Path) -> None:
    evil = release_git.Patch("evil.patch", "--- /dev/null\n+++ b/../../evil\n@@ -0,0 +1 @@\n+x\n")
    with pytest.raises(release.ReleaseError, match=r"evil\.patch, does not apply"):
        release_git.checkout(repository, release_git.resolve(repository, "main"), tmp_path / "tree", [evil])


# The request


def test_what_a_git_source_must_have(make: Any) -> None:
    for url in ("github.com/sgl-project/sglang", "ext::sh -c x", "--upload-pack=x"):
        with pytest.raises(release.ReleaseError, match="needs a url such as"):
            make(url=url)
    for ref in ("--upload-pack=x", "a b", "a:b"):
        with pytest.raises(release.ReleaseError, match="needs a ref such as"):
            make(ref=ref)


def test_ref_and_patches_mean_nothing_for_an_index(index: release.Index) -> None:
    stack = STACK | {"source": {"kind": "index", "package": "sglang", "version": "0.5.9"}}
    with pytest.raises(release.ReleaseError, match="sglang_ref and sglang_patches mean nothing"):
        release.Request.from_stack(stack, index, ref="main", patches=[release_git.Patch("a", "b")])


def test_an_index_stack_can_be_taken_from_git(index: release.Index) -> None:
    stack = STACK | {"source": {"kind": "index", "package": "sglang", "version": "0.5.9"}}
    source = release.Request.from_stack(stack, index, source_kind="git").source
    assert source == {"kind": "git", "url": release_git.UPSTREAM, "ref": "v0.5.9", "subdirectory": "python"}


def test_a_stack_at_another_ref_is_judged_and_built_as_that() -> None:
    known = catalog.load(Path(__file__).resolve().parents[2] / "catalog")
    main = known.stacks["glm5-cuda128"].at("main")
    assert {"cuda-too-old", "transformers-below-pin"} <= {problem.id for problem in consistency.check(main, known)}
    moved = known.stacks["cuda13"].at("v0.5.23", "https://mirror.example/sglang.git")
    assert consistency.check(moved, known) == []
    request = release.Request.from_stack(moved.as_dict(), release.Index())
    assert request.source["url"] == "https://mirror.example/sglang.git"
    assert request.source["ref"] == "v0.5.23" and request.expected["sglang"] == "0.5.23"


def test_the_id_of_a_git_release_follows_what_is_built(make: Any) -> None:
    base = make().pinned()

    def of(**changes: Any) -> str:
        return release.request_id(replace(base, **changes), "3.11", "linux-x86_64")

    assert of() == of(source={**base.source, "ref": "main", "url": "https://mirror.example/x"}, environment={"A": "b"})
    others = [
        of(source={**base.source, "commit": "0" * 40}),
        of(patches=(release_git.Patch("a", "x"), release_git.Patch("b", "y"))),
        of(patches=(release_git.Patch("b", "y"), release_git.Patch("a", "x"))),
        of(proofs=()),
        of(environment={"SGLANG_BUILD_RUST_EXTS": "none"}),
    ]
    assert len({of(), *others}) == len(others) + 1


@pytest.mark.parametrize(
    ("ref", "expected"), [(None, "0.5.9"), ("v0.5.10", "0.5.10"), ("main", None), ("pull/7/head", "0.5.9")]
)
def test_the_ref_says_which_version_must_come_out(make: Any, ref: str | None, expected: str | None) -> None:
    assert make(ref=ref).expected.get("sglang") == expected


def test_the_wheel_takes_its_packages_place(make: Any) -> None:
    request = replace(make(), requirements=("torch",), requirements_no_deps=("sglang==0.5.9", "torchvision"))
    changed = request.with_wheel("sglang", "0.5.9+gabc")
    assert changed.requirements == ("torch",)
    assert changed.requirements_no_deps == ("sglang==0.5.9+gabc", "torchvision")
    assert replace(request, requirements_no_deps=()).with_wheel("sglang", "1").requirements == ("sglang==1", "torch")


def test_the_lock_holds_the_one_wheel_that_was_built() -> None:
    def line(package: str, *hashes: str) -> str:
        return " \\\n    ".join([package, *(f"--hash=sha256:{digest}" for digest in hashes)]) + "\n"

    lock = line("a==1", "1") + line("sglang==2", "2", "3") + line("z==1", "4")
    own = line("a==1", "1") + "# sglang is built here\n" + line("sglang==2", "9") + line("z==1", "4")
    assert release_lock.with_own_hash(lock, "sglang", "9", "built here") == own


# What a build needs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[build-system]\nrequires = ["a>=1", "b"]  # why\nbuild-backend = "x"\n', ("a>=1", "b")),
        ('[build-system]\nrequires = [\n  "a[x]>=1",  # ]\n  "b",\n]\n[project]\nrequires = ["c"]\n', ("a[x]>=1", "b")),
        ('[project]\nname = "x"\n', ("setuptools", "wheel")),
    ],
)
def test_build_requirements(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert release_tree.build_requirements(tmp_path) == expected


def test_no_project_in_the_subdirectory(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match="check the stack's subdirectory"):
        release_tree.build_requirements(tmp_path)


def test_tools_of_newer_trees_are_asked_for_before_the_build(tmp_path: Path) -> None:
    crate = tmp_path / "rust" / "sglang-grpc" / "Cargo.toml"
    crate.parent.mkdir(parents=True)
    crate.write_text('[build-dependencies]\ntonic-build = "0.12"\n', encoding="utf-8")
    requires = ["setuptools>=61.0", "setuptools-rust>=1.10"]
    tools = release_tree.needed(tmp_path, requires, {})
    with pytest.raises(release.ReleaseError) as caught:
        release_tree.check_tools(tools, str(tmp_path))
    assert "apt install cargo rustc gcc protobuf-compiler" in str(caught.value)
    assert "rust/sglang-grpc/Cargo.toml generates code from protocol buffers" in str(caught.value)
    assert release_tree.needed(tmp_path, requires, {"SGLANG_BUILD_RUST_EXTS": "none"}) == []
    assert release_tree.needed(tmp_path, ["setuptools"], {}) == []
    release_tree.check_tools([release_tree.Tool("sh", "always", "dash")], os.environ["PATH"])


def test_a_tree_may_bring_protoc(tmp_path: Path) -> None:
    crate = tmp_path / "rust" / "Cargo.toml"
    crate.parent.mkdir()
    crate.write_text('tonic-build = "0.12"\nprotoc-bin-vendored = "3"\n', encoding="utf-8")
    assert "protoc" not in [tool.program for tool in release_tree.needed(tmp_path, ["setuptools-rust"], {})]


@pytest.mark.parametrize(
    ("manifest", "cargo", "words"),
    [
        ('edition = "2024"\n', "cargo 1.75.0 (1d8b05cdd 2023-11-20)", r"cargo is 1\.75, and the tree's crates need 1\.85"),
        ('edition = "2024"\nrust-version = "1.90"\n', "cargo 1.85.1", r"need 1\.90"),
        ('edition = "2024"\n', "", "cargo is of an unknown version"),
        ('edition = "2024"\n', "cargo 1.92.0 (x)", None),
        ('edition = "2021"\n', "cargo 1.63.0", None),
    ],
)
def test_an_old_rust_is_said_before_the_build(tmp_path: Path, manifest: str, cargo: str, words: str | None) -> None:
    crate = tmp_path / "rust" / "Cargo.toml"
    crate.parent.mkdir()
    crate.write_text(manifest, encoding="utf-8")
    for program in ("cargo", "rustc", "cc"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho '{cargo}'\n", encoding="utf-8")
        (tmp_path / program).chmod(0o755)
    tools = release_tree.needed(tmp_path, ["setuptools-rust"], {})
    if words is None:
        release_tree.check_tools(tools, str(tmp_path))
    else:
        with pytest.raises(release.ReleaseError, match=words):
            release_tree.check_tools(tools, str(tmp_path))


# The cache of sources is pruned


def test_commits_that_no_release_has_go(origin: Origin, repository: release_git.Repository, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = release_git.resolve(repository, "v0.5.9")
    second = release_git.Resolved(origin.commit({"new": "x" * 100}), "refs/heads/main")
    other = Origin(tmp_path / "other")
    other.commit({"a": "b"})
    elsewhere = release_git.Repository(str(other.path), cache=str(cache))
    for where, what in ((repository, first), (repository, second), (elsewhere, release_git.resolve(elsewhere, "main"))):
        release_git.fetch(where, what)
    gone = release_git.prune(cache, {first.commit})
    assert sorted(gone) == sorted([elsewhere.mirror.name, f"{repository.mirror.name} {second.commit}"])
    assert not elsewhere.mirror.exists()
    objects = ["git", "--git-dir", str(repository.mirror), "cat-file", "-e"]
    assert subprocess.run([*objects, first.commit], check=False, capture_output=True).returncode == 0
    assert subprocess.run([*objects, second.commit], check=False, capture_output=True).returncode != 0, (
        "and not just its name"
    )
    assert release_git.prune(cache, {first.commit}) == []
    release_git.checkout(repository, first, tmp_path / "tree")
    release_git.fetch(repository, second)


def test_a_repository_in_use_is_left(origin: Origin, repository: release_git.Repository, tmp_path: Path) -> None:
    release_git.fetch(repository, release_git.resolve(repository, "v0.5.9"))
    with release_git._held(repository):
        assert release_git.prune(tmp_path / "cache", ()) == []
    assert release_git.prune(tmp_path / "cache", ()) == [repository.mirror.name]
    assert release_git.prune(tmp_path / "none", ()) == []


# A wheelhouse of a git source


def test_a_wheelhouse_of_a_git_source(
    make: Any, origin: Origin, tmp_path: Path, wheels: Path, uv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is built once, its commit is recorded, and hosts without git or network build the same."""
    tools, shop = tmp_path / "tools", tmp_path / "shop"
    tools.mkdir()
    (tools / "uv").symlink_to(uv)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    (tools / "python").chmod(0o755)
    monkeypatch.setattr(release_uv, "provide", lambda *_: str(tools / "uv"))
    wheel(shop, "uv", "0.13.9", {"uv/__init__.py": ""})
    index = release.Index(find_links=(str(wheels), str(shop)), offline=True, cache_dir=str(tmp_path / "uv-cache"))
    patch = release_git.Patch("more.patch", origin.diff("python/sglang/words.txt", "two", "2"))
    wanted = replace(make(patches=[patch]), index=index)
    target = release_wheelhouse_make.Target(f"3.{sys.version_info.minor}", f"{os.uname().machine}-manylinux_2_36")
    path = tmp_path / "wheelhouse"
    made = release_wheelhouse_make.make(wanted, target, path, uv_version="0.13.9", python=sys.executable)
    commit = origin.git("rev-parse", "v0.5.9^{commit}")
    assert made.manifest["source"]["commit"] == commit
    assert not release_wheelhouse_make.make(wanted, target, path, uv_version="0.13.9", python=sys.executable).changed
    (own,) = made.manifest["built"]["wheels"]
    assert f"# sglang is built from {origin.path} at {commit}" in (path / "lock.txt").read_text(encoding="utf-8")
    shutil.rmtree(origin.path)
    nowhere = release.Index(cache_dir=str(tmp_path / "empty"))
    house = release_wheelhouse.located(path, tmp_path)
    request = replace(make(patches=[patch]), index=nowhere).from_wheelhouse(house)
    built = release.build(request, tmp_path / "root", uv=uv, python=sys.executable)
    assert built.receipt["source"]["commit"] == commit
    assert built.receipt["versions"]["sglang"] == made.manifest["source"]["version"] + own.split("-")[1][5:]
    assert built.receipt["patches"] == [{"name": "more.patch", "sha256": patch.sha256}]
    assert built.receipt["proofs"]["sm120_extend_block_size"]
    assert (built.path / "wheels" / own).is_file()
    with pytest.raises(release.ReleaseError, match=r"ref \('v0\.5\.9' there, 'main' here\)"):
        make(ref="main", patches=[patch]).from_wheelhouse(house)
    with pytest.raises(release.ReleaseError, match="by its patches"):
        make().from_wheelhouse(house)


def test_a_missing_tool_ends_the_build_early(make: Any, origin: Origin, tmp_path: Path, uv: str) -> None:
    origin.commit({"python/pyproject.toml": '[build-system]\nrequires = ["setuptools-rust"]\n'})
    nothing = tmp_path / "bin"
    nothing.mkdir()
    for name in ("git", "ssh"):
        if found := subprocess.run(["which", name], capture_output=True, text=True, check=False).stdout.strip():
            (nothing / name).symlink_to(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(nothing))
        with pytest.raises(release.ReleaseError, match=r"apt install cargo rustc gcc"):
            release.build(make(ref="main"), tmp_path / "root", uv=uv, python=sys.executable)


@pytest.mark.parametrize(("gib", "cores", "expected"), [(64, 8, 8), (17, 8, 4), (3, 8, 1), (2000, 256, 256)])
def test_jobs(gib: int, cores: int, expected: int) -> None:
    assert release_tree.jobs(gib * 2**20, cores) == expected


def test_jobs_of_this_host() -> None:
    assert 1 <= release_tree.jobs() <= (os.cpu_count() or 1)
