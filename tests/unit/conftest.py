"""The real uv, and small packages that call themselves sglang, torch ..., made on the spot, to build releases of."""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sglang_deploy import release

# A busy machine is slow, which says nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SERVER_ARGS = """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--tp-size", "--tp", type=int, default=1)
        parser.add_argument("--sampling-backend", choices={"pytorch", "flashinfer", "ascend"})
        parser.add_argument("--disable-cuda-graph", action="store_true", help="Deprecated: use something else")
"""


def wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> None:
    """A pure Python wheel."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {r}\n" for r in requires
    )
    content = files | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**content, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    sglang = {
        "sglang/__init__.py": '__version__ = "0.5.9"\n',
        "sglang/srt/__init__.py": "",
        "sglang/srt/server_args.py": SERVER_ARGS,
    }
    sglang["sglang/launch_server.py"] = (
        "def fail():\n    raise RuntimeError('here')\n\nif __name__ == '__main__':\n    fail()\n"
    )
    scripts = {"sglang-0.5.9.dist-info/entry_points.txt": "[console_scripts]\nsglang = sglang.launch_server:fail\n"}
    wheel(folder, "sglang", "0.5.9", sglang | scripts, ("transformers==4.57.1", "torch"))
    wheel(folder, "sglang", "0.5.10", {"sglang/__init__.py": "import no_such_module\n"})
    torch = "import types\n__version__ = '2.9.1+cpu'\nversion = types.SimpleNamespace(cuda=None)\n"
    wheel(folder, "torch", "2.9.1+cpu", {"torch/__init__.py": torch}, ("numpy>=2",))
    router = SERVER_ARGS.replace("ServerArgs", "RouterArgs")
    wheel(folder, "sglang_router", "0.3.2", {"sglang_router/__init__.py": "", "sglang_router/router_args.py": router})
    for version in ("4.57.1", "5.2.0"):
        wheel(folder, "transformers", version, {"transformers/__init__.py": f"__version__ = {version!r}\n"})
    for version in ("2.0", "2.1", "2.2"):
        wheel(folder, "numpy", version, {"numpy/__init__.py": ""})
    return folder


@pytest.fixture(scope="session")
def uv() -> str:
    found = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    if not Path(found).exists():
        pytest.skip("uv is not installed")
    return found


@pytest.fixture(scope="session")
def index(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> release.Index:
    return release.Index(find_links=(str(wheels),), offline=True, cache_dir=str(tmp_path_factory.mktemp("cache")))
