"""Random numbers on xla: reproducible, different at every call and every step, without recompilation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.core.xla_model as xm
from benchmarks import models
from tests.support.helpers import counts, run_script
from torch_xla._engine import recorder
from torch_xla._engine.execution import eager_mode as engine_eager_mode
from torch_xla.experimental import eager_mode

DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(50, device="xla"),
    "randn": lambda: torch.randn(50, device="xla"),
    "randint": lambda: torch.randint(1000, (50,), device="xla"),
    "randperm": lambda: torch.randperm(50, device="xla"),
    "normal_": lambda: torch.empty(50, device="xla").normal_(),
    "uniform_": lambda: torch.empty(50, device="xla").uniform_(),
    "bernoulli": lambda: torch.full((50,), 0.5, device="xla").bernoulli(),
    "exponential_": lambda: torch.empty(50, device="xla").exponential_(),
    "dropout": lambda: nn.functional.dropout(torch.ones(50, device="xla")),
    "multinomial": lambda: torch.ones(50, device="xla").multinomial(30),
}


@pytest.mark.parametrize("name", DRAWS)
def test_repeatable(name: str) -> None:
    draw = DRAWS[name]
    runs = []
    with counts() as moved:
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            runs.append([draw().tolist(), draw().tolist()])
    assert runs[0] == runs[1], "the same seed, also twice in a row"
    assert runs[0] != runs[2], "another seed"
    assert runs[0][0] != runs[0][1], "another draw"
    assert moved.fallbacks == set()


@pytest.mark.parametrize("name", DRAWS)
def test_draws_differ_within_a_step_and_between_steps(name: str) -> None:
    draw = DRAWS[name]
    seen = []
    for _ in range(3):
        pair = [draw(), draw()]
        torch_xla.sync()
        seen += [t.tolist() for t in pair]
    assert len({str(values) for values in seen}) == 6


@pytest.mark.usefixtures("cold")
def test_steps_share_one_program() -> None:
    kept = []
    with counts() as moved:
        for _ in range(5):
            kept.append(torch.rand(3, device="xla") + torch.randn(3, device="xla"))
            torch_xla.sync()
    assert (moved["UncachedSyncTensors"], moved["CachedSyncTensors"]) == (1, 4)
    assert len({str(t.tolist()) for t in kept}) == 5


def _mixed(between: Callable[[Tensor], object]) -> list[Tensor]:
    """Three steps with draws of several distributions, with ``between`` after each."""
    drawn = []
    for _ in range(3):
        for draw in MIXED:
            drawn.append(draw())
            between(drawn[-1])
        torch_xla.sync()
    return [t.cpu() for t in drawn]


#: Exact distributions: the rounding of normal numbers depends on XLA's fusion.
MIXED = [DRAWS[name] for name in ("rand", "randint", "dropout", "randperm", "bernoulli", "uniform_", "multinomial")]

#: Actions between two draws that change no number.
BETWEEN: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda t: None,
    "reads": lambda t: t.tolist(),
    "prints": lambda t: str(t),
    "reads of another": lambda t: torch.ones(2, device="xla").sum().item(),
    "syncs": lambda t: torch_xla.sync(),
    "states": lambda t: xm.get_rng_state(),
    "state set to itself": lambda t: xm.set_rng_state(xm.get_rng_state()),
    "state tensors": lambda t: torch.xla.set_rng_state(torch.xla.get_rng_state()),
    "graphs looked at": lambda t: xm.get_stablehlo([t]),
    "cuts by size": lambda t: recorder.bindings().set_pending_limit(2),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_numbers_depend_on_seed_and_draws_before(name: str) -> None:
    torch.manual_seed(3)
    expected = _mixed(BETWEEN["nothing"])
    torch.manual_seed(3)
    try:
        got = _mixed(BETWEEN[name])
    finally:
        engine_eager_mode.set_eager(False)  # sets the limit
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


def test_eager_and_lazy_draw_the_same() -> None:
    torch.manual_seed(3)
    expected = _mixed(BETWEEN["nothing"])
    torch.manual_seed(3)
    eager_mode(True)
    try:
        got = _mixed(BETWEEN["nothing"])
    finally:
        eager_mode(False)
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


@pytest.mark.usefixtures("cold")
def test_reading_in_every_step_compiles_once() -> None:
    kept = []

    def step() -> None:
        a = torch.rand(3, device="xla")
        kept.append(a.tolist())
        b = nn.functional.dropout(torch.ones(50, device="xla")) + torch.rand(50, device="xla")
        torch_xla.sync()
        kept.append(b.tolist())

    step()
    with counts() as moved:
        for _ in range(5):
            step()
    assert len({str(values) for values in kept}) == 12
    assert moved.compilations == 0


def test_state_is_an_integer_that_draws_advance() -> None:
    """The state after n draws does not depend on flushes; an int restores the stream at any point."""
    for start in (2**64 - 5, 2**32 - 3, 2**32 - 1, 0):  # the low half of the state overflows between the draws
        states, numbers = [], []
        for between in (BETWEEN["nothing"], BETWEEN["syncs"], BETWEEN["reads"]):
            xm.set_rng_state(start)
            numbers.append(str(_mixed(between)))
            states.append(xm.get_rng_state())
        assert len(set(states)) == len(set(numbers)) == 1
        assert 0 <= states[0] < 2**64


def test_each_device_has_a_separate_stream() -> None:
    run_script(
        """
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        torch.manual_seed(0)
        draws = [torch.rand(64, device=f"xla:{i % 4}").tolist() for i in range(40)]
        assert len({str(d) for d in draws}) == 40
        states = [xm.get_rng_state(f"xla:{i}") for i in range(4)]
        assert len(set(states)) == 4
        torch.manual_seed(0)
        again = [torch.rand(64, device=f"xla:{i % 4}") for i in range(40)]
        assert [d.tolist() for d in again] == draws
        """,
        CPU_NUM_DEVICES="4",
        TORCH_XLA_EXPLAIN_RECOMPILATIONS="0",
    )


def _train_with_dropout(seed: int) -> list[float]:
    torch.manual_seed(0)
    model = models.GPT(1, 16, 2, 32, 8, dropout=0.2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, targets = (t.to("xla") for t in models.text(2, 8, 32))
    torch_xla.sync()
    torch.manual_seed(seed)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = models.loss(model(tokens), targets)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def test_training_with_dropout() -> None:
    with counts() as moved:
        first = _train_with_dropout(1)
    assert moved.compilations <= 3 and moved.fallbacks == set()
    assert first == _train_with_dropout(1)
    assert first != _train_with_dropout(2)


def test_dropout_uses_one_mask_forward_and_backward() -> None:
    x = torch.ones(1000, device="xla", requires_grad=True)
    y = nn.functional.dropout(x, 0.3)
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.detach().cpu())
    assert not nn.functional.dropout(x, 0.3, training=False).ne(1).any().item()


def test_state_round_trip() -> None:
    torch.rand(3, device="xla")
    state = xm.get_rng_state()
    first = [torch.rand(3, device="xla"), torch.randn(3, device="xla")]
    xm.set_rng_state(state)
    second = [torch.rand(3, device="xla"), torch.randn(3, device="xla")]
    assert xm.get_rng_state() != state
    assert [t.tolist() for t in first] == [t.tolist() for t in second]
    assert isinstance(state, int)


def test_state_in_the_middle_of_a_graph() -> None:
    """Numbers drawn before the state was read or set do not change, whether computed before or after."""
    xm.set_rng_state(11)
    a, state = torch.rand(3, device="xla"), xm.get_rng_state()
    b = torch.rand(3, device="xla")
    xm.set_rng_state(state)
    c = torch.rand(3, device="xla")
    xm.set_rng_state(11)
    d = torch.rand(3, device="xla")
    with counts() as moved:
        torch_xla.sync()
    assert moved.executions == 1
    assert a.tolist() == d.tolist() != b.tolist() == c.tolist()


def test_a_sync_does_not_change_a_state_just_taken() -> None:
    torch.rand(2, device="xla")
    state = xm.get_rng_state()
    torch_xla.sync()
    first = torch.rand(2, device="xla").tolist()
    xm.set_rng_state(state)
    assert torch.rand(2, device="xla").tolist() == first


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -1, 2**64 - 1])
def test_all_seeds(seed: int) -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(seed)
        draws.append(torch.rand(4, device="xla").tolist())
    assert draws[0] == draws[1]
    if seed >= 0:
        xm.set_rng_state(seed)
        assert xm.get_rng_state() == seed


def test_cpu_stream_is_unchanged() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    torch.rand(4, device="xla").cpu()
    torch_xla.manual_seed(17)
    xm.set_rng_state(4)
    nn.functional.dropout(torch.ones(4, device="xla")).cpu()
    assert torch.rand(4).tolist() == expected
    assert torch.initial_seed() == 3


def test_manual_seed_still_seeds_torch() -> None:
    generator = torch.manual_seed(8)
    assert generator is torch.default_generator and torch.initial_seed() == 8
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        torch.manual_seed("eight")


def test_generator_argument() -> None:
    draws = [torch.rand(3, generator=torch.Generator().manual_seed(4), device="cpu").tolist() for _ in range(2)]
    assert draws[0] == draws[1]


def _moments(x: Tensor) -> tuple[float, float]:
    return x.double().mean().item(), x.double().var().item()


N = 100_000
STATISTICS: dict[str, tuple[Callable[[], Tensor], float, float]] = {  # draw, mean, variance
    "rand": (lambda: torch.rand(N, device="xla"), 1 / 2, 1 / 12),
    "rand float64": (lambda: torch.rand(N, dtype=torch.float64, device="xla"), 1 / 2, 1 / 12),
    "rand bfloat16": (lambda: torch.rand(N, dtype=torch.bfloat16, device="xla"), 1 / 2, 1 / 12),
    "randn": (lambda: torch.randn(N, device="xla"), 0, 1),
    "normal_": (lambda: torch.empty(N, device="xla").normal_(3, 2), 3, 4),
    "uniform_": (lambda: torch.empty(N, device="xla").uniform_(-1, 3), 1, 16 / 12),
    "randint": (lambda: torch.randint(-2, 8, (N,), device="xla"), 2.5, 99 / 12),
    "bernoulli": (lambda: torch.full((N,), 0.3, device="xla").bernoulli(), 0.3, 0.21),
    "bernoulli_": (lambda: torch.empty(N, device="xla").bernoulli_(0.8), 0.8, 0.16),
    "dropout": (lambda: nn.functional.dropout(torch.ones(N, device="xla"), 0.25), 1, 1 / 3),
    "exponential_": (lambda: torch.empty(N, device="xla").exponential_(2), 0.5, 0.25),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(name: str) -> None:
    draw, mean, variance = STATISTICS[name]
    values = draw()
    got = _moments(values)
    assert abs(got[0] - mean) < 6 * (variance / N) ** 0.5 + (2e-3 if values.dtype == torch.bfloat16 else 0)
    assert got[1] == pytest.approx(variance, rel=0.05)


def test_ranges() -> None:
    x = torch.rand(N, device="xla")
    assert x.min().item() >= 0 and x.max().item() < 1
    k = torch.randint(3, 7, (N,), device="xla")
    assert (k.min().item(), k.max().item()) == (3, 6)
    assert sorted(torch.randperm(100, device="xla").tolist()) == list(range(100))
    y = nn.functional.dropout(torch.ones(N, device="xla"), 0.5)
    assert ((y == 0) | (y == 2)).all().item()


FROM_GENERATOR: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "randn": lambda g: torch.randn(3, generator=g, device="xla"),
    "rand": lambda g: torch.rand(3, generator=g, device="xla"),
    "randint": lambda g: torch.randint(1000, (3,), generator=g, device="xla"),
    "randperm": lambda g: torch.randperm(8, generator=g, device="xla"),
    "normal_": lambda g: torch.empty(3, device="xla").normal_(generator=g),
    "uniform_": lambda g: torch.empty(3, device="xla").uniform_(generator=g),
    "bernoulli": lambda g: torch.full((64,), 0.5, device="xla").bernoulli(generator=g),
    "multinomial": lambda g: torch.ones(64, device="xla").multinomial(3, generator=g),
    "normal": lambda g: torch.normal(torch.zeros(3, device="xla"), 1.0, generator=g),
}


@pytest.mark.parametrize("name", FROM_GENERATOR)
def test_generator_of_the_device(name: str) -> None:
    generator, other = (torch.Generator(device="xla").manual_seed(3) for _ in range(2))
    assert generator.device == torch.device("xla:0") and generator.initial_seed() == 3
    first, second = FROM_GENERATOR[name](generator).tolist(), FROM_GENERATOR[name](generator).tolist()
    torch.manual_seed(7)  # does not affect it
    with counts() as moved:
        assert [FROM_GENERATOR[name](other).tolist() for _ in range(2)] == [first, second]
    assert first != second
    assert moved.fallbacks == set() and moved.compilations == 0
    state = generator.get_state()
    third = FROM_GENERATOR[name](generator).tolist()
    generator.set_state(state)
    twin = generator.clone_state()
    assert FROM_GENERATOR[name](generator).tolist() == FROM_GENERATOR[name](twin).tolist() == third


def test_generator_errors() -> None:
    with pytest.raises(RuntimeError, match="xla:9 does not exist"):
        torch.Generator(device="xla:9")
    generator = torch.Generator(device="xla")
    with pytest.raises(RuntimeError, match=r"the state of an xla generator is a CPU tensor uint8\[16\]"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"generator|not an XLA tensor"):
        torch.randn(3, generator=generator)
