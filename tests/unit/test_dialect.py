"""Dialects, and settings rendered and read back with the recorded option lists of real releases."""

import argparse
import functools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang_deploy import catalog, dialect
from sglang_deploy.dialect import SettingError

ROOT = Path(__file__).parents[2] / "catalog"
CATALOG = catalog.load(ROOT)
DIALECTS = {version: CATALOG.dialect(version) for version in CATALOG.recorded}
OLD, NEW = DIALECTS["0.5.9"], DIALECTS["0.5.23"]


def spell(name, value, of):
    setting = CATALOG.options.get(name)
    return setting.spell(setting.normalise(value), of)


def read_back(words, of):
    split = of.split(words)
    assert split.problems == ()
    return CATALOG.options.settings_of(split.given, of)


# --- spelling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "version", "words"),
    [
        ("sparse_decode", "trtllm", "0.5.9", "--nsa-decode-backend trtllm"),
        ("sparse_decode", "trtllm", "0.5.15.post1", "--dsa-decode-backend trtllm"),
        ("sparse_decode", "flashinfer_sparse_mla", "0.5.23", "--dsa-decode-backend flashinfer_sparse_mla"),
        ("cuda_graph", False, "0.5.12", "--disable-cuda-graph"),
        ("cuda_graph", False, "0.5.20", "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled"),
        ("cuda_graph", True, "0.5.20", ""),
        ("cuda_graph_max_bs", 32, "0.5.12", "--cuda-graph-max-bs 32"),
        ("cuda_graph_max_bs", 32, "0.5.15.post1", "--cuda-graph-max-bs-decode 32"),
        ("piecewise_cuda_graph", False, "0.5.9", ""),
        ("piecewise_cuda_graph", True, "0.5.9", "--enable-piecewise-cuda-graph"),
        ("piecewise_cuda_graph", False, "0.5.12", "--disable-piecewise-cuda-graph"),
        ("piecewise_cuda_graph", True, "0.5.12", ""),
        ("piecewise_cuda_graph", False, "0.5.23", "--disable-prefill-cuda-graph"),
        ("allreduce_fusion", True, "0.5.9", "--enable-flashinfer-allreduce-fusion"),
        ("allreduce_fusion", True, "0.5.23", "--flashinfer-allreduce-fusion-backend auto"),
        ("allreduce_fusion", "trtllm", "0.5.23", "--flashinfer-allreduce-fusion-backend trtllm"),
        ("allreduce_fusion", False, "0.5.9", ""),
        ("allreduce_fusion", False, "0.5.12", "--enforce-disable-flashinfer-allreduce-fusion"),
        ("dp_attention", 4, "0.5.20", "--enable-dp-attention --dp-size 4"),
        ("dp_attention", 4, "0.5.23", "--attn-dp-size 4"),
        ("prefill_context_parallel", True, "0.5.9", "--enable-nsa-prefill-context-parallel"),
        ("prefill_context_parallel", True, "0.5.15.post1", "--enable-prefill-cp"),
        ("custom_all_reduce", False, "0.5.23", "--disable-custom-all-reduce"),
        ("model_path", "m", "0.5.9", "--model-path m"),
        ("tp_size", "8", "0.5.9", "--tp-size 8"),
        ("mem_fraction_static", "0.85", "0.5.9", "--mem-fraction-static 0.85"),
        ("watchdog_timeout", 1800, "0.5.9", "--watchdog-timeout 1800"),
        ("context_length", "128Ki", "0.5.9", "--context-length 131072"),
        ("json_model_override_args", {"a": [1, True, None]}, "0.5.9", '--json-model-override-args {"a":[1,true,null]}'),
    ],
)
def test_a_setting_takes_the_spelling_of_the_version(name, value, version, words):
    assert " ".join(spell(name, value, DIALECTS[version])) == words


@pytest.mark.parametrize(
    ("name", "value", "version", "problem", "fix"),
    [
        ("sparse_decode", "flashinfer_sparse_mla", "0.5.9", "does not know", "flashmla_sparse"),
        ("sparse_decode", "trtllm", "0.5.8.post1", "does not know", "tilelang"),
        ("attention", "cutlass_mla", "0.5.23", "does not know", "flashinfer"),
        ("nan_detection", True, "0.5.23", "has no option for nan_detection", "stack"),
        ("sparse_topk", "torch", "0.5.9", "has no option for sparse_topk", "stack"),
        ("allreduce_fusion", "trtllm", "0.5.9", "has no option for allreduce_fusion", "stack"),
        ("port", 70000, "0.5.9", "out of range", "from 1 to 65535"),
        ("port", "http", "0.5.9", "not a whole number", "from 1 to 65535"),
        ("port", True, "0.5.9", "not a whole number", "whole number"),
        ("tp_size", 2.5, "0.5.9", "not a whole number", "1 or more"),
        ("mem_fraction_static", float("nan"), "0.5.9", "out of range", "number"),
        ("custom_all_reduce", "maybe", "0.5.9", "not true or false", "write true or false"),
        ("attention", False, "0.5.9", "is not text", "write text"),
        ("attention", ["flashinfer"], "0.5.9", "is not text", "write text"),
        ("served_model_name", "a\nb", "0.5.9", "line break", "correct"),
        ("served_model_name", " ", "0.5.9", "empty", "null"),
        ("served_model_name", "--port", "0.5.9", "starts with a hyphen", "without"),
        ("json_model_override_args", "{a: 1}", "0.5.9", "not JSON", "mapping"),
    ],
)
def test_what_a_version_or_type_cannot_have_is_refused_with_the_fix(name, value, version, problem, fix):
    with pytest.raises(SettingError) as error:
        spell(name, value, DIALECTS[version])
    assert problem in error.value.problem
    assert fix in error.value.fix


def values_of(setting, of):
    """Some values that the dialect accepts for a setting."""
    found = []
    for value in (True, False, 1, 0.5, "text", {"key": [1, "x"]}):
        try:
            normal = setting.normalise(value)
            setting.spell(normal, of)
        except SettingError as error:
            if "its choices are" in error.fix:
                found += error.fix.removeprefix("its choices are ").split(", ")
            continue
        found.append(normal)
    return found


EVERY = [
    pytest.param(of, setting, id=f"{version}-{setting.name}")
    for version, of in DIALECTS.items()
    for setting in CATALOG.options.settings
]


@pytest.mark.parametrize(("of", "setting"), EVERY)
def test_every_setting_with_every_choice_is_accepted_and_read_back(of, setting):
    for value in values_of(setting, of):
        words = setting.spell(value, of)
        if not words:
            continue
        found, rest = read_back(words, of)
        assert rest == []
        # `auto` is what allreduce_fusion: true means; every other value has one reading.
        expected = True if (setting.name, value) == ("allreduce_fusion", "auto") else value
        assert found == {setting.name: expected}


@pytest.mark.parametrize("version", DIALECTS)
def test_no_spelling_is_deprecated_where_another_exists(version):
    of = DIALECTS[version]
    deprecated = {
        setting.name
        for setting in CATALOG.options.settings
        for value in values_of(setting, of)
        if any(option.deprecated for option in map(of.find, setting.spell(value, of)) if option)
    }
    assert deprecated <= {"nan_detection"}


@pytest.mark.parametrize("setting", CATALOG.options.settings, ids=lambda setting: setting.name)
def test_every_spelling_exists_in_some_recorded_version(setting):
    for words in (*setting.options, *setting.if_true, *setting.if_false):
        flags = [word for word in words if word.startswith("--")]
        known = {flag for of in DIALECTS.values() for flag in of.flags} | {"--enable-dsa-prefill-context-parallel"}
        assert set(flags) <= known


# --- reading ------------------------------------------------------------------------------------------------------


def test_aliases_abbreviations_and_deprecated_spellings_mean_the_same_settings():
    words = [
        "--model",
        "m",
        "--tp",
        "8",
        "--expert-parallel-size=2",
        "--nsa-decode-backend",
        "trtllm",
        "--disable-cuda-graph",
    ]
    found, rest = read_back(words, DIALECTS["0.5.15.post1"])
    assert found == {"model_path": "m", "tp_size": 8, "ep_size": 2, "sparse_decode": "trtllm", "cuda_graph": False}
    assert rest == []


def test_options_without_a_logical_name_are_kept():
    found, rest = read_back(["--enable-symm-mem", "--port", "1", "--lora-paths", "a", "b"], OLD)
    assert found == {"port": 1}
    assert [(item.flag, item.values) for item in rest] == [("--enable-symm-mem", ()), ("--lora-paths", ("a", "b"))]


def test_one_of_two_options_of_a_spelling_is_its_own_setting():
    found, _ = read_back(["--cuda-graph-backend-decode", "disabled"], NEW)
    assert found == {"decode_cuda_graph": "disabled"}
    found, _ = read_back(["--dp-size", "4"], OLD)
    assert found == {"dp_size": 4}
    found, rest = read_back(["--enable-dp-attention"], OLD)
    assert found == {}
    assert len(rest) == 1


def test_the_last_of_two_counts_and_the_first_is_not_lost():
    found, rest = read_back(["--port", "1", "--port", "2"], OLD)
    assert found == {"port": 2}
    assert [item.values for item in rest] == [("1",)]


def test_a_negation_is_not_its_opposite():
    found, rest = read_back(["--no-enable-dsa-fused-indexer"], NEW)
    assert found == {}
    assert rest[0].flag == "--no-enable-dsa-fused-indexer"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pp", "2"], "ambiguous"),
        (["--nsa-decode-backend", "trtllm"], "not an option of SGLang 0.5.23: did you mean --dsa-decode-backend"),
        (["--port"], "no value follows"),
        (["--port", "--host", "x"], "no value follows"),
        (["--port", "x"], "not a whole number"),
        (["--trust-remote-code=yes"], "takes no value"),
        (["--kv-cache-dtype", "fp8"], "not one of its choices"),
        (["--context-length", "32K"], "suffixes"),
    ],
)
def test_what_the_parser_would_refuse_is_named(words, problem):
    assert problem in "; ".join(NEW.split(words).problems)


@functools.cache
def as_argparse(of):
    """The parser that a dialect describes, made by argparse itself."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    converters = {"int": int, "float": float}
    for option in of.options:
        if option.nargs == 0:
            parser.add_argument(*option.flags, action="append_const", const=option.flags[0], dest=option.dest)
        else:
            parser.add_argument(
                *option.flags,
                nargs=option.nargs,
                choices=option.choices,
                type=converters.get(option.type, str),
                dest=option.dest,
            )
    return parser


WORDS = st.sampled_from(
    [
        "--port",
        "--tp",
        "--tp-size",
        "--ep",
        "--pp",
        "--model",
        "--trust-remote-code",
        "--lora-paths",
        "--kv-cache-dtype",
        "--nope",
        "--disable-cuda-graph",
        "--cuda-graph-bs",
        "auto",
        "8",
        "-1",
        "x y",
        "--a b",
        "-0.5",
        "-x",
        "--port=1",
        "--tp=2",
        "--disable-radix=1",
    ]
)


@settings(max_examples=150)
@given(st.lists(WORDS, max_size=5))
def test_argument_lists_are_accepted_and_refused_as_by_argparse(words):
    split = OLD.split(words)
    try:
        namespace, rest = as_argparse(OLD).parse_known_args(words)
        accepted = not rest
    except (argparse.ArgumentError, SystemExit):
        accepted = False
    assert (not split.problems and not split.positional) == accepted
    if accepted:
        for item in split.given:
            if item.option.nargs is None and item is [other for other in split.given if other.option is item.option][-1]:
                assert str(getattr(namespace, item.option.dest)) == str(item.values[0]).lstrip("+")


# --- files --------------------------------------------------------------------------------------------------------


def test_the_recorded_lists_hold_every_option():
    assert {version: len(of.options) for version, of in DIALECTS.items()} == {
        "0.5.8.post1": 328,
        "0.5.9": 331,
        "0.5.10.post1": 354,
        "0.5.12": 387,
        "0.5.15.post1": 437,
        "0.5.20": 494,
        "0.5.23": 531,
    }
    assert all(of.sglang == version for version, of in DIALECTS.items())


def test_a_list_with_and_without_the_empty_fields_is_the_same():
    full = {
        "flags": ["--x"],
        "dest": "x",
        "kind": "StoreAction",
        "nargs": None,
        "type": None,
        "choices": None,
        "deprecated": False,
    }
    short = {"flags": ["--x"], "dest": "x", "kind": "StoreAction"}
    lists = [dialect.parse({"schema": 1, "sglang": "1", "options": [item]}, "x") for item in (full, short)]
    assert lists[0] == lists[1]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 2, "options": []}', '{"schema": 1, "sglang": "1", "options": [{"dest": "x"}]}']
)
def test_a_file_that_is_no_option_list_is_named(tmp_path, text):
    path = tmp_path / "options.json"
    path.write_text(text)
    with pytest.raises(dialect.DialectError, match=r"options\.json"):
        dialect.read(path)
    with pytest.raises(dialect.DialectError, match="cannot be read"):
        dialect.read(tmp_path / "missing.json")


def test_recorded_lists_have_one_option_a_line():
    for path in (ROOT / "dialects").glob("*.json"):
        lines = path.read_text().splitlines()
        assert len(lines) == len(json.loads(path.read_text())["options"]) + 2
