"""The launch script and the environment file, read back by a real shell and by systemd's rules."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy import catalog, render
from sglang_deploy.launch_spec import Choice, LaunchSpec, Request, resolve

CATALOG = catalog.load(Path(__file__).parents[2] / "catalog")
SPEC = LaunchSpec("glm5", "cpu", "0.5.15.post1", None, "cpu-lab", "m", {}, (), {})
PRINTABLE = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\t"), max_size=30)
SPECIAL = st.text(st.sampled_from("'\"\\`$(){}%;&|<>*?[]!~#= \tab-é\u2028"), max_size=12)
VALUE = st.one_of(PRINTABLE, SPECIAL)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: (
        name
        not in (
            "_",
            "PWD",
            "OLDPWD",
            "SHLVL",
            "PATH",
            "IFS",
            "UID",
            "EUID",
            "PPID",
            "ENV",
            "OPTIND",
            "OPTARG",
            "PS1",
            "PS2",
            "PS4",
        )
    )
)
HARD = [
    "it's",
    'say "hi"',
    "$(id)",
    "`id`",
    "$HOME",
    "%h %%",
    "a\\b",
    "\\",
    "\\\\",
    "trailing\\",
    " lead",
    "trail ",
    "#x",
    "a;b",
    "ünï",
    "!x",
    "",
    "\\n",
    "\t",
]

# What a shell makes of a script, one NUL-ended word each: the interpreter is replaced by printf.
PRINT = "printf '%s\\0' \"$@\""


def run(script):
    return subprocess.run(
        [shutil.which("sh"), "-c", script], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}
    ).stdout


def words_of(script, tmp_path):
    """The words that a real shell would execute for a launch script."""
    show = tmp_path / "show"
    show.write_text(f"#!/bin/sh\n{PRINT}\n")
    show.chmod(0o755)
    launch = tmp_path / "launch"
    launch.write_text(script)
    out = subprocess.run(
        [shutil.which("sh"), str(launch)], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}
    ).stdout
    return [word.decode() for word in out.split(b"\0")[:-1]]


def systemd(text):
    """EnvironmentFile as systemd reads it: the state machine of its src/basic/env-file.c."""
    found, key, value, state = {}, "", "", "pre_key"
    blank = None  # where the value's trailing white space begins
    for c in text + "\n":
        if state == "pre_key":
            if c in "#;":
                state = "comment"
            elif c not in " \t\n\r":
                state, key = "key", c
        elif state == "key":
            if c in "\n\r":
                state = "pre_key"
            elif c == "=":
                state, value, blank = "pre_value", "", None
            else:
                key += c
        elif state in ("pre_value", "value"):
            if c in "\n\r":
                found[key.rstrip(" \t")] = value if state == "pre_value" or blank is None else value[:blank]
                state = "pre_key"
            elif state == "pre_value" and c in "'\"":
                state = {"'": "single", '"': "double"}[c]
            elif c == "\\":
                state, blank = "escape", None
            elif state == "value" or c not in " \t":
                blank = None if c not in " \t" else len(value) if blank is None else blank
                state, value = "value", value + c
        elif state == "escape":
            state, value = "value", value + ("" if c in "\n\r" else c)
        elif state == "single":
            state, value = ("pre_value", value) if c == "'" else (state, value + c)
        elif state == "double":
            if c == '"':
                state = "pre_value"
            elif c == "\\":
                state = "double_escape"
            else:
                value += c
        elif state == "double_escape":
            state = "double"
            value += c if c in '"\\`$' else "" if c == "\n" else "\\" + c
        elif state == "comment":
            state = "comment_escape" if c == "\\" else "pre_key" if c in "\n\r" else state
        elif state == "comment_escape":
            state = "comment"
    assert state == "pre_key", "the file ends inside a value"
    return found


def shell(texts, tmp_path):
    """Each environment file as a real shell reads it, exported and seen by a child process; all in one shell."""
    script = []
    for number, text in enumerate(texts):
        path = tmp_path / f"environment-{number}"
        path.write_text(text)
        script.append(f"(set -a; . {path}; set +a; exec env -0); printf '\\0'")
    out = run("\n".join(script))
    found = []
    for block in out.split(b"\0\0")[: len(texts)]:
        found.append(dict(line.decode().split("=", 1) for line in block.split(b"\0") if line))
    return found


@settings(max_examples=15)
@given(st.lists(st.dictionaries(NAME, VALUE, min_size=1, max_size=5), min_size=1, max_size=10))
def test_any_environment_is_read_alike_by_a_shell_and_by_systemd(tmp_path_factory, environments):
    texts = [render.environment_file(environment) for environment in environments]
    assert [systemd(text) for text in texts] == environments
    for environment, seen in zip(environments, shell(texts, tmp_path_factory.mktemp("env")), strict=True):
        assert {name: seen[name] for name in environment} == environment


@pytest.mark.parametrize("value", HARD)
def test_hard_values_are_read_alike(tmp_path, value):
    text = render.environment_file({"X": value})
    assert systemd(text) == {"X": value}
    assert shell([text], tmp_path)[0]["X"] == value


def test_the_copy_of_systemds_rules_tells_quotings_apart():
    assert systemd("A='it'\\''s'\nB=\"a\\$b\\x\"\nC=x # y\n# D=1\nE= a b  \n") == {
        "A": "it''s'",
        "B": "a$b\\x",
        "C": "x # y",
        "E": "a b",
    }


def test_comments_stand_on_lines_of_their_own():
    lines = render.environment_file({"B": "#1", "A": "2"}).splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == ['A="2"', 'B="#1"']


@pytest.mark.parametrize(("name", "value"), [("A B", "x"), ("A", "x\ny"), ("A", "x\0"), ("", "x"), ("A=B", "x")])
def test_what_neither_reader_could_carry_is_refused(name, value):
    with pytest.raises(ValueError, match="environment"):
        render.environment_file({name: value})


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"--[a-z][a-z-]{0,8}", fullmatch=True),
            st.lists(VALUE.filter(lambda v: not v.startswith("--")), max_size=3),
        ),
        max_size=12,
    )
)
def test_any_argument_list_survives_a_real_shell(tmp_path_factory, groups):
    argv = tuple(word for flag, values in groups for word in (flag, *values))
    folder = tmp_path_factory.mktemp("launch dir's")
    (folder / "env file").write_text(render.environment_file({"X": "1"}))
    script = render.launch_script(replace(SPEC, extra_args=argv), str(folder / "show"), str(folder / "env file"))
    assert words_of(script, folder) == ["-m", "sglang.launch_server", *argv]


def test_the_script_shows_one_option_a_line_and_reads_its_environment(tmp_path):
    spec = resolve(
        CATALOG,
        Request(
            "glm5",
            "glm5-cuda128",
            "nsa-trtllm",
            "lukealonso/GLM-5-NVFP4",
            CATALOG.dialect("0.5.9"),
            environment_layers=[("x", {"X": "a'b"})],
        ),
    )
    (tmp_path / "environment").write_text(render.environment_file(spec.variables))
    script = render.launch_script(spec, str(tmp_path / "show"), str(tmp_path / "environment"))
    assert "    --kv-cache-dtype auto \\\n    --page-size" in script or "    --kv-cache-dtype auto \\\n" in script
    assert script.startswith("#!/bin/sh\n# Instance glm5: SGLang 0.5.9, stack glm5-cuda128, profile nsa-trtllm\n")
    assert spec.hash in script
    assert words_of(script, tmp_path) == ["-m", "sglang.launch_server", *spec.argv]
    assert words_of(script.replace("-m sglang.launch_server", '"$X"', 1), tmp_path)[0] == "a'b"


def test_a_missing_environment_file_stops_the_script(tmp_path):
    (tmp_path / "launch").write_text(render.launch_script(SPEC, "/bin/true", str(tmp_path / "none")))
    assert subprocess.run(["sh", str(tmp_path / "launch")], capture_output=True).returncode != 0


def test_options_and_values_stay_together():
    choice = Choice(True, "x", ("--a", "1", "--b"))
    assert render.option_lines(replace(SPEC, settings={"a": choice}, extra_args=("--c", "x", "y")).argv) == [
        ("--a", "1"),
        ("--b",),
        ("--c", "x", "y"),
    ]
