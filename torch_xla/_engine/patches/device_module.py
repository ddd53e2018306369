"""``torch.xla``: what torch's device-generic code asks of a device type (checkpointing, ``torch.random.fork_rng``).

Registered with ``torch._register_device_module`` (private to torch; checked on 2.13).
"""

from __future__ import annotations

from types import TracebackType

import torch

from torch_xla._engine import recorder
from torch_xla._engine.device import devices
from torch_xla._engine.execution import executor
from torch_xla._engine.patches import seeding


def _ordinal(which: torch.device | str | int | None) -> int:
    return recorder.ordinal(None if isinstance(which, int) and which < 0 else which)


def is_available() -> bool:
    """Whether there is a device; starts the backend."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the backend has been started."""
    return devices.started()


def device_count() -> int:
    """The number of xla devices of this process; starts the backend."""
    return devices.count()


def current_device() -> int:
    """The ordinal of this thread's current device."""
    return int(recorder.module().current_device())


def set_device(which: torch.device | str | int) -> None:
    """Makes a device this thread's current one."""
    recorder.module().set_current_device(_ordinal(which))


class device:
    """Context: another current device for the block; None or a negative ordinal leaves it."""

    def __init__(self, which: torch.device | str | int | None) -> None:
        self._inside = _ordinal(which)

    def __enter__(self) -> device:
        self._before = current_device()
        set_device(self._inside)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        set_device(self._before)


def synchronize(which: torch.device | str | int | None = None) -> None:
    """Runs all that is pending on a device and waits for it."""
    ordinal = _ordinal(which)
    executor.sync_device(ordinal)
    executor.wait(ordinal)


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    recorder.module().set_seed(current_device(), seed & seeding.MASK)


def manual_seed_all(seed: int) -> None:
    """Seeds every device."""
    seeding.seed_all(seed)


def get_rng_state(which: torch.device | str | int | None = None) -> torch.Tensor:
    """The random state of a device: 8 bytes, uint8[8] on the CPU."""
    state = int(recorder.module().get_seed(_ordinal(which)))
    return torch.frombuffer(bytearray(state.to_bytes(8, "little")), dtype=torch.uint8)


def set_rng_state(state: torch.Tensor, which: torch.device | str | int | None = None) -> None:
    """Sets the random state of a device to what get_rng_state gave. ValueError for another size."""
    if state.numel() != 8:
        raise ValueError(f"set_rng_state: an xla state is uint8[8], got {state.dtype}{list(state.shape)}")
    recorder.module().set_seed(_ordinal(which), int.from_bytes(bytes(state.cpu().tolist()), "little"))


def _is_in_bad_fork() -> bool:
    return False


def __getattr__(name: str) -> bool:
    # torch.utils.checkpoint asks for it as torch.cuda has it: a plain name. Without it no random state is kept for the
    # second forward pass, and dropout would drop other elements there.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")
