"""What a deployment needs of a host, out of its stack, settings, environment and model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Needs:
    """What the host is judged against.

    `cuda` is the stack's CUDA release, None for a stack without GPUs. `driver` is a floor such as ">=570". `gpus` counts
    those that the server takes on one host, `shards` the GPUs that hold one copy of the weights. `weights_gib` is the
    whole checkpoint, `weights_there` tells whether it is expected on the host already.
    """

    instance: str = "glm5"
    stack: str = ""
    python_range: str | None = None
    python: str | None = None
    disk_mib: int = 0
    cuda: str | None = None
    driver: str | None = None
    capabilities: tuple[str, ...] = ()
    gpus: int = 0
    shards: int = 1
    weights_gib: float | None = None
    weights_there: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights_mib_per_gpu(self) -> float | None:
        """MiB of weights on each GPU, where both are known."""
        return self.weights_gib * 1024 / self.shards if self.weights_gib and self.gpus else None

    @property
    def p2p(self) -> bool:
        """Whether several GPUs of one host exchange data directly."""
        return self.gpus > 1 and self.environment.get("NCCL_P2P_DISABLE") != "1"


def of_deployment(
    stack: Mapping[str, Any],
    spec: Mapping[str, Any],
    *,
    python: str | None = None,
    weights_gib: float | None = None,
    weights_there: bool = False,
) -> Needs:
    """The needs of a launch spec (`LaunchSpec.as_dict()`) on a stack (`Stack.as_dict()`)."""
    settings = {name: entry["value"] for name, entry in spec["settings"].items()}
    shards = math.prod(_number(settings.get(name), 1) for name in ("tp_size", "pp_size"))
    gpus = math.ceil(shards * _number(settings.get("dp_size"), 1) / _number(settings.get("nnodes"), 1))
    return Needs(
        instance=str(spec["instance"]),
        stack=str(stack["name"]),
        python_range=stack.get("python"),
        python=python or None,
        disk_mib=int(stack.get("disk_mib") or 0),
        cuda=stack.get("cuda"),
        driver=stack.get("driver"),
        capabilities=tuple(stack.get("capabilities") or ()),
        gpus=gpus if stack.get("cuda") else 0,
        shards=shards,
        weights_gib=weights_gib,
        weights_there=weights_there,
        environment={name: str(entry["value"]) for name, entry in spec["environment"].items()},
    )


def _number(value: object, default: int) -> int:
    return int(str(value)) if str(value).isdigit() else default
