"""Corners of every dtype, in every elementwise rule and each way of computing: as on the CPU, and they end.

Cases run in processes of their own, with a limit of processor time: a loop of a program that never ends cannot be
interrupted, and ends its process here.
"""

from __future__ import annotations

import json

import pytest
from helpers import run_script

from tests.corner_programs import names

NAMES = names()

DIVISORS = """
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    import torch, torch_xla
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        values = {limits.min, limits.min + 1, 0, 1, 2, 3, 4, 6, limits.max - 1, limits.max}
        values = sorted(values | ({-6, -4, -3, -1} if limits.min else set()))
        a, b = torch.cartesian_prod(*[torch.tensor(values, dtype=dtype)] * 2).unbind(1)
        wanted = torch.gcd(a, b)
        found = torch.gcd(a.to("xla"), b.to("xla")), torch.lcm(a.to("xla"), b.to("xla"))
        torch_xla.sync()
        assert torch.equal(found[0].cpu(), wanted), dtype
        defined = ~((a == limits.min) & (wanted == -1))  # there lcm on the CPU ends the process: min / -1
        assert torch.equal(found[1].cpu()[defined], torch.lcm(a[defined], b[defined])), dtype
    print("done")
"""


def test_gcd_and_lcm_of_all_corners_of_integers() -> None:
    """``jnp.gcd`` of the smallest integer never ends."""
    done = run_script(DIVISORS, check=False, TORCH_XLA_STORM="compile")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (done.returncode, done.stderr)


LARGEST = """
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    import torch, torch_xla
    for dtype in (torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        a = torch.tensor([largest, 1e10, 1e10, 2.0], dtype=dtype)
        x = torch.tensor([largest, 1e10, 1e10 - 2.0**17, 3.0], dtype=dtype)
        rows = [(torch.igamma, a, x), (torch.igammac, a, x), (torch.special.zeta, torch.full_like(a, 3.0), -a)]
        found = [of(first.to("xla"), second.to("xla")) for of, first, second in rows]
        torch_xla.sync()
        for (of, first, second), value in zip(rows, found):
            wanted = of(first.double(), second.double())  # the CPU's float32 at 1e10 is good to 5e-3
            torch.testing.assert_close(value.cpu().double(), wanted, rtol=1e-5, atol=0)
        numbers = torch.tensor([-largest, -1.0, 3.0, largest, float("inf"), float("nan")], dtype=dtype)
        of = torch.special.chebyshev_polynomial_t
        assert torch.equal(of(2.0, numbers.to("xla")).cpu(), of(2.0, numbers)), dtype
    largest = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)  # there the CPU gives nan
    assert torch.igamma(largest.to("xla"), (largest / 2).to("xla")).item() == 0
    assert torch.igammac(largest.to("xla"), (largest / 2).to("xla")).item() == 1
    print("done")
"""


def test_gamma_zeta_and_polynomials_of_the_largest_numbers() -> None:
    """Their loops go on until a term is small, or q is at least 9: the largest plus 1 is itself."""
    done = run_script(LARGEST, check=False, TORCH_XLA_STORM="compile")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (done.returncode, done.stderr)


#: What differs from the CPU, by rule and dtype, and why that is right. One that agrees again fails.
KNOWN: dict[tuple[str, str], str] = {
    ("aten::lgamma", "int8"): "4.8e-7 where the CPU gives 0, at 1: XLA's series is good to the last place of its terms",
    ("aten::lgamma", "bool"): "as of int8",
    ("aten::special_log_ndtr", "int8"): "2e-5 of -0.0013, at 3: jax takes the logarithm of a float32 beside 1",
}
#: (way, dtype) that this file has been run with. Of floats a program takes minutes, which needs a sweep of its own.
RUNS = [("compiled", "int8"), ("compiled", "bool"), ("interpreted", "int8")]


def _differences(way: str, dtype: str, names: list[str], seconds: int) -> dict[str, str | None]:
    """How each rule differs; of one that ends its process or never ends, that: the others run without it."""
    code = f"from tests import corner_programs; corner_programs.main({way!r}, {dtype!r}, {names!r}, {seconds})"
    first = "eager" if way == "interpreted" else "compile"
    done = run_script(code, check=False, TORCH_XLA_STORM="compile", TORCH_XLA_FIRST_RUN=first)
    if done.returncode == 0:
        found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
        return found
    if len(names) == 1:
        return {names[0]: f"ended with {done.returncode}: {done.stderr[-500:]}"}
    half = len(names) // 2
    return _differences(way, dtype, names[:half], seconds) | _differences(way, dtype, names[half:], seconds)


@pytest.mark.parametrize(("way", "dtype"), RUNS, ids="-".join)
def test_corners_are_those_of_the_cpu(way: str, dtype: str) -> None:
    differences = {name: text for name, text in _differences(way, dtype, NAMES, 120).items() if text is not None}
    expected = {name for name, known in KNOWN if known == dtype and way != "interpreted"}
    assert not {name: text for name, text in differences.items() if name not in expected}
    assert expected <= set(differences), "agrees with the CPU again: leave it out of KNOWN"
