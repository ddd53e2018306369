"""Cross-compiles every lowering rule for TPU and GPU targets: ``python -m tests.tools.compile_for_targets v5e h100``.

The cases of the rule tests (tests/lowering) are checked on the CPU and also compiled for each target, with as
many cases in one program as in the tests. If a target's compiler rejects a program, the program is bisected until the
rejected cases are known. They are printed, and with ``--output`` written to the table
in docs/reference/op_coverage.md; the exit code is 1 if one of them is not in EXPECTED.

A compiler may abort its process. So each test file runs in a separate pytest process, which writes down the cases
that it is about to compile; after an abort the file runs again, with the program that aborted bisected.

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

#: (platform, op) -> why its compiler rejects it. Everything else compiles, and an entry that compiles fails.
EXPECTED: dict[tuple[str, str], str] = {
    ("tpu", "aten::view_copy.dtype"): "bitcasts to complex128: libtpu (of jax 0.10.2) fails",
}


def install() -> None:
    """In a pytest process started by ``main``, also compile the cases of the rule tests for the targets."""
    names = os.environ.get(_TARGETS)
    if not names:
        return
    from tests.support import rule_check
    from torch_xla._engine.aot import targets

    found = [targets.get_target(name) for name in names.split(",")]
    folder = Path(os.environ[_FOLDER])

    aborted = (
        [tuple(row) for row in json.loads(_ABORTED.of(folder).read_text())] if _ABORTED.of(folder).exists() else []
    )

    def also(cases: list[Any]) -> None:
        for target in found:
            note = functools.partial(_note, folder, target.platform)
            for some in without(aborted, target.platform, cases, note):
                compile_for(target, some, note, functools.partial(_begin, folder, target.platform))

    rule_check.also = also


class _File(str):
    """A file in the folder through which main and its pytest processes communicate."""

    def of(self, folder: Path) -> Path:
        return folder / self


#: The cases that a pytest process is about to compile; those that aborted a compiler: (platform, [cases]).
_BEGUN, _ABORTED = _File("begun"), _File("aborted")


def _begin(folder: Path, platform: str, cases: list[Any]) -> None:
    _BEGUN.of(folder).write_text(json.dumps([platform, [f"{case.name} {case.where}" for case in cases]]))


def without(aborted: list[Any], platform: str, cases: list[Any], note: Callable[[Any, str], None]) -> list[list[Any]]:
    """Return the cases in programs that are not known to abort. A single case that aborts is recorded."""
    known = [set(names) for place, names in aborted if place == platform]
    waiting, safe = [cases], []
    while waiting:
        some = waiting.pop()
        names = {f"{case.name} {case.where}" for case in some}
        if names not in known:
            safe.append(some)
        elif len(some) == 1:
            note(some[0], "the compiler aborts its process")
        else:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return safe


def compile_for(
    target: Any,
    cases: list[Any],
    note: Callable[[Any, str], None],
    begin: Callable[[list[Any]], None] = lambda cases: None,
) -> None:
    """Compile the rules of the cases in one program, or bisect it if it fails.

    ``begin(cases)`` is called before each, and ``note(case, error)`` for each case afterwards.
    """
    begin(cases)
    try:
        _compile(target, cases)
    except Exception as error:  # jax, XLA and the rules raise different types
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
    """Return the recorded cases."""
    return [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines()]


def table(found: list[dict[str, str]], names: list[str]) -> str:
    """Return markdown: the number of cases per platform, the operators that a compiler rejects, and its errors."""
    lines = [
        f"The cases of the rule tests, compiled for {' and '.join(names)} (`make test-targets`):",
        "",
        "| platform | operators | cases | rejected cases |",
        "| --- | --- | --- | --- |",
    ]
    for platform in dict.fromkeys(row["platform"] for row in found):
        mine = [row for row in found if row["platform"] == platform]
        rejected = sum(bool(row["error"]) for row in mine)
        lines.append(f"| {platform} | {len({row['op'] for row in mine})} | {len(mine)} | {rejected} |")
    errors: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in found:
        if row["error"]:
            errors.setdefault((row["op"], row["platform"]), []).append(row)
    if not errors:
        return "\n".join([*lines, "", "All cases compile."])
    lines += ["", "| operator | CPU | TPU | GPU | compiler error |", "| --- | --- | --- | --- | --- |"]
    for (op, platform), some in sorted(errors.items()):
        marks = ["rejected" if platform == other else "compiles" for other in ("tpu", "gpu")]
        why = re.sub(r"[|`]", "'", some[0]["error"])[:160]
        lines.append(
            f"| `{op}` | compiles | {marks[0]} | {marks[1]} | {len(some)} case{'s' * (len(some) > 1)}: {why} |"
        )
    return "\n".join(lines)


def section(document: Path) -> str:
    """Return the section of a document that this command writes; empty if there is none."""
    text = document.read_text() if document.exists() else ""
    return f"\n{_TITLE}\n\n{text[text.index(_START) : text.index(_END) + len(_END)]}\n" if _START in text else ""


_NOTHING_TO_RUN = 5  # pytest's exit code


def files(tests: list[str]) -> list[str]:
    """Return the test files of files and folders."""
    found = ([ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).glob("test_*.py")) for name in tests)
    return [str(path) for some in found for path in some]


def run(file: str, names: list[str], arguments: list[str]) -> tuple[list[dict[str, str]], int]:
    """Return the recorded cases of a test file, and pytest's exit code."""
    aborted: list[Any] = []
    while True:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            _ABORTED.of(place).write_text(json.dumps(aborted))
            variables = {_TARGETS: ",".join(names), _FOLDER: folder, "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, "-m", "pytest", "-q", file, *arguments]
            code = subprocess.call(command, env=os.environ | variables, cwd=ROOT)
            begun = json.loads(_BEGUN.of(place).read_text()) if _BEGUN.of(place).exists() else None
            if code >= 0 or begun is None or begun in aborted:
                return rows(place), code
            aborted.append(begun)
            print(
                f"{begun[0]}: signal {-code} killed the compiler in one of {len(begun[1])} cases: {begun[1][0]}",
                flush=True,
            )


def main() -> int:
    """Run the rule tests and print the cases that compilers reject."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", help="names of targets, as for torch_xla.aot")
    parser.add_argument("--output", type=Path, help="the document to write the table into")
    parser.add_argument("--tests", nargs="*", default=["tests/lowering"], help="test files and folders")
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
    rejected = {(row["platform"], row["op"]) for row in found if row["error"]}
    fixed = {(row["platform"], row["op"]) for row in found} & set(EXPECTED) - rejected
    for platform, op in sorted(rejected - set(EXPECTED)):
        print(f"rejected for {platform}, but not listed in EXPECTED: {op}", file=sys.stderr)
    for platform, op in sorted(fixed):
        print(f"listed in EXPECTED for {platform}, but compiles: {op}; remove it from EXPECTED", file=sys.stderr)
    return code or int(bool(fixed or rejected - set(EXPECTED)))


if __name__ == "__main__":
    sys.exit(main())
