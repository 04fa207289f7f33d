#!/usr/bin/python
"""Keep asking an instance whether it decodes, by a timer on its host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_canary
short_description: Keep asking an instance whether it decodes, by a timer on its host
description:
  - Installs the canary as one Python archive with a service and a timer of systemd, and switches the timer on.
  - The canary looks once a minute, sends the quick decode check when it is due and nobody else is kept waiting, and tells
    the verdict in C(canary.json) beside the ledger and to the node exporter of Prometheus.
  - Runs with the Python that runs this module, which has to be 3.10 or newer.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  state:
    description: V(absent) switches the timer off and takes away what is the instance's own.
    type: str
    choices: [present, absent]
    default: present
  interval:
    description: Seconds between two verdicts of a server that decodes. A bad verdict is looked into again after a minute.
    type: float
    default: 600
  share:
    description: The part of the time that asking may take, whatever the interval.
    type: float
    default: 0.05
  busy_seconds:
    description:
      - How long a server that has requests is left alone. After that it is asked too, unless requests wait for a place.
    type: float
    default: 3600
  start_seconds:
    description: How long a server that starts may be silent.
    type: float
    default: 7200
  wrong:
    description: What to do when the server answers wrongly, besides telling. V(stop) stops its unit.
    type: str
    choices: [report, stop]
    default: report
  textfile_dir:
    description: Folder that the node exporter reads. Nothing is written while it does not exist.
    type: path
    default: /var/lib/prometheus/node-exporter
  config_root:
    description: Folder that holds a folder with the files of each instance.
    type: path
    default: /etc/sglang
  state_root:
    description: Folder that holds the ledgers.
    type: path
    default: /var/lib/sglang
attributes:
  check_mode:
    description: Compares and writes nothing.
    support: full
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The canary keeps asking
  sglang_canary:
    name: glm5
    interval: 600
"""

RETURN = r"""
differed:
  description: Files, and the timer, that were not as wanted.
  returned: always
  type: list
  elements: str
"""

import subprocess
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy.canary import decide, install

SETTINGS = ("interval", "share", "busy_seconds", "start_seconds", "wrong", "textfile_dir")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "interval": {"type": "float", "default": 600},
            "share": {"type": "float", "default": 0.05},
            "busy_seconds": {"type": "float", "default": 3600},
            "start_seconds": {"type": "float", "default": 7200},
            "wrong": {"type": "str", "choices": ["report", "stop"], "default": "report"},
            "textfile_dir": {"type": "path", "default": "/var/lib/prometheus/node-exporter"},
            "config_root": {"type": "path", "default": "/etc/sglang"},
            "state_root": {"type": "path", "default": "/var/lib/sglang"},
        },
        supports_check_mode=True,
    )
    given = module.params
    places = install.Places(Path(given["config_root"]), Path(given["state_root"]))
    apply = not module.check_mode
    try:
        if given["state"] == "absent":
            differed = install.remove(given["name"], places, given["textfile_dir"], apply)
        else:
            if problem := install.python_problem(sys.executable, sys.version_info[:2]):
                module.fail_json(msg=problem)
            settings = decide.Settings.of({name: given[name] for name in SETTINGS})
            differed = install.install(given["name"], settings, sys.executable, places, apply)
    except decide.SettingsError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"The canary of {given['name']}: {error.filename or ''} {error.strerror or error}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip()
        module.fail_json(msg=f"The canary of {given['name']}: {' '.join(error.cmd)}: {said}")
    module.exit_json(changed=bool(differed), differed=differed)


if __name__ == "__main__":
    main()
