"""Merge the sharded checkpoints of an FSDP job's replicas into one checkpoint of the full model."""

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
    """Return the state dict of the wrapped module, merged from the replicas' state dicts.

    Args:
      state_dict_list: ``model.state_dict()`` of each replica, in order of ranks.
      shard_metadata: ``model.get_shard_metadata()`` of any replica.

    Raises:
      ValueError: the number of state dicts is not the number of replicas.
    """
    if len(state_dict_list) != shard_metadata["world_size"]:
        raise ValueError(
            f"got {len(state_dict_list)} state dicts, expected {shard_metadata['world_size']} (one per replica)"
        )
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
    """Merge the files ``ckpt_prefix + ckpt_suffix`` of an FSDP job's replicas.

    Each replica saves ``{"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}`` in a separate
    file.

    Args:
      ckpt_prefix: common prefix of the files, with their folder.
      ckpt_suffix: glob pattern of the rest.
      save_path: output file; default: ``ckpt_prefix + "_consolidated.pth"``.
      save_model: write the output file.

    Returns:
      ({"model": state dict of the full model}, path of the output file or None).

    Raises:
      FileNotFoundError: there are no files.
      ValueError: files are missing.
    """
    path = save_path or f"{ckpt_prefix}_consolidated.pth"
    files = [name for name in sorted(glob.glob(ckpt_prefix + ckpt_suffix)) if name != path]
    if not files:
        raise FileNotFoundError(f"no file matches {ckpt_prefix + ckpt_suffix}")
    saved = [torch.load(name, map_location="cpu") for name in files]
    saved.sort(key=lambda one: one["shard_metadata"]["rank"])
    ranks = [one["shard_metadata"]["rank"] for one in saved]
    count = saved[0]["shard_metadata"]["world_size"]
    if ranks != list(range(count)):
        raise ValueError(f"{ckpt_prefix + ckpt_suffix}: found files of ranks {ranks}, expected 0 to {count - 1}")
    whole = {"model": consolidate_sharded_state_dicts([one["model"] for one in saved], saved[0]["shard_metadata"])}
    if save_model:
        torch.save(whole, path)
    return whole, path if save_model else None
