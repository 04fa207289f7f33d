"""The decode check against servers that are broken on purpose."""

from __future__ import annotations

import json
import ssl
import subprocess
import time

import pytest
from sglang_deploy.decode_check import (
    BadServer,
    Expectations,
    ExtraCheck,
    Limits,
    Outcome,
    Server,
    UnknownLevel,
    Verdict,
    names,
    run,
)
from stubs import broken
from stubs.honest import VOCABULARY, Honest

LIMITS = Limits(connect=1.0, silence=1.0, check=2.0, total=30.0, freed=0.5, soak=0.3)
# Where no limit is to be met: how busy this machine is says nothing of the server.
PATIENT = Limits(connect=10.0, silence=20.0, check=60.0, total=300.0, freed=0.5, soak=0.3)


def check(server: Honest, level: str = "full", kind: str = "auto", limits: Limits = PATIENT, **expect: object) -> Verdict:
    wanted: dict[str, object] = {"model": "stub", "real_model": server.trained, "vocab_size": VOCABULARY}
    wanted |= {"reasoning_parser": "glm45", "tool_call_parser": "glm47"}
    return run(Server(server.url, limits=limits, kind=kind), level, Expectations(**(wanted | expect)))  # type: ignore[arg-type]


def find(verdict: Verdict, name: str):
    return next(c for c in verdict.checks if c.name == name)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("level", ["quick", "full", "soak"])
def test_honest_server_passes(trained: bool, level: str) -> None:
    with Honest(trained) as server:
        verdict = check(server, level)
    assert verdict.ok, verdict.lines()
    assert [c.name for c in verdict.checks] == list(names(level))
    assert verdict.answer and verdict.answer["text"]
    for name in (
        "greedy_chat",
        "greedy_generate",
        "sampled_chat",
        "sampled_generate",
        "stream",
        "logprobs",
        "repeat",
        "burst",
        "alive",
    ):
        assert find(verdict, name).ok is True
    if trained:
        assert find(verdict, "known_answers").ok is True
        if level != "quick":
            assert all(find(verdict, n).ok is True for n in names("full")[1:])


@pytest.mark.parametrize("trained", [False, True])
def test_honest_server_passes_twenty_times(trained: bool) -> None:
    with Honest(trained) as server:
        assert [check(server, "quick" if trained else "full").ok for _ in range(20)] == [True] * 20


def test_honest_openai_server_passes_without_native_endpoints() -> None:
    with Honest(trained=True) as server:
        verdict = check(server, kind="openai")
        assert not {"/generate", "/server_info", "/get_load"} & set(server.requests)
    assert verdict.ok, verdict.lines()
    assert find(verdict, "greedy_generate").ok is None
    assert "not applicable" in find(verdict, "greedy_generate").summary


def test_a_server_without_logprobs_is_judged_by_text_unless_it_is_sglang() -> None:
    class Without(Honest):
        def chat_body(self, said):
            body = super().chat_body(said)
            body["choices"][0]["logprobs"] = None
            return body

        def stream_events(self, said):
            for event in super().stream_events(said):
                for choice in event["choices"]:
                    choice["logprobs"] = None
                yield event

    with Without(trained=True) as server:
        other, sglang = check(server, kind="openai"), check(server)
    assert other.ok, other.lines()
    assert find(other, "logprobs").ok is None
    assert find(sglang, "greedy_chat").summary == "/v1/chat/completions gave no log-probabilities"


CONTROLS = [
    # server, trained, check that must refuse it, words of its summary
    (broken.NullLogprobs, False, "greedy_chat", "the logits are NaN"),
    (broken.NullLogprobs, True, "greedy_chat", "the logits are NaN"),
    (broken.NanLiteral, False, "greedy_chat", "the logits are NaN"),
    (broken.NanLiteral, False, "logprobs", "the logits are NaN"),
    (broken.Uniform, False, "greedy_chat", "the logits are NaN and were sanitised"),
    (broken.Uniform, False, "sampled_generate", "-ln(1000)"),
    (broken.UniformWithoutAlternatives, False, "greedy_generate", "the logits are NaN and were sanitised"),
    (broken.OneBadExpert, False, "logprobs", "the logits are NaN: 1 of"),
    (broken.OneBadExpertSanitised, False, "logprobs", "at 1 of"),
    (broken.Looping, True, "text", "repeats itself"),
    (broken.Mojibake, True, "text", "replacement characters"),
    (broken.Leaking, True, "greedy_chat", "special tokens in the text: <|user|>"),
    (broken.Ignorant, True, "known_answers", "got 'I like the sea"),
    (broken.Ignorant, True, "burst", "not its own code"),
    (broken.Unsplit, True, "reasoning", "</think>"),
    (broken.Empty, False, "greedy_chat", "empty answer"),
    (broken.Empty, True, "greedy_chat", "empty answer"),
    (broken.WrongToolArguments, True, "tools", "lacks 'city'"),
    (broken.WrongToolArguments, True, "tools", "'kelvin', not one of"),
    (broken.WrongToolArgumentsAtRandom, False, "tools", "lacks 'city'"),
    (broken.OtherCity, True, "tools", "do not answer the question"),
    (broken.MixedUp, False, "burst", "differ from the same prompt alone"),
    (broken.MixedUp, True, "burst", "mixed up under concurrency"),
    (broken.Unsteady, False, "repeat", "no near tie"),
    (broken.StaleCache, False, "prefix_cache", "cached and uncached answers differ"),
    (broken.ChunkBug, False, "long_prompt", "cached and uncached answers differ"),
    (broken.OtherStream, False, "stream", "the stream differs"),
    (broken.OtherStream, True, "stream", "the stream differs"),
    (broken.LostText, True, "stream", "the stream differs"),
    (broken.StreamWithoutEnd, False, "stream", "within 2.0 s"),
    (broken.SlotKept, False, "cancel", "its slot is not freed"),
    (broken.SlotKept, True, "cancel", "its slot is not freed"),
    (broken.OneSlotKept, False, "cancel", "no complete answer within|nothing came"),
    (broken.OverflowAccepted, False, "overflow", "gets 200"),
    (broken.OverflowFails, False, "overflow", "500 instead of 400"),
    (broken.DiesAfterFirst, False, "alive", "no longer answers"),
    (broken.DiesOfOverflow, False, "overflow", "RemoteDisconnected"),
    (broken.Failing, False, "greedy_chat", "HTTP 500"),
    (broken.Denying, False, "greedy_chat", "another api key"),
    (broken.SlowDrip, False, "greedy_chat", "no complete answer within 2.0 s"),
    (broken.SlowHeaders, False, "greedy_chat", "no complete answer within 2.0 s"),
    (broken.Silent, False, "greedy_chat", "nothing came for 1 s"),
    (broken.MalformedJson, False, "greedy_chat", "not JSON"),
    (broken.NotUtf8, False, "greedy_chat", "not JSON"),
    (broken.DeepJson, False, "greedy_chat", "not JSON"),
    (broken.OtherShape, False, "greedy_chat", "is no object"),
    (broken.TextLogprob, False, "greedy_chat", "is no number"),
    (broken.HugeAnnounced, False, "greedy_chat", "announces 100000000 bytes"),
    (broken.HugeUnannounced, False, "greedy_chat", "longer than the"),
    (broken.ShortBody, False, "greedy_chat", "ended after 15 of 5000 bytes|IncompleteRead"),
    (broken.NotHttp, False, "greedy_chat", "BadStatusLine"),
]


SLOW = (broken.StreamWithoutEnd, broken.OneSlotKept, broken.SlowDrip, broken.SlowHeaders, broken.Silent)
"""Those that are refused by a limit of time."""


@pytest.mark.parametrize(("control", "trained", "name", "words"), CONTROLS, ids=lambda v: getattr(v, "__name__", None))
def test_broken_server_is_refused_by_name_and_in_time(control: type[Honest], trained: bool, name: str, words: str) -> None:
    limits = LIMITS if control in SLOW else PATIENT
    begun = time.monotonic()
    with control(trained) as server:
        verdict = check(server, limits=limits)
    assert time.monotonic() - begun < limits.total
    assert not verdict.ok
    refused = find(verdict, name)
    assert refused.ok is False, verdict.lines()
    assert any(w in refused.summary for w in words.split("|")), refused.summary
    assert all(c.seconds <= limits.check + 0.5 for c in verdict.checks), verdict.lines()
    json.dumps(verdict.as_dict(), allow_nan=False)


def test_redirect_is_never_followed() -> None:
    with Honest() as elsewhere, broken.Redirecting() as server:
        server.elsewhere = elsewhere.url
        verdict = check(server)
        assert elsewhere.requests == []
    assert find(verdict, "greedy_chat").ok is False
    assert "redirected (302)" in find(verdict, "greedy_chat").summary


def test_nothing_listening() -> None:
    with Honest() as server:
        url = server.url
    verdict = run(Server(url, limits=LIMITS), "quick", Expectations())
    assert not verdict.ok
    assert find(verdict, "server").ok is False
    assert "refused" in find(verdict, "server").summary
    assert {c.name for c in verdict.checks} == set(names("quick"))
    assert find(verdict, "burst").summary == "not run: the server is not usable"


def test_a_silent_server_ends_the_run_at_its_first_check() -> None:
    with broken.Silent() as server:
        verdict = check(server, limits=LIMITS)
    assert verdict.seconds < 5
    assert find(verdict, "stream").ok is None
    assert find(verdict, "stream").summary.startswith("not run: greedy_chat")
    assert find(verdict, "alive").ok is False


def test_total_time_is_bounded() -> None:
    with Honest() as server:
        tight = Limits(connect=1.0, silence=1.0, check=2.0, total=0.05)
        verdict = run(Server(server.url, limits=tight), "full", Expectations(model="stub"))
    assert not verdict.ok
    assert verdict.seconds < 4


def test_another_model_is_refused() -> None:
    with Honest() as server:
        verdict = check(server, "quick", model="glm-5")
    assert find(verdict, "models").ok is False
    assert find(verdict, "models").summary == "the server serves stub, not glm-5"


def test_extra_checks_see_the_servers_own_settings_and_cannot_break_the_run() -> None:
    def effective(info) -> Outcome:
        return Outcome(info["chunked_prefill_size"] == 4096, "chunked_prefill_size: asked 4096, runs 512")

    def wild(info) -> Outcome:
        raise KeyError("attention_backend")

    extra = (ExtraCheck("effective", effective), ExtraCheck("wild", wild))
    with Honest() as server:
        verdict = check(server, "quick", extra=extra)
        openai = check(server, "quick", kind="openai", extra=extra)
    assert find(verdict, "effective").ok is False
    assert "KeyError" in find(verdict, "wild").summary
    assert find(openai, "effective").ok is None


def test_kind_sglang_is_demanded() -> None:
    class Other(Honest):
        def reply(self, handler, body, status=200):
            super().reply(handler, body, 404 if handler.path == "/server_info" else status)

    with Other(trained=True) as server:
        assert check(server).kind == "openai"
        verdict = check(server, kind="sglang")
    assert find(verdict, "server").ok is False
    assert "/server_info" in find(verdict, "server").summary


def test_api_key_is_sent_and_never_told() -> None:
    key = "sk-very-secret"

    class Keyed(Honest):
        def handle(self, handler, payload):
            if handler.path == "/server_info":
                self.reply(handler, {"model_path": "/m", "api_key": key, "admin_api_key": "sk-wrong", "tp_size": 8})
                return
            right = handler.headers["Authorization"] == f"Bearer {key}"
            if right:
                super().handle(handler, payload)
            else:
                self.reply(handler, {"message": "no"}, 401)

    with Keyed() as server:
        good = run(Server(server.url, api_key=key, limits=LIMITS), "quick", Expectations())
        bad = run(Server(server.url, api_key="sk-wrong", limits=LIMITS), "quick", Expectations())
    assert good.ok, good.lines()
    assert good.effective == {"model_path": "/m", "tp_size": 8}
    assert "another api key" in find(bad, "server").summary
    for verdict, secret in ((good, key), (bad, "sk-wrong")):
        assert secret not in json.dumps(verdict.as_dict())
    assert key not in repr(Server("http://127.0.0.1:1", api_key=key))


@pytest.mark.parametrize(
    ("url", "more", "words"),
    [
        ("127.0.0.1:8000", {}, "write http://"),
        ("ftp://host", {}, "write http://"),
        ("http://", {}, "write http://"),
        ("http://host:99999", {}, "Port out of range"),
        ("http://user:pass@host", {}, "user name"),
        ("http://host/?key=1", {}, "query"),
        ("http://host", {"kind": "vllm"}, "one of auto, sglang, openai"),
        ("http://host", {"api_key": "a\nb"}, "line breaks"),
    ],
)
def test_wrong_server_is_refused_before_any_request(url: str, more: dict[str, str], words: str) -> None:
    with pytest.raises(BadServer, match=words):
        Server(url, **more)


def test_wrong_ca_file_and_level() -> None:
    with pytest.raises(BadServer, match="ca_file '/nowhere'"):
        run(Server("https://127.0.0.1:1", ca_file="/nowhere"), "quick", Expectations())
    with pytest.raises(UnknownLevel, match="one of quick, full, soak"):
        run(Server("http://127.0.0.1:1"), "deep", Expectations())


def test_tls_is_verified_unless_told_otherwise(tmp_path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    argv += ["-subj", "/CN=stub", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)

    class Secure(Honest):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    Secure.tls.load_cert_chain(certificate, key)
    with Secure() as server:
        trusted = run(Server(server.url, ca_file=str(certificate), limits=LIMITS), "quick", Expectations())
        unverified = run(Server(server.url, verify=False, limits=LIMITS), "quick", Expectations())
        strict = run(Server(server.url, limits=LIMITS), "quick", Expectations())
    assert trusted.ok, trusted.lines()
    assert unverified.ok, unverified.lines()
    assert "TLS failed" in find(strict, "server").summary


def test_lines_show_failures_first() -> None:
    with broken.Looping(trained=True) as server:
        lines = check(server).lines()
    assert lines[0].startswith("FAILED")
    assert any("text" in line.split()[1] for line in lines if line.startswith("FAILED"))


def test_half_a_server_is_not_asked_for_answers_and_has_to_be_there() -> None:
    with Honest(trained=False) as server:
        verdict = check(server, "part")
    assert verdict.ok, verdict.lines()
    assert [c.name for c in verdict.checks] == ["process", "server", "alive"]
    assert "gate of their router" in find(verdict, "alive").summary
    gone = run(Server(server.url, limits=LIMITS), "part", Expectations())
    assert not gone.ok
