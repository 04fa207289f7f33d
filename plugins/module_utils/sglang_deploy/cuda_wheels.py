"""A CUDA toolkit made of NVIDIA's packages on PyPI, in a folder of its own beside the releases.

It is built beside and renamed into place, and never edited afterwards. The packages know versions of each other through
`cuda-toolkit`, a package without content that pins one of each for a release of CUDA.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from . import release_host, release_uv
from .cuda import CudaError, ask, wheels_problem
from .release_uv import Index


def install(release: str, home: Path, parts: Sequence[str], index: Index, uv_folder: Path, uv_version: str) -> str:
    """Put CUDA `release` with these parts (extras of `cuda-toolkit`) into `home`, which must not exist; nvcc's version.

    CudaError, ReleaseError or UvError say what went wrong; nothing is left behind then.
    """
    if problem := wheels_problem(release):
        raise CudaError(problem)
    python = release_host.choose_python(">=3.10")
    uv = release_uv.provide(uv_folder, uv_version, python.path, index)
    home.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    work = home.with_name(f".{home.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    try:
        environment = index.environment(same_filesystem=False)
        arguments = ["pip", "install", "--quiet", "--python", python.path, "--target", str(work / "site")]
        wanted = f"cuda-toolkit[{','.join(parts)}]=={release}.*"
        release_uv.run(uv, [*arguments, wanted], env=environment, step=f"Installing {wanted}")
        _lay_out(work, release)
        toolkit = ask(work)
        if toolkit is None or toolkit.release != release:
            raise CudaError(
                f"The packages of {wanted} hold no nvcc of CUDA {release}: cuda_toolkit_wheels needs at least nvcc."
            )
        work.chmod(0o755)
        work.rename(home)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return toolkit.version


def _lay_out(work: Path, release: str) -> None:
    """Make the folder a CUDA_HOME: what compilers look for stands at the top, libraries under the names that -l wants."""
    inside = work / "site" / "nvidia" / f"cu{release.split('.')[0]}"
    if not inside.is_dir():
        raise CudaError(f"NVIDIA's packages have no folder {inside.name} any more; set cuda_toolkit_install: apt.")
    for entry in sorted(inside.iterdir()):
        entry.rename(work / entry.name)
    inside.rmdir()
    libraries = work / "lib"
    for library in sorted(libraries.glob("*.so.*")):
        plain = libraries / f"{library.name.partition('.so.')[0]}.so"
        if not plain.exists():
            plain.symlink_to(library.name)
    if not (work / "lib64").exists():
        (work / "lib64").symlink_to("lib")
