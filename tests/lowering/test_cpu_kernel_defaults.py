"""Defaults of CPU kernel calls (lowering/cpu_kernel_call.py), which are used where a program cannot call the kernel.

Each default is traced again when a program is lowered, and again if the compiler partitions the program over a mesh.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import torch_xla._engine
from tests.support.helpers import run_script
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.rules import matmul

ENGINE = Path(torch_xla._engine.__file__).parent
_CALLS = {"cpu_kernel_call", "cpu_kernel_call_in_place", "_KernelCall"}


def _names_in(path: Path) -> set[str]:
    """Return the first arguments of the kernel calls in a file; the source text of those that are not constants."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else "cpu_kernel_call"
        if (
            name in _CALLS
            and owner == "cpu_kernel_call"
            and (name != "cpu_kernel_call" or isinstance(node.func, ast.Attribute))
        ):
            first = node.args[0]
            found.add(first.value if isinstance(first, ast.Constant) else ast.unparse(first))
    return found


def test_every_kernel_call_is_covered_by_the_mesh_test() -> None:
    """The names that are not constants are matmul's (``kernel``, from a table), and the forwarded ``op``."""
    found = set().union(*(_names_in(path) for path in ENGINE.rglob("*.py")))
    assert {"kernel", "op"} <= found
    assert (found - {"kernel", "op"}) | set(matmul._CPU_KERNELS.values()) == set(library.kernel_names())


MESH = """
    import numpy as np, torch
    torch.backends.cpu.get_cpu_capability = lambda: "AVX512"  # 16-bit matmuls are kernel calls only with AVX-512
    import torch_xla, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
    from torch_xla._engine.cpu_backend import library
    from torch_xla._engine.lowering import cpu_kernel_call
    from torch_xla._engine.compilation import cpu_scheduling
    from types import SimpleNamespace
    from tests.programs.cpu_kernel_programs import CASES, with_gradients
    cpu_scheduling.partitioning = SimpleNamespace(partition_count=lambda: 1)  # else "lists" is not called over a mesh
    xr.use_spmd()
    mesh = xs.Mesh(np.arange(2), (2,), ("data",))
    lowered, lower_default = set(), cpu_kernel_call._lower_default
    def lower_and_note(ctx, *args, call, avals):
        lowered.add(call.op)
        return lower_default(ctx, *args, call=call, avals=avals)
    cpu_kernel_call._lower_default = lower_and_note
    for name, case in CASES.items():
        torch.manual_seed(0)
        given = [torch.randn(shape, dtype=case.dtype) for shape in case.shapes]
        wanted = with_gradients(case)(*(x.clone().requires_grad_() for x in given))
        inputs = [x.to("xla").requires_grad_() for x in given]
        if inputs[0].shape[0] % 2 == 0:
            xs.mark_sharding(inputs[0], mesh, ("data", *[None] * (inputs[0].dim() - 1)))
        found = with_gradients(case)(*inputs)
        torch_xla.sync()
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x.cpu(), y, rtol=case.loose, atol=case.loose, msg=lambda text: f"{name}: {text}")
    # Only programs of one device have buckets: no torch program calls these two kernels over a mesh.
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
    from torch_xla._engine.compilation import bucketed_program
    def copy_in_bucket(*arrays):
        return bucketed_program.split_bucket(bucketed_program.fill_bucket(arrays), arrays)
    by_rows = NamedSharding(mesh.get_jax_mesh(), PartitionSpec("data"))
    arrays = [np.arange(size, dtype=np.float32).reshape(2, -1) for size in (4, 6)]
    with cpu_kernel_call.cpu_kernels_enabled():
        copied = jax.jit(copy_in_bucket)(*(jax.device_put(each, by_rows) for each in arrays))
    assert len(copied) == 2 and all(np.array_equal(*pair) for pair in zip(copied, arrays, strict=True)), copied
    assert lowered == set(library.kernel_names()), lowered ^ set(library.kernel_names())
    print("done")
"""


def test_each_default_is_compiled_over_a_mesh() -> None:
    """The compiler partitions every default; values and gradients agree with the CPU."""
    done = run_script(MESH, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="2")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


def _by_cell(y: Any) -> Callable[..., Any]:
    return lambda x: [x + y]


def _by_function(y: Any) -> Callable[..., Any]:
    add = lambda x: x + y
    return lambda x: [add(x)]


def _by_container(y: Any) -> Callable[..., Any]:
    given = {"rest": [(y,)]}
    return lambda x: [x + given["rest"][0][0]]


def _by_default(y: Any) -> Callable[..., Any]:
    return lambda x, y=y: [x + y]


def _by_partial(y: Any) -> Callable[..., Any]:
    return functools.partial(lambda y, x: [x + y], y)


class _Adding:
    def __init__(self, y: Any) -> None:
        self.inner = cpu_kernel_call._KernelCall("sum", lambda x: [x + y], {})

    def default(self, x: Any) -> list[Any]:
        return list(self.inner.default(x))


def _by_dataclass(y: Any) -> Callable[..., Any]:
    adding = _Adding(y).inner
    return lambda x: adding.default(x)


@pytest.mark.parametrize(
    "make", [_by_cell, _by_function, _by_container, _by_default, _by_partial, _by_dataclass], ids=lambda f: f.__name__
)
def test_default_that_closes_over_an_array_raises(make: Callable[..., Any]) -> None:
    def program(x: jax.Array, y: jax.Array) -> Any:
        return cpu_kernel_call.cpu_kernel_call("sum", make(y), [x], [x])[0]

    with cpu_kernel_call.cpu_kernels_enabled(), pytest.raises(TypeError, match="'sum': the default closes over arrays"):
        jax.jit(program).lower(jnp.ones(3), jnp.ones(3))
