"""Lowering rules of special functions: the gamma, error, Bessel and zeta families."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import Function, arithmetic, register_table
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower


def _digamma(x: jax.Array) -> jax.Array:
    """Compute digamma; at ±0 it is infinite with the opposite sign, at other poles nan, as in torch."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


def _trigamma(x: jax.Array) -> jax.Array:
    """Compute the derivative of digamma as torch does: reflection to x > 0, recurrence, then the asymptotic series."""
    left = x < 0.5
    sine = jnp.sin(math.pi * x)
    y = jnp.where(left, 1 - x, x)
    total = jnp.where(left, -jnp.square(math.pi / sine), 0)
    for _ in range(6):
        total, y = total + 1 / (y * y), y + 1
    r = 1 / (y * y)
    total = total + (1 + 1 / (2 * y) + r * (1 / 6 - r * (1 / 30 - r * (1 / 42)))) / y
    return jnp.where(left, -total, total)


State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # sum, argument, number of terms, whether to continue

#: (2k)! / B(2k) of the Euler-Maclaurin series, k = 1 ... 12.
_ZETA_TERMS = (12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10,
               -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
               1.8152105401943546773e17, -7.1661652561756670113e18)  # fmt: skip


def _zeta(x: jax.Array, q: jax.Array) -> jax.Array:
    """Compute the Hurwitz zeta function, also for q < 0 if x is an integer: sum until q >= 9, which jax does not do."""
    dtype, (x, q) = (
        x.dtype,
        (v.astype(jnp.float64) for v in jnp.broadcast_arrays(x, q)),
    )  # as torch does, for precision near the poles
    epsilon = np.finfo(np.float64).eps / 2

    def running(total: jax.Array, a: jax.Array, count: jax.Array) -> jax.Array:
        term = jnp.abs(jnp.power(a, -x))
        return ((count < 9) | (a <= 9)) & (term >= epsilon * jnp.abs(total))

    def step(state: State) -> State:
        total, a, count, go = state
        a = jnp.where(go, a + 1, a)
        total = total + jnp.where(go, jnp.power(a, -x), 0)
        return total, a, count + 1, go & running(total, a, count + 1)

    first = jnp.power(q, -x)
    pole = (q <= 0) & (q == jnp.floor(q))  # for large |q|, q + 1 == q would never reach 9
    state = first, q, jnp.zeros((), jnp.int32), jnp.isfinite(first) & ~pole
    total, a, _, _ = lax.while_loop(lambda state: jnp.any(state[3]), step, state)
    power = jnp.power(a, -x)
    is_sum = ~jnp.isfinite(first) | (jnp.abs(power) < epsilon * jnp.abs(total))  # for a large x the factors overflow
    rest, factor = power * a / (x - 1) - power / 2, jnp.ones_like(x)
    for k, term in enumerate(_ZETA_TERMS):
        factor, power = factor * (x + 2 * k), power / a
        rest = rest + factor * power / term
        factor, power = factor * (x + 2 * k + 1), power / a
    total = jnp.where(is_sum, total, total + rest)
    left = (q <= 0) & jnp.where(q == jnp.floor(q), False, x != jnp.floor(x))
    total = jnp.where((q <= 0) & (q == jnp.floor(q)), jnp.inf, total)
    total = jnp.where(left | (x < 1), jnp.nan, total)
    return jnp.where(x == 1, jnp.inf, total).astype(dtype)


def _polygamma_of(n: int, x: jax.Array) -> jax.Array:
    if n == 0:
        return _digamma(x)
    if n == 1:
        return _trigamma(x)
    return (1 if n % 2 else -1) * math.factorial(n) * _zeta(jnp.full_like(x, n + 1), x)


def _spherical_bessel_j0(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isinf(x), 0, jnp.sinc(x / math.pi))


def _entr(x: jax.Array) -> jax.Array:
    """Compute ``-x * log(x)``; at 0 it is positive 0, unlike ``-xlogy(x, x)``."""
    return jnp.where(x < 0, -jnp.inf, _zero_times(-x, x, lax.log))


def _erfcx(x: jax.Array) -> jax.Array:
    """Compute exp(x**2) * erfc(x): directly below 3, where the product is exact, else by a continued fraction."""
    positive = jnp.abs(x)
    far = jnp.maximum(positive, 3)
    fraction = far
    for n in range(40, 0, -1):
        fraction = far + n / 2 / fraction
    near = jnp.minimum(positive, 3)
    right = jnp.where(positive < 3, lax.exp(near * near) * lax.erfc(near), 1 / (math.sqrt(math.pi) * fraction))
    right = jnp.where(jnp.isnan(x), x, right)
    return jnp.where(x < 0, 2 * lax.exp(x * x) - right, right)


# jax 0.10.0 does not have the function.
erfcx: Function = getattr(special, "erfcx", _erfcx)


def _log_ndtr(x: jax.Array) -> jax.Array:
    """Compute log_ndtr by torch's two branches.

    ``jax.scipy.special.log_ndtr`` takes the logarithm of a float near 1, which is inexact.
    """
    left = x < -1
    scaled = x * math.sqrt(0.5)
    tail = jnp.where(left, scaled, -1)
    tail = lax.log(erfcx(-tail) / 2) - tail * tail
    return jnp.where(left, tail, lax.log1p(-lax.erfc(scaled) / 2))


_UNARY: dict[str, Function] = {
    "digamma": _digamma,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "i0": special.i0,
    "lgamma": lax.lgamma,
    "special_entr": _entr,
    "special_erfcx": erfcx,
    "special_i0e": lax.bessel_i0e,
    "special_i1": special.i1,
    "special_i1e": lax.bessel_i1e,
    "special_log_ndtr": _log_ndtr,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "special_ndtri": special.ndtri,
    "special_spherical_bessel_j0": _spherical_bessel_j0,
}


def _xlog1py(x: jax.Array, y: jax.Array) -> jax.Array:
    return _zero_times(x, y, lax.log1p)


def _xlogy(x: jax.Array, y: jax.Array) -> jax.Array:
    return _zero_times(x, y, lax.log)


def _zero_times(x: jax.Array, y: jax.Array, logarithm: Function) -> jax.Array:
    """Compute ``x * logarithm(y)``, where 0 times anything but nan is 0."""
    return jnp.where(jnp.isnan(y), jnp.nan, jnp.where(x == 0, 0, x * logarithm(y)))


register_table(arithmetic, _UNARY)


#: Values of a from which the asymptotic expansion is used. jax loses precision there: it computes the factor
#: x**a * exp(-x) / gamma(a) by its logarithm, a difference of large numbers.
_LARGE = {np.dtype(np.float32): 1e2, np.dtype(np.float64): 1e4}

#: The coefficients of the powers of eta in the first two terms (DLMF 8.12.12).
_EXPANSION = (
    (-1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515),
    (-1 / 540, -1 / 288, 1 / 378, -77 / 77760),
)


def _incomplete_of_large(a: jax.Array, x: jax.Array, at_zero: float) -> jax.Array:
    """Compute the uniform asymptotic expansion (DLMF 8.12.3, 8.12.4); two terms suffice from ``_LARGE`` on."""
    a, x = a.astype(jnp.float64), x.astype(jnp.float64)
    mu = (x - a) / a
    series = jnp.zeros_like(mu)
    for k in range(2, 14):  # mu - log1p(mu) without cancellation
        series = series + (-1.0) ** k * mu**k / k
    half = jnp.where(jnp.abs(mu) < 0.1, series, mu - jnp.log1p(mu))
    half = jnp.minimum(half, 1)  # beyond 1, exp(-a * half) is 0; eta must be finite
    eta = jnp.sign(mu) * jnp.sqrt(2 * half)
    terms = sum(sum(c * eta**k for k, c in enumerate(row)) / a**i for i, row in enumerate(_EXPANSION))
    rest = jnp.exp(-a * half) / (math.sqrt(2 * math.pi) * jnp.sqrt(a)) * terms
    sign = 2 * at_zero - 1  # -1 for the lower function, 1 for the upper
    place = jnp.clip(sign * eta * jnp.sqrt(a / 2), -40, 40)  # XLA's erfc of very large numbers is nan
    return lax.erfc(place) / 2 + sign * rest


def _log_gamma_beside_one(a: jax.Array) -> jax.Array:
    """Compute ``lgamma(1 + a)`` for ``a >= 0``, with a small relative error also for small results."""
    series = a * (-np.euler_gamma + a * (math.pi**2 / 12 - a * 0.40068563438653143))
    return jnp.where(a < 1e-4, series, lax.lgamma(1 + a))


def _gammainc(a: jax.Array, x: jax.Array) -> jax.Array:
    """Compute jax's gammainc for ``a`` of at least 1e-30: for the smallest normal ``a`` jax returns 0, not 1."""
    return special.gammainc(jnp.maximum(a, 1e-30), x)


def _gammaincc(a: jax.Array, x: jax.Array) -> jax.Array:
    """Compute gammaincc; for small ``x`` by torch's series, where jax subtracts a value near 1 from 1."""
    wide, near = a.astype(jnp.float64), jnp.clip(x.astype(jnp.float64), 0, 1.1)
    small = jnp.where(x <= 0.5, -0.4 / jnp.log(jnp.minimum(near, 0.5)) >= wide, (x <= 1.1) & (near * 1.1 >= wide))
    power, total = jnp.ones_like(near), jnp.zeros_like(near)
    for n in range(1, 21):
        power = power * (-near / n)
        total = total + power / (wide + n)
    exponent = wide * jnp.log(near) - _log_gamma_beside_one(wide)
    series = -jnp.expm1(exponent) - wide * jnp.exp(exponent) * total
    return jnp.where(small, series.astype(a.dtype), special.gammaincc(a, x))


def _incomplete(function: Function, at_zero: float) -> Function:
    """Return the incomplete gamma function that is ``at_zero`` at 0, with torch's values at the edges of its domain."""

    def of(a: jax.Array, x: jax.Array) -> jax.Array:
        large = a > _LARGE[a.dtype]
        expansion = _incomplete_of_large(a, x, at_zero).astype(a.dtype)
        value = jnp.where(large, expansion, function(jnp.where(large, 1, a), x))
        value = jnp.where(jnp.isinf(x), 1 - at_zero, value)
        value = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, at_zero), value)
        value = jnp.where(x == 0, at_zero, value)
        value = jnp.where(a == 0, jnp.where(x > 0, 1 - at_zero, jnp.nan), value)
        return jnp.where((x < 0) | (a < 0), jnp.nan, value)

    return of


register_table(arithmetic, {"igamma": _incomplete(_gammainc, 0.0), "igammac": _incomplete(_gammaincc, 1.0)})
register_table(arithmetic, {"special_xlog1py": _xlog1py, "special_zeta": _zeta}, "", "other_scalar", "self_scalar")
register_table(arithmetic, {"xlogy": _xlogy}, "Scalar_Other", "Scalar_Self", "Tensor")


@lower("aten::polygamma", ctx=True)
def _polygamma(context: LoweringRuleContext, n: int, x: jax.Array) -> jax.Array:
    x = convert(x, opmath(context.dtype))
    return convert(_polygamma_of(n, x), context.dtype)


@lower("aten::mvlgamma", ctx=True)
def _mvlgamma(context: LoweringRuleContext, x: jax.Array, p: int) -> jax.Array:
    x = convert(x, opmath(context.dtype))
    return convert(sum(lax.lgamma(x - j / 2) for j in range(p)) + p * (p - 1) / 4 * math.log(math.pi), context.dtype)
