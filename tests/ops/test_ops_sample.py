"""Runs a sample of the sweep (`make test-ops`): ops of every family, float32, values and gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops import database, exceptions, report
from tests.ops.check import check

OPS = """add sub mul div (floor_rounding) pow remainder maximum where clamp exp log1p sigmoid tanh erf special.i0e
    abs sign round isnan logical_and eq bitwise_not sum mean var std_mean amax argmax prod logsumexp cumsum cumprod
    sort topk kthvalue gather scatter_add index_put index_select masked_fill take cat stack split expand transpose
    diagonal unfold as_strided flip roll tril matmul bmm addmm einsum linalg.inv linalg.det linalg.cholesky fft.fft
    nn.functional.conv2d nn.functional.max_pool2d nn.functional.layer_norm nn.functional.gelu nn.functional.softplus
    nn.functional.cross_entropy nn.functional.interpolate (bilinear) nn.functional.embedding nn.functional.pad (reflect)
    nn.functional.scaled_dot_product_attention"""


def _names(text: str) -> list[str]:
    names: list[str] = []
    for word in text.split():
        if word.startswith("("):
            names[-1] += f" {word}"
        else:
            names.append(word)
    return names


@pytest.mark.parametrize("kind", ["forward", "grad"])
@pytest.mark.parametrize("name", _names(OPS))
def test_op_matches_cpu(name: str, kind: str) -> None:
    dtype = next(d for d in database.DTYPES if d in database.ops()[name].supported_dtypes("cpu"))
    outcome = check(name, dtype, kind, limit=2)
    assert not outcome.failed or exceptions.reason(outcome), f"{outcome.message}\n{outcome.sample}"


def test_cpu_fallbacks_have_reasons() -> None:
    """Each CPU fallback of the document has its reason."""
    document = (Path(__file__).parents[2] / "docs" / "reference" / "op_coverage.md").read_text()
    rows = document.partition("## CPU fallbacks")[2].partition("\n## ")[0].splitlines()[4:]
    for row in filter(None, rows):
        _, parts, why = row.strip("| ").split(" | ")
        assert why == report.why_on_cpu(parts.split(", ")), row
