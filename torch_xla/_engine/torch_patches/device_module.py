"""The module ``torch.xla``, which torch's device-generic code uses (checkpointing, ``torch.random.fork_rng``).

Registered with ``torch._register_device_module`` (private to torch; checked with 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.device import devices
from torch_xla._engine.execution import executor
from torch_xla._engine.torch_patches import manual_seed as manual_seed_patch


def _ordinal_or_current(which: torch.device | str | int | None) -> int:
    """Return the ordinal of a device; the current one for None or a negative number, as torch.cuda does."""
    return recorder.ordinal(None if isinstance(which, int) and which < 0 else which)


def is_available() -> bool:
    """Whether there is a device. Starts the backend."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the backend has started."""
    return devices.backend_started()


def device_count() -> int:
    """Return the number of xla devices of this process. Starts the backend."""
    return devices.count()


def current_device() -> int:
    """Return the ordinal of this thread's current device."""
    return int(recorder.bindings().current_device())


def set_device(which: torch.device | str | int) -> None:
    """Set this thread's current device; a negative ordinal changes nothing."""
    recorder.bindings().set_current_device(_ordinal_or_current(which))


class device:
    """Context manager that changes the current device; None or a negative ordinal changes nothing."""

    def __init__(self, which: torch.device | str | int | None) -> None:
        self._inside = _ordinal_or_current(which)

    def __enter__(self) -> device:
        self._before = current_device()
        set_device(self._inside)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        set_device(self._before)


def synchronize(which: torch.device | str | int | None = None) -> None:
    """Run all pending operations of a device and wait for them. Raises IndexError for an unknown ordinal."""
    ordinal = recorder.ordinal(which)
    executor.sync_device(ordinal)
    executor.wait_device(ordinal)


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    recorder.bindings().set_seed(current_device(), seed & manual_seed_patch.MASK)


def manual_seed_all(seed: int) -> None:
    """Seed every device."""
    manual_seed_patch.seed_all(seed)


def get_rng_state(which: torch.device | str | int | None = None) -> torch.Tensor:
    """Return the random state of a device, uint8[16] on the CPU: an 8-byte seed and an 8-byte offset, which is 0.

    The format is that of other devices' generators: code that increases the offset, such as DTensor, gets other
    numbers.
    """
    state = int(recorder.bindings().get_seed(recorder.ordinal(which)))
    return torch.frombuffer(bytearray(state.to_bytes(16, "little")), dtype=torch.uint8)


def set_rng_state(state: torch.Tensor, which: torch.device | str | int | None = None) -> None:
    """Set the random state of a device from get_rng_state, or from the older format uint8[8].

    Raises ValueError for another size.
    """
    if state.numel() not in (8, 16) or state.dtype != torch.uint8:
        raise ValueError(f"set_rng_state: expected uint8[16], got {state.dtype}{list(state.shape)}")
    data = bytes(state.cpu().tolist())
    seed, offset = (int.from_bytes(part, "little") for part in (data[:8], data[8:]))
    recorder.bindings().set_seed(recorder.ordinal(which), _mix_seed_offset(seed, offset) if offset else seed)


def _mix_seed_offset(seed: int, offset: int) -> int:
    """Return a seed for an offset; states that differ in seed or offset have unrelated random numbers."""
    mixed = seed ^ (offset * 0x9E3779B97F4A7C15 & manual_seed_patch.MASK)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> shift) * factor & manual_seed_patch.MASK
    return mixed ^ mixed >> 31


def make_fake_tensor(original: Callable[..., Any], kind: Any, mode: Any, elem: Any, device: Any, *args: Any,
                   **kwargs: Any) -> Any:  # fmt: skip
    """Create a fake tensor; a device without an index is the current device."""
    if device.type == "xla" and device.index is None:
        device = torch.device("xla", current_device())
    return original(kind, mode, elem, device, *args, **kwargs)


def _is_in_bad_fork() -> bool:
    return False


def _module_attribute(name: str) -> bool:
    # torch.utils.checkpoint expects an attribute, as in torch.cuda. Without it, checkpoint saves no random state, and
    # dropout would drop other elements in the recomputation.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")


_PUBLIC: tuple[Callable[..., Any], ...] = (
    current_device, device, device_count, get_rng_state, is_available, is_initialized, manual_seed, manual_seed_all,
    set_device, set_rng_state, synchronize,
)  # fmt: skip


def public_module() -> ModuleType:
    """Return the module ``torch.xla``, which has the public names of this one."""
    module = ModuleType("torch.xla", "The xla device, with the functions of torch.cuda that device-generic code calls.")
    names = {function.__name__: function for function in _PUBLIC}
    vars(module).update(names, __all__=sorted(names), __getattr__=_module_attribute, _is_in_bad_fork=_is_in_bad_fork)
    return module
