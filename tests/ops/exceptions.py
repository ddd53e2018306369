"""What is known not to be as on the CPU, and why. Data; one that starts to pass fails the sweep."""

from __future__ import annotations

from tests.ops.outcome import Outcome

SPARSE = "sparse tensors do not exist on xla; .to_dense() first"
UNSAVED = "in evaluation the CPU returns no saved mean and variance, torch's meta function promises them"

#: (op, dtype or "*", kind or "*") -> reason.
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("sparse.sampled_addmm", "*", "*"): SPARSE,
    ("sparse.mm (reduce)", "*", "*"): SPARSE,
    ("to_sparse", "*", "*"): SPARSE,
    ("chalf", "*", "*"): "complex numbers of two 16-bit floats do not exist in XLA",
    ("native_batch_norm", "*", "forward"): UNSAVED,
    ("native_batch_norm", "*", "noncontiguous"): UNSAVED,
    ("_native_batch_norm_legit", "*", "forward"): UNSAVED,
    ("_native_batch_norm_legit", "*", "noncontiguous"): UNSAVED,
    ("matrix_exp", "bfloat16", "forward"): "the CPU computes it in 16 bits and gives nan",
    ("linalg.matrix_exp", "bfloat16", "forward"): "the CPU computes it in 16 bits and gives nan",
    ("native_layer_norm", "bfloat16", "forward"): "the CPU saves mean and rstd in 16 bits, other devices in float32",
}


def reason(outcome: Outcome) -> str | None:
    """Why this check may fail; None if it may not."""
    return next((why for key, why in EXCEPTIONS.items() if _fits(key, outcome)), None)


def outdated(outcomes: list[Outcome]) -> list[tuple[str, str, str]]:
    """The exceptions all of whose checks ran and were right: they must go."""
    found = []
    for key in EXCEPTIONS:
        ran = [o for o in outcomes if _fits(key, o) and o.status != "none"]
        if ran and not any(o.failed for o in ran):
            found.append(key)
    return found


def _fits(key: tuple[str, str, str], outcome: Outcome) -> bool:
    return all(wanted in (name, "*") for wanted, name in zip(key, outcome.key, strict=True))
