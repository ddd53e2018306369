"""Cache key of a graph that is known before tracing, as tracing and lowering take longer than loading its program.

The key is a hash of all that decides which StableHLO the rules generate for the graph:

    graph           ops, arguments, output specs, outputs, donation, precision; not source locations
    inputs          shapes, dtypes and shardings on the device
    rules           every source file of the engine, as imported; the releases of torch, jax and numpy
    checks          whether the program checks values, and of what size (TORCH_XLA_CHECK_INDICES)
    environment     this thread's jax configuration, the storage dtypes, the CPU capability that torch reports

Some graphs have no key; their programs are found by the StableHLO alone. That holds for all graphs if the engine's
sources cannot be read or have changed since they were imported (counter PersistentCacheSourcesUnknown):

    several devices or processes     the program depends on all of them
    an op that calls user code       its arguments are ids of this process (jax_call, shardings, ...)
    a decomposition not from torch   its dependencies are unknown
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
from torch_xla._engine.lowering import RULES, decompose, value_checks

#: The engine's own ops whose arguments have the same meaning in every process.
_PORTABLE_OPS = re.compile(r"torch_xla::(getitem|seed|fused_\w+(\.\w+)?|optimization_barrier|rnn_layer(_backward)?)")

#: Version of marshal's format: from 3 on, equal values may have several encodings.
_WITHOUT_REFERENCES = 2


def graph_cache_key(
    spec: GraphSpec, leaves: Sequence[jax.Array], device: jax.Device, donates: bool, checked: bool
) -> str | None:
    """Return the key of a graph for a device, 64 hexadecimal digits; None for a graph without a key.

    ``donates``: the program overwrites inputs; ``checked``: it checks values.
    """
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
    except ValueError:  # an argument that has no portable encoding
        return None
    digest = hashlib.sha256(hashed)
    digest.update(repr((donates, checked and value_checks.most_elements(), _trace_context())).encode())
    digest.update(described)
    return digest.hexdigest()


def variant_key(graph: str | None, description: object) -> str | None:
    """Return the key of another program of a graph, from the graph's key and what distinguishes the program."""
    return None if graph is None else hashlib.sha256(f"{graph} {description!r}".encode()).hexdigest()


def _graph_payload(spec: GraphSpec, leaves: Sequence[jax.Array], place: SingleDeviceSharding) -> tuple[Any, ...]:
    nodes = [
        (
            node.op,
            node.schema_kind,
            _to_plain_value(node.args),
            _spec_payload(node.outs),
            node.is_list,
            str(node.default_dtype),
        )
        for node in spec.nodes
    ]
    inputs = [
        (leaf.shape, str(leaf.dtype), bool(leaf.weak_type), None if leaf.sharding == place else repr(leaf.sharding))
        for leaf in leaves
    ]
    results = (list(spec.roots), list(spec.donated), list(spec.root_shardings))
    return nodes, inputs, _spec_payload(spec.leaves), results, [str(p) for p in spec.precision], spec.floats, spec.ints


def _spec_payload(specs: Sequence[Any]) -> list[Any]:
    return [(tuple(shape), str(dtype)) for shape, dtype in specs]


def _to_plain_value(value: Any) -> Any:
    """Convert a value to types that marshal can write. Raises ValueError for values that only this process knows."""
    if isinstance(value, (list, tuple)):
        return [_to_plain_value(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return value
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return ("torch", str(value))
    raise ValueError(f"{type(value).__name__} has no portable encoding")


def _is_portable(node: NodeSpec) -> bool:
    return _is_portable_op(node.op) if node.schema_kind != SCATTER else node.op.startswith("aten::")


@functools.cache
def _is_portable_op(op: str) -> bool:
    if not op.startswith(("aten::", "prims::")):
        return _PORTABLE_OPS.fullmatch(op) is not None
    if op in RULES:
        return True
    decomposition = decompose.decomposition_table().get(op)
    return decomposition is not None and decomposition.__module__.startswith("torch.")


def _trace_context() -> tuple[Any, ...]:
    """Return the configuration that rules may depend on."""
    configuration = [f"{name}={getattr(jax.config, name, None)!r}" for name in jax.config.values]
    stored = sorted((str(dtype), str(other)) for dtype, other in dtypes.storage_dtype_overrides().items())
    return configuration, stored, torch.backends.cpu.get_cpu_capability()


def engine_fingerprint() -> bytes | None:
    """Return a hash of the engine's sources and of the releases that its rules use.

    None if the sources are unknown: there are no files, or they have changed since they were imported.
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
