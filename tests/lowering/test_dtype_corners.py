"""Corner values of every dtype in every elementwise rule and execution mode: results of the CPU, and termination.

The cases run in subprocesses with a limit of CPU time, because an endless loop in a program cannot be interrupted.
"""

from __future__ import annotations

import json

import jax
import pytest

from tests.programs.dtype_corner_programs import SUBNORMAL, names
from tests.support.helpers import run_script

NAMES = names()

DIVISORS = """
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    import torch, torch_xla
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        values = {limits.min, limits.min + 1, 0, 1, 2, 3, 4, 6, limits.max - 1, limits.max}
        values = sorted(values | ({-6, -4, -3, -1} if limits.min else set()))
        a, b = torch.cartesian_prod(*[torch.tensor(values, dtype=dtype)] * 2).unbind(1)
        wanted = torch.gcd(a, b)
        found = torch.gcd(a.to("xla"), b.to("xla")), torch.lcm(a.to("xla"), b.to("xla"))
        torch_xla.sync()
        assert torch.equal(found[0].cpu(), wanted), dtype
        defined = ~((a == limits.min) & (wanted == -1))  # for min / -1, lcm on the CPU crashes
        assert torch.equal(found[1].cpu()[defined], torch.lcm(a[defined], b[defined])), dtype
    print("done")
"""


def test_gcd_and_lcm_of_all_corners_of_integers() -> None:
    """gcd and lcm of corner integers; ``jnp.gcd`` of the smallest integer does not terminate."""
    done = run_script(DIVISORS, check=False, TORCH_XLA_COMPILE_POLICY="compile")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (done.returncode, done.stderr)


LARGEST = """
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    import torch, torch_xla
    for dtype in (torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        a = torch.tensor([largest, largest, 1e10, 1e10, 9e5, 9e5, 1e5, 2.1e4, 1e4, 1e3, 2.0], dtype=dtype)
        x = torch.tensor([largest, 2, 1e10, 1e10 - 2.0**17, 9e5, 9.01e5, 99e3, 2e4, 1e4, 1.1e3, 3.0], dtype=dtype)
        rows = [(torch.igamma, a, x), (torch.igammac, a, x), (torch.special.zeta, torch.full_like(a, 3.0), -a)]
        found = [of(first.to("xla"), second.to("xla")) for of, first, second in rows]
        torch_xla.sync()
        for (of, first, second), value in zip(rows, found):
            wanted = of(first.double(), second.double())  # the CPU's float32 at 1e10 is good to 5e-3
            torch.testing.assert_close(value.cpu().double(), wanted, rtol=1e-5, atol=0)
        numbers = torch.tensor([-largest, -1.0, 3.0, largest, float("inf"), float("nan")], dtype=dtype)
        of = torch.special.chebyshev_polynomial_t
        assert torch.equal(of(2.0, numbers.to("xla")).cpu(), of(2.0, numbers)), dtype
    largest = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)  # the CPU returns nan
    assert torch.igamma(largest.to("xla"), (largest / 2).to("xla")).item() == 0
    assert torch.igammac(largest.to("xla"), (largest / 2).to("xla")).item() == 1
    print("done")
"""


def test_gamma_zeta_and_polynomials_of_the_largest_numbers() -> None:
    """Series with loops terminate for the largest numbers, for which x + 1 == x."""
    done = run_script(LARGEST, check=False, TORCH_XLA_COMPILE_POLICY="compile")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (done.returncode, done.stderr)


#: Known differences of compiled programs from both the scalar and the vectorized code of the CPU, by rule and dtype,
#: with reasons. An entry that agrees again fails the test.
_INTEGERS = {}
if jax.__version_info__ < (0, 12):
    _INTEGERS["aten::lgamma"] = "4.8e-7 where the CPU gives 0, at 1: XLA's sum of terms around 1 is rounded in float32"
_LDEXP = "0 times 2**254 is 0, where the CPU multiplies by infinity"
_MAXIMUM = "of two zeros XLA's maximum and minimum take the sign in order, -0 before 0"
_FUSED = "the CPU rounds a product and a sum together (fma), where XLA's product alone overflows"
_FLOATS = {
    "aten::ldexp.Tensor": "exact, where the CPU multiplies 0 by infinity or infinity by 0",
    "aten::relu": f"0 where the CPU gives -0, at -0: {_MAXIMUM}",
    "aten::relu6": f"0 where the CPU gives -0, at -0: {_MAXIMUM}",
    "aten::special_i1": "-0 where the CPU gives 0, at -0: an odd function",
    "aten::special_i1e": "-0 where the CPU gives 0, at -0: an odd function",
}
#: For all dtypes but float16, whose smallest normal number is not extreme in float32, in which it is computed.
_EXTREMES = _FLOATS | {
    "aten::addcdiv": "half of the least normal number, a quotient on the way, is flushed",
    "aten::addcmul": f"half of the least normal number, a product on the way, is flushed; {_FUSED}",
    "aten::asin": "XLA computes 2 * atan2(x, 1 + sqrt(1 - x**2)) and flushes half of the least normal number",
    "aten::igamma": "0 where the CPU gives nan, at (the largest number, 3)",
    "aten::igammac": "at the least normal a the CPU leaves Euler's constant out, as its lgamma(1 + a) is 0; as igamma",
    "aten::lerp.Tensor": f"half of the least normal number, a product on the way, is flushed; {_FUSED}",
    "aten::logaddexp2": "0 where the CPU gives -1e-8 (of float64 -5e-17), at (-1, -1)",
}
KNOWN: dict[str, dict[str, str]] = {
    "bool": _INTEGERS,
    "int8": _INTEGERS | {
        "aten::special_zeta": "2**-126 is flushed to 0, at (126, 2)",
        "aten::special_zeta.other_scalar": "as aten::special_zeta",
        "aten::ldexp.Tensor": "XLA flushes a subnormal value",
        "aten::exp2": "XLA flushes a subnormal value",
    },
    "uint8": _INTEGERS | {"aten::ldexp.Tensor": _LDEXP},
    "int32": _INTEGERS | {"aten::ldexp.Tensor": _LDEXP},
    "int64": _INTEGERS | {
        "aten::ldexp.Tensor": _LDEXP,
        "aten::polygamma": "-0 where the CPU gives the least normal number, at 2**63",
        "aten::special_zeta": "XLA flushes a subnormal value",
    },
    "int16": _INTEGERS | {
        "aten::ldexp.Tensor": _LDEXP,
        "aten::special_laguerre_polynomial_l.x_scalar": "2e-3 after 32,766 steps of float32",
    },
    "float16": _INTEGERS | _FLOATS | {
        "aten::sigmoid_backward": "the CPU rounds each product to float16, where grad * (1 - y) overflows",
    },
    "bfloat16": _INTEGERS | _EXTREMES | {
        "aten::erf": "the CPU's erf of 16-bit floats is 0 below 1e-7",
        "aten::fmax": "the first of two zeros, where the CPU gives the second, but of other floats the first",
        "aten::fmin": "the first of two zeros, where the CPU gives the second, but of other floats the first",
        "aten::tanh_backward": "a float32 just below the least normal number, which rounds up to it, is flushed",
    },
    "float32": _INTEGERS | _EXTREMES | {
        "aten::special_modified_bessel_i1": "-0 where the CPU gives 0, at -0: an odd function",
    },
    "float64": _EXTREMES | {
        "aten::lgamma": "8.9e-16 where the CPU gives 0, at 2: XLA's sum of terms is rounded",
        "aten::special_modified_bessel_i1": "-0 where the CPU gives 0, at -0: an odd function",
    },
}  # fmt: skip
#: Rules that differ only if an operand or the CPU's value is subnormal, which XLA's CPU backend flushes to 0.
FLUSHED: dict[str, str] = {
    "float16": """
        special_xlog1py xlogy.Scalar_Other xlogy.Tensor
    """,
    "bfloat16": """
        add.Tensor angle asinh atan2 atanh ceil clamp_max clamp_max.Tensor clamp_min.Tensor deg2rad div.Scalar
        div.Tensor eq.Tensor erfinv floor floor_divide fmod.Tensor frac frexp.Tensor ge.Tensor gt.Tensor
        hardsigmoid_backward hardswish hardswish_backward hardtanh heaviside hypot le.Tensor leaky_relu
        lerp.Scalar log log10 log1p log2 logaddexp logit logit_backward lt.Tensor maximum minimum mish
        mish_backward mul.Scalar mul.Tensor mvlgamma ne.Tensor nextafter polygamma pow.Tensor_Tensor rad2deg
        reciprocal remainder.Scalar remainder.Tensor rsqrt rsub.Tensor selu sgn sigmoid_backward sign silu
        silu_backward sinh special_entr special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar
        sqrt sub.Tensor tan xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor
    """,
    "float32": """
        add.Tensor angle asinh atan2 atanh ceil clamp_max clamp_max.Tensor clamp_min.Tensor deg2rad div.Scalar
        div.Tensor eq.Tensor erf erfinv floor floor_divide fmax fmin fmod.Tensor frac frexp.Tensor ge.Tensor
        gelu gelu_backward gt.Tensor hardsigmoid_backward hardswish hardswish_backward hardtanh heaviside hypot
        le.Tensor leaky_relu lerp.Scalar log log10 log1p log2 logaddexp logical_and logical_not logical_or
        logical_xor logit logit_backward lt.Tensor maximum minimum mish mish_backward mul.Scalar mul.Tensor
        mvlgamma ne.Tensor nextafter polygamma pow.Tensor_Tensor rad2deg reciprocal remainder.Scalar
        remainder.Tensor rsqrt rsub.Tensor selu sgn sigmoid_backward sign silu silu_backward sinh
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_entr special_erfcx
        special_hermite_polynomial_h special_hermite_polynomial_he special_legendre_polynomial_p special_ndtri
        special_spherical_bessel_j0 special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar
        special_zeta special_zeta.self_scalar sqrt sub.Tensor tan tanh_backward xlogy.Scalar_Other
        xlogy.Scalar_Self xlogy.Tensor
    """,
    "float64": """
        add.Tensor angle asinh atan atan2 atanh ceil clamp_max clamp_max.Tensor clamp_min.Tensor deg2rad
        div.Scalar div.Tensor eq.Tensor erf erfinv floor floor_divide fmax fmin fmod.Tensor frac frexp.Tensor
        ge.Tensor gelu gelu_backward gt.Tensor hardsigmoid_backward hardswish hardswish_backward hardtanh
        heaviside hypot le.Tensor leaky_relu lerp.Scalar log log10 log1p log2 logaddexp logical_and logical_not
        logical_or logical_xor logit logit_backward lt.Tensor maximum minimum mish mish_backward mul.Scalar
        mul.Tensor mvlgamma ne.Tensor nextafter polygamma pow.Tensor_Tensor rad2deg reciprocal remainder.Scalar
        remainder.Tensor rsqrt rsub.Tensor selu sgn sigmoid_backward sign silu silu_backward sinh
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_entr special_erfcx
        special_hermite_polynomial_h special_hermite_polynomial_he special_legendre_polynomial_p special_ndtri
        special_spherical_bessel_j0 special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar
        special_zeta sqrt sub.Tensor tan tanh tanh_backward xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor
    """,
}
#: Known differences in other execution modes, by (mode, dtype). The interpreter has no other differences; eager mode,
#: which compiles each rule separately, differs where compiled programs do.
KNOWN_OTHERWISE: dict[tuple[str, str], dict[str, str]] = {
    ("eager", "bfloat16"): {
        f"aten::{name}": "XLA flushes a subnormal operand"
        for name in ("logical_and", "logical_not", "logical_or", "logical_xor")
    },
}
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
#: (mode, dtype) that `make test` runs: eager mode compiles each rule, and the CPU's polynomials of int32 take a minute.
_QUICK = {
    ("compiled", "int8"),
    ("eager", "int8"),
    *(("interpreted", dtype) for dtype in ("int8", "float16", "bfloat16", "float32")),
}
RUNS = [
    pytest.param(*run, marks=[] if run in _QUICK else pytest.mark.sweep)
    for run in (
        *(("compiled", dtype) for dtype in _DTYPES),
        *(("eager", dtype) for dtype in ("int8", "bfloat16", "float32")),
        *(("interpreted", dtype) for dtype in _DTYPES),
    )
]


def _differences(way: str, dtype: str, names: list[str], seconds: int) -> dict[str, str | None]:
    """Return how each rule differs; a rule that crashes or does not terminate is reported, and the others run again."""
    arguments = f"{way!r}, {dtype!r}, {names!r}, {seconds}"
    code = f"from tests.programs import dtype_corner_programs; dtype_corner_programs.main({arguments})"
    policy = "eager" if way == "interpreted" else "compile"
    done = run_script(code, check=False, TORCH_XLA_COMPILE_POLICY=policy)
    if done.returncode == 0:
        found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
        return found
    if len(names) == 1:
        return {names[0]: f"ended with {done.returncode}: {done.stderr[-500:]}"}
    half = len(names) // 2
    return _differences(way, dtype, names[:half], seconds) | _differences(way, dtype, names[half:], seconds)


@pytest.mark.parametrize(("way", "dtype"), RUNS)
def test_corners_are_those_of_the_cpu(way: str, dtype: str) -> None:
    found = {name: text for name, text in _differences(way, dtype, NAMES, 240).items() if text is not None}
    flushed = {f"aten::{name}" for name in FLUSHED.get(dtype, "").split()}
    expected = flushed | set(KNOWN.get(dtype, {}))
    if way == "interpreted":
        expected = flushed = set()
    expected = expected | set(KNOWN_OTHERWISE.get((way, dtype), {}))
    assert not {name: text for name, text in found.items() if name not in expected}
    assert expected <= set(found), f"agree with the CPU again, remove them: {sorted(expected - set(found))}"
    assert not {name: found[name] for name in flushed if not found[name].startswith(SUBNORMAL)}
