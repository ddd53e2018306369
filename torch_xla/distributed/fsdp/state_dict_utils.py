"""One checkpoint of a whole model, out of those that the replicas of an FSDP job have saved of their shares."""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["consolidate_sharded_model_checkpoints", "consolidate_sharded_state_dicts"]


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[Mapping[str, torch.Tensor]], shard_metadata: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The state dict of the module that was wrapped, out of the replicas' ``model.state_dict()``, in order of ranks.

    ``shard_metadata``: ``model.get_shard_metadata()`` of any of them. Raises ValueError for another number of them.
    """
    if len(state_dict_list) != shard_metadata["world_size"]:
        raise ValueError(f"{len(state_dict_list)} state dicts of the {shard_metadata['world_size']} replicas")
    whole: dict[str, torch.Tensor] = {}
    for key, value in state_dict_list[0].items():
        info = shard_metadata["shard_info"].get(key)
        if info is None:
            whole[".".join(part for part in key.split(".") if part != "_fsdp_wrapped_module")] = value
        else:
            whole |= _join_shards([state[key] for state in state_dict_list], info)
    return whole


def _join_shards(shares: Sequence[torch.Tensor], info: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    value = torch.cat([share.cpu() for share in shares])
    if info["rows"]:
        params = [value[: info["shapes"][0][0]].clone()]
    else:
        params, at = [], 0
        for shape in info["shapes"]:
            params.append(value[at : at + math.prod(shape)].view(shape).clone())
            at += math.prod(shape)
    return {name: params[piece] for name, piece in zip(info["names"], info["pieces"], strict=True)}


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[dict[str, Any], str | None]:
    """({"model": state dict of the whole model}, where it was saved), out of the files ``ckpt_prefix + ckpt_suffix``.

    Each replica saves ``{"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}`` in a file of its
    own. The default of ``save_path`` is ``ckpt_prefix + "_consolidated.pth"``. Raises FileNotFoundError without files,
    ValueError where some are missing.
    """
    path = save_path or f"{ckpt_prefix}_consolidated.pth"
    files = [name for name in sorted(glob.glob(ckpt_prefix + ckpt_suffix)) if name != path]
    if not files:
        raise FileNotFoundError(f"there is no file {ckpt_prefix + ckpt_suffix}")
    saved = [torch.load(name, map_location="cpu") for name in files]
    saved.sort(key=lambda one: one["shard_metadata"]["rank"])
    ranks = [one["shard_metadata"]["rank"] for one in saved]
    count = saved[0]["shard_metadata"]["world_size"]
    if ranks != list(range(count)):
        raise ValueError(f"{ckpt_prefix + ckpt_suffix}: the files are of ranks {ranks}, expected 0 to {count - 1}")
    whole = {"model": consolidate_sharded_state_dicts([one["model"] for one in saved], saved[0]["shard_metadata"])}
    if save_model:
        torch.save(whole, path)
    return whole, path if save_model else None
