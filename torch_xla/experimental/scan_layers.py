"""Run layers of equal structure as one scan over their parameters, which compiles like a single layer.

The loop reads its parameters from stacks, one per parameter of a layer. ``scan_layers`` builds the stacks in each step
and splits the gradients; this reads and writes all parameters and gradients once more, and needs memory for a second
copy during the step. ``StackedLayers`` stores its parameters as stacks and copies nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from torch_xla._engine.capture import aot_partitioner, scan
from torch_xla._engine.capture.module_function import ModuleFunction
from torch_xla.experimental.scan import default_partition

__all__ = ["StackedLayers", "scan_layers"]

_calls: WeakKeyDictionary[nn.Module, ModuleFunction] = WeakKeyDictionary()
_alike: WeakKeyDictionary[nn.Module, WeakSet[nn.Module]] = WeakKeyDictionary()


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: aot_partitioner.Partition = default_partition,
    is_layer_pure: bool = False,
) -> Any:
    """Run ``for layer in layers: data = layer(data)`` as one ``lax.scan`` forward and one backward.

    Args:
      layers: modules of one class and structure, with parameters and buffers of equal shapes and dtypes. The code of
        the first one is traced once for all. Each layer draws different random numbers. A tuple is passed to a layer
        as several arguments. Layers must not write to buffers (as BatchNorm does in training); the restrictions of
        scan apply.
      input_data: a pytree of xla tensors; the result of a layer has the same structure, shapes and dtypes.
      partition_fn: selects the values saved for backward; see [scan][torch_xla.experimental.scan.scan].
      is_layer_pure: layers depend only on their tensors and arguments, and are not traced again for the same shapes.

    Returns:
      The result of the last layer; ``input_data`` if there are no layers.

    Raises:
      ValueError: layers differ, or a result differs from ``input_data`` in structure, shapes or dtypes.
      Other errors of scan.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.scan_layers import scan_layers
      >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(8)).to("xla")
      >>> y = scan_layers(layers, torch.ones(2, 4, device="xla"))
      >>> y.sum().backward()
      >>> list(layers[7].weight.grad.shape)
      [4, 4]
    """
    layers = list(layers)
    if not layers:
        return input_data
    first = _call_of(layers[0])
    tensors = [_call_of(layer).tensors() for layer in layers]
    _check_same_structure(layers, is_layer_pure)
    for number in range(1, len(layers)):
        _check_shapes(first, tensors[0], tensors[number], number)
    stacks = _StackedParameters(tensors[0])
    stacked = [torch.stack([of_layer[place] for of_layer in tensors]) for place in stacks.places]  # type: ignore[misc]
    return _run(layers[0], stacks, stacked, input_data, partition_fn, is_layer_pure)


def _run(
    layer: nn.Module,
    stacks: _StackedParameters,
    stacked: Sequence[torch.Tensor],
    data: Any,
    partition_fn: aot_partitioner.Partition,
    is_pure: bool,
) -> Any:
    call = _call_of(layer)

    def one_layer(data: Any, slices: Sequence[torch.Tensor]) -> tuple[Any, None]:
        args = data if isinstance(data, tuple) else (data,)
        return call(stacks.unstack(slices), *args), None

    one_layer.__name__ = call.__name__
    pure_as = (layer, call.state(), tuple(stacks.where)) if is_pure else None
    keep = aot_partitioner.save_policy_for(partition_fn)
    result, _ = scan.scan(one_layer, data, list(stacked), keep, pure_as, "scan_layers")
    return result


class _StackedParameters:
    """Which tensors of a layer are stacked: each once, also one with several names."""

    def __init__(self, tensors: Sequence[torch.Tensor | None]) -> None:
        places = {id(t): place for place, t in reversed(list(enumerate(tensors))) if t is not None}
        self.places = sorted(places.values())
        self.where = [None if t is None else self.places.index(places[id(t)]) for t in tensors]

    def unstack(self, slices: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return the tensors of a layer."""
        return [None if place is None else slices[place] for place in self.where]


def _call_of(layer: nn.Module) -> ModuleFunction:
    found = _calls.get(layer)
    if found is None:
        found = _calls[layer] = ModuleFunction(layer)
    return found


def _check_same_structure(layers: Sequence[nn.Module], is_pure: bool) -> None:
    """Raise ValueError for layers that differ from the first in modules, settings or training modes.

    The caller guarantees that the settings of pure layers do not change: they are compared once.
    """
    first, known = _call_of(layers[0]), _alike.setdefault(layers[0], WeakSet())
    kinds, modes = None, first.modes()
    for number, layer in enumerate(layers[1:], 1):
        call = _call_of(layer)
        if not is_pure or layer not in known:
            kinds = kinds or first.kinds()
            for expected, found in zip(kinds, call.kinds(), strict=False):
                if expected != found:
                    raise ValueError(
                        f"scan_layers: layer {number} differs from layer 0: {found[0].__name__}({found[1]}) instead of "
                        f"{expected[0].__name__}({expected[1]})"
                    )
            known.add(layer)
        for place, (one, other) in enumerate(zip(modes, call.modes(), strict=False)):
            if one != other:
                where = f" in its {call.kinds()[place][0].__name__}" if place else ""
                raise ValueError(f"scan_layers: layer {number} differs from layer 0: training is {other}{where}")


def _check_shapes(
    first: ModuleFunction, expected: Sequence[torch.Tensor | None], found: Sequence[torch.Tensor | None], number: int
) -> None:
    facts, others = ([None if t is None else (t.dtype, t.shape) for t in tensors] for tensors in (expected, found))
    if facts != others:
        names = first.names()
        places = [i for i, (a, b) in enumerate(zip(facts, others, strict=False)) if a != b]
        which = names[places[0]] if places else f"{len(facts)} and {len(others)} tensors"
        raise ValueError(
            f"scan_layers: the parameters or buffers of layer {number} differ from those of layer 0: {which}"
        )


class StackedLayers(nn.Module):
    """Layers that store their parameters as stacks and run like scan_layers, without a copy per step.

    Parameters and buffers have the names of one layer's, prefixed by ``layer.``, and an additional leading dimension,
    the number of layers. Elementwise optimizers (SGD, Adam) update each layer as they would separate layers; optimizers
    that use matrices or parameter norms do not.

    Args:
      layers: as for scan_layers; their values are copied. For each name, all or none should require gradients.
      partition_fn, is_layer_pure: as for scan_layers.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.scan_layers import StackedLayers
      >>> stack = StackedLayers(torch.nn.Linear(4, 4) for _ in range(8)).to("xla")
      >>> {name: list(value.shape) for name, value in stack.named_parameters()}
      {'layer.weight': [8, 4, 4], 'layer.bias': [8, 4]}
      >>> list(stack(torch.ones(2, 4, device="xla")).shape)
      [2, 4]
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        partition_fn: aot_partitioner.Partition = default_partition,
        is_layer_pure: bool = False,
    ) -> None:
        super().__init__()
        layers = list(layers)
        if not layers:
            raise ValueError("StackedLayers: expected at least one layer")
        _check_same_structure(layers, is_layer_pure)
        for number, layer in enumerate(layers[1:], 1):
            _check_shapes(_call_of(layers[0]), _call_of(layers[0]).tensors(), _call_of(layer).tensors(), number)
        self._partition_fn, self._is_pure, self._count = partition_fn, is_layer_pure, len(layers)
        self.layer = copy.deepcopy(layers[0])
        stacks = _StackedParameters(_call_of(layers[0]).tensors())
        tensors = [_call_of(layer).tensors() for layer in layers]
        with torch.no_grad():
            made = [torch.stack([of_layer[place] for of_layer in tensors]) for place in stacks.places]  # type: ignore[misc]
        made = [
            nn.Parameter(stack, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else stack
            for stack, old in ((s, tensors[0][place]) for s, place in zip(made, stacks.places, strict=True))
            if old is not None
        ]
        for name, stack in zip(_call_of(self.layer).names(), stacks.unstack(made), strict=True):
            path, _, last = name.rpartition(".")
            setattr(self.layer.get_submodule(path), last, stack)

    def __len__(self) -> int:
        return self._count

    def forward(self, input_data: Any) -> Any:
        """Run the layers as scan_layers does.

        Args:
          input_data: the input of the first layer, a tensor or nested tensors.
        """
        tensors = _call_of(self.layer).tensors()
        stacks = _StackedParameters(tensors)
        stacked = [t for place in stacks.places if (t := tensors[place]) is not None]
        return _run(self.layer, stacks, stacked, input_data, self._partition_fn, self._is_pure)

    def layer_state_dict(self, number: int) -> dict[str, torch.Tensor]:
        """Return the state of one layer, under the names of a separate layer.

        Args:
          number: the number of the layer.
        """
        return {name: tensor[number] for name, tensor in self.layer.state_dict().items()}
