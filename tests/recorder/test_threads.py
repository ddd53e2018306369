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


def test_recording_beside_syncs() -> None:
    """Two threads record each kind of op while a third syncs: a new value may be computed before its op returns.

    A recorder that reads such a value's op afterwards reads a null pointer, seldom; ThreadSanitizer reports it always.
    """
    run_script(
        """
        import collections, sys, threading, time
        import torch, torch_xla
        import torch.nn.functional as F

        sys.setswitchinterval(1e-5)
        x, w, index = torch.ones(4, 4, device="xla"), torch.ones(4, 4, device="xla"), torch.ones(4, device="xla").long()
        many, out = [torch.ones(2, device="xla") for _ in range(3)], torch.empty(4, 4, device="xla")

        def write_in_place():
            y = x.clone()
            return y.add_(1), y[1:3].mul_(2), y.t().neg_(), y.copy_(w), y.zero_()

        KINDS = [
            write_in_place,
            lambda: (x * 2 + 1).sum(),
            lambda: torch._foreach_add_(torch._foreach_mul(many, 2), 1),
            lambda: torch.add(x, w, out=out),
            lambda: F.linear(x, w).relu(),
            lambda: F.batch_norm(x, None, None, training=True),
            lambda: F.scaled_dot_product_attention(*[x.view(1, 1, 4, 4)] * 3),
            lambda: (torch.rand(3, device="xla"), torch.zeros(3, device="xla"), F.dropout(x)),
            lambda: x.split(2)[1].view(8)[2:5].neg(),
            lambda: (torch.topk(x, 2), torch.max(x, 0)),
            lambda: (x.to(torch.float64), x.view(torch.int32)),
            lambda: torch.as_strided(x, (2, 2), (4, 1)).t().contiguous(),
            lambda: (F.embedding(index, x), x[index]),
            lambda: x.resize_(4, 4),
        ]
        def record(kind):
            live = collections.deque(maxlen=5)  # a sync computes them
            while time.monotonic() < over:
                live.append(kind())

        for kind in KINDS:  # one after the other: threads that record different ops make a new graph each time
            over = time.monotonic() + 0.3
            threads = [threading.Thread(target=record, args=[kind]) for _ in range(2)]
            for t in threads: t.start()
            while any(t.is_alive() for t in threads):
                torch_xla.sync()
                time.sleep(0.001)
            for t in threads: t.join()
        assert out.tolist() == [[2.0] * 4] * 4 and x.tolist() == [[1.0] * 4] * 4
        """,
        TORCH_XLA_EXPLAIN_RECOMPILATIONS="0",
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
