"""Takes secrets and private details out of log text before it is shown, stored or passed on.

`secrets` removes what must never leave a host: keys, tokens, passwords. A Redactor also removes who and where: user
names, addresses, host names, prompts and answers; the same name becomes the same stand-in, so that a log stays
readable. Standard library only, since it runs on the managed host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REMOVED = "[removed]"

_NAME = r"(?:(?:api|access|secret|private)[-_]?key|token|password|passwd|secret|credential)"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Python and JSON: api_key='...', "token": "..."; the closing quote is that of the opening one
    (re.compile(rf"(?i)(\b[\w-]*{_NAME}s?[\"']?\s*[=:]\s*)([\"'])(?:\\.|(?!\2).)*\2"), rf"\1\2{REMOVED}\2"),
    # arguments: --api-key X, --api-key=X
    (re.compile(rf"(?i)(--[\w-]*{_NAME}(?:=|\s+))(?![\"'])[^\s,]+"), rf"\1{REMOVED}"),
    (re.compile(rf"(?i)(--[\w-]*{_NAME}(?:=|\s+))([\"'])(?:\\.|(?!\2).)*\2"), rf"\1\2{REMOVED}\2"),
    # argument lists: '--api-key', 'X'
    (re.compile(rf"(?i)([\"']--[\w-]*{_NAME}[\"'],\s*)([\"'])(?:\\.|(?!\2).)*\2"), rf"\1\2{REMOVED}\2"),
    # environment and YAML: HF_TOKEN=X, api-key: X
    (
        re.compile(rf"(?i)(\b(?:[\w-]+[-_])?{_NAME}\s*[=:]\s*)(?![\"'\[]|None\b|null\b|true\b|false\b)[^\s,;)\"']+"),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"(?i)(\bauthorization\s*[\"']?\s*[:=]\s*[\"']?)(?:bearer|basic)\s+[^\s\"',]+"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{REMOVED}"),
    (re.compile(r"(://)[^\s/:@]+:[^\s/@]+@"), rf"\1{REMOVED}@"),
    (
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|nvapi-[\w-]{16,}|AKIA[A-Z0-9]{16}|xox[abp]-[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
        ),
        REMOVED,
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REMOVED),
)
# The count of tokens is everywhere in these logs and is no secret: `#token: 64`, `max_tokens=16`, `num_tokens: 3`.
_COUNTS = re.compile(r"(?i)(?:[#_-]tokens?|\btokens?)\s*[\"']?\s*[=:]\s*[\"']?-?[\d.]+%?(?![\w.-])")

_PROMPT = re.compile(
    r"(?i)([\"']?\b(?:prompt|text|content|reasoning_content|input|inputs|messages|question|arguments|output_text|origin_input_text|decoded_text)[\"']?\s*[=:]\s*)"
    r"(?:([\"'])(?:\\.|(?!\2).)*(?:\2|$)|\[[^\n]*(?:\]|$))"
)
_REQUEST = re.compile(r"(?i)(\b(?:Receive|Finish):? (?:obj|out)=|\bchat_template_kwargs=).*")
_IPV4 = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d.]*\d)")
# All eight groups, or two colons for those that are left out: 10:18:23 is a time.
_IPV6 = re.compile(
    r"(?<![\w:.])(?:(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|(?=[0-9a-fA-F:]*[0-9])(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?"
    r"::(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?)(?:%\w+)?(?![\w:])"
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_HOME = re.compile(r"(/(?:home|Users|root/home|mnt/home|export/home)/)([\w.-]+)")
_EMAIL = re.compile(r"[\w.+-]+@(?![\w-]+\.(?:service|socket|target|timer|slice)\b)[\w-]+\.[\w.-]+\w")  # no unit name
_JOURNAL_HOST = re.compile(
    r"^((?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) )(\S+)( [\w.@/()-]+(?:\[\d+\])?: )"
)
_HARMLESS = frozenset({"127.0.0.1", "0.0.0.0", "localhost", "::1", "255.255.255.255"})  # noqa: S104


def secrets(text: str) -> str:
    """The text without keys, tokens and passwords, in every form that SGLang, a shell, YAML, JSON or HTTP give them."""
    kept: list[str] = []

    def put_by(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = _COUNTS.sub(put_by, text.replace("\0", ""))
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], text)


class Redactor:
    """Removes secrets and private details from the parts of one bundle, with the same stand-ins throughout.

    users, hosts, words: names known to the caller that must not appear (accounts, host names, values of keys). Names
    that are found in journald prefixes and home directories are added by themselves. Names shorter than three
    characters are left alone.
    """

    def __init__(self, users: Iterable[str] = (), hosts: Iterable[str] = (), words: Iterable[str] = ()) -> None:
        self._stand_ins: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._words = sorted({word for word in words if len(word) >= 4}, key=len, reverse=True)
        self._names: dict[str, str] = {}
        for kind, names in (("user", users), ("host", hosts)):
            for name in names:
                self._know(kind, name)

    def _know(self, kind: str, name: str) -> str:
        if len(name) < 3 or name in _HARMLESS or name in ("root", "sglang", kind):
            return name
        self._names.setdefault(name, kind)
        return self._instead(kind, name)

    def _instead(self, kind: str, name: str) -> str:
        key = f"{kind}:{name}"
        if key not in self._stand_ins:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._stand_ins[key] = f"<{kind}-{self._counts[kind]}>"
        return self._stand_ins[key]

    def text(self, text: str) -> str:
        """The text without secrets and private details."""
        for word in self._words:
            text = text.replace(word, REMOVED)
        for line in text.split("\n"):
            if found := _JOURNAL_HOST.match(line):
                self._know("host", found[2])
        for found in _HOME.finditer(text):
            self._know("user", found[2])
        text = secrets(text)
        text = _REQUEST.sub(rf"\1{REMOVED}", text)
        text = _PROMPT.sub(rf"\1{REMOVED}", text)
        text = _EMAIL.sub(lambda found: self._instead("email", found[0]), text)
        text = _MAC.sub(lambda found: self._instead("mac", found[0].lower()), text)
        for pattern in (_IPV4, _IPV6):
            text = pattern.sub(lambda found: found[0] if found[0] in _HARMLESS else self._instead("address", found[0]), text)
        for name, kind in sorted(self._names.items(), key=lambda pair: -len(pair[0])):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._instead(kind, name), text)
        return text
