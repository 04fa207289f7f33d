"""Build or prune releases of SGLang on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_release
short_description: Build an immutable release of an SGLang stack, or prune old ones
description:
  - With O(state=present), makes sure that the release of a stack stands whole under O(root), built with uv. An
    existing one is only checked against its receipt.
  - With O(state=pruned), removes all but the newest O(keep) releases and what interrupted builds left. A release that
    a process runs from, or that O(protected) names, stays.
  - Nothing half-built is ever visible under a release's name.
options:
  root:
    description: Folder of the releases.
    type: path
    default: /opt/sglang
  state:
    description: Whether to build or to prune.
    type: str
    choices: [present, pruned]
    default: present
  stack:
    description: The stack as the catalog gives it. Required with O(state=present).
    type: dict
  constraints:
    description: Text of the stack's constraints file.
    type: str
    default: ""
  source:
    description: Where SGLang comes from, if not from where the stack says.
    type: str
    choices: [index, git]
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
    description: Version of the uv that is installed under O(root) for building.
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
progress:
  description: The steps that were done, in words.
  returned: with state present
  type: list
  elements: str
removed:
  description: Names of the releases and leftovers that were removed, or would be.
  returned: with state pruned
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import release, release_git, release_store, release_uv


def present(module: AnsibleModule) -> None:
    """Build, or in check mode say what would be built."""
    given = module.params
    index = release_uv.Index.from_mapping(given["index"])
    module.no_log_values |= index.secrets() | release_uv.secrets(given["git_url"] or "")
    request = release.Request.from_stack(
        given["stack"],
        index,
        given["constraints"],
        given["source"],
        ref=given["ref"],
        url=given["git_url"],
        patches=[release_git.Patch(**patch) for patch in given["patches"]],
        git_cache=given["git_cache"],
    )
    root = Path(given["root"])
    if module.check_mode:
        release_id, missing = release.plan(request, root, python=given["python"])
        path = root / "releases" / release_id
        receipt = {} if missing else release_store.read_receipt(path)
        module.exit_json(changed=missing, release_id=release_id, path=str(path), receipt=receipt, progress=[])
    progress: list[str] = []
    built = release.build(
        request,
        root,
        uv=given["uv"],
        uv_version=given["uv_version"],
        python=given["python"],
        progress=progress.append,
    )
    module.exit_json(
        changed=built.changed,
        release_id=built.release_id,
        path=str(built.path),
        receipt=dict(built.receipt),
        progress=progress,
    )


def pruned(module: AnsibleModule) -> None:
    """Prune, or in check mode say what would go."""
    root, keep, protected = Path(module.params["root"]), module.params["keep"], module.params["protected"]
    prune = release_store.prunable if module.check_mode else release_store.prune
    removed = prune(root, keep, protected)
    module.exit_json(changed=bool(removed), removed=removed)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/opt/sglang"},
            "state": {"type": "str", "choices": ["present", "pruned"], "default": "present"},
            "stack": {"type": "dict"},
            "constraints": {"type": "str", "default": ""},
            "source": {"type": "str", "choices": ["index", "git"]},
            "ref": {"type": "str"},
            "git_url": {"type": "str"},  # no_log would blank the receipt's URL; present() hides the password alone
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
        required_if=[("state", "present", ["stack"]), ("state", "present", ["uv", "uv_version"], True)],
        supports_check_mode=True,
    )
    try:
        present(module) if module.params["state"] == "present" else pruned(module)
    except (release.ReleaseError, release_uv.UvError, release_store.StoreError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
