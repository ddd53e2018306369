"""Corners of every dtype, in every elementwise rule and each way of computing: as on the CPU, and they end.

Cases run in processes of their own, with a limit of processor time: a loop of a program that never ends cannot be
interrupted, and ends its process here.
"""

from __future__ import annotations

from helpers import run_script

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
