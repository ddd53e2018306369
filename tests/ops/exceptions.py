"""Known differences from the CPU, with their reasons. Data; an entry that starts to pass fails the sweep."""

from __future__ import annotations

from tests.ops.outcome import Outcome

SPARSE = "sparse tensors do not exist on xla; .to_dense() first"
SAVED_16 = "the CPU saves mean and rstd in 16 bits, other devices in float32"
CROSSES = "torch decomposes it into a matmul and a copy to out, which may be on another device"
BY_OUT = "the CPU accumulates in this dtype for dtype=, but not for out="
NAN_16 = "the CPU computes it in 16 bits and returns nan"
COORDINATES_16 = "the CPU rounds the coordinates to 16 bits; xla keeps them in float32"

SIZES = "the shape of the result depends on values"
CHECKED = (
    "its lengths or its range are checked before anything is computed, as on the CPU: a compiled program cannot raise"
)
BY_VALUE = "raises depending on the value: a complex number for a real tensor, a float for an integer"
NO_FUNCTION = "jax does not implement it for all arguments"

#: CPU fallbacks: name of torch's operator without overload -> reason.
ON_CPU: dict[str, str] = {
    **dict.fromkeys(("nonzero", "masked_select", "index", "bincount", "repeat_interleave"), SIZES),
    **dict.fromkeys(("_unique", "_unique2", "unique_consecutive"), SIZES),
    **dict.fromkeys(("segment_reduce", "_segment_reduce_backward", "histogram"), CHECKED),
    **dict.fromkeys(("_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"), CHECKED),
    **dict.fromkeys(
        ("linalg_eig", "_linalg_eigvals", "linalg_eigvals"), "XLA computes eigenvalues of symmetric matrices only"
    ),
    **dict.fromkeys(("linalg_ldl_factor_ex", "linalg_ldl_solve"), "jax does not implement this decomposition"),
    "linalg_lstsq": "the shape of the residuals of the drivers gelsd and gelss depends on the rank, a value",
    **dict.fromkeys(("special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0"), NO_FUNCTION),
    **dict.fromkeys(("special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1"), NO_FUNCTION),
    **dict.fromkeys(("special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1"), NO_FUNCTION),
    **dict.fromkeys(("masked_fill", "masked_fill_", "index_fill", "index_fill_", "index_put", "index_put_"), BY_VALUE),
    "_to_sparse": SPARSE,
}

#: (op, dtype or "*", kind or "*") -> reason.
EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("sparse.sampled_addmm", "*", "*"): SPARSE,
    ("sparse.mm (reduce)", "*", "*"): SPARSE,
    ("to_sparse", "*", "*"): SPARSE,
    ("chalf", "*", "*"): "complex numbers of two 16-bit floats do not exist in XLA",
    ("native_batch_norm", "bfloat16", "forward"): SAVED_16,
    ("_native_batch_norm_legit", "bfloat16", "forward"): SAVED_16,
    ("_batch_norm_with_update", "bfloat16", "forward"): SAVED_16,
    ("native_layer_norm", "bfloat16", "forward"): SAVED_16,
    ("matrix_exp", "bfloat16", "forward"): NAN_16,
    ("linalg.matrix_exp", "bfloat16", "forward"): NAN_16,
    ("nn.functional.grid_sample", "bfloat16", "forward"): COORDINATES_16,
    ("grid_sampler_2d", "bfloat16", "forward"): COORDINATES_16,
    ("grid_sampler_3d", "bfloat16", "forward"): COORDINATES_16,
    ("matmul", "*", "wrong out"): CROSSES,
    ("kron", "*", "wrong out"): CROSSES + "; an out of another dtype raises, where the CPU converts",
    ("nansum", "*", "wrong out"): BY_OUT,
    ("nanmean", "*", "wrong out"): BY_OUT,
    ("std", "*", "wrong out"): "complex out: the CPU computes it over all dims, and raises over some of them",
    ("var", "*", "wrong out"): "complex out: the CPU computes it over all dims, and raises over some of them",
    (
        "normal",
        "*",
        "wrong out",
    ): "draws cannot be written to complex numbers; the CPU draws their real and imaginary parts separately",
    ("gradient", "*", "errors"): "a sample has a tensor on the device 'meta', which the check cannot move to xla",
}

#: The same, for samples that only a full sweep (--samples 0) runs.
LATE: dict[tuple[str, str, str], str] = {
    ("nn.functional.multi_head_attention_forward", "bfloat16", "forward"): (
        "a softmax of logits in the hundreds, whose ulp is 2 in 16 bits: the CPU's error against float64 is as large"
    ),
    ("histc", "bfloat16", "forward"): "the CPU computes bins in 16 bits; xla computes them in float64",
}


def reason(outcome: Outcome) -> str | None:
    """Return why this check may fail, or None if it may not."""
    return next((why for key, why in (EXCEPTIONS | LATE).items() if _fits(key, outcome)), None)


def outdated(outcomes: list[Outcome], whole: bool) -> list[tuple[str, str, str]]:
    """Return the exceptions of which all checks ran and passed: remove them. ``whole``: all samples ran."""
    found = []
    for key in EXCEPTIONS | (LATE if whole else {}):
        ran = [o for o in outcomes if _fits(key, o) and o.status != "none"]
        if ran and not any(o.failed for o in ran):
            found.append(key)
    return found


def _fits(key: tuple[str, str, str], outcome: Outcome) -> bool:
    return all(wanted in (name, "*") for wanted, name in zip(key, outcome.key, strict=True))
