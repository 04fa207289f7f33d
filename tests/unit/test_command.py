"""The command parser: what people paste, what it means to a release, and that nothing is lost."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy import catalog as catalogs
from sglang_deploy.command import NotSglang, Option, ParsedCommand, parse
from sglang_deploy.dialect import Dialect
from sglang_deploy.interpretation import Interpretation, group_vars, interpret
from sglang_deploy.launch_spec import Choice, LaunchSpec, Variable
from sglang_deploy.lexer import CommandError
from sglang_deploy.render import launch_script

ROOT = Path(__file__).resolve().parents[2]
CATALOG = catalogs.load(ROOT / "catalog")
DIALECT_0_5_9 = CATALOG.dialect("0.5.9")
DIALECT_0_5_23 = CATALOG.dialect("0.5.23")


def read(text: str, dialect: Dialect = DIALECT_0_5_9) -> Interpretation:
    return interpret(parse(text), [dialect], CATALOG.options)


def kinds(reading: Interpretation) -> list[str]:
    return [problem.kind for problem in reading.problems]


PUBLISHED = """
# GLM-5, eight cards
export NCCL_IB_DISABLE=1 NCCL_P2P_LEVEL=PHB
$ CUDA_VISIBLE_DEVICES="0,1" nohup sudo -E -u sglang numactl -m 0 python3 -u -m sglang.launch_server \\
    --model lukealonso/GLM-5-NVFP4 --tp 8 \\
    --served-model-name 'glm 5'   \\\x20\x20
    --model-loader-extra-config '{"num_threads": 16}' \\
    --kv-cache-dtype=bfloat16 --trust-remote-code 2>&1 | tee -a server.log &
"""


def test_every_word_of_a_published_command_has_its_place() -> None:
    command = parse(PUBLISHED)
    assert command.env() == {"NCCL_IB_DISABLE": "1", "NCCL_P2P_LEVEL": "PHB", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert command.program == ("python3", "-u", "-m", "sglang.launch_server")
    assert command.wrappers == ("nohup", "sudo", "-E", "-u", "sglang", "numactl", "-m", "0")
    assert command.options == (
        Option("--model", ("lukealonso/GLM-5-NVFP4",)),
        Option("--tp", ("8",)),
        Option("--served-model-name", ("glm 5",)),
        Option("--model-loader-extra-config", ('{"num_threads": 16}',)),
        Option("--kv-cache-dtype", ("bfloat16",), joined=True),
        Option("--trust-remote-code"),
    )
    assert command.suffix == ("2>&1", "|", "tee", "-a", "server.log", "&")
    assert command.comments == ("# GLM-5, eight cards",)
    assert command.not_understood == ()


DOCKER = """docker run -d --gpus '"device=0,1"' --shm-size 32g --ipc=host -p 30000:30000 \\
  -v ~/.cache:/root/.cache -e SGLANG_ENABLE_JIT_DEEPGEMM=0 --env HF_TOKEN lmsysorg/sglang:v0.5.12-cu130 \\
  python3 -m sglang.launch_server --model-path M --tp 2 --host 0.0.0.0"""


def test_docker_run_is_taken_apart() -> None:
    command = parse(DOCKER)
    assert command.container is not None
    assert command.container.image == "lmsysorg/sglang:v0.5.12-cu130"
    assert command.container.gpus == '"device=0,1"'
    assert command.container.ports == ("30000:30000",)
    assert command.container.volumes == ("~/.cache:/root/.cache",)
    assert command.env() == {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}
    assert [option.flag for option in command.options] == ["--model-path", "--tp", "--host"]
    assert {"--shm-size", "32g", "--ipc=host", "HF_TOKEN"} <= set(command.container.options)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("sglang serve org/m --tp-size 2", ("org/m",)),
        ("uv run --with x sglang serve org/m", ("org/m",)),
        ("bash -c 'A=1 python -m sglang.launch_server --model-path org/m'", ("org/m",)),
        ('docker run img bash -lc "python -m sglang.launch_server --model-path org/m"', ("org/m",)),
        ("cd /x && source v/bin/activate && python -m sglang.launch_server --model-path org/m", ("org/m",)),
        ("env -u X A=b /opt/v/bin/python3.12 -m sglang.launch_server --model-path=org/m", ("org/m",)),
        ("timeout 600 sglang serve --model-path org/m", ("org/m",)),
        ("python3 -m sglang.launch_server\n  --model-path org/m\n  --tp-size 2", ("org/m",)),
    ],
)
def test_ways_to_start_a_server(text: str, model: tuple[str, ...]) -> None:
    command = parse(text)
    named = command.positional or next(o.values for o in command.options if o.flag == "--model-path")
    assert named == model
    assert command.not_understood == ()


def test_a_comment_between_continued_lines_does_not_end_the_command() -> None:
    command = parse("sglang serve \\\n  --model-path m \\\n  # --disable-cuda-graph \\\n  --tp-size 8")
    assert [option.flag for option in command.options] == ["--model-path", "--tp-size"]
    assert command.comments == ("# --disable-cuda-graph \\",)
    assert "line 4" in command.notes[0]


@pytest.mark.parametrize("text", ["sglang serve 'm --tp 8", 'A=1\nsglang serve "m', "docker run i sh -c 'sglang serve"])
def test_an_unbalanced_quote_is_named_with_its_line(text: str) -> None:
    with pytest.raises(CommandError, match=r"unbalanced quote: the (single|double) quote opened in line \d"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no command"),
        ("ls -l /tmp", "no SGLang server is started here"),
        ("llama-server -m x.gguf", "llama.cpp, not SGLang"),
        ("sglang serve a\nsglang serve b", "2 servers"),
        ("python -m http.server", "no SGLang server"),
    ],
)
def test_what_starts_no_sglang_server_is_refused(text: str, message: str) -> None:
    with pytest.raises(NotSglang, match=message):
        parse(text)


def test_a_vllm_command_is_read_but_not_interpreted() -> None:
    command = parse("vllm serve org/m --gpu-memory-utilization 0.9")
    assert command.engine == "vllm"
    with pytest.raises(NotSglang, match="vLLM"):
        interpret(command, [DIALECT_0_5_9], CATALOG.options)


def test_a_command_in_the_projects_words() -> None:
    reading = read(PUBLISHED)
    assert reading.settings == {
        "model_path": "lukealonso/GLM-5-NVFP4",
        "tp_size": 8,
        "served_model_name": "glm 5",
        "model_loader_extra_config": {"num_threads": 16},
        "kv_cache_dtype": "bfloat16",
        "trust_remote_code": True,
    }
    assert ("--tp", "--tp-size") in reading.abbreviations
    assert reading.problems == ()
    assert group_vars(reading, CATALOG.options)["sglang_backends"] == {"kv_cache_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ("--no-such-thing 1", "unknown", "has no option --no-such-thing"),
        ("--kv-cache-dtyp3 auto", "unknown", "--kv-cache-dtype"),
        ("--pp 2", "ambiguous", "--pp-size"),
        ("--tp-size two", "value", "whole number"),
        ("--kv-cache-dtype fp7", "choice", "bfloat16"),
        ("--tp-size 8 --tensor-parallel-size 4", "twice", "set the same"),
        ("--tp-size 8 --tp-size 8", "twice", "given twice"),
        ("--trust-remote-code yes", "stray", "'yes'"),
        ("--watchdog-timeout 0", "range", "out of range"),
    ],
)
def test_what_the_release_would_refuse(words: str, kind: str, message: str) -> None:
    reading = read(f"sglang serve m {words}")
    assert kind in kinds(reading)
    assert any(message in str(problem) for problem in reading.problems)


def test_a_flag_of_one_release_is_unknown_to_another() -> None:
    text = "sglang serve m --nsa-decode-backend trtllm"
    assert read(text).settings["sparse_decode"] == "trtllm"
    assert kinds(read(text, DIALECT_0_5_23)) == ["unknown"]
    both = interpret(parse(text), [DIALECT_0_5_23, DIALECT_0_5_9], CATALOG.options)
    assert both.problems == ()


def test_placeholders_are_unresolved_not_wrong() -> None:
    reading = read("sglang serve m --tp-size <TP> --max-running-requests ${N} --host <BIND> --chunked-prefill-size 2*ISL")
    assert reading.problems == ()
    assert {"tp_size", "max_running_requests", "host", "chunked_prefill_size"} <= reading.unresolved
    assert reading.settings["tp_size"] == "<TP>"


def test_a_key_is_kept_out_of_what_is_written() -> None:
    reading = read("sglang serve m --api-key s3cret")
    assert reading.secrets == ("--api-key",)
    assert "s3cret" not in repr(group_vars(reading, CATALOG.options))


def test_options_without_a_setting_become_extra_args() -> None:
    reading = read("sglang serve m --stream-output --stream-interval 20")
    assert reading.extra_args == ("--stream-output", "--stream-interval", "20")
    assert reading.options == {"stream_output": True, "stream_interval": "20"}


def test_no_model_is_a_problem() -> None:
    assert kinds(read("python -m sglang.launch_server --tp-size 2")) == ["missing"]


WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
VALUE = WORD.filter(lambda text: not text.startswith("-") and text.strip() == text and bool(text.strip()))
FLAG = st.from_regex(r"--[a-z]{2,6}(-[a-z]{2,5})?", fullmatch=True)
NAME = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)


@given(
    env=st.dictionaries(NAME, WORD, max_size=3),
    options=st.lists(st.builds(Option, FLAG, st.lists(VALUE, max_size=2).map(tuple)), max_size=5),
    separator=st.sampled_from([" ", " \\\n  ", "  ", " \\  \n\t"]),
)
def test_quoted_words_come_back_unchanged(env: dict[str, str], options: list[Option], separator: str) -> None:
    words = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    words += ["python3", "-m", "sglang.launch_server"]
    words += [shlex.quote(word) for option in options for word in option.words()]
    command = parse(separator.join(words))
    assert command.env() == env
    assert list(command.options) == options


@given(st.text(st.sampled_from("ab -='\"\\\n#$<>|&;{}"), max_size=60))
def test_any_text_is_read_or_refused_with_a_message(text: str) -> None:
    try:
        parse("sglang serve m " + text)
    except CommandError as error:
        assert str(error)


def spec_of(values: dict[str, object], extra: tuple[str, ...], environment: dict[str, str], dialect: Dialect) -> LaunchSpec:
    chosen: dict[str, Choice] = {}
    for setting in CATALOG.options.settings:
        if setting.name in values:
            value = setting.normalise(values[setting.name])
            chosen[setting.name] = Choice(value, "test", setting.spell(value, dialect))
    variables = {name: Variable(value, "test") for name, value in sorted(environment.items())}
    return LaunchSpec("glm5", "s", dialect.sglang, None, "p", "m", chosen, extra, variables)


def values_of(dialect: Dialect) -> st.SearchStrategy[dict[str, object]]:
    """Settings that the dialect can spell, with values that its options take."""
    kinds_of: dict[str, st.SearchStrategy[object]] = {}
    for setting in CATALOG.options.settings:
        if setting.name in (
            "model_path",
            "dp_attention",
            "dp_size",
            "allreduce_fusion",
            "decode_cuda_graph",
            "prefill_cuda_graph",
        ):
            continue
        option = next((o for spelling in setting.options if (o := dialect.find(spelling[0])) is not None), None)
        if setting.type == "bool":
            side = setting.if_true if setting.if_true != ((),) else setting.if_false
            if any(words and all(dialect.find(w) for w in words if w.startswith("--")) for words in side):
                kinds_of[setting.name] = st.just(setting.if_true != ((),))
        elif option is None:
            continue
        elif option.choices:
            kinds_of[setting.name] = st.sampled_from(option.choices)
        elif setting.type == "int":
            kinds_of[setting.name] = st.integers(int(setting.min or 0), int(setting.max or 100000))
        elif setting.type == "float":
            kinds_of[setting.name] = st.floats(max(setting.min or 0, 0.5), 1.0).map(lambda number: round(number, 3))
        elif setting.type == "json":
            kinds_of[setting.name] = st.dictionaries(WORD, st.integers() | WORD, min_size=1, max_size=2)
        elif option.type in (None, "str"):
            kinds_of[setting.name] = VALUE
    return st.fixed_dictionaries({"model_path": VALUE}, optional=kinds_of)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.15.post1", "0.5.23"])
def test_reading_a_rendered_spec_gives_the_spec(version: str) -> None:
    dialect = CATALOG.dialect(version)

    @settings(max_examples=25)
    @given(values_of(dialect), st.dictionaries(NAME, WORD, max_size=2))
    def check(values: dict[str, object], environment: dict[str, str]) -> None:
        spec = spec_of(values, ("--stream-interval", "20"), environment, dialect)
        prefix = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        reading = interpret(parse(prefix + launch_script(spec, "/r/python", "/e")), [dialect], CATALOG.options)
        assert reading.problems == ()
        assert reading.environment == spec.variables
        again = spec_of(dict(reading.settings), reading.extra_args, dict(reading.environment), dialect)
        assert again.argv == spec.argv

    check()


def cases() -> list[dict[str, object]]:
    found: list[dict[str, object]] = yaml.safe_load((ROOT / "tests/data/launch_commands.yaml").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case["id"]))
def test_published_commands_are_read_without_loss(case: dict[str, object]) -> None:
    flags, env = case["flags"], case["env"]
    assert isinstance(flags, dict)
    assert isinstance(env, dict)
    options = [Option(flag, () if value is True else (str(value),)) for flag, value in flags.items()]
    words = [f"{name}={shlex.quote(str(value))}" for name, value in env.items()]
    words += ["python3 -m sglang.launch_server", *(shlex.join(option.words()) for option in options)]
    command: ParsedCommand = parse(" \\\n ".join(words))
    assert list(command.options) == options
    assert command.env() == {name: str(value) for name, value in env.items()}
    assert command.not_understood == ()
