"""How containers run is decided from evidence: what was seen on several kinds of machines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sglang_deploy import lab

DEBIAN = ("deb http://mirror.example/debian bookworm main",)
HYBRID = lab.Evidence(
    system="debian",
    codename="bookworm",
    root=True,
    cgroup="v1",
    tools={"podman": True, "runc": True, "crun": False, "mmdebstrap": True, "ssh": True},
    nofile=20000,
    nproc=96364,
    pid_max=32768,
    deb_lines=DEBIAN,
    apt_options=(),
)
UNIFIED = replace(
    HYBRID,
    system="ubuntu",
    codename="noble",
    cgroup="v2",
    tools=dict.fromkeys(HYBRID.tools, False),
    nofile=None,
    nproc=None,
    pid_max=4194304,
)


def test_hybrid_control_groups_need_runc_and_limits_that_can_be_had() -> None:
    plan = lab.decide(HYBRID)
    assert plan.runtime == "runc"
    assert plan.packages == ()
    assert "--ulimit=nofile=20000:20000" in plan.run_arguments
    assert "--ulimit=nproc=32768:32768" in plan.run_arguments


def test_hybrid_control_groups_do_not_take_crun_even_if_it_is_there() -> None:
    tools = {**HYBRID.tools, "crun": True, "runc": False}
    plan = lab.decide(replace(HYBRID, tools=tools))
    assert plan.runtime == "runc"
    assert plan.packages == ("runc",)


def test_a_bare_machine_with_unified_groups_gets_crun_and_full_limits() -> None:
    plan = lab.decide(UNIFIED)
    assert plan.runtime == "crun"
    assert plan.packages == ("podman", "crun", "mmdebstrap", "openssh-client")
    assert "--ulimit=nofile=1048576:1048576" in plan.run_arguments
    assert "--ulimit=nproc=65536:65536" in plan.run_arguments


def test_unified_groups_take_runc_where_only_that_is_installed() -> None:
    assert lab.decide(replace(UNIFIED, tools={**UNIFIED.tools, "runc": True})).runtime == "runc"


def test_everything_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(lab.LabError) as caught:
        lab.decide(replace(HYBRID, system="fedora", root=False))
    assert "this is fedora" in str(caught.value)
    assert "run it as root" in str(caught.value)


def test_a_distribution_without_an_archive_is_told_to_update() -> None:
    with pytest.raises(lab.LabError, match="apt-get update"):
        lab.decide(replace(HYBRID, deb_lines=()))


def test_another_archive_makes_another_image() -> None:
    other = replace(HYBRID, deb_lines=("deb http://other.example/debian bookworm main",))
    assert lab.decide(HYBRID).image_tag != lab.decide(other).image_tag


def test_only_the_distributions_own_archive_goes_into_the_image() -> None:
    targets = "\n".join(
        [
            "http://a.example/debian/|bookworm|main|Debian|Packages",
            "http://a.example/debian/|bookworm|main|Debian|Packages",
            "http://a.example/debian/|bookworm|main|Debian|Translations",
            "https://node.example/|nodistro|main|. nodistro|Packages",
            "",
        ]
    )
    assert lab.deb_lines(targets, "debian") == ("deb http://a.example/debian/ bookworm main",)


def test_apt_proxies_are_handed_on() -> None:
    dump = 'Acquire "";\nAcquire::http "";\nAcquire::http::Proxy "http://proxy.example:3128";\nAcquire::Languages "en";\n'
    assert lab.apt_options(dump) == ('Acquire::http::Proxy "http://proxy.example:3128";',)


def test_pip_settings_become_the_hosts_index_settings() -> None:
    config = "\n".join(
        [
            ":env:.cert='/etc/ssl/company.pem'",
            "global.index-url='https://mirror.example/simple'",
            "global.extra-index-url='file:///opt/cache/simple https://extra.example/simple'",
            "global.find-links='/opt/wheels https://links.example/'",
        ]
    )
    assert lab.index_settings(config, {"HTTPS_PROXY": "http://proxy.example:3128"}) == {
        "index_url": "https://mirror.example/simple",
        "extra_index_urls": ["https://extra.example/simple"],
        "find_links": ["/opt/wheels", "https://links.example/"],
        "ca_bundle": "/etc/ssl/company.pem",
        "proxies": {"https": "http://proxy.example:3128"},
    }


def test_nothing_set_means_nothing_handed_on() -> None:
    assert lab.index_settings("", {}) == {}


def test_local_folders_are_those_that_exist(tmp_path) -> None:
    settings = {"find_links": [str(tmp_path), f"file://{tmp_path}/absent", "https://links.example/"]}
    assert lab.local_folders(settings) == [str(tmp_path)]


def test_this_machine_can_be_looked_at() -> None:
    evidence = lab.gather()
    assert evidence.cgroup in ("v1", "v2")
    assert evidence.pid_max > 0
