"""Compares the public names of upstream's torch_xla 2.9 with this package's; generates docs/project/upstream_names.md.

    python -m tests.tools.upstream_names [--check]

``upstream_names.txt`` has a line for each name: its module, the name, and its parameters if it has any. This package's
names are looked up by importing; NOTES has the reason of each difference.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMES = ROOT / "tests" / "tools" / "upstream_names.txt"
PAGE = ROOT / "docs" / "project" / "upstream_names.md"

#: Longest matching prefix of ``module name`` -> how it differs, or why it is absent.
NOTES = {
    "torch_xla.experimental.scan Builder": "a helper of upstream's own implementation, which builds HLO by hand",
    "torch_xla.experimental.scan dynamic": "a helper of upstream's own implementation, which builds HLO by hand",
    "torch_xla.experimental.scan Scan": "a helper of upstream's own implementation: scan is an operator of the graph",
    "torch_xla.experimental.scan split": "a helper of upstream's own implementation",
    "torch_xla.experimental.scan tree_flatten_none": "a helper of upstream's own implementation",
    "torch_xla.stablehlo XLAExportInterpreter": "a helper of upstream's own implementation: exporting runs nothing",
    "torch_xla.utils.buffer_donor_context": "not needed: buffers that can no longer be read are donated",
    "torch_xla.experimental.gradient_accumulation XlaBuildHelper": "a helper of upstream's own implementation",
    "torch_xla.experimental.assume_pure make_fake_inputs": "a helper of upstream's own implementation",
    "torch_xla.experimental.assume_pure prepare_computation_inputs": "a helper of upstream's own implementation",
    "torch_xla.core.xla_builder computation_from_module_proto": "jax cannot call a program in HLO format; "
    "xla_builder.Op and call_jax make computations",
    "torch_xla.core.xla_builder create_placeholder_tensor": "a helper of upstream's own implementation: traced "
    "tensors are abstract",
    "torch_xla.experimental.scan value_and_grad_partitioned": "a helper of upstream's own implementation: scan is an "
    "operator of the graph",
    "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel XlaFullyShardedDataParallel": "without the "
    "options _debug_* of upstream's debugging; fsdp.utils has the collectives without communication",
    "torch_xla.distributed.spmd.api auto_policy": "XLA chooses the sharding of unannotated tensors",
    "torch_xla.distributed.xla_backend ProcessGroupXla": "torch.distributed creates it, with its own options",
    "torch_xla.core.xla_model DeviceContext": "a helper of upstream's own implementation",
    "torch_xla.experimental.gradient_accumulation GradientAccumulationContext": "a helper of upstream's own "
    "implementation",
    "torch_xla.distributed.parallel_loader ParallelLoader.send": "a helper of upstream's own implementation",
    "torch_xla.distributed.spmd.xla_sharded_tensor no_dispatch": "a helper of upstream's own implementation: sharded "
    "tensors are not wrappers",
    "torch_xla.distributed.spmd.xla_sharding aot_mark_sharding_fake": "a helper of upstream's own implementation",
    "torch_xla.distributed.parallel_loader PerDeviceQueue": "a helper of upstream's own implementation",
}


@dataclass(frozen=True)
class Name:
    """A public name of upstream's API."""

    module: str
    name: str
    parameters: tuple[str, ...] | None

    @property
    def path(self) -> str:
        return f"{self.module} {self.name}"


@dataclass(frozen=True)
class Found:
    """The result of a lookup: ``state`` is same, different or absent."""

    name: Name
    state: str
    note: str


def names() -> list[Name]:
    """Return all names, in the order of the file."""
    found = []
    for line in NAMES.read_text().splitlines():
        match = re.fullmatch(r"(\S+) ([\w.]+)(?:\((.*)\))?", line)
        assert match is not None, line
        given = None if match[3] is None else tuple(p.strip() for p in match[3].split(",") if p.strip())
        found.append(Name(match[1], match[2], given))
    return found


def find(name: Name) -> Found:
    """Look up a name."""
    try:
        value: Any = importlib.import_module(name.module)
        for part in name.name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        return Found(name, "absent", _note(name) or "not built yet")
    lacking = _lacking(value, name.parameters)
    if lacking:
        return Found(name, "different", _note(name) or f"without {', '.join(lacking)}")
    return Found(name, "same", "")


def _note(name: Name) -> str:
    known = [start for start in NOTES if name.path.startswith(start)]
    return NOTES[max(known, key=len)] if known else ""


def _lacking(value: Any, wanted: tuple[str, ...] | None) -> list[str]:
    """Return the parameters that cannot be passed by upstream's names."""
    if wanted is None or not callable(value):
        return []
    try:
        ours = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return []
    if any(p.kind == inspect.Parameter.VAR_KEYWORD for p in ours.values()):
        return []
    return [p for p in wanted if not p.startswith("*") and p not in ours]


def page(found: list[Found]) -> str:
    """Return the text of docs/project/upstream_names.md."""
    total, states = len(found), Counter(f.state for f in found)
    lines = [
        "# Names of upstream's torch_xla 2.9",
        "",
        "Search this page for a name (`all_gather`, `Mesh.from_str`) to see whether code for upstream's last release",
        "finds it here. *Same*: the name exists and takes the same arguments. *Different*: it exists and takes other",
        "arguments. *Absent*: it does not exist. `python -m tests.tools.upstream_names` generates the page.",
        "",
        "| names | same | different | absent |",
        "| --: | --: | --: | --: |",
        f"| {total} | {states['same']} | {states['different']} | {states['absent']} |",
        "",
        "## Different and absent names",
        "",
        *_rows([f for f in found if f.state != "same"]),
        "",
        "## All names",
        "",
        *_rows(found),
    ]
    return "\n".join(lines) + "\n"


def _rows(found: list[Found]) -> list[str]:
    """Return a table with a row for each name."""
    rows = [f"| `{f.name.module}` | `{f.name.name}` | {f.state} | {f.note} |" for f in found]
    return ["| module | name | state | note |", "| --- | --- | --- | --- |", *rows]


def main() -> int:
    """Write the page; with --check, return 1 if it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    text = page([find(name) for name in names()])
    if parser.parse_args().check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
