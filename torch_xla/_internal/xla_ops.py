"""Operators ``torch.ops.xla.*`` of upstream that are not kernels; ``custom_kernel`` defines the kernels.

XLA_LIB is the library to which scripts add operators: ``XLA_LIB.define(...)``, ``torch.library.impl(XLA_LIB, ...)``.
"""

from __future__ import annotations

import torch

from torch_xla.experimental import stablehlo_custom_call

XLA_LIB = torch.library.Library("xla", "FRAGMENT")


def _set_buffer_donor(t: torch.Tensor, should_donate: bool) -> torch.Tensor:
    """Return the tensor: buffers that can no longer be read are donated without a request."""
    return t


def define() -> None:
    """Register the operators, once per process."""
    XLA_LIB.define("place_to_host(Tensor a) -> Tensor")
    XLA_LIB.define("place_to_device(Tensor a) -> Tensor")
    XLA_LIB.define("dynamo_set_buffer_donor_(Tensor(a!) t, bool should_donate) -> Tensor(a!)")
    XLA_LIB.impl("place_to_host", stablehlo_custom_call.place_to_host, "CompositeImplicitAutograd")
    XLA_LIB.impl("place_to_device", stablehlo_custom_call.place_to_device, "CompositeImplicitAutograd")
    XLA_LIB.impl("dynamo_set_buffer_donor_", _set_buffer_donor, "CompositeExplicitAutograd")


define()
