"""Compiles the training step of examples/train_llama.py for a mesh; computes no values.

    python -m benchmarks.scaling.programs --target h100:16 --mesh 2x8x1 --preset 8b

Prints the costs of the program as a line of JSON. The target ``cpu:8`` is this machine's CPU compiler with eight
devices.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scaling.collectives import Sizes, StepCollective, axes_of_group, payload_of


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The costs of one training step on one chip, counted in the compiled program.

    Attributes:
      target, preset, sizes, layers, length: what was compiled; ``length`` tokens for each chip.
      flops, bytes: floating point operations, and bytes of HBM.
      compute, memory: estimated seconds of operations bound by either.
      state: bytes of parameters and optimizer state on a chip.
      required: bytes of memory that the program needs on a chip.
      programs: distinct programs of the job.
      compile_seconds: of all of them, on this machine.
      executables: bytes of their files in the persistent cache.
      collectives: by kind and axes of the mesh.
    """

    target: str
    preset: str
    sizes: Sizes
    layers: int
    length: int
    flops: float
    bytes: float
    compute: float
    memory: float
    state: int
    required: int
    programs: int
    compile_seconds: float
    executables: int
    collectives: tuple[StepCollective, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StepProgram:
        rows = (StepCollective(**row | {"axes": tuple(row["axes"])}) for row in data["collectives"])
        return cls(**data | {"sizes": tuple(data["sizes"]), "collectives": tuple(rows)})

    @staticmethod
    def count_chips(mesh: str) -> int:
        """Return the number of chips of a mesh such as ``2x8x1``."""
        return math.prod(map(int, mesh.split("x")))

    @property
    def chips(self) -> int:
        return math.prod(self.sizes)


def to_step_collectives(rows: list[dict[str, Any]], sizes: Sizes) -> tuple[StepCollective, ...]:
    """Return the collectives of an ahead-of-time report, by axes of the mesh.

    The report has no groups of collective-permutes: they may go anywhere.
    """
    everywhere = tuple(axis for axis, size in enumerate(sizes) if size > 1)
    found = []
    for row in rows:
        kind, group = row["kind"], row["group"]
        axes = everywhere if kind == "collective-permute" else axes_of_group(group, sizes)
        if axes:
            found.append(StepCollective(kind, axes, row["count"], payload_of(kind, row["bytes"], group)))
    return tuple(found)


def compile_steps(options: argparse.Namespace) -> Iterator[StepProgram]:
    """Compile the programs of the first steps in this process, for each number of layers; yield the latest one."""
    chips = math.prod(options.mesh)
    os.environ["CPU_NUM_DEVICES"] = str(chips)
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    import torch_xla.runtime as xr
    from torch_xla._engine.aot import program_collector
    from torch_xla._engine.device import abstract_device
    from torch_xla.aot import command

    target = _find_target(options.target, chips)
    command.emulate_on_cpu(target)
    xr.use_spmd()
    collector = program_collector.ProgramCollector(target)
    abstract_device.enable(collector.result_shardings)
    for layers in options.layers or [None]:
        first = len(collector.programs)
        config = _train(collector, options, layers)
        programs = collector.programs[first:]
        for seen in programs:
            collector.compile(seen)
            if seen.error is not None:
                raise seen.error
        if options.hlo is not None and programs[-1].compiled is not None:
            options.hlo.write_text(programs[-1].compiled.stage.as_text() or "")
        yield _describe(programs, options, config)


def _train(collector: Any, options: argparse.Namespace, layers: int | None) -> Any:
    """Record two steps, and return the sizes of the model."""
    train_llama = importlib.import_module("train_llama")

    config = train_llama.PRESETS[options.preset]
    given = {"layers": layers} | {name: getattr(options, name) for name in ("width", "hidden")}
    config = dataclasses.replace(config, **{name: size for name, size in given.items() if size})
    words = f"--preset {options.preset} --mesh {'x'.join(map(str, options.mesh))} --remat --bf16"
    words += f" {'--stack' if options.stack else ''} --batch_size {math.prod(options.mesh)} --length {options.length}"
    presets, train_llama.PRESETS = train_llama.PRESETS, {options.preset: config}  # type: ignore[attr-defined]
    with collector.collecting():
        trainer = train_llama.Trainer(train_llama.parse(words.split()))
        for _ in range(2):
            trainer.train_step()
    train_llama.PRESETS = presets  # type: ignore[attr-defined]
    return config


def _describe(programs: Sequence[Any], options: argparse.Namespace, config: Any) -> StepProgram:
    from torch_xla._engine.aot import cache_export, targets
    from torch_xla.aot import report_data

    with tempfile.TemporaryDirectory() as folder:
        files = [cache_export.write_to_cache(Path(folder), seen.compiled) for seen in programs if seen.compiled]
        size = sum(file.stat().st_size for file in files if file is not None)
    target: targets.Target = programs[-1].lowered.target
    row = report_data.program_entry(programs[-1], target)
    return StepProgram(
        options.target, options.preset, options.mesh, config.layers, options.length,
        row["work"]["flops"], row["work"]["bytes"], row["parts"]["compute"], row["parts"]["memory"],
        row["memory"]["updated"], row["memory"]["required_bytes"],
        len(programs), sum(seen.seconds for seen in programs), size,
        to_step_collectives(row["collectives"], options.mesh),
    )  # fmt: skip


def _find_target(name: str, chips: int) -> Any:
    import jax

    from torch_xla._engine.aot import hardware_specs, targets

    chip, _, count = name.partition(":")
    if chip != "cpu":
        return targets.get_target(name)
    if int(count) != chips:
        raise ValueError(f"target {name}: the mesh has {chips} chips")
    jax.config.update("jax_num_cpu_devices", chips)
    return targets.Target(name, "cpu", hardware_specs.GPUS["h100"], tuple(jax.local_devices(backend="cpu")))


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", required=True)
    add("--mesh", type=lambda text: tuple(map(int, text.split("x"))), required=True, help="data x fsdp x tensor")
    add("--preset", default="8b")
    add("--length", type=int, default=4096, help="tokens of each chip")
    for name in ("width", "hidden"):
        add(f"--{name}", type=int, help="another size than that of the preset")
    add("--layers", type=lambda text: [int(word) for word in text.split(",")], help="other numbers of layers: 2,3,5")
    add("--no-stack", dest="stack", action="store_false", help="layers one by one, not as a loop")
    add("--hlo", type=Path, help="write the program's optimized HLO to this file")
    return parser.parse_args(words)


if __name__ == "__main__":
    for program in compile_steps(parse_arguments()):
        print(json.dumps(dataclasses.asdict(program)), flush=True)
