"""What a device can do is asked of jax and the client, not derived from the platform's name."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import jax

from tests.support.helpers import run_script
from torch_xla._engine.device import capabilities
from torch_xla._engine.lowering import decompositions
from torch_xla._engine.lowering.rules import linalg, linalg_qr


class Plugin:
    """A client that is not jaxlib's own and calls its platform "cpu"."""

    platform = "cpu"

    def local_devices(self) -> list[jax.Device]:
        return jax.devices("cpu")[:1]


class PluginDevice:
    platform = "cpu"
    client = Plugin()


def test_the_own_cpu_client() -> None:
    (device, *_) = jax.devices("cpu")
    assert capabilities.runs_in_process(device) and capabilities.default_runs_in_process()
    assert capabilities.shares_host_memory(device) and capabilities.donates_buffers(device)
    assert "device" in capabilities.memory_kinds(device) or "unpinned_host" in capabilities.memory_kinds(device)


def test_a_plugin_may_say_cpu() -> None:
    assert not capabilities.runs_in_process(PluginDevice())  # type: ignore[arg-type]


def test_probes_agree_with_what_is_known_of_the_own_client() -> None:
    plugin: Any = PluginDevice()  # the probes run on jaxlib's devices
    assert capabilities.shares_host_memory(plugin) and capabilities.donates_buffers(plugin)
    assert all(capabilities.can_decompose(plugin.client, part) for part in decompositions.PROBES)


LACKING = """
    import warnings
    import torch, torch_xla
    import torch_xla.debug.metrics as met
    from torch_xla._engine.device import capabilities
    from torch_xla._engine.lowering import decompositions

    def missing(a):
        raise NotImplementedError("MLIR translation rule for primitive 'eigh' not found for platform fpga")

    capabilities.runs_in_process = lambda device: False
    decompositions.PROBES["eigh"] = missing
    a = torch.randn(3, 3)
    a = a @ a.mT + torch.eye(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = a.to("xla").requires_grad_()
        torch.linalg.eigvalsh(x).sum().backward()
        torch.testing.assert_close(x.grad.cpu(), torch.eye(3))
        torch.testing.assert_close(torch.linalg.cholesky(a.to("xla")).cpu(), torch.linalg.cholesky(a))
        out = torch.empty(3, device="xla")
        torch.linalg.eigvalsh(a.to("xla"), out=out)
        torch.testing.assert_close(out.cpu(), torch.linalg.eigvalsh(a))
    print(met.counter_value("aten::_linalg_eigh") or 0, [c for c in met.counter_names() if "cholesky" in c])
"""


def test_operators_of_a_missing_decomposition_run_on_the_cpu() -> None:
    """They are counted; the others are recorded."""
    count, others = run_script(LACKING, PJRT_DEVICE="CPU").stdout.split(maxsplit=1)
    assert int(count) >= 1 and others == "['xla::linalg_cholesky_ex']\n"


#: Functions of jax's linear algebra that use decompositions of other names.
_OTHERS = {"linalg.expm": {"lu", "triangular_solve"}}


def _names_in(node: ast.AST) -> set[str]:
    """Return the functions that a rule calls or passes on; those of jax's linear algebra as ``linalg.NAME``."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    jax_names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and "linalg" in ast.unparse(n.value)}
    raw = "mode='raw'" in ast.unparse(node)  # jnp.linalg.qr is geqrf then
    return found | {"linalg.geqrf" if raw and name == "qr" else f"linalg.{name}" for name in jax_names}


def _operators_in(node: ast.AST) -> list[str]:
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [text for text in texts if text.startswith("aten::")]


def _used(names: set[str], functions: dict[str, set[str]], seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the decompositions that these names lead to."""
    found: set[str] = set()
    for name in names - seen:
        if name.startswith("linalg."):
            found |= _OTHERS.get(name, {name.removeprefix("linalg.")} & set(decompositions.PROBES))
        else:
            found |= _used(functions.get(name, set()), functions, seen | {name})
    return found


def test_the_table_names_what_the_rules_use() -> None:
    nodes = [node for module in (linalg, linalg_qr) for node in ast.parse(inspect.getsource(module)).body]
    functions = {node.name: _names_in(node) for node in nodes if isinstance(node, ast.FunctionDef)}
    used = {
        operator: tuple(sorted(_used(_names_in(node), functions)))
        for node in nodes
        for operator in _operators_in(node)
        if not isinstance(node, ast.Assign)
    }
    assert {name: parts for name, parts in used.items() if parts} == {
        name: tuple(sorted(parts)) for name, parts in decompositions.USED.items()
    }
