"""What a function that is recorded once must not touch: values, and tensors from outside.

The function runs on placeholders, tensors without values. Two modes of torch watch it: one above autograd, which puts
placeholders in the place of tensors that are captured, and one below, which sees every operation.
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
from torch_xla._engine.compat import autograd, control_flow, dispatcher


class _PlaceholderBuffer:
    """Stands in the place of a device buffer, for a tensor that has none."""

    nbytes = 0

    def __init__(self, what: str, shape: tuple[int, ...]) -> None:
        self._what, self.shape = what, shape

    def __getattr__(self, name: str) -> Any:
        raise value_needed_error(object.__getattribute__(self, "_what"))


def value_needed_error(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} is recorded once, without values, and a value is needed in it: printing, .item(), .cpu(), `if tensor:`"
        " and operations that run on the CPU need values; move them out of it"
    )


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[CaptureDispatchMode] = []  # of the recordings under way on this thread, the innermost last


_thread = _Thread()


def run_exclusively(device: int, function: Callable[..., Any], *args: Any) -> Any:
    """What ``function`` gives, called by the only thread that may collect and launch; while one records, it is that."""
    if _thread.open:
        return function(*args)
    return recorder.bindings().with_execution_lock(device, function, *args)


def is_recording() -> bool:
    """Whether this thread is recording a function."""
    return bool(_thread.open)


def current_capture() -> CaptureDispatchMode:
    """Of the function that this thread is recording; IndexError where it records none."""
    return _thread.open[-1]


def mark_sharding_in_capture(tensor: torch.Tensor, sharding: int) -> bool:
    """Marks how a tensor of the function that is recorded is to lie, in place; False where none is recorded.

    That changes no value: it is no write to an argument.
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
    """The tensor, which no operation of torch has made, noted as one of the function that is recorded."""
    if _thread.open:
        _thread.open[-1].add([tensor])
    return tensor


def resolve_captured(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Arguments of an autograd Function, which torch's modes do not see: those that are captured, by what stands in."""
    return [_thread.open[-1].resolve(t) for t in tensors] if _thread.open else tensors


def has_no_user_modes() -> bool:
    """Whether no mode of torch looks at operations on this thread, but those of a function that is recorded."""
    mode = control_flow.current_dispatch_mode()
    return mode is None or isinstance(mode, CaptureDispatchMode)


class CaptureDispatchMode(dispatcher.DispatchMode):
    """Sees to xla tensors that are neither arguments nor made of them: they are captured, or refused."""

    def __init__(
        self, what: str, arguments: Sequence[torch.Tensor], made: list[weakref.ref[torch.Tensor]], captures: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what, self._captures = what, captures
        self._known: dict[int, torch.Tensor] = {}
        self._made = made
        self.captured: list[torch.Tensor] = []
        self.stand_ins: list[torch.Tensor] = []
        self.nodes: list[Any] = []  # of these, as they were
        self.marked: dict[Any, Any] = {}  # by node, the one that it lays out
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
        """Enters a context, which is left when the recording has ended, with its backward pass."""
        self._until_end.enter_context(context)

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Notes tensors that are the function's own."""
        self._made += [weakref.ref(t) for t in tensors if id(t) not in self._known]
        self._known.update((id(t), t) for t in tensors)

    def unknown(self, values: Any) -> bool:
        """Whether some tensor in it is neither an argument nor known to be made of them."""
        return any(t.device.type == "xla" and id(t) not in self._known for t in _tensors(values))

    def resolve(self, tensor: torch.Tensor) -> torch.Tensor:
        """What takes the place of a tensor: itself, unless it is captured. RuntimeError if it must not be used."""
        if tensor.device.type != "xla" or id(tensor) in self._known:
            return tensor
        for place, captured in enumerate(self.captured):
            if captured is tensor:
                return self.stand_ins[place]
        (node,) = recorder.bindings().nodes_of([tensor])
        if self.is_backward:  # autograd hands out other objects than it was given
            nodes = recorder.bindings().nodes_of(self.captured)
            found = next((s for s, n in zip(self.stand_ins, nodes, strict=True) if n is node), None)
            if found is None and node.buffer is not None and self._is_foreign(node, tensor):
                raise _foreign_tensor_error(self._what, tensor)
            return tensor if found is None else found
        # An autograd Function gives other objects than those that its operations made.
        if self._is_foreign(node, tensor):
            return self._capture(tensor)
        self.add([tensor])
        return tensor

    def _is_foreign(self, node: Any, tensor: torch.Tensor) -> bool:
        """Whether a tensor's node is of none that is known."""
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
        if _thread.open[-1] is not self:  # an operation of a function that is recorded within this one
            return func(*args, **kwargs)
        if self.unknown((args, kwargs)):
            args, kwargs = _map_tensors(self._below_autograd, args), _map_tensors(self._below_autograd, kwargs)
        results = func(*args, **kwargs)
        self.add([t for t in _tensors(results) if t.device.type == "xla"])
        return results

    def _below_autograd(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self.resolve(tensor)
        if found is not tensor and found.requires_grad and not self.is_backward:
            raise _foreign_tensor_error(self._what, tensor)
        return found


class CaptureFunctionMode(TorchFunctionMode):
    """Has captured tensors replaced before autograd sees them, so that their gradients end at the function."""

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
    """In the block, hooks on saved tensors (those of a checkpoint around it, say) see nothing of what it saves."""
    if not autograd.has_saved_tensor_hooks():
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda t: t):
        yield


def _foreign_tensor_error(what: str, tensor: torch.Tensor) -> RuntimeError:
    graded = ", which requires a gradient," if tensor.requires_grad else ""
    return RuntimeError(
        f"{what} uses a tensor from outside ({tensor.dtype}{list(tensor.shape)} on {tensor.device}){graded} that is "
        "not an argument of it: pass it as one. PureModule passes the parameters and buffers of a module."
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
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        items = [_map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: _map_tensors(function, item) for name, item in value.items()}
    return value


def placeholder(what: str, struct: jax.ShapeDtypeStruct, device: int) -> torch.Tensor:
    """An xla tensor without a value."""
    code = dtypes.TO_CODE[dtypes.torch_dtype(struct.dtype)]
    made: torch.Tensor = recorder.bindings().make_tensor(_PlaceholderBuffer(what, tuple(struct.shape)), code, device)
    return made


def drop_placeholder_values(made: Sequence[weakref.ref[torch.Tensor]]) -> None:
    """Takes what has no value out of the tensors that are still there."""
    with torch.no_grad():
        for tensor in [t for t in (ref() for ref in made) if t is not None]:
            if not dispatcher.is_view(tensor):
                tensor.detach_()
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
