"""Every public name of torch.accelerator, torch.cuda and torch.cuda.amp has a counterpart on xla, or a reason."""

from __future__ import annotations

import pytest
import torch

from tests.torch_patches.accelerator_names import (
    CHECKS,
    MODULES,
    WITHOUT_COUNTERPART,
    is_defined,
    public_names,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="another accelerator is chosen")


@pytest.mark.parametrize("namespace", MODULES)
def test_every_public_name_is_listed(namespace: str) -> None:
    unknown = sorted(public_names(namespace) - set(CHECKS) - set(WITHOUT_COUNTERPART))
    assert not unknown, (
        f"torch {torch.__version__} has the public names {unknown}: for each, add its counterpart on xla and a check "
        "to CHECKS in tests/torch_patches/accelerator_names.py, or add the name to a reason of _REASONS there"
    )


@pytest.mark.parametrize("name", CHECKS)
def test_counterpart_behaves_alike(name: str) -> None:
    if not is_defined(name):
        pytest.skip(f"torch {torch.__version__} lacks torch.{name}")
    assert CHECKS[name]()


def test_reasons_apply() -> None:
    assert set(CHECKS) & set(WITHOUT_COUNTERPART) == set()
    existing = [name for name in WITHOUT_COUNTERPART if hasattr(torch.xla, name.partition(".")[2])]  # type: ignore[attr-defined]
    assert existing == [], "torch.xla has these names: check their behaviour in CHECKS instead"
