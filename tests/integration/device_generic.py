"""Tests in torch's device-generic style, independent of xla. Run with TORCH_TEST_DEVICES.

torch ships the tables that its test suite uses: operators, modules and optimizers.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    OpDTypes,
    deviceCountAtLeast,
    dtypes,
    instantiate_device_type_tests,
    onlyCPU,
    ops,
    precisionOverride,
    skipXLA,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db, modules
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests
from torch.utils import _pytree

_OPS = [op for op in op_db if op.name in ("add", "sum", "matmul", "sort", "index_put", "nn.functional.conv2d")]


def _to(device: str, value: Any) -> Any:
    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)

    return _pytree.tree_map(move, value)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class TestTensors(TestCase):
    """The decorators and helpers of device-generic tests."""

    @dtypes(torch.float32, torch.float64, torch.int64, torch.complex64, torch.bool)
    def test_make_and_compare(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((3, 4), device=device, dtype=dtype)
        self.assertEqual(x.device.type, torch.device(device).type)
        self.assertEqual(x.clone(), x.cpu())
        self.assertEqual(x.t().tolist(), x.cpu().t().tolist())
        self.assertNotEqual(torch.zeros(2, device=device), torch.ones(2, device=device))

    @precisionOverride({torch.float32: 1e-4})
    @dtypes(torch.float32)
    @parametrize("reverse", [False, True])
    def test_cumsum(self, device: str, dtype: torch.dtype, reverse: bool) -> None:
        x = make_tensor((100,), device=device, dtype=dtype)
        x = x.flip(0) if reverse else x
        self.assertEqual(x.cumsum(0)[-1], x.sum())

    def test_size_mismatch(self, device: str) -> None:
        with self.assertRaisesRegex(RuntimeError, "must match the size"):
            torch.ones(2, device=device) + torch.ones(3, device=device)

    @deviceCountAtLeast(1)
    def test_devices(self, devices: list[str]) -> None:
        for device in devices:
            self.assertEqual(str(torch.ones(1, device=device).device).partition(":")[0], device.partition(":")[0])

    @onlyCPU
    def test_cpu_only(self, device: str) -> None:
        self.assertEqual(device, "cpu")

    @skipXLA
    def test_other_devices_only(self, device: str) -> None:
        self.assertNotIn("xla", device)


class TestTables(TestCase):
    @ops(_OPS, dtypes=OpDTypes.supported, allowed_dtypes=(torch.float32,))
    def test_op(self, device: str, dtype: torch.dtype, op: Any) -> None:
        for sample in list(op.sample_inputs("cpu", dtype))[:4]:
            tree = (sample.input, sample.args, sample.kwargs)
            results = [op(first, *args, **kwargs) for first, args, kwargs in (_to("cpu", tree), _to(device, tree))]
            self.assertEqual(results[1], results[0], exact_device=False)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_module(self, device: str, dtype: torch.dtype, module_info: Any, training: bool) -> None:
        """Results and gradients of every module in torch's table match the CPU."""
        torch.manual_seed(0)
        inputs = module_info.module_inputs_func(
            module_info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for given in [i for i in inputs if i.forward_input is not None][:2]:
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arguments = given.constructor_input.args, given.constructor_input.kwargs
                module = module_info.module_cls(*arguments[0], **arguments[1]).to(dtype).train(training)
            if any(map(is_lazy, module.parameters())):
                self.skipTest("its parameters are drawn at the first call, with a different generator per device")
            found = [self._run(copy.deepcopy(module), d, given.forward_input) for d in ("cpu", device)]
            self.assertEqual(found[1], found[0], exact_device=False, rtol=1e-4, atol=1e-4)

    def _run(self, module: torch.nn.Module, device: str, given: Any) -> Any:
        args, kwargs = _to(device, (given.args, given.kwargs))
        module = module.to(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = _tensors(module(*args, **kwargs))
            losses = [(r * torch.arange(r.numel(), device=device).view(r.shape).cos()).sum()
                      for r in results if r.requires_grad]  # fmt: skip
            if losses:
                sum(losses[1:], losses[0]).backward()
        leaves = [*_tensors((args, kwargs)), *module.parameters()]
        return [r.detach() for r in results], [t.grad for t in leaves]

    @optims(optim_db, dtypes=(torch.float32,))
    def test_optimizer(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
        """Three steps of every optimizer, with every option that torch lists for the device."""
        if optim_info.only_supports_sparse_grads:
            self.skipTest("sparse gradients")
        for chosen in optim_info.optim_inputs_func(device=device):
            options = {k: v for k, v in chosen.kwargs.items() if k not in ("capturable", "foreach", "fused")}
            found = [self._train(optim_info.optim_cls, *pair) for pair in (("cpu", options), (device, chosen.kwargs))]
            rounding = 1e-3 if optim_info.name == "Muon" else 1e-4  # its matmuls are in bfloat16
            self.assertEqual(found[1], found[0], exact_device=False, rtol=rounding, atol=rounding, msg=chosen.desc)

    def _train(self, make: Any, device: str, options: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        parameters = [torch.randn(s).to(device).requires_grad_() for s in ((3, 4), (4, 1))]
        optimizer = make(parameters, **_to(device, options))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((parameters[0] @ parameters[1] - 1) ** 2).sum()
            loss.backward()
            return loss

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a lazy device warns about missing step barriers
            for _ in range(3):
                optimizer.step(closure)
        return [p.detach() for p in parameters]


instantiate_device_type_tests(TestTensors, globals())
instantiate_device_type_tests(TestTables, globals(), except_for="cpu")

if __name__ == "__main__":
    run_tests()
