"""Programs that call jaxlib's LAPACK kernels, in a process where jax has not lowered a call of one: they run."""

from __future__ import annotations

from pathlib import Path

from tests.support.helpers import run_script

# One graph of all kinds of kernels: each kind has its own pointers.
_GRAPH = """
    import os
    from pathlib import Path

    import jax, numpy as np, torch, torch_xla
    from tests.support.helpers import counts
    from torch_xla import aot

    x = torch.linspace(-.9, .9, 36).reshape(6, 6)
    x = x @ x.T + torch.eye(6)

    def decompose(a):
        lu, pivots = torch.linalg.lu_factor(a)
        found = [torch.linalg.svdvals(a), torch.linalg.qr(a).R.abs(), torch.linalg.eigvalsh(a), lu, pivots]
        found += [torch.linalg.cholesky(a), torch.linalg.solve_triangular(a, a, upper=True)]
        return torch.cat([result.flatten().float() for result in found])

    expected = decompose(x)
    file = Path(os.environ["FOLDER"], "loaded")
"""

_COMPILE = """
    from torch_xla._engine.aot import hardware_specs
    from torch_xla._engine.aot.targets import Target

    target = Target("here", "cpu", hardware_specs.GPUS["h100"], tuple(jax.local_devices(backend="cpu")))
    file.write_bytes(aot.compile(decompose, x, target=target).serialize())
"""

_RUN = """
    with counts() as moved:
        y = x.to("xla")
        torch_xla.sync()
        torch.testing.assert_close(decompose(y).cpu(), expected, rtol=1e-4, atol=1e-4)
    print(*(moved[f"PersistentCache{name}"] for name in ("Hit", "GraphHit", "Miss", "DeserializeFailure")))
"""

_LOAD = """
    with jax.enable_x64(True):
        [result] = aot.load(file.read_bytes())(np.zeros(0), np.zeros(0, np.int64), x.numpy())
    torch.testing.assert_close(torch.from_numpy(np.array(result)), expected, rtol=1e-4, atol=1e-4)
"""

# LAPACK takes matrices by columns: what it is given of a symmetric one is the same, what it gives is transposed.
_CALL = """
    from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call

    shapes, dtypes = [[6, 6], [6], []], [torch.float32, torch.int32, torch.int32]
    found = stablehlo_custom_call([x.to("xla")], "lapack_sgetrf_ffi", shapes, dtypes, api_version=4)
    lu, pivots = torch.linalg.lu_factor(x)
    torch_xla.sync()
    torch.testing.assert_close(found[0].cpu().T, lu)
    assert torch.equal(found[1].cpu(), pivots)
"""


def run(code: str, folder: Path) -> str:
    return run_script(_GRAPH + code, FOLDER=str(folder), XLA_PERSISTENT_CACHE_PATH=str(folder)).stdout


def test_programs_of_the_persistent_cache_call_lapack(tmp_path: Path) -> None:
    hits, _, misses, _ = map(int, run(_RUN, tmp_path).split())
    assert hits == 0 and misses > 0
    assert list(map(int, run(_RUN, tmp_path).split())) == [misses, misses, 0, 0]


def test_loaded_programs_call_lapack(tmp_path: Path) -> None:
    run(_COMPILE, tmp_path)
    run(_LOAD, tmp_path)


def test_custom_calls_of_lapack_run(tmp_path: Path) -> None:
    run(_CALL, tmp_path)
