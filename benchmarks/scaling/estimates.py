"""Estimates for meshes that were not compiled, from the programs of smaller meshes of the same job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scaling.checkpoints import CheckpointCost, Storage, checkpoint_cost
from benchmarks.scaling.collectives import Fabric, LinkTime, Sizes, time_collectives
from benchmarks.scaling.programs import StepProgram
from benchmarks.scaling.startup import PHASES, StartupRun

CHIPS = (8, 64, 512, 4096)


@dataclass(frozen=True, slots=True)
class Layout:
    """A job at any number of chips: a preset, and the chips that share one copy of its state; None: all chips."""

    preset: str
    fsdp: int | None

    def sizes(self, chips: int) -> Sizes:
        """Return the mesh, data x fsdp x tensor."""
        fsdp = self.fsdp or chips
        return (chips // fsdp, fsdp, 1)

    def has(self, sizes: Sizes) -> bool:
        """Return whether a mesh is one of this layout."""
        return sizes == self.sizes(math.prod(sizes))

    def can_scale(self, sizes: Sizes) -> bool:
        """Return whether a mesh of this layout has the collectives of larger ones."""
        return self.fsdp is None or sizes[0] > 1

    @property
    def title(self) -> str:
        return f"{self.preset}, FSDP over {self.fsdp or 'all'}"


LAYOUTS = (Layout("8b", None), Layout("8b", 8), Layout("70b", None), Layout("70b", 64))


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A training step on a mesh: seconds of computation, and of collectives with rings and with recursive doubling."""

    layout: Layout
    sizes: Sizes
    base: Sizes
    compute: float
    ring: LinkTime
    doubling: LinkTime
    efficiency: float  # time of the smallest mesh of the layout over this one, with rings, nothing overlapped

    @property
    def seconds(self) -> float:
        """Seconds with rings, nothing overlapped."""
        return self.compute + self.ring.total

    @property
    def overlapped(self) -> float:
        """Seconds with recursive doubling, all collectives overlapped with computation: a lower bound."""
        return max(self.compute, self.doubling.total)


def find_base(programs: Sequence[StepProgram], layout: Layout, chips: int) -> StepProgram | None:
    """Return the largest compiled program that tells the costs of a layout on so many chips; None: there is none."""
    same = (p for p in programs if p.preset == layout.preset and layout.has(p.sizes))
    found = [p for p in same if p.chips == chips or (p.chips < chips and layout.can_scale(p.sizes))]
    return max(found, key=lambda program: program.chips, default=None)


def estimate_steps(
    programs: Sequence[StepProgram], fabric: Fabric, layouts: Sequence[Layout] = LAYOUTS, counts: Sequence[int] = CHIPS
) -> list[StepEstimate]:
    """Return the estimates of each layout, for the numbers of chips at least as large as its smallest program."""
    found = []
    for layout in layouts:
        smallest: float | None = None
        for chips in counts:
            base = find_base(programs, layout, chips)
            if base is None:
                continue
            sizes, compute = layout.sizes(chips), base.compute + base.memory
            ring, doubling = (time_collectives(base.collectives, sizes, fabric, kind) for kind in (True, False))
            smallest = smallest or compute + ring.total
            efficiency = smallest / (compute + ring.total)
            found.append(StepEstimate(layout, sizes, base.sizes, compute, ring, doubling, efficiency))
    return found


@dataclass(frozen=True, slots=True)
class Prediction:
    """A quantity of a compiled mesh, and its prediction from a smaller mesh of the same layout."""

    layout: Layout
    base: Sizes
    sizes: Sizes
    quantity: str
    predicted: float
    compiled: float


def compare_predictions(programs: Sequence[StepProgram], layouts: Sequence[Layout] = LAYOUTS) -> list[Prediction]:
    """Predict each compiled mesh from the smallest one of its layout: FLOPs, HBM bytes, state, payloads, counts."""
    found = []
    for layout in layouts:
        same = [p for p in programs if p.preset == layout.preset and layout.has(p.sizes) and layout.can_scale(p.sizes)]
        same.sort(key=lambda program: program.chips)
        for program in same[1:]:
            base = same[0]
            expected, actual = _quantities(base), _quantities(program)
            expected["state"] *= base.sizes[1] / program.sizes[1]
            found += [
                Prediction(layout, base.sizes, program.sizes, name, value, actual.get(name, 0.0))
                for name, value in expected.items()
            ]
    return found


def _quantities(program: StepProgram) -> dict[str, float]:
    found = {"FLOPs": program.flops, "HBM bytes": program.bytes, "state": float(program.state)}
    for one in program.collectives:
        for name, value in (("payload", one.payload), ("count", one.count)):
            key = f"{one.kind} {name}"
            found[key] = found.get(key, 0.0) + value
    return found


def fit_power(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return factor and exponent of ``y = factor * x ** exponent``, by least squares of logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    exponent, offset = statistics.linear_regression(*zip(*logs, strict=True))
    return math.exp(offset), exponent


@dataclass(frozen=True, slots=True)
class StartupEstimate:
    """The startup of a job with one process for each host: CPU seconds of rank 0 by phase, and executables."""

    processes: int
    cpu: tuple[float, ...]
    fetched: int
    bytes: float


def estimate_startup(program: StepProgram, runs: Sequence[StartupRun], processes: int) -> StartupEstimate:
    """Return the estimate for a program, extrapolated from simulated jobs by power laws of the number of processes."""
    cpu = []
    for phase in range(len(PHASES)):
        factor, exponent = fit_power([(run.processes, run.cpu[phase]) for run in runs])
        cpu.append(factor * processes**exponent)
    cpu[PHASES.index("fetch")] *= program.executables / runs[0].bytes
    fetched = program.programs * (processes - 1)
    return StartupEstimate(processes, tuple(cpu), fetched, program.executables * (processes - 1.0))


def estimate_startups(
    programs: Sequence[StepProgram], runs: Sequence[StartupRun], fabric: Fabric, layout: Layout = LAYOUTS[0]
) -> list[tuple[int, StepProgram, StartupEstimate]]:
    """Return for each number of chips the program that is started, and the estimate."""
    bases = ((chips, find_base(programs, layout, chips)) for chips in CHIPS)
    return [
        (chips, base, estimate_startup(base, runs, max(1, chips // fabric.domain)))
        for chips, base in bases
        if base is not None
    ]


def estimate_checkpoints(
    programs: Sequence[StepProgram], fabric: Fabric, storage: Storage, layouts: Sequence[Layout] = LAYOUTS
) -> list[tuple[Layout, int, CheckpointCost]]:
    """Return the cost of checkpoints of each layout and number of chips."""
    found = []
    for layout in layouts:
        for chips in CHIPS:
            base = find_base(programs, layout, chips)
            if base is not None:
                sizes = layout.sizes(chips)
                state = base.state * base.sizes[1] / sizes[1]
                found.append((layout, chips, checkpoint_cost(state, sizes, fabric.domain, storage)))
    return found
