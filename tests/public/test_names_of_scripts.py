"""Internal and older names of upstream that published scripts use: each works, or says what to use."""

from __future__ import annotations

import importlib
import json

import pytest
import torch

import torch_xla
from tests.support.helpers import assert_same
from torch_xla import _XLAC
from torch_xla.experimental import custom_kernel, stablehlo_custom_call

MODULES = {
    "torch_xla.version": "__version__",
    "torch_xla._dynamo.dynamo_bridge": "extract_compiled_graph",
    "torch_xla._internal.gpu": "num_local_processes",
    "torch_xla._internal.jax_workarounds": "jax_env_context jax_import_guard maybe_get_jax requires_jax",
    "torch_xla._internal.neuron": "num_local_processes",
    "torch_xla._internal.pjrt": "initialize_multiprocess rendezvous spawn",
    "torch_xla._internal.rendezvous": "pjrt_rendezvous_handler",
    "torch_xla._internal.utils": "parse_xla_device",
    "torch_xla.experimental.deprecation": "deprecated register_deprecated",
    "torch_xla.experimental.pjrt": "device_type world_size global_ordinal rendezvous spawn device_attributes",
    "torch_xla.experimental.pjrt_backend": "new_xla_process_group",
    "torch_xla.experimental.tpu": "num_available_devices",
    "torch_xla.experimental.unbounded_dynamism_export": "exported_program_has_symbolic_input_shape",
    "torch_xla.experimental.xla_marker": "BoundaryMetadata BoundaryMetadataSerializer",
    "torch_xla.experimental.xla_mlir_debuginfo": "write_mlir_debuginfo",
    "torch_xla.experimental.xla_sharding": "Mesh mark_sharding get_1d_mesh",
}


@pytest.mark.parametrize("module", MODULES)
def test_modules(module: str) -> None:
    loaded = importlib.import_module(module)
    assert not [name for name in MODULES[module].split() if not hasattr(loaded, name)]


def test_older_runtime_warns() -> None:
    from torch_xla.experimental import pjrt

    with pytest.warns(DeprecationWarning, match=r"pjrt\.device_type is deprecated: use torch_xla.runtime.device_type"):
        assert pjrt.device_type() == torch_xla.runtime.device_type()


def test_jax_workarounds() -> None:
    from torch_xla._internal import jax_workarounds

    jax_workarounds.jax_import_guard()
    with jax_workarounds.jax_env_context():
        assert jax_workarounds.maybe_get_jax().__name__ == "jax"
    assert jax_workarounds.requires_jax(len) is len


def test_operators() -> None:
    x = torch.randn(3, device="xla", requires_grad=True)
    y = torch.ops.xla.place_to_device(torch.ops.xla.place_to_host(x * 2))
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
    assert torch.ops.xla.dynamo_set_buffer_donor_(y, True) is y
    assert stablehlo_custom_call.place_to_host.__name__ == "place_to_host"
    custom_kernel.XLA_LIB.define("test_names_of_scripts(Tensor x) -> Tensor")
    torch.library.impl(custom_kernel.XLA_LIB, "test_names_of_scripts", "XLA")(lambda x: x + 1)
    assert torch.ops.xla.test_names_of_scripts(torch.ones(2, device="xla")).tolist() == [2.0, 2.0]


def test_extension_module() -> None:
    x, y = (torch.ones(2, device="xla") + n for n in range(2))
    _XLAC._xla_sync_multi([x, y], [], wait=True, sync_xla_data=True)
    assert_same(x + y, torch.full((2,), 3.0))
    assert _XLAC._get_xla_sharding_specs([x, y]) == ["", ""]
    _XLAC._xla_step_marker("xla:0", [], wait=True)
    _XLAC._xla_sync_live_tensors()
    _XLAC._xla_wait_device_ops([])
    _XLAC._set_xla_all_numbers_special_scalars(False)
    assert not _XLAC._get_xla_all_numbers_special_scalars()
    with pytest.raises(AttributeError, match=r"torch_xla\._XLAC has no _xla_gorilla: .* see the public names"):
        _ = _XLAC._xla_gorilla


def test_results() -> None:
    from torch_xla._internal import pjrt, utils
    from torch_xla.experimental import unbounded_dynamism_export, xla_marker

    assert utils.parse_xla_device("TPU:3") == ("TPU", 3) and utils.parse_xla_device("xla:3") is None
    pjrt.initialize_multiprocess(0, 1)
    metadata = xla_marker.BoundaryMetadata("attention", 0, "7", False, {"scale": 0.5})
    assert json.loads(json.dumps(metadata, cls=xla_marker.BoundaryMetadataSerializer))["attr"] == {"scale": 0.5}
    batch = torch.export.Dim("batch", min=2)
    for dynamic, shapes in ((True, ({0: batch},)), (False, None)):
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(4, 2),), dynamic_shapes=shapes)
        assert unbounded_dynamism_export.exported_program_has_symbolic_input_shape(program) == dynamic


def test_sentences() -> None:
    from torch_xla._internal import gpu, neuron, pjrt
    from torch_xla.experimental import xla_mlir_debuginfo

    torch_xla.set_custom_compile_options({})
    for call, words in (
        (lambda: torch_xla.set_custom_compile_options({"xla_x": True}), "XLA_FLAGS='--xla_x=true'"),
        (lambda: _XLAC._set_xla_all_numbers_special_scalars(True), "torch.full"),
        (lambda: neuron.num_local_processes(), "torch_xla.experimental.plugins"),
        (lambda: pjrt.run_multiprocess(print), "torch_xla.launch"),
        (lambda: xla_mlir_debuginfo.write_mlir_debuginfo(torch.ones(1), ""), "XLA_HLO_DEBUG=1"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            call()
    with pytest.raises(RuntimeError, match="this is process 0 of 1 on this host, not 1 of 2; start the processes with"):
        pjrt.initialize_multiprocess(1, 2)
    with pytest.raises(RuntimeError, match="the job has 1 processes, not 4"):
        gpu.initialize_distributed_runtime(4)
