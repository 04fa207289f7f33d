"""What a host's driver needs, by the texts of many hosts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_deploy import driver, driver_look
from sglang_deploy.driver import Evidence, Loaded, OnDisk, Package, Wanted

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {0}  Release Build  (dvs-builder@U22-I3-H04-03-1)  Sat Sep 20 00:47:16 UTC 2025\nGCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"  # noqa: E501
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {0}  Thu Oct 10 21:57:56 UTC 2024\nGCC version:  gcc version 11.4.0\n"
)
LOADED = [
    (OPEN.format("570.195.03"), Loaded("570.195.03", True)),
    (OPEN.format("580.95.05"), Loaded("580.95.05", True)),
    (OPEN.format("580.142"), Loaded("580.142", True)),
    (CLOSED.format("535.216.03"), Loaded("535.216.03", False)),
    (CLOSED.format("565.57.01"), Loaded("565.57.01", False)),
    (OPEN.replace("x86_64", "aarch64").format("575.57.08"), Loaded("575.57.08", True)),
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  520.61.05  Thu Sep 29 05:30:25 UTC 2022", Loaded("520.61.05", False)),
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build\n", Loaded("580.142", True)),
    ("", None),
    ("NVRM version: something else\n", None),
]


@pytest.mark.parametrize(("text", "loaded"), LOADED)
def test_the_loaded_module_is_read(text: str, loaded: Loaded | None) -> None:
    assert driver.parse_loaded(text) == loaded


MODINFO = """filename:       /lib/modules/6.8.0-60-generic/updates/dkms/nvidia.ko.zst
alias:          char-major-195-*
version:        {version}
supported:      external
license:        {licence}
firmware:       nvidia/{version}/gsp_tu10x.bin
srcversion:     1D87E7BE6E9E6D0B5B5A5B9
vermagic:       6.8.0-60-generic SMP preempt mod_unload modversions
{signature}parm:           NvSwitchRegDwords:NvSwitch regkey (charp)
"""
SIGNED = "sig_id:         PKCS#7\nsigner:         {0}\nsig_key:        1C:4E\nsig_hashalgo:   sha512\n"
MOK = "gpu1 Secure Boot Module Signature key"
CANONICAL = "Canonical Ltd. Kernel Module Signing"
KEYS = f"2f1b1b1a I------     1 perm 1f010000     0     0 asymmetri {CANONICAL}: 88f752e560a1e0737e31163a466ad7b70a850c19: X509.rsa 0a850c19 []\n"  # noqa: E501


def modinfo(version: str = "570.195.03", licence: str = "Dual MIT/GPL", signer: str = "") -> str:
    return MODINFO.format(version=version, licence=licence, signature=SIGNED.format(signer) if signer else "")


def test_the_module_on_disk_is_read() -> None:
    assert driver.parse_module(modinfo()) == OnDisk("570.195.03", True)
    assert driver.parse_module(modinfo(licence="NVIDIA", signer=MOK)) == OnDisk("570.195.03", False, MOK)
    assert driver.parse_module("modinfo: ERROR: Module nvidia not found.\n") is None


DPKG = """libnvidia-compute-570-server\t570.195.03-0ubuntu0.24.04.1\tinstall\tinstalled
nvidia-headless-570-server-open\t570.195.03-0ubuntu0.24.04.1\thold\tinstalled
nvidia-utils-550\t550.120-0ubuntu1\tdeinstall\tconfig-files
nvidia-container-toolkit\t1.17.8-1\tinstall\tinstalled
libnvidia-container1\t1.17.8-1\tinstall\tinstalled
nvidia-settings\t570.195.03-0ubuntu1\tinstall\tinstalled
linux-modules-nvidia-570-server-open-generic\t6.8.0-60.63+1\tinstall\tinstalled
nvidia-prime\t0.8.17.2\tunknown\tnot-installed
"""


def test_packages_of_the_driver_are_told_from_others() -> None:
    found = driver.parse_packages(DPKG)
    assert [(package.name, package.held) for package in found] == [
        ("libnvidia-compute-570-server", False),
        ("nvidia-headless-570-server-open", True),
        ("nvidia-settings", False),
        ("linux-modules-nvidia-570-server-open-generic", False),
    ]
    assert Evidence(packages=found).libraries == "570.195.03"
    older = driver.Package("libnvidia-compute-570", "1:570.86.15-1", held=False)
    assert Evidence(packages=(older, *found)).libraries == "570.195.03", "versions are compared as numbers"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("570.195.03-0ubuntu0.24.04.1", "570.195.03"),
        ("1:580.95.05-1", "580.95.05"),
        ("580.142-1", "580.142"),
        ("1.17.8-1", None),
        ("12.8.1-1", None),
        ("6.8.0-60.63+1", None),
    ],
)
def test_versions_of_packages(text: str, version: str | None) -> None:
    assert driver.driver_version(text) == version


def test_secure_boot_is_read() -> None:
    assert driver.parse_secure_boot(b"\x06\0\0\0\x01") is True
    assert driver.parse_secure_boot(b"\x06\0\0\0\x00") is False
    assert driver.parse_secure_boot(None) is driver.parse_secure_boot(b"") is None


LIB = "libnvidia-compute-570-server"
WANTED = Wanted(">=570", {"/etc/a": "x"}, ("nvidia_uvm uvm_disable_hmm=1",))
GOOD = Evidence(
    loaded=Loaded("570.195.03", True),
    on_disk=OnDisk("570.195.03", True, MOK),
    packages=(Package(LIB, "570.195.03-0ubuntu1", True),),
    signatures=False,
    files={"/etc/a": "x"},
    parameters={"nvidia_uvm uvm_disable_hmm": "Y"},
)
OLD = (Package(LIB, "550.120-0ubuntu1", False),)
NEW = (Package(LIB, "570.211.01-0ubuntu1", False),)

# name, evidence, what the judgement is about, words of it, blocking
HOSTS = [
    ("as it should be", GOOD, "", "", False),
    ("bare", Evidence(), "install", "No driver is installed", False),
    ("bare with nouveau", Evidence(nouveau=True), "install", "No driver", False),
    ("libraries of another driver", replace(GOOD, packages=OLD), "refuse", "booting would not help", False),
    (
        "too old",
        replace(GOOD, packages=OLD, loaded=Loaded("550.120", True), on_disk=OnDisk("550.120", True)),
        "install",
        "Driver 550.120 is installed, and the stack needs >=570",
        False,
    ),
    (
        "proprietary",
        replace(GOOD, loaded=Loaded("570.195.03", False), on_disk=OnDisk("570.195.03", False)),
        "install",
        "do not know Blackwell",
        False,
    ),
    (
        "upgraded overnight",
        replace(GOOD, packages=NEW, on_disk=OnDisk("570.211.01", True)),
        "reboot",
        "until they agree",
        True,
    ),
    (
        "upgraded, module not built",
        replace(GOOD, packages=NEW),
        "refuse",
        "there is module 570.195.03 for this kernel",
        False,
    ),
    (
        "upgraded, no module",
        replace(GOOD, packages=NEW, on_disk=None),
        "refuse",
        "there is no module for this kernel",
        False,
    ),
    (
        "installed, module not built",
        replace(GOOD, loaded=None, on_disk=None),
        "refuse",
        "no module for the running kernel",
        False,
    ),
    ("installed, not booted", replace(GOOD, loaded=None), "reboot", "installed and not loaded.", True),
    ("installed over nouveau", replace(GOOD, loaded=None, nouveau=True), "reboot", "nouveau holds the GPUs", True),
    (
        "open installed, closed loaded",
        replace(GOOD, loaded=Loaded("570.195.03", False)),
        "reboot",
        "proprietary module is loaded",
        True,
    ),
    ("HMM still on", replace(GOOD, parameters={"nvidia_uvm uvm_disable_hmm": "N"}), "reboot", "uvm_disable_hmm=1", False),
    ("kernel does not show the option", replace(GOOD, parameters={}), "", "", False),
    (
        "Secure Boot, unsigned",
        replace(GOOD, loaded=None, signatures=True, on_disk=OnDisk("570.195.03", True)),
        "refuse",
        "is not signed.*Key was rejected",
        False,
    ),
    (
        "Secure Boot, own key",
        replace(GOOD, loaded=None, signatures=True, keys=KEYS),
        "refuse",
        "not enrolled.*mokutil --import",
        False,
    ),
    ("Secure Boot, own key enrolled", replace(GOOD, signatures=True, keys=KEYS + MOK), "", "", False),
    (
        "Secure Boot, Canonical's module",
        replace(GOOD, signatures=True, keys=KEYS, on_disk=OnDisk("570.195.03", True, CANONICAL)),
        "",
        "",
        False,
    ),
    ("Secure Boot, nothing installed", Evidence(signatures=True), "install", "No driver", False),
    ("no EFI", replace(GOOD, signatures=None, on_disk=OnDisk("570.195.03", True)), "", "", False),
    ("runfile, good", replace(GOOD, packages=(), on_disk=OnDisk("570.195.03", True)), "", "", False),
    ("runfile, too old", replace(GOOD, packages=(), loaded=Loaded("550.54.14", True)), "refuse", "nvidia-uninstall", False),
    ("runfile, proprietary", replace(GOOD, packages=(), loaded=Loaded("570.86.16", False)), "refuse", "runfile", False),
]


@pytest.mark.parametrize(("name", "seen", "about", "words", "blocking"), HOSTS, ids=[host[0] for host in HOSTS])
def test_judgement(name: str, seen: Evidence, about: str, words: str, blocking: bool) -> None:
    found = driver.judge(seen, WANTED)
    said = {"refuse": found.refuse, "install": found.install, "reboot": found.reboot}
    assert [kind for kind, text in said.items() if text] == ([about] if about else [])
    if about:
        assert re.search(words, said[about]), said[about]
    assert found.blocking is blocking


def test_what_is_not_held_and_what_differs() -> None:
    found = driver.judge(
        replace(GOOD, packages=(*GOOD.packages, Package("nvidia-utils-570-server", "570.195.03-0", False))), WANTED
    )
    assert found.hold == ("nvidia-utils-570-server",)
    assert driver.judge(replace(GOOD, files={"/etc/a": None}), WANTED).write == ("/etc/a",)
    assert driver.judge(GOOD, WANTED) == driver.Judgement()


def test_packages_of_a_branch() -> None:
    assert driver.packages_for("ubuntu", ">=570", "6.8.0-60-generic") == [
        "linux-headers-6.8.0-60-generic",
        "nvidia-headless-570-server-open",
        "nvidia-utils-570-server",
    ]
    assert driver.packages_for("ubuntu", ">=570,<600", "6.8.0", 580)[1] == "nvidia-headless-580-server-open"
    with pytest.raises(driver.DriverError, match="below the stack's floor"):
        driver.packages_for("ubuntu", ">=580", "6.8.0", 570)
    with pytest.raises(driver.DriverError, match="nvidia_driver_packages"):
        driver.packages_for("debian", ">=570", "6.1.0")
    with pytest.raises(driver.DriverError, match="write for example"):
        driver.packages_for("ubuntu", "570", "6.8.0")


def test_a_host_is_read_from_its_files(tmp_path: Path) -> None:
    for path, content in {
        "proc/driver/nvidia/version": OPEN.format("570.195.03").encode(),
        "proc/keys": KEYS.encode(),
        "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": b"N\n",
        "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\x06\0\0\0\x01",
        "etc/modprobe.d/x.conf": b"options a\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    seen = driver_look.look(["/etc/modprobe.d/x.conf", "/etc/none"], ["nvidia-uvm uvm_disable_hmm=1"], tmp_path)
    assert seen.loaded == Loaded("570.195.03", True)
    assert seen.signatures is True and CANONICAL in seen.keys and not seen.nouveau
    assert seen.files == {"/etc/modprobe.d/x.conf": "options a\n", "/etc/none": None}
    assert seen.parameters == {"nvidia_uvm uvm_disable_hmm": "N"}
    assert driver_look.look(root=tmp_path / "nothing").signatures is None


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    driver.parse_loaded(text), driver.parse_module(text), driver.parse_packages(text)
