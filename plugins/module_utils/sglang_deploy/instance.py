"""An instance on its host: the files that say how it runs, and what runs now. Standard library only."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import guard, release_store, secrets
from .jsonfile import dump, parse

# The running process carries the hash of its launch spec, so that a run that was cut off between writing the files and
# restarting the service is noticed by the next one.
MARKER = "SGLANG_DEPLOYMENT"
TEMPLATE = "sglang"
"""Name of the template unit of servers; the router has its own."""
RUNTIME_UNITS = Path("/run/systemd/system")
"""Where systemd reads settings of units that are gone after the next boot."""


@dataclass(frozen=True)
class Running:
    """What systemd and the process itself say of a unit.

    spec_hash is None for a process without the marker; unit_newer says that the unit's file changed since it started;
    since is systemd's own text for when the unit became active; enabled says that the host starts it when it boots.
    """

    active: bool
    state: str
    main_pid: int
    restarts: int
    invocation: str
    spec_hash: str | None = None
    argv: tuple[str, ...] = ()
    unit_newer: bool = False
    since: str = ""
    enabled: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Written:
    """The outcome of write(): before and after of each file that differs."""

    changed: bool
    diff: list[dict[str, str]] = field(default_factory=list)


def unit_name(instance: str, template: str = TEMPLATE) -> str:
    return f"{template}@{instance}.service"


def parts_of(unit: str) -> tuple[str, str]:
    """The name of an instance, and of the template, from the name of its unit."""
    template, _, name = unit.removesuffix(".service").partition("@")
    return name, template


def local_url(host: str, port: int, scheme: str = "http") -> str:
    """Where a server that binds to `host` answers on its own host: a wildcard address answers on loopback."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound to
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def service_environment(cache_root: str, release_path: str, release: str, profile: str, cuda_home: str) -> dict[str, str]:
    """What a login shell would have set and a unit inherits from nobody: HOME, PATH and the caches.

    Kernel caches belong to one release and profile: a kernel compiled before a fix would keep the fault alive. A model that
    the server downloads by itself belongs to none of them, and outlives them.
    Names: FlashInfer, DeepGEMM, Triton, torch and CUDA, as their own documentation gives them.
    """
    cache = f"{cache_root}/{release}/{profile}"
    path = [f"{release_path}/venv/bin"]
    if cuda_home:
        path.append(f"{cuda_home}/bin")
    path += ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return {
        "HOME": f"{cache}/home",
        "PATH": ":".join(path),
        "HF_HOME": f"{cache_root}/huggingface",
        "XDG_CACHE_HOME": f"{cache}/xdg",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "FLASHINFER_WORKSPACE_BASE": f"{cache}/flashinfer",
        "SGLANG_CACHE_DIR": f"{cache}/sglang",
        "SGLANG_DG_CACHE_DIR": f"{cache}/deep_gemm",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
    }


def write(
    deployment: Mapping[str, Any],
    directory: Path,
    group: int,
    apply: bool = True,
    keys: secrets.Secrets | None = None,
) -> Written:
    """Bring the instance's files to what a deployment says.

    deployment: `spec` (the launch spec), `launch` and `environment` (the texts that follow from it), and `files`, further
    texts by their name, where the program needs some.
    Every file is complete or untouched, and spec.json comes last: it names what the others already are.
    group: the group id of the service, which reads environment and keys. apply=False only compares.
    keys: those of a deployment that has some; None leaves the ones on the host. A deployment without keys has their file
    taken away. The difference never shows them.
    """
    diff = []
    wanted = {
        "launch": (str(deployment["launch"]), 0o755),
        "environment": (str(deployment["environment"]), 0o640),
        "spec.json": (dump(deployment["spec"]), 0o644),
    }
    wanted = {**{name: (str(text), 0o644) for name, text in (deployment.get("files") or {}).items()}, **wanted}
    named = bool(deployment["spec"].get("secrets"))
    # systemd reads the file as root where it hands the keys over; else the service does.
    alone = secrets.by_credential(deployment["spec"]["environment"])
    if named:
        given = {secrets.FILE: (keys.text(), 0o600 if alone else 0o640)} if keys else {}
        wanted = {**given, f"{secrets.GUARD}/sitecustomize.py": (inspect.getsource(guard), 0o644), **wanted}
    for name, (text, mode) in wanted.items():
        path = directory / name
        stat = path.stat() if path.exists() else None
        before = path.read_text(encoding="utf-8", errors="replace") if stat else ""
        owner = 0 if alone and name == secrets.FILE else group
        if stat and before == text and (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid) == (mode, 0, owner):
            continue
        texts = [_without_keys(before), _without_keys(text)] if name == secrets.FILE else [before, text]
        diff.append({"before": texts[0], "after": texts[1], "before_header": str(path), "after_header": str(path)})
        if apply:
            for folder in reversed([one for one in path.parents if not one.exists()]):
                folder.mkdir()
                folder.chmod(0o755)  # whatever root's umask is, the service reads what lies there
            replace(path, text, mode, owner)
    if not named and (directory / secrets.FILE).exists():
        path = directory / secrets.FILE
        diff.append({"before": "keys\n", "after": "", "before_header": str(path), "after_header": str(path)})
        if apply:
            path.unlink()
            shutil.rmtree(directory / secrets.GUARD, ignore_errors=True)
    return Written(changed=bool(diff), diff=diff)


def _without_keys(text: str) -> str:
    """What a difference may show of the keys' file: which keys, and the id that changes with them."""
    found = secrets.parse(text)
    return secrets.Secrets(dict.fromkeys(found.values, guard.HIDDEN), found.id).text() if found else ""


def stage(
    name: str,
    deployment: Mapping[str, Any],
    directory: Path,
    group: int,
    runtime_units: Path = RUNTIME_UNITS,
    keys: secrets.Secrets | None = None,
    template: str = TEMPLATE,
) -> None:
    """Make a deployment what the unit's next start runs, until it is accepted, discarded, or the host boots again.

    What the instance's own files say is left alone: while the gate has not spoken, a host that loses its power comes back
    with the deployment that was good. The setting that points the unit to the candidate lies under /run for that reason.
    The unit sees the candidate's folder in the place of the instance's own, so that a path to the keys is the same for
    both; the link makes the candidate's path good there, too. The caller lets systemd read its units again.
    """
    candidate = directory / "candidate"
    text = str(deployment["launch"]).replace(f"{directory}/environment", f"{candidate}/environment")
    write({**deployment, "launch": text}, candidate, group, keys=keys or secrets.read(directory))
    link = candidate / candidate.name
    if not link.is_symlink():
        link.symlink_to(".")
    setting = _setting(name, runtime_units, template)
    setting.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path, own = (str(folder).replace("%", "%%") for folder in (candidate, directory))
    lines = [
        "[Service]",
        "EnvironmentFile=",
        f"EnvironmentFile={path}/environment",
        "ExecStart=",
        f"ExecStart={path}/launch",
        "BindReadOnlyPaths=",
        f"BindReadOnlyPaths={path}:{own}",
    ]
    if secrets.by_credential(deployment["spec"]["environment"]):
        lines += ["LoadCredential=", f"LoadCredential={secrets.FILE}:{path}/{secrets.FILE}"]
    replace(setting, "\n".join(lines) + "\n", 0o644)


def live(name: str, directory: Path, runtime_units: Path = RUNTIME_UNITS, template: str = TEMPLATE) -> Path:
    """The folder that the unit's next start reads: the instance's own, or a candidate's."""
    return directory / "candidate" if _setting(name, runtime_units, template).exists() else directory


def discard(
    name: str, directory: Path, runtime_units: Path = RUNTIME_UNITS, template: str = TEMPLATE, *, apply: bool = True
) -> bool:
    """Let the unit's next start run what the instance's own files say. Returns whether there was a candidate.

    A running process is left alone. Its files go last, so that systemd never points to a launch script that is gone.
    apply: False only looks.
    """
    setting, candidate = _setting(name, runtime_units, template), directory / "candidate"
    there = setting.exists() or candidate.exists()
    if not (there and apply):
        return there
    setting.unlink(missing_ok=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True, capture_output=True)
    shutil.rmtree(candidate, ignore_errors=True)
    return True


def _setting(name: str, runtime_units: Path, template: str) -> Path:
    return runtime_units / f"{unit_name(name, template)}.d" / "candidate.conf"


def secrets_problem(deployment: Mapping[str, Any], directory: Path) -> str:
    """Why a deployment that has keys cannot be run with those on the host, or an empty text."""
    if not deployment["spec"].get("secrets") or secrets.read(directory):
        return ""
    return (
        f"it runs with {' and '.join(deployment['spec']['secrets'])}, and {directory / secrets.FILE} is not there any more. "
        "Put its settings and a key into group_vars and deploy."
    )


def release_problem(deployment: Mapping[str, Any]) -> str:
    """Why the release that a deployment runs from cannot run it, or an empty text."""
    try:
        release_store.read_receipt(_release(deployment))
    except release_store.Damaged as error:
        return str(error)
    return ""


def context(deployment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What findings want to know of a deployment: versions of its release, settings as its arguments spell them,
    environment.
    """
    try:
        versions = release_store.read_receipt(_release(deployment))["versions"]
    except release_store.Damaged:
        versions = {}
    spec = deployment["spec"]
    settings: dict[str, str] = {}
    option = ""
    for word in spec["argv"]:
        if word.startswith("--"):
            option = word[2:].replace("-", "_")
            settings[option] = "True"
        elif option:
            settings[option], option = str(word), ""
    environment = {name: str(variable["value"]) for name, variable in spec["environment"].items()}
    return {"versions": {k: str(v) for k, v in versions.items() if v}, "settings": settings, "environment": environment}


def _release(deployment: Mapping[str, Any]) -> Path:
    """The release's folder: its Python is PATH/venv/bin/python."""
    return Path(str(deployment["spec"]["command"][0])).parent.parent.parent


def read(directory: Path) -> dict[str, Any]:
    """The deployment that the files on the host describe; empty where they are missing or spec.json is damaged."""
    try:
        spec = parse((directory / "spec.json").read_text(encoding="utf-8"))
        texts = {name: (directory / name).read_text(encoding="utf-8") for name in ("launch", "environment")}
    except (OSError, ValueError):
        return {}
    return {"spec": spec, **texts} if whole(spec) else {}


def whole(spec: Any) -> bool:
    """Whether a launch spec from a file has what the project reads of one; damage that is still JSON has not."""
    if not isinstance(spec, dict) or not all(isinstance(spec.get(name), str) for name in ("hash", "url", "profile")):
        return False
    words, variables = [spec.get("command"), spec.get("argv")], spec.get("environment")
    if not all(isinstance(part, list) and all(isinstance(word, str) for word in part) for part in words) or not words[0]:
        return False
    return isinstance(variables, dict) and all(isinstance(one, dict) and "value" in one for one in variables.values())


def replace(path: Path, text: str | bytes, mode: int, group: int = -1) -> None:
    """Replace a file's content at once: a reader sees the old text or the new one, also after a power cut."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text if isinstance(text, bytes) else text.encode())
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fchown(stream.fileno(), os.geteuid(), group)
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def running(instance: str, template: str = TEMPLATE) -> Running:
    """Ask systemd, and the main process, what runs for an instance."""
    wanted = (
        "ActiveState",
        "SubState",
        "MainPID",
        "NRestarts",
        "InvocationID",
        "FragmentPath",
        "ActiveEnterTimestamp",
        "UnitFileState",
        "ExecMainStartTimestampMonotonic",
    )
    shown = subprocess.run(
        ["systemctl", "show", unit_name(instance, template), "--property=" + ",".join(wanted)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    pid = int(values.get("MainPID") or 0)
    environment = _null_separated(Path(f"/proc/{pid}/environ")) if pid else ()
    marker = [entry.partition("=")[2] for entry in environment if entry.startswith(f"{MARKER}=")]
    return Running(
        active=values.get("ActiveState") == "active",
        state=f"{values.get('ActiveState', 'unknown')} ({values.get('SubState', 'unknown')})",
        main_pid=pid,
        restarts=int(values.get("NRestarts") or 0),
        invocation=values.get("InvocationID", ""),
        spec_hash=marker[0] if marker else None,
        argv=_null_separated(Path(f"/proc/{pid}/cmdline")) if pid else (),
        unit_newer=_changed_since(values.get("FragmentPath", ""), int(values.get("ExecMainStartTimestampMonotonic") or 0)),
        since=values.get("ActiveEnterTimestamp", ""),
        enabled=values.get("UnitFileState") == "enabled",
    )


def runs(found: Running, deployment: Mapping[str, Any]) -> bool:
    """Whether the unit is active and runs exactly a deployment, started after its unit file changed."""
    spec = deployment["spec"]
    same = found.spec_hash == spec["hash"] and list(found.argv) == list(spec["command"])
    return found.active and same and not found.unit_newer


def _changed_since(path: str, start: int) -> bool:
    """Whether a file was written after a moment in microseconds of the monotonic clock; 0 stands for never.

    A file of the future tells nothing: the clock was set back, and it would be newer than every start to come.
    """
    if not path or not start:
        return False
    age = time.clock_gettime(time.CLOCK_MONOTONIC) - start / 1e6
    try:
        return time.time() - age < Path(path).stat().st_mtime <= time.time() + 1
    except OSError:  # it was taken away: what runs is not what the next start would run
        return True


def _null_separated(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0"))
    except OSError:  # the process ended meanwhile
        return ()
