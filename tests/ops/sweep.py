"""Every operator of torch's database on xla against the CPU.

    python -m tests.ops.sweep [--ops add,mm] [--dtypes float32,int64] [--kinds forward,grad] [--samples 0] [--jobs 2]

Ends with 1 if something failed that is not listed in exceptions.py, or if something listed there is right.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tests.ops import database, exceptions, pool, report
from tests.ops.kinds import KINDS
from tests.ops.outcome import Outcome
from tests.tools import compile_for_targets


def jobs(names: list[str], dtypes: list[torch.dtype], kinds: list[str], samples: int) -> list[dict[str, Any]]:
    """The checks: forward in every dtype; the other kinds in the first dtype that the op has."""
    found = []
    for name in names:
        info = database.ops()[name]
        supported = [d for d in dtypes if d in info.supported_dtypes("cpu")]
        for kind in kinds:
            for dtype in supported if kind == "forward" else supported[:1]:
                text = str(dtype).removeprefix("torch.")
                found.append({"op": name, "dtype": text, "kind": kind, "samples": samples})
    return found


def run(todo: list[dict[str, Any]], workers: int, seconds: float, path: Path | None = None) -> list[Outcome]:
    """The outcomes, in the order of the jobs; a line of JSON each is added to the file as they come."""
    done: list[Outcome] = []
    failures = 0
    with tqdm(total=len(todo), smoothing=0.05, mininterval=1.0, unit="check") as bar:
        for outcome in pool.run(todo, workers, seconds):
            done.append(outcome)
            failures += outcome.failed
            bar.set_postfix_str(f"{failures} failed, {outcome.op}", refresh=False)
            bar.update()
            if path is not None:
                with path.open("a") as file:
                    print(json.dumps(outcome.as_dict()), file=file)
    order = {(job["op"], job["dtype"], job["kind"]): number for number, job in enumerate(todo)}
    return sorted(done, key=lambda o: order[o.key])


def verdict(outcomes: list[Outcome], whole: bool) -> list[str]:
    """What makes the sweep fail, a line each. ``whole``: all samples ran."""
    unlisted = [o for o in outcomes if o.failed and exceptions.reason(o) is None]
    lines = [f"{o.op} {o.dtype} {o.kind}: {o.status}: {o.message}" for o in unlisted]
    return lines + [f"{key}: listed in exceptions.py, and right" for key in exceptions.outdated(outcomes, whole)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", type=lambda text: text.split(","), default=[], help="default: all of them")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=[str(d)[6:] for d in database.DTYPES])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--samples", type=int, default=6, help="of each op, dtype and kind; 0: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--seconds", type=float, help="time limit of one check; default: 120, or 1200 of all samples")
    parser.add_argument("--output", type=Path, help="write the coverage as markdown")
    parser.add_argument("--refusals", type=Path, help="write what is refused into this document")
    parser.add_argument("--json", type=Path, help="write each outcome as a line of JSON, as it comes")
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    dtypes = [getattr(torch, name) for name in args.dtypes]
    todo = jobs(args.ops or list(database.ops()), dtypes, args.kinds, args.samples)
    if args.json:
        args.json.write_text("")
    seconds = args.seconds or (120 if args.samples else 1200)
    outcomes = run(todo, args.jobs, seconds, args.json)
    if args.output:
        kept = compile_for_targets.section(args.output)  # of another command
        args.output.write_text(report.markdown(outcomes, args.samples) + kept)
    if args.refusals:
        args.refusals.write_text(report.replaced(args.refusals.read_text(), report.refusals(outcomes)))
    lines = verdict(outcomes, whole=not args.samples)
    print("\n".join([*lines, f"{len(outcomes)} checks, {len(lines)} failures"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
