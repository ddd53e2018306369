"""Loops that read a value each time, and append to what they had: what each read compiles does not grow with them."""

from __future__ import annotations

import pytest
import torch

import torch_xla
from tests.support.helpers import counts, run_script

pytestmark = pytest.mark.usefixtures("cold")


def test_the_last_token_does_not_bring_all_tokens() -> None:
    """As generate does: append a token, read from the last one whether to go on."""
    table = torch.randn(16, 8)
    results = {}
    for device in ("cpu", "xla"):
        weights = table.to(device)
        ids, position = torch.tensor([[3, 5]], device=device), torch.tensor([[1]], device=device)
        torch_xla.sync()
        with counts() as moved:
            for _ in range(12):
                hidden = weights[ids[:, -1:]] * (position[:, -1:] + 1)
                token = (hidden @ weights.t()).argmax(-1)
                ids = torch.cat([ids, token], 1)
                position = torch.cat([position, position[:, -1:] + 1], 1)
                if bool((ids[:, -1] == 99).any()):
                    break
        results[device] = ids.cpu(), position.cpu()
    assert moved.compilations <= 3 and moved.executions == 12
    torch.testing.assert_close(results["xla"][0], results["cpu"][0])
    torch.testing.assert_close(results["xla"][1], results["cpu"][1])


def test_a_counter_is_not_counted_again_from_the_start() -> None:
    count, cache = torch.zeros((), dtype=torch.int64, device="xla"), torch.zeros(4, 16, device="xla")
    torch_xla.sync()
    with counts() as moved:
        for step in range(10):
            cache.index_copy_(1, count.reshape(1), torch.full((4, 1), 2.0, device="xla"))
            count.add_(1)
            assert cache.sum().item() == 8 * (step + 1)
    assert moved.compilations <= 3
    assert count.item() == 10


def test_whether_a_loop_is_at_its_end_is_an_operand() -> None:
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    with counts() as moved:
        found = []
        for done in (False, False, True):
            ended = torch.full((3,), done, device="xla", dtype=torch.bool) | (x > 5)
            assert ended.dtype == torch.bool
            found.append(bool(ended.all()))
    assert found == [False, False, True] and moved.compilations == 1
    assert torch.full((2,), True, device="xla").dtype == torch.bool
    assert torch.full((2,), True, device="xla", dtype=torch.float32).tolist() == [1.0, 1.0]


#: Parts of cat([2 x 3, 2 x 2, 2 x 4], 1): within one operand, over several, none, along another dimension.
PARTS = {
    "the first": lambda t: t[:, :3],
    "in the first": lambda t: t[:, 1:2],
    "the second": lambda t: t[:, 3:5],
    "the last of all": lambda t: t[:, -1],
    "the last three": lambda t: t[:, -3:],
    "with a step": lambda t: t[:, 5:9:2],
    "the first of the third": lambda t: t.select(1, 5),
    "over two": lambda t: t[:, 2:4],
    "all": lambda t: t[:, :],
    "nothing": lambda t: t[:, 4:4],
    "beyond the end": lambda t: t[:, 7:100],
    "rows": lambda t: t[1:],
    "a row": lambda t: t[0],
    "a part of a part": lambda t: t[:, 5:].narrow(1, 1, 2),
}


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.float32, torch.int64, torch.float64)], ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_concatenation(name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Their values, used and read, are what they are on the CPU; and so is what is written through one."""

    def values(device: str) -> list[torch.Tensor]:
        sizes = (3, 2, 4)
        parts = [
            torch.arange(2.0 * n).reshape(2, n).to(dtype).to(device) + n for n, dtype in zip(sizes, dtypes, strict=True)
        ]
        whole = torch.cat(parts, -1)
        part = PARTS[name](whole)
        used = part.float() * 2 + 1
        read = used.sum().cpu()
        part.mul_(3)
        return [read, used.cpu(), part.cpu(), whole.cpu(), *(p.cpu() for p in parts)]

    for found, expected in zip(values("xla"), values("cpu"), strict=True):
        torch.testing.assert_close(found, expected)


def test_views_of_a_part_that_was_led_past() -> None:
    """The part stays a view of the whole, also after a read that did not need the whole."""
    a, b = torch.ones(2, 3, device="xla"), torch.zeros(2, 2, device="xla")
    whole = torch.cat([a, b], 1)
    part = whole[:, 3:]
    assert (part + 1).sum().item() == 4
    part.fill_(7)
    whole[:, 4] = 5
    assert part.tolist() == [[7, 5], [7, 5]] and whole.tolist() == [[1, 1, 1, 7, 5]] * 2 and b.sum().item() == 0


def test_an_empty_operand() -> None:
    for empty in (torch.zeros(0), torch.zeros(0, 2), torch.zeros(2, 0)):
        if empty.dim() == 2 and empty.shape[1] == 2:
            parts, dim = [empty, torch.ones(3, 2)], 0
        else:
            parts, dim = [empty, torch.ones(2, 3)], 1
        expected = torch.cat(parts, dim)[:, -1] * 2
        found = torch.cat([p.to("xla") for p in parts], dim)[:, -1] * 2
        torch.testing.assert_close(found.cpu(), expected)


def test_large_values_are_computed_again_rather_than_kept() -> None:
    """What a read does not need it does not keep, unless it is small: activations are not made results."""
    x = torch.ones(64, 64, device="xla")
    torch_xla.sync()
    hidden = (x * 2).exp()
    later = hidden + 1
    total = hidden.mean()
    del hidden
    with counts() as moved:
        total.item()
    assert moved["CreateDataHandles"] == 1
    assert later.mean().item() > 1


def test_what_reads_have_computed_does_not_count_towards_the_size_limit() -> None:
    """A loop that reads a value in each step is not cut in the middle of one, however many steps there are."""
    out = run_script(
        """
        import torch, torch_xla
        from tests.support.helpers import counts
        x = torch.ones(3).to("xla")
        with counts() as moved:
            for _ in range(40):
                y = x
                for _ in range(10):
                    y = y * 1.5
                y.sum().item()
        print(moved.compilations, moved.executions, moved["GraphFlush"])
        """,
        XLA_TRIM_GRAPH_SIZE="100",
    )
    assert out.stdout == "1 40 0\n"
