"""Whether the versions of a stack fit each other, and which stack of the catalog is the nearest one that does.

What upstream's releases ask for stands in catalog/upstream.yml; the rest of the facts stand beside the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .catalog import MOVING, Catalog, Stack, Upstream, version_key
from .names import MOVING_REFS

# The driver branch that each CUDA release needs (NVIDIA's CUDA release notes).
DRIVERS = {"12.8": 570, "12.9": 575, "13.0": 580}
# First releases that know GLM-5: the wheels before them lack the class and the model type.
GLM5 = "GlmMoeDsaForCausalLM"
GLM5_SGLANG = "0.5.9"
GLM5_TRANSFORMERS = "5.2.0"
# FlashInfer that raises "SM 12.x requires CUDA >= 12.9" (flashinfer issues 3633, 3674); a suffix in the list is
# respected.
FLASHINFER_REFUSES_NVCC = SpecifierSet(">=0.6.7,<0.7.1")
ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"


@dataclass(frozen=True)
class Inconsistency:
    """Why a stack cannot work, what cures it, and the nearest consistent stack of the catalog (None where there is
    none).
    """

    stack: str
    id: str
    reason: str
    remedy: str
    nearest: str | None = None

    def __str__(self) -> str:
        nearest = f" The nearest consistent stack is {self.nearest}." if self.nearest else ""
        return f"stack {self.stack}: {self.reason}. {self.remedy}.{nearest}"


def check(stack: Stack, catalog: Catalog) -> list[Inconsistency]:
    """Everything that does not fit in a stack; empty for a consistent one."""
    found = list(_problems(stack, catalog))
    nearest = _nearest(stack, catalog) if found else None
    return [Inconsistency(stack.name, id_, reason, remedy, nearest) for id_, reason, remedy in found]


_Found = Iterator[tuple[str, str, str]]


def _problems(stack: Stack, catalog: Catalog) -> _Found:
    upstream = catalog.upstream_for(stack.sglang)
    checks: tuple[Callable[[Stack, Upstream | None], _Found], ...] = (
        _pins,
        _source,
        _requirements,
        _python,
        _cuda,
        _transformers,
        _flashinfer,
        _glm5,
    )
    for one in checks:
        yield from one(stack, upstream)


def _pins(stack: Stack, _: Upstream | None) -> _Found:
    if stack.cuda is None:
        return
    for name in ("driver", "torch", "transformers", "kernel", "flashinfer"):
        if getattr(stack, name) is None:
            yield (
                "missing-pin",
                f"{name} is not given",
                f"Give {name}, so that the same release comes out on every host",
            )


def _source(stack: Stack, _: Upstream | None) -> _Found:
    stated = stack.source.version if stack.source.kind != "git" else (stack.source.ref or "").removeprefix("v")
    comparable = stated in MOVING_REFS or version_key(stated or "") != MOVING  # a commit or branch says no version
    if stated and stated != stack.sglang and comparable:
        yield (
            "source-version",
            f"sglang is {stack.sglang} and the source gives {stack.source.ref or stack.source.version}",
            f"Write sglang: {stated}, with the versions that belong to it",
        )


def _requirements(stack: Stack, _: Upstream | None) -> _Found:
    stated = {"sglang": stack.sglang, "torch": stack.torch, "transformers": stack.transformers}
    for line in (*stack.requirements, *stack.requirements_no_deps, *stack.overrides):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            yield "requirement", f"{line!r} is not a requirement", 'Write it as in "name==1.2.3"'
            continue
        version = stated.get(requirement.name.lower())
        if version and version_key(version) != MOVING and not requirement.specifier.contains(version, prereleases=True):
            yield (
                "requirement-version",
                f"{line!r} contradicts {requirement.name}: {version}",
                "Give the same version in both places",
            )


def _python(stack: Stack, upstream: Upstream | None) -> _Found:
    if upstream is None:
        return
    needed, allowed = SpecifierSet(upstream.python), SpecifierSet(stack.python)
    if too_old := [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}" in allowed and f"3.{minor}" not in needed]:
        yield (
            "python-range",
            f"it allows Python {', '.join(too_old)} and SGLang {stack.sglang} needs {upstream.python}",
            f'Write python: "{upstream.python}" or narrower',
        )


def _cuda(stack: Stack, upstream: Upstream | None) -> _Found:
    if stack.cuda is None:
        return
    if upstream is not None and Version(stack.cuda) < Version(upstream.cuda_min):
        yield (
            "cuda-too-old",
            f"SGLang {stack.sglang} with CUDA {stack.cuda}: upstream builds it for {upstream.cuda_min} and later only",
            f"Take CUDA {upstream.cuda_min} or later, or an SGLang that was built for CUDA {stack.cuda}",
        )
    floor = DRIVERS.get(stack.cuda)
    lowest = next((minor for minor in range(400, 1000) if str(minor) in SpecifierSet(stack.driver or ">=999")), None)
    if floor is not None and stack.driver is not None and (lowest is None or lowest < floor):
        yield (
            "driver-floor",
            f"driver {stack.driver} with CUDA {stack.cuda}, which needs {floor}",
            f'Write driver: ">={floor}"',
        )


def _transformers(stack: Stack, upstream: Upstream | None) -> _Found:
    if stack.transformers is None or upstream is None:
        return
    if Version(stack.transformers) < Version(upstream.transformers):
        yield (
            "transformers-below-pin",
            f"transformers {stack.transformers} is older than SGLang {stack.sglang} asks for ({upstream.transformers})",
            f"Take transformers {upstream.transformers}",
        )


def _flashinfer(stack: Stack, _: Upstream | None) -> _Found:
    if stack.flashinfer is None or stack.cuda is None or Version(stack.cuda) >= Version("12.9"):
        return
    sm120 = any(capability.startswith("12.") for capability in stack.capabilities)
    listed = stack.environment.get(ARCH_LIST, "").split()
    explicit = bool(listed) and all(entry[-1:] in ("a", "f") for entry in listed)
    if sm120 and not explicit and FLASHINFER_REFUSES_NVCC.contains(stack.flashinfer, prereleases=True):
        yield (
            "flashinfer-refuses-nvcc",
            f"FlashInfer {stack.flashinfer} refuses to compile for SM120 with CUDA {stack.cuda} (needs 12.9)",
            f'Set {ARCH_LIST}: "12.0a" in the stack\'s environment, or take CUDA 12.9 or FlashInfer 0.7.1 or later',
        )


def _glm5(stack: Stack, _: Upstream | None) -> _Found:
    if GLM5 not in stack.architectures:
        return
    if version_key(stack.sglang) < Version(GLM5_SGLANG):
        yield (
            "sglang-without-glm5",
            f"SGLang {stack.sglang} does not know {GLM5}",
            f"Take SGLang {GLM5_SGLANG} or later",
        )
    if stack.transformers is not None and Version(stack.transformers) < Version(GLM5_TRANSFORMERS):
        yield (
            "transformers-without-glm5",
            f"transformers {stack.transformers} does not know glm_moe_dsa",
            f"Take transformers {GLM5_TRANSFORMERS} or later, as an override where SGLang pins an older one",
        )


def _nearest(stack: Stack, catalog: Catalog) -> str | None:
    """The consistent stack with the same kind of device whose SGLang is closest in upstream's order of releases."""
    order = [Version(entry.sglang) for entry in catalog.upstream]

    def place(name: str) -> int:
        return sum(1 for version in order if version <= version_key(catalog.stacks[name].sglang if name else stack.sglang))

    fitting = [
        name
        for name, other in catalog.stacks.items()
        if (other.cuda is None) == (stack.cuda is None) and name != stack.name and not any(_problems(other, catalog))
    ]
    return min(fitting, key=lambda name: abs(place(name) - place("")), default=None)
