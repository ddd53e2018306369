"""Libraries as they are published, with models on xla: `make test-clients`. What is not installed is skipped.

Their own warnings are theirs; one of torch_xla's is an error here, too.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

# Before any of them is imported. Nothing comes from a hub: models are made from configurations.
os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="0"
)

import pytest

from tests.clients.recompilations import Messages
from torch_xla._engine.diagnostics.recompilation_tracker import RecompilationTracker, tracker

HERE = Path(__file__).parent
#: Of each library what stands for the rest: make test-clients-sample.
SAMPLE = {
    "test_loop[no-2]",
    "test_loop[bf16-1]",
    "test_evaluation_counts_each_row_once",
    "test_states_and_models_on_disk",
    "test_launchers[launch, tpu]",
    "test_training_and_evaluation[gpt2]",
    "test_training_and_evaluation[bert]",
    "test_bf16",
    "test_resume",
    "test_generate_with_a_static_cache[gpt2]",
    "test_trainer[32-true-1]",
    "test_trainer[bf16-true-2]",
    "test_fabric[2]",
    "test_losses[trainer]",
    "test_peft",
    "test_diffusers",
    "test_torchmetrics[Accuracy]",
    "test_ignite",
    "test_ignite_among_several[2]",
    "test_skorch",
    "test_safetensors",
    "test_tensorboard",
    "test_sentence_transformers",
    "test_trl",
    "test_torch_geometric[SAGEConv]",
    "test_gpytorch",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which warnings are errors, and which tests are the sample."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore", "error:torch_xla"), append=False)
            if item.name in SAMPLE:
                item.add_marker(pytest.mark.sample)


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Messages:
    """The explanations of changing graphs that were logged so far, as in a new process."""
    for name, value in vars(RecompilationTracker()).items():
        monkeypatch.setattr(tracker, name, value)
    caplog.set_level(logging.WARNING, "torch_xla.recompilation")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "torch_xla.recompilation"]
