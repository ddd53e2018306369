"""Architectures of transformers and timm: three steps of training on xla are three steps on the CPU, compiled once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.clients import checks, zoo, zoo_table
from tests.clients.zoo_models import FAMILIES, TIMM, TIMM_DOUBLE, TIMM_SIZED, Architecture

#: One of each family, in `make test-clients`; the others in `make test-long`.
FEW = {
    "LlamaForCausalLM", "MixtralForCausalLM", "MambaForCausalLM", "ElectraForPreTraining", "T5ForConditionalGeneration",
    "SwinForImageClassification", "Wav2Vec2ForCTC", "CLIPModel", "PatchTSTForPrediction",
}  # fmt: skip
MODELS = {found.model: found for family in FAMILIES.values() for found in family}


def rows() -> list[Any]:
    return [pytest.param(found, id=name, marks=[] if name in FEW else [pytest.mark.sweep])
            for name, found in MODELS.items()]  # fmt: skip


@pytest.mark.filterwarnings("ignore:torch_xla.:UserWarning")  # the table says what runs on the CPU
@pytest.mark.parametrize("found", rows())
def test_transformers(found: Architecture, cold: None) -> None:
    checks.library("transformers")
    make = zoo.of_transformers(found._replace(config=copy.deepcopy(found.config)))
    got, expected = (zoo.train(make, found.batch, device, found.double) for device in ("xla", "cpu"))
    zoo.assert_same(got, expected)
    assert got.fallbacks == set(found.fallbacks)
    zoo.assert_compiled_once(got, found.programs, found.why, found.again)


def _named(name: str) -> Any:
    return pytest.param(name, marks=[] if name in ("resnet18", "vit_tiny_patch16_224") else [pytest.mark.sweep])


@pytest.mark.parametrize("name", [_named(name) for name in (*TIMM, *TIMM_SIZED, *TIMM_DOUBLE)])
def test_timm(name: str, cold: None) -> None:
    timm = checks.library("timm")
    options = {"img_size": 64} if name in TIMM_SIZED else {}

    def batch() -> zoo.Batch:
        return {"x": torch.randn(4, 3, 64, 64)}

    def make() -> nn.Module:
        return timm.create_model(name, num_classes=4, **options)  # type: ignore[no-any-return]

    got, expected = (zoo.train(make, batch, device, name in TIMM_DOUBLE) for device in ("xla", "cpu"))
    zoo.assert_same(got, expected)
    assert not got.fallbacks
    zoo.assert_compiled_once(got, 1, "")


def test_there_are_enough() -> None:
    assert len(MODELS) >= 60 and set(MODELS) >= FEW
    assert len({*TIMM, *TIMM_SIZED, *TIMM_DOUBLE}) >= 40


def test_document() -> None:
    text = zoo_table.DOCUMENT.read_text()
    assert text == zoo_table.replaced(text), "python -m tests.clients.zoo_table"
