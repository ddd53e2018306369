"""The name on disk of a graph, known before it is traced: tracing and lowering take longer than loading its program.

A name is a hash of all that decides which StableHLO the rules make of the graph:

    the graph       ops, arguments, promised shapes and dtypes, results, donation, precision; not the lines it is from
    its leaves      as they lie on the device
    the rules       every source file of the engine, as it was imported; the releases of torch, jax and numpy
    around them     jax's configuration as this thread has it, how dtypes are stored, torch's idea of the processor

Some graphs have none, and their programs are found by the StableHLO alone, as all are where the engine's sources
cannot be read or have changed since they were imported (counted: PersistentCacheSourcesUnknown):

    several devices or processes    what the program is depends on all of them
    a user's function in it         such an op names it by a number of this process (jax_call, shardings, ...)
    a decomposition not torch's     nobody knows what it depends on
"""

from __future__ import annotations

import functools
import hashlib
import marshal
import re
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib
import numpy as np
import torch
from jax.sharding import SingleDeviceSharding

from torch_xla._engine.base import dtypes
from torch_xla._engine.base import engine_sources as imported_sources
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.graph.graph_spec import SCATTER, GraphSpec, NodeSpec
from torch_xla._engine.lowering import RULES, decompose

#: Of our own ops, those whose arguments mean the same in every process.
_OURS = re.compile(r"torch_xla::(getitem|seed|fused_\w+(\.\w+)?|optimization_barrier)")

#: marshal's format: from 3 on equal values may be written in several ways.
_WITHOUT_REFERENCES = 2


def graph_cache_key(spec: GraphSpec, leaves: Sequence[jax.Array], device: jax.Device, donates: bool) -> str | None:
    """The name of a graph compiled for a device; of 64 hexadecimal digits. None for a graph that has none."""
    hashed = engine_fingerprint()
    if hashed is None:
        metrics.count("PersistentCacheSourcesUnknown")
        return None
    place = SingleDeviceSharding(device)
    if not all(_is_portable(node) for node in spec.nodes):
        return None
    if not jax.sharding.get_abstract_mesh().empty:  # the user's, around this step
        return None
    try:
        described = marshal.dumps(_graph_payload(spec, leaves, place), _WITHOUT_REFERENCES)
    except ValueError:  # an argument that is no plain value
        return None
    digest = hashlib.sha256(hashed)
    digest.update(repr((donates, _trace_context())).encode())
    digest.update(described)
    return digest.hexdigest()


def _graph_payload(spec: GraphSpec, leaves: Sequence[jax.Array], place: SingleDeviceSharding) -> tuple[Any, ...]:
    nodes = [
        (
            node.op,
            node.form,
            _to_plain_value(node.args),
            _spec_payload(node.outs),
            node.is_list,
            str(node.default_dtype),
        )
        for node in spec.nodes
    ]
    lie = [
        (leaf.shape, str(leaf.dtype), bool(leaf.weak_type), None if leaf.sharding == place else repr(leaf.sharding))
        for leaf in leaves
    ]
    results = (list(spec.roots), list(spec.donated), list(spec.root_shardings))
    return nodes, lie, _spec_payload(spec.leaves), results, [str(p) for p in spec.precision], spec.floats, spec.ints


def _spec_payload(promises: Sequence[Any]) -> list[Any]:
    return [(tuple(shape), str(dtype)) for shape, dtype in promises]


def _to_plain_value(value: Any) -> Any:
    """What marshal can write. Raises ValueError for what looks the same in two processes and is not."""
    if isinstance(value, (list, tuple)):
        return [_to_plain_value(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return ("torch", str(value))
    raise ValueError(f"{type(value).__name__} is no plain value")


def _is_portable(node: NodeSpec) -> bool:
    return _is_portable_op(node.op) if node.form != SCATTER else node.op.startswith("aten::")


@functools.cache
def _is_portable_op(op: str) -> bool:
    if not op.startswith(("aten::", "prims::")):
        return _OURS.fullmatch(op) is not None
    if op in RULES:
        return True
    decomposition = decompose.decomposition_table().get(op)
    return decomposition is not None and decomposition.__module__.startswith("torch.")


def _trace_context() -> tuple[Any, ...]:
    """What a rule finds around it, and may depend on."""
    configuration = [f"{name}={getattr(jax.config, name, None)!r}" for name in jax.config.values]
    stored = sorted((str(dtype), str(other)) for dtype, other in dtypes.storage_dtype_overrides().items())
    return configuration, stored, torch.backends.cpu.get_cpu_capability()


def engine_fingerprint() -> bytes | None:
    """Return a hash of the engine's sources and of the releases that its rules use.

    None where these sources are not known: there are no files, or they have changed since they were imported.
    """
    engine = imported_sources.digest()
    return None if engine is None else _releases() + engine


@functools.cache
def _releases() -> bytes:
    digest = hashlib.sha256()
    for module in (torch, jax, jaxlib, np):
        digest.update(f"{module.__name__} {module.__version__} ".encode())
    digest.update(str(torch.version.git_version).encode())
    return digest.digest()
