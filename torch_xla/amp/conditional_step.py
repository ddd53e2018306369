"""Skip an optimizer step with non-finite gradients, decided on the device.

The step always runs and is undone by selecting the old values. Values of a lazy graph are immutable, so retaining the
old ones needs no copy; XLA fuses the select into the loop that computes the new values.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from torch_xla._engine.base import user_frames

T = TypeVar("T")

# State that the first step creates and that is all zeros before it: undoing that step leaves zeros.
_STARTS_AT_ZERO = {
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adadelta,
    torch.optim.Adamax, torch.optim.RAdam,
}  # fmt: skip

_warned: set[type] = set()


class SkipCondition:
    """Whether a step is skipped, as a bool tensor on each device that needs it. Lives for one step."""

    def __init__(self, found_inf: Sequence[Tensor]) -> None:
        total = sum(found.to(found_inf[0].device) for found in found_inf)
        assert isinstance(total, Tensor), "no inf check was recorded"
        self._skipped = (total != 0).reshape(())
        self._on = {self._skipped.device: self._skipped}

    def on_device(self, device: torch.device) -> Tensor:
        if device not in self._on:
            self._on[device] = self._skipped.to(device)
        return self._on[device]

    def restore_if_skipped(self, tensor: Tensor, old: Tensor | float) -> None:
        """Set the tensor back to ``old`` if the step is skipped."""
        tensor.copy_(torch.where(self.on_device(tensor.device), old, tensor))

    def read(self) -> bool:
        """Read the condition from the device; waits for it."""
        return bool(self._skipped.item())


@contextmanager
def skip_scope(skipped: SkipCondition | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Make the writes of the block to the tensors conditional: they take effect unless ``skipped``; None: always."""
    before = [] if skipped is None else [tensor.clone() for tensor in tensors]
    yield
    if skipped is not None:
        for tensor, old in zip(tensors, before, strict=True):
            skipped.restore_if_skipped(tensor, old)


class _OptimizerSnapshot:
    """An optimizer before its step: parameters that have a gradient, state and options. Lives for one step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        with_gradient = (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None)
        self._params = [(p, p.detach().clone()) for p in with_gradient]
        self._state = {p: {name: (value, _copy(value)) for name, value in optimizer.state[p].items()}
                       for p, _ in self._params if p in optimizer.state}  # fmt: skip
        self._options = [_options(group) for group in optimizer.param_groups]

    def is_on_device(self) -> bool:
        """Return whether everything that the step changed is on the device, or is known to have been zero before."""
        groups = self._optimizer.param_groups
        if any(_has_changed(_options(group), old) for group, old in zip(groups, self._options, strict=True)):
            return False
        return all(self._entry_is_on_device(p, group, name, value)
                   for group in groups for p in group["params"] if p.grad is not None
                   for name, value in self._optimizer.state.get(p, {}).items())  # fmt: skip

    def _entry_is_on_device(self, p: Tensor, group: dict[str, Any], name: str, value: Any) -> bool:
        if name not in self._state.get(p, {}):
            return _starts_at_zero(self._optimizer, group, value)
        same, old = self._state[p][name]
        if value is same and isinstance(value, Tensor) and value.device.type == "xla":
            return True
        return not _has_changed(value, old)

    def restore_where(self, skipped: SkipCondition) -> None:
        """Restore on the device, by selects; is_on_device must be true."""
        for p, old in self._params:
            skipped.restore_if_skipped(p, old)
            known = self._state.get(p, {})
            for name, value in self._optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor) and value.device.type == "xla":
                    skipped.restore_if_skipped(value, known[name][1] if name in known else 0)

    def restore(self) -> None:
        """Restore everything, including state on the CPU and in Python."""
        for p, before in self._params:
            p.copy_(before)
            if p not in self._state:
                self._optimizer.state.pop(p, None)
                continue
            state = self._optimizer.state[p]
            state.clear()
            for name, (value, old) in self._state[p].items():
                state[name] = value.copy_(old) if isinstance(value, Tensor) else old
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            group.update(options)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in group.items() if name != "params"}


def _has_changed(new: Any, old: Any) -> bool:
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() != old.keys() or any(_has_changed(value, old[name]) for name, value in new.items())
    if isinstance(new, Tensor) and isinstance(old, Tensor):
        return new.device.type != "xla" and not torch.equal(new, old)
    plain = (int, float, bool, str, type(None), tuple)
    return not (isinstance(new, plain) and isinstance(old, plain) and new == old)


def _starts_at_zero(optimizer: torch.optim.Optimizer, group: dict[str, Any], value: Any) -> bool:
    if value is None:
        return True
    known = type(optimizer) in _STARTS_AT_ZERO and not group.get("dampening")
    return known and isinstance(value, Tensor) and value.device.type == "xla"


@torch.no_grad()
def step_unless_inf(found_inf: Sequence[Tensor], optimizer: torch.optim.Optimizer, step: Callable[[], T]) -> T:
    """Run ``step``, one step of the optimizer, and undo it if any element of ``found_inf`` is nonzero.

    If the optimizer has all its state on the device, no value is read. Otherwise ``found_inf`` is read: once if the
    first step creates state whose initial value is unknown; at every step, with a warning, if state is in Python or on
    the CPU.
    """
    skipped = SkipCondition(found_inf)
    before = _OptimizerSnapshot(optimizer)
    fresh = not optimizer.state
    result = step()
    if before.is_on_device():
        before.restore_where(skipped)
        return result
    if not fresh:
        _warn(optimizer)
    if skipped.read():
        before.restore()
    return result


def _warn(optimizer: torch.optim.Optimizer) -> None:
    if type(optimizer) in _warned:
        return
    _warned.add(type(optimizer))
    name = type(optimizer).__name__
    hint = ("pass capturable=True to it" if "capturable" in optimizer.defaults
            else "use an optimizer of torch_xla.amp.syncfree")  # fmt: skip
    if name in ("SGD", "Adam", "AdamW"):
        hint = f"use torch_xla.amp.syncfree.{name}, or {hint}"
    warnings.warn(
        f"torch_xla.amp.GradScaler: {name} has state outside the device, so each step at {user_frames.user_line()} "
        f"waits until the device has checked whether the gradients are finite; {hint} to avoid the wait.",
        UserWarning,
        stacklevel=2,
    )
