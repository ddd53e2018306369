"""The runtime under its name in PyTorch/XLA 1.13 and 2.0; a call emits a DeprecationWarning with the new name."""

from __future__ import annotations

import sys

from torch_xla import runtime
from torch_xla._internal import pjrt
from torch_xla.core import xla_model
from torch_xla.experimental.deprecation import register_deprecated

_module = sys.modules[__name__]

for _function in (
    runtime.addressable_device_count, runtime.device_type, runtime.global_device_count, runtime.global_ordinal,
    runtime.local_device_count, runtime.local_ordinal, runtime.local_process_count, runtime.process_count,
    runtime.process_index, runtime.set_device_type, runtime.using_pjrt, runtime.world_size, runtime.xla_device,
    xla_model.broadcast_master_param,
):  # fmt: skip
    register_deprecated(_module, _function)

for _started in (
    pjrt.initialize_multiprocess, pjrt.initialize_singleprocess, pjrt.rendezvous, pjrt.spawn, pjrt.spawn_threads,
):  # fmt: skip
    register_deprecated(_module, _started)

register_deprecated(_module, runtime.runtime_device_attributes, "device_attributes")
register_deprecated(_module, runtime.global_runtime_device_attributes, "global_device_attributes")
