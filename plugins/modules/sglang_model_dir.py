"""Look at the model that an instance will serve, on its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model_dir
short_description: Check that a model is whole, and read what it holds
description:
  - Looks at config.json, the tokenizer, and at names, sizes and headers of the weight files. The weights themselves are
    not read.
  - Of a model of the Hugging Face hub that is not on the host yet, it reads the list of files, config.json and the index
    there, and checks that the rest fits on the disk. One that is there and was checked by hash needs no network.
  - Changes nothing but a cache of answers. Fails with a list of all that is wrong.
options:
  source:
    description:
      - Where the model comes from. V(local) has to be in O(path). V(tiny) may be in O(path), made by a script. V(hub) is
        the model O(path) of the Hugging Face hub.
    type: str
    choices: [local, tiny, hub]
    default: local
  path:
    description: The model's directory, or with O(source=hub) its name as C(OWNER/NAME).
    type: str
    required: true
  revision:
    description: With O(source=hub), the commit. Anything else is refused with the commit that it stands for.
    type: str
    default: ""
  root:
    description: With O(source=hub), the folder that models are downloaded to.
    type: path
    default: /srv/models
  endpoint:
    description: With O(source=hub), address of the hub. Empty means https://huggingface.co.
    type: str
    default: ""
  token:
    description: With O(source=hub), token for models that are not open to everybody.
    type: str
    default: ""
  index:
    description: Where C(proxies) and C(ca_bundle) are taken from, as in M(sglang_release).
    type: dict
    default: {}
  made_by:
    description: With O(source=tiny), what the model has to be made from, C(architecture) and the C(script)'s SHA-256.
    type: dict
    default: {}
  user:
    description: The user that has to be able to read it.
    type: str
    default: sglang
  hardening:
    description: What C(sglang_hardening) changes of the unit's directives, which decide what the service sees.
    type: dict
    default: {}
  cache:
    description: Folder that keeps what was read, as long as no file's size or time changes.
    type: path
    default: /var/cache/sglang/plan
author:
  - The sglang-deploy contributors
attributes:
  check_mode:
    description: Runs the same in check mode, and keeps no answer.
    support: full
"""

EXAMPLES = r"""
- name: The model is whole
  sglang_model_dir:
    path: /srv/models/glm-5-nvfp4
  register: model

- name: What a model of the hub would be is known before it is downloaded
  sglang_model_dir:
    source: hub
    path: zai-org/GLM-5-FP8
    revision: "{{ commit }}"
  register: model
"""

RETURN = r"""
model:
  description:
    - Architecture, quantisation, layers, heads, experts, sizes and types of the weights, and a fingerprint that changes
      with the model. Empty for a tiny model that is not there.
  returned: success
  type: dict
whole:
  description: Whether the model lies there complete and checked.
  returned: success
  type: bool
fetch_bytes:
  description: Bytes that are to be downloaded.
  returned: success
  type: int
writable:
  description: What the user could change of a model that lies there, the first of it.
  returned: success
  type: list
  elements: str
problems:
  description: All that is wrong, each with its cure.
  returned: failure
  type: list
  elements: str
"""

import json
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import hardening, hub, hub_store, model_access, model_dir


def made_from(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether a tiny model was made by this script, as it is wanted."""
    try:
        made = json.loads((path / ".made-by.json").read_text(encoding="utf-8"))
        return bool(made["script"] == wanted["script"] and made["arguments"]["architecture"] == wanted["architecture"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def look(given: dict[str, Any], keep: bool) -> tuple[hub_store.Found, list[str]]:
    """What there is of the model, and what of it the service could change; what was read is kept where `keep`."""
    path = Path(given["path"])
    if given["source"] == "hub":
        os.environ.update(hub.transport(given["index"]))
        hub.check_repo(given["path"])
        place = hub_store.Place(given["root"], given["path"], given["revision"])
        found = hub_store.look(hub.Hub(given["endpoint"], given["token"]), place)
        path = place.snapshot
    elif given["source"] == "tiny" and not made_from(path, given["made_by"]):
        return hub_store.Found(False, {}), []
    else:
        found = hub_store.Found(True, hub_store.inspect_once(path, Path(given["cache"]), keep=keep))
    if not found.whole:
        return found, []
    if problems := model_access.problems(path, given["user"], hardening.unseen(given["hardening"])):
        raise model_dir.ModelDirError(path, problems)
    return found, [str(one) for one in model_access.writable(path, given["user"])]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["local", "tiny", "hub"], "default": "local"},
            "path": {"type": "str", "required": True},
            "revision": {"type": "str", "default": ""},
            "root": {"type": "path", "default": "/srv/models"},
            "endpoint": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "index": {"type": "dict", "default": {}},
            "made_by": {"type": "dict", "default": {}},
            "user": {"type": "str", "default": "sglang"},
            "hardening": {"type": "dict", "default": {}},
            "cache": {"type": "path", "default": "/var/cache/sglang/plan"},
        },
        supports_check_mode=True,
    )
    try:
        found, writable = look(module.params, not module.check_mode)
    except model_dir.ModelDirError as error:
        module.fail_json(msg=str(error), problems=list(error.problems))
    except (hub.HubError, OSError, ValueError) as error:
        module.fail_json(msg=str(error), problems=[str(error)])
    module.exit_json(
        changed=False, model=dict(found.model), whole=found.whole, fetch_bytes=found.fetch_bytes, writable=writable
    )


if __name__ == "__main__":
    main()
