"""Compilation of dynamo graphs under upstream's name; see torch_xla.core.dynamo_bridge."""

from torch_xla._dynamo import dynamo_bridge

__all__ = ["dynamo_bridge"]
