"""Export programs of torch.export to StableHLO."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.export.graph_signature import InputKind

from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import exported_program
from torch_xla._engine.capture.exported_program import ExportedFunction
from torch_xla.stablehlo import bundle as bundles
from torch_xla.stablehlo import pytree_json
from torch_xla.stablehlo.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableSignature,
)
from torch_xla.stablehlo.module import StableHLOGraphModule

_PLATFORMS = ("cpu", "cuda", "tpu")


@dataclass
class StableHLOExportOptions:
    """Options of the export.

    Args:
      override_tracing_arguments, override_tracing_kwargs: for save_torch_model_as_stablehlo, in place of ``args``.
      save_weights, export_weights: if either is False, the parameters and buffers (``data/``) are not written.
      custom_ops_allowed_in_graph: namespaces of operators (``{"mylib"}``) that become custom calls named
        ``mylib.op``. torch's fake tensors determine their result shapes; to run such a program, register the calls
        with XLA.
      inline_all_constant: make tensors that are not parameters or buffers constants of the program; with False they
        are inputs, stored in ``constants/``.
      export_node_metadata: add locations to the text: the module and operator of each operation.
      platform: platform whose lowering rules are used: cpu, cuda, rocm or tpu. Some operators are library calls on one
        platform and plain operations on another.
      jax_platforms: platforms that ``functions/*.jax`` supports.
    """

    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: dict[str, Any] | None = None
    save_weights: bool = True
    custom_ops_allowed_in_graph: set[str] = field(default_factory=set)
    inline_all_constant: bool = True
    export_node_metadata: bool = False
    export_weights: bool = True
    platform: str = "cpu"
    jax_platforms: Sequence[str] = _PLATFORMS


def exported_program_to_stablehlo(
    exported_model: torch.export.ExportedProgram, options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """Convert a program of torch.export to a module whose function ``forward`` is StableHLO.

    Args:
      exported_model: the program.
      options: see [StableHLOExportOptions][torch_xla.stablehlo.StableHLOExportOptions].

    Raises:
      NotImplementedError: an operator has no lowering rule, draws random numbers, or has a data-dependent shape.

    Examples:
      >>> import torch
      >>> from torch_xla.stablehlo import exported_program_to_stablehlo
      >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
      >>> module = exported_program_to_stablehlo(program)
      >>> "stablehlo.dot_general" in module.get_stablehlo_text()
      True
      >>> list(module(torch.ones(3, 4)).shape)
      [3, 2]
    """
    return StableHLOGraphModule(_bundle(exported_model, options or StableHLOExportOptions()))


def save_as_stablehlo(
    exported_model: torch.export.ExportedProgram,
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Write a program of torch.export as StableHLO into a folder.

    [StableHLOGraphModule.load][torch_xla.stablehlo.StableHLOGraphModule.load] reads it.

    Args:
      exported_model: a program of torch.export.
      stablehlo_dir: the folder, which is created; existing files are replaced.
      options: see [StableHLOExportOptions][torch_xla.stablehlo.StableHLOExportOptions].

    Raises:
      NotImplementedError: an operator has no lowering rule, draws random numbers, or has a data-dependent shape.

    Examples:
      >>> import torch
      >>> from torch_xla.stablehlo import StableHLOGraphModule, save_as_stablehlo
      >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
      >>> save_as_stablehlo(program, "exported")
      >>> list(StableHLOGraphModule.load("exported")(torch.ones(3, 4)).shape)
      [3, 2]
    """
    options = options or StableHLOExportOptions()
    weights = options.save_weights and options.export_weights
    bundles.save(_bundle(exported_model, options), stablehlo_dir, weights)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """Trace a module with example arguments (torch.export.export) and write it as StableHLO into a folder.

    Args:
      torchmodel: the module.
      args: example arguments, whose shapes and dtypes the program has.
      path: the folder, which is created; existing files are replaced.
      options: see [StableHLOExportOptions][torch_xla.stablehlo.StableHLOExportOptions].

    Raises:
      NotImplementedError: an operator has no lowering rule, draws random numbers, or has a data-dependent shape.

    Examples:
      >>> import os
      >>> import torch
      >>> from torch_xla.stablehlo import save_torch_model_as_stablehlo
      >>> save_torch_model_as_stablehlo(torch.nn.Linear(4, 2), (torch.ones(3, 4),), "linear")
      >>> sorted(os.listdir("linear"))
      ['constants', 'data', 'functions']
    """
    options = options or StableHLOExportOptions()
    given = args if options.override_tracing_arguments is None else options.override_tracing_arguments
    program = torch.export.export(torchmodel, given, options.override_tracing_kwargs)
    save_as_stablehlo(program, path, options)


def _bundle(program: torch.export.ExportedProgram, options: StableHLOExportOptions) -> StableHLOModelBundle:
    exported = exported_program.to_jax_function(program, frozenset(options.custom_ops_allowed_in_graph))
    held = {**program.state_dict, **program.constants}
    is_constant = [i.kind == InputKind.CONSTANT_TENSOR for i in exported.inputs]
    if options.inline_all_constant:
        fixed = {n: _array(held[i.name]) for n, i in enumerate(exported.inputs) if is_constant[n]}
        exported = _with_constants(exported, fixed)
        is_constant = [False] * len(exported.inputs)
    platform = (options.platform,)
    locations = _locations(exported, is_constant)
    constants = [_array(held[i.name]) for i, alone in zip(exported.inputs, is_constant, strict=True) if alone]
    unused = exported_program.unused_inputs(exported)
    dropped = [(locations[n], _signature(exported.inputs[n].struct)) for n in unused]
    locations = [location for n, location in enumerate(locations) if n not in unused]
    exported = _drop_unused_inputs(exported, unused)
    one = exported_program.lower(exported, "forward", platform)
    several = tuple(options.jax_platforms)
    loadable = one if several == platform else exported_program.lower(exported, "forward", several)
    meta = _meta(exported, one, locations, dropped, _structures(program, exported))
    text = (
        exported_program.stablehlo_text(exported, "forward", platform)
        if options.export_node_metadata
        else one.mlir_module()
    )
    function = StableHLOFunc(meta, one.mlir_module_serialized, text, bytes(loadable.serialize()))
    state = {loc.name: _array(held[loc.name]) for loc in locations if loc.name}
    return StableHLOModelBundle([function], state, constants)


def _array(tensor: torch.Tensor) -> np.ndarray:
    cpu = tensor.detach().cpu().contiguous()
    named = dtypes.numpy_dtype(cpu.dtype)
    # numpy and torch name bfloat16 and float8 dtypes differently.
    bits: np.ndarray = cpu.flatten().view(torch.uint8).numpy() if cpu.numel() else np.empty(0, np.uint8)
    return bits.view(named).reshape(tuple(cpu.shape)).copy()


def _with_constants(exported: ExportedFunction, fixed: dict[int, np.ndarray]) -> ExportedFunction:
    """Return the function with the given inputs fixed to constant values."""

    def function(*arrays: jax.Array) -> list[Any]:
        rest = iter(arrays)
        whole = [jnp.asarray(fixed[n]) if n in fixed else next(rest) for n in range(len(exported.inputs))]
        return exported.function(*whole)

    inputs = [one for n, one in enumerate(exported.inputs) if n not in fixed]
    return replace(exported, function=function, inputs=inputs)


def _drop_unused_inputs(exported: ExportedFunction, unused: Sequence[int]) -> ExportedFunction:
    """Return the function without the inputs that it does not read."""
    structs = {n: exported.inputs[n].struct for n in unused}
    zeros = {n: lambda s=struct: jnp.zeros(s.shape, s.dtype) for n, struct in structs.items()}

    def function(*arrays: jax.Array) -> list[Any]:
        rest = iter(arrays)
        return exported.function(*(zeros[n]() if n in zeros else next(rest) for n in range(len(exported.inputs))))

    inputs = [one for n, one in enumerate(exported.inputs) if n not in structs]
    return replace(exported, function=function, inputs=inputs)


def _locations(exported: ExportedFunction, is_constant: Sequence[bool]) -> list[InputLocation]:
    found, constants = [], 0
    for one, constant in zip(exported.inputs, is_constant, strict=True):
        if one.kind == InputKind.USER_INPUT:
            found.append(InputLocation.input_arg(one.position))
        elif constant:
            found.append(InputLocation.constant(constants))
            constants += 1
        else:
            found.append(InputLocation.parameter(one.name))
    return found


def _structures(program: torch.export.ExportedProgram, exported: ExportedFunction) -> tuple[Any, Any]:
    """Return the pytree structures of the arguments (args, kwargs) and the results as JSON; None if not encodable."""
    taken, given = program.call_spec.in_spec, program.call_spec.out_spec
    fixed = dict(exported.constants)
    arguments = [fixed[i] if i in fixed else pytree_json.LeafIndex(i) for i in range(taken.num_leaves)]
    first = len(exported.mutated)
    results = [pytree_json.LeafIndex(r - first) if isinstance(r, int) else r.value for r in exported.results]
    return _encode_tree_spec(taken, arguments), _encode_tree_spec(given, results)


def _encode_tree_spec(spec: Any, leaves: list[Any]) -> Any:
    try:
        return pytree_json.encode(spec.unflatten(leaves))
    except (TypeError, ValueError):
        return None


def _meta(
    exported: ExportedFunction,
    one: jax.export.Exported,
    locations: list[InputLocation],
    unused: list[tuple[InputLocation, VariableSignature]],
    structures: tuple[Any, Any],
) -> StableHLOFunctionMeta:
    return StableHLOFunctionMeta(
        name="forward",
        stablehlo_version=_version(one.mlir_module_serialized),
        input_signature=[_signature(i.struct) for i in exported.inputs],
        output_signature=[_signature(aval) for aval in one.out_avals],
        input_locations=locations,
        unused_inputs=unused,
        input_pytree_spec=structures[0],
        output_pytree_spec=structures[1],
        mutated=list(exported.mutated),
        constant_args=[[position, value] for position, value in exported.constants],
    )


def _version(artifact: bytes) -> str:
    """Return the StableHLO version of a portable artifact, which its first string contains."""
    found = re.search(rb"StableHLO_v([\d.]+)", artifact[:64])
    return found[1].decode() if found else ""


def _signature(aval: Any) -> VariableSignature:
    dynamic = [i for i, size in enumerate(aval.shape) if not isinstance(size, int)]
    shape = [size if isinstance(size, int) else 0 for size in aval.shape]
    return VariableSignature(shape, np.dtype(aval.dtype).name, dynamic)
