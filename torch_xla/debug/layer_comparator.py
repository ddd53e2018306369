"""Compare a module on xla with the same module on the CPU, layer by layer."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine.compat import dynamo
from torch_xla._engine.diagnostics.recompilation_tracker import tracker
from torch_xla.debug.model_comparator import compare_tensors


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """The first layer whose outputs on xla differ from the CPU for equal inputs."""

    name: str  # qualified: "layers.0.attention"; "" is the module itself
    kind: str  # class name
    call: int  # 0 for the layer's first call in the forward
    report: str  # compare_tensors: xla vs. CPU

    def __str__(self) -> str:
        again = f", call {self.call + 1}" if self.call else ""
        return f"{self.name or 'the module itself'} ({self.kind}{again}): {self.report}"


def compare_module(
    module: torch.nn.Module, *args: Any, rtol: float = 1e-04, atol: float = 1e-05, device: str = "xla", **kwargs: Any
) -> LayerDifference | None:
    """Run the module on the CPU and on xla, layer by layer, and return the first layer that differs.

    Each layer on xla gets the inputs that it had on the CPU, so an error is found where it occurs, not where it has
    accumulated. Layers are compared in the order in which they return, so the innermost layer is reported. Layers with
    random numbers differ: call ``module.eval()``, or compare without dropout. The module and the inputs do not change.

    Args:
      module: a module on any device; it is copied to both devices.
      args, kwargs: its inputs, any pytrees, on any device.
      rtol, atol: the tolerances of compare_tensors.

    Returns:
      The first difference, None if no layer differs.

    Examples:
      >>> import torch
      >>> from torch_xla.debug.layer_comparator import compare_module
      >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
      >>> print(compare_module(model, torch.ones(3, 4)))
      None
    """
    with tracker.suspend():  # compiles each layer separately at this line
        return _compare(module, args, kwargs, rtol, atol, device)


def _compare(
    module: torch.nn.Module, args: Any, kwargs: Any, rtol: float, atol: float, device: str
) -> LayerDifference | None:
    expected = _capture_layer_io(copy.deepcopy(module).to("cpu"), *_to_device((args, kwargs), "cpu"))
    on_xla = copy.deepcopy(module).to(device)
    names = dict(on_xla.named_modules())
    for (name, call), (inputs, outputs) in expected.items():
        layer = names[name]
        given, keywords = _to_device(inputs, device)
        with torch.no_grad():
            got = layer(*given, **keywords)
        report = _first_difference(_to_device(got, "cpu"), outputs, rtol, atol)
        if report is not None:
            return LayerDifference(name, type(layer).__name__, call, report)
    return None


def _capture_layer_io(module: torch.nn.Module, args: Any, kwargs: Any) -> dict[tuple[str, int], tuple[Any, Any]]:
    """Return (qualified name, call number) -> copies of inputs and outputs, in the order in which layers return."""
    calls: collections.Counter[str] = collections.Counter()
    inputs: dict[str, list[Any]] = collections.defaultdict(list)
    found: dict[tuple[str, int], tuple[Any, Any]] = {}

    def before(name: str) -> Callable[..., None]:
        return lambda layer, a, k: inputs[name].append(_map_tensors((a, k), _clone))

    def after(name: str) -> Callable[..., None]:
        def hook(layer: torch.nn.Module, a: Any, k: Any, result: Any) -> None:
            found[name, calls[name]] = (inputs[name].pop(), _map_tensors(result, _clone))
            calls[name] += 1

        return hook

    for name, layer in module.named_modules():
        layer.register_forward_pre_hook(before(name), with_kwargs=True, prepend=True)
        layer.register_forward_hook(after(name), with_kwargs=True)
    with torch.no_grad():
        module(*args, **kwargs)
    return found


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _to_device(value: Any, device: str) -> Any:
    return _map_tensors(value, lambda t: t.detach().to(device))


def _map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    return dynamo.tree_map_tensors(function, value)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (t for t in dynamo.tree_leaves(value) if isinstance(t, torch.Tensor))


def _first_difference(got: Any, expected: Any, rtol: float, atol: float) -> str | None:
    pairs = zip(_tensors(got), _tensors(expected), strict=True)
    found = (compare_tensors(a, b, rtol, atol, max_diffs=5) for a, b in pairs)
    return next((report for report in found if report is not None), None)
