"""``import torch`` alone offers xla by the entry point torch.backends, and changes nothing for the CPU."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.support.helpers import ROOT, run_script
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat.private_api import ENTRIES
from torch_xla._engine.recorder import device_guard_library
from torch_xla_autoload import device_guard

FRESH = "torch must find the entry point while it is imported"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with an installed distribution that has the entry point of pyproject.toml."""
    assert device_guard_library.build_library() is not None
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    folder = tmp_path_factory.mktemp("site")
    info = folder / "torch_xla_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_xla_entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    )
    return f"{ROOT}:{folder}"


#: Each runs in a fork of a process that has imported torch only; those after "module", torch's compiler and jax, too.
FIRST_USES = {
    "factory": "torch.ones(3, device='xla')",
    "module": "m = torch.nn.Sequential(torch.nn.Linear(2, 2)); ids = [id(p) for p in m.parameters()]; m.to('xla')\n"
    "assert ids == [id(p) for p in m.parameters()] and m[0].weight.is_xla",
    "to": "torch.ones(3).to('xla')",
    "tensor": "torch.tensor([1.0], device='xla:0')",
    "zero tensor": "torch._efficientzerotensor((3,), device='xla')",
    "generator": "torch.rand(2, device='xla', generator=torch.Generator(device='xla'))",
    "default device": "torch.set_default_device('xla'); assert torch.ones(2).device.type == 'xla'",
    "inference": "\nwith torch.inference_mode(): assert torch.ones(2, device='xla').is_inference()",
    "seed": "torch.manual_seed(5); a = torch.rand(3, device='xla').tolist(); torch.manual_seed(5)\n"
    "assert torch.rand(3, device='xla').tolist() == a",
    "file": "f = io.BytesIO(); torch.save(torch.ones(3), f); f.seek(0)\n"
    "assert torch.load(f, map_location='xla').is_xla",
    "process group": "dist.init_process_group('xla', init_method='xla://')\n"
    "m = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to('xla'))\n"
    "m(torch.ones(1, 2, device='xla')).sum().backward(); assert m.module.bias.grad.tolist() == [1, 1]",
    "backend of a device": "assert dist.get_default_backend_for_device('xla') == 'xla'",
    "mesh": "from torch.distributed.device_mesh import init_device_mesh\n"
    "assert init_device_mesh('xla', (1,)).device_type == 'xla'",
    "accelerator": "assert torch.accelerator.current_accelerator() == torch.device('xla')\n"
    "assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1",
    "available type": "assert torch._utils._get_available_device_type() == 'xla'",
    "memory": "assert torch.accelerator.memory_allocated() == 0",
    "torch.xla": "module = torch.get_device_module('xla'); assert module.device_count() == 1\n"
    "assert torch.xla is not module and torch.xla.current_device is module.current_device",
    "stream": "assert torch.Stream(device='xla').device.type == 'xla'",
    "fake tensors": "from torch._subclasses.fake_tensor import FakeTensorMode\n"
    "with FakeTensorMode(): torch.ones(3, device='xla') + torch.ones(3, device='xla:0')",
    "compile": "torch.compile(torch.nn.Linear(2, 2).to('xla'))(torch.ones(1, 2, device='xla')).sum().backward()",
    "compiled factory": "assert torch.compile(lambda: torch.ones(3, device='xla') * 2)().tolist() == [2] * 3",
    "threads": "import threading; made = []\n"
    "work = [threading.Thread(target=lambda: made.append(torch.ones(2).to('xla'))) for _ in range(4)]\n"
    "[t.start() for t in work]; [t.join() for t in work]; assert len(made) == 4",
}

PROGRAM = """
import gc, io, os, sys, traceback, warnings
import torch
import torch.distributed as dist
assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib", "torch_xla")]
original = torch.nn.Module.to.__wrapped__
failed = []
for name, code in {cases!r}.items():
    pid = os.fork()
    if pid == 0:
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        try:
            exec(code)
            assert "torch_xla" in sys.modules and torch.nn.Module.to is original
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(name)
    if name == "module":  # loading torch_xla imports these, which takes most of a child's time
        import jax.numpy, jax.scipy.special, torch._dynamo, torch._inductor.decomposition
        gc.freeze()
assert "torch_xla" not in sys.modules and not failed, failed
"""


def test_first_uses_load_torch_xla(path: str) -> None:
    run_script(PROGRAM.format(cases=FIRST_USES), fresh=FRESH, PYTHONPATH=path, PJRT_DEVICE="CPU")


ABSENT = """
import sys, warnings
sys.modules["jax"] = None
import torch
for make in (lambda: torch.ones(3, device="xla"), lambda: torch.ones(3).to("xla")):
    for _ in range(2):
        try:
            make()
            raise AssertionError("no error")
        except (ImportError, RuntimeError) as error:
            assert "jax" in str(error), error
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    assert not torch.accelerator.is_available()
assert "torch_xla cannot be loaded" in str(seen[0].message) and seen[0].filename == "<string>"
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
"""


def test_failing_imports_are_reported_at_the_first_use(path: str) -> None:
    run_script(ABSENT, fresh=FRESH, PYTHONPATH=path)


def test_the_variable_of_torch_disables_it(path: str) -> None:
    code = "import sys, torch\nassert not [m for m in sys.modules if m.startswith('torch_xla')]"
    run_script(code, fresh=FRESH, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_the_library_is_found_where_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = device_guard_library.build_library()
    assert built in device_guard.find_libraries()
    assert device_guard.cache_dir() == settings.cache_dir
    assert built is not None
    monkeypatch.setenv("TORCH_XLA_CACHE_DIR", str(tmp_path))
    copy = tmp_path / built.relative_to(settings.cache_dir)
    copy.parent.mkdir(parents=True, mode=0o700)
    copy.write_bytes(built.read_bytes())
    copy.chmod(0o755)
    tmp_path.chmod(0o700)
    assert list(device_guard.find_libraries()) == [copy]
    copy.chmod(0o777)
    assert list(device_guard.find_libraries()) == []


def test_private_names_are_declared_in_compat() -> None:
    declared = {part for entry in ENTRIES for part in entry.name.split(".")}
    for file in (ROOT / "torch_xla_autoload").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr not in declared | {"_C"}:
                assert node.attr.startswith("__") or node.attr in ("_getframe", "_utils"), ast.unparse(node)


CPU_SAMPLES = """
import hashlib, sys, warnings
import torch
warnings.simplefilter("ignore")
from torch.testing._internal.common_device_type import get_device_type_test_bases
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils.data import DataLoader, TensorDataset

def show(name, *values):
    found = []
    for value in torch.utils._pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            value = value.detach().resolve_conj().resolve_neg().contiguous()
            value = torch.zeros_like(value, layout=torch.strided) if value._is_zerotensor() else value
            value = (value.dtype, tuple(value.shape), str(value.device), value.flatten().view(torch.uint8).tolist())
        found.append(str(value))
    print(name, hashlib.sha256(repr(found).encode()).hexdigest()[:16])

print([base.device_type for base in get_device_type_test_bases()])
for op in op_db[::4]:
    if torch.float32 in op.dtypes and not op.name.startswith(("empty", "new_empty", "jiterator")):
        torch.manual_seed(1)
        for number, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)):
            if number == 2:
                break
            torch.manual_seed(2)
            result = op(sample.input, *sample.args, **sample.kwargs)
            show(op.name, result)
            leaves = [v for v in torch.utils._pytree.tree_leaves(result) if getattr(v, "grad_fn", None) is not None]
            if leaves and leaves[0].dtype == torch.float32:
                leaves[0].sum().backward()
                show(op.name + ".grad", getattr(sample.input, "grad", None))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
data = TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
for step in (model, torch.compile(model, backend="aot_eager"), torch.compile(model)):
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(step(x).float(), y)
        loss.backward()
        optimizer.step()
        show("step", loss, *model.parameters())
print(torch.get_default_device(), torch.distributed.get_default_backend_for_device("cpu"))
assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "torch_xla")]
print("autoload" if "torch_xla_autoload" in sys.modules else "plain")
"""


def test_the_cpu_computes_the_same(path: str) -> None:
    lines = {}
    for autoload in ("0", "1"):
        variables = {"PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, "OMP_NUM_THREADS": "1"}
        done = run_script(CPU_SAMPLES, check=False, fresh=FRESH, **variables)  # torch for CUDA logs that there is none
        assert done.returncode == 0, done.stderr[-3000:]
        lines[autoload] = done.stdout.splitlines()
    assert lines["0"].pop() == "plain" and lines["1"].pop() == "autoload"
    assert len(lines["0"]) > 200 and lines["1"] == lines["0"]


BROKEN = """
import warnings
class Broken:
    def __init__(self, *args):
        raise AttributeError("no such name")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import torch.library
    torch.library.Library = Broken
    import torch_xla_autoload
    torch_xla_autoload.register()
assert "does not offer xla: AttributeError: no such name" in str(seen[0].message)
assert not hasattr(torch, "xla") and torch.ones(2).tolist() == [1.0, 1.0]
"""


def test_an_unknown_torch_is_left_as_it_is() -> None:
    run_script(BROKEN, fresh="torch must be new", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
