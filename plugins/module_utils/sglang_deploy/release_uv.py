"""Running uv: where packages come from, and what a failure means for the person who has to cure it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

# Transport settings of the caller's environment that uv may inherit; nothing that decides *which* package is chosen.
_INHERITED = (
    "HOME",
    "LANG",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UvError(Exception):
    """uv did not do what was asked. The message names the step, uv's own last words and the cure."""


def without_credentials(url: str) -> str:
    """``url`` without user and password; a plain path is returned as it is."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else url


def secrets(url: str) -> set[str]:
    """What must not be shown of an http URL: its password, or a user that stands alone and so is a token."""
    parts = urlsplit(url)
    secret = parts.password or parts.username
    return {secret, unquote(secret)} if parts.scheme in ("http", "https") and secret else set()


@dataclass(frozen=True)
class Index:
    """Where packages come from.

    ``index_url`` replaces PyPI; ``extra_index_urls`` are asked too and trusted as much; ``find_links`` are folders or
    pages with wheels. ``ca_bundle`` is a PEM file, ``proxies`` maps ``http``, ``https`` and ``no`` to their values,
    ``cache_dir`` is uv's wheel cache, which releases on the same filesystem share by hard links. ``offline`` forbids
    the network.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    ca_bundle: str | None = None
    proxies: tuple[tuple[str, str], ...] = ()
    cache_dir: str = "/var/cache/sglang/uv"
    offline: bool = False

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Index:
        """An index from user data. ValueError names an unknown key, a wrong type or a file that does not exist."""
        unknown = set(given) - set(cls.__dataclass_fields__)
        if unknown:
            known = ", ".join(sorted(cls.__dataclass_fields__))
            raise ValueError(f"package index: unknown key {', '.join(sorted(unknown))}; known are {known}")
        data = {key: value for key, value in given.items() if value not in (None, "", [], {})}
        for key in ("extra_index_urls", "find_links"):
            if key in data:
                values = data[key]
                if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
                    raise ValueError(f"package index: {key} must be a list of strings, not {values!r}")
                data[key] = tuple(values)
        if "proxies" in data:
            proxies = data["proxies"]
            if not isinstance(proxies, Mapping) or set(proxies) - {"http", "https", "no"}:
                raise ValueError(f"package index: proxies must map http, https and no to their values, not {proxies!r}")
            data["proxies"] = tuple(sorted((str(key), str(value)) for key, value in proxies.items()))
        for key in ("index_url", "ca_bundle", "cache_dir"):
            if key in data and not isinstance(data[key], str):
                raise ValueError(f"package index: {key} must be a string, not {data[key]!r}")
        if not isinstance(data.get("offline", False), bool):
            raise ValueError(f"package index: offline must be true or false, not {data['offline']!r}")
        made = cls(**data)  # type: ignore[arg-type]  # each value was checked above
        if made.ca_bundle and not Path(made.ca_bundle).is_file():
            raise ValueError(f"package index: ca_bundle {made.ca_bundle} does not exist on this host")
        for link in made.find_links:
            if "://" not in link and not Path(link).is_dir():
                raise ValueError(f"package index: find_links folder {link} does not exist on this host")
        return made

    def secrets(self) -> set[str]:
        """The passwords and tokens in it."""
        urls = (self.index_url or "", *self.extra_index_urls, *self.find_links, *(value for _, value in self.proxies))
        return set().union(*map(secrets, urls))

    def identity(self) -> dict[str, object]:
        """What decides which packages are found, free of credentials. Proxies, CA and cache do not belong to it."""
        return {
            "index_url": without_credentials(self.index_url) if self.index_url else None,
            "extra_index_urls": [without_credentials(url) for url in self.extra_index_urls],
            "find_links": [without_credentials(link) for link in self.find_links],
        }

    def environment(self, *, same_filesystem: bool) -> dict[str, str]:
        """The variables for uv. Host configuration files are left out: the request alone decides what is built."""
        env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        env |= {name.lower(): os.environ[name.lower()] for name in _INHERITED if name.lower() in os.environ}
        env |= {
            "PATH": os.environ.get("PATH") or _PATH,
            "UV_CACHE_DIR": self.cache_dir,
            "UV_HTTP_TIMEOUT": "120",
            "UV_LINK_MODE": "hardlink" if same_filesystem else "copy",
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "NO_COLOR": "1",
        }
        env.setdefault("HOME", "/root")
        if self.index_url:
            env["UV_DEFAULT_INDEX"] = self.index_url
        if self.extra_index_urls:
            env["UV_INDEX"] = " ".join(self.extra_index_urls)
            # uv's default takes a package only from the first index that has any version of it; an index for torch also
            # carries old copies of common packages and would hide the pinned ones.
            env["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if self.find_links:
            env["UV_FIND_LINKS"] = ",".join(self.find_links)  # the one list of uv that has commas
        if self.ca_bundle:
            env["SSL_CERT_FILE"] = self.ca_bundle
        if self.offline:
            env["UV_OFFLINE"] = "1"
        for scheme, value in self.proxies:
            name = "NO_PROXY" if scheme == "no" else f"{scheme.upper()}_PROXY"
            env.pop(name.lower(), None)
            env[name] = value
        return env

    def pip_environment(self) -> dict[str, str]:
        """The same for pip, which brings uv itself."""
        env = {
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_INDEX_URL": self.index_url or "",
            "PIP_EXTRA_INDEX_URL": " ".join(self.extra_index_urls),
            "PIP_FIND_LINKS": " ".join(self.find_links),
            "PIP_CERT": self.ca_bundle or "",
            "PIP_NO_INDEX": "1" if self.offline else "",
        }
        env |= {"NO_PROXY" if kind == "no" else f"{kind.upper()}_PROXY": value for kind, value in self.proxies}
        return {name: value for name, value in env.items() if value}


# First match wins: uv's wording (0.9 to 0.13) -> what to do.
_CURES = (
    (
        r"ensurepip is not|No module named '?(venv|ensurepip)",
        "Python cannot make virtual environments here: apt install python3-venv (or the package of that Python's version).",
    ),
    (
        r"No space left on device|os error 28",
        "The disk is full: free space under the release root and uv's cache folder.",
    ),
    (
        r"invalid peer certificate|UnknownIssuer|certificate verify failed|CaUsedAsEndEntity",
        "The index's certificate is not trusted: give the CA file as ca_bundle.",
    ),
    (
        r"401 Unauthorized|403 Forbidden|HTTP status client error \(40[13]",
        "The index refused the credentials: check the user and password or token of index_url.",
    ),
    (r"407 Proxy|proxy authentication", "The proxy wants credentials: put them into the proxies setting."),
    (
        r"dns error|Failed to fetch|error sending request|Connection refused|timed out|Could not connect|"
        r"network was disabled",
        "The package index cannot be reached from this host: check index_url, proxies and the network, or give find_links.",
    ),
    (
        r"Hash mismatch|hash mismatch",
        "A package is not the file that was locked: the index or the cache gave another one. Empty uv's cache and try "
        "again.",
    ),
    (
        r"no solution found|unsatisfiable|was not found in the package registry|no wheels with a matching|"
        r"no version of",
        "No versions fit together on this index for this Python: compare the stack's requirements, overrides and "
        "constraints with what the index and find_links offer.",
    ),
    (
        r"Failed to build|build backend|metadata-generation",
        "A package has no wheel for this host and could not be built from source: install the compiler that it names, "
        "or use a Python version for which the index has a wheel.",
    ),
    (r"Permission denied|os error 13", "A file may not be written: the release build must run as root."),
)


def _last_words(stderr: str, limit: int = 12) -> str:
    lines = [without_secrets(line.rstrip()) for line in stderr.splitlines()]
    telling = [
        line
        for line in lines
        if line.strip() and not re.match(r"\s*(Resolved|Downloaded|Downloading|Prepared|Using|DEBUG|Updating)\b", line)
    ]
    return "\n".join(telling[-limit:])


def without_secrets(text: str) -> str:
    """``text`` with ``user:password@`` of any URL replaced."""
    return re.sub(r"(?<=://)[^/@\s]+@", "***@", text)


def cure(stderr: str) -> str:
    """What to do about uv's error output; an empty string where nothing is known."""
    return next((advice for pattern, advice in _CURES if re.search(pattern, stderr, re.IGNORECASE)), "")


_TELLING = re.compile(r"(Downloading|Downloaded|Building|Built|Prepared|Installed|Resolved)\b")


def _listened(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, said: Callable[[str], None]
) -> tuple[int, str]:
    """Run a command and tell each line that reports a step as it comes; its status and all of its output."""
    with subprocess.Popen(
        command, env=dict(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if _TELLING.match(line.strip()):
                said(without_secrets(line.strip()))
    return process.returncode, "".join(lines)


def run(
    uv: str,
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    step: str,
    cwd: Path | None = None,
    said: Callable[[str], None] | None = None,
) -> str:
    """Run ``uv arguments`` and return what it reports. UvError otherwise.

    ``said`` is told of downloads, builds and installations while they happen.
    """
    try:
        if said is not None:
            status, output = _listened([uv, *arguments], env, cwd, said)
        else:
            done = subprocess.run(
                [uv, *arguments], env=dict(env), cwd=cwd, capture_output=True, text=True, errors="replace", check=False
            )
            status, output = done.returncode, done.stderr + done.stdout
    except OSError as error:
        raise UvError(f"{step}: {uv} cannot be started: {error.strerror}. Install it or set its path.") from error
    if status != 0:
        words = _last_words(output) or f"it ended with status {status} without a word"
        raise UvError("\n".join(part for part in (f"{step} failed. It says:", words, cure(output)) if part))
    return output


def version(uv: str) -> str:
    """uv's own version, as in ``0.13.9``. UvError where it cannot be started."""
    try:
        done = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True)
    except OSError as error:
        raise UvError(f"uv cannot be started as {uv}: {error.strerror}. Install uv or set its path.") from error
    except subprocess.CalledProcessError as error:
        raise UvError(f"{uv} --version failed: {error.stderr.strip()}") from error
    return done.stdout.split()[1]


def provide(folder: Path, version_wanted: str, python: str, index: Index) -> str:
    """The uv of that version under `folder`, installed there by pip if it is not there yet; its path.

    UvError with pip's own words where that fails.
    """
    uv = folder / "bin" / "uv"
    with contextlib.suppress(UvError):  # a half-installed one is made anew
        if uv.exists() and version(str(uv)) == version_wanted:
            return str(uv)
    env = {**os.environ, **index.pip_environment()}
    shutil.rmtree(folder, ignore_errors=True)
    step = f"Installing uv {version_wanted}"
    run(python, ["-m", "venv", str(folder)], env=env, step=step)
    run(str(folder / "bin" / "pip"), ["install", "--quiet", f"uv=={version_wanted}"], env=env, step=step)
    return str(uv)
