"""Lists the checks for which torch.testing's default tolerances are too strict, with reasons. Data."""

from __future__ import annotations

from tests.ops.compare import Limits

ORDER = "sums of products in another order: the error is proportional to the largest terms"
STEEP = "a derivative that is steep near the edge of its domain, at a point that is rounded differently"
ILL = "ill-conditioned: the CPU's error against float64 is as large"
LOGARITHMS = "exp of sums of logarithms near 100, whose last bit is 1e-5 of the result; the CPU's error is as large"
LAST_BIT = "16-bit floats: rounded once at the end, not between the steps; one last bit of the largest value"
LOGITS_16 = "logits from 2 to 4 are rounded to 16 bits, half a last bit of which is 8e-3; the CPU rounds differently"
ROUNDED = "the CPU rounds to 16 bits between the steps, XLA once at the end"

#: (op, dtype or "*", kind or "*") -> (rtol, scale, reason). The absolute tolerance is ``scale`` times the largest value
#: of the result, or torch.testing's own atol if that is larger. The first matching entry is used.
TOLERANCES: dict[tuple[str, str, str], tuple[float, float, str]] = {
    ("addbmm", "bfloat16", "*"): (1.6e-2, 2e-2, ROUNDED),
    ("baddbmm", "bfloat16", "*"): (1.6e-2, 2e-2, ROUNDED),
    ("addr", "bfloat16", "*"): (1.6e-2, 2e-2, ROUNDED),
    ("addbmm", "*", "*"): (1e-5, 1e-6, ORDER),
    ("baddbmm", "*", "*"): (1e-5, 1e-6, ORDER),
    ("asin", "float32", "grad"): (1e-5, 0.0, STEEP),
    ("erfinv", "float32", "grad"): (2e-5, 0.0, STEEP),
    ("matrix_exp", "bfloat16", "*"): (1.6e-2, 2e-2, ROUNDED),
    ("linalg.matrix_exp", "bfloat16", "*"): (1.6e-2, 2e-2, ROUNDED),
    ("matrix_exp", "*", "*"): (1e-5, 2e-6, ILL),
    ("linalg.matrix_exp", "*", "*"): (1e-5, 2e-6, ILL),
    ("logcumsumexp", "float32", "grad"): (2e-3, 0.0, ILL),
    ("nn.functional.conv2d", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("nn.functional.conv2d", "complex64", "*"): (1e-5, 1e-6, ORDER),
    ("nn.functional.conv3d", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("nn.functional.conv3d", "complex64", "*"): (1e-5, 1e-6, ORDER),
    ("nn.functional.conv_transpose3d", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("nn.functional.conv_transpose3d", "complex64", "*"): (1e-5, 1e-6, ORDER),
    ("matmul", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("__rmatmul__", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("linalg.pinv (hermitian)", "*", "grad"): (2e-5, 1e-6, ILL),
    ("svd", "float32", "grad"): (2e-5, 1e-5, ILL),
    ("nn.functional.multi_head_attention_forward", "float32", "*"): (1e-5, 2e-5, ILL),
    ("nn.functional.scaled_dot_product_attention", "float32", "*"): (1e-5, 4e-6, ORDER),
    ("nn.functional.ctc_loss", "float32", "grad"): (1e-3, 5e-5, LOGARITHMS),
    ("pow", "complex64", "*"): (
        1e-5,
        1e-6,
        "exp of a product with a logarithm: the CPU's error against complex128 is as large",
    ),
    ("__rpow__", "complex64", "*"): (
        1e-5,
        1e-6,
        "exp of a product with a logarithm: the CPU's error against complex128 is as large",
    ),
    ("fft.hfft2", "*", "*"): (1e-5, 1e-6, ORDER),
    ("special.hermite_polynomial_he", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("stft", "float32", "grad"): (1e-5, 1e-6, ORDER),
    ("cdist", "float32", "*"): (1e-4, 1e-5, "computed by a matmul: squares that nearly cancel"),
    ("triangular_solve", "float32", "grad"): (1e-5, 1e-6, ORDER),
    ("nn.functional.grid_sample", "float32", "grad"): (1e-5, 2e-6, ORDER),
    ("grid_sampler_2d", "float32", "grad"): (1e-5, 2e-6, ORDER),
    ("grid_sampler_3d", "float32", "grad"): (1e-5, 5e-6, ORDER),
    ("linalg.householder_product", "float32", "grad"): (2e-5, 1e-5, ILL),
    ("linalg.lstsq", "float32", "grad"): (1e-5, 2e-6, ILL),
    ("linalg.lstsq (grad_oriented)", "float32", "grad"): (1e-5, 2e-6, ILL),
    ("linalg.svd", "float32", "grad"): (2e-5, 1e-5, ILL),
    ("linalg.eigh", "float32", "grad"): (2e-5, 1e-5, ILL),
    ("linalg.cond", "complex64", "forward"): (1e-5, 0.0, ILL),
    ("masked.normalize", "float32", "grad"): (2e-5, 1e-6, ILL),
    ("nn.functional.nll_loss", "bfloat16", "forward"): (4e-2, 8e-3, "the CPU accumulates in 16 bits"),
    ("linalg.tensorsolve", "float32", "*"): (1e-5, 1e-6, ORDER),
    ("ldexp", "float32", "grad"): (1e-5, 1e-6, ORDER),
    ("*", "bfloat16", "*"): (1.6e-2, 8e-3, LAST_BIT),
}


#: op, dtype, kind -> (atol, reason).
ABSOLUTE: dict[tuple[str, str, str], tuple[float, str]] = {
    ("nn.functional.layer_norm", "float32", "grad"): (2e-5, "a gradient that is 0, where the CPU is 1.2e-5 off"),
    ("native_layer_norm", "float32", "grad"): (6e-5, "a gradient that is 0, where the CPU is 4.9e-5 off"),
    ("cov", "float32", "grad"): (2e-4, "a gradient that is 0, where the CPU is 1.2e-4 off"),
    **{
        (f"nn.functional.linear_cross_entropy{form}", "bfloat16", "forward"): (8e-3, LOGITS_16)
        for form in ("", " (chunked)", " (chunked_none)")
    },
}


def limits_of(op: str, dtype: str, kind: str) -> Limits:
    """Return the tolerances of a check."""
    atol = ABSOLUTE.get((op, dtype, kind), (0.0, ""))[0]
    for key, (rtol, scale, _) in TOLERANCES.items():
        if all(wanted in ("*", name) for wanted, name in zip(key, (op, dtype, kind), strict=True)):
            return Limits(rtol, scale, atol)
    return Limits(atol=atol)
