"""benchmarks.scaling: hand-computed costs, linearity in layers, and the tables of the page."""

from __future__ import annotations

import pytest

from benchmarks.scaling import collectives
from benchmarks.scaling.collectives import Fabric, LinkTime, StepCollective
from torch_xla._engine.aot.hardware_specs import ChipSpec

#: Round numbers: 100 B/s within a domain of 4 chips, 10 B/s between domains, messages of 1 s and 10 s.
FABRIC = Fabric(ChipSpec("test", "test", {"bf16": 1.0}, 1, 1.0, 100.0, ""), 4, 10.0, 1.0, 10.0)
ALL, DATA, FSDP = (0, 1), (0,), (1,)


@pytest.mark.parametrize(
    ("group", "sizes", "axes"),
    [(1, (2, 8, 1), ()), (2, (2, 8, 1), DATA), (8, (2, 8, 1), FSDP), (16, (2, 8, 1), ALL), (8, (1, 8, 1), FSDP)],
)
def test_axes_of_a_group(group: int, sizes: tuple[int, ...], axes: tuple[int, ...]) -> None:
    assert collectives.axes_of_group(group, sizes) == axes


@pytest.mark.parametrize(("group", "sizes", "found"), [(3, (2, 4), r"\[\]"), (2, (2, 2), r"\[\(0,\), \(1,\)\]")])
def test_unknown_and_ambiguous_groups_are_errors(group: int, sizes: tuple[int, ...], found: str) -> None:
    with pytest.raises(ValueError, match=rf"groups of {group} chips of the mesh .*got {found}"):
        collectives.axes_of_group(group, sizes)


@pytest.mark.parametrize(
    ("axes", "sizes", "split"),
    [
        (FSDP, (1, 4), (4, 1)),  # one domain
        (FSDP, (1, 16), (4, 4)),
        (FSDP, (4, 4), (4, 1)),  # fsdp within domains,
        (DATA, (4, 4), (1, 4)),  # data between them
        (ALL, (4, 4), (4, 4)),
        (DATA, (8, 2), (2, 4)),  # strided: every second chip
        ((), (4, 4), (1, 1)),
    ],
)
def test_split_of_a_group(axes: tuple[int, ...], sizes: tuple[int, ...], split: tuple[int, int]) -> None:
    assert collectives.split_group(axes, sizes, FABRIC.domain) == split


# Of 800 B. Links: 100 B/s and 1 s for each message; network: 10 B/s and 10 s.
@pytest.mark.parametrize(
    ("kind", "axes", "sizes", "seconds"),
    [
        # One domain of 4: each chip sends 3/4, in 3 messages.
        ("all-gather", FSDP, (1, 4), (6, 0, 3)),
        ("reduce-scatter", FSDP, (1, 4), (6, 0, 3)),
        ("all-reduce", FSDP, (1, 4), (12, 0, 6)),
        ("all-to-all", FSDP, (1, 4), (6, 0, 3)),
        ("collective-permute", FSDP, (1, 4), (8, 0, 1)),
        # Two domains: each chip exchanges its fourth, 200 B, with its counterpart.
        ("all-gather", FSDP, (1, 8), (6, 10, 3 + 10)),
        ("reduce-scatter", FSDP, (1, 8), (6, 10, 3 + 10)),
        ("all-reduce", FSDP, (1, 8), (12, 20, 6 + 20)),
        # 400 B stay in the domain, of which 3/4 go to others; 400 B leave it.
        ("all-to-all", FSDP, (1, 8), (3, 40, 3 + 10)),
        ("collective-permute", FSDP, (1, 8), (0, 80, 10)),
        # One chip of each of 4 domains.
        ("all-gather", DATA, (4, 4), (0, 60, 30)),
        ("all-reduce", DATA, (4, 4), (0, 120, 60)),
        ("all-reduce", (), (4, 4), (0, 0, 0)),
    ],
)
def test_hand_computed_times(
    kind: str, axes: tuple[int, ...], sizes: tuple[int, ...], seconds: tuple[float, ...]
) -> None:
    found = collectives.time_collective(StepCollective(kind, axes, 1, 800), sizes, FABRIC)
    assert (found.links, found.network, found.latency) == pytest.approx(seconds)
    thrice = collectives.time_collective(StepCollective(kind, axes, 3, 800), sizes, FABRIC)
    assert thrice == pytest.approx(LinkTime(found.links, found.network, 3 * found.latency)), "the payload is a sum"


@pytest.mark.parametrize(
    ("kind", "ranks", "ring", "doubling"),
    [
        ("all-gather", 512, 511, 9),
        ("reduce-scatter", 5, 4, 3),
        ("all-reduce", 512, 1022, 18),
        ("all-to-all", 512, 511, 511),
        ("collective-permute", 512, 1, 1),
        ("all-reduce", 1, 0, 0),
    ],
)
def test_hops(kind: str, ranks: int, ring: int, doubling: int) -> None:
    assert [collectives.count_hops(kind, ranks, is_ring) for is_ring in (True, False)] == [ring, doubling]


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_payload_is_the_inverse_of_the_result(kind: str) -> None:
    payload = collectives.payload_of(kind, 100.0, 8)
    assert collectives.result_bytes(kind, payload, 8) == 100.0
    assert payload == (800.0 if kind == "reduce-scatter" else 100.0)
