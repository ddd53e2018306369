"""The tables of docs/project/scaling.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarks.report import table
from benchmarks.scaling import estimates
from benchmarks.scaling.checkpoints import Storage
from benchmarks.scaling.collectives import Fabric, Sizes
from benchmarks.scaling.programs import StepProgram
from benchmarks.scaling.startup import PHASES, StartupRun


def _mesh(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def steps_table(programs: Sequence[StepProgram], fabric: Fabric) -> str:
    """Return the estimates of a training step."""
    head = [
        "layout", "chips", "mesh", "compiled for", "computation, s", "bytes, s", "latency of rings, s", "step, s",
        "efficiency", "latency of doubling, s", "least step, s",
    ]  # fmt: skip
    rows = [
        [
            row.layout.title, f"{math.prod(row.sizes):,}", _mesh(row.sizes), _mesh(row.base), f"{row.compute:.2f}",
            f"{row.ring.links + row.ring.network:.2f}", f"{row.ring.latency:.3f}", f"{row.seconds:.2f}",
            _percent(row.efficiency), f"{row.doubling.latency:.3f}", f"{row.overlapped:.2f}",
        ]
        for row in estimates.estimate_steps(programs, fabric)
    ]  # fmt: skip
    return table(head, rows)


def collectives_table(programs: Sequence[StepProgram]) -> str:
    """Return the collectives of the smallest program of each layout with replicas."""
    axes = ("data", "fsdp", "tensor")
    wanted = {(layout.preset, (2, layout.fsdp, 1)) for layout in estimates.LAYOUTS if layout.fsdp is not None}
    bases = [p for p in programs if (p.preset, p.sizes) in wanted]
    rows = [
        [p.preset, _mesh(p.sizes), one.kind, " x ".join(axes[axis] for axis in one.axes), f"{one.count:g}",
         f"{one.payload / 1e9:.4g}"]
        for p in bases for one in p.collectives
    ]  # fmt: skip
    return table(["preset", "mesh", "collective", "axes", "per step", "payload, GB"], rows)


def predictions_table(programs: Sequence[StepProgram]) -> str:
    """Return the errors of predictions from smaller meshes, in percent of what was compiled."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in estimates.compare_predictions(programs):
        errors = found.setdefault((row.layout.title, _mesh(row.base), _mesh(row.sizes)), {})
        error = row.predicted / row.compiled - 1 if row.compiled else float(row.predicted > 0)
        kind = row.quantity.rpartition(" ")[2] if "-" in row.quantity else row.quantity
        errors[kind] = max(errors.get(kind, 0.0), error, key=abs)
    columns = ("FLOPs", "HBM bytes", "state", "payload", "count")
    head = ["layout", "from", "to", "FLOPs", "HBM bytes", "state", "payloads", "number of collectives"]
    return table(head, [[*names, *(f"{errors[name]:+.2%}" for name in columns)] for names, errors in found.items()])


def startup_runs_table(runs: Sequence[StartupRun]) -> str:
    """Return the simulated startups, with the growth of each phase."""
    head = [
        "processes",
        "compiled",
        "fetched",
        *(f"{phase}, s" for phase in PHASES),
        *(f"{phase}, CPU s" for phase in PHASES),
    ]
    rows = [
        [f"{run.processes}", f"{run.compiled}", f"{run.fetched}", *(f"{value:.2f}" for value in run.seconds),
         *(f"{value:.3f}" for value in run.cpu)]
        for run in runs
    ]  # fmt: skip
    growth = [estimates.fit_power([(run.processes, run.cpu[i]) for run in runs])[1] for i in range(len(PHASES))]
    rows.append(["grows with", "", "", *[""] * len(PHASES), *(f"N^{exponent:.1f}" for exponent in growth)])
    return table(head, rows)


def startup_table(programs: Sequence[StepProgram], runs: Sequence[StartupRun], fabric: Fabric) -> str:
    """Return the estimated startup of the first layout."""
    head = [
        "chips", "processes", "compilation, s", "executables, MB", "fetches", "fetched in all, MB",
        *(f"{phase}, CPU s" for phase in PHASES),
    ]  # fmt: skip
    rows = [
        [f"{chips:,}", f"{found.processes}", f"{base.compile_seconds:.0f}", f"{base.executables / 1e6:.2f}",
         f"{found.fetched:,}", f"{found.bytes / 1e6:,.0f}",
         *("0" if found.processes == 1 else f"{value:.2g}" for value in found.cpu)]
        for chips, base, found in estimates.estimate_startups(programs, runs, fabric)
    ]  # fmt: skip
    return table(head, rows)


def checkpoints_table(programs: Sequence[StepProgram], fabric: Fabric, storage: Storage) -> str:
    """Return the estimated cost of checkpoints."""
    head = [
        "layout", "chips", "hosts", "hosts that write", "GB of each", "blocks, s", "disk, s", "remote, s", "MTBF, h",
        "interval for 1 %, s", "optimum, s", "expected loss",
    ]  # fmt: skip
    rows = [
        [layout.title, f"{chips:,}", f"{cost.hosts}", f"{cost.writers}", f"{cost.bytes / 1e9:.3g}", f"{cost.block:.2g}",
         f"{cost.disk:.2g}", f"{cost.remote:.3g}", f"{cost.mtbf / 3600:,.3g}", f"{cost.least_interval:.3g}",
         f"{cost.interval:,.0f}", _percent(cost.loss)]
        for layout, chips, cost in estimates.estimate_checkpoints(programs, fabric, storage)
    ]  # fmt: skip
    return table(head, rows)


def all_tables(
    programs: Sequence[StepProgram], runs: Sequence[StartupRun], fabric: Fabric, storage: Storage
) -> dict[str, str]:
    """Return the tables by name."""
    makers: dict[str, Callable[[], str]] = {
        "steps": lambda: steps_table(programs, fabric),
        "collectives": lambda: collectives_table(programs),
        "predictions": lambda: predictions_table(programs),
        "startup runs": lambda: startup_runs_table(runs),
        "startup": lambda: startup_table(programs, runs, fabric),
        "checkpoints": lambda: checkpoints_table(programs, fabric, storage),
    }
    return {name: make() for name, make in makers.items()}
