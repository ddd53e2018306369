"""The collectives of a compiled step on a larger mesh, and their time on links with a latency.

A collective's replica group spans one or more axes of the mesh. On a larger mesh it spans the same axes. In weak
scaling, where the batch of a chip stays the same, its *payload* stays the same, too: the gathered bytes of an
all-gather, the bytes that a chip contributes to a reduce-scatter, an all-reduce or an all-to-all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_xla._engine.aot.collective_costs import link_bytes
from torch_xla._engine.aot.hardware_specs import GPUS, ChipSpec

#: Sizes of the axes of a mesh in row-major order of its chips: data, fsdp, tensor.
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fabric:
    """The links of a cluster: domains of chips with fast links, joined by a network.

    Attributes:
      chip: the chip; ``chip.link_bandwidth`` is that of the links within a domain.
      domain: chips of a domain, such as the GPUs that NVLink connects.
      network_bandwidth: bytes per second between domains, for each chip, in one direction.
      hop: seconds of a message within a domain, however short.
      network_hop: seconds of a message between domains.
    """

    chip: ChipSpec
    domain: int
    network_bandwidth: float
    hop: float
    network_hop: float


#: DGX H100: eight GPUs with NVLink, each with a network adapter of 400 Gbit/s. The latencies are assumptions.
H100 = Fabric(GPUS["h100"], domain=8, network_bandwidth=50e9, hop=3e-6, network_hop=14e-6)


@dataclass(frozen=True, slots=True)
class StepCollective:
    """The collectives of a kind over some axes of a mesh: executions in a step, and the sum of their payloads."""

    kind: str
    axes: tuple[int, ...]
    count: float
    payload: float


@dataclass(frozen=True, slots=True)
class LinkTime:
    """Seconds of collectives: bytes over bandwidth within domains and between them, and the latency of messages."""

    links: float = 0.0
    network: float = 0.0
    latency: float = 0.0

    @property
    def total(self) -> float:
        return self.links + self.network + self.latency

    def __add__(self, other: LinkTime) -> LinkTime:
        return LinkTime(self.links + other.links, self.network + other.network, self.latency + other.latency)


def axes_of_group(group: int, sizes: Sizes) -> tuple[int, ...]:
    """Return the axes that a replica group of this size spans; none for a group of one chip.

    Raises:
      ValueError: none, or several combinations of axes of more than one chip have this size.
    """
    if group == 1:
        return ()
    real = [axis for axis, size in enumerate(sizes) if size > 1]
    subsets = (axes for count in range(1, len(real) + 1) for axes in itertools.combinations(real, count))
    found = [axes for axes in subsets if math.prod(sizes[axis] for axis in axes) == group]
    if len(found) != 1:
        raise ValueError(
            f"replica groups of {group} chips of the mesh {sizes}: expected one choice of axes, got {found}"
        )
    return found[0]


def payload_of(kind: str, size: float, group: int) -> float:
    """Return the payload of a collective whose results have ``size`` bytes on a chip."""
    return size * group if kind == "reduce-scatter" else size


def result_bytes(kind: str, payload: float, group: int) -> float:
    """Return the bytes of the results on a chip: the inverse of ``payload_of``."""
    return payload / group if kind == "reduce-scatter" else payload


def split_group(axes: Sequence[int], sizes: Sizes, domain: int) -> tuple[int, int]:
    """Return how many chips of a replica group are in one domain, and over how many domains it is spread.

    Domains are ``domain`` consecutive chips of the mesh in row-major order.
    """
    group = math.prod(sizes[axis] for axis in axes)
    strides = [math.prod(sizes[axis + 1 :]) for axis in axes]
    chips = (
        sum(index * stride for index, stride in zip(place, strides, strict=True))
        for place in itertools.product(*(range(sizes[axis]) for axis in axes))
    )
    inside = sum(chip < domain for chip in chips)
    return inside, group // inside


def count_hops(kind: str, ranks: int, is_ring: bool) -> int:
    """Return the consecutive messages of one collective among ``ranks``: of a ring, or of recursive doubling."""
    if ranks <= 1:
        return 0
    if kind == "collective-permute":
        return 1
    direct = kind in ("all-to-all", "ragged-all-to-all")  # one message to each rank
    steps = ranks - 1 if is_ring or direct else math.ceil(math.log2(ranks))
    return 2 * steps if kind == "all-reduce" else steps


def time_collective(one: StepCollective, sizes: Sizes, fabric: Fabric, is_ring: bool = True) -> LinkTime:
    """Return the seconds of a step's collectives on a mesh, by a hierarchical algorithm without overlap.

    Chips of a domain share the work between domains: each exchanges its part with its counterparts through its own
    network adapter; the parts are gathered, or were reduced, within the domain.

    Args:
      is_ring: whether the algorithm between domains is a ring; else recursive doubling, which moves as many bytes.
    """
    inside, domains = split_group(one.axes, sizes, fabric.domain)
    size = result_bytes(one.kind, one.payload, inside * domains)
    within, between = _parts(one.kind, size, inside, domains)
    latency = fabric.hop * count_hops(one.kind, inside, True)
    latency += fabric.network_hop * count_hops(one.kind, domains, is_ring)
    if one.kind == "collective-permute" and domains > 1:  # the slowest pair of the permutation
        latency = fabric.network_hop
    return LinkTime(
        link_bytes(one.kind, within, inside) / fabric.chip.link_bandwidth,
        link_bytes(one.kind, between, domains) / fabric.network_bandwidth,
        one.count * latency,
    )


def _parts(kind: str, size: float, inside: int, domains: int) -> tuple[float, float]:
    """Return the result bytes of the collective within a domain, and of that between domains."""
    if kind == "collective-permute":
        return (0.0, size) if domains > 1 else (size, 0.0)
    if kind == "reduce-scatter":
        return size * domains, size
    if kind in ("all-to-all", "ragged-all-to-all"):
        return size / domains, size
    return size, size / inside


def time_collectives(
    collectives: Sequence[StepCollective], sizes: Sizes, fabric: Fabric, is_ring: bool = True
) -> LinkTime:
    """Return the seconds of all collectives of a step on a mesh, one after another."""
    return sum((time_collective(one, sizes, fabric, is_ring) for one in collectives), LinkTime())
