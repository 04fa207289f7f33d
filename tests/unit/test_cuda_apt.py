"""Sources of many hosts, and what they mean for the repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import cuda_apt
from sglang_deploy.cuda import CudaError

URL = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
RING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
OURS = "/etc/apt/keyrings/sglang-cuda.asc"
# cuda-keyring 1.1-1, as it installs it
KEYRING_LIST = f"deb [signed-by={RING}] {URL} /\n"
OWN = f"X-Repolib-Name: sglang-cuda\nTypes: deb\nURIs: {URL}\nSuites: /\nSigned-By: {OURS}\n"
UBUNTU = """Types: deb
URIs: http://archive.ubuntu.com/ubuntu/
Suites: noble noble-updates noble-backports
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

## Ubuntu security updates. Aside from URIs and Suites,
Types: deb
URIs: http://security.ubuntu.com/ubuntu/
Suites: noble-security
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
LIST, SOURCES = "/etc/apt/sources.list.d/cuda.list", "/etc/apt/sources.list.d/cuda.sources"

# name, files, key files with just the expected key, add?, conflicts
HOSTS = [
    ("bare", {"/etc/apt/sources.list.d/ubuntu.sources": UBUNTU}, [], True, 0),
    ("NVIDIA's keyring package", {LIST: KEYRING_LIST}, [RING], False, 0),
    ("its key is another", {LIST: KEYRING_LIST}, [], True, 1),
    ("ours already", {cuda_apt.OWN_SOURCE: OWN}, [OURS], False, 0),
    ("ours, key file gone", {cuda_apt.OWN_SOURCE: OWN}, [], True, 0),
    ("old one-line form, key in trusted.gpg", {"/etc/apt/sources.list": f"deb {URL} /\n"}, [], True, 1),
    ("one line beside a stanza, other key", {LIST: f"deb [trusted=yes] {URL} /\n", SOURCES: OWN}, [OURS], True, 2),
    ("both forms with two key files", {LIST: KEYRING_LIST, cuda_apt.OWN_SOURCE: OWN}, [RING, OURS], True, 1),
    ("the same twice", {LIST: KEYRING_LIST, "/etc/apt/sources.list": KEYRING_LIST}, [RING], False, 0),
    ("trusted without any check", {LIST: f"deb [signed-by={RING} trusted=yes] {URL} /\n"}, [RING], True, 1),
    ("without the last slash", {LIST: f"deb [signed-by={RING}] {URL.rstrip('/')} /\n"}, [RING], False, 0),
    ("commented out", {LIST: f"# {KEYRING_LIST}"}, [RING], True, 0),
    ("disabled stanza", {SOURCES: OWN + "Enabled: no\n"}, [OURS], True, 0),
    ("sources only", {LIST: f"deb-src [signed-by={RING}] {URL} /\n"}, [RING], True, 0),
    ("another distribution's repository", {LIST: KEYRING_LIST.replace("ubuntu2404", "ubuntu2204")}, [RING], True, 0),
    (
        "container toolkit",
        {LIST: f"deb [signed-by={RING}] https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /"},
        [RING],
        True,
        0,
    ),
    (
        "key written into the stanza",
        {SOURCES: f"Types: deb\nURIs: {URL}\nSuites: /\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ\n"},
        [],
        True,
        1,
    ),
    ("two URLs in a stanza", {SOURCES: f"Types: deb deb-src\nURIs: http://mirror/ {URL}\nSuites: /\n"}, [], True, 1),
    ("tabs, architecture, comment", {LIST: f"deb\t[ arch=amd64 signed-by={RING} ]\t{URL}\t/ # cuda\n"}, [RING], False, 0),
    ("a fingerprint for a key", {LIST: f"deb [signed-by=EB693B3035CD5710E231E123A4B469963BF863CC] {URL} /\n"}, [], True, 1),
]


def sources(files: dict[str, str]) -> list[cuda_apt.Source]:
    return [source for file, text in files.items() for source in cuda_apt.parse_sources(file, text)]


@pytest.mark.parametrize(("name", "files", "pinned", "add", "conflicts"), HOSTS, ids=[host[0] for host in HOSTS])
def test_what_a_hosts_sources_need(name: str, files: dict[str, str], pinned: list[str], add: bool, conflicts: int) -> None:
    plan = cuda_apt.decide(sources(files), URL, pinned)
    assert (plan.add, len(plan.conflicts)) == (add, conflicts)


@pytest.mark.parametrize("host", HOSTS, ids=[host[0] for host in HOSTS])
def test_what_conflicts_can_be_taken_out_and_the_rest_stays(host: tuple[str, dict[str, str], list[str], bool, int]) -> None:
    files = host[1]
    plan = cuda_apt.decide(sources(files), URL, host[2])
    after = {
        file: cuda_apt.without(text, [source for source in plan.conflicts if source.file == file])
        for file, text in files.items()
    }
    assert not cuda_apt.decide(sources(after), URL, host[2]).conflicts
    if not plan.conflicts:
        assert sources(after) == sources(files)


def test_taking_out_leaves_other_lines_alone() -> None:
    text = "# mine\ndeb http://a / \n" + KEYRING_LIST + "deb http://b /\n"
    gone = [source for source in cuda_apt.parse_sources(LIST, text) if source.url == URL]
    assert cuda_apt.without(text, gone) == "# mine\ndeb http://a / \ndeb http://b /\n"
    assert (
        cuda_apt.without("# only this\n" + KEYRING_LIST, cuda_apt.parse_sources(LIST, "# only this\n" + KEYRING_LIST)) == ""
    )


@pytest.mark.parametrize(
    ("uris", "left"),
    [
        (f"URIs: http://mirror/ {URL}\n", "URIs: http://mirror/\n"),
        (f"URIs: {URL}   http://mirror/\tfile:/srv\n", "URIs: http://mirror/ file:/srv\n"),
        (f"URIs: http://mirror/\n# NVIDIA's\n {URL}\n", "URIs: http://mirror/\n# NVIDIA's\n"),
        (f"uris:\n {URL}\n http://mirror/\n", "uris:\n http://mirror/\n"),
    ],
    ids=["last", "first", "continued", "below"],
)
def test_a_stanza_with_other_addresses_keeps_them(uris: str, left: str) -> None:
    stanza = "Types: deb deb-src\n{}Suites: /\n# of http://mirror/\nTrusted: yes\n"
    text = UBUNTU + "\n" + stanza.format(uris) + "\n" + OWN
    found = cuda_apt.parse_sources(SOURCES, text)
    assert [source.url for source in found].count(URL) == 2
    after = cuda_apt.without(text, [source for source in found if source.url == URL])
    assert after == UBUNTU + "\n" + stanza.format(left)
    assert [source.url for source in cuda_apt.parse_sources(SOURCES, after)] == [s.url for s in found if s.url != URL]


def test_a_refusal_names_each_place_and_the_way_out() -> None:
    text = cuda_apt.conflict_text(cuda_apt.parse_sources("/etc/apt/sources.list", f"\ndeb {URL} /\n"), URL)
    assert "/etc/apt/sources.list:2 (without Signed-By)" in text
    assert "cuda_toolkit_conflicts: remove" in text


@given(st.text(alphabet="deb [signed-by=]/:htps.ex\n#TypsURI ", max_size=200), st.sampled_from(["x.list", "x.sources"]))
def test_any_text_is_read(text: str, file: str) -> None:
    found = cuda_apt.parse_sources(file, text)
    assert cuda_apt.parse_sources(file, cuda_apt.without(text, found)) == []


OS = [
    ('ID=ubuntu\nVERSION_ID="24.04"\n', "amd64", "ubuntu2404/x86_64", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    (
        'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n',
        "arm64",
        "ubuntu2204/sbsa",
        "EB693B3035CD5710E231E123A4B469963BF863CC",
    ),
    ('ID=debian\nVERSION_ID="12"\n', "amd64", "debian12/x86_64", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    ("ID=debian\nVERSION_ID='13'\n", "amd64", "debian13/x86_64", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
]


@pytest.mark.parametrize(("text", "architecture", "folder", "fingerprint"), OS)
def test_the_repository_of_a_distribution(text: str, architecture: str, folder: str, fingerprint: str) -> None:
    found = cuda_apt.repository(cuda_apt.parse_os_release(text), architecture)
    assert found.url == f"{cuda_apt.BASE}/{folder}/"
    assert found.key_url.startswith(found.url) and found.key_url.endswith(".pub")
    assert found.fingerprint == fingerprint


@pytest.mark.parametrize(
    ("text", "architecture"),
    [
        ("ID=ubuntu\nVERSION_ID=26.04\n", "amd64"),
        ("ID=arch\n", "amd64"),
        ("", "amd64"),
        ("ID=debian\nVERSION_ID=12\n", "riscv64"),
    ],
)
def test_a_distribution_whose_key_is_not_known_is_refused(text: str, architecture: str) -> None:
    with pytest.raises(CudaError, match="cuda_toolkit_repository and cuda_toolkit_key_fingerprint"):
        cuda_apt.repository(cuda_apt.parse_os_release(text), architecture)


def test_a_mirror_takes_the_place_of_the_repository_and_keeps_the_pinned_key() -> None:
    noble = {"ID": "ubuntu", "VERSION_ID": "24.04"}
    found = cuda_apt.repository(noble, "amd64", "http://mirror.example.com/cuda")
    assert found.url == "http://mirror.example.com/cuda/"
    assert found.fingerprint == "EB693B3035CD5710E231E123A4B469963BF863CC"
    assert cuda_apt.repository({"ID": "arch"}, "amd64", "http://m/", "a" * 40).fingerprint == "A" * 40
    with pytest.raises(CudaError, match="set cuda_toolkit_key_fingerprint"):
        cuda_apt.repository({"ID": "arch"}, "amd64", "http://m/")


SIMULATED = """NOTE: This is only a simulation!
Reading package lists...
Inst cuda-toolkit-config-common (13.2.75-1 cuda:stable [all])
Inst cuda-nvcc-12-8 (12.8.93-1 cuda:stable [amd64])
Inst cuda-toolkit-12-8 (12.8.1-1 cuda:stable [amd64])
Conf cuda-toolkit-12-8 (12.8.1-1 cuda:stable [amd64])
"""


def test_a_toolkit_alone_may_be_installed() -> None:
    assert cuda_apt.simulated_problem("cuda-toolkit-12-8", SIMULATED, 0, [], URL) == ""


@pytest.mark.parametrize(
    "name", ["cuda-drivers", "cuda-drivers-570", "nvidia-open", "libnvidia-compute-570", "nvidia-dkms-570-open"]
)
def test_a_driver_in_its_company_is_refused(name: str) -> None:
    said = SIMULATED + f"Inst {name} (570.195.03-1 cuda:stable [amd64])\n"
    assert f"would bring a driver ({name})" in cuda_apt.simulated_problem("cuda-12-8", said, 0, [], URL)


def test_a_toolkit_that_is_not_there_names_those_that_are() -> None:
    said = "E: Unable to locate package cuda-toolkit-12-8\n"
    text = cuda_apt.simulated_problem("cuda-toolkit-12-8", said, 100, ["cuda-toolkit-13-0"], URL)
    assert text == f"{URL} has no cuda-toolkit-12-8. Toolkits that apt knows on this host: cuda-toolkit-13-0."


def test_apts_own_words_are_kept() -> None:
    said = "The following packages have unmet dependencies:\n cuda-toolkit-12-8 : Depends: cuda-nvcc-12-8 but it is\n"
    assert "Depends: cuda-nvcc-12-8 but" in cuda_apt.simulated_problem("cuda-toolkit-12-8", said, 100, [], URL)


def test_every_source_of_a_host_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text("deb http://a stable main\n", encoding="utf-8")
    (folder / "b.list").write_text("deb http://b /\n", encoding="utf-8")
    (folder / "c.sources").write_text("Types: deb\nURIs: http://c\nSuites: /\n", encoding="utf-8")
    (folder / "d.list.save").write_text("deb http://d /\n", encoding="utf-8")
    assert [source.url for source in cuda_apt.read_all(tmp_path)] == ["http://a", "http://b", "http://c"]
