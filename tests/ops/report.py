"""docs/op_coverage.md from the outcomes of a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.ops import exceptions, invalid_inputs
from tests.ops.kinds import KINDS
from tests.ops.outcome import STATUSES, Outcome

#: Kinds of calls that torch refuses, or answers at the edge of what it allows; their document is a part of the whole.
REFUSALS = ("errors", *invalid_inputs.KINDS)
_WHAT = {
    "errors": "inputs that the operator must refuse, by its own list",
    "wrong out": "`out=` of seven other dtypes, of another size, without elements, expanded, on another device",
    "overlap": "a result written over a part of an operand, by `out=` and in place; in place into an expanded tensor",
    "empty": "reductions and scans over dimensions without elements",
}
START, END = "<!-- refusals -->", "<!-- end of refusals -->"

HEADER = """# Operator coverage

Every operator of torch's own test database (`op_db`) on xla, held against eager torch on the CPU: structure, shapes,
dtypes and values. Written by `make test-ops`; do not edit. It is of {samples}.

"""

EXPLANATION = """
**How** an operator runs: *native*: by lowering rules; *decomposed*: by torch's decompositions, in part at least;
*CPU*: some part of it ran on the CPU, of the samples of any dtype. Per dtype and kind: `ok` if all samples are right,
else right/all. *forward* for every dtype; the other kinds for the first one that the operator has of them.

"""


def markdown(outcomes: list[Outcome], samples: int) -> str:
    """The whole document. ``samples``: of each check; 0: all."""
    by_op: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_op[outcome.op].append(outcome)
    which = f"the first {samples} samples of each check" if samples else 'all samples (`SWEEP_ARGS="--samples 0"`)'
    lines = [HEADER.format(samples=which), *_totals(outcomes, by_op), EXPLANATION, *_table(by_op)]
    return "".join(lines) + _failures(outcomes)


def how(outcomes: Iterable[Outcome]) -> str:
    """native, decomposed or CPU."""
    ran = [o for o in outcomes if o.kind not in REFUSALS]
    if any(o.cpu for o in ran):
        return "CPU"
    return "decomposed" if any(o.decomposed for o in ran) else "native"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part} of {whole})" if whole else "not run"


def _right(outcomes: Iterable[Outcome]) -> str:
    ran = [o for o in outcomes if o.status != "none"]
    return _share(sum(o.status == "right" for o in ran), len(ran))


def _totals(outcomes: list[Outcome], by_op: dict[str, list[Outcome]]) -> list[str]:
    forward = [o for o in outcomes if o.kind == "forward"]
    rows = [("operators fully right in float32, forward", _right(o for o in forward if o.dtype == "float32"))]
    rows.append(("operators fully right in gradients", _right(o for o in outcomes if o.kind == "grad")))
    samples = sum(max(o.samples, o.failed) for o in forward)
    rows.append(("samples right, forward, all dtypes", _share(sum(o.right for o in forward), samples)))
    rows += [(f"operators fully right, {kind}", _right(o for o in outcomes if o.kind == kind)) for kind in KINDS[2:]]
    on_device = sum(how(found) != "CPU" for found in by_op.values())
    rows.append(("operators that never touch the CPU", _share(on_device, len(by_op))))
    rows += [(f"checks that ended in a {s}", str(sum(o.status == s for o in outcomes))) for s in ("crash", "timeout")]
    return ["| | |\n| --- | --- |\n", *(f"| {name} | {value} |\n" for name, value in rows)]


def _table(by_op: dict[str, list[Outcome]]) -> list[str]:
    dtypes = list(dict.fromkeys(o.dtype for found in by_op.values() for o in found if o.kind == "forward"))
    kinds = [k for k in KINDS[1:] if any(o.kind == k for found in by_op.values() for o in found)]
    columns = ["operator", "how", *dtypes, *kinds]
    lines = [f"| {' | '.join(columns)} |\n", f"|{' --- |' * len(columns)}\n"]
    for op in sorted(by_op):
        cells = [_cell([o for o in by_op[op] if o.kind == "forward" and o.dtype == d]) for d in dtypes]
        cells += [_cell([o for o in by_op[op] if o.kind == k]) for k in kinds]
        lines.append(f"| {op} | {how(by_op[op])} | {' | '.join(cells)} |\n")
    return lines


def _cell(outcomes: list[Outcome]) -> str:
    ran = [o for o in outcomes if o.status != "none"]
    if not ran:
        return ""
    worst = max(ran, key=lambda o: STATUSES.index(o.status))
    if worst.status == "right":
        return "ok"
    return worst.status if worst.status in ("crash", "timeout") else f"{worst.right}/{worst.samples} {worst.status}"


def _failures(outcomes: list[Outcome]) -> str:
    failed = sorted((o for o in outcomes if o.failed), key=lambda o: o.key)
    lines = ["\n## What is not as on the CPU\n\n", "| operator | dtype | kind | why |\n| --- | --- | --- | --- |\n"]
    for o in failed:
        why = exceptions.reason(o) or f"{o.status}: {o.message}"
        lines.append(f"| {o.op} | {o.dtype} | {o.kind} | {_escape(why)} |\n")
    ran = [o for o in outcomes if o.cpu]
    lines.append("\n## What runs on the CPU\n\n| operator | parts | why |\n| --- | --- | --- |\n")
    parts = {op: sorted({c for o in ran if o.op == op for c in o.cpu}) for op in sorted({o.op for o in ran})}
    return "".join(lines) + "".join(
        f"| {op} | {', '.join(names)} | {why_on_cpu(names)} |\n" for op, names in parts.items()
    )


def why_on_cpu(names: list[str]) -> str:
    """The reasons of what runs on the CPU, each once."""
    found = dict.fromkeys(exceptions.ON_CPU.get(name.split("::")[1].split(".")[0], "") for name in names)
    return "; ".join(filter(None, found))


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:200]


def refusals(outcomes: list[Outcome]) -> str:
    """The part of the document on calls that the CPU refuses, or answers at the edge of what it allows."""
    rows = []
    for kind in REFUSALS:
        ran = [o for o in outcomes if o.kind == kind and o.status != "none"]
        calls = _share(sum(o.right for o in ran), sum(o.samples for o in ran))
        rows.append(f"| {kind} | {_WHAT[kind]} | {calls} | {_right(ran)} |\n")
    head = "| kind | calls | as on the CPU | operators fully right |\n| --- | --- | --- | --- |\n"
    failed = sorted((o for o in outcomes if o.kind in REFUSALS and o.failed), key=lambda o: o.key)
    lines = [
        f"| {o.op} | {o.kind} | {o.right}/{o.samples} | {_escape(exceptions.reason(o) or o.message)} |\n"
        for o in failed
    ]
    what = "\nNot as on the CPU:\n\n| operator | kind | right | why |\n| --- | --- | --- | --- |\n"
    said = "Each call is refused by an exception of the CPU's type, or gives its values:\n\n"
    return f"\n## What is refused\n\n{START}\n{said}{head}{''.join(rows)}{what}{''.join(lines)}{END}\n"


def replaced(document: str, part: str) -> str:
    """The document with this part in place of the one that it has, or at its end."""
    if START not in document:
        return document + part
    return document[: document.index("\n## What is refused")] + part + document[document.index(END) + len(END) + 1 :]
