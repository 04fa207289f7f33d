"""Which of systemd's directives CUDA survives: probes/cuda.py under the unit's own and under each further one alone."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lab import INSTANCE, PLACE, Lab, expect

USER = "gpu-tests"
AT_ONCE = 5
# What the unit had before anything was tried (roles/sglang_service): each further set is laid over it.
UNIT = """NoNewPrivileges=yes CapabilityBoundingSet= LockPersonality=yes PrivateTmp=yes ProtectClock=yes
ProtectControlGroups=yes ProtectHome=yes ProtectHostname=yes ProtectKernelLogs=yes ProtectKernelModules=yes
ProtectKernelTunables=yes ProtectSystem=strict RestrictNamespaces=yes RestrictRealtime=yes RestrictSUIDSGID=yes
SystemCallArchitectures=native LimitMEMLOCK=infinity UMask=0077""".split()  # noqa: SIM905
FAMILIES = "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6"
NVIDIA = [f"DeviceAllow={name} rw" for name in ("char-nvidia", "char-nvidiactl", "char-nvidia-uvm", "char-nvidia-caps")]
CLASSES = ["DevicePolicy=closed", *NVIDIA, "DeviceAllow=char-nvidia-frontend rw", "DeviceAllow=char-nvidia-modeset rw"]
SETS: dict[str, list[str]] = {
    "unit": [FAMILIES + " AF_NETLINK"],
    "MemoryDenyWriteExecute": ["MemoryDenyWriteExecute=yes"],
    "SystemCallFilter=@system-service": ["SystemCallFilter=@system-service"],
    "SystemCallFilter without @privileged": ["SystemCallFilter=@system-service", "SystemCallFilter=~@privileged"],
    "SystemCallFilter without @resources": ["SystemCallFilter=@system-service", "SystemCallFilter=~@resources"],
    "ProtectProc=invisible": ["ProtectProc=invisible"],
    "ProcSubset=pid": ["ProcSubset=pid"],
    "PrivateDevices": ["PrivateDevices=yes"],
    "DevicePolicy=closed": ["DevicePolicy=closed"],
    "DeviceAllow of NVIDIA's classes": CLASSES,
    "PrivateUsers": ["PrivateUsers=yes"],
    "PrivateIPC": ["PrivateIPC=yes"],
    "RemoveIPC, KeyringMode=private": ["RemoveIPC=yes", "KeyringMode=private"],
    "IPAddressDeny=any, localhost allowed": ["IPAddressDeny=any", "IPAddressAllow=localhost"],
    "RestrictAddressFamilies without AF_NETLINK": [FAMILIES],
}

NOT_IN_UNIT = ("MemoryDenyWriteExecute", "ProcSubset=pid")
"""Sets that broke no probe and that the unit does not have: the server is tried under each."""


def _installed(lab: Lab, wait_s: float = 60) -> list[str]:
    """The confinement that the installed unit has; empty where there is none after that time."""
    unit = lab.inside("/etc/systemd/system/sglang@.service")
    until = time.monotonic() + wait_s
    while not unit.exists():
        if time.monotonic() > until:
            return []
        time.sleep(1)
    confinement = unit.read_text(encoding="utf-8").partition("NoNewPrivileges=")
    lines = (confinement[1] + confinement[2].partition("[Install]")[0]).splitlines()
    return [line for line in lines if line and not line.startswith(("#", "ReadWritePaths"))]


def _python(lab: Lab, wait_s: float = 200) -> str:
    """The release's Python, once there is one."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        for found in lab.inside("/opt/sglang/releases").glob("gpu-tests-*/venv/bin/python"):
            return "/" + str(found.relative_to(lab.root))
        time.sleep(1)
    return "/usr/bin/python3.12"


def _try(lab: Lab, python: str, name: str, directives: list[str], base: list[str] | None = None) -> dict[str, Any]:
    """The probes under one set: name of the probe -> "" or what was wrong."""
    work = f"/var/cache/gpu-tests/{re.sub(r'[^A-Za-z0-9]+', '-', name)}"
    lab.run("install", "-d", "-o", USER, "-g", USER, work)
    properties = [
        *(UNIT if base is None else base),
        f"User={USER}",
        f"ReadWritePaths={work}",
        "Environment=CUDA_HOME=/usr/local/cuda",
    ]
    properties += [f"Environment=PATH={python.rpartition('/')[0]}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"]
    properties += ["Environment=NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1", *directives]
    if base is None and not any(line.startswith("RestrictAddressFamilies") for line in directives):
        properties.append(FAMILIES + " AF_NETLINK")
    words = [word for line in properties for word in ("-p", line)]
    command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *words]
    command += [python, "-B", f"/{PLACE}/project/tests/gpu/probes/cuda.py", work]
    said = lab.run(*command, timeout=240, check=False)
    answers = [json.loads(line) for line in said.splitlines() if line.startswith('{"probe"')]
    found = {answer["probe"]: answer["problem"] for answer in answers}
    return found or {"start": said.strip()[-400:] or "nothing was said"}


def probes(lab: Lab) -> dict[str, Any]:
    """Each set alone, then all that broke nothing together."""
    python = _python(lab)
    lab.run("sh", "-c", f"id {USER} 2>/dev/null || useradd --system --user-group --no-create-home {USER}")
    found: dict[str, Any] = {"python": python, "devices": lab.run("grep", "nvidia", "/proc/devices", check=False)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {name: pool.submit(_try, lab, python, name, lines) for name, lines in SETS.items()}
        tried["the unit as it is installed"] = pool.submit(_try, lab, python, "installed", [], _installed(lab))
        for name, future in tried.items():
            found[name] = future.result()
            lab.keep("hardening", {"ok": False, **found})
    whole = found["unit"]
    harmless = [name for name, answers in found.items() if name in SETS and answers == whole]
    together = [line for name in harmless for line in SETS[name] if not line.startswith("RestrictAddressFamilies")]
    found["together"] = {"sets": harmless, "answers": _try(lab, python, "together", together)}
    expect(not whole.get("tensor"), f"CUDA does not work under the unit's own directives: {whole}")
    return found


def server(lab: Lab) -> dict[str, Any]:
    """The real server under its unit and, one at a time, what broke no probe and is not in the unit."""
    unit = f"sglang@{INSTANCE}.service"
    dropin = f"/run/systemd/system/{unit}.d/90-gpu-tests.conf"
    found: dict[str, Any] = {}
    lab.run("mkdir", "-p", dropin.rpartition("/")[0])
    try:
        for name in NOT_IN_UNIT:
            text = "[Service]\n" + "\n".join(SETS[name]) + "\n"
            lab.run("sh", "-c", f"printf %s '{text}' > {dropin}")
            began = time.monotonic()
            _restart(lab, unit)
            ready = answers(lab, 110)
            found[name] = {"ready": ready, "ready_s": round(time.monotonic() - began, 1)}
            log = lab.journal(400).rpartition("Started SGLang")[2]
            (lab.out / f"journal-{re.sub('[^A-Za-z]+', '-', name)}.txt").write_text(log, encoding="utf-8")
            if ready:
                play = lab.play("verify", "playbooks/verify.yml", timeout=200, must=False)
                found[name] |= {"verify_rc": play.rc, "said": play.text[-1500:]}
            else:
                found[name]["last"] = log[-3000:]
            score = lab.run("systemd-analyze", "security", unit, "--no-pager", check=False)
            found[name]["security"] = score.strip().splitlines()[-1]
            lab.keep("hardening_server", {"ok": False, **found})
    finally:
        lab.run("rm", "-f", dropin)
        _restart(lab, unit)
    return found


def _restart(lab: Lab, unit: str) -> None:
    lab.run("systemctl", "daemon-reload")
    lab.run("systemctl", "restart", unit, timeout=90)


def answers(lab: Lab, seconds: float = 150) -> bool:
    """Whether the service answers its generating health check in that time."""
    url = f"http://127.0.0.1:{lab.port}/health_generate"
    ask = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=10).status)"
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if "200" in lab.run("/usr/bin/python3", "-c", ask, check=False).split():
            return True
        if "failed" in lab.run("systemctl", "is-active", f"sglang@{INSTANCE}", check=False):
            return False
        time.sleep(1)
    return False
