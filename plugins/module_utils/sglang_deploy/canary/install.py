"""The canary's files on a host: one Python archive, two units, the instance's settings, and the timer that is on.

The archive holds the modules that the canary imports, as they are: what asks between deployments is what asked at the gate.
It is the same for all instances and replaced at once. Standard library only.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..hardening import UNSEEN
from ..instance import replace
from ..jsonfile import dump
from .ask import SETTINGS, file_name
from .decide import Settings
from .record import FILE, UNITS, switched_on, timer

PACKAGE = __name__.rsplit(".", 2)[0]
ARCHIVE = Path("/usr/local/lib/sglang/canary.pyz")
MAIN = """import sys

from sglang_deploy.canary.ask import main

sys.exit(main(sys.argv[1:]))
"""
SERVICE = """# Written by Ansible; edits are overwritten.
[Unit]
Description=Canary of SGLang instance %i: does it still decode?
After=sglang@%i.service
ConditionPathExists={config_root}/%i/canary.json

[Service]
Type=oneshot
ExecStart={python} -I -B {archive} {config_root}/%i {state_root}/%i
TimeoutStartSec=900
Nice=10
MemoryMax=512M
TasksMax=64

# Root, since it reads the instance's keys and the arguments of its process. It keeps only that of root's power.
CapabilityBoundingSet=CAP_DAC_READ_SEARCH CAP_SYS_PTRACE
NoNewPrivileges=true
ProtectSystem=strict
ReadWritePaths={state_root}/%i -{textfile_dir}
ProtectHome=true
PrivateTmp=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelModules=true
ProtectKernelTunables=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
LockPersonality=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0022
"""
TIMER = """# Written by Ansible; edits are overwritten. Each turn only looks; the canary's settings say when it asks.
[Unit]
Description=Canary of SGLang instance %i

[Timer]
OnActiveSec=30s
OnUnitInactiveSec=60s
AccuracySec=5s
RandomizedDelaySec=5s

[Install]
WantedBy=timers.target
"""


@dataclass(frozen=True)
class Places:
    """Folders of the host. units, archive: changed by tests only."""

    config_root: Path = Path("/etc/sglang")
    state_root: Path = Path("/var/lib/sglang")
    units: Path = UNITS
    archive: Path = ARCHIVE


def archive() -> bytes:
    """A Python archive with the canary; the same bytes for the same sources."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for path, text in sorted({"__main__.py": MAIN, **dict(_sources())}.items()):
            entry = zipfile.ZipInfo(path)  # of 1980: the time does not count
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, text)
    return content.getvalue()


def _sources() -> Iterator[tuple[str, str]]:
    """The canary's modules and those that they import, by their path in the archive."""
    open_, seen = ["canary.ask"], {""}
    while open_:
        name = open_.pop()
        if name in seen:
            continue
        seen.add(name)
        module = importlib.import_module(f"{PACKAGE}.{name}")
        text = str(module.__loader__.get_source(module.__name__))  # type: ignore[union-attr]
        package = hasattr(module, "__path__")
        yield f"sglang_deploy/{name.replace('.', '/')}{'/__init__' if package else ''}.py", text
        open_ += [*_imports(text, name if package else name.rpartition(".")[0]), name.rpartition(".")[0]]
    yield "sglang_deploy/__init__.py", ""


def _imports(text: str, package: str) -> Iterator[str]:
    """Modules of the project that a source imports; `package` is its own, below the project's."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".") if package else []
            base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            if base:
                yield base
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                if _exists(inner):
                    yield inner


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{PACKAGE}.{name}") is not None
    except ModuleNotFoundError:
        return False


def install(name: str, settings: Settings, python: str, places: Places, apply: bool = True) -> list[str]:
    """Bring the canary of an instance to what is wanted and switch its timer on. Returns what differed.

    python: of the host, 3.10 or newer. apply=False only compares. Raises OSError, and CalledProcessError for systemd.
    """
    values = {
        "python": python,
        "archive": places.archive,
        "config_root": places.config_root,
        "state_root": places.state_root,
        "textfile_dir": settings.textfile_dir,
    }
    wanted: dict[Path, bytes] = {
        places.archive: archive(),
        places.units / "sglang-canary@.service": SERVICE.format(**values).encode(),
        places.units / "sglang-canary@.timer": TIMER.encode(),
        places.config_root / name / SETTINGS: dump(asdict(settings)).encode(),
    }
    changed = [path for path, content in wanted.items() if not _same(path, content)]
    for path in changed if apply else []:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace(path, wanted[path], 0o644)
    off = not switched_on(name, places.units)
    if apply and (off or any(path.parent == places.units for path in changed)):
        _systemctl("daemon-reload")
        _systemctl("enable", timer(name))
        _systemctl("restart", timer(name))
    return [*map(str, changed), *([timer(name)] if off else [])]


def remove(name: str, places: Places, textfile_dir: str, apply: bool = True) -> list[str]:
    """Switch the timer of an instance off and take away what is its own. The archive and the units stay for others."""
    on = switched_on(name, places.units)
    own = (places.config_root / name / SETTINGS, places.state_root / name / FILE, Path(textfile_dir) / file_name(name))
    found = [path for path in own if path.exists()]
    if apply and on:
        _systemctl("disable", "--now", timer(name))
        _systemctl("stop", f"sglang-canary@{name}.service")
    for path in found if apply else []:
        path.unlink(missing_ok=True)
    return [*([timer(name)] if on else []), *map(str, found)]


def python_problem(python: str, version: tuple[int, int]) -> str:
    """Why the canary cannot run with a Python of the host, or an empty text."""
    if version < (3, 10):
        return f"{python} is Python {version[0]}.{version[1]}, and the canary needs 3.10: set ansible_python_interpreter"
    if any(Path(python).is_relative_to(folder) for folder in UNSEEN):
        return f"{python}: the canary's unit does not see what lies there: set ansible_python_interpreter to another"
    return ""


def _same(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content and path.stat().st_mode & 0o7777 == 0o644
    except OSError:
        return False


def _systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True, capture_output=True)
