#!/usr/bin/python
"""Follows the download of a model for some seconds; the action plugin of the same name calls it again and again."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_weights
short_description: Have a model of the Hugging Face hub on the host, whole and checked by hash
description:
  - Downloads a pinned revision with the library huggingface_hub of a release, reads every file again and compares it with
    the hub's hash, and keeps a receipt beside the model, so that this is done once.
  - The download is a process of its own on the host. A lost connection or an interrupted play does not end it; the next
    run joins it, or goes on with what is there. One copy serves all instances.
  - The wait runs on the controller as many calls of a few seconds. O(state) and O(until) are for those calls; a play
    leaves them out.
options:
  repo:
    description: The model's name, C(OWNER/NAME).
    type: str
    required: true
  revision:
    description: The commit.
    type: str
    required: true
  root:
    description: Folder for models, in the layout of huggingface_hub's cache.
    type: path
    default: /srv/models
  python:
    description: Python of a release, which has huggingface_hub.
    type: path
    required: true
  endpoint:
    description: Address of the hub. Empty means https://huggingface.co.
    type: str
    default: ""
  token:
    description: Token for models that are not open to everybody.
    type: str
    default: ""
  index:
    description: Where C(proxies) and C(ca_bundle) are taken from, as in M(sglang_release).
    type: dict
    default: {}
  environment:
    description: Further variables of the download, such as C(HF_XET_HIGH_PERFORMANCE).
    type: dict
    default: {}
  state:
    description: What the last call returned.
    type: dict
    default: {}
  until:
    description: Seconds that a call may take.
    type: float
    default: 10
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Downloads nothing in check mode.
    support: full
"""

EXAMPLES = r"""
- name: The model is there
  sglang_weights:
    repo: lukealonso/GLM-5-NVFP4
    revision: "{{ commit }}"
    python: /opt/sglang/releases/glm5-cuda128-0123456789ab/venv/bin/python
"""

RETURN = r"""
state:
  description: How far it is, for the next call.
  returned: success
  type: dict
outcome:
  description: V(whole) where nothing had to be done, V(done), or V(failed); empty while it goes on.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import hub, hub_fetch, hub_store, model_dir


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/srv/models"},
            "python": {"type": "path", "required": True},
            "endpoint": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "index": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "state": {"type": "dict", "default": {}},
            "until": {"type": "float", "default": 10.0},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="nothing is downloaded in check mode")
    try:
        transport = hub.transport(given["index"])
        os.environ.update(transport)
        place = hub_store.Place(given["root"], given["repo"], given["revision"])
        more = {**transport, **{name: str(value) for name, value in given["environment"].items()}}
        wanted = hub_fetch.Wanted(place, given["endpoint"], given["token"], given["python"], more)
        state = hub_fetch.step(wanted, given["state"], given["until"])
    except (hub.HubError, model_dir.ModelDirError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=state["outcome"] == "done", state=state, outcome=state["outcome"])


if __name__ == "__main__":
    main()
