"""Several threads that use the same tensors; the thread that runs a backward pass."""

from __future__ import annotations

import threading

import pytest
import torch

import torch_xla
from tests.support.helpers import run_script


def test_reads_beside_writes() -> None:
    """One thread writes to a tensor in place while others read and view it: no reader sees a freed value."""
    run_script(
        """
        import threading, time
        import torch, torch_xla
        from torch_xla._engine import recorder

        recorder.bindings().set_pending_limit(1 << 60)
        x, y, source = torch.zeros(4, device="xla"), torch.zeros(4, device="xla"), -torch.ones(4, device="xla")
        other = y[1:]
        over = time.monotonic() + 3

        def write():
            while time.monotonic() < over:
                for _ in range(200):
                    x.copy_(source.neg())  # the value before has no other owner
                    y.copy_(source.neg())

        def read():
            while time.monotonic() < over:
                for _ in range(200):
                    torch.relu(x), torch.relu(x), other.neg(), y.view(2, 2), torch.relu(y)

        threads = [threading.Thread(target=work) for work in (write, read, read)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert x.tolist() == y.tolist() == [1.0] * 4
        """
    )


def test_autograd_keeps_its_threads_for_other_devices() -> None:
    """Recording and a backward pass of xla do not change the user's setting of autograd's multithreading."""
    for wanted in (True, False):
        with torch.autograd.set_multithreading_enabled(wanted):
            x = torch.ones(3, device="xla", requires_grad=True)
            assert torch._C._is_multithreading_enabled() is wanted
            (x * 2).sum().backward()
            torch.autograd.grad((x * 3).sum(), x)
            assert torch._C._is_multithreading_enabled() is wanted
            with pytest.raises(RuntimeError, match="grad"):
                torch.ones(3, device="xla").sum().backward()
            assert torch._C._is_multithreading_enabled() is wanted


def test_backward_of_xla_runs_on_the_calling_thread() -> None:
    """Also if another thread ran the forward pass, with autograd.grad, and within another backward pass."""
    seen: list[tuple[int, bool]] = []

    def note(gradient: torch.Tensor) -> None:
        seen.append((threading.get_ident(), torch._C._is_multithreading_enabled()))

    def work() -> None:
        x = torch.ones(3, device="xla", requires_grad=True)
        y = x * 2
        y.register_hook(note)
        y.sum().backward(retain_graph=True)
        torch.autograd.grad(y.sum(), x)
        expected.append(threading.get_ident())

    expected: list[int] = []
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch_xla.sync()
    assert [ident for ident, _ in seen] == [expected[0]] * 2 + [expected[1]] * 2
    assert not any(switch for _, switch in seen)


def test_backward_through_xla_from_another_device() -> None:
    """A loss on the CPU: autograd runs the xla part on the device's thread, and the gradients are the same."""
    x = torch.ones(3, device="xla", requires_grad=True)
    ((x * 2).cpu() * torch.arange(3.0)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 2.0, 4.0]
