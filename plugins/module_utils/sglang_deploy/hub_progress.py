"""How far a download is, in words for a person. Runs on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours from one on."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def line(state: Mapping[str, Any]) -> str:
    """A line for a state of `hub_fetch`: GB of GB, MB/s and the time left; empty where there is nothing to tell."""
    done, total, rate = state["done"], state["total"], state["rate"]
    if state["outcome"] == "whole":
        return ""
    if state["outcome"] == "done":
        return f"weights are whole: {total / 1e9:.1f} GB, each file by its hash"
    if state["outcome"] == "failed":
        return "weights: failed"
    doing = "weights are checked by their hashes" if state["phase"] == "checking" else "weights are downloaded"
    parts = [f"{doing}: {done / 1e9:.1f} of {total / 1e9:.1f} GB"]
    if rate > 0:
        parts += [f"{rate / 1e6:.0f} MB/s", f"{clock((total - done) / rate)} left"]
    elif state["phase"] == "fetching":
        parts.append("nothing comes at the moment")
    if state["joined"]:
        parts.append("by a run of before")
    if state["again"]:
        parts.append(f"{len(state['again'])} files once more, their hash was wrong")
    return ", ".join(parts)
