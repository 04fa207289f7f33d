#!/usr/bin/python
"""Ansible module: check that a running server decodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_decode_check
short_description: Prove that a running SGLang server decodes correctly
description:
  - Sends requests to a running server and judges the answers, log-probabilities included.
    A broken model answers 200 too.
  - Changes nothing on the host. Needs Python 3.10 or newer on the host and no package.
  - O(verdict) comes back whether the check passes or not; the module fails when O(fail=true) and a check failed.
attributes:
  check_mode:
    support: full
    description: The same requests are sent in check mode, since they change nothing.
options:
  url:
    description: Address of the server, C(http://HOST:PORT) or C(https://HOST:PORT), without C(/v1).
    type: str
    required: true
  level:
    description:
      - How much is asked. V(quick) fits every deploy, V(full) a swap or upgrade.
      - V(soak) is V(full) and then load for O(soak_seconds).
      - V(part) is for an instance that only prefills or only decodes, and asks for its process, settings and health alone.
    type: str
    choices: [quick, full, soak, part]
    default: quick
  kind:
    description: V(sglang) uses its own endpoints too, V(openai) only those under C(/v1), V(auto) asks the server.
    type: str
    choices: [auto, sglang, openai]
    default: auto
  model:
    description: The served name. Without it the first that the server lists.
    type: str
  real_model:
    description: Whether the weights are trained. Only then answers are judged by sense.
    type: bool
    default: false
  api_key:
    description: Sent as a bearer token. Never part of the verdict.
    type: str
  api_key_file:
    description: File on the host that holds the key, instead of O(api_key). The first line counts.
    type: path
  config_root:
    description:
      - Folder on the host with the instances, to read the keys of O(unit) there instead of O(api_key).
      - Adds the check C(keys) where there are some.
    type: path
  validate_certs:
    description: Whether the certificate of an https address must be valid.
    type: bool
    default: true
  ca_file:
    description: PEM file on the host with the authorities to trust instead of the system's.
    type: path
  certificate_name:
    description: Name that the certificate must be for, where that is not the one in O(url).
    type: str
  reasoning_parser:
    description: The parser that the instance configures, if any.
    type: str
  tool_call_parser:
    description: The parser that the instance configures, if any.
    type: str
  chunked_prefill_size:
    description: Tokens of a prefill chunk. Without it the server's own answer.
    type: int
  context_length:
    description: Tokens of context. Without it the server's own answer.
    type: int
  vocab_size:
    description: Size of the model's vocabulary. Makes sanitised NaN certain to be seen.
    type: int
  unit:
    description: Systemd unit of the server, to look at its state and restarts.
    type: str
  argv:
    description: Argument list that the unit's main process should have.
    type: list
    elements: str
  asked:
    description:
      - What was asked for, to be compared with what the server says it runs.
        C(settings), C(server_fields) and C(allowed) of a deployment's spec.
      - Empty leaves the check C(effective) out.
    type: dict
    default: {}
  restarts:
    description: NRestarts that the unit may have. Left out, it is what the unit has when the check begins.
    type: int
  check_seconds:
    description: Limit of one check.
    type: float
    default: 180
  total_seconds:
    description: Limit of all checks together, without O(soak_seconds).
    type: float
    default: 1800
  soak_seconds:
    description: Length of the load that V(level=soak) adds.
    type: float
    default: 600
  fail:
    description: Whether a failed check fails the task.
    type: bool
    default: true
  holder:
    description: The controller's process that calls this, for the lock of the host. The action adds it.
    type: dict
author:
  - The project's contributors
"""

EXAMPLES = r"""
- name: The server decodes
  sglang_decode_check:
    url: http://127.0.0.1:8000
    model: glm-5
    real_model: true
    reasoning_parser: glm45
    tool_call_parser: glm47
"""

RETURN = r"""
verdict:
  description: The record of the run, with an entry for every check.
  returned: always
  type: dict
  sample: {schema: 1, ok: true, level: quick, checks: [{name: models, ok: true, summary: serves glm-5}]}
lines:
  description: One line a check for a person, failures first.
  returned: always
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_deploy import decode_check, effective, instance, lock, secrets, secrets_check

SPEC = {
    "url": {"type": "str", "required": True},
    "level": {"type": "str", "choices": [*decode_check.LEVELS, decode_check.PART], "default": "quick"},
    "kind": {"type": "str", "choices": ["auto", "sglang", "openai"], "default": "auto"},
    "model": {"type": "str"},
    "real_model": {"type": "bool", "default": False},
    "api_key": {"type": "str", "no_log": True},
    "api_key_file": {"type": "path", "no_log": False},
    "validate_certs": {"type": "bool", "default": True},
    "ca_file": {"type": "path"},
    "config_root": {"type": "path"},
    "certificate_name": {"type": "str"},
    "reasoning_parser": {"type": "str"},
    "tool_call_parser": {"type": "str"},
    "chunked_prefill_size": {"type": "int"},
    "context_length": {"type": "int"},
    "vocab_size": {"type": "int"},
    "unit": {"type": "str"},
    "argv": {"type": "list", "elements": "str"},
    "asked": {"type": "dict", "default": {}},
    "restarts": {"type": "int"},
    "check_seconds": {"type": "float", "default": 180},
    "total_seconds": {"type": "float", "default": 1800},
    "soak_seconds": {"type": "float", "default": 600},
    "fail": {"type": "bool", "default": True},
    "holder": {"type": "dict"},
}
EXPECTED = (
    "model",
    "real_model",
    "reasoning_parser",
    "tool_call_parser",
    "chunked_prefill_size",
    "context_length",
    "vocab_size",
    "unit",
    "restarts",
)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, mutually_exclusive=[("api_key", "api_key_file")])
    given = module.params
    keys = _keys(given)
    try:
        server = decode_check.Server(
            given["url"],
            api_key=keys.values.get("api_key") if keys else _key(given),
            verify=given["validate_certs"],
            ca_file=given["ca_file"],
            name=given["certificate_name"],
            kind=given["kind"],
            limits=decode_check.Limits(
                check=given["check_seconds"], total=given["total_seconds"], soak=given["soak_seconds"]
            ),
        )
        argv = None if given["argv"] is None else tuple(given["argv"])
        expect = decode_check.Expectations(
            **{name: given[name] for name in EXPECTED},
            argv=argv,
            extra=(*_effective(given["asked"], given["unit"]), *_secret(keys, server, given["unit"])),
        )
        with lock.kept(given["holder"] if given["unit"] else None):
            verdict = decode_check.run(server, given["level"], expect)
    except (decode_check.DecodeCheckError, lock.LockError, OSError) as error:
        module.fail_json(msg=str(error))
    result = {"changed": False, "verdict": verdict.as_dict(), "lines": verdict.lines()}
    if given["fail"] and not verdict.ok:
        said = "; ".join(f"{check.name}: {check.summary}" for check in verdict.failed[:3])
        module.fail_json(msg=f"{server.base} does not decode correctly. {said or 'No answer was decoded.'}", **result)
    module.exit_json(**result)


def _effective(asked: dict[str, object], unit: str | None) -> tuple[decode_check.ExtraCheck, ...]:
    """The comparison of what was asked for with what the server says it runs."""
    if not asked:
        return ()
    log = effective.start_log(unit) if unit else []

    def check(info: decode_check.ServerInfo) -> decode_check.Outcome:
        ok, summary, evidence = effective.judge(asked, info, log)
        return decode_check.Outcome(ok, summary, evidence)

    return (decode_check.ExtraCheck("effective", check),)


def _keys(given: dict[str, object]) -> secrets.Secrets | None:
    """The keys of the unit's instance, from its folder."""
    if not (given["config_root"] and given["unit"]):
        return None
    name, template = instance.parts_of(str(given["unit"]))
    return secrets.read(instance.live(name, Path(str(given["config_root"])) / name, template=template))


def _secret(
    keys: secrets.Secrets | None, server: decode_check.Server, unit: str | None
) -> tuple[decode_check.ExtraCheck, ...]:
    """The look for keys where they must not be."""
    if keys is None:
        return ()
    return (decode_check.ExtraCheck("keys", lambda info: secrets_check.judge(keys, server, info, unit)),)


def _key(given: dict[str, object]) -> str | None:
    """The key, from the parameter or the first line of the file."""
    if given["api_key_file"] is None:
        return None if given["api_key"] is None else str(given["api_key"])
    lines = Path(str(given["api_key_file"])).read_text(errors="replace").splitlines()
    return lines[0].strip() if lines else ""


if __name__ == "__main__":
    main()
