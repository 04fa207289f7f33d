import copy
from pathlib import Path

import pytest
import yaml
from packaging.version import Version
from sglang_deploy import catalog, consistency
from sglang_deploy.catalog import CatalogError

ROOT = Path(__file__).parents[2] / "catalog"
CATALOG = catalog.load(ROOT)
EVIDENCE = [{"fact": "tried", "source": "here", "date": "2026-11"}]
STACK = yaml.safe_load((ROOT / "stacks.yml").read_text())["glm5-cuda128"]
PROFILE = {"summary": "mine", "status": "untried", "evidence": []}


def stack(**changes):
    return {**copy.deepcopy(STACK), **changes}


def refused(stacks=None, profiles=None):
    with pytest.raises(CatalogError) as error:
        catalog.load(ROOT, stacks, profiles)
    return "\n".join(error.value.problems)


# --- the project's own entries --------------------------------------------------------------------------------------


def test_every_stack_of_the_catalog_is_consistent():
    assert {name: consistency.check(entry, CATALOG) for name, entry in CATALOG.stacks.items()} == {
        name: [] for name in ("glm5-cuda128", "cuda13", "cpu")
    }


def test_every_profile_covers_a_stack_and_says_how_it_is_known():
    for profile in CATALOG.profiles.values():
        device = profile.fits.device
        assert any(profile.covers(s.sglang) and (s.cuda is None) == (device == "cpu") for s in CATALOG.stacks.values()), (
            profile.name
        )
        assert profile.evidence, profile.name


def test_the_default_profile_of_each_range():
    covering = {
        name: [v for v in CATALOG.recorded if CATALOG.profiles[name].covers(v)]
        for name in ("dense-mla-bf16", "dsa-native-fp8")
    }
    assert covering["dense-mla-bf16"] == ["0.5.9", "0.5.10.post1", "0.5.12", "0.5.15.post1"]
    assert covering["dsa-native-fp8"] == ["0.5.20", "0.5.23"]


def test_the_published_attempt_is_marked_refuted_with_reasons():
    profile = CATALOG.profiles["nsa-trtllm"]
    assert profile.status == "refuted"
    assert len(profile.faults) >= 5


def test_a_profile_has_what_it_extends_below_its_own():
    base, derived = CATALOG.profiles["dense-mla-bf16"], CATALOG.profiles["dense-conservative"]
    assert derived.settings["attention"] == base.settings["attention"]
    assert derived.settings["max_running_requests"] == 16
    assert "cuda_graph_max_bs" not in derived.settings  # taken out by null
    assert derived.environment == base.environment
    assert derived.fits == base.fits
    assert set(base.faults) <= set(derived.faults)


def test_upstream_is_listed_in_order_and_found_by_version():
    versions = [Version(entry.sglang) for entry in CATALOG.upstream]
    assert versions == sorted(versions)
    assert CATALOG.upstream_for("0.5.9").flashinfer == "0.6.3"
    assert CATALOG.upstream_for("0.5.10.post1").kernel == "sglang-kernel==0.4.1"
    assert CATALOG.upstream_for("main").sglang == "0.5.23"
    assert CATALOG.upstream_for("0.4.0") is None


def test_a_version_without_a_recorded_list_takes_the_one_before_it():
    assert CATALOG.dialect("0.5.9").sglang == "0.5.9"
    assert CATALOG.dialect("0.5.17").sglang == "0.5.15.post1"
    assert CATALOG.dialect("main").sglang == "0.5.23"
    assert CATALOG.dialect("0.4.0").sglang == "0.5.8.post1"


def test_a_stack_is_json_able():
    import json

    data = json.loads(json.dumps(CATALOG.stacks["cpu"].as_dict()))
    assert data["name"] == "cpu"
    assert data["source"]["version"] == data["sglang"] == "0.5.15.post1"
    assert "sglang==0.5.15.post1" in data["requirements_no_deps"]


# --- a user's own ----------------------------------------------------------------------------------------------------


def test_own_entries_are_added_and_replace_those_of_the_same_name():
    loaded = catalog.load(
        ROOT,
        {"mine": stack(summary="mine")},
        {
            "mine": {**PROFILE, "extends": "dense-mla-bf16", "settings": {"moe_runner": "flashinfer_cutlass"}},
            "cpu-lab": PROFILE,
        },
    )
    assert loaded.stacks["mine"].sglang == "0.5.9"
    assert loaded.profiles["mine"].settings["moe_runner"] == "flashinfer_cutlass"
    assert loaded.profiles["mine"].settings["attention"] == "flashinfer"
    assert loaded.profiles["cpu-lab"].summary == "mine"
    assert set(CATALOG.stacks) < set(loaded.stacks)


def test_a_stack_that_extends_another_adds_to_its_lists_and_replaces_the_rest():
    added = {"extends": "glm5-cuda128", "requirements": ["mooncake-transfer-engine"], "environment": {"A": "1"}}
    more = {"extends": "mine", "requirements": ["nixl"], "disk_mib": 1, "evidence": EVIDENCE}
    loaded = catalog.load(ROOT, {"more": more, "mine": added}).stacks
    base = CATALOG.stacks["glm5-cuda128"]
    assert (loaded["mine"].name, loaded["mine"].source, loaded["mine"].evidence) == ("mine", base.source, base.evidence)
    assert loaded["mine"].environment == {**base.environment, "A": "1"}
    assert loaded["more"].requirements == (*base.requirements, "mooncake-transfer-engine", "nixl")
    assert loaded["more"].disk_mib == 1
    assert [item.fact for item in loaded["more"].evidence] == [*(item.fact for item in base.evidence), "tried"]
    assert consistency.check(loaded["more"], catalog.load(ROOT, {"more": more, "mine": added})) == []
    assert loaded["glm5-cuda128"] == base


@pytest.mark.parametrize(
    ("stacks", "text"),
    [
        (
            {"mine": stack(flashinver="0.6.3")},
            "sglang_stacks, mine: unknown field 'flashinver'; did you mean flashinfer?",
        ),
        ({"mine": {"summary": "x"}}, "field 'sglang' is missing"),
        ({"mine": stack(torch=2.9)}, "torch: is a number (2.9), should be text; put it in quotes"),
        ({"mine": stack(python="3.10+")}, "'3.10+' is not a version range"),
        ({"mine": stack(evidence=[])}, "evidence is missing"),
        ({"mine": stack(evidence=[{"fact": "x"}])}, "evidence[1]: field 'source' is missing"),
        ({"mine": stack(source={"kind": "pip"})}, "source, kind: 'pip' is not known; known: git, index, wheelhouse"),
        ({"mine": stack(source={"kind": "git", "url": "x"})}, "needs 'ref'"),
        ({"mine": stack(proofs=["sm121"])}, "'sm121' is not known"),
        ({"mine": stack(constraints="constraints/none.txt")}, "there is no file constraints/none.txt"),
        ({"mine": stack(settings={"tp": 8})}, "unknown setting 'tp'"),
        ({"mine": stack(environment={"A B": "x"})}, "environment name 'A B' is not allowed"),
        ({"mine": stack(environment={"A": "x\ny"})}, "line break"),
        ({"mine": stack(environment={"A": 1})}, "put it in quotes"),
        ({"mine": "0.5.9"}, "is text, should be a mapping"),
        (["mine"], "sglang_stacks: should be a mapping"),
        ({"mine": {"extends": "glm5-cuda12"}}, "mine, extends: unknown stack 'glm5-cuda12'; did you mean glm5-cuda128?"),
        ({"mine": {"extends": ["cpu"]}}, "mine, extends: unknown stack ['cpu']"),
        ({"cpu": {"extends": "cpu"}}, "cpu: extends itself: cpu -> cpu; what extends a stack has a name of its own"),
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, "a: extends itself: a -> b -> a"),
        ({"a": {"extends": "b"}, "b": "text"}, "sglang_stacks, a: is text, should be a mapping"),
        ({"mine": {"extends": "cpu", "torch": 2.9}}, "mine, torch: is a number (2.9)"),
    ],
)
def test_a_wrong_stack_is_refused_with_its_place(stacks, text):
    assert text in refused(stacks=stacks)


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        ({**PROFILE, "setings": {}}, "unknown field 'setings'; did you mean settings?"),
        ({**PROFILE, "settings": {"moe_runer": "cutlass"}}, "unknown setting 'moe_runer'; did you mean moe_runner"),
        ({**PROFILE, "settings": {"port": "http"}}, "settings, port: 'http' is not a whole number"),
        ({**PROFILE, "status": "good"}, "status: 'good' is not known; known: refuted, untried, works"),
        ({**PROFILE, "status": "works"}, "status works needs evidence"),
        ({**PROFILE, "status": "refuted", "evidence": EVIDENCE}, "status refuted needs faults"),
        ({**PROFILE, "extends": "dense-mla"}, "unknown profile 'dense-mla'; did you mean dense-mla-bf16"),
        ({**PROFILE, "extends": "mine"}, "extends itself: mine -> mine"),
        ({**PROFILE, "for": {"sglang": "0.5.9"}}, "'0.5.9' is not a version range"),
        ({**PROFILE, "for": {"chip": ["12.0"]}}, "for: unknown field 'chip'"),
        ({**PROFILE, "environment": {"X": True}}, "should be text"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_place(profile, text):
    message = refused(profiles={"mine": profile})
    assert text in message
    assert "sglang_profiles, mine" in message


def test_a_cycle_of_profiles_is_named():
    text = refused(
        profiles={"a": {**PROFILE, "extends": "b"}, "b": {**PROFILE, "extends": "c"}, "c": {**PROFILE, "extends": "b"}}
    )
    assert "b -> c -> b" in text


def test_all_that_is_wrong_is_said_at_once():
    text = refused(
        {"one": stack(torch=2), "two": stack(python="x")}, {"three": {**PROFILE, "extends": "x", "settings": {"y": 1}}}
    )
    assert all(place in text for place in ("one, torch", "two, python", "unknown setting 'y'", "unknown profile 'x'"))


@pytest.mark.parametrize("text", ["[]", "a: [", "- {sglang: 1}"])
def test_a_broken_catalog_file_is_named(tmp_path, text):
    for path in ROOT.glob("*.yml"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "options.yml").write_text(text)
    with pytest.raises(CatalogError, match=r"options\.yml"):
        catalog.load(tmp_path)
    (tmp_path / "options.yml").unlink()
    with pytest.raises(CatalogError, match="cannot be read"):
        catalog.load(tmp_path)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("x: {type: text, summary: s, options: [--x]}", "type: 'text' is not known"),
        ("x: {type: string, summary: s, option: [--x]}", "unknown field 'option'"),
        ("x: {type: string, summary: s}", "any other type takes options"),
        ("x: {type: bool, summary: s, options: [--x]}", "a bool takes if_true"),
        ("x: {type: string, summary: s, options: [x]}", "starts with an option"),
        (
            "x: {type: string, summary: s, options: [--x]}\n  y: {type: string, summary: s, options: [--x]}",
            "already belongs to x",
        ),
    ],
)
def test_a_wrong_option_entry_is_refused(tmp_path, entry, text):
    for path in ROOT.glob("*.yml"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "options.yml").write_text(f"settings:\n  {entry}\n")
    with pytest.raises(CatalogError) as error:
        catalog.load(tmp_path)
    assert text in str(error.value)


# --- versions that do not fit ----------------------------------------------------------------------------------------


def inconsistencies(**changes):
    entry = catalog.load(ROOT, {"mine": stack(**changes)}).stacks["mine"]
    return {found.id: found for found in consistency.check(entry, CATALOG)}


def test_todays_main_with_cuda_12_8_is_refused_and_the_stack_that_fits_is_named():
    found = {problem.id: problem for problem in consistency.check(CATALOG.stacks["glm5-cuda128"].at("main"), CATALOG)}
    assert {"cuda-too-old", "transformers-below-pin", "python-range"} <= set(found)
    assert found["cuda-too-old"].nearest == "cuda13"
    assert "CUDA 12.8" in found["cuda-too-old"].reason
    assert "The nearest consistent stack is cuda13." in str(found["cuda-too-old"])


@pytest.mark.parametrize(("ref", "sglang"), [("main", "main"), ("v0.5.10", "0.5.10"), ("1234abc", "0.5.9")])
def test_another_ref_changes_the_version_only_where_it_says_one(ref, sglang):
    assert CATALOG.stacks["glm5-cuda128"].at(ref).sglang == sglang


@pytest.mark.parametrize(
    ("changes", "id_"),
    [
        ({"transformers": "5.1.0", "overrides": ["transformers==5.1.0"]}, "transformers-without-glm5"),
        ({"transformers": "4.56.0", "overrides": [], "architectures": []}, "transformers-below-pin"),
        ({"flashinfer": "0.6.12"}, "flashinfer-refuses-nvcc"),
        ({"flashinfer": "0.6.18.post1"}, "flashinfer-refuses-nvcc"),
        ({"flashinfer": "0.6.12", "environment": {"FLASHINFER_CUDA_ARCH_LIST": "12.0"}}, "flashinfer-refuses-nvcc"),
        ({"driver": ">=550"}, "driver-floor"),
        ({"driver": None}, "missing-pin"),
        ({"torch": None}, "missing-pin"),
        ({"kernel": None}, "missing-pin"),
        ({"overrides": ["transformers==5.3.0"]}, "requirement-version"),
        ({"requirements": ["torch=2.9"]}, "requirement"),
        ({"sglang": "0.5.8.post1"}, "source-version"),
        (
            {"sglang": "0.5.8.post1", "source": {"kind": "git", "url": "x", "ref": "v0.5.8.post1"}},
            "sglang-without-glm5",
        ),
        ({"sglang": "0.5.12", "source": {"kind": "git", "url": "x", "ref": "v0.5.12"}}, "cuda-too-old"),
        ({"sglang": "0.5.22", "source": {"kind": "git", "url": "x", "ref": "v0.5.22"}}, "python-range"),
    ],
)
def test_versions_that_do_not_fit_are_refused(changes, id_):
    found = inconsistencies(**changes)
    assert id_ in found
    assert (
        found[id_].nearest == "glm5-cuda128" or "0.5.2" in changes.get("sglang", "") or "0.5.12" in changes.get("sglang", "")
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"flashinfer": "0.6.6"},
        {"flashinfer": "0.6.12", "environment": {"FLASHINFER_CUDA_ARCH_LIST": "12.0a"}},
        {"flashinfer": "0.7.1"},
        {"driver": ">=580"},
        {"cuda": "12.9", "driver": ">=575", "flashinfer": "0.6.12"},
        {"source": {"kind": "git", "url": "x", "ref": "0123abc"}},
    ],
)
def test_versions_that_fit_are_accepted(changes):
    assert inconsistencies(**changes) == {}
