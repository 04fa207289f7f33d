import pytest
from sglang_deploy import names


@pytest.mark.parametrize("name", ["glm5", "g", "glm-5-2", "a" + "b" * 30])
def test_plain_instance_names_are_allowed(name):
    assert names.instance_problem(name) is None


@pytest.mark.parametrize(
    "name", ["", "5glm", "GLM5", "glm_5", "glm5.service", "a/b", "glm5\n", "../x", "-x", "a" * 32, None, 5]
)
def test_other_instance_names_are_refused_with_the_rule(name):
    problem = names.instance_problem(name)
    assert problem is not None
    assert "small letter" in problem


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("NCCL_P2P_LEVEL", True),
        ("_x1", True),
        ("1X", False),
        ("A-B", False),
        ("A B", False),
        ("", False),
        ("X\n", False),
    ],
)
def test_environment_names(name, fine):
    assert (names.environment_name_problem(name) is None) is fine


@pytest.mark.parametrize(
    ("text", "word"),
    [("a\nb", "line break"), ("a\0", "NUL"), ("a\rb", "carriage"), ("\x1b[0m", "control"), ("\ud800", "control")],
)
def test_text_that_nothing_can_carry_is_named(text, word):
    assert word in (names.text_problem(text) or "")


def test_ordinary_text_with_tab_quotes_and_unicode_is_carried():
    assert names.text_problem('tab\t"quoted" $(x) %h \\ ünï') is None


def test_the_nearest_names_come_first_and_all_where_none_is_alike():
    assert names.nearest("moe_runer", ["moe_runner", "moe_a2a", "host"])[0] == "moe_runner"
    assert names.suggest("moe_runer", ["moe_runner", "host"]) == "did you mean moe_runner?"
    assert names.suggest("zzz", ["moe_runner", "host"]) == "known: host, moe_runner"
    assert names.suggest("zzz", []) == "none is known"
