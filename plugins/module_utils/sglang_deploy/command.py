"""Read a launch command as people paste it.

`parse(text)` takes a command from a shell history, a script, a chat or a docker line and sorts every word of it into
a bucket: environment, program, options, container, wrappers, redirections, comments, other commands, words that were
not understood. Nothing is dropped: `ParsedCommand.words()` returns all of them.

What the options mean is decided by `interpretation.py`, with the option list of a release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .lexer import CommandError, Token, lex


class NotSglang(CommandError):
    """The text starts no SGLang server."""


@dataclass(frozen=True)
class Option:
    """One option as written: its flag, its values, and whether they were joined by `=`."""

    flag: str
    values: tuple[str, ...] = ()
    joined: bool = False

    def words(self) -> tuple[str, ...]:
        """The words of the command line that this option stands for."""
        if self.joined:
            return (f"{self.flag}={self.values[0]}", *self.values[1:])
        return (self.flag, *self.values)


@dataclass(frozen=True)
class Container:
    """A `docker run` around the server. `options` are words as written, in order."""

    tool: tuple[str, ...]
    image: str
    options: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    gpus: str | None = None


@dataclass(frozen=True)
class ParsedCommand:
    """A launch command in buckets; see the module's docstring. `engine` is sglang, or vllm for one to be told apart."""

    engine: str = "sglang"
    environment: tuple[tuple[str, str], ...] = ()
    program: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    positional: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    container: Container | None = None
    suffix: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    other_commands: tuple[tuple[str, ...], ...] = ()
    not_understood: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def env(self) -> dict[str, str]:
        """The environment as a dictionary; the last assignment of a name wins, as in a shell."""
        return dict(self.environment)

    def words(self) -> tuple[str, ...]:
        """Every word that the text contained, bucket by bucket."""
        words = [f"{name}={value}" for name, value in self.environment]
        words += [*self.program, *self.positional, *self.wrappers, *self.suffix, *self.not_understood]
        for option in self.options:
            words += option.words()
        if self.container:
            words += [*self.container.tool, *self.container.options, self.container.image]
        for command in self.other_commands:
            words += command
        return tuple(words)


ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?$")
SERVER_MODULES = {
    "sglang.launch_server": "sglang",
    "sglang.srt.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
}
OTHER_ENGINES = {
    "trtllm-serve": "TensorRT-LLM",
    "llama-server": "llama.cpp",
    "lmdeploy": "LMDeploy",
    "text-generation-launcher": "TGI",
    "ollama": "Ollama",
}
# Wrappers that run the command that follows, and which of their options take a value of their own.
WRAPPERS: dict[str, frozenset[str]] = {
    "sudo": frozenset({"-u", "-g", "-C", "-D", "-h", "-p", "-U"}),
    "nohup": frozenset(),
    "numactl": frozenset({"-C", "-m", "-i", "-p", "-N", "-a"}),
    "taskset": frozenset({"-c"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "time": frozenset({"-o", "-f"}),
    "exec": frozenset({"-a"}),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-o", "-e", "-i"}),
    "timeout": frozenset({"-k", "-s"}),
    "env": frozenset({"-u", "-C"}),
    "uv": frozenset({"--python", "--with", "--project", "-p"}),
    "run": frozenset({"--python", "--with", "--project", "-p"}),
}
WRAPPERS_WITH_ARGUMENT = {"taskset": re.compile(r"(?:0x)?[0-9a-fA-F,-]+$"), "timeout": re.compile(r"[\d.]+[smhd]?$")}
CONTAINER_TOOLS = ("docker", "podman", "nerdctl")
# Container options without a value; every other one takes one.
CONTAINER_SWITCHES = frozenset(
    {"--rm", "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "-id", "-td"}
    | {"--init", "--privileged", "--read-only", "-P", "--publish-all", "--no-healthcheck", "--oom-kill-disable"}
    | {"--replace", "--sig-proxy", "--quiet", "-q"}
)
SHELLS = re.compile(r"(?:.*/)?(?:ba|z|da|k)?sh$")


def parse(text: str) -> ParsedCommand:
    """Sort the words of a pasted launch command into buckets.

    A vLLM command is read too, and marked by `engine`, so that a collection of commands can be sorted.

    Raises:
        CommandError: an unbalanced quote, with its line.
        NotSglang: no server is started, or more than one, or one of another engine.
    """
    builder = _Builder()
    commands = list(_simple_commands(lex(text), builder))
    for words, suffix in commands:
        _simple(words, suffix, builder)
    if builder.servers > 1:
        raise NotSglang(f"the text starts {builder.servers} servers; give one command at a time")
    if not builder.servers:
        raise NotSglang(_why_not_sglang([words for words, _ in commands]))
    return builder.build()


@dataclass
class _Builder:
    engine: str = "sglang"
    environment: list[tuple[str, str]] = field(default_factory=list)
    program: tuple[str, ...] = ()
    options: list[Option] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)
    wrappers: list[str] = field(default_factory=list)
    container: Container | None = None
    suffix: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    other_commands: list[tuple[str, ...]] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    servers: int = 0

    def build(self) -> ParsedCommand:
        return ParsedCommand(
            engine=self.engine,
            environment=tuple(self.environment),
            program=self.program,
            options=tuple(self.options),
            positional=tuple(self.positional),
            wrappers=tuple(self.wrappers),
            container=self.container,
            suffix=tuple(self.suffix),
            comments=tuple(self.comments),
            other_commands=tuple(self.other_commands),
            not_understood=tuple(self.not_understood),
            notes=tuple(self.notes),
        )


def _simple_commands(tokens: Sequence[Token], builder: _Builder) -> Iterator[tuple[list[str], list[str]]]:
    """Yield (words, redirections) of each simple command; a line that begins with an option continues the last one."""
    words: list[str] = []
    suffix: list[str] = []
    piped = False
    index = 0
    while index < len(tokens):
        token = tokens[index]
        following = next((t for t in tokens[index + 1 :] if t.kind not in ("comment", "newline")), None)
        if token.kind == "comment":
            builder.comments.append(token.text)
        elif token.kind == "word":
            (suffix if piped else words).append(token.text)
        elif token.kind == "redirect":
            suffix.append(token.text)
            if not token.text.endswith(("&1", "&2")) and index + 1 < len(tokens) and tokens[index + 1].kind == "word":
                index += 1
                suffix.append(tokens[index].text)
        elif token.kind == "newline" and words and following and _continues(following, words):
            if not piped:
                builder.notes.append(
                    f"line {following.line} begins with {following.text!r} but the line before it does not end in a "
                    "backslash; it was read as part of the same command"
                )
        elif token.text == "|":
            suffix.append(token.text)
            piped = True
        else:
            if token.kind == "operator":
                suffix.append(token.text)
            if words or suffix:
                yield words, suffix
            words, suffix, piped = [], [], False
        index += 1
    if words or suffix:
        yield words, suffix


def _continues(token: Token, words: Sequence[str]) -> bool:
    return token.kind == "word" and token.text.startswith("-") and any(not ASSIGNMENT.fullmatch(w) for w in words)


def _simple(words: list[str], suffix: list[str], builder: _Builder) -> None:
    """Sort one simple command. Commands that start no server are kept as they are."""
    rest = list(words)
    if rest and rest[0] == "$":
        rest = rest[1:]  # a prompt
    if rest and rest[0] in ("export", "set") and all(ASSIGNMENT.fullmatch(word) for word in rest[1:]):
        rest = rest[1:]
    environment, wrappers, rest = _peel(rest)
    if not rest:
        builder.environment += environment
        if wrappers:
            builder.other_commands.append(tuple(wrappers))
        builder.suffix += [word for word in suffix if word not in ("&&", ";")]
        return
    inner = _inner_shell(rest)
    container = _container(rest)
    if inner is not None and _mentions_server(inner):
        builder.environment += environment
        builder.wrappers += [*wrappers, *rest[: rest.index(inner)], *rest[rest.index(inner) + 1 :]]
        builder.suffix += suffix
        _nested(inner, builder)
    elif container is not None and _mentions_server(" ".join(rest)):
        builder.environment += environment
        builder.wrappers += wrappers
        builder.suffix += suffix
        found, container_env, command = container
        builder.container = found
        builder.environment += container_env
        _simple(command, [], builder)
    else:
        start, engine = _program(rest)
        if not start:
            builder.other_commands.append((*[f"{n}={v}" for n, v in environment], *wrappers, *rest, *suffix))
            return
        builder.servers += 1
        builder.engine = engine
        builder.environment += environment
        builder.wrappers += wrappers
        builder.suffix += suffix
        builder.program = tuple(rest[:start])
        _options(rest[start:], builder)


def _nested(text: str, builder: _Builder) -> None:
    for words, suffix in list(_simple_commands(lex(text), builder)):
        _simple(words, suffix, builder)


def _peel(words: list[str]) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Take assignments and wrappers off the front."""
    environment: list[tuple[str, str]] = []
    wrappers: list[str] = []
    rest = list(words)
    while rest:
        assignment = ASSIGNMENT.fullmatch(rest[0])
        name = rest[0].rpartition("/")[2]
        if assignment:
            environment.append((assignment[1], assignment[2]))
            rest.pop(0)
        elif name in WRAPPERS and (name != "run" or (wrappers and wrappers[-1] == "uv")):
            wrappers.append(rest.pop(0))
            while rest and rest[0].startswith("-"):
                takes_value = rest[0] in WRAPPERS[name]
                wrappers.append(rest.pop(0))
                if takes_value and rest:
                    wrappers.append(rest.pop(0))
            pattern = WRAPPERS_WITH_ARGUMENT.get(name)
            if pattern and rest and pattern.match(rest[0]):
                wrappers.append(rest.pop(0))
        else:
            break
    return environment, wrappers, rest


def _program(words: Sequence[str]) -> tuple[int, str]:
    """How many leading words start a server (0 when they do not), and of which engine."""
    name = words[0].rpartition("/")[2]
    if name in ("sglang", "vllm") and words[1:2] == ["serve"]:
        return 2, name
    if name in ("sglang.launch_server", "sglang-launch-server"):
        return 1, "sglang"
    if PYTHON.fullmatch(words[0]):
        for index, word in enumerate(words[1:], start=1):
            if word == "-m":
                engine = SERVER_MODULES.get(words[index + 1]) if index + 1 < len(words) else None
                return (index + 2, engine) if engine else (0, "")
            if word.endswith("sglang/launch_server.py"):
                return index + 1, "sglang"
            if not word.startswith("-"):
                break
    return 0, ""


def _inner_shell(words: Sequence[str]) -> str | None:
    """The script of `sh -c SCRIPT`, else None."""
    if not SHELLS.fullmatch(words[0]):
        return None
    for index, word in enumerate(words[1:-1], start=1):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[index + 1]
    return None


def _mentions_server(text: str) -> bool:
    return any(module in text for module in SERVER_MODULES) or bool(
        re.search(r"\b(sglang|vllm) serve\b|sglang/launch_server\.py", text)
    )


def _container(words: list[str]) -> tuple[Container, list[tuple[str, str]], list[str]] | None:
    """Split a container's command line into (container, its environment, the command inside)."""
    if words[0].rpartition("/")[2] not in CONTAINER_TOOLS:
        return None
    verb = next((i for i, word in enumerate(words) if word in ("run", "exec")), None)
    if verb is None:
        return None
    options: list[str] = []
    environment: list[tuple[str, str]] = []
    volumes: list[str] = []
    ports: list[str] = []
    gpus: str | None = None
    rest = words[verb + 1 :]
    entrypoint: list[str] = []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        written = [word]
        if not equals and name not in CONTAINER_SWITCHES and rest:
            value = rest.pop(0)
            written.append(value)
        if name in ("-e", "--env"):
            assignment = ASSIGNMENT.fullmatch(value)
            if assignment:
                environment.append((assignment[1], assignment[2]))
                options.append(name)
                continue
        elif name in ("-v", "--volume", "--mount"):
            volumes.append(value)
        elif name in ("-p", "--publish"):
            ports.append(value)
        elif name == "--gpus":
            gpus = value
        elif name == "--entrypoint":
            entrypoint = [value]
        options += written
    if not rest:
        return None
    image, *command = rest
    found = Container(tuple(words[: verb + 1]), image, tuple(options), tuple(volumes), tuple(ports), gpus)
    return found, environment, [*entrypoint, *command]


def _options(words: Iterable[str], builder: _Builder) -> None:
    """Group the words after the program into options and their values."""
    current: tuple[str, list[str], bool] | None = None
    for word in words:
        if _is_flag(word):
            if current:
                builder.options.append(Option(current[0], tuple(current[1]), current[2]))
            flag, equals, value = word.partition("=")
            current = (flag, [value] if equals else [], bool(equals))
        elif current:
            current[1].append(word)
        elif builder.program[-1:] == ("serve",) and not builder.positional:
            builder.positional.append(word)
        else:
            builder.not_understood.append(word)
    if current:
        builder.options.append(Option(current[0], tuple(current[1]), current[2]))


def _is_flag(word: str) -> bool:
    """As argparse decides: negative numbers are values, and so are words with spaces."""
    if not word.startswith("-") or word == "-" or re.fullmatch(r"-\d+|-\d*\.\d+", word):
        return False
    return " " not in word.partition("=")[0]


def _why_not_sglang(commands: Sequence[Sequence[str]]) -> str:
    words = [word for command in commands for word in command]
    if not words:
        return "the text contains no command"
    for word in words:
        name = word.rpartition("/")[2].partition(".")[0]
        if name in OTHER_ENGINES:
            return f"this starts {OTHER_ENGINES[name]}, not SGLang (found {word!r})"
    start = " ".join(words[:4]) + (" ..." if len(words) > 4 else "")
    return (
        f"no SGLang server is started here (found: {start}); write `python3 -m sglang.launch_server ...` or "
        "`sglang serve MODEL ...`"
    )
