"""Devices that store a dtype as a narrower one: XLA_USE_BF16, XLA_DOWNCAST_BF16, XLA_USE_32BIT_LONG, and TPUs.

Most tests switch this process over and back; those of the variables run in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_xla
from tests.support.helpers import assert_same, counts, products, run_script, stablehlo, to
from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.compilation import graph_function, program_cache
from torch_xla._engine.execution import executor

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
MODES: dict[str, dict[str, Any]] = {
    "use": {"platform": "cpu", "use_bf16": True},
    "downcast": {"platform": "cpu", "downcast_bf16": True},
    "long": {"platform": "cpu", "use_32bit_long": True},
    "all": {"platform": "cpu", "use_bf16": True, "use_32bit_long": True},
    "tpu": {"platform": "tpu"},
}


@contextmanager
def storing(mode: str) -> Iterator[None]:
    """This process as one whose devices store dtypes in another way; no tensor on xla outlives the block."""
    torch.zeros((), device="xla").item()  # the first use of a device decides on it, too
    torch_xla.sync()
    program_cache.cache.clear()
    dtypes.set_storage_dtypes(dtypes.storage_dtype_map(**MODES[mode]))
    try:
        yield
    finally:
        torch_xla.sync()
        program_cache.cache.clear()
        dtypes.set_storage_dtypes({})


def buffer_dtype(tensor: Tensor) -> str:
    """The dtype of the device buffer behind a tensor."""
    (node,) = recorder.bindings().nodes_of([tensor])
    executor.materialize([node], 0)
    mine = [b for b in recorder.bindings().live_buffers(0) if b.shape == tuple(tensor.shape)]
    return "/".join(sorted({str(b.dtype) for b in mine}))


#: mode -> dtype -> what the device holds
HELD = {
    "use": {F64: "bfloat16", F32: "bfloat16", torch.float16: "float16", torch.complex64: "complex64"},
    "downcast": {F64: "float32", F32: "bfloat16", BF16: "bfloat16", torch.int64: "int64"},
    "long": {F64: "float64", F32: "float32", torch.int64: "int32", torch.uint64: "uint32"},
    "all": {F32: "bfloat16", torch.int64: "int32"},
    "tpu": {F64: "float32", F32: "float32", torch.complex128: "complex64", torch.int64: "int64"},
}


@pytest.mark.parametrize("mode", HELD)
def test_buffers_are_narrow_and_tensors_are_not(mode: str) -> None:
    with storing(mode):
        for size, (dtype, held) in enumerate(HELD[mode].items(), 211):
            sent = torch.ones(size, dtype=dtype).to("xla")
            assert buffer_dtype(sent) == held
            made = sent + torch.ones(size, dtype=dtype, device="xla")
            assert buffer_dtype(made) == held, "computed as well as sent"
            assert made.dtype == made.cpu().dtype == dtype
            assert made.cpu().tolist() == [2] * size


def test_narrowing_by_platform() -> None:
    """What devices store, as data: no machine of this test has a TPU."""
    assert dtypes.storage_dtype_map("cpu") == dtypes.storage_dtype_map("gpu") == {}
    assert dtypes.storage_dtype_map("tpu") == {F64: F32, torch.complex128: torch.complex64}
    assert dtypes.storage_dtype_map("cpu", use_bf16=True) == {F64: BF16, F32: BF16}
    assert dtypes.storage_dtype_map("gpu", downcast_bf16=True) == {F64: F32, F32: BF16}
    assert dtypes.storage_dtype_map("cpu", use_bf16=True, downcast_bf16=True) == {F64: BF16, F32: BF16}
    assert dtypes.storage_dtype_map("tpu", use_bf16=True)[F64] == BF16
    assert dtypes.storage_dtype_map("cpu", use_32bit_long=True) == {
        torch.int64: torch.int32,
        torch.uint64: torch.uint32,
    }


def test_values_are_rounded_to_what_is_stored() -> None:
    fine = torch.tensor([1 + 2**-10, 1 + 2**-30, 3.0, float("nan"), float("inf"), 1e300], dtype=F64)
    with storing("use"):
        for dtype in (F32, F64):
            x = fine.to(dtype)
            assert_same(x.to("xla"), x.to(BF16).to(dtype))
        with counts() as moved:
            fine.float().to("xla")
        assert moved["OutboundData"] == 1
    with storing("downcast"):
        assert_same(fine.to("xla"), fine.float().double())
        assert_same(fine.float().to("xla"), fine.float().bfloat16().float())
        assert_same(fine.to("xla").float().double(), fine.bfloat16().double())
    with storing("long"):
        big = torch.tensor([2**40 + 1, -1, 2**31, 7])
        assert_same(big.to("xla"), big.int().long())
        assert_same(big.to("xla") * 3, (big.int() * 3).long())


def _write_to_bits(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(torch.int32)[0, 0] = 0x40000000
    return y


def _write_to_parts(x: Tensor) -> Tensor:
    z = torch.complex(x, x)
    torch.view_as_real(z)[..., 1] = 2.0
    return torch.view_as_real(z)


def _gradient(x: Tensor) -> Tensor:
    w = x.detach().clone().requires_grad_()
    (torch.nn.functional.layer_norm(w, w.shape[-1:]).relu() @ x).pow(2).mean().backward()
    assert w.grad is not None and w.grad.dtype == x.dtype
    return w.grad


#: On a 4 x 4 matrix with a dominant diagonal whose entries bfloat16 holds exactly.
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: (x + 0.1, x / 3, -x, x * x.t(), 2 - x, x.sqrt().exp()),
    "product": lambda x: x @ x,
    "addmm": lambda x: torch.addmm(x, x, x, beta=0.5, alpha=2.0),
    "reductions": lambda x: (x.sum(), x.mean(0), x.var(), x.norm(), x.max(1), x.logsumexp(0)),
    "casts": lambda x: (x.double(), x.half(), x.bfloat16(), x.long(), x.double().float(), x.to(torch.complex64)),
    "promotion": lambda x: (x + x.double(), x + x.half(), x + x.long(), x + x.to(torch.complex64), x.long() + 1.5),
    "comparison": lambda x: (x > 1, x == x.double(), x.long() == 1, torch.where(x > 1, x, 0.0)),
    "double": lambda x: (x.double() @ x.double(), x.double().cumsum(0)),
    "bits": lambda x: (x.view(torch.int32), x.view(torch.int32).view(F32), x.view(torch.float16)),
    "write to bits": _write_to_bits,
    "write to parts": _write_to_parts,
    "complex": lambda x: (torch.view_as_real(torch.complex(x, x)), torch.complex(x, x).abs(), torch.polar(x, x).real),
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x)),
    "linear algebra": lambda x: (torch.linalg.inv(x), torch.linalg.svdvals(x), torch.linalg.cholesky(x @ x.t())),
    "several results": lambda x: (x.topk(2), x.unbind(1), x.split(2), torch.linalg.qr(x).R.abs(), x.sort(1).indices),
    "indices": lambda x: (x.argmax(1), x.gather(1, x.long() % 4), x[x.argmax(0)], torch.arange(5, device=x.device)),
    "scatter": lambda x: x.scatter_add(1, x.long() % 4, x).index_fill(0, torch.tensor([1], device=x.device), 0.5),
    "in place": lambda x: (x.clone().mul_(0.5).add_(x.double()), x.clone().t().fill_diagonal_(2)),
    "views": lambda x: (x.t()[1:].reshape(-1), x.clone().view(2, 8)[0].add_(1), x.expand(2, 4, 4).diagonal()),
    "numbers": lambda x: (x * 10**9, x.long() * 3, torch.full_like(x, 0.3), x.new_tensor([1, 2]), x.lerp(x + 1, 0.5)),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "convolution": lambda x: torch.nn.functional.conv1d(x[None], x[:2, :, None], padding=1),
    "losses": lambda x: torch.nn.functional.cross_entropy(x, x.argmax(1)),
    "batch norm": lambda x: torch.nn.functional.batch_norm(x, x.mean(0), x.var(0), training=True),
    "special": lambda x: (torch.special.digamma(x), torch.special.i1e(x), torch.lgamma(x), torch.erfinv(x / 8)),
    "on the CPU": lambda x: (x.nonzero(), x[x > 1], x.item() if x.numel() == 1 else x[0, 0].item()),
    "gradient": _gradient,
}
MATRIX = torch.tensor([[5.0, 1.0, 0.5, 0.25], [1.0, 6.0, 2.0, 0.0], [0.5, 0.125, 7.0, 1.0], [0.0, 1.0, 2.0, 4.5]])


@pytest.mark.filterwarnings("ignore:torch_xla.:UserWarning")
@pytest.mark.parametrize("mode", ["all", "downcast", "tpu"])
def test_programs_give_the_cpus_dtypes_and_nearly_its_values(mode: str) -> None:
    rtol = 1e-4 if mode == "tpu" else 0.05
    wrong, computed = {}, {}
    with storing(mode):
        x = MATRIX.to("xla")
        for name, function in PROGRAMS.items():  # all are recorded before any is run
            try:
                computed[name] = [function(x)]
            except Exception as error:
                wrong[name] = str(error)[:500]
        torch_xla.sync()
        for name, got in computed.items():
            try:
                assert_same(got, [PROGRAMS[name](MATRIX)], rtol=rtol, atol=rtol)
            except Exception as error:
                wrong[name] = str(error)[:500]
        del x, computed, got
    assert wrong == {}


def test_random_numbers_and_seeds() -> None:
    with storing("all"):
        draws = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            parts = [torch.rand(1000, device="xla"), torch.randn(1000, device="xla", dtype=F64),
                     torch.randint(0, 9, (1000,), device="xla"), torch.randperm(50, device="xla")]  # fmt: skip
            assert [p.dtype for p in parts] == [F32, F64, torch.int64, torch.int64]
            draws.append(to("cpu", parts))
            del parts
        assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(draws[0], draws[2], strict=True)), (
            "all 64 bits of a seed count"
        )
        uniform, normal, whole, order = draws[0]
        assert uniform.min() >= 0 and 0.4 < uniform.mean() < 0.6 and 0.8 < normal.std() < 1.2
        assert set(whole.tolist()) == set(range(9)) and sorted(order.tolist()) == list(range(50))


def test_products_are_of_what_is_stored() -> None:
    with storing("use"):
        x = MATRIX.to("xla")
        (x @ x).double().matmul(x.double()).cpu()
        (text,) = stablehlo()
        assert [kinds for kinds, _ in products(text)] == [
            "(tensor<4x4xbf16>, tensor<4x4xbf16>) -> tensor<4x4xbf16>"
        ] * 2
        del x


def test_variables() -> None:
    show = """
        import torch, torch_xla
        x = torch.tensor([1 + 2**-10, 2.0], dtype=torch.float64)
        y = torch.tensor([2**40 + 1])
        for t in (x, x.float(), y):
            print(t.dtype == t.to("xla").dtype, t.to("xla").tolist(), t.to("xla").to(torch.int64).tolist())
        {}
        """
    late = """import os; os.environ["XLA_USE_BF16"] = "0"; print(x.to("xla").tolist())"""
    both = run_script(show.format(late), XLA_USE_BF16="1", XLA_USE_32BIT_LONG="1").stdout.splitlines()
    assert both == ["True [1.0, 2.0] [1, 2]"] * 2 + ["True [1] [1]", "[1.0, 2.0]"]
    down = run_script(show.format(""), XLA_DOWNCAST_FP16="1").stdout.splitlines()
    assert down == ["True [1.0009765625, 2.0] [1, 2]", "True [1.0, 2.0] [1, 2]", f"True [{2**40 + 1}] [{2**40 + 1}]"]


_SETTING = """
    import os, warnings
    import torch, torch_xla, torch_xla.core.xla_model as xm
    warnings.simplefilter("always")
    x = torch.tensor([1 + 2**-10, 2.0])
    {before}
    os.environ["XLA_USE_BF16"] = "1"
    with warnings.catch_warnings(record=True) as caught:
        print((x.to("xla") * 1.5).tolist(), [str(w.message)[:31] for w in caught])
        (x.to("xla") * 2.5).tolist()
    print(len(caught))
    """


@pytest.mark.parametrize(
    ("before", "printed"),
    [
        ("device = xm.xla_device(); xm.xla_real_devices(); torch_xla.manual_seed(1)", "[1.5, 3.0] []\n0\n"),
        ("y = torch.ones(2, device='xla') + 1; torch_xla.device_count()", "[1.5, 3.0] []\n0\n"),
        ("torch.ones(2).to('xla')", "[1.50146484375, 3.0] ['torch_xla: XLA_USE_BF16 was set']\n1\n"),
        ("torch.ones(2, device='xla').tolist()", "[1.50146484375, 3.0] ['torch_xla: XLA_USE_BF16 was set']\n1\n"),
    ],
)
def test_a_setting_counts_until_the_first_value_and_then_warns(before: str, printed: str) -> None:
    """Lightning's bf16-true sets the variable when a device has been named already."""
    assert run_script(_SETTING.format(before=before)).stdout == printed


def test_digits_demo_with_bf16() -> None:
    """It learns as well, and its programs have no product of two float32 matrices."""
    out = run_script(
        """
        import torch
        from examples import train_digits
        from tests.support.helpers import products, stablehlo

        history = train_digits.train(torch.device("xla:0"), epochs=6)
        texts = stablehlo()
        kinds = [kind for text in texts for kind, _ in products(text)]
        step = max(texts, key=len)
        print(history.test_accuracy[-1] >= 0.97, train_digits.failures(history))
        print(len(products(step)), "bf16" in step, {kind for kind in kinds if "f32>," in kind or "f32>)" in kind})
        """.replace("history = ", "import sys; sys.stderr = open('/dev/null', 'w')\n        history = "),
        XLA_USE_BF16="1",
    )
    # 4 layers, forward and backward, without the gradient of the images
    assert out.stdout == "True []\n11 True set()\n"


@pytest.mark.parametrize("op", ["aten::_linalg_eigh", "aten::view.dtype", "torch_xla::jax_call"])
def test_linear_algebra_on_a_tpu_knows_float64_and_no_complex128(op: str) -> None:
    """libtpu ends the process at conversions to complex128. Bits, and functions of jax, are of the dtype torch says."""
    with dtypes.override_storage_dtypes(dtypes.storage_dtype_map("tpu")):
        block = graph_function.exact_dtype_scope(op)
        assert block is not None and graph_function.exact_dtype_scope("aten::add.Tensor") is None
        with block:
            assert dtypes.storage_dtype(torch.float64) == torch.float64
            assert dtypes.storage_dtype(torch.complex128) == (torch.complex64 if "linalg" in op else torch.complex128)
        assert dtypes.storage_dtype(torch.float64) == torch.float32
    with dtypes.override_storage_dtypes({}):
        block = graph_function.exact_dtype_scope(op)
        assert block is not None
        with block:
            assert dtypes.storage_dtype(torch.complex128) == torch.complex128


def test_a_tpu_is_never_given_complex128() -> None:
    """Not even to convert from: its compiler ends the process at that (`python -m torch_xla.aot` saw it)."""
    with storing("tpu"):
        for dtype in (torch.complex64, torch.complex128):
            x = torch.ones(3, dtype=dtype).to("xla")
            results = [x * (2.5 + 1.5j), x + 1j * x.real, torch.full((2,), 2.5j, dtype=dtype, device="xla")]
            results += [torch.logaddexp(x, 2 * x), x.logcumsumexp(0), torch.where(x.real > 0, x, 2.5j), x**2.5j]
            torch_xla.sync()
            del results
            (text,) = stablehlo()
            assert "complex<f32>" in text and "complex<f64>" not in text
            program_cache.cache.clear()
