"""Libraries as they are published, with models on xla: `make test-clients`. What is not installed is skipped.

Their own warnings are theirs; one of torch_xla's is an error here, too.
"""

from __future__ import annotations

import os
from pathlib import Path

# Before any of them is imported. Nothing comes from a hub: models are made from configurations.
os.environ.update(
    HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="0"
)

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which warnings are errors."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore", "error:torch_xla"), append=False)
