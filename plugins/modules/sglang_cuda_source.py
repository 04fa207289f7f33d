#!/usr/bin/python
"""Prepare a host's apt for NVIDIA's repository: key, conflicting sources, and whether the toolkit could be installed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_cuda_source
short_description: Key and sources of NVIDIA's apt repository
description:
  - With O(state=prepared), finds the repository for the host's distribution, reads what the host's sources say about it,
    takes conflicting ones out or refuses them, and puts the key into place, once its fingerprint is the expected one.
  - A source that is there already and names a file with just that key serves as it is; nothing is changed then.
  - With O(state=simulated), asks apt what an installation of O(package) would bring, and fails where it is not to be had or
    would bring a driver.
options:
  state:
    description: What to do.
    type: str
    choices: [prepared, simulated]
    default: prepared
  url:
    description: The repository, a mirror for example. Empty takes NVIDIA's for the host's distribution.
    type: str
    default: ""
  fingerprint:
    description: Fingerprint of its key. Empty takes that of NVIDIA's key for the host's distribution.
    type: str
    default: ""
  key:
    description: Base64 of the key file. Empty fetches it from the repository.
    type: str
    default: ""
    no_log: false
  conflicts:
    description: What to do with sources for the same repository with another key. Copies of files that change are kept.
    type: str
    choices: [remove, refuse]
    default: remove
  backup:
    description: Folder for these copies.
    type: path
    default: /var/backups/sglang
  package:
    description: Package to ask for, with O(state=simulated).
    type: str
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Says what would change, after the same checks.
    support: full
"""

EXAMPLES = r"""
- name: The key is in place, and no source contradicts
  sglang_cuda_source:
  register: source

- name: Its toolkit can be installed, and brings no driver
  sglang_cuda_source:
    state: simulated
    url: "{{ source.url }}"
    package: cuda-toolkit-12-8
"""

RETURN = r"""
url:
  description: The repository.
  returned: with state prepared
  type: str
key_path:
  description: File with its key on the host.
  returned: with state prepared
  type: str
add:
  description: Whether a source has to be added. False where one serves already.
  returned: with state prepared
  type: bool
removed:
  description: Sources that were taken out, or would be, with their places.
  returned: with state prepared
  type: list
  elements: str
"""

import base64
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import cuda_apt, cuda_key
from ansible.module_utils.sglang_deploy.cuda import CudaError
from ansible.module_utils.urls import open_url


def prepared(module: AnsibleModule) -> dict[str, Any]:
    given = module.params
    system = cuda_apt.parse_os_release(Path("/etc/os-release").read_text(encoding="utf-8"))
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    place = cuda_apt.repository(system, architecture, given["url"], given["fingerprint"])
    sources = cuda_apt.read_all()
    plan = cuda_apt.decide(sources, place.url, cuda_apt.pinned_keys(sources, place.fingerprint))
    answer: dict[str, Any] = {"url": place.url, "add": plan.add, "removed": [str(source) for source in plan.conflicts]}
    if not plan.add:
        return {**answer, "changed": False, "key_path": ""}
    if plan.conflicts and given["conflicts"] == "refuse":
        raise CudaError(cuda_apt.conflict_text(plan.conflicts, place.url))
    key = base64.b64decode(given["key"]) if given["key"] else fetched(place.key_url)
    cuda_key.check(key, place.fingerprint, "The key file" if given["key"] else place.key_url)
    path = Path(cuda_apt.OWN_KEY + (".asc" if cuda_key.armored(key) else ".gpg"))
    fresh = not path.is_file() or path.read_bytes() != key
    if not module.check_mode:
        take_out(plan.conflicts, Path(given["backup"]))
        if fresh:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_bytes(key)
            path.chmod(0o644)
    return {**answer, "changed": fresh or bool(plan.conflicts), "key_path": str(path)}


def fetched(url: str) -> bytes:
    try:
        with open_url(url, timeout=60) as answer:
            content: bytes = answer.read(1 << 20)
            return content
    except Exception as error:  # open_url raises its own and urllib's, ssl's and the socket's kinds
        raise CudaError(
            f"The repository's key cannot be fetched from {url}: {error}. Where the host reaches no network, name a mirror "
            "(cuda_toolkit_repository) and a key file on the controller (cuda_toolkit_key_file)."
        ) from error


def take_out(conflicts: tuple[cuda_apt.Source, ...], backup: Path) -> None:
    for name in {source.file for source in conflicts}:
        file = Path(name)
        backup.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copy2(file, backup / f"{file.name}.{time.strftime('%Y%m%dT%H%M%S')}")
        text = cuda_apt.without(
            file.read_text(encoding="utf-8", errors="surrogateescape"), [one for one in conflicts if one.file == name]
        )
        if text or file.name == "sources.list":
            file.write_text(text, encoding="utf-8", errors="surrogateescape")
        else:
            file.unlink()


def simulated(module: AnsibleModule) -> None:
    package = module.params["package"]
    words = ["apt-get", "--simulate", "--quiet", "--no-install-recommends", "install", package]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**ENVIRONMENT})
    names = subprocess.run(["apt-cache", "pkgnames", "cuda-toolkit-"], capture_output=True, text=True, check=False)
    known = [name for name in names.stdout.split() if name.count("-") == 3 and name[-1].isdigit()]
    problem = cuda_apt.simulated_problem(package, done.stdout + done.stderr, done.returncode, known, module.params["url"])
    if problem:
        raise CudaError(problem)


ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["prepared", "simulated"], "default": "prepared"},
            "url": {"type": "str", "default": ""},
            "fingerprint": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": False},
            "conflicts": {"type": "str", "choices": ["remove", "refuse"], "default": "remove"},
            "backup": {"type": "path", "default": "/var/backups/sglang"},
            "package": {"type": "str"},
        },
        required_if=[("state", "simulated", ["package"])],
        supports_check_mode=True,
    )
    try:
        if module.params["state"] == "prepared":
            module.exit_json(**prepared(module))
        simulated(module)
        module.exit_json(changed=False)
    except (CudaError, cuda_key.KeyProblem, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
