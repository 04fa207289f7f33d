"""Build or prune releases of SGLang on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Build an immutable release of an SGLang stack, from an index, git or a wheelhouse, or prune old ones
description:
  - With O(state=present), makes sure that the release of a stack stands whole under O(root), built with uv. An
    existing one is only checked against its receipt.
  - With O(state=pruned), removes all but the newest O(keep) releases, what interrupted builds left, and commits of git
    sources that no release is built from. A release that a process runs from, or that O(protected) names, stays.
  - With O(state=wheelhouse), makes the folder or archive O(wheelhouse), from which the stack's release can be built
    without a network.
  - Nothing half-built is ever visible under a release's name.
  - The action plugin of the same name shows what a build is doing, goes on with one that another controller has left,
    and brings a wheelhouse of the controller to the host. It calls the states O(state=looked), O(state=received) and
    O(state=progress), which are of no other use.
options:
  root:
    description: Folder of the releases.
    type: path
    default: /opt/sglang
  state:
    description: What to do.
    type: str
    choices: [present, pruned, wheelhouse, looked, received, progress]
    default: present
  stack:
    description: The stack as the catalog gives it. Required but for O(state=pruned) and O(state=progress).
    type: dict
  constraints:
    description: Text of the stack's constraints file.
    type: str
    default: ""
  source:
    description: Where SGLang comes from, if not from where the stack says.
    type: str
    choices: ["", index, git, wheelhouse]
    default: ""
  wheelhouse:
    description:
      - A folder, or an archive whose name ends in C(.tar). With O(source=wheelhouse) what to build from, and with
        O(state=wheelhouse) what to make.
    type: path
  wheelhouse_python:
    description: The Python that a wheelhouse is made for, such as C(3.12).
    type: str
  wheelhouse_platform:
    description: The platform that a wheelhouse is made for, such as C(x86_64-manylinux_2_36).
    type: str
  wheelhouse_manifest:
    description: Set by the action plugin. The manifest of a wheelhouse whose files arrive under O(wheelhouse_cache).
    type: dict
  wheelhouse_cache:
    description: Folder on the host for the files of a wheelhouse that is an archive or arrives from the controller.
    type: path
    default: /var/cache/sglang/wheelhouse
  received:
    description: Set by the action plugin. Folder where files of the wheelhouse have arrived.
    type: path
  progress_file:
    description: Set by the action plugin. File that says what is being done.
    type: path
  offset:
    description: Set by the action plugin. What was read of O(progress_file) before.
    type: int
    default: 0
  ref:
    description:
      - What to build of a git source instead of the stack's own ref. A branch, a tag, a pull request's head as
        C(pull/NUMBER/head), or all 40 digits of a commit. A branch that has moved makes another release.
    type: str
  git_url:
    description: Git repository to build from instead of the stack's own. User and password in it are used, never kept.
    type: str
  patches:
    description: Local patches for a git source, applied in this order.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What messages and the receipt call it.
        type: str
        required: true
      text:
        description: Its text, as C(git diff) writes it.
        type: str
        required: true
  git_cache:
    description: Folder that keeps the commits of git sources.
    type: path
    default: /var/cache/sglang/git
  index:
    description:
      - Where packages come from, by the keys C(index_url), C(extra_index_urls), C(find_links), C(ca_bundle),
        C(proxies) (C(http), C(https), C(no)), C(cache_dir) and C(offline). Empty means PyPI.
    type: dict
    default: {}
  uv:
    description: The uv to use, a path or a name on PATH, instead of one of O(uv_version) under O(root).
    type: str
  uv_version:
    description: Version of the uv that is installed under O(root) for building. A wheelhouse brings its own.
    type: str
  python:
    description: Path or name of the Python to build with. The default is the host's first that is in the stack's range.
    type: str
  keep:
    description: How many releases stay when pruning.
    type: int
    default: 3
  protected:
    description: Ids of releases that must stay, such as the running one and the last good one.
    type: list
    elements: str
    default: []
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Says what would be built or removed, after the same checks.
    support: full
"""

EXAMPLES = r"""
- name: The release of the stack is built
  sglang_release:
    stack: "{{ stack }}"
    constraints: "{{ lookup('ansible.builtin.file', 'constraints/cpu.txt') }}"
    index:
      find_links: [/opt/wheels]
    uv_version: 0.13.9

- name: A release of upstream's main with a patch of our own stands
  sglang_release:
    stack: "{{ stack }}"
    source: git
    ref: main
    patches:
      - name: faster.patch
        text: "{{ lookup('ansible.builtin.file', 'faster.patch', rstrip=false) }}"
    uv_version: 0.13.9

- name: A wheelhouse of it is made for hosts with Python 3.12
  sglang_release:
    state: wheelhouse
    stack: "{{ stack }}"
    wheelhouse: /srv/wheelhouses/glm5.tar
    wheelhouse_python: "3.12"
    wheelhouse_platform: x86_64-manylinux_2_36
    uv_version: 0.13.9

- name: The release is built from it, without a network
  sglang_release:
    stack: "{{ stack }}"
    source: wheelhouse
    wheelhouse: /srv/wheelhouses/glm5.tar

- name: Old releases are gone
  sglang_release:
    state: pruned
    keep: 3
    protected: ["{{ release_id }}"]
"""

RETURN = r"""
release_id:
  description: The release's name, the stack's and twelve hex digits over all that decides the build.
  returned: with state present
  type: str
path:
  description: The release's folder.
  returned: with state present
  type: str
receipt:
  description: What the release was built from, what is in it and how long it took. Empty in check mode before the
    build.
  returned: with state present
  type: dict
id:
  description: The same as RV(release_id), as the other roles name it.
  returned: with state present
  type: str
options:
  description: The option list of the release's own parser. Empty in check mode before the build.
  returned: with state present
  type: dict
problem:
  description: Why the release cannot be built, where the action's option C(build) is false.
  returned: instead of everything else
  type: str
files:
  description: How many files the wheelhouse has.
  returned: with state wheelhouse
  type: int
bytes:
  description: Their size.
  returned: with state wheelhouse
  type: int
removed:
  description: Names of the releases and leftovers that were removed, or would be.
  returned: with state pruned
  type: list
  elements: str
"""

import json
from collections.abc import Callable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import (
    release,
    release_git,
    release_progress,
    release_store,
    release_uv,
    release_wheelhouse,
    release_wheelhouse_make,
)


def request_of(module: AnsibleModule) -> tuple[release.Request, release_wheelhouse.Wheelhouse | None]:
    """What is asked for, and the wheelhouse that it is to come from."""
    given = module.params
    index = release_uv.Index.from_mapping(given["index"])
    module.no_log_values |= index.secrets() | release_uv.secrets(given["git_url"] or "")
    own = (given["stack"].get("source") or {}).get("kind")
    kind, wheelhouse = given["source"] or own, None
    if kind == "wheelhouse" and given["state"] != "wheelhouse":
        if not given["wheelhouse"]:
            raise release.ReleaseError(
                "The release is to come from a wheelhouse: set sglang_wheelhouse to its folder or archive."
            )
        path, cache = Path(given["wheelhouse"]), Path(given["wheelhouse_cache"])
        wheelhouse = release_wheelhouse.located(path, cache, given["wheelhouse_manifest"])
        kind = wheelhouse.manifest["source"]["kind"]
    request = release.Request.from_stack(
        given["stack"],
        index,
        given["constraints"],
        None if kind == "wheelhouse" else kind,
        ref=given["ref"],
        url=given["git_url"],
        patches=[release_git.Patch(**patch) for patch in given["patches"]],
        git_cache=given["git_cache"],
    )
    return (request.from_wheelhouse(wheelhouse) if wheelhouse else request), wheelhouse


def says(module: AnsibleModule) -> Callable[[str], None]:
    """Where steps are told to."""
    path = module.params["progress_file"]
    return release_progress.writer(Path(path)) if path else lambda _: None


def found(release_id: str, path: Path, *, changed: bool) -> dict[str, object]:
    """What the task returns of a release; without receipt and options where it is not built."""
    whole = (path / "receipt.json").is_file()
    options = json.loads((path / "options.json").read_text(encoding="utf-8")) if whole else {}
    receipt = release_store.read_receipt(path) if whole else {}
    return {
        "changed": changed,
        "release_id": release_id,
        "id": release_id,
        "path": str(path),
        "receipt": receipt,
        "options": options,
    }


def looked(module: AnsibleModule) -> None:
    """Say what is there, and what is missing for a build; changes nothing."""
    request, wheelhouse = request_of(module)
    root = Path(module.params["root"])
    release_id, missing = release.plan(request, root, python=module.params["python"])
    lacks = wheelhouse.lacks(content=False) if missing and wheelhouse and module.params["wheelhouse_manifest"] else []
    path = root / "releases" / release_id
    if missing:
        result = {
            "changed": True,
            "release_id": release_id,
            "id": release_id,
            "path": str(path),
            "receipt": {},
            "options": {},
        }
    else:
        result = found(release_id, path, changed=False)
    module.exit_json(**result, wheelhouse_lacks=lacks)


def present(module: AnsibleModule) -> None:
    """Build, or in check mode say what would be built."""
    if module.check_mode:
        looked(module)
    given = module.params
    request, wheelhouse = request_of(module)
    progress = says(module)
    arrived = wheelhouse is not None and wheelhouse.folder != Path(given["wheelhouse"])
    if wheelhouse is not None and arrived and given["wheelhouse_manifest"] is None:
        release_wheelhouse.unpack(Path(given["wheelhouse"]), wheelhouse, progress)
    built = release.build(
        request,
        Path(given["root"]),
        uv=given["uv"],
        uv_version=given["uv_version"],
        python=given["python"],
        progress=progress,
    )
    if wheelhouse is not None and arrived:
        release_wheelhouse.forget(wheelhouse)
    module.exit_json(**found(built.release_id, built.path, changed=built.changed))


def received(module: AnsibleModule) -> None:
    """Take files of the wheelhouse in that have arrived on the host."""
    given = module.params
    manifest = given["wheelhouse_manifest"]
    folder = release_wheelhouse.located(Path(), Path(given["wheelhouse_cache"]), manifest).folder
    lacks = release_wheelhouse.take_in(manifest, Path(given["received"]), folder)
    module.exit_json(changed=True, wheelhouse_lacks=lacks)


def make_wheelhouse(module: AnsibleModule) -> None:
    """Make a wheelhouse, or in check mode say whether one would be made."""
    given = module.params
    request, _ = request_of(module)
    target = release_wheelhouse_make.Target(given["wheelhouse_python"], given["wheelhouse_platform"])
    path = Path(given["wheelhouse"])
    if module.check_mode:
        there = release_wheelhouse_make.whole(request.pinned(), target, given["uv_version"], path)
        module.exit_json(changed=there is None, path=str(path))
    made = release_wheelhouse_make.make(
        request, target, path, uv_version=given["uv_version"], python=given["python"], progress=says(module)
    )
    sizes = [entry["bytes"] for entry in made.manifest["files"].values()]
    module.exit_json(changed=made.changed, path=str(path), files=len(sizes), bytes=sum(sizes))


def progress(module: AnsibleModule) -> None:
    """Say what a build on this host has said since."""
    path = Path(module.params["progress_file"])
    said = release_progress.read(path, module.params["offset"])
    module.exit_json(changed=False, lines=[list(line) for line in said.lines], offset=said.offset, alive=said.alive)


def pruned(module: AnsibleModule) -> None:
    """Prune, or in check mode say what would go."""
    root, keep, protected = Path(module.params["root"]), module.params["keep"], module.params["protected"]
    if module.check_mode:
        removed = release_store.prunable(root, keep, protected)
        module.exit_json(changed=bool(removed), removed=removed)
    removed = release_store.prune(root, keep, protected)
    commits = release_store.commits(root)
    sources = release_git.prune(Path(module.params["git_cache"]), commits)
    module.exit_json(changed=bool(removed or sources), removed=removed, sources=sources)


STATES = {
    "present": present,
    "pruned": pruned,
    "wheelhouse": make_wheelhouse,
    "looked": looked,
    "received": received,
    "progress": progress,
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/sglang"},
            "state": {"type": "str", "choices": list(STATES), "default": "present"},
            "stack": {"type": "dict"},
            "constraints": {"type": "str", "default": ""},
            "source": {"type": "str", "choices": ["", "index", "git", "wheelhouse"], "default": ""},
            "wheelhouse": {"type": "path"},
            "wheelhouse_python": {"type": "str"},
            "wheelhouse_platform": {"type": "str"},
            "wheelhouse_manifest": {"type": "dict"},
            "wheelhouse_cache": {"type": "path", "default": "/var/cache/sglang/wheelhouse"},
            "received": {"type": "path"},
            "progress_file": {"type": "path"},
            "offset": {"type": "int", "default": 0},
            "ref": {"type": "str"},
            "git_url": {"type": "str"},  # no_log would blank the receipt's URL; request_of() hides the password alone
            "patches": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"name": {"type": "str", "required": True}, "text": {"type": "str", "required": True}},
            },
            "git_cache": {"type": "path", "default": "/var/cache/sglang/git"},
            "index": {"type": "dict", "default": {}},
            "uv": {"type": "str"},
            "uv_version": {"type": "str"},
            "python": {"type": "str"},
            "keep": {"type": "int", "default": 3},
            "protected": {"type": "list", "elements": "str", "default": []},
        },
        required_if=[
            ("state", "present", ["stack"]),
            ("state", "looked", ["stack"]),
            ("state", "received", ["wheelhouse_manifest", "received"]),
            ("state", "progress", ["progress_file"]),
            (
                "state",
                "wheelhouse",
                ["stack", "wheelhouse", "wheelhouse_python", "wheelhouse_platform", "uv_version"],
            ),
        ],
        supports_check_mode=True,
    )
    try:
        STATES[module.params["state"]](module)
    except (release.ReleaseError, release_uv.UvError, release_store.StoreError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
