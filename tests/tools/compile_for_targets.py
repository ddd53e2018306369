"""``python -m tests.tools.compile_for_targets v5e h100``: every rule, compiled for accelerators that are not here.

The cases of the rule tests (tests/lowering), as they are checked on the CPU, are compiled for each target as well, as
many in one program as the tests have them. Where a target's compiler refuses a program, its cases are compiled in ever
smaller ones, until it is known which it refuses. What it refuses is printed, and with ``--output`` written to the table
in docs/op_coverage.md; the exit code is 1 if one of them is not in EXPECTED.

A compiler may end its process. So each file of tests has a pytest of its own, which says what it is about to compile;
it is run again without what it died of, in ever smaller programs until that is known.

Arguments after -- are pytest's.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_TARGETS, _FOLDER = "TORCH_XLA_TEST_TARGETS", "TORCH_XLA_TEST_TARGETS_FOLDER"
_TITLE = "## Compiled for accelerators"
_START, _END = "<!-- targets -->", "<!-- end of targets -->"

#: (platform, op): why its compiler refuses it. Everything else compiles, and one that is not refused any more fails.
EXPECTED: dict[tuple[str, str], str] = {
    ("tpu", "aten::view_copy.dtype"): "bits of anything as complex128: libtpu (of jax 0.10.2) fails in such bitcasts",
}


def install() -> None:
    """In a pytest that ``main`` has started: compiles what the rule tests check for the targets, too."""
    names = os.environ.get(_TARGETS)
    if not names:
        return
    from tests.support import rule_check
    from torch_xla._engine.aot import targets

    found = [targets.get_target(name) for name in names.split(",")]
    folder = Path(os.environ[_FOLDER])

    deadly = [tuple(row) for row in json.loads(_DEADLY.of(folder).read_text())] if _DEADLY.of(folder).exists() else []

    def also(cases: list[Any]) -> None:
        for target in found:
            note = functools.partial(_note, folder, target.platform)
            for some in without(deadly, target.platform, cases, note):
                compile_for(target, some, note, functools.partial(_begin, folder, target.platform))

    rule_check.also = also


class _File(str):
    """A file of the folder by which main and its pytests speak."""

    def of(self, folder: Path) -> Path:
        return folder / self


#: What a pytest is about to compile; what compilers have died of: (platform, [cases]).
_BEGUN, _DEADLY = _File("begun"), _File("deadly")


def _begin(folder: Path, platform: str, cases: list[Any]) -> None:
    _BEGUN.of(folder).write_text(json.dumps([platform, [f"{case.name} {case.where}" for case in cases]]))


def without(deadly: list[Any], platform: str, cases: list[Any], note: Callable[[Any, str], None]) -> list[list[Any]]:
    """The cases in programs that are not known to end the process. A case that does so alone is noted."""
    known = [set(names) for place, names in deadly if place == platform]
    waiting, safe = [cases], []
    while waiting:
        some = waiting.pop()
        names = {f"{case.name} {case.where}" for case in some}
        if names not in known:
            safe.append(some)
        elif len(some) == 1:
            note(some[0], "the compiler ends its process")
        else:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return safe


def compile_for(
    target: Any,
    cases: list[Any],
    note: Callable[[Any, str], None],
    begin: Callable[[list[Any]], None] = lambda cases: None,
) -> None:
    """Compiles the rules of the cases in one program, or in several.

    ``begin(cases)`` is called before each, and ``note(case, error)`` for each case afterwards.
    """
    begin(cases)
    try:
        _compile(target, cases)
    except Exception as error:  # jax, XLA and the rules each have their own
        if len(cases) == 1:
            note(cases[0], str(error).strip().split("\n")[0][:300] or type(error).__name__)
            return
        middle = len(cases) // 2
        compile_for(target, cases[:middle], note, begin)
        compile_for(target, cases[middle:], note, begin)
    else:
        for case in cases:
            note(case, "")


def _compile(target: Any, cases: list[Any]) -> None:
    import jax
    from jax.sharding import SingleDeviceSharding

    from torch_xla._engine.base import dtypes
    from torch_xla._engine.compilation import graph_function
    from torch_xla._engine.lowering.rules import matmul

    stored = dtypes.storage_dtype_map(target.platform)

    def struct(leaf: jax.Array, case: Any) -> jax.ShapeDtypeStruct:
        with graph_function.exact_dtype_scope(case.name) or contextlib.nullcontext():
            return jax.ShapeDtypeStruct(leaf.shape, dtypes.storage_numpy_dtype(dtypes.torch_dtype(leaf.dtype)))

    def apply(case: Any, leaves: Any) -> Any:
        with graph_function.exact_dtype_scope(case.name) or contextlib.nullcontext():
            return case.apply(leaves)

    place = SingleDeviceSharding(target.devices[0])
    with jax.enable_x64(True), dtypes.override_storage_dtypes(stored), matmul.precision_scope(matmul.EXACT):
        structs = [[struct(leaf, case) for leaf in case.leaves] for case in cases]
        together = lambda leaves: [apply(case, mine) for case, mine in zip(cases, leaves, strict=True)]
        jax.jit(together, in_shardings=place, out_shardings=place).lower(structs).compile()


def _note(folder: Path, platform: str, case: Any, error: str) -> None:
    row = {"platform": platform, "op": case.name, "error": error, "where": case.where}
    with open(folder / f"{os.getpid()}.json", "a") as file:
        file.write(json.dumps(row) + "\n")


def rows(folder: Path) -> list[dict[str, str]]:
    """What was noted."""
    return [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines()]


def table(found: list[dict[str, str]], names: list[str]) -> str:
    """Markdown: how many cases compile for each platform, and which operators a compiler refuses, and why."""
    lines = [
        f"The cases of the rule tests, compiled for {' and '.join(names)} (`make test-targets`):",
        "",
        "| platform | operators | cases | cases refused |",
        "| --- | --- | --- | --- |",
    ]
    for platform in dict.fromkeys(row["platform"] for row in found):
        mine = [row for row in found if row["platform"] == platform]
        refused = sum(bool(row["error"]) for row in mine)
        lines.append(f"| {platform} | {len({row['op'] for row in mine})} | {len(mine)} | {refused} |")
    refusals: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in found:
        if row["error"]:
            refusals.setdefault((row["op"], row["platform"]), []).append(row)
    if not refusals:
        return "\n".join([*lines, "", "None is refused."])
    lines += ["", "| operator | CPU | TPU | GPU | what the compiler says |", "| --- | --- | --- | --- | --- |"]
    for (op, platform), some in sorted(refusals.items()):
        marks = ["refused" if platform == other else "compiles" for other in ("tpu", "gpu")]
        why = re.sub(r"[|`]", "'", some[0]["error"])[:160]
        lines.append(f"| `{op}` | compiles | {marks[0]} | {marks[1]} | {len(some)} cases: {why} |")
    return "\n".join(lines)


def section(document: Path) -> str:
    """The part of a document that this command writes; empty where there is none."""
    text = document.read_text() if document.exists() else ""
    return f"\n{_TITLE}\n\n{text[text.index(_START) : text.index(_END) + len(_END)]}\n" if _START in text else ""


_NOTHING_TO_RUN = 5  # pytest's exit code


def files(tests: list[str]) -> list[str]:
    """The files of tests, of folders too."""
    found = ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).glob("test_*.py")) for name in tests)
    return [str(path) for some in found for path in some]


def run(file: str, names: list[str], arguments: list[str]) -> tuple[list[dict[str, str]], int]:
    """What was noted of a file of tests, and pytest's exit code."""
    deadly: list[Any] = []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            _DEADLY.of(place).write_text(json.dumps(deadly))
            variables = {_TARGETS: ",".join(names), _FOLDER: folder, "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, "-m", "pytest", "-q", file, *arguments]
            code = subprocess.call(command, env=os.environ | variables, cwd=ROOT)
            begun = json.loads(_BEGUN.of(place).read_text()) if _BEGUN.of(place).exists() else None
            if code >= 0 or begun is None or begun in deadly:
                return rows(place), code
            deadly.append(begun)
            print(
                f"{begun[0]}: the compiler has ended its process with {-code}, at {len(begun[1])} cases: {begun[1][0]}",
                flush=True,
            )


def main() -> int:
    """Runs the rule tests, and says what was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", help="as torch_xla.aot takes them")
    parser.add_argument("--output", type=Path, help="the document whose table to write")
    parser.add_argument("--tests", nargs="*", default=["tests/lowering"], help="which tests")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, rest = parser.parse_known_args(sys.argv[1:cut])
    rest += sys.argv[cut + 1 :]
    found, code = [], 0
    for file in files(options.tests):
        some, status = run(file, options.targets, rest)
        found += some
        code = code or (0 if status == _NOTHING_TO_RUN else status)
    text = table(found, options.targets)
    print(text)
    if options.output is not None:
        document = options.output.read_text()
        start, end = document.index(_START) + len(_START), document.index(_END)
        options.output.write_text(f"{document[:start]}\n{text}\n{document[end:]}")
    refused = {(row["platform"], row["op"]) for row in found if row["error"]}
    mended = {(row["platform"], row["op"]) for row in found} & set(EXPECTED) - refused
    for platform, op in sorted(refused - set(EXPECTED)):
        print(f"refused for {platform}, and not known to be: {op}", file=sys.stderr)
    for platform, op in sorted(mended):
        print(f"known to be refused for {platform}, and no longer: {op}; take it out of EXPECTED", file=sys.stderr)
    return code or int(bool(mended or refused - set(EXPECTED)))


if __name__ == "__main__":
    sys.exit(main())
