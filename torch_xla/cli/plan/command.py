"""The command line of ``torch-xla plan``. Imports neither torch nor jax."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_xla._engine.aot import arguments, hardware_specs
from torch_xla._engine.base import command_line
from torch_xla._version import __version__
from torch_xla.cli.plan import page, process_pool, search, summary, table, variations
from torch_xla.cli.plan.planner import Planner, Script
from torch_xla.cli.plan.result_store import ResultStore

_HELP = """\
Compare targets and options of a script before you rent the hardware. Each combination is compiled as by
`torch-xla aot --abstract`, which computes no values and allocates no memory: memory, FLOPs, collectives and estimated
time per step, in one table sorted by rate.
"""

_EPILOG = """\
targets: {targets}

examples:
  {prog} --targets v5e:2x2,v6e:2x2,h100 train.py
  {prog} --targets v5e:4x4,v5p:2x2x1 --vary mesh=1x16x1,4x4x1 --vary remat=on,off --samples batch_size \\
      --price v5e=1.2 --price v5p=4.2 --html plan.html train.py --batch_size 64
  {prog} --targets v5e:4x4 --search --tokens 64*2048 train.py

Every combination runs the script with the varied options appended: `batch_size=64` as `--batch_size 64`, `remat=on` as
`--remat`, `remat=off` as nothing. A combination that fails or does not fit is a row with a reason. Results are stored;
the same command resumes an interrupted plan, and recomputes a combination when a source file of the script changes.

exit codes:
  0  a combination fits
  1  every combination failed
  2  the command line is wrong, or no target's compiler is installed
  3  no combination fits into the memory of its target
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    epilog = _EPILOG.format(prog=prog, targets=arguments.supported_targets())
    parser = command_line.make_parser(prog, _HELP, epilog)
    add, file = parser.add_argument, lambda text: Path(text).absolute()
    add("--targets", required=True, metavar="A,B,...", help="targets to compile for")
    add(
        "--vary", type=variations.parse_variation, action="append", default=[], metavar="NAME=A,B,...",
        help="values of an option of the script; may be repeated",
    )  # fmt: skip
    add("--search", action="store_true", help="propose values of the script's options --mesh and --remat")
    add("--limit", type=arguments.positive, default=24, metavar="N", help="combinations of a search (default: 24)")
    counts = parser.add_mutually_exclusive_group()
    for unit in ("tokens", "samples"):
        help_ = f"{unit} per step of all chips: a number, or options of the script such as batch_size*length"
        counts.add_argument(f"--{unit}", metavar="EXPR", help=help_)
    add(
        "--price", type=variations.parse_price, action="append", default=[], metavar="TARGET=PRICE",
        help="price of a chip for an hour, such as v5e=1.2; may be repeated",
    )  # fmt: skip
    add("--sort", choices=("per-second", "per-dollar", "memory"), help="default: per-dollar with prices, or per-second")
    add("--steps", type=arguments.positive, default=3, metavar="N", help="end the script at its N-th step (default: 3)")
    add("--jobs", type=arguments.positive, metavar="N", help="processes (default: as processors and memory allow)")
    add("--json", type=file, metavar="FILE", help="write the rows as JSON to this file")
    add("--html", type=file, metavar="FILE", help="write a page with a chart of memory against time to this file")
    add("--results", type=file, metavar="DIR", help="folder of results (default: plans in torch_xla's cache folder)")
    add("--fresh", action="store_true", help="ignore stored results")
    command_line.add_script(parser)
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Compile the combinations, print the table, and return the exit code."""
    parser = make_parser(prog)
    options = parser.parse_args(argv)
    targets = [name for name in options.targets.split(",") if name]
    if not options.module and not Path(options.script).exists():
        parser.error(f"the script {options.script} does not exist")
    known = hardware_specs.TPUS.keys() | hardware_specs.GPUS.keys()
    if not targets or any(name.partition(":")[0].lower() not in known for name in targets):
        parser.error(f"--targets {options.targets}: expected {arguments.supported_targets()}")
    grid = variations.make_grid(targets, options.vary)
    try:
        for combination in grid:
            _count(options, combination)
    except ValueError as error:
        parser.error(str(error))
    script = Script(options.script, tuple(options.args), options.module, options.steps)
    jobs = options.jobs or process_pool.default_process_count()
    start = time.monotonic()
    try:
        with Planner(script, ResultStore(options.results), jobs, options.fresh) as planner:
            if options.search:
                search.search(planner.compile, planner.results, grid, options.limit)
            else:
                planner.compile(grid)
    except OSError as error:
        print(f"{prog}: cannot store results: {error}; use --results DIR", file=sys.stderr)
        return 1
    data = _build_data(options, planner, argv) | {"seconds": time.monotonic() - start}
    return _write(data, options)


def _count(options: argparse.Namespace, combination: variations.Combination) -> float | None:
    """Return tokens or samples per step; without an expression, the option batch_size of the script, if it has one."""
    expression = options.tokens or options.samples
    given = combination.script_arguments(options.args)
    if expression is not None:
        return variations.evaluate_count(expression, given)
    try:
        return variations.evaluate_count("batch_size", given)
    except ValueError:
        return None


def _build_data(options: argparse.Namespace, planner: Planner, argv: Sequence[str]) -> dict[str, Any]:
    prices = dict(options.price)
    counts = {combination: _count(options, combination) for combination in planner.results}
    rows = [
        summary.make_row(combination, result, counts[combination], prices)
        for combination, result in planner.results.items()
    ]
    known = options.tokens or options.samples or any(count is not None for count in counts.values())
    key = (options.sort or ("per-dollar" if prices else "per-second")).replace("-", "_")
    return {
        "command": shlex.join(["torch-xla", "plan", *argv]),
        "version": __version__,
        "unit": "tokens" if options.tokens else "samples" if known else "steps",
        "sort": key,
        "reused": planner.reused,
        "rows": summary.sort_rows(rows, key),
    }


def _write(data: dict[str, Any], options: argparse.Namespace) -> int:
    if options.json is not None:
        options.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    if options.html is not None:
        options.html.write_text(page.render_html(data), encoding="utf-8")
    print(table.render_text(data))
    reused = f", {data['reused']} of them from stored results" if data["reused"] else ""
    print(f"{len(data['rows'])} combinations in {data['seconds']:.0f} s{reused}")
    return exit_code([row["result"] for row in data["rows"]])


def exit_code(results: Sequence[str]) -> int:
    """Return the exit code of the command for the results of the combinations."""
    codes = {summary.FITS: 0, summary.DOES_NOT_FIT: 3, summary.FAILED: 1, summary.NOT_COMPILED: 2}
    return next((code for result, code in codes.items() if result in results), 1)
