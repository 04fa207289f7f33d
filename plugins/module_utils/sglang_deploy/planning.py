"""What the rules are told: versions of a stack or a built release, the model's facts, the host's.

Facts that were read win over what names say; what neither tells stays unknown. Runs on the controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from .catalog import MOVING, Profile, Stack, version_key
from .known import Known
from .rules import Host, Model, Remedy, RuleResult, Versions

# What a checkpoint calls its quantisation (model_dir, as SGLang does) in the words of rules.yml and known.yml.
QUANTIZATIONS = {
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "modelopt_fp8": "fp8",
    "mxfp4": "mxfp4",
    "awq": "awq",
    "gptq": "gptq",
    "gguf": "gguf",
}


def as_built(stack: Stack, source: str = "", ref: str = "", url: str = "") -> Stack:
    """The stack as the builder takes it: from git at `ref`, else at the stack's own, else at the tag of its SGLang.

    `source` is where SGLang is to come from; empty, or a wheelhouse, means the stack's own source.
    """
    kind = source if source not in ("", "wheelhouse") else stack.source.kind
    if kind != "git" and not ref:
        return stack
    return stack.at(ref or stack.source.ref or f"v{stack.sglang}", url or None)


def versions_of_stack(stack: Stack) -> Versions:
    """The versions that a stack promises. A source that is no release of SGLang counts as patched."""
    released = version_key(stack.sglang) != MOVING
    git = stack.source.kind == "git"
    return Versions(
        sglang=stack.sglang if released else None,
        flashinfer=stack.flashinfer,
        transformers=stack.transformers,
        torch=stack.torch,
        cuda=stack.cuda,
        deep_gemm=_version_in(stack.deep_gemm),
        patched=not released or (git and (stack.source.ref or "").removeprefix("v") != stack.sglang),
        exact=released,
    )


def versions_of_receipt(receipt: Mapping[str, Any], stack: Stack) -> Versions:
    """The versions that a release holds, by its receipt.json; what is not in it is not installed."""
    found: Mapping[str, Any] = receipt["versions"]
    python = receipt.get("python") or {}
    return replace(
        versions_of_stack(stack),
        sglang=found.get("sglang"),
        flashinfer=found.get("flashinfer-python"),
        transformers=found.get("transformers"),
        torch=found.get("torch"),
        cuda=found.get("cuda"),
        deep_gemm=found.get("sgl-deep-gemm") or found.get("sglang-deep-gemm"),
        python=python.get("version"),
        exact=True,
    )


def model_of(summary: Mapping[str, Any], known: Known) -> Model:
    """The facts of a model directory, given as `model_dir.ModelSummary.as_dict()`.

    What follows from the architecture alone (sparse attention, MLA) comes from known.yml.
    """
    architecture = str(summary["architecture"])
    method = summary.get("quantization")
    quantization = "none" if method is None else QUANTIZATIONS.get(str(method))
    families = [entry for entry in known.tables["families"] if entry.get("architecture") == architecture]
    told = {
        name: families[0].get(name)
        for name in ("sparse_attention", "mla")
        if families and len({entry.get(name) for entry in families}) == 1
    }
    plain = summary.get("shared_experts_unquantized")
    return Model(
        architecture=architecture,
        quantization=quantization,
        sparse_attention=told.get("sparse_attention"),
        mla=told.get("mla"),
        moe=bool(summary.get("experts")),
        # Beside experts of 16 bit, shared ones of 16 bit are nothing special.
        shared_experts_bf16=plain and method is not None,
        has_mtp=summary.get("has_mtp"),
        num_heads=summary.get("attention_heads"),
        weights_gib=summary["weight_bytes"] / 2**30 if summary.get("weight_bytes") else None,
        local=True,
    )


def over(read: Model, named: Model) -> Model:
    """`read` from the checkpoint itself, over what its name says."""
    told = {item.name: getattr(read, item.name) for item in fields(read)}
    return replace(named, **{name: value for name, value in told.items() if value is not None})


def host_of(facts: Mapping[str, Any]) -> Host:
    """The host's facts, as the module sglang_host_check gives them; what it does not tell stays unknown."""
    return Host(**{item.name: facts.get(item.name) for item in fields(Host)})


def noted(stack: Stack, profile: Profile, host: Host, model: Model) -> Iterator[RuleResult]:
    """What the catalog itself says against a choice: a profile that is refuted, or meant for other chips or models."""
    source = (f"catalog/profiles.yml, {profile.name}",)
    if profile.status == "refuted":
        yield RuleResult(
            rule="profile-refuted",
            severity="warn",
            topic="works",
            reason=f"The profile {profile.name} is kept for comparison and known not to work: {' '.join(profile.faults)}",
            remedy=Remedy(text="take a profile that works; docs/catalog.md lists them"),
            source=source,
        )
    wanted = (
        ("chip", host.capability, profile.fits.capabilities, f"profile {profile.name}", source),
        ("chip", host.capability, stack.capabilities, f"stack {stack.name}", (f"catalog/stacks.yml, {stack.name}",)),
        ("model", model.architecture, profile.fits.architectures, f"profile {profile.name}", source),
    )
    for what, found, meant, whose, where in wanted:
        if found is not None and meant and found not in meant:
            kind = {"chip": "chips of capability", "model": "models of the class"}[what] + f" {', '.join(meant)}"
            yield RuleResult(
                rule=f"{whose.split()[0]}-for-another-{what}",
                severity="warn",
                topic="works",
                reason=f"The {whose} is meant for {kind}, and this is {found}; there is no evidence for it.",
                remedy=Remedy(text=f"take a {whose.split()[0]} that is meant for it, or expect the decode check to decide"),
                source=where,
            )


def _version_in(requirement: str | None) -> str | None:
    """The version in `name==version`."""
    return requirement.partition("==")[2] or None if requirement else None
