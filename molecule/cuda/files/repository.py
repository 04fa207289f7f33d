#!/usr/bin/env python3
"""Make signed apt repositories of small packages: `good` (ours), `other` (another key), under the folder given.

Packages have the names and relations of NVIDIA's and Ubuntu's; what is in them only speaks. Needs dpkg-deb and gpg.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path

NVCC = """#!/bin/sh
# Speaks as nvcc; "compiles" by asking for g++ as nvcc does.
case "$*" in --version) echo "Cuda compilation tools, release {release}, V{release}.93"; exit;; esac
{fault}
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
echo 'int run;' | g++ -x c++ -shared -fPIC -o "$out" -
"""
TOO_OLD = """echo "nvcc fatal   : Unsupported gpu architecture 'compute_120a'" >&2; exit 1"""
MODINFO = """#!/bin/sh
cat /run/modinfo 2>/dev/null || printf 'version:        {version}\\nlicense:        Dual MIT/GPL\\n'
"""
SMI = "#!/bin/sh\necho NVIDIA-SMI {version}\n"


def toolkit(release: str, fault: str = "") -> list[tuple[str, str, str, dict[str, str]]]:
    """The meta package of a release and its compiler."""
    dashed = release.replace(".", "-")
    nvcc = {f"/usr/local/cuda-{release}/bin/nvcc": NVCC.format(release=release, fault=fault)}
    return [
        (f"cuda-nvcc-{dashed}", f"{release}.93-1", "", nvcc),
        (f"cuda-toolkit-{dashed}", f"{release}.1-1", f"cuda-nvcc-{dashed} (>= {release}.93)", {}),
    ]


def driver(version: str) -> list[tuple[str, str, str, dict[str, str]]]:
    """Ubuntu's headless packages of branch 570, with a modinfo in place of a module."""
    full = f"{version}-0ubuntu1"
    parts = {
        "libnvidia-compute-570-server": {},
        "linux-modules-nvidia-570-server-open-generic": {"/sbin/modinfo": MODINFO.format(version=version)},
        "nvidia-utils-570-server": {"/usr/bin/nvidia-smi": SMI.format(version=version)},
    }
    depends = ", ".join(f"{name} (= {full})" for name in list(parts)[:2])
    return [
        *((name, full, "", files) for name, files in parts.items()),
        ("nvidia-headless-570-server-open", full, depends, {}),
    ]


PACKAGES = [
    *toolkit("12.8"),
    *toolkit("13.0"),
    *toolkit("12.7", TOO_OLD),
    ("cuda-drivers", "570.195.03-1", "", {}),
    ("cuda-toolkit-12-9", "12.9.1-1", "cuda-drivers", {}),
]


def pack(folder: Path, name: str, version: str, depends: str, files: dict[str, str]) -> Path:
    """One package."""
    tree = folder / "tree" / f"{name}_{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    fields = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "test", "Description": name}
    if depends:
        fields["Depends"] = depends
    (tree / "DEBIAN" / "control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()), encoding="utf-8")
    for path, text in files.items():
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        target.chmod(0o755)
    made = folder / f"{name}_{version}_amd64.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(made)], check=True, stdout=subprocess.DEVNULL
    )
    return made


def index(folder: Path, key: str) -> None:
    """Packages, Release and InRelease of a flat repository."""
    entries = []
    for deb in sorted(folder.glob("*.deb")):
        control = subprocess.run(["dpkg-deb", "--field", str(deb)], check=True, capture_output=True, text=True).stdout
        content = deb.read_bytes()
        entries.append(
            f"{control}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
        )
    packages = "\n".join(entries).encode()
    (folder / "Packages").write_bytes(packages)
    release = f"Origin: test\nLabel: cuda\nDate: {formatdate(usegmt=True)}\nSHA256:\n"
    release += f" {hashlib.sha256(packages).hexdigest()} {len(packages)} Packages\n"
    (folder / "Release").write_text(release, encoding="utf-8")
    sign = ["gpg", "--batch", "--yes", "--local-user", key, "--clearsign", "--output", str(folder / "InRelease")]
    subprocess.run([*sign, str(folder / "Release")], check=True)


def key(name: str) -> str:
    """A key without a passphrase; its fingerprint."""
    mail = f"{name}@example.com"
    listed = ["gpg", "--batch", "--with-colons", "--list-keys", mail]
    if subprocess.run(listed, capture_output=True, check=False).returncode:
        made = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", mail, "rsa3072", "sign", "never"]
        subprocess.run(made, check=True, capture_output=True)
    lines = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.splitlines()
    return next(line.split(":")[9] for line in lines if line.startswith("fpr:"))


def main() -> None:
    """Make both, or with a driver's version as second argument add that driver to the first."""
    root = Path(sys.argv[1])
    os.environ["GNUPGHOME"] = str(root / "gnupg")
    (root / "gnupg").mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("good", "other"):
        folder = root / name
        folder.mkdir(exist_ok=True)
        for package in driver(sys.argv[2]) if len(sys.argv) > 2 else [*PACKAGES, *driver("570.195.03")]:
            pack(folder, *package)
        fingerprint = key(name)
        exported = subprocess.run(
            ["gpg", "--batch", "--armor", "--export", fingerprint], check=True, capture_output=True
        ).stdout
        (folder / "3bf863cc.pub").write_bytes(exported)
        index(folder, fingerprint)
        print(name, fingerprint)


if __name__ == "__main__":
    main()
