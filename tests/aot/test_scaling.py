"""benchmarks.scaling: hand-computed costs, linearity in layers, and the tables of the page."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable

import pytest

from benchmarks.scaling import __main__ as command
from benchmarks.scaling import checkpoints, collectives, estimates, programs, startup, tables
from benchmarks.scaling.checkpoints import Storage
from benchmarks.scaling.collectives import Fabric, LinkTime, StepCollective
from benchmarks.scaling.estimates import Layout
from benchmarks.scaling.programs import StepProgram
from benchmarks.scaling.startup import StartupRun
from tests.support import fast_compile_flags
from tests.support.helpers import run_script
from torch_xla._engine.aot.hardware_specs import GPUS, ChipSpec

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


def test_collectives_of_a_report() -> None:
    """A permutation has no groups; a group of one chip costs nothing."""
    report = [
        {"kind": kind, "group": group, "count": 2.0, "bytes": 10.0, "seconds": 0.0}
        for kind, group in (("reduce-scatter", 8), ("all-reduce", 2), ("all-reduce", 1), ("collective-permute", 2))
    ]
    assert programs.to_step_collectives(report, (2, 8, 1)) == (
        StepCollective("reduce-scatter", FSDP, 2, 80),
        StepCollective("all-reduce", DATA, 2, 10),
        StepCollective("collective-permute", ALL, 2, 10),
    )


def run_logging(code: str, **variables: str) -> str:
    """Run a script that logs a recompilation: the first step also initializes the model."""
    done = run_script(code, check=False, XLA_FLAGS=fast_compile_flags.FLAGS, TF_CPP_MIN_LOG_LEVEL="2", **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


COMPILE = """
import dataclasses, json
from benchmarks.scaling import programs

words = "--target cpu:8 --mesh 2x4x1 --preset tiny --length 16 --width 512 --hidden 1024 --layers {layers} {stack}"
for program in programs.compile_steps(programs.parse_arguments(words.split())):
    print(json.dumps(dataclasses.asdict(program)))
"""


@functools.cache
def compiled(layers: str, stack: str) -> list[StepProgram]:
    """Compile the step of a small Llama with these numbers of layers for eight CPU devices."""
    code = COMPILE.format(layers=layers, stack=stack)
    lines = run_logging(code).splitlines()
    return [StepProgram.from_json(json.loads(line)) for line in lines if line.startswith("{")]


def sum_payloads(kind: str, axes: tuple[int, ...], program: StepProgram) -> float:
    return sum(one.payload for one in program.collectives if (one.kind, one.axes) == (kind, axes))


@pytest.mark.parametrize("stack", ["", pytest.param("--no-stack", marks=pytest.mark.sweep)])
def test_costs_are_linear_in_the_layers(stack: str) -> None:
    """Costs of 5 layers follow from those of 2 and 3. Combined all-reduces do not grow in number."""
    two, three, five = compiled("2,3,5", stack)
    assert [p.layers for p in (two, three, five)] == [2, 3, 5]

    def check(value: Callable[[StepProgram], float], tolerance: float = 1e-3) -> None:
        assert value(three) > value(two)
        assert value(five) == pytest.approx(value(three) + 2 * (value(three) - value(two)), rel=tolerance)

    check(lambda p: p.flops)
    check(lambda p: p.bytes, 0.02)
    check(lambda p: p.state)
    for wanted in (("all-gather", FSDP), ("all-reduce", FSDP), ("all-reduce", DATA)):
        check(functools.partial(sum_payloads, *wanted))
    check(lambda p: sum(c.count for c in p.collectives if c.kind == "all-gather" and c.axes == FSDP))


SAVE = """
import sys, tempfile
from pathlib import Path
sys.path.insert(0, "examples")
import dataclasses
import train_llama
import torch_xla.runtime as xr
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

xr.use_spmd()
train_llama.PRESETS["tiny"] = dataclasses.replace(train_llama.PRESETS["tiny"], width=512, hidden=1024, layers=2)
words = "--mesh 2x4x1 --stack --remat --bf16 --batch_size 8 --length 16"
trainer = train_llama.Trainer(train_llama.parse(words.split()))
trainer.train_step()
with tempfile.TemporaryDirectory() as folder:
    CheckpointManager(folder, 1).save(1, trainer.state())
    print(sum(file.stat().st_size for file in Path(folder).rglob("*.distcp")))
"""


def test_bytes_of_a_checkpoint() -> None:
    """The files have the state once, though two replicas hold it, and one or two percent of headers."""
    written = int(run_logging(SAVE, CPU_NUM_DEVICES="8").split()[-1])
    state = compiled("2,3,5", "")[0].state
    expected = checkpoints.checkpoint_cost(state, (2, 4, 1), 4, Storage())
    assert (expected.hosts, expected.writers) == (2, 1)
    assert written == pytest.approx(expected.bytes, rel=0.03)


def test_hand_computed_checkpoint() -> None:
    """80 B on each of 4 x 8 chips in 8 hosts: the two hosts of the first replica write 320 B each."""
    storage = Storage(copy=160, disk=32, remote_host=16, remote=20, host_mtbf=8, restart=100)
    cost = checkpoints.checkpoint_cost(80, (4, 8, 1), 4, storage)
    assert (cost.hosts, cost.writers, cost.bytes) == (8, 2, 320)
    assert (cost.block, cost.disk, cost.remote) == (2, 10, 32), "two hosts share 20 B/s"
    assert (cost.mtbf, cost.least_interval) == (3600, 200)
    assert cost.interval == checkpoints.optimum_interval(2, 3600)
    delay = 100 + 32 + 320 / 2.5  # eight hosts read
    assert cost.loss == checkpoints.expected_loss(cost.interval, 2, delay, 3600)


def test_checkpoints_are_not_more_frequent_than_their_writes() -> None:
    cost = checkpoints.checkpoint_cost(80, (1, 8, 1), 8, Storage(copy=1e9, remote_host=0.1))
    assert cost.interval == cost.least_interval == cost.remote == 6400


@pytest.mark.parametrize(("block", "mtbf"), [(1.0, 1e4), (10.0, 1e3), (100.0, 400.0)])
def test_optimum_interval(block: float, mtbf: float) -> None:
    """Near Young's for rare failures; the expected loss at twice and at half the interval is larger."""
    interval = checkpoints.optimum_interval(block, mtbf)
    young = math.sqrt(2 * block * mtbf)
    assert interval == pytest.approx(young, rel=0.25 if block > 50 else 0.07)
    loss = [checkpoints.expected_loss(factor * interval, block, 0.0, mtbf) for factor in (0.5, 0.95, 1, 1.05, 2)]
    assert min(loss) in loss[1:4] and loss[2] == pytest.approx(min(loss), rel=0.01)
    assert checkpoints.optimum_interval(1000.0, 400.0) == 400.0


@pytest.mark.parametrize(
    ("interval", "block", "delay", "mtbf"), [(100, 1, 10, 10_000), (100, 10, 50, 1000), (500, 50, 300, 1000)]
)
def test_expected_loss_of_simulated_failures(interval: float, block: float, delay: float, mtbf: float) -> None:
    expected = checkpoints.expected_loss(interval, block, delay, mtbf)
    assert checkpoints.simulate_loss(interval, block, delay, mtbf, failures=20_000) == pytest.approx(expected, rel=0.05)


def make_program(sizes: tuple[int, ...], *rows: StepCollective) -> StepProgram:
    return StepProgram("test", "p", sizes, 1, 1, 1.0, 1.0, 6.0, 4.0, 80, 1, 2, 7.0, 1000, rows)


def test_estimates_use_the_largest_compiled_mesh() -> None:
    gather, reduce = StepCollective("all-gather", FSDP, 1, 800), StepCollective("all-reduce", DATA, 1, 800)
    found = [
        make_program((1, 4, 1), gather), make_program((2, 4, 1), gather, reduce), make_program((1, 16, 1), gather)
    ]  # fmt: skip
    everywhere, within = Layout("p", None), Layout("p", 4)
    assert [estimates.find_base(found, everywhere, chips) for chips in (2, 4, 8, 16, 64)] == [
        None, found[0], found[0], found[2], found[2],
    ]  # fmt: skip
    assert [estimates.find_base(found, within, chips) for chips in (4, 8, 64)] == [found[0], found[1], found[1]]
    rows = estimates.estimate_steps(found, FABRIC, [within], [4, 16])
    assert [(row.sizes, row.base) for row in rows] == [((1, 4, 1), (1, 4, 1)), ((4, 4, 1), (2, 4, 1))]
    # 10 s of computation; the all-gather takes 9 s; the all-reduce over 4 domains 180 s, or 160 s in fewer messages.
    assert [row.seconds for row in rows] == pytest.approx([19, 199])
    assert [row.overlapped for row in rows] == pytest.approx([10, 169])
    assert [row.efficiency for row in rows] == pytest.approx([1, 19 / 199])


def test_predictions_of_a_larger_mesh() -> None:
    small = make_program((1, 4, 1), StepCollective("all-gather", FSDP, 3, 800))
    large = make_program((1, 8, 1), StepCollective("all-gather", FSDP, 2, 1000))
    rows = estimates.compare_predictions([large, small], [Layout("p", None)])
    assert {(row.quantity, row.predicted, row.compiled) for row in rows} == {
        ("FLOPs", 1, 1), ("HBM bytes", 1, 1), ("state", 40, 80), ("all-gather payload", 800, 1000),
        ("all-gather count", 3, 2),
    }  # fmt: skip


def test_estimated_startup() -> None:
    """Phases that grow with N, N^2 and N, and an executable half as large as the measured one."""
    runs = [StartupRun(n, 2000, 1, n - 1, (0, 0, 0), (0.1 * n, 0.01 * n * n, 0.2 * n)) for n in (4, 8, 16)]
    found = estimates.estimate_startup(make_program((1, 4, 1)), runs, 64)
    assert found.cpu == pytest.approx((6.4, 40.96, 6.4))
    assert (found.fetched, found.bytes) == (126, 63_000)


START = """
import dataclasses, json
from benchmarks.scaling import startup
print(json.dumps(dataclasses.asdict(startup.run_job(3, 5000))))
"""


def test_simulated_startup() -> None:
    """One process of three compiles."""
    run = StartupRun(**json.loads(run_script(START).stdout.splitlines()[-1]))
    assert (run.processes, run.bytes, run.compiled, run.fetched) == (3, 5000, 1, 2)
    assert len(run.seconds) == len(run.cpu) == len(startup.PHASES) and min(run.seconds) > 0


def test_a_failed_process_of_a_simulated_startup_is_an_error() -> None:
    code = START.replace("print(", "startup._join_and_fetch = None\nprint(")
    assert "a process of a job of 3 failed" in run_script(code, check=False).stderr


def test_page_is_up_to_date() -> None:
    """If not: ``python -m benchmarks.scaling --write`` writes it."""
    found = tables.all_tables(*command.load(), collectives.H100, Storage())
    page = command.PAGE.read_text()
    assert command.insert_tables(page, found) == page
    with pytest.raises(ValueError, match="0 places for the table 'other'"):
        command.insert_tables(page, {"other": ""})


def test_programs_of_the_page() -> None:
    """All that ``--compile`` compiles is stored, with the preset's number of layers."""
    found, runs = command.load()
    assert {(p.preset, "x".join(map(str, p.sizes))) for p in found} == set(command.MESHES)
    assert {(p.preset, p.layers) for p in found} == {("8b", 32), ("70b", 80)}
    assert ",".join(str(run.processes) for run in runs) == command.PROCESSES
    assert all((run.bytes, run.compiled, run.fetched) == (command.EXECUTABLE, 1, run.processes - 1) for run in runs)
    numbers = command.to_numbers(found, runs, collectives.H100, Storage())
    assert all(p.required < GPUS["h100"].hbm_bytes for p in found)
    assert [row["fetched"] for row in numbers["startup"]] == [0, 14, 126, 1022]
    assert json.loads(json.dumps(numbers))["steps"][0]["seconds"] == pytest.approx(numbers["steps"][0]["seconds"])
