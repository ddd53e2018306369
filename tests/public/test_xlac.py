"""Functions of upstream's C++ extension module that scripts and libraries call."""

from __future__ import annotations

import pytest
import torch

import torch_xla
from tests.support.helpers import run_script
from torch_xla import _XLAC, backends


def test_graph_hash() -> None:
    a, b = torch.ones(3, device="xla"), torch.zeros(3, device="xla")
    torch_xla.sync()
    first, same, other = _XLAC._get_graph_hash([a + 2]), _XLAC._get_graph_hash([b + 3]), _XLAC._get_graph_hash([a * 2])
    assert first == same != other and len(first) == 16
    with pytest.raises(ValueError, match=r"^_get_graph_hash: expected xla tensors"):
        _XLAC._get_graph_hash([torch.ones(1)])


def test_debug_info_and_sharding() -> None:
    x = torch.ones(2, 3, device="xla") + 1
    text = _XLAC._get_xla_tensor_debug_info(x)
    assert text.startswith(
        f"XLATensor {{id: {_XLAC._xla_get_tensor_id(x)}, torch.float32[2, 3] on xla:0, on one device}}"
    )
    assert "aten::add" in text
    assert _XLAC._get_xla_sharding_spec(x) == ""
    out = run_script(
        """
        import numpy as np, torch, os
        import torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
        from torch_xla import _XLAC
        xr.use_spmd()
        x = torch.ones(4, 2).to("xla")
        xs.mark_sharding(x, xs.Mesh(np.arange(2), (2,), ("data",)), ("data", None))
        print(_XLAC._get_xla_sharding_spec(x), os.environ["XLA_USE_SPMD"])
        """,
        CPU_NUM_DEVICES="2",
    )
    assert out.stdout == "{devices=[2,1]0,1} 1\n"


def test_matmul_precision_functions() -> None:
    before = _XLAC._xla_get_mat_mul_precision()
    try:
        _XLAC._xla_set_mat_mul_precision("high")
        assert _XLAC._xla_get_mat_mul_precision() == backends.get_mat_mul_precision() == "high"
        with pytest.raises(ValueError, match="highest"):
            _XLAC._xla_set_mat_mul_precision("exact")
    finally:
        _XLAC._xla_set_mat_mul_precision(before)


def test_lowering_context() -> None:
    a, b = torch.ones(2, 3).to("xla"), torch.full((3,), 2.0).to("xla")
    context = _XLAC.lowering.LoweringContext("mine")
    with pytest.raises(RuntimeError, match="call build"):
        context.hlo_text()
    result = (a * b + 0.5).sum()
    context.build([result])
    text = context.hlo_text()
    assert text.startswith("HloModule") and "f32[2,3]" in text and "f32[3]" in text
    assert len(context.hlo()) > 100
    parameters = context.parameter_id_tensor_mapping()
    assert parameters[0].tolist() == [0.5] and parameters[1].tolist() == []
    assert sorted(tuple(parameters[i].shape) for i in (2, 3)) == [(2, 3), (3,)]
    assert parameters[context.tensor_parameter_id(b)].cpu().tolist() == b.tolist()
    assert context.tensor_parameter_id(result) == -1
    assert result.item() == 15.0
