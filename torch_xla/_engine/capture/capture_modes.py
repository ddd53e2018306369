"""Torch modes and placeholders for capturing a function: reject value reads, intercept tensors from outside.

The function runs on placeholders, which are tensors without values. A TorchFunctionMode above autograd replaces
captured tensors by placeholders. A TorchDispatchMode below autograd checks every operation.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import custom_ops
from torch_xla._engine.compat import autograd, control_flow, dispatcher

_ASSERTIONS = frozenset({"aten::_assert_async", "aten::_assert_async.msg"})


class _PlaceholderBuffer:
    """The device buffer of a placeholder: has a shape but no value, and raises on any other access."""

    nbytes = 0

    def __init__(self, what: str, shape: tuple[int, ...]) -> None:
        self._what, self.shape = what, shape

    def __getattr__(self, name: str) -> Any:
        raise value_needed_error(object.__getattribute__(self, "_what"))


def value_needed_error(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} needs a tensor value, but it is captured without values: move printing, .item(), .cpu(), `if tensor:` "
        "and operations that run on the CPU out of it"
    )


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[CaptureDispatchMode] = []  # active captures of this thread, innermost last


_thread = _Thread()


def run_exclusively(device: int, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` under the device's execution lock, and return its result.

    A thread that is capturing a function already holds the lock.
    """
    if _thread.open:
        return function(*args)
    return recorder.bindings().with_execution_lock(device, function, *args)


def is_recording() -> bool:
    """Whether this thread is capturing a function."""
    return bool(_thread.open)


def current_capture() -> CaptureDispatchMode:
    """Return the innermost capture of this thread. Raises IndexError if there is none."""
    return _thread.open[-1]


def mark_sharding_in_capture(tensor: torch.Tensor, sharding: int) -> bool:
    """Mark the sharding of a tensor of the captured function in place; return False if this thread captures none.

    A sharding changes no value, so it does not count as a write to an argument.
    """
    if not _thread.open:
        return False
    module, mode = recorder.bindings(), _thread.open[-1]
    tensor = mode.resolve(tensor)
    (before,) = module.nodes_of([tensor])
    if before.sharding != sharding:
        module.reshard(tensor, sharding)
        (after,) = module.nodes_of([tensor])
        mode.marked[after] = mode.marked.get(before, before)
    return True


def register_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Register a tensor that no torch operation produced as one of the captured function, and return it."""
    if _thread.open:
        _thread.open[-1].add([tensor])
    return tensor


def resolve_captured(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Replace captured tensors among the arguments of an autograd Function, which torch modes do not intercept."""
    return [_thread.open[-1].resolve(t) for t in tensors] if _thread.open else tensors


def has_no_user_modes() -> bool:
    """Whether the only torch modes active on this thread are those of a capture."""
    mode = control_flow.current_dispatch_mode()
    return mode is None or isinstance(mode, CaptureDispatchMode)


class CaptureDispatchMode(dispatcher.DispatchMode):
    """Capture or reject xla tensors that are neither arguments of the function nor computed from them."""

    def __init__(
        self, what: str, arguments: Sequence[torch.Tensor], made: list[weakref.ref[torch.Tensor]], captures: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what, self._captures = what, captures
        self._known: dict[int, torch.Tensor] = {}
        self._made = made
        self.captured: list[torch.Tensor] = []
        self.stand_ins: list[torch.Tensor] = []
        self.nodes: list[Any] = []  # of the captured tensors, at the time of capture
        self.marked: dict[Any, Any] = {}  # node with a marked sharding -> the node before it was marked
        self.custom_ops = custom_ops.CustomOpLog()
        self.is_backward = False
        self._until_end = ExitStack()
        self.add(arguments)

    def __enter__(self) -> Any:
        _thread.open.append(self)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        _thread.open.remove(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._until_end.close()

    def until_its_end(self, context: AbstractContextManager[None]) -> None:
        """Enter a context that is exited when the capture ends, after its backward pass."""
        self._until_end.enter_context(context)

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Register tensors as belonging to the function."""
        self._made += [weakref.ref(t) for t in tensors if id(t) not in self._known]
        self._known.update((id(t), t) for t in tensors)

    def unknown(self, values: Any) -> bool:
        """Whether ``values`` contain a tensor that is neither an argument nor known to be computed from arguments."""
        return any(t.device.type == "xla" and id(t) not in self._known for t in _tensors(values))

    def resolve(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the placeholder of a captured tensor, or the tensor itself. Raises RuntimeError if that is illegal."""
        if tensor.device.type != "xla" or id(tensor) in self._known:
            return tensor
        for place, captured in enumerate(self.captured):
            if captured is tensor:
                return self.stand_ins[place]
        (node,) = recorder.bindings().nodes_of([tensor])
        if self.is_backward:  # autograd returns other tensor objects than it was given
            nodes = recorder.bindings().nodes_of(self.captured)
            found = next((s for s, n in zip(self.stand_ins, nodes, strict=True) if n is node), None)
            if found is None and node.buffer is not None and self._is_foreign(node, tensor):
                raise _foreign_tensor_error(self._what, tensor)
            return tensor if found is None else found
        # An autograd Function returns other tensor objects than its operations produced.
        if self._is_foreign(node, tensor):
            return self._capture(tensor)
        self.add([tensor])
        return tensor

    def _is_foreign(self, node: Any, tensor: torch.Tensor) -> bool:
        """Whether a tensor's node belongs to no known tensor."""
        known = recorder.bindings().nodes_of([t for t in self._known.values() if t.shape == tensor.shape])
        return all(node is not other for other in known)

    def _capture(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._captures:
            raise _foreign_tensor_error(self._what, tensor)
        struct = jax.ShapeDtypeStruct(tuple(tensor.shape), dtypes.numpy_dtype(tensor.dtype))
        stand_in = placeholder(self._what, struct, tensor.device.index)
        stand_in.requires_grad_(tensor.requires_grad and torch.is_grad_enabled())
        self.add([stand_in])
        self.captured.append(tensor)
        self.stand_ins.append(stand_in)
        self.nodes += recorder.bindings().nodes_of([stand_in])
        return stand_in

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _thread.open[-1] is not self:  # an operation of a nested capture
            return func(*args, **kwargs)
        if func.name() in _ASSERTIONS:  # a captured function has no values to check
            return None
        if self.unknown((args, kwargs)):
            args, kwargs = _map_tensors(self._below_autograd, args), _map_tensors(self._below_autograd, kwargs)
        is_custom = custom_ops.is_custom_op(func)
        results = self.custom_ops.call(func, args, kwargs) if is_custom else func(*args, **kwargs)
        self.add([t for t in _tensors(results) if t.device.type == "xla"])
        return results

    def _below_autograd(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self.resolve(tensor)
        if found is not tensor and found.requires_grad and not self.is_backward:
            raise _foreign_tensor_error(self._what, tensor)
        return found


class CaptureFunctionMode(TorchFunctionMode):
    """Replace captured tensors before autograd sees them, so that their gradients end at the function."""

    def __init__(self, arguments: CaptureDispatchMode) -> None:
        super().__init__()
        self._arguments = arguments

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, mine = kwargs or {}, self._arguments
        if _thread.open[-1] is not mine or mine.is_backward:
            return func(*args, **kwargs)
        if mine.unknown((args, kwargs)):
            args, kwargs = _map_tensors(mine.resolve, args), _map_tensors(mine.resolve, kwargs)
        results = func(*args, **kwargs)
        mine.add([t for t in _tensors(results) if t.device.type == "xla"])
        return results


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Disable saved-tensor hooks in the block, for example those of an enclosing torch.utils.checkpoint."""
    if not autograd.has_saved_tensor_hooks():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda t: t):
        yield


def _foreign_tensor_error(what: str, tensor: torch.Tensor) -> RuntimeError:
    graded = ", which requires a gradient," if tensor.requires_grad else ""
    return RuntimeError(
        f"{what} uses a tensor from outside ({tensor.dtype}{list(tensor.shape)} on {tensor.device}){graded} that is "
        "not one of its arguments: pass it as one. PureModule passes the parameters and buffers of a module."
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    return custom_ops.map_leaves(torch.Tensor, function, value)


def placeholder(what: str, struct: jax.ShapeDtypeStruct, device: int) -> torch.Tensor:
    """Return an xla tensor without a value."""
    code = dtypes.TO_CODE[dtypes.torch_dtype(struct.dtype)]
    made: torch.Tensor = recorder.bindings().make_tensor(_PlaceholderBuffer(what, tuple(struct.shape)), code, device)
    return made


def drop_placeholder_values(made: Sequence[weakref.ref[torch.Tensor]]) -> None:
    """Remove the placeholder buffers from the tensors that are still alive."""
    with torch.no_grad():
        for tensor in [t for t in (ref() for ref in made) if t is not None]:
            if not dispatcher.is_view(tensor):
                tensor.detach_()
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
