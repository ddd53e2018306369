"""Warn of ops that run on the CPU: once for each line of the user, and once for each installed library."""

from __future__ import annotations

from torch_xla._engine.base import messages, user_frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import observer

_STATIC = "use torch.where(mask, x, 0), or torch.topk with a fixed size, so that the shape is static"
#: Ops whose result shape depends on values: their text in the user's code, and the fix.
_DATA_DEPENDENT: dict[str, tuple[str, str]] = {
    "aten::index.Tensor": ("x[mask]", _STATIC),
    "aten::masked_select": ("torch.masked_select", _STATIC),
    "aten::nonzero": ("torch.nonzero", "use the mask itself with torch.where(mask, a, b), so that the shape is static"),
    "aten::_unique": ("torch.unique", ""),
    "aten::_unique2": ("torch.unique", ""),
    "aten::unique_dim": ("torch.unique", ""),
    "aten::unique_consecutive": ("torch.unique_consecutive", ""),
    "aten::bincount": ("torch.bincount", "use torch.zeros(size).index_add_(0, x, ones), with a fixed size"),
    "aten::repeat_interleave.Tensor": ("torch.repeat_interleave", "pass output_size=, or repeat by a number"),
}
_OUTSIDE = "call it outside the training step, for example in the data loader"
_ASSIGNMENT = ("x[mask] = values", "use torch.where(mask, values, x), with values of the shape of x")
_MASK_WRITES = ("aten::index_put_", "aten::_index_put_impl_", "aten::index_put", "aten::_index_put_impl")

_GENERATOR = "create the generator with torch.Generator(device='xla'), or draw on the CPU and move the result"

_warned: set[tuple[str, str]] = set()  # (op, user line), or ("", library)


def handle_fallback(op: str, has_cpu_generator: bool) -> None:
    """Record a CPU fallback of an op, and warn at its first one at a user line, or of an installed library.

    Args:
      op: the operator.
      has_cpu_generator: whether the call has a generator of the CPU.

    Raises RuntimeError for a collective: its process group cannot take the CPU copies either.
    """
    line = user_frames.user_line()
    if op.startswith("c10d::"):
        raise RuntimeError(
            f"{op} at {line}: the process group has no backend for xla tensors (gloo and nccl take CPU and CUDA "
            'tensors); create it with `dist.init_process_group("xla", init_method="xla://")`'
            "\n  See: torch-xla explain process-group"
        )
    library = user_frames.installed_library(line)
    key = (op, line) if library is None else ("", library)
    if settings.TORCH_XLA_WARN_FALLBACK and key not in _warned:
        _warned.add(key)
        messages.warn(fallback_message(op, line, library, has_cpu_generator))
    observer.on_fallback(op, line)


def is_data_dependent(op: str) -> bool:
    """Whether an op runs on the CPU because its result shape depends on values."""
    return op in _MASK_WRITES or _base_name(op) in _DATA_DEPENDENT


def _base_name(op: str) -> str:
    return op.removesuffix(".out").removesuffix("_out")


def fallback_message(op: str, line: str, library: str | None = None, has_cpu_generator: bool = False) -> str:
    """Return the message for an op that runs on the CPU at a line, which may be inside an installed library."""
    counter = f"the counter {op} counts the calls"
    if library is not None:
        counter += f"; other operators that {library} runs on the CPU do not warn (torch_xla.debug.report() lists them)"
    if has_cpu_generator:
        return messages.compose(
            f"{op} at {line} has a generator of the CPU, so it runs on the CPU (one host-to-device copy per call)",
            f"a torch.Generator draws on its own device; {counter}",
            _GENERATOR,
            "cpu-fallback",
        )
    found = _ASSIGNMENT if op in _MASK_WRITES else _DATA_DEPENDENT.get(_base_name(op))
    if found is not None:
        what, fix = found
        return messages.compose(
            f"{what} at {line} has a data-dependent shape, so it runs on the CPU (one device-to-host copy per call)",
            f"XLA programs have static shapes, and the result shape of {op} depends on values; {counter}",
            fix or _OUTSIDE,
            "data-dependent-shape",
        )
    return messages.compose(
        f"{op} at {line} has no lowering, so it runs on the CPU (one device-to-host copy per call)",
        f"torch_xla does not implement this operator for XLA; {counter}",
        f"replace it by other operators, or {_OUTSIDE}",
        "cpu-fallback",
    )
