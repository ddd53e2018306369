"""The module ``torch.xla``, which torch's device-generic code uses (checkpointing, ``torch.random.fork_rng``).

Registered with ``torch._register_device_module`` (private to torch; checked with 2.13).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from types import ModuleType, TracebackType
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.device import devices
from torch_xla._engine.torch_patches import device_memory_api, device_streams
from torch_xla._engine.torch_patches import manual_seed as manual_seed_patch


def is_available() -> bool:
    """Whether there is a device: always, since XLA runs on the CPU. Starts no backend."""
    return True


def init() -> None:
    """Start the backend, which otherwise starts at the first use of a device."""
    devices.count()


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
    recorder.bindings().set_current_device(recorder.ordinal_or_current(which))


class device:
    """Context manager that changes the current device; None or a negative ordinal changes nothing."""

    def __init__(self, which: torch.device | str | int | None) -> None:
        self._inside = recorder.ordinal_or_current(which)

    def __enter__(self) -> device:
        self._before = current_device()
        set_device(self._inside)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        set_device(self._before)


class device_of(device):
    """Context manager that makes the device of an xla tensor the current one; other tensors change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "xla" else None)


def synchronize(which: torch.device | str | int | None = None) -> None:
    """Run all pending operations of a device and wait for them. Raises IndexError for an unknown ordinal."""
    device_streams.synchronize_device(recorder.ordinal(which))


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


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random state of each device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the random states of the devices, in their order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def initial_seed() -> int:
    """Return the random state of the current device as a number: its seed before the first draw."""
    return int(recorder.bindings().get_seed(current_device()))


def seed() -> int:
    """Seed the current device with a random number, and return that."""
    number = secrets.randbits(63)
    manual_seed(number)
    return number


def seed_all() -> int:
    """Seed every device with one random number, and return that."""
    number = secrets.randbits(63)
    manual_seed_all(number)
    return number


class DefaultGenerator:
    """The random state of a device, as torch.accelerator.random reads it from torch's default generators."""

    def __init__(self, index: int) -> None:
        self._ordinal = recorder.ordinal(index)

    def initial_seed(self) -> int:
        """Return the random state as a number: its seed before the first draw."""
        return int(recorder.bindings().get_seed(self._ordinal))

    def get_state(self) -> torch.Tensor:
        """Return the random state, as ``torch.xla.get_rng_state`` does."""
        return get_rng_state(self._ordinal)


def _is_in_bad_fork() -> bool:
    """Whether this process was forked after the first use of a device, so that it cannot use any."""
    return bool(devices.inherited_objects())


def _module_attribute(name: str) -> bool:
    # torch.utils.checkpoint expects an attribute, as in torch.cuda. Without it, checkpoint saves no random state, and
    # dropout would drop other elements in the recomputation.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")


_PUBLIC: tuple[Callable[..., Any], ...] = (
    current_device, device, device_count, device_of, get_rng_state, get_rng_state_all, init, initial_seed,
    is_available, is_initialized, manual_seed, manual_seed_all, seed, seed_all, set_device, set_rng_state,
    set_rng_state_all, synchronize, device_memory_api.DeviceProperties, device_memory_api.empty_cache,
    device_memory_api.get_amp_supported_dtype, device_memory_api.get_device_capability,
    device_memory_api.get_device_name, device_memory_api.get_device_properties, device_memory_api.is_bf16_supported,
    device_memory_api.max_memory_allocated, device_memory_api.max_memory_reserved, device_memory_api.mem_get_info,
    device_memory_api.memory_allocated, device_memory_api.memory_reserved, device_memory_api.memory_stats,
    device_memory_api.memory_stats_as_nested_dict, device_memory_api.memory_summary,
    device_memory_api.reset_accumulated_memory_stats, device_memory_api.reset_peak_memory_stats, device_streams.Event,
    device_streams.Stream, device_streams.StreamContext, device_streams.current_stream, device_streams.default_stream,
    device_streams.is_current_stream_capturing, device_streams.set_stream, device_streams.stream,
)  # fmt: skip


def public_module() -> ModuleType:
    """Return the module ``torch.xla``, which has the public names of this one."""
    module = ModuleType("torch.xla", "The xla device, with the functions of torch.cuda that device-generic code calls.")
    names = {function.__name__: function for function in _PUBLIC}
    vars(module).update(names, __all__=sorted(names), __getattr__=_module_attribute, _is_in_bad_fork=_is_in_bad_fork)
    return module
