"""Run a bundle of StableHLO functions on xla, as a torch module."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine.base import dtypes
from torch_xla.core import xla_builder
from torch_xla.stablehlo import bundle as bundles
from torch_xla.stablehlo import pytree_json
from torch_xla.stablehlo.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
)


class StableHLOGraphModule(torch.nn.Module):
    """StableHLO functions with their parameters; ``module(*args, **kwargs)`` calls the function ``forward``.

    Each call is one node of the recorded graph, without a gradient. Parameters are moved to the xla device at the first
    call. A function that writes to buffers (BatchNorm in training) writes to the buffers of this module.

    Args:
      bundle: the functions and their parameters, as ``load`` and exported_program_to_stablehlo make them.

    Examples:
      >>> import torch
      >>> from torch_xla.stablehlo import StableHLOGraphModule, save_torch_model_as_stablehlo
      >>> model = torch.nn.Linear(4, 2)
      >>> save_torch_model_as_stablehlo(model, (torch.ones(3, 4),), "linear")
      >>> module = StableHLOGraphModule.load("linear")
      >>> torch.allclose(module(torch.ones(3, 4)).cpu(), model(torch.ones(3, 4)), atol=1e-6)
      True
    """

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        super().__init__()
        self._bundle = bundle
        self._functions = {function.meta.name: function for function in bundle.stablehlo_funcs}
        self._calls: dict[str, Callable[..., Any]] = {}
        self._held: dict[str, torch.Tensor] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function ``forward``; tensors on the CPU are moved to xla.

        Args:
          args, kwargs: the inputs of the exported module.
        """
        return self._run(self._function("forward"), args, kwargs)

    def evaluate(self, method_name: str, args: Sequence[Any]) -> Any:
        """Call a function by name with positional arguments. Raises KeyError, with the known names, if unknown.

        Args:
          method_name: the name of the function.
          args: its inputs.
        """
        return self._run(self._function(method_name), tuple(args), {})

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """Return the StableHLO text of a function (default: ``forward`` if there are several).

        Args:
          method_name: the name of the function.
        """
        return self._function(method_name).text

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """Return the StableHLO of a function as a portable artifact in MLIR bytecode.

        Args:
          method_name: the name of the function.
        """
        return self._function(method_name).bytecode

    def save(self, directory_path: str | os.PathLike[str], options: Any = None) -> None:
        """Write a folder that ``load`` reads. ``options``: a StableHLOExportOptions, for whether to write weights.

        Args:
          directory_path: the folder; it is created.
          options: see above; None: write weights.
        """
        bundles.save(self._bundle, directory_path, options is None or (options.save_weights and options.export_weights))

    @classmethod
    def load(cls, directory_path: str | os.PathLike[str]) -> StableHLOGraphModule:
        """Read a folder.

        Args:
          directory_path: the folder.

        Raises:
          FileNotFoundError: it has no functions.
          ValueError: a corrupt file.
        """
        return cls(bundles.load(directory_path))

    def _function(self, name: str | None) -> StableHLOFunc:
        wanted = name or ("forward" if len(self._functions) > 1 else next(iter(self._functions)))
        if wanted not in self._functions:
            raise KeyError(f"stablehlo: unknown function {wanted!r}; available: {', '.join(self._functions)}")
        return self._functions[wanted]

    def _run(self, function: StableHLOFunc, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meta = function.meta
        flat = _flatten(meta, args, kwargs)
        arguments = {loc.position: _validate_input(meta, loc.position, wanted, flat[loc.position])
                     for loc, wanted in _module_arguments(meta)}  # fmt: skip
        values = [self._value(meta, location, arguments) for location in meta.input_locations]
        found = list(xla_builder.call_jax(self._call(function), (values,), name=meta.name))
        count = len(meta.mutated)
        self._held.update(zip(meta.mutated, found[:count], strict=True))
        results = found[count:]
        if meta.output_pytree_spec is not None:
            return pytree_json.decode(meta.output_pytree_spec, results)
        return results[0] if len(results) == 1 else tuple(results)

    def _call(self, function: StableHLOFunc) -> Callable[..., Any]:
        name = function.meta.name
        if name not in self._calls:
            if not function.exported:
                raise ValueError(f"stablehlo: {name} cannot run because functions/{name}.jax is missing")
            exported = jax.export.deserialize(bytearray(function.exported))

            def run(arrays: Sequence[jax.Array]) -> Any:
                return exported.call(*arrays)

            self._calls[name] = run
        return self._calls[name]

    def _value(
        self, meta: StableHLOFunctionMeta, location: InputLocation, arguments: dict[int, torch.Tensor]
    ) -> torch.Tensor:
        if location.type_ == VariableType.INPUT_ARG:
            return arguments[location.position]
        is_constant = location.type_ == VariableType.CONSTANT
        name = f"constant {location.position}" if is_constant else location.name
        if name not in self._held:
            self._held[name] = _tensor(self._array(meta, location)).to("xla")
        return self._held[name]

    def _array(self, meta: StableHLOFunctionMeta, location: InputLocation) -> np.ndarray:
        if location.type_ == VariableType.CONSTANT:
            return self._bundle.additional_constants[location.position]
        if location.name not in self._bundle.state_dict:
            raise KeyError(
                f"stablehlo: {meta.name} requires {location.name}, which was not saved (export_weights=False)"
            )
        return self._bundle.state_dict[location.name]


def _flatten(meta: StableHLOFunctionMeta, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any]:
    """Return the tensors among the arguments by flat position. Raises TypeError if the structure differs."""
    what = f"stablehlo {meta.name}"
    if meta.input_pytree_spec is not None:
        return pytree_json.flatten(meta.input_pytree_spec, (args, kwargs), what)
    places = sorted(loc.position for loc, _ in _module_arguments(meta))
    if kwargs or len(args) != len(places):
        raise TypeError(
            f"{what}: expected {len(places)} positional tensors, got {len(args)} and {len(kwargs)} keywords"
        )
    return dict(zip(places, args, strict=True))


def _module_arguments(meta: StableHLOFunctionMeta) -> list[tuple[InputLocation, VariableSignature]]:
    every = [*zip(meta.input_locations, meta.input_signature, strict=True), *meta.unused_inputs]
    return [(location, signature) for location, signature in every if location.type_ == VariableType.INPUT_ARG]


def _validate_input(meta: StableHLOFunctionMeta, position: int, wanted: VariableSignature, value: Any) -> torch.Tensor:
    what = f"stablehlo {meta.name}: argument {position}"
    if isinstance(value, np.ndarray):
        value = _tensor(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{what} is {value!r:.80}; expected a tensor")
    dtype = dtypes.numpy_dtype(value.dtype).name
    sizes = [-1 if i in wanted.dynamic_dims else size for i, size in enumerate(wanted.shape)]
    fits = value.dim() == len(sizes) and all(size in (-1, n) for size, n in zip(sizes, value.shape, strict=True))
    if dtype != wanted.dtype or not fits:
        shown = ", ".join("any" if size < 0 else str(size) for size in sizes)
        raise TypeError(f"{what} is {dtype}{list(value.shape)}; expected {wanted.dtype}[{shown}]")
    return value if value.device.type == "xla" else value.detach().to("xla")


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Return a CPU tensor with the array's values; numpy and torch name bfloat16 and float8 dtypes differently."""
    flat = torch.from_numpy(np.array(array, order="C").reshape(-1).view(np.uint8))
    return flat.view(dtypes.torch_dtype(array.dtype)).reshape(array.shape)
